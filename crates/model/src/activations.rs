//! What a forward and backward pass keeps, as regions of the plan, and the handles to them.
//!
//! One description serves all phases: rollout and score keep one layer's intermediates and overwrite them; the update
//! keeps what the backward pass reads, by recompute level. Parts of a layer add the regions that only they have.
//!
//! Legend: L layers, M rows, R head rows, S segments, h hidden.

pub(crate) mod bufs;
pub(crate) mod mode;
pub(crate) mod shape;
pub(crate) mod taught;

use crate::adapters::AdaptBufs;
use crate::cache_index::CacheRegions;
use crate::fp8;
use crate::offloaded_inputs::{self, OffloadedInputs};
use crate::own_logits::{OwnBufs, OwnLogits};
use crate::parts::attention::regions as attention;
use crate::parts::regions::{self as parts, PartRegions};
use bufs::{Backward, HeadBufs, LayerBufs};
pub use mode::{Mode, Recompute};
use plimsoll_arch::{LayerSpec, ModelSpec, products};
use plimsoll_base::{DType, Result};
use plimsoll_device::{
    Fp8Room, HEAD_TILE, HeadOut, INPUT_SLOTS, KEY_WORDS, Layouts, ListedTokens, RowMasks, SEGMENT_FIELDS,
};
use plimsoll_memory::{Buf, InPhase, Layout, Turn};
use shape::{Life, PassShape, Regions, Rows};
pub use shape::{PassLimits, Target};

/// Norms; also the output of attention if a norm follows it.
const CHEAP: Rows = Rows { life: Life::Cheap, width: |of, _| of.spec.hidden };
/// The input of a mixer's output projection.
const MIXED: Rows = Rows { life: Life::Kept, width: |of, layer| of.spec.layer(layer).mixer.mixed_width() };
const GATE_UP: Rows =
    Rows { life: Life::Kept, width: |of, layer| 2 * of.spec.layer(layer).ffn.product_width() };

/// Returns the outputs of input projections; kept if the backward pass reads them: qk-norms, gates,
/// linear and latent attention.
fn first(spec: &ModelSpec) -> Rows {
    let of = |layer: LayerSpec| {
        layer.latent().is_some() || layer.attention().is_none_or(|of| of.qk_norms.is_some() || of.gated)
    };
    let is_read = spec.each_layer().any(of);
    let life = if is_read { Life::Kept } else { Life::Layer };
    Rows { life, width: |of, layer| of.spec.layer(layer).mixer.input_width() }
}

/// Returns the outputs of feed-forward parts that a norm follows; sums of two parts are added again.
fn ffn_out(spec: &ModelSpec) -> Rows {
    let life = if parts::are_sums(spec) { Life::Layer } else { Life::Always };
    Rows { life, ..CHEAP }
}

/// Returns the inputs of down projections; experts always recompute theirs.
fn product(spec: &ModelSpec) -> Rows {
    let life = if spec.has_experts() { Life::Layer } else { Life::Cheap };
    Rows { life, width: |of, layer| of.spec.layer(layer).ffn.product_width() }
}

/// Returns the regions of a pass. Names begin with `Mode::prefix`.
///
/// Errors: `size-overflow`.
pub fn layout(
    spec: &ModelSpec,
    weights: DType,
    target: Target,
    mode: Mode,
    limits: PassLimits,
) -> Result<Layout> {
    let mut to = Regions::new(PassShape { spec, mode, limits }, weights, target);
    let (m, r, h) = (limits.rows, limits.head_rows, spec.hidden as usize);
    for (name, n) in
        [("ids", m), ("positions", m), ("slots", m), ("tables", limits.table_entries), ("head_rows", r)]
    {
        to.add(Life::Pass, name, &[n], DType::U32)?;
    }
    to.add(Life::Pass, "segments", &[limits.segments, SEGMENT_FIELDS], DType::U32)?;
    if limits.copies > 0 {
        to.add(Life::Pass, "copies", &[limits.copies, 3], DType::U32)?;
    }
    attention::add_windows(&mut to)?;
    to.add(Life::Pass, "resid", &[inputs(spec, mode), m, h], DType::F32)?;
    match mode.recompute() {
        Some(_) => {
            to.rows("norm_attn", CHEAP, weights)?;
            to.rows("norm_ffn", CHEAP, weights)?;
            attention::add_sums(&mut to)?;
        }
        None => to.rows("norm", CHEAP, weights)?,
    }
    if has_post_norms(spec) {
        to.rows("attn_out", CHEAP, DType::F32)?;
        to.rows("ffn_out", ffn_out(spec), DType::F32)?;
    }
    if mode.recompute().is_some() {
        to.rows("mid", CHEAP, DType::F32)?;
    }
    to.rows("qkv", first(spec), weights)?;
    attention::add_regions(&mut to)?;
    to.rows("attn", MIXED, weights)?;
    to.rows("gate_up", GATE_UP, weights)?;
    to.rows("product", product(spec), weights)?;
    parts::add(&mut to)?;
    add_head(&mut to)?;
    if mode.recompute().is_some() {
        add_backward(&mut to)?;
    }
    let leaving = leaving(spec, mode);
    if leaving > 0 {
        let shape = [leaving, m, h].map(|n| n as u64);
        to.layout.offloaded(&offloaded_inputs::region(&mode.prefix()), "model", &shape, DType::F32)?;
    }
    Ok(to.layout)
}

