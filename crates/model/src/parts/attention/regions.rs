//! The regions of softmax attention in a pass: queries, the cache of keys and values, output gates; and their handles.

use crate::activations::shape::{Life, PassShape, Regions, Rows};
use crate::cache_index::CacheRegions;
use plimsoll_arch::{Cache, Mixer};
use plimsoll_base::{DType, Result};
use plimsoll_device::{KV_BLOCK, Kv};
use plimsoll_memory::Buf;

/// Handles to the regions of a pass through layers with softmax attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionRegions<'p> {
    q: Buf<'p>,
    lse: Option<Buf<'p>>,
    /// None if every layer has a window and its own cache.
    kv: Option<[Buf<'p>; 2]>,
    pub(crate) window: Option<WindowRegions<'p>>,
    gates: Option<GateBufs<'p>>,
    /// [M, a d] and [M, 2 k d] f32: the gradients of `q`, and of keys and values.
    gradients: Option<[Buf<'p>; 2]>,
}

/// The cache of the layers with windows, and the rows' positions in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowRegions<'p> {
    pub(crate) at: CacheRegions<'p>,
    kv: [Buf<'p>; 2],
}

/// Buffers of heads with output gates, for one layer at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GateBufs<'p> {
    /// [M, (a + 2k) d] e: q, k and v without the gates.
    pub(crate) qkv: Buf<'p>,
    /// [M, a d] e: heads times their gates.
    pub(crate) out: Buf<'p>,
    /// [M, (a + 2k) d] e: the gradient of `qkv`.
    pub(crate) d_qkv: Option<Buf<'p>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionBufs<'p> {
    pub(crate) q: Buf<'p>,
    pub(crate) lse: Option<Buf<'p>>,
    pub(crate) kv: Kv<'p>,
    /// Present if heads have output gates.
    pub(crate) gates: Option<GateBufs<'p>>,
    /// [M, a d] and [M, 2 k d] f32: the gradients of `q`, and of keys and values.
    pub(crate) gradients: Option<[Buf<'p>; 2]>,
}

const Q: Rows = Rows { life: Life::Kept, width: |of, layer| attends(of, layer) * of.spec.q_width() };
const LSE: Rows = Rows { life: Life::Kept, width: |of, layer| attends(of, layer) * of.spec.heads };
/// Counts the layers that cache whole sequences.
const WHOLE: Rows = Rows {
    life: Life::Cached,
    width: |of, layer| if is_windowed(of, layer) { 0 } else { attends(of, layer) },
};
/// Counts the layers that cache only their window.
const WINDOWED: Rows = Rows { life: Life::Cached, width: |of, layer| is_windowed(of, layer).into() };

/// Returns 1 for a layer with softmax attention, else 0.
fn attends(of: &PassShape<'_>, layer: u32) -> u32 {
    (of.spec.layer(layer).mixer == Mixer::Attention).into()
}

/// Returns whether a layer's cache holds only its window.
fn is_windowed(of: &PassShape<'_>, layer: u32) -> bool {
    of.limits.caches.units(Cache::RING) > 0 && of.spec.attention.window_of(layer).is_some()
}

/// Adds the cache of windows and the rows' positions in it, if these layers have their own.
///
/// Errors: `size-overflow`.
pub(crate) fn add_windows(to: &mut Regions<'_>) -> Result<()> {
    let limits = to.of.limits;
    let blocks = limits.caches.units(Cache::RING);
    if blocks == 0 {
        return Ok(());
    }
    to.add(Life::Pass, "window.slots", &[limits.rows], DType::U32)?;
    to.add(Life::Pass, "window.tables", &[limits.table_entries], DType::U32)?;
    if limits.copies > 0 {
        to.add(Life::Pass, "window.copies", &[limits.copies, 3], DType::U32)?;
    }
    add_cache(to, ["window.keys", "window.values"], WINDOWED, blocks)
}

/// Adds keys and values of the layers that `of` counts.
fn add_cache(to: &mut Regions<'_>, [keys, values]: [&str; 2], of: Rows, blocks: usize) -> Result<()> {
    let (layers, weights) = (of.slots(&to.of).0, to.weights);
    let (heads, d) = (to.of.spec.kv_heads as usize, to.of.spec.head_dim as usize);
    if layers == 0 {
        return Ok(());
    }
    to.add(of.life, keys, &[layers, blocks, heads, d, KV_BLOCK], weights)?;
    to.add(of.life, values, &[layers, blocks, heads, KV_BLOCK, d], weights)
}

/// Adds the log-sum-exps that the backward pass reads.
///
/// Errors: `size-overflow`.
pub(crate) fn add_sums(to: &mut Regions<'_>) -> Result<()> {
    to.rows("lse", LSE, DType::F32)
}

/// Adds queries, and the cache of keys and values.
///
/// Errors: `size-overflow`.
pub(crate) fn add_regions(to: &mut Regions<'_>) -> Result<()> {
    to.rows("q", Q, to.weights)?;
    add_cache(to, ["keys", "values"], WHOLE, to.of.limits.caches.units(Cache::PAGED))
}

/// Adds the buffers of heads with output gates.
///
/// Errors: `size-overflow`.
pub(crate) fn add_gates(to: &mut Regions<'_>) -> Result<()> {
    let (of, weights) = (to.of, to.weights);
    if !of.spec.attention.gated {
        return Ok(());
    }
    let (m, qkv) = (of.limits.rows, ungated_width(&of));
    to.add(Life::Layer, "gates.qkv", &[m, qkv], weights)?;
    to.add(Life::Layer, "gates.out", &[m, of.spec.q_width() as usize], weights)?;
    match of.mode.recompute() {
        Some(_) => to.add(Life::Layer, "gates.d_qkv", &[m, qkv], weights),
        None => Ok(()),
    }
}

/// Adds the gradients of queries, and of keys and values.
///
/// Errors: `size-overflow`.
pub(crate) fn add_gradients(to: &mut Regions<'_>) -> Result<()> {
    let (m, q, kv) = (to.of.limits.rows, to.of.spec.q_width() as usize, to.of.spec.kv_width() as usize);
    to.add(Life::Layer, "d_q", &[m, q], DType::F32)?;
    to.add(Life::Layer, "d_kv", &[m, 2 * kv], DType::F32)
}

/// Returns the elements of q, k and v per row.
fn ungated_width(of: &PassShape<'_>) -> usize {
    (of.spec.q_width() + 2 * of.spec.kv_width()) as usize
}

impl<'p> AttentionRegions<'p> {
    /// Resolves the handles, if the pass has such regions.
    pub(crate) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>) -> Option<AttentionRegions<'p>> {
        let pair = |[a, b]: [&str; 2]| Some([get(a)?, get(b)?]);
        let window = CacheRegions::bind(get, "window.").zip(pair(["window.keys", "window.values"]));
        let gates = pair(["gates.qkv", "gates.out"]);
        Some(AttentionRegions {
            q: get("q")?,
            lse: get("lse"),
            kv: pair(["keys", "values"]),
            window: window.map(|(at, kv)| WindowRegions { at, kv }),
            gates: gates.map(|[qkv, out]| GateBufs { qkv, out, d_qkv: get("gates.d_qkv") }),
            gradients: pair(["d_q", "d_kv"]),
        })
    }

    /// Returns the first `m` rows of a layer's buffers.
    pub(crate) fn layer(&self, of: &PassShape<'_>, layer: u32, m: usize) -> AttentionBufs<'p> {
        let (q, qkv, kv) = (of.spec.q_width() as usize, ungated_width(of), of.spec.kv_width() as usize);
        AttentionBufs {
            q: Q.layer(of, self.q, layer, m),
            lse: self.lse.map(|lse| LSE.layer(of, lse, layer, m)),
            kv: self.kv(of, layer),
            gates: self.gates.map(|gates| GateBufs {
                qkv: gates.qkv.slice(0, m * qkv),
                out: gates.out.slice(0, m * q),
                d_qkv: gates.d_qkv.map(|d_qkv| d_qkv.slice(0, m * qkv)),
            }),
            gradients: self.gradients.map(|[d_q, d_kv]| [d_q.slice(0, m * q), d_kv.slice(0, m * 2 * kv)]),
        }
    }

    fn kv(&self, of: &PassShape<'_>, layer: u32) -> Kv<'p> {
        let ([keys, values], kind, rows) = match self.window.filter(|_| is_windowed(of, layer)) {
            Some(window) => (window.kv, Cache::RING, WINDOWED),
            None => (self.kv.expect("a cache for a layer without a window"), Cache::PAGED, WHOLE),
        };
        let blocks = of.limits.caches.units(kind);
        let (slot, elements) = (rows.before(of, layer), blocks * KV_BLOCK * of.spec.kv_width() as usize);
        Kv {
            keys: keys.part(slot, elements),
            values: values.part(slot, elements),
            kv_heads: of.spec.kv_heads as usize,
            head_dim: of.spec.head_dim as usize,
        }
    }
}
