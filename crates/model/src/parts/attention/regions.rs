//! The regions of softmax attention in a pass: queries, the cache of keys and values, output gates; and their handles.

use super::value_regions::ValueBufs;
use crate::activations::shape::{Life, PassShape, Regions, Rows};
use crate::cache_index::CacheRegions;
use plimsoll_arch::{AttentionSpec, Cache, LayerSpec, Values};
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
    values: Option<ValueBufs<'p>>,
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
    pub(crate) spec: AttentionSpec,
    pub(crate) q: Buf<'p>,
    pub(crate) lse: Option<Buf<'p>>,
    pub(crate) kv: Kv<'p>,
    /// Present if heads have output gates.
    pub(crate) gates: Option<GateBufs<'p>>,
    /// Present if values are normalised.
    pub(crate) values: Option<ValueBufs<'p>>,
    /// [M, a d] and [M, 2 k d] f32: the gradients of `q`, and of keys and values.
    pub(crate) gradients: Option<[Buf<'p>; 2]>,
}

const Q: Rows = Rows { life: Life::Kept, width: |of, layer| number(of, layer, |of| of.q_width()) };
const LSE: Rows = Rows { life: Life::Kept, width: |of, layer| number(of, layer, |of| of.heads) };
/// Keys of a token in the layers that cache whole sequences.
const WHOLE: Rows = Rows { life: Life::Cached, width: |of, layer| cached(of, layer, false) };
/// Keys of a token in the layers that cache only their window.
const WINDOWED: Rows = Rows { life: Life::Cached, width: |of, layer| cached(of, layer, true) };

/// Returns a number of a layer's softmax attention; 0 for a layer without it.
fn number(of: &PassShape<'_>, layer: u32, number: fn(&AttentionSpec) -> u32) -> u32 {
    of.spec.layer(layer).attention().as_ref().map_or(0, number)
}

/// Returns the most of a number over all layers with softmax attention.
fn most(of: &PassShape<'_>, number: fn(&AttentionSpec) -> u32) -> usize {
    of.spec.attentions().map(|attention| number(&attention)).max().unwrap_or(0) as usize
}

/// Returns the elements of a key that a layer caches for whole sequences, or for its window; 0 if it has another cache.
fn cached(of: &PassShape<'_>, layer: u32, in_window: bool) -> u32 {
    let is_of = |attention: &AttentionSpec| is_windowed(of, attention) == in_window;
    of.spec.layer(layer).attention().filter(is_of).map_or(0, |attention| attention.kv_width())
}

/// Returns whether a layer's cache holds only its window.
fn is_windowed(of: &PassShape<'_>, attention: &AttentionSpec) -> bool {
    of.limits.caches.units(Cache::RING) > 0 && attention.window.is_some()
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

/// Adds keys and values of the layers that have `of`.
fn add_cache(to: &mut Regions<'_>, [keys, values]: [&str; 2], of: Rows, blocks: usize) -> Result<()> {
    let ((layers, width), weights) = (of.slots(&to.of), to.weights);
    if layers == 0 {
        return Ok(());
    }
    // Layers of several widths lie side by side as one, of one head.
    let all = to.of.spec.layers.iter().filter_map(LayerSpec::attention);
    let d = all.map(|attention| attention.head_dim as usize).reduce(|a, b| if a == b { a } else { width });
    let d = d.filter(|d| width % d == 0).unwrap_or(width);
    let heads = width / d;
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
    if !of.spec.attentions().any(|attention| attention.gated) {
        return Ok(());
    }
    let (m, qkv) = (of.limits.rows, most(&of, |of| of.qkv_width()));
    to.add(Life::Layer, "gates.qkv", &[m, qkv], weights)?;
    to.add(Life::Layer, "gates.out", &[m, most(&of, |of| of.q_width())], weights)?;
    match of.mode.recompute() {
        Some(_) => to.add(Life::Layer, "gates.d_qkv", &[m, qkv], weights),
        None => Ok(()),
    }
}

/// Adds the gradients of queries, and of keys and values.
///
/// Errors: `size-overflow`.
pub(crate) fn add_gradients(to: &mut Regions<'_>) -> Result<()> {
    let of = &to.of;
    let (m, q, kv) = (of.limits.rows, most(of, |of| of.q_width()), most(of, |of| of.kv_width()));
    to.add(Life::Layer, "d_q", &[m, q], DType::F32)?;
    to.add(Life::Layer, "d_kv", &[m, 2 * kv], DType::F32)
}

impl<'p> AttentionBufs<'p> {
    /// Returns where the gradient of adjacent queries, keys and values goes, if they are not those of the product.
    pub(super) fn d_qkv(&self) -> Option<Buf<'p>> {
        let of_gates = self.gates.map(|gates| gates.d_qkv.expect("an update of gates"));
        of_gates.or(self.values.map(|values| values.gradients.expect("an update of values").qkv))
    }
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
            values: ValueBufs::bind(get),
            gradients: pair(["d_q", "d_kv"]),
        })
    }

    /// Returns the first `m` rows of a layer's buffers.
    pub(crate) fn layer(
        &self,
        of: &PassShape<'_>,
        spec: AttentionSpec,
        layer: u32,
        m: usize,
    ) -> AttentionBufs<'p> {
        let [q, qkv, kv] = [spec.q_width(), spec.qkv_width(), spec.kv_width()].map(|width| width as usize);
        AttentionBufs {
            spec,
            q: Q.layer(of, self.q, layer, m),
            lse: self.lse.map(|lse| LSE.layer(of, lse, layer, m)),
            kv: self.kv(of, &spec, layer),
            gates: self.gates.filter(|_| spec.gated).map(|gates| GateBufs {
                qkv: gates.qkv.slice(0, m * qkv),
                out: gates.out.slice(0, m * q),
                d_qkv: gates.d_qkv.map(|d_qkv| d_qkv.slice(0, m * qkv)),
            }),
            values: self
                .values
                .filter(|_| spec.values != Values::Own)
                .map(|values| values.layer(of, (&spec, layer), m)),
            gradients: self.gradients.map(|[d_q, d_kv]| [d_q.slice(0, m * q), d_kv.slice(0, m * 2 * kv)]),
        }
    }

    fn kv(&self, of: &PassShape<'_>, spec: &AttentionSpec, layer: u32) -> Kv<'p> {
        let ([keys, values], kind, rows) = match self.window.filter(|_| is_windowed(of, spec)) {
            Some(window) => (window.kv, Cache::RING, WINDOWED),
            None => (self.kv.expect("a cache for a layer without a window"), Cache::PAGED, WHOLE),
        };
        let tokens = of.limits.caches.units(kind) * KV_BLOCK;
        let (start, elements) = (rows.before(of, layer) * tokens, spec.kv_width() as usize * tokens);
        Kv {
            keys: keys.slice(start, elements),
            values: values.slice(start, elements),
            kv_heads: spec.kv_heads as usize,
            head_dim: spec.head_dim as usize,
        }
    }
}
