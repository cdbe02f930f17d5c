//! Launchers of `experts_plain.cu`: products of experts in f32, and those of their adapters in f32 and bf16, whose
//! operands are columns of rows. And the checks of every product of experts.
//!
//! Legend: as in `experts.rs`. Sums are f32, whatever the operands are.

use super::rows::typed;
use super::sgemm::{Columns, Sum};
use super::{Arg, CudaDevice, Launch, count, memory};
use plimsoll_base::DType;
use plimsoll_device::{Experts, MatrixLayout, Routes, RowsOf};

/// Rows and columns of a tile.
const TILE: usize = 64;

/// Computes out = scale x W^T of each pair, or scale x W if `is_backward`; or out +=.
pub(super) fn product(
    dev: &CudaDevice,
    (x, has): (Columns<'_>, RowsOf),
    w: Experts<'_>,
    routes: Routes<'_>,
    out: Columns<'_>,
    sum: Sum,
    is_backward: bool,
) {
    let (pairs, width) = (routes.pairs(), if is_backward { w.k } else { w.n });
    let args = product_args(dev, (x, has), w, routes, out, sum);
    if pairs == 0 {
        return;
    }
    let kernel = match (is_backward, x.buf.dtype(), out.buf.dtype()) {
        (false, DType::F32, DType::F32) => "forward_float_float",
        (false, DType::Bf16, DType::Bf16) => "forward_bf16_bf16",
        (false, DType::Bf16, DType::F32) => "forward_bf16_float",
        (true, DType::F32, DType::F32) => "backward_float_float",
        (true, DType::Bf16, DType::Bf16) => "backward_bf16_bf16",
        (true, DType::Bf16, DType::F32) => "backward_bf16_float",
        (_, from, to) => panic!("{} of {}", to.name(), from.name()),
    };
    let grid = [slots(pairs, w.count, TILE) as u32, width.div_ceil(TILE) as u32, 1];
    dev.launch("experts_plain", kernel, Launch { grid, block: 256, shared: 0 }, &args);
}

/// Checks a product's operands and returns the arguments of its kernels.
pub(super) fn product_args(
    dev: &CudaDevice,
    (x, has): (Columns<'_>, RowsOf),
    w: Experts<'_>,
    routes: Routes<'_>,
    out: Columns<'_>,
    Sum { scale, add }: Sum,
) -> Vec<Arg> {
    check_routes(routes);
    assert_eq!(
        (w.layout, w.buf.dtype()),
        (MatrixLayout::Rows, x.buf.dtype()),
        "inputs are stored as weights are"
    );
    let (pairs, rows) = (routes.pairs(), out.buf.len().div_ceil(out.stride));
    assert_eq!((w.count, rows), (routes.count(), pairs), "{pairs} pairs of {} columns", out.stride);
    if pairs == 0 {
        return Vec::new();
    }
    let mut args = operand(dev, x, has, routes).to_vec();
    args.extend(args![dev, w.buf, w.stride() as u64, routes.pairs, routes.starts]);
    args.extend(args![dev, out.buf, out.stride, w.count, w.n, w.k]);
    args.extend([Arg::F32(scale), Arg::U32(add.into())]);
    args
}

/// Computes grad = dy^T x over each expert's pairs, or grad +=.
pub(super) fn gradient(
    dev: &CudaDevice,
    (dy, dy_has): (Columns<'_>, RowsOf),
    (x, x_has): (Columns<'_>, RowsOf),
    routes: Routes<'_>,
    grad: Experts<'_>,
    add: bool,
) {
    let args = gradient_args(dev, (dy, dy_has), (x, x_has), routes, grad, add);
    if routes.pairs() == 0 {
        return;
    }
    let kernel = typed!("gradient", x.buf, grad.buf);
    let tiles = grad.n.div_ceil(TILE) * grad.k.div_ceil(TILE);
    let grid = [tiles as u32, grad.count as u32, 1];
    dev.launch("experts_plain", kernel, Launch { grid, block: 256, shared: 0 }, &args);
}

/// Checks a gradient's operands, zeroes what its kernel does not write, and returns the arguments of its kernels.
pub(super) fn gradient_args(
    dev: &CudaDevice,
    (dy, dy_has): (Columns<'_>, RowsOf),
    (x, x_has): (Columns<'_>, RowsOf),
    routes: Routes<'_>,
    grad: Experts<'_>,
    add: bool,
) -> Vec<Arg> {
    check_routes(routes);
    assert_eq!((grad.layout, grad.count), (MatrixLayout::Rows, routes.count()), "gradients of all experts");
    if !add && (routes.pairs() == 0 || grad.stride() > grad.n * grad.k) {
        // The gaps between matrices too.
        memory::zero(dev, grad.buf);
    }
    if routes.pairs() == 0 {
        return Vec::new();
    }
    let mut args = [operand(dev, dy, dy_has, routes), operand(dev, x, x_has, routes)].concat();
    args.extend([routes.pairs, routes.starts, grad.buf].map(|b| dev.arg(b)));
    args.extend([Arg::U64(grad.stride() as u64), count(grad.n), count(grad.k), Arg::U32(add.into())]);
    args
}

/// Returns the address of columns, their stride, and the pairs of each row.
fn operand(dev: &CudaDevice, x: Columns<'_>, has: RowsOf, routes: Routes<'_>) -> [Arg; 3] {
    [dev.arg(x.buf), count(x.stride), count(chosen(x, has, routes))]
}

/// Returns the maximum number of tiles of `pairs`: at worst each expert has one pair more than whole tiles.
pub(super) fn slots(pairs: usize, experts: usize, rows: usize) -> usize {
    pairs.min(experts) + pairs.saturating_sub(experts) / rows
}

/// Checks an operand's length; returns the pairs of its rows, or 0 if it has a row for each pair.
pub(super) fn chosen(x: Columns<'_>, has: RowsOf, routes: Routes<'_>) -> usize {
    let (pairs, rows) = (routes.pairs(), x.buf.len().div_ceil(x.stride));
    match has {
        RowsOf::Pairs => {
            assert_eq!(rows, pairs, "a row for each pair");
            0
        }
        RowsOf::Rows => {
            assert!(rows > 0 && pairs.is_multiple_of(rows), "{pairs} pairs of {rows} rows");
            pairs / rows
        }
    }
}

pub(super) fn check_routes(routes: Routes<'_>) {
    let Routes { experts, weights, pairs, places, starts } = routes;
    let p = routes.pairs();
    assert_eq!([experts, weights, places].map(|b| b.len()), [p; 3], "{p} pairs");
    assert!(routes.count() > 0, "no experts");
    assert_eq!(
        [experts, pairs, places, starts].map(|b| b.dtype()),
        [DType::U32; 4],
        "experts, pairs and places"
    );
    assert_eq!(weights.dtype(), DType::F32, "weights of pairs");
}
