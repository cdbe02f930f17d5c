//! The products of linear layers: bf16 by cuBLASLt, f32 by our own kernels, with a single chain of additions.

use super::lt::{Op, Operands, Shape};
use super::{CudaDevice, few, sgemm};
use plimsoll_arch::Gate;
use plimsoll_base::DType;
use plimsoll_device::{Matrix, MatrixLayout};
use plimsoll_memory::Buf;

pub(super) fn rows(x: Buf<'_>, width: usize) -> usize {
    assert!(x.len().is_multiple_of(width), "{} elements in rows of {width}", x.len());
    x.len() / width
}

/// True if cuBLASLt takes the shapes: rows and strides of whole 16-byte units.
pub(super) fn by_library(dev: &CudaDevice, operands: &[Buf<'_>], widths: &[usize]) -> bool {
    let whole = widths.iter().all(|w| w.is_multiple_of(8));
    whole && operands.iter().all(|b| b.dtype() == DType::Bf16 && dev.address(*b).is_multiple_of(16))
}

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
        bias.is_none_or(|b| (b.len(), b.dtype()) == (w.n, x.dtype())),
        "a bias of {} for {} outputs, in the dtype of inputs",
        bias.map_or(0, Buf::len),
        w.n
    );
    assert!(!add || out.dtype() == DType::F32, "only f32 is added to");
    if m == 0 {
        return;
    }
    if !by_library(dev, &[x, w.buf], &[w.k, w.n]) {
        return sgemm::forward(dev, x, w, bias, out, add);
    }
    // The library adds a bf16 bias to bf16 outputs only.
    if let Some(bias) = bias.filter(|_| out.dtype() == DType::F32) {
        forward(dev, x, w, None, out, add);
        return super::rows::add_bias(dev, out, bias);
    }
    let shape = Shape { add, bias: bias.is_some(), ..Shape::new(Op::Forward, m, w.n, w.k, out.dtype()) };
    product(dev, shape, Product { bias, ..Product::new(w.buf, x, out) });
}

pub(crate) fn gated(dev: &CudaDevice, x: Buf<'_>, w: Matrix<'_>, how: Gate, gate_up: Buf<'_>, out: Buf<'_>) {
    assert_eq!(w.layout, MatrixLayout::Rows);
    let (m, f) = (rows(x, w.k), w.n / 2);
    assert_eq!([gate_up.len(), out.len()], [m * w.n, m * f], "[{m}, 2 x {f}] and [{m}, {f}]");
    if m > 0 && f.is_multiple_of(8) && by_library(dev, &[x, w.buf, out], &[w.k, w.n]) {
        let shape = Shape::new(Op::Forward, m, w.n, w.k, out.dtype());
        let operands = operands(dev, &Product::new(w.buf, x, out));
        if few::takes_gated(dev, &shape, &operands) {
            return few::gated(dev, &shape, operands, how);
        }
    }
    forward(dev, x, w, None, gate_up, false);
    super::rows::glu(dev, how, gate_up, f, out);
}

pub(crate) fn forward_add(dev: &CudaDevice, x: Buf<'_>, w: Matrix<'_>, resid: Buf<'_>, out: Buf<'_>) {
    assert_eq!(w.layout, MatrixLayout::Rows);
    let m = rows(x, w.k);
    assert_eq!([out.len(), resid.len()], [m * w.n; 2], "[{m}, {}]", w.n);
    assert_eq!([out.dtype(), resid.dtype()], [DType::F32; 2], "sums are f32");
    if m == 0 {
        return;
    }
    if !by_library(dev, &[x, w.buf], &[w.k, w.n]) {
        if out != resid {
            super::rows::cast(dev, resid, out);
        }
        return sgemm::forward(dev, x, w, None, out, true);
    }
    let shape = Shape { add: true, ..Shape::new(Op::Forward, m, w.n, w.k, DType::F32) };
    product(dev, shape, Product { added: resid, ..Product::new(w.buf, x, out) });
}

