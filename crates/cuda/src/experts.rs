//! Launchers of expert kernels: products in `experts.cu`, `experts_dw.cu`, `experts_hopper.cu` and, in f32, by
//! `experts_plain.rs`; row operations in `experts_rows.cu`.
//!
//! Legend: M rows, k experts chosen for each, P = M k pairs, E experts. Grids are functions of P and E: blocks find
//! their expert on the device. The choice of tile is a matter of speed; the bits of a pair are the same in all of them.

use super::boxes::tensor_map;
use super::experts_plain::{check_routes, chosen, slots};
use super::rows::{blocks, is_gelu, typed, wide};
use super::sgemm::{Columns, Sum};
use super::{Arg, CudaDevice, Launch, count, experts_plain};
use plimsoll_arch::Gate;
use plimsoll_base::DType;
use plimsoll_device::{
    Experts, ExpertsBackward, GluExpertsBackward, GluSharedBackward, MatrixLayout, Routes, RowsOf,
};
use plimsoll_memory::Buf;

/// A block's tile: pairs, columns, threads and buffers.
pub(super) struct Tile {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) threads: u32,
    pub(super) stages: usize,
}

pub(super) const fn tile(rows: usize, cols: usize, threads: u32, stages: usize) -> Tile {
    Tile { rows, cols, threads, stages }
}

/// Tiles of `experts.cu`, from the narrowest, each up to an expert's average number of pairs: experts with few pairs
/// stream their weights, and most should need one tile.
const TILES: [(Tile, usize); 4] = [
    (tile(16, 64, 128, 6), 8),
    (tile(32, 64, 128, 5), 20),
    (tile(64, 128, 256, 4), 48),
    (tile(128, 128, 256, 3), usize::MAX),
];
/// Tiles of 16 and 32 pairs have no gradient: those are of passes with many.
const GRADIENT_TILES_FIRST: usize = 2;
/// The tile of `experts_hopper.cu`, not the widest of `experts.cu`, for whole steps; a third of the threads copy.
const HOPPER_TILE: Tile = tile(128, 256, 384, 4);
/// Elements of a step, and rows of a box of weights: a tile's columns, or a step's depths.
const STEP: usize = 64;
/// A tile of a gradient by weights, of either file.
const WEIGHT_TILE: Tile = tile(128, 128, 256, 3);
/// Bytes of a row of a step (64 elements), and the alignment of Hopper's buffers.
const STEP_BYTES: usize = 128;
const HOPPER_ALIGNMENT: u32 = 1024;

impl Tile {
    pub(super) fn shared(&self) -> u32 {
        (self.stages * (self.rows + self.cols) * STEP_BYTES) as u32
    }
}

