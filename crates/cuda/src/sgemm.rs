//! Launchers of `sgemm.cu`: products in f32, and in bf16 of shapes that cuBLASLt does not take.
//!
//! An element is one chain of additions, ascending in the summed index: bits of a row depend on nothing else.

use super::chosen::Chosen;
use super::{CudaDevice, Launch};
use plimsoll_base::DType;
use plimsoll_device::{Matrix, MatrixLayout};
use plimsoll_memory::Buf;

/// Rows and columns of a block's tile in f32, as in `sgemm.cu`.
const PLAIN_TILE: usize = 64;
/// Rows and columns of a block's tile in bf16.
const TILE: usize = 128;
/// Bytes that a block of the bf16 products shares: three stages of two operands of 128 x 40.
const SHARED: u32 = 3 * 2 * 128 * 40 * 2;
/// Maximum blocks along the second dimension of a grid.
const GRID_Y_MAX: usize = 65_535;

/// Selects the kernel of an operation for the storage of inputs and outputs.
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

/// Returns a launch of a block for every tile of an output [rows, cols].
fn tiles(input: DType, rows: usize, cols: usize) -> Launch {
    let (tile, shared) = if input == DType::F32 { (PLAIN_TILE, 0) } else { (TILE, SHARED) };
    let (x, y) = (cols.div_ceil(tile), rows.div_ceil(tile));
    assert!(y <= GRID_Y_MAX, "{rows} rows of a product");
    Launch { grid: [x as u32, y as u32, 1], block: 256, shared }
}

/// Rows of a buffer, or a run of columns of wider rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns<'a> {
    /// From the first row's first element on.
    pub(crate) buf: Buf<'a>,
    /// Elements from row to row.
    pub(crate) stride: usize,
}

