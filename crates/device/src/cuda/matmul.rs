//! The products of linear layers: bf16 by cuBLASLt, f32 by our own kernels, whose chain of additions is one.

use super::blas::{Op, Operands, Shape};
use super::{CudaDevice, sgemm};
use crate::{Matrix, MatrixLayout};
use plimsoll_base::DType;
use plimsoll_memory::Buf;

/// Bytes of scratch that cuBLASLt may use at most.
pub(crate) const WORKSPACE_BYTES: u64 = 32 << 20;

fn rows(x: Buf<'_>, width: usize) -> usize {
    assert!(x.len().is_multiple_of(width), "{} elements in rows of {width}", x.len());
    x.len() / width
}

/// True if cuBLASLt takes the shapes: rows of whole 16-byte units.
fn by_library(dev: &CudaDevice, operands: &[Buf<'_>], widths: &[usize]) -> bool {
    let whole = widths.iter().all(|w| w.is_multiple_of(8));
    whole && operands.iter().all(|b| b.dtype() == DType::Bf16 && dev.address(*b).is_multiple_of(16))
}

/// out = x W^T + bias, or out += .
pub(crate) fn forward(
    dev: &CudaDevice,
    x: Buf<'_>,
    w: Matrix<'_>,
    bias: Option<Buf<'_>>,
    out: Buf<'_>,
    add: bool,
) {
    assert_eq!(w.layout, MatrixLayout::Rows);
    let m = rows(x, w.k);
    assert_eq!(out.len(), m * w.n, "[{m}, {}]", w.n);
    assert!(
        bias.is_none_or(|b| b.len() == w.n),
        "a bias of {} for {} outputs",
        bias.map_or(0, Buf::len),
        w.n
    );
    assert!(!add || out.dtype() == DType::F32, "only f32 is added to");
    if m == 0 {
        return;
    }
    // The library adds a bf16 bias to bf16 outputs only.
    let odd = bias.is_some() && out.dtype() == DType::F32;
    if odd || !by_library(dev, &[x, w.buf], &[w.k, w.n]) {
        return sgemm::forward(dev, x, w, bias, out, add);
    }
    let shape = Shape { op: Op::Forward, m, n: w.n, k: w.k, out: out.dtype(), add, bias: bias.is_some() };
    product(dev, shape, w.buf, x, out, bias);
}

/// out = dy W, or out += .
pub(crate) fn backward_x(dev: &CudaDevice, dy: Buf<'_>, w: Matrix<'_>, out: Buf<'_>, add: bool) {
    assert_eq!(w.layout, MatrixLayout::Rows);
    let m = rows(dy, w.n);
    assert_eq!(out.len(), m * w.k, "[{m}, {}]", w.k);
    assert!(!add || out.dtype() == DType::F32, "only f32 is added to");
    if m == 0 {
        return;
    }
    if !by_library(dev, &[dy, w.buf], &[w.k, w.n]) {
        return sgemm::backward_x(dev, dy, w, out, add);
    }
    let shape = Shape { op: Op::BackwardX, m, n: w.n, k: w.k, out: out.dtype(), add, bias: false };
    product(dev, shape, w.buf, dy, out, None);
}

/// grad += dy^T x.
pub(crate) fn backward_w(dev: &CudaDevice, dy: Buf<'_>, x: Buf<'_>, grad: Matrix<'_>) {
    assert_eq!(grad.layout, MatrixLayout::Rows);
    let m = rows(dy, grad.n);
    assert_eq!(x.len(), m * grad.k, "[{m}, {}]", grad.k);
    if m == 0 {
        return;
    }
    if !by_library(dev, &[dy, x], &[grad.k, grad.n]) || !dev.address(grad.buf).is_multiple_of(16) {
        return sgemm::backward_w(dev, dy, x, grad);
    }
    let out = grad.buf.dtype();
    let shape = Shape { op: Op::BackwardW, m, n: grad.n, k: grad.k, out, add: true, bias: false };
    product(dev, shape, x, dy, grad.buf, None);
}

fn product(dev: &CudaDevice, shape: Shape, a: Buf<'_>, b: Buf<'_>, out: Buf<'_>, bias: Option<Buf<'_>>) {
    if dev.has_failed() {
        return;
    }
    let operands = Operands {
        a: dev.address(a),
        b: dev.address(b),
        out: dev.address(out),
        bias: bias.map_or(0, |bias| dev.address(bias)),
    };
    if let Err(error) = dev.blas.product(&dev.gpu, shape, operands, dev.workspace()) {
        return dev.fail(error);
    }
    if dev.checked
        && let Err(err) = dev.gpu.wait()
    {
        dev.fail(super::driver::failed(&format!("{shape:?}"), err));
    }
}

/// FLOP/s of square bf16 products in the scratch, the best of those that `seconds` have room for.
pub(crate) fn peak_flops(dev: &CudaDevice, seconds: f64) -> f64 {
    const TIMES: usize = 20;
    let (address, bytes) = dev.scratch.expect("`bind_scratch` comes before the operations");
    // Three matrices of n x n elements of two bytes, n a multiple of every tile.
    let n = ((bytes / 6) as f64).sqrt() as usize / 256 * 256;
    assert!(n > 0, "a scratch of {bytes} bytes");
    let size = (n * n * 2) as u64;
    // Zeros would run faster than numbers do.
    let numbers: Vec<half::bf16> = (0..1 << 16)
        .map(|i: u32| half::bf16::from_f32((i.wrapping_mul(2_654_435_761) >> 16) as f32 / 65536.0 - 0.5))
        .collect();
    for at in (0..2 * n * n / numbers.len()).map(|i| i * numbers.len() * 2) {
        dev.send(address + at as u64, &numbers);
    }
    let shape = Shape { op: Op::Forward, m: n, n, k: n, out: DType::Bf16, add: false, bias: false };
    let operands = Operands { a: address, b: address + size, out: address + 2 * size, bias: 0 };
    let started = std::time::Instant::now();
    let mut best = 0.0f64;
    while best == 0.0 || started.elapsed().as_secs_f64() < seconds {
        let part = std::time::Instant::now();
        for _ in 0..TIMES {
            if let Err(error) = dev.blas.product(&dev.gpu, shape, operands, (0, 0)) {
                dev.fail(error);
                return f64::NAN;
            }
        }
        if dev.gpu.wait().is_err() {
            return f64::NAN;
        }
        best = best.max((TIMES * 2 * n * n * n) as f64 / part.elapsed().as_secs_f64());
    }
    best
}