/// Returns whether norms follow the parts of any layer.
fn has_post_norms(spec: &ModelSpec) -> bool {
    spec.layers.iter().any(|layer| layer.norms.after.is_some())
}

/// Returns the number of layer inputs that a pass holds, including the last layer's output.
fn inputs(spec: &ModelSpec, mode: Mode) -> usize {
    match mode.recompute() {
        None => 1,
        Some(_) if leaving(spec, mode) > 0 => INPUT_SLOTS,
        Some(_) => spec.layers.len() as usize + 1,
    }
}

/// Returns the number of layer inputs that are offloaded to host memory.
fn leaving(spec: &ModelSpec, mode: Mode) -> usize {
    if mode.recompute() == Some(Recompute::Offload) {
        offloaded_inputs::leaving(spec.layers.len())
    } else {
        0
    }
}

fn add_head(to: &mut Regions<'_>) -> Result<()> {
    let (PassShape { spec, mode, limits }, weights, target) = (to.of, to.weights, to.target);
    let (r, h) = (limits.head_rows, spec.hidden as usize);
    let mut add = |name: &str, shape: &[usize], dtype: DType| to.add(Life::Pass, name, shape, dtype);
    add("head.input", &[r, h], DType::F32)?;
    add("head.norm", &[r, h], weights)?;
    if mode.has_values() {
        return add("head.values", &[r], DType::F32);
    }
    for name in ["head.logprobs", "head.lse", "head.entropy"] {
        add(name, &[r], DType::F32)?;
    }
    if limits.listed > 0 {
        add("head.ids", &[r, limits.listed], DType::U32)?;
        add("head.listed", &[r, limits.listed], DType::F32)?;
    }
    add_own(to)?;
    let mut add = |name: &str, shape: &[usize], dtype: DType| to.add(Life::Pass, name, shape, dtype);
    if let Mode::Rollout { .. } = mode {
        add("sampler.keys", &[r, KEY_WORDS], DType::U32)?;
        add("tokens", &[r], DType::U32)?;
    } else {
        add("targets", &[r], DType::U32)?;
    }
    let truncates = matches!(mode, Mode::Rollout { truncates: true });
    let tile = (target.kind.head_tile)(target.threads, r, spec.vocab as usize, truncates);
    let turn = if mode.recompute().is_some() { Turn::Head } else { Turn::Whole };
    to.add_in(turn, "head.tile", &[tile as usize], DType::F32)
}

/// Adds the regions: a mask for each head row, which of them have one, and the biases.
///
/// Errors: `size-overflow`.
fn add_own(to: &mut Regions<'_>) -> Result<()> {
    let (r, OwnLogits { masks, biases }) = (to.of.limits.head_rows, to.of.limits.own);
    if masks {
        let words = RowMasks::words_of(to.of.spec.vocab as usize);
        to.add(Life::Pass, "head.masks", &[r, words], DType::U32)?;
        to.add(Life::Pass, "head.mask_rows", &[r], DType::U32)?;
    }
    if biases > 0 {
        to.add(Life::Pass, "head.bias_ids", &[r, biases], DType::U32)?;
        to.add(Life::Pass, "head.biases", &[r, biases], DType::F32)?;
    }
    Ok(())
}