impl<'a> Columns<'a> {
    /// Returns columns from `first` on of rows of `stride`; there may be no rows.
    pub(crate) fn of(buf: Buf<'a>, stride: usize, first: usize) -> Columns<'a> {
        let first = first.min(buf.len());
        Columns { buf: buf.slice(first, buf.len() - first), stride }
    }

    /// Returns all of a buffer of rows of `width`.
    pub(crate) fn whole(buf: Buf<'a>, width: usize) -> Columns<'a> {
        Columns { buf, stride: width }
    }

    fn check(&self, m: usize, width: usize) {
        let len = m.saturating_sub(1) * self.stride + width;
        let fits = width <= self.stride && (m == 0 || len <= self.buf.len());
        assert!(fits, "{m} rows of {width} every {} of {} elements", self.stride, self.buf.len());
    }
}

/// Scaling and storing of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sum {
    pub(crate) scale: f32,
    /// Adds to the old output, in f32, rounded once.
    pub(crate) add: bool,
}

/// Computes out = x W^T + bias, or out += when `add`. `x`: [M, K] e; `bias`: [N] e; `out`: [M, N] f32, or bf16 of bf16.
pub(crate) fn forward(
    dev: &CudaDevice,
    x: Buf<'_>,
    w: Matrix<'_>,
    bias: Option<Buf<'_>>,
    out: Buf<'_>,
    add: bool,
) {
    let m = x.len() / w.k;
    assert_eq!((x.len(), out.len()), (m * w.k, m * w.n), "[{m}, {}] of a product", w.n);
    let (x, out) = (Columns::whole(x, w.k), Columns::whole(out, w.n));
    forward_columns(dev, m, x, w, bias, out, Sum { scale: 1.0, add });
}

/// Computes out = scale x W^T + bias over runs of columns.
pub(crate) fn forward_columns(
    dev: &CudaDevice,
    m: usize,
    x: Columns<'_>,
    w: Matrix<'_>,
    bias: Option<Buf<'_>>,
    out: Columns<'_>,
    sum: Sum,
) {
    forward_rows(dev, m, x, w, bias, out, sum, Chosen::All);
}

/// Computes the product of `forward_columns` for the chosen rows.
#[allow(clippy::too_many_arguments)] // A product's operands, and which of its rows there are.
pub(crate) fn forward_rows(
    dev: &CudaDevice,
    m: usize,
    x: Columns<'_>,
    w: Matrix<'_>,
    bias: Option<Buf<'_>>,
    out: Columns<'_>,
    sum: Sum,
    chosen: Chosen<'_>,
) {
    check_inputs(x, w, out);
    x.check(m, w.k);
    out.check(m, w.n);
    let e = x.buf.dtype();
    assert!(bias.is_none_or(|b| b.len() == w.n && b.dtype() == e), "a bias of N = {} elements", w.n);
    let args = args![dev, x.buf, x.stride, w.buf, bias, out.buf, out.stride, m, w.n, w.k, sum.scale, sum.add];
    let args = [&args[..], &chosen.args(dev)].concat();
    dev.launch("sgemm", typed!("forward", x.buf, out.buf), tiles(e, m, w.n), &args);
}

/// Computes out = dy W, or out += when `add`. `dy`: [M, N] e; `out`: [M, K] f32, or bf16 of bf16.
pub(crate) fn backward_x(dev: &CudaDevice, dy: Buf<'_>, w: Matrix<'_>, out: Buf<'_>, add: bool) {
    let m = dy.len() / w.n;
    assert_eq!((dy.len(), out.len()), (m * w.n, m * w.k), "[{m}, {}] of a product", w.k);
    let (dy, out) = (Columns::whole(dy, w.n), Columns::whole(out, w.k));
    backward_x_columns(dev, m, dy, w, out, Sum { scale: 1.0, add });
}

/// Computes out = scale dy W over runs of columns.
pub(crate) fn backward_x_columns(
    dev: &CudaDevice,
    m: usize,
    dy: Columns<'_>,
    w: Matrix<'_>,
    out: Columns<'_>,
    sum: Sum,
) {
    check_inputs(dy, w, out);
    dy.check(m, w.n);
    out.check(m, w.k);
    let args = args![dev, dy.buf, dy.stride, w.buf, out.buf, out.stride, m, w.n, w.k, sum.scale, sum.add];
    dev.launch("sgemm", typed!("backward_x", dy.buf, out.buf), tiles(dy.buf.dtype(), m, w.k), &args);
}

/// Adds dy^T x: f32 sums, rounded to grad's dtype, added once. `dy`: [M, N] e; `x`: [M, K] e; `grad`: f32 or bf16.
pub(crate) fn backward_w(dev: &CudaDevice, dy: Buf<'_>, x: Buf<'_>, grad: Matrix<'_>) {
    let m = x.len() / grad.k;
    assert_eq!((x.len(), dy.len()), (m * grad.k, m * grad.n), "{m} rows of [{}, {}]", grad.n, grad.k);
    backward_w_columns(dev, m, Columns::whole(dy, grad.n), Columns::whole(x, grad.k), grad);
}

/// Computes the product of `backward_w` over runs of columns.
pub(crate) fn backward_w_columns(
    dev: &CudaDevice,
    m: usize,
    dy: Columns<'_>,
    x: Columns<'_>,
    grad: Matrix<'_>,
) {
    assert_eq!(dy.buf.dtype(), x.buf.dtype(), "gradients of outputs are stored as inputs are");
    assert_eq!(grad.layout, MatrixLayout::Rows);
    dy.check(m, grad.n);
    x.check(m, grad.k);
    let args = args![dev, dy.buf, dy.stride, x.buf, x.stride, grad.buf, m, grad.n, grad.k];
    let kernel = typed!("backward_w", x.buf, grad.buf);
    dev.launch("sgemm", kernel, tiles(x.buf.dtype(), grad.n, grad.k), &args);
}

fn check_inputs(x: Columns<'_>, w: Matrix<'_>, out: Columns<'_>) {
    let (x, out) = (x.buf.dtype(), out.buf.dtype());
    assert_eq!(x, w.buf.dtype(), "inputs are stored as weights are");
    assert_eq!(w.layout, MatrixLayout::Rows);
    assert!(out == DType::F32 || out == x, "{} of {}", out.name(), x.name());
}