pub(crate) fn backward_x(dev: &CudaDevice, dy: Buf<'_>, w: Matrix<'_>, out: Buf<'_>, add: bool) {
    assert_eq!(w.layout, MatrixLayout::Rows);
    let m = rows(dy, w.n);
    assert_eq!(out.len(), m * w.k, "[{m}, {}]", w.k);
    if m == 0 {
        return;
    }
    // The library rounds what it adds to bf16 before the sum.
    let odd = add && out.dtype() == DType::Bf16;
    if odd || !by_library(dev, &[dy, w.buf], &[w.k, w.n]) {
        return sgemm::backward_x(dev, dy, w, out, add);
    }
    let shape = Shape { add, ..Shape::new(Op::BackwardX, m, w.n, w.k, out.dtype()) };
    product(dev, shape, Product::new(w.buf, dy, out));
}

pub(crate) fn backward_w(dev: &CudaDevice, dy: Buf<'_>, x: Buf<'_>, grad: Matrix<'_>, add: bool) {
    assert_eq!(grad.layout, MatrixLayout::Rows);
    let m = rows(dy, grad.n);
    assert_eq!(x.len(), m * grad.k, "[{m}, {}]", grad.k);
    let by_library = by_library(dev, &[dy, x], &[grad.k, grad.n]) && dev.address(grad.buf).is_multiple_of(16);
    if !add && (m == 0 || !by_library) {
        super::memory::zero(dev, grad.buf);
    }
    if m == 0 {
        return;
    }
    if !by_library {
        return sgemm::backward_w(dev, dy, x, grad);
    }
    let shape = Shape { add, ..Shape::new(Op::BackwardW, m, grad.n, grad.k, grad.buf.dtype()) };
    product(dev, shape, Product::new(x, dy, grad.buf));
}

/// The buffers of a product; see `lt::Operands`.
pub(super) struct Product<'a> {
    pub(super) a: Buf<'a>,
    pub(super) b: Buf<'a>,
    /// The matrix that `add` adds to: the output itself, or another of its shape.
    pub(super) added: Buf<'a>,
    pub(super) out: Buf<'a>,
    pub(super) bias: Option<Buf<'a>>,
    pub(super) scale: f32,
}

impl<'a> Product<'a> {
    pub(super) fn new(a: Buf<'a>, b: Buf<'a>, out: Buf<'a>) -> Product<'a> {
        Product { a, b, added: out, out, bias: None, scale: 1.0 }
    }
}

fn operands(dev: &CudaDevice, of: &Product<'_>) -> Operands {
    Operands {
        a: dev.address(of.a),
        b: dev.address(of.b),
        added: dev.address(of.added),
        out: dev.address(of.out),
        bias: of.bias.map_or(0, |bias| dev.address(bias)),
        scale: of.scale,
    }
}

pub(super) fn product(dev: &CudaDevice, shape: Shape, of: Product<'_>) {
    if dev.has_failed() {
        return;
    }
    let operands = operands(dev, &of);
    if few::takes(dev, &shape, &operands) {
        return few::forward(dev, &shape, operands);
    }
    let bytes = of.out.len() as u64 * of.out.dtype().bytes();
    if !shape.add && shape.is_whole() && bytes == shape.out_bytes() {
        super::checked::forget(dev, of.out);
    }
    let put = || dev.blas.product(&dev.gpu, shape, operands, dev.workspace());
    let name = || format!("{:?} {}", shape.op, shape.out.name());
    let done = match &dev.profile {
        Some(profile) => profile.time(&dev.gpu, name, put),
        None => put(),
    };
    if let Err(error) = done {
        return dev.fail(error);
    }
    if dev.checked
        && let Err(err) = dev.gpu.wait()
    {
        dev.fail(super::driver::failed(&format!("{shape:?}"), err));
    }
}

/// Returns FLOP/s of bf16 products that a card of this kind reaches: its rate at the highest clock, times the share
/// that products of 8,192 reached on an H200 through cuBLASLt (790e12).
pub(crate) fn peak_flops(dev: &CudaDevice) -> f64 {
    const REACHED: f64 = 0.738;
    let info = &dev.gpu.info;
    // Operations that the tensor cores of a multiprocessor do in a cycle.
    let per_cycle = match info.capability {
        (8, 0) => 2048.0,
        (9, _) => 4096.0,
        (10, _) => 8192.0,
        _ => 1024.0,
    };
    f64::from(info.multiprocessors) * per_cycle * info.clock_hz * REACHED
}
