//! Launchers of `tower.cu`: norms by mean and variance, GELU without a gate, and rows that are weighed or replaced.

use super::attention_backward::attention_backward_scratch_bytes;
use super::chain;
use super::rows::{add_partials, bias_backward, blocks, sum_scratch_bytes, typed};
use super::{Arg, CudaDevice, Launch};
use plimsoll_arch::Gelu;
use plimsoll_base::DType;
use plimsoll_device::{LayerNorm, LayerNormGrads, TowerPasses};
use plimsoll_memory::Buf;

/// Threads of a block.
const THREADS: u32 = 256;
/// Maximum chunks of rows of a sum, and minimum rows of a chunk: eight for each of a block's warps.
const CHUNKS_MAX: usize = 512;
const CHUNK_ROWS: usize = 64;

/// Returns the scratch of each kind of operation in the backward pass of a tower.
pub(crate) fn scratch_bytes(of: &TowerPasses) -> [u64; 3] {
    let (spec, rows) = (&of.spec, of.patches as u64);
    let [heads, d] = [spec.heads, spec.padded_head_dim()].map(u64::from);
    [
        attention_backward_scratch_bytes(rows, of.segments() as u64, heads, heads, d),
        sum_scratch_bytes(rows, spec.widest_vector()),
        // Of learned positions.
        chain::scratch_bytes(rows),
    ]
}

/// Computes out = (x - mean) / sqrt(variance + eps) * w + b over each row.
pub(crate) fn layer_norm(dev: &CudaDevice, x: Buf<'_>, norm: LayerNorm<'_>, out: Buf<'_>) {
    let LayerNorm { w, b, eps } = norm;
    let h = w.len();
    assert_eq!((x.len(), x.len() % h), (out.len(), 0), "x and out of a norm, rows of {h}");
    assert_eq!(
        (b.len(), b.dtype(), x.dtype()),
        (h, w.dtype(), DType::F32),
        "weight and bias of a norm of f32"
    );
    assert_eq!(w.dtype(), out.dtype(), "weights of the output's dtype");
    if x.is_empty() {
        return;
    }
    let args = args![dev, x, w, b, eps, out, h];
    dev.launch("tower", typed!("layer_norm", out), blocks(x.len() / h, 1, THREADS), &args);
}

/// Computes gradients through the norm; see `Device::layer_norm_backward`.
pub(crate) fn layer_norm_backward(
    dev: &CudaDevice,
    x: Buf<'_>,
    norm: LayerNorm<'_>,
    dy: Buf<'_>,
    to: LayerNormGrads<'_>,
) {
    let LayerNorm { w, b: _, eps } = norm;
    let LayerNormGrads { dx, rounded, dw_db, add, stats } = to;
    let h = w.len();
    let rows = x.len() / h;
    assert_eq!([x.len(), dy.len(), dx.len()], [rows * h; 3], "x, dy, dx of rows of {h}");
    assert_eq!(stats.len(), 2 * rows, "means and deviations of {rows} rows");
    assert_eq!([x, dx, stats].map(|b| b.dtype()), [DType::F32; 3]);
    let same = rounded.map_or((rows * h, w.dtype()), |b| (b.len(), b.dtype()));
    assert_eq!(same, (rows * h, w.dtype()), "dx rounded to the weights' dtype");
    if rows > 0 {
        let kernel = if w.dtype() == dy.dtype() {
            typed!("layer_norm_backward", w)
        } else {
            assert_eq!(dy.dtype(), DType::F32, "gradients of a norm");
            "layer_norm_backward_bf16_float"
        };
        let args = args![dev, x, w, eps, dy, dx, rounded, stats, rows, h];
        dev.launch("tower", kernel, blocks(rows, 1, THREADS), &args);
    }
    let Some((dw, db)) = dw_db else { return };
    assert_eq!((dw.len(), db.len()), (h, h), "gradients of weight and bias");
    bias_backward(dev, dy, db, add);
    if rows == 0 {
        if !add {
            super::memory::zero(dev, dw);
        }
        return;
    }
    let chunk_rows = rows.div_ceil(CHUNKS_MAX).max(CHUNK_ROWS);
    let chunks = rows.div_ceil(chunk_rows);
    let partials = Arg::Ptr(dev.scratch(sum_scratch_bytes(rows as u64, h as u64)));
    let how = Launch { grid: [h.div_ceil(32) as u32, chunks as u32, 1], block: THREADS, shared: 0 };
    let args = args![dev, dy, x, stats, partials, rows, h, chunk_rows];
    dev.launch("tower", typed!("layer_norm_sums", dy), how, &args);
    add_partials(dev, partials, chunks, h, dw, add);
}

/// Computes out = gelu(x); they may be the same memory.
pub(crate) fn gelu(dev: &CudaDevice, how: Gelu, x: Buf<'_>, out: Buf<'_>) {
    assert_eq!((x.len(), x.dtype()), (out.len(), out.dtype()), "an activation and what it is of");
    if x.is_empty() {
        return;
    }
    let args = args![dev, x, out, x.len() as u64, how == Gelu::Erf];
    dev.launch("tower", typed!("gelu", out), blocks(x.len(), 256, THREADS), &args);
}

/// Computes dx = dy times the slope at input x; they may be the same memory.
pub(crate) fn gelu_backward(dev: &CudaDevice, how: Gelu, x: Buf<'_>, dy: Buf<'_>, dx: Buf<'_>) {
    assert_eq!((x.len(), x.dtype()), (dy.len(), dy.dtype()), "an activation and its gradient");
    assert_eq!((x.len(), x.dtype()), (dx.len(), dx.dtype()), "an activation and the gradient of its input");
    if x.is_empty() {
        return;
    }
    let args = args![dev, x, dy, dx, x.len() as u64, how == Gelu::Erf];
    dev.launch("tower", typed!("gelu_backward", dx), blocks(x.len(), 256, THREADS), &args);
}

/// Computes out[m] = by[m] x[m], or out[m] += .
pub(crate) fn weigh_rows(dev: &CudaDevice, x: Buf<'_>, by: Buf<'_>, out: Buf<'_>, add: bool) {
    let h = x.len() / by.len().max(1);
    assert_eq!([x.len(), out.len()], [by.len() * h; 2], "rows of {h}, each with a weight");
    assert_eq!([x, by, out].map(|b| b.dtype()), [DType::F32; 3]);
    if x.is_empty() {
        return;
    }
    let args = args![dev, x, by, out, x.len() as u64, h, add];
    dev.launch("tower", "weigh_rows", blocks(x.len(), 256, THREADS), &args);
}

/// Computes dst[rows[r]] = src[r].
pub(crate) fn replace_rows(dev: &CudaDevice, src: Buf<'_>, rows: Buf<'_>, dst: Buf<'_>) {
    if rows.is_empty() {
        return;
    }
    let h = src.len() / rows.len();
    assert_eq!((src.len(), dst.len() % h), (rows.len() * h, 0), "a row of {h} for each number");
    assert_eq!([src, rows, dst].map(|b| b.dtype()), [DType::F32, DType::U32, DType::F32]);
    let args = args![dev, src, rows, dst, h, dst.len() / h];
    dev.launch("tower", "replace_rows", blocks(rows.len(), 1, THREADS), &args);
}

/// Adds 1 to each of the places.
pub(crate) fn next_places(dev: &CudaDevice, places: Buf<'_>) {
    assert_eq!(places.dtype(), DType::U32);
    if places.is_empty() {
        return;
    }
    let args = args![dev, places, places.len()];
    dev.launch("tower", "next_places", blocks(places.len(), 256, THREADS), &args);
}