/// True if rows and operands are of whole 16-byte units.
pub(super) fn is_wide(dev: &CudaDevice, operands: &[Buf<'_>], widths: &[usize]) -> bool {
    let aligned = operands.iter().all(|b| dev.address(*b).is_multiple_of(16));
    aligned && widths.iter().all(|w| w.is_multiple_of(8))
}

/// Computes out[p] = x W^T of each pair, or x W if `is_backward`.
pub(crate) fn product(
    dev: &CudaDevice,
    (x, has): (Buf<'_>, RowsOf),
    w: Experts<'_>,
    routes: Routes<'_>,
    out: Buf<'_>,
    is_backward: bool,
) {
    let (pairs, e) = (routes.pairs(), x.dtype());
    let (length, width) = if is_backward { (w.n, w.k) } else { (w.k, w.n) };
    check_routes(routes);
    assert_eq!((w.layout, w.buf.dtype()), (MatrixLayout::Rows, e), "inputs are stored as weights are");
    assert_eq!((w.count, out.len()), (routes.count(), pairs * width), "[{pairs}, {width}]");
    assert!(out.dtype() == DType::F32 || out.dtype() == e, "{} of {}", out.dtype().name(), e.name());
    if pairs == 0 {
        return;
    }
    let of_x = Columns::whole(x, length);
    if e == DType::F32 {
        let sum = Sum { scale: 1.0, add: false };
        return experts_plain::product(
            dev,
            (of_x, has),
            w,
            routes,
            Columns::whole(out, width),
            sum,
            is_backward,
        );
    }
    assert_eq!(w.stride(), w.n * w.k, "matrices without gaps");
    let chosen = chosen(of_x, has, routes);
    let is_wide = is_wide(dev, &[x, w.buf, out], &[w.n, w.k]);
    let each = if is_wide { pairs.div_ceil(w.count) } else { usize::MAX };
    let tiles = &TILES[if is_backward { GRADIENT_TILES_FIRST } else { 0 }..];
    let (tile, _) = tiles.iter().find(|(_, each_max)| each <= *each_max).expect("the last takes any number");
    let is_hopper = is_wide
        && tile.rows == HOPPER_TILE.rows
        && length.is_multiple_of(STEP)
        && dev.info().capability == (9, 0);
    let (module, tile, extra) =
        if is_hopper { ("experts_hopper", &HOPPER_TILE, HOPPER_ALIGNMENT) } else { ("experts", tile, 0) };
    let kernel = match (is_backward, is_wide, tile.rows) {
        _ if is_hopper && is_backward => typed!("backward_256", out),
        _ if is_hopper => typed!("forward_256", out),
        (false, false, _) => typed!("forward_any", out),
        (false, _, 16) => typed!("forward_16", out),
        (false, _, 32) => typed!("forward_32", out),
        (false, _, 64) => typed!("forward_64", out),
        (false, ..) => typed!("forward_128", out),
        (true, false, _) => typed!("backward_any", out),
        (true, _, 64) => typed!("backward_64", out),
        (true, ..) => typed!("backward_128", out),
    };
    let grid = [slots(pairs, w.count, tile.rows) as u32, width.div_ceil(tile.cols) as u32, 1];
    let weights = if is_hopper {
        let box_rows = if is_backward { STEP } else { HOPPER_TILE.cols };
        Arg::Map(tensor_map(dev, dev.address(w.buf), w.count * w.n, w.k, box_rows))
    } else {
        dev.arg(w.buf)
    };
    let args = args![dev, x, weights, routes.pairs, routes.starts, out, w.count, chosen, w.n, w.k];
    dev.launch(module, kernel, Launch { grid, block: tile.threads, shared: tile.shared() + extra }, &args);
}

/// Computes grad = dy^T x, or grad +=, for each expert.
pub(crate) fn backward_w(dev: &CudaDevice, args: ExpertsBackward<'_>) {
    let ExpertsBackward { dy, dy_has, x, x_has, routes, grad, add, .. } = args;
    check_routes(routes);
    assert_eq!((grad.layout, grad.count), (MatrixLayout::Rows, routes.count()), "gradients of all experts");
    assert_eq!(dy.dtype(), x.dtype(), "gradients of outputs are stored as inputs are");
    if routes.pairs() == 0 {
        if !add {
            super::memory::zero(dev, grad.buf);
        }
        return;
    }
    let columns = [Columns::whole(dy, grad.n), Columns::whole(x, grad.k)];
    if x.dtype() == DType::F32 {
        let [dy, x] = [(columns[0], dy_has), (columns[1], x_has)];
        return experts_plain::gradient(dev, dy, x, routes, grad, add);
    }
    assert_eq!(grad.stride(), grad.n * grad.k, "gradients without gaps");
    let of = |x: Columns<'_>, has| [dev.arg(x.buf), count(chosen(x, has, routes))];
    let mut operands = [of(columns[0], dy_has), of(columns[1], x_has)].concat();
    operands.extend(args![dev, routes.pairs, routes.starts, grad.buf, grad.n, grad.k, add]);
    let Tile { rows, cols, threads: block, .. } = WEIGHT_TILE;
    let is_wide = is_wide(dev, &[x, dy, grad.buf], &[grad.n, grad.k]);
    let (module, kernel, shared) = if !is_wide {
        ("experts_dw", typed!("gradient_any", grad.buf), WEIGHT_TILE.shared())
    } else if dev.info().capability == (9, 0) {
        let shared = WEIGHT_TILE.shared() + HOPPER_ALIGNMENT;
        ("experts_hopper", typed!("gradient_128", grad.buf), shared)
    } else {
        ("experts_dw", typed!("gradient", grad.buf), WEIGHT_TILE.shared())
    };
    let tiles = grad.n.div_ceil(rows) * grad.k.div_ceil(cols);
    let grid = [tiles as u32, grad.count as u32, 1];
    dev.launch(module, kernel, Launch { grid, block, shared }, &operands);
}

// ---- rows --------------------------------------------------------------------------------------------------------

/// Computes out[p] = weight of the pair * activation(gate) * up.
pub(crate) fn glu(dev: &CudaDevice, how: Gate, gate_up: Buf<'_>, f: usize, routes: Routes<'_>, out: Buf<'_>) {
    let pairs = routes.pairs();
    check_routes(routes);
    assert_eq!(
        (out.len(), gate_up.len()),
        (pairs * f, pairs * 2 * f),
        "[{pairs}, 2 x {f}] and [{pairs}, {f}]"
    );
    assert_eq!(gate_up.dtype(), out.dtype());
    let wide = wide(dev, f, 8, &[gate_up, out]);
    let items = if wide { out.len() / 8 } else { out.len() };
    let mut args = args![dev, gate_up, routes.pairs, routes.weights, out, f, items, wide].to_vec();
    let kernel = match how {
        Gate::ClampedSilu => typed!("glu_clamped", out),
        Gate::Silu | Gate::GeluTanh => {
            args.push(is_gelu(how));
            typed!("glu_experts", out)
        }
    };
    dev.launch("experts_rows", kernel, blocks(items, 256, 256), &args);
}

/// Overwrites gate and up by their gradient and the output's gradient by the output; writes the weights' gradients.
pub(crate) fn glu_backward(dev: &CudaDevice, args: GluExpertsBackward<'_>) {
    let GluExpertsBackward { how, gate_up, f, routes, dout, d_weights } = args;
    let pairs = routes.pairs();
    check_routes(routes);
    assert_eq!(
        (dout.len(), gate_up.len()),
        (pairs * f, pairs * 2 * f),
        "[{pairs}, 2 x {f}] and [{pairs}, {f}]"
    );
    assert_eq!((d_weights.len(), d_weights.dtype()), (pairs, DType::F32), "a derivative for each pair");
    assert_eq!(gate_up.dtype(), dout.dtype());
    // Otherwise the order of the sums would depend on the address.
    assert!(!f.is_multiple_of(8) || wide(dev, f, 8, &[gate_up, dout]), "rows at aligned addresses");
    let mut args = args![dev, gate_up, dout, routes.pairs, routes.weights, d_weights, f, pairs].to_vec();
    let kernel = match how {
        Gate::ClampedSilu => typed!("glu_clamped_backward", dout),
        Gate::Silu | Gate::GeluTanh => {
            args.push(is_gelu(how));
            typed!("glu_experts_backward", dout)
        }
    };
    dev.launch("experts_rows", kernel, blocks(pairs, 8, 256), &args);
}

/// Computes out[m] = sigmoid of the row's logit * activation(gate) * up.
pub(crate) fn glu_shared(
    dev: &CudaDevice,
    how: Gate,
    gate_up: Buf<'_>,
    f: usize,
    logits: Buf<'_>,
    out: Buf<'_>,
) {
    let rows = logits.len();
    assert_eq!((out.len(), gate_up.len()), (rows * f, rows * 2 * f), "[{rows}, 2 x {f}] and [{rows}, {f}]");
    assert_eq!((gate_up.dtype(), logits.dtype()), (out.dtype(), DType::F32));
    let wide = wide(dev, f, 8, &[gate_up, out]);
    let items = if wide { out.len() / 8 } else { out.len() };
    let args = args![dev, gate_up, logits, out, f, items, wide, is_gelu(how)];
    dev.launch("experts_rows", typed!("glu_shared", out), blocks(items, 256, 256), &args);
}

/// Overwrites gate and up by their gradient and the output's gradient by the output; writes the logits' gradients.
pub(crate) fn glu_shared_backward(dev: &CudaDevice, args: GluSharedBackward<'_>) {
    let GluSharedBackward { how, gate_up, f, logits, dout, d_logits } = args;
    let rows = logits.len();
    assert_eq!((dout.len(), gate_up.len()), (rows * f, rows * 2 * f), "[{rows}, 2 x {f}] and [{rows}, {f}]");
    assert_eq!((d_logits.len(), d_logits.dtype()), (rows, dout.dtype()), "a derivative for each row");
    assert_eq!((gate_up.dtype(), logits.dtype()), (dout.dtype(), DType::F32));
    // Otherwise the order of the sums would depend on the address.
    assert!(!f.is_multiple_of(8) || wide(dev, f, 8, &[gate_up, dout]), "rows at aligned addresses");
    let args = args![dev, gate_up, dout, logits, d_logits, f, rows, is_gelu(how)];
    dev.launch("experts_rows", typed!("glu_shared_backward", dout), blocks(rows, 8, 256), &args);
}

/// Computes out[m] = resid[m] + the sum of y over the row's pairs, in the order of their experts.
pub(crate) fn combine(
    dev: &CudaDevice,
    y: Buf<'_>,
    routes: Routes<'_>,
    resid: Option<Buf<'_>>,
    out: Buf<'_>,
) {
    let pairs = routes.pairs();
    check_routes(routes);
    if pairs == 0 {
        return;
    }
    let h = super::matmul::rows(y, pairs);
    let m = super::matmul::rows(out, h);
    assert!(m > 0 && pairs.is_multiple_of(m), "{pairs} pairs of {m} rows");
    assert_eq!(y.dtype(), DType::F32, "what is added is f32");
    let same = resid.map_or((m * h, DType::F32), |b| (b.len(), b.dtype()));
    assert_eq!(same, (m * h, DType::F32), "[{m}, {h}] f32 that is added to");
    let wide = wide(dev, h, 4, &[y, out, resid.unwrap_or(out)]);
    let items = if wide { h / 4 } else { h };
    let threads = items.next_multiple_of(32).min(256);
    let grid = [m as u32, items.div_ceil(threads) as u32, 1];
    let args = args![dev, y, routes.places, resid, out, h, pairs / m, pairs, wide];
    dev.launch(
        "experts_rows",
        typed!("combine", out),
        Launch { grid, block: threads as u32, shared: 0 },
        &args,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_the_tiles_of_the_worst_deal() {
        // All experts but one have one pair, and the last all others.
        for (pairs, experts) in [(1usize, 4usize), (8, 128), (512, 128), (2048, 128), (32_768, 128), (100, 3)]
        {
            for rows in [16, 32, 64, 128] {
                let lonely = (experts - 1).min(pairs - 1);
                let most = lonely + (pairs - lonely).div_ceil(rows);
                let slots = slots(pairs, experts, rows);
                assert!(
                    most <= slots && slots <= most + 1,
                    "{pairs} pairs, {experts} experts, tiles of {rows}"
                );
            }
        }
    }
}
