//! Low-rank adapters of experts and their gradients: narrow or shallow products of columns by `experts_plain.rs`.
//!
//! Legend: as in `experts.rs`; S blocks of rank r.

use super::CudaDevice;
use super::experts_plain::{gradient, product};
use super::sgemm::{Columns, Sum};
use plimsoll_device::{AdaptExpertsBackward, ExpertsAdapter, Routes, RowsOf};
use plimsoll_memory::Buf;

/// Computes u = scale x A^T of each pair, and out += u_i B_i^T.
pub(crate) fn forward(
    dev: &CudaDevice,
    x: (Buf<'_>, RowsOf),
    adapter: ExpertsAdapter<'_>,
    routes: Routes<'_>,
    u: Buf<'_>,
    out: Option<Buf<'_>>,
) {
    let ExpertsAdapter { a, n, scale, .. } = adapter;
    let r = adapter.rank();
    adapter.check(&routes, u);
    let (x, to) = ((Columns::whole(x.0, a.k), x.1), Columns::whole(u, a.n));
    product(dev, x, a, routes, to, Sum { scale, add: false }, false);
    let Some(out) = out else { return };
    for (i, b, first) in adapter.blocks() {
        let (from, to) = (Columns::of(u, a.n, i * r), Columns::of(out, n, first));
        product(dev, (from, RowsOf::Pairs), b, routes, to, Sum { scale: 1.0, add: true }, false);
    }
}

/// Computes du_i = scale dy_i B_i of each pair, and out += du A.
pub(crate) fn backward_x(
    dev: &CudaDevice,
    (dy, dy_has): (Buf<'_>, RowsOf),
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
