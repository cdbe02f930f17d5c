//! Launchers of `sgemm.cu`: products in f32, and in bf16 of shapes that cuBLASLt does not take.
//!
//! One chain of additions an element, in ascending order of what is summed over: bits of a row depend on nothing else.

use super::rows::count;
use super::{Arg, CudaDevice, Launch};
use plimsoll_base::DType;
use plimsoll_device::{Matrix, MatrixLayout};
use plimsoll_memory::Buf;

/// Rows and columns of a block's tile in f32, as in `sgemm.cu`.
const PLAIN_TILE: usize = 64;
/// The same in bf16.
const TILE: usize = 128;
/// Bytes that a block of the bf16 products shares: three stages of two operands of 128 x 40.
const SHARED: u32 = 3 * 2 * 128 * 40 * 2;
/// Blocks along the second dimension of a grid, at most.
const GRID_Y_MAX: usize = 65_535;

/// The kernel of an operation for the storage of inputs and outputs.
macro_rules! typed {
    ($name:literal, $input:expr, $out:expr) => {
        match ($input.dtype(), $out.dtype()) {
            (DType::F32, DType::F32) => concat!($name, "_f32_f32"),
            (DType::F32, DType::Bf16) => concat!($name, "_f32_bf16"),
            (DType::Bf16, DType::F32) => concat!($name, "_bf16_f32"),
            (DType::Bf16, DType::Bf16) => concat!($name, "_bf16_bf16"),
            (input, out) => panic!("{} of {} to {}", $name, input.name(), out.name()),
        }
    };
}

/// A block for every tile of an output [rows, cols].
fn tiles(input: DType, rows: usize, cols: usize) -> Launch {
    let (tile, shared) = if input == DType::F32 { (PLAIN_TILE, 0) } else { (TILE, SHARED) };
    let (x, y) = (cols.div_ceil(tile), rows.div_ceil(tile));
    assert!(y <= GRID_Y_MAX, "{rows} rows of a product");
    Launch { grid: [x as u32, y as u32, 1], block: 256, shared }
}

/// out = x W^T + bias, or out += when `add`. `x`: [M, K] e; `bias`: [N] e; `out`: [M, N] f32, or bf16 of bf16.
pub(crate) fn forward(
    dev: &CudaDevice,
    x: Buf<'_>,
    w: Matrix<'_>,
    bias: Option<Buf<'_>>,
    out: Buf<'_>,
    add: bool,
) {
    check_inputs(x, w, w.k, out, add);
    let m = x.len() / w.k;
    assert_eq!(out.len(), m * w.n, "[{m}, {}] of a product", w.n);
    assert!(bias.is_none_or(|b| b.len() == w.n && b.dtype() == x.dtype()), "a bias of N = {} elements", w.n);
    let bias = bias.map_or(Arg::Ptr(0), |bias| dev.arg(bias));
    let args = [
        dev.arg(x),
        dev.arg(w.buf),
        bias,
        dev.arg(out),
        count(m),
        count(w.n),
        count(w.k),
        Arg::U32(u32::from(add)),
    ];
    dev.launch("sgemm", typed!("forward", x, out), tiles(x.dtype(), m, w.n), &args);
}

/// out = dy W, or out += when `add`. `dy`: [M, N] e; `out`: [M, K] f32, or bf16 of bf16.
pub(crate) fn backward_x(dev: &CudaDevice, dy: Buf<'_>, w: Matrix<'_>, out: Buf<'_>, add: bool) {
    check_inputs(dy, w, w.n, out, add);
    let m = dy.len() / w.n;
    assert_eq!(out.len(), m * w.k, "[{m}, {}] of a product", w.k);
    let args = [
        dev.arg(dy),
        dev.arg(w.buf),
        dev.arg(out),
        count(m),
        count(w.n),
        count(w.k),
        Arg::U32(u32::from(add)),
    ];
    dev.launch("sgemm", typed!("backward_x", dy, out), tiles(dy.dtype(), m, w.k), &args);
}

/// grad += dy^T x, summed in f32, rounded to the gradient's dtype and added once. `dy`: [M, N] e; `x`: [M, K] e; `grad`: [N, K] f32 or bf16.
pub(crate) fn backward_w(dev: &CudaDevice, dy: Buf<'_>, x: Buf<'_>, grad: Matrix<'_>) {
    assert_eq!(dy.dtype(), x.dtype(), "gradients of outputs are stored as inputs are");
    assert_eq!(grad.layout, MatrixLayout::Rows);
    let m = x.len() / grad.k;
    assert_eq!((x.len(), dy.len()), (m * grad.k, m * grad.n), "{m} rows of [{}, {}]", grad.n, grad.k);
    let args = [dev.arg(dy), dev.arg(x), dev.arg(grad.buf), count(m), count(grad.n), count(grad.k)];
    dev.launch("sgemm", typed!("backward_w", x, grad.buf), tiles(x.dtype(), grad.n, grad.k), &args);
}

fn check_inputs(x: Buf<'_>, w: Matrix<'_>, width: usize, out: Buf<'_>, add: bool) {
    assert_eq!(x.dtype(), w.buf.dtype(), "inputs are stored as weights are");
    assert_eq!(w.layout, MatrixLayout::Rows);
    assert!(x.len().is_multiple_of(width), "{} elements in rows of {width}", x.len());
    assert!(
        out.dtype() == DType::F32 || out.dtype() == x.dtype(),
        "{} of {}",
        out.dtype().name(),
        x.dtype().name()
    );
    assert!(!add || out.dtype() == DType::F32, "only f32 is added to");
}