/// Adds the regions of the backward pass.
fn add_backward(to: &mut Regions<'_>) -> Result<()> {
    let (PassShape { spec, mode, limits }, weights, kind) = (to.of, to.weights, to.target.kind);
    let (m, r, h) = (limits.rows, limits.head_rows, spec.hidden as usize);
    let (first, mixed) = spec.widest();
    to.add(Life::Pass, "d_resid", &[m, h], DType::F32)?;
    for (name, width) in [("d_norm", h), ("d_out", h), ("d_attn", mixed as usize)] {
        to.add(Life::Layer, name, &[m, width], weights)?;
    }
    attention::add_gradients(to)?;
    to.add(Life::Layer, "d_qkv", &[m, first as usize], weights)?;
    to.add(Life::Layer, "rstd", &[m, 1], DType::F32)?;
    if has_post_norms(spec) {
        to.add(Life::Layer, "d_branch", &[m, h], DType::F32)?;
    }
    let mut add = |turn, name: &str, shape: &[usize], dtype| to.add_in(turn, name, shape, dtype);
    if mode.has_values() {
        add(Turn::Whole, "head.d_values", &[r], DType::F32)?;
        add(Turn::Head, "head.d_out", &[r], weights)?;
    } else {
        add(Turn::Whole, "head.d_logprobs", &[r], DType::F32)?;
        add(Turn::Whole, "head.d_entropy", &[r], DType::F32)?;
        if limits.listed > 0 {
            add(Turn::Whole, "head.slopes", &[r, limits.listed], DType::F32)?;
            add(Turn::Whole, "head.rest", &[r], DType::F32)?;
            add(Turn::Whole, "head.d_divergence", &[r], DType::F32)?;
        }
        let tile = (kind.head_gradient_tile)(r, spec.vocab as usize);
        add(Turn::Head, "head.d_tile", &[tile as usize], weights)?;
        if limits.taught > 0 {
            let tile = (kind.head_tile)(to.target.threads, r, spec.vocab as usize, false);
            taught::add_regions(to, tile as usize)?;
        }
    }
    let mut add = |turn, name: &str, shape: &[usize], dtype| to.add_in(turn, name, shape, dtype);
    add(Turn::Head, "head.d_norm", &[r, h], DType::F32)?;
    add(Turn::Head, "head.d_input", &[r, h], DType::F32)?;
    add(Turn::Head, "head.rstd", &[r], DType::F32)?;
    let outputs = if mode.has_values() { 1 } else { HEAD_TILE.min(spec.vocab as usize) };
    match largest_pack(&to.of, weights, kind, outputs) {
        0 => Ok(()),
        pack => to.add(Life::Pass, "pack", &[pack as usize], weights),
    }
}

/// Returns the elements of the packing buffer for weight gradients; `outputs`: columns of the head's at a time.
fn largest_pack(of: &PassShape<'_>, weights: DType, kind: &'static Layouts, outputs: usize) -> u64 {
    let PassShape { spec, limits, .. } = *of;
    // Experts run one at a time, and no row goes to one twice.
    let each = |layer| products(spec, layer).into_iter().map(|product| (limits.rows, product.n, product.k));
    (0..spec.layers.len())
        .flat_map(each)
        .chain([(limits.head_rows, outputs as u32, spec.hidden)])
        .map(|(m, n, k)| (kind.pack)(m as u64, n.into(), k.into(), weights))
        .max()
        .unwrap_or(0)
}

/// Handles to the regions of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Activations<'p> {
    pub(crate) mode: Mode,
    pub(crate) limits: PassLimits,
    pub(crate) ids: Buf<'p>,
    pub(crate) positions: Buf<'p>,
    pub(crate) segments: Buf<'p>,
    pub(crate) whole: CacheRegions<'p>,
    pub(crate) head_rows: Buf<'p>,
    resid: Buf<'p>,
    /// The inputs offloaded to host memory.
    kept: Option<Buf<'p>>,
    mid: Option<Buf<'p>>,
    attn_out: Option<Buf<'p>>,
    ffn_out: Option<Buf<'p>>,
    norm_attn: Buf<'p>,
    norm_ffn: Buf<'p>,
    qkv: Buf<'p>,
    attn: Buf<'p>,
    gate_up: Buf<'p>,
    product: Buf<'p>,
    pub(crate) parts: PartRegions<'p>,
    pub(crate) head_input: Buf<'p>,
    pub(crate) head_norm: Buf<'p>,
    pub(crate) head: HeadBufs<'p>,
    pub(crate) targets: Option<Buf<'p>>,
    pub(crate) sampler: Option<(Buf<'p>, Buf<'p>)>,
    pub(crate) backward: Option<Backward<'p>>,
    pub(crate) adapt: AdaptBufs<'p>,
    pub(crate) fp8: Option<Fp8Room<'p>>,
}

