//! Low-rank adapters of experts and their gradients: narrow or shallow products of columns, in bf16 and whole vectors
//! by `experts_adapter.cu`, else by `experts_plain.rs`. Which one depends on shapes alone.
//!
//! Legend: as in `experts.rs`; S blocks of rank r.

use super::experts_plain::{self, gradient_args, product_args, slots};
use super::rows::typed;
use super::sgemm::{Columns, Sum};
use super::{CudaDevice, Launch};
use plimsoll_base::DType;
use plimsoll_device::{AdaptExpertsBackward, Experts, ExpertsAdapter, Routes, RowsOf};
use plimsoll_memory::Buf;

/// Pairs of a tile.
const ROWS: usize = 64;
/// Outputs of a tile of few outputs, by depth at least the second.
const NARROW: [usize; 2] = [32, 64];
/// Outputs of a tile of many, and the longer side of a gradient's.
const BROAD: usize = 128;
/// Stages of a tile by its outputs, as `size` counts them; of a gradient's; and bytes of a row of a stage.
const STAGES: [usize; 3] = [5, 4, 2];
const GRADIENT_STAGES: usize = 3;
const STAGE_ROW_BYTES: usize = 128;

/// Computes out = scale x W^T of each pair, or scale x W if `is_backward`; or out +=.
fn product(
    dev: &CudaDevice,
    (x, has): (Columns<'_>, RowsOf),
    w: Experts<'_>,
    routes: Routes<'_>,
    out: Columns<'_>,
    sum: Sum,
    is_backward: bool,
) {
    let widths = [w.n, w.k, w.stride(), x.stride, out.stride];
    if !is_wide(dev, [x.buf, w.buf, out.buf], &widths) || routes.pairs() == 0 {
        return experts_plain::product(dev, (x, has), w, routes, out, sum, is_backward);
    }
    let (width, depths) = if is_backward { (w.k, w.n) } else { (w.n, w.k) };
    let size = if width > depths {
        2
    } else if width <= NARROW[0] && !is_backward {
        0
    } else {
        1
    };
    let kernel = match (is_backward, size) {
        (false, 0) => typed!("adapt_32", out.buf),
        (false, 1) => typed!("adapt_64", out.buf),
        (false, _) => typed!("adapt_128", out.buf),
        (true, 1) => typed!("adapt_dx_64", out.buf),
        (true, _) => typed!("adapt_dx_128", out.buf),
    };
    let (cols, block) = ([NARROW[0], NARROW[1], BROAD][size], if size == 2 { 256 } else { 128 });
    let shared = (STAGES[size] * (ROWS + cols) * STAGE_ROW_BYTES) as u32;
    let grid = [slots(routes.pairs(), w.count, ROWS) as u32, width.div_ceil(cols) as u32, 1];
    let args = product_args(dev, (x, has), w, routes, out, sum);
    dev.launch("experts_adapter", kernel, Launch { grid, block, shared }, &args);
}

/// Computes grad = dy^T x over each expert's pairs, or grad +=.
fn gradient(
    dev: &CudaDevice,
    (dy, dy_has): (Columns<'_>, RowsOf),
    (x, x_has): (Columns<'_>, RowsOf),
    routes: Routes<'_>,
    grad: Experts<'_>,
    add: bool,
) {
    let widths = [grad.n, grad.k, grad.stride(), x.stride, dy.stride];
    if !is_wide(dev, [x.buf, dy.buf, grad.buf], &widths) || routes.pairs() == 0 {
        return experts_plain::gradient(dev, (dy, dy_has), (x, x_has), routes, grad, add);
    }
    let (kernel, rows, cols) = if grad.k <= grad.n {
        (typed!("adapt_dw_tall", grad.buf), BROAD, ROWS)
    } else {
        (typed!("adapt_dw_broad", grad.buf), ROWS, BROAD)
    };
    let shared = (GRADIENT_STAGES * (rows + cols) * STAGE_ROW_BYTES) as u32;
    let grid = [(grad.n.div_ceil(rows) * grad.k.div_ceil(cols)) as u32, grad.count as u32, 1];
    let args = gradient_args(dev, (dy, dy_has), (x, x_has), routes, grad, add);
    dev.launch("experts_adapter", kernel, Launch { grid, block: 256, shared }, &args);
}

/// True if the operands are bf16 at whole units of 16 bytes, the last of them, an output, of either type.
fn is_wide(dev: &CudaDevice, operands: [Buf<'_>; 3], widths: &[usize]) -> bool {
    operands[0].dtype() == DType::Bf16
        && operands.iter().all(|b| dev.address(*b).is_multiple_of(16))
        && widths.iter().all(|width| width.is_multiple_of(8))
}

/// Computes u = scale x A^T of each pair, and out += u_i B_i^T.
pub(crate) fn forward(
    dev: &CudaDevice,
    x: Buf<'_>,
    x_has: RowsOf,
    adapter: ExpertsAdapter<'_>,
    routes: Routes<'_>,
    u: Buf<'_>,
    out: Option<Buf<'_>>,
) {
    let ExpertsAdapter { a, n, scale, .. } = adapter;
    let r = adapter.rank();
    adapter.check(&routes, u);
    let (from, to) = (Columns::whole(x, a.k), Columns::whole(u, a.n));
    product(dev, (from, x_has), a, routes, to, Sum { scale, add: false }, false);
    let Some(out) = out else { return };
    for (i, b, first) in adapter.blocks() {
        let (from, to) = (Columns::of(u, a.n, i * r), Columns::of(out, n, first));
        product(dev, (from, RowsOf::Pairs), b, routes, to, Sum { scale: 1.0, add: true }, false);
    }
}

/// Computes du_i = scale dy_i B_i of each pair, and out += du A.
pub(crate) fn backward_x(
    dev: &CudaDevice,
    dy: Buf<'_>,
    dy_has: RowsOf,
    adapter: ExpertsAdapter<'_>,
    routes: Routes<'_>,
    du: Buf<'_>,
    out: Option<Buf<'_>>,
) {
    let ExpertsAdapter { a, n, scale, .. } = adapter;
    let r = adapter.rank();
    adapter.check(&routes, du);
    for (i, b, first) in adapter.blocks() {
        let (from, to) = (Columns::of(dy, n, first), Columns::of(du, a.n, i * r));
        product(dev, (from, dy_has), b, routes, to, Sum { scale, add: false }, true);
    }
    let Some(out) = out else { return };
    let (from, to) = (Columns::whole(du, a.n), Columns::whole(out, a.k));
    product(dev, (from, RowsOf::Pairs), a, routes, to, Sum { scale: 1.0, add: true }, true);
}

/// Computes grad B_i = dy_i^T u_i and grad A = du^T x, or grad +=, for each expert.
pub(crate) fn backward_w(dev: &CudaDevice, args: AdaptExpertsBackward<'_>) {
    let AdaptExpertsBackward { x, x_has, u, dy, dy_has, du, routes, grads, add, .. } = args;
    let ExpertsAdapter { a, n, .. } = grads;
    let r = grads.rank();
    grads.check(&routes, u);
    assert_eq!((du.len(), du.dtype()), (u.len(), u.dtype()), "du is u's gradient");
    for (i, b, first) in grads.blocks() {
        let (dy, u) = (Columns::of(dy, n, first), Columns::of(u, a.n, i * r));
        gradient(dev, (dy, dy_has), (u, RowsOf::Pairs), routes, b, add);
    }
    let (du, x) = (Columns::whole(du, a.n), Columns::whole(x, a.k));
    gradient(dev, (du, RowsOf::Pairs), (x, x_has), routes, a, add);
}
