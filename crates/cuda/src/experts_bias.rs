//! Launchers of `experts_bias.cu`: biases of experts' products, and their gradients.

use super::experts_plain::{check_routes, chosen};
use super::rows::{blocks, typed, wide};
use super::sgemm::Columns;
use super::{CudaDevice, Launch};
use plimsoll_base::DType;
use plimsoll_device::{ExpertBiasBackward, Routes, RowsOf};
use plimsoll_memory::Buf;

const THREADS: u32 = 256;

/// Adds to each pair its expert's bias, times the pair's weight if `weighs`.
pub(crate) fn add(dev: &CudaDevice, out: Buf<'_>, bias: Buf<'_>, routes: Routes<'_>, weighs: bool) {
    let (pairs, n) = (routes.pairs(), bias.len() / routes.count());
    check_routes(routes);
    assert_eq!((out.len(), bias.len()), (pairs * n, routes.count() * n), "{pairs} pairs of {n}");
    if pairs == 0 {
        return;
    }
    let wide = wide(dev, n, 8, &[out, bias]);
    let items = if wide { out.len() / 8 } else { out.len() };
    let args = args![dev, out, bias, routes.pairs, routes.experts, routes.weights, n, items, wide, weighs];
    dev.launch(
        "experts_bias",
        typed!("add_bias", out, bias),
        blocks(items, THREADS as usize, THREADS),
        &args,
    );
}

/// Computes the gradient of biases: sums over the pairs of each expert.
pub(crate) fn backward(dev: &CudaDevice, args: ExpertBiasBackward<'_>) {
    let ExpertBiasBackward { dy, dy_has, routes, weighs, grad, add } = args;
    let (experts, n) = (routes.count(), grad.len() / routes.count());
    check_routes(routes);
    assert_eq!(grad.len(), experts * n, "biases of {experts} experts");
    if routes.pairs() == 0 {
        if !add {
            super::memory::zero(dev, grad);
        }
        return;
    }
    let chosen = chosen(Columns::whole(dy, n), dy_has, routes);
    let grid = [n.div_ceil(THREADS as usize) as u32, experts as u32, 1];
    let args = args![dev, dy, chosen, routes.pairs, routes.starts, routes.weights, grad, n, weighs, add];
    let kernel = typed!("gradient", dy, grad);
    dev.launch("experts_bias", kernel, Launch { grid, block: THREADS, shared: 0 }, &args);
}

/// Adds to the gradients of pairs' weights the products of their rows' gradients and their experts' biases.
pub(crate) fn weights_backward(
    dev: &CudaDevice,
    dy: Buf<'_>,
    bias: Buf<'_>,
    routes: Routes<'_>,
    d_weights: Buf<'_>,
) {
    let (pairs, n) = (routes.pairs(), bias.len() / routes.count());
    check_routes(routes);
    assert_eq!(bias.len(), routes.count() * n, "biases of {} experts", routes.count());
    assert_eq!((d_weights.len(), d_weights.dtype()), (pairs, DType::F32), "a derivative for each pair");
    assert_eq!(bias.dtype(), dy.dtype(), "gradients of outputs are stored as weights are");
    if pairs == 0 {
        return;
    }
    let chosen = chosen(Columns::whole(dy, n), RowsOf::Rows, routes);
    let args = args![dev, dy, chosen, bias, routes.pairs, routes.experts, d_weights, n, pairs];
    dev.launch("experts_bias", typed!("weights", dy), blocks(pairs, 8, THREADS), &args);
}