impl<'p> Activations<'p> {
    /// Resolves the handles of a pass whose regions `layout` returned: in the pass's own phase, or in one that has the
    /// regions of several side by side.
    pub fn bind(phase: &InPhase<'p>, mode: Mode, limits: PassLimits) -> Activations<'p> {
        let name = mode.prefix();
        let get = |what: &str| phase.get(&format!("{name}.{what}"));
        let buf = |what: &str| phase.buf(&format!("{name}.{what}"));
        let norm = get("norm");
        let vocabulary = || HeadBufs::Vocabulary {
            out: HeadOut {
                logprobs: buf("head.logprobs"),
                lse: buf("head.lse"),
                entropy: buf("head.entropy"),
            },
            tile: buf("head.tile"),
            listed: get("head.ids").map(|ids| ListedTokens { ids, logprobs: buf("head.listed") }),
            own: OwnBufs::bind(&get),
        };
        Activations {
            mode,
            limits,
            ids: buf("ids"),
            positions: buf("positions"),
            segments: buf("segments"),
            whole: CacheRegions::bind(&get, "").expect("regions of a pass"),
            head_rows: buf("head_rows"),
            resid: buf("resid"),
            kept: phase.offloaded(&offloaded_inputs::region(&name)),
            mid: get("mid"),
            attn_out: get("attn_out"),
            ffn_out: get("ffn_out"),
            norm_attn: norm.unwrap_or_else(|| buf("norm_attn")),
            norm_ffn: norm.unwrap_or_else(|| buf("norm_ffn")),
            qkv: buf("qkv"),
            attn: buf("attn"),
            gate_up: buf("gate_up"),
            product: buf("product"),
            parts: PartRegions::bind(&get),
            head_input: buf("head.input"),
            head_norm: buf("head.norm"),
            head: get("head.values").map_or_else(vocabulary, HeadBufs::Values),
            targets: get("targets"),
            sampler: get("sampler.keys").map(|keys| (keys, buf("tokens"))),
            backward: mode.recompute().map(|_| Backward::bind(&get, &buf)),
            adapt: AdaptBufs::bind(get),
            fp8: fp8::room(get),
        }
    }

    /// Returns the offloaded layer inputs for `m` rows, if any.
    pub(crate) fn kept(&self, m: usize) -> Option<OffloadedInputs<'p>> {
        let width = self.resid.len() / INPUT_SLOTS / self.limits.rows;
        let each = (self.limits.rows * width, m * width);
        self.kept.map(|host| OffloadedInputs { slots: self.resid, host, each })
    }

    /// Returns the first `m` rows of a layer's buffers.
    pub(crate) fn layer(&self, spec: &ModelSpec, layer: u32, m: usize) -> LayerBufs<'p> {
        let of = &PassShape { spec, mode: self.mode, limits: self.limits };
        let rows = |rows: Rows, buf: Buf<'p>| rows.layer(of, buf, layer, m);
        let resid = self.input(spec, layer, m);
        let next = if self.mid.is_some() { self.input(spec, layer + 1, m) } else { resid };
        let (attn, mixer) = (rows(MIXED, self.attn), self.parts.mixer(of, layer, m));
        LayerBufs {
            resid,
            mid: self.mid.map_or(resid, |mid| rows(CHEAP, mid)),
            next,
            attn_out: self.attn_out.map(|buf| rows(CHEAP, buf)),
            ffn_out: self.ffn_out.map(|buf| rows(ffn_out(spec), buf)),
            norm_attn: rows(CHEAP, self.norm_attn),
            norm_ffn: rows(CHEAP, self.norm_ffn),
            qkv: rows(first(spec), self.qkv),
            attn,
            mixed: mixer.gated().unwrap_or(attn),
            mixer,
            gate_up: rows(GATE_UP, self.gate_up),
            product: rows(product(spec), self.product),
            ffn: self.parts.ffn(of, layer, m),
            input: self.parts.inputs.map(|inputs| inputs.layer(of, layer, m)),
            u: self.adapt.layer(of, layer, m),
            u_once: self.adapt.u_once,
        }
    }

    /// Returns the first `m` rows of the residual stream before a layer, or after the last one.
    fn input(&self, spec: &ModelSpec, layer: u32, m: usize) -> Buf<'p> {
        let (width, slot) = (spec.hidden as usize, layer as usize % inputs(spec, self.mode));
        self.resid.slice(slot * self.limits.rows * width, m * width)
    }

    /// Returns the residual stream after the last layer.
    pub(crate) fn last_resid(&self, spec: &ModelSpec, m: usize) -> Buf<'p> {
        self.input(spec, spec.layers.len(), m)
    }
}
