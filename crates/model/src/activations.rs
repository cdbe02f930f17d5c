//! What a forward and backward pass keeps, as regions of the plan, and the handles to them.
//!
//! One description serves all phases: rollout and score keep one layer's intermediates and overwrite them;
//! the update keeps what the backward pass reads, by recompute level.
//!
//! Legend: L layers, M rows, R head rows, S segments, B blocks, h hidden, a d query width, k d key width, f feed-forward.

pub(crate) mod bufs;
mod mode;
mod slots;

use crate::adapters::AdaptBufs;
use crate::delta::{self, DeltaRegions, Keeps};
use crate::experts::{self, ExpertRegions};
use crate::gates::{self, GateRegions};
use crate::kept::{self, Kept};
use bufs::{Backward, HeadBufs, LayerBufs, WindowBufs};
pub use mode::{Mode, Recompute};
use plimsoll_arch::{LayerSet, ModelSpec, products};
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::{
    Batch, DeviceKind, HEAD_TILE, HeadOut, INPUT_SLOTS, KV_BLOCK, Kv, SEGMENT_FIELDS, sizes,
};
use plimsoll_memory::{Buf, InPhase, Layout, Pool, Turn};
pub(crate) use slots::adapter_slots;
use slots::{
    adapter_slot, attends, ffn_out_slots, gate_up_before, gate_up_slots, keeps_first, leaving, mixed_before,
    mixer_slots, slots,
};

/// The most of everything that one pass may hold; enforced where batches are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassLimits {
    /// M: rows.
    pub rows: usize,
    /// R: rows that go through the head.
    pub head_rows: usize,
    /// S: segments.
    pub segments: usize,
    /// Entries of all block tables.
    pub table_entries: usize,
    /// B: blocks of keys and values of one layer.
    pub blocks: usize,
    /// Block copies.
    pub copies: usize,
    /// Blocks of keys and values of one layer with a window, where these layers have a cache of their own; else 0.
    pub window_blocks: usize,
    /// P: places of states of linear attention, of one layer; 0 where no model has any.
    pub places: usize,
}

/// The device that a layout is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub kind: DeviceKind,
    /// Pool of its arena.
    pub pool: Pool,
    /// Threads of a CPU.
    pub threads: usize,
}

/// The regions of a pass. Names begin with `Mode::prefix`.
///
/// Errors: `size-overflow`.
pub fn layout(
    spec: &ModelSpec,
    weights: DType,
    target: Target,
    mode: Mode,
    limits: PassLimits,
) -> Result<Layout> {
    let (phase, prefix) = (mode.phase(), mode.prefix());
    let mut regions = Layout::new();
    let mut add_in = |turn: Turn, name: &str, shape: &[usize], dtype: DType| {
        let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
        let (name, phases) = (format!("{prefix}.{name}"), PhaseSet::of(&[phase]));
        regions.arena_in_turn(&name, "model", target.pool, phases, turn, &shape, dtype)
    };
    let (m, r, s) = (limits.rows, limits.head_rows, slots(spec, mode));
    let whole_kv = s.kv - windowed(spec, &limits).len() as usize;
    let mut add = |name: &str, shape: &[usize], dtype: DType| add_in(Turn::Whole, name, shape, dtype);
    let (h, d, gate_up) = (spec.hidden as usize, spec.head_dim as usize, gate_up_slots(spec, s.kept));
    let (q, [qkv, attn]) = (spec.q_width() as usize, mixer_slots(spec, (s.qkv, s.kept)));
    for (name, n) in
        [("ids", m), ("positions", m), ("slots", m), ("tables", limits.table_entries), ("head_rows", r)]
    {
        add(name, &[n], DType::U32)?;
    }
    add("segments", &[limits.segments, SEGMENT_FIELDS], DType::U32)?;
    if limits.copies > 0 {
        add("copies", &[limits.copies, 3], DType::U32)?;
    }
    if limits.window_blocks > 0 {
        add_window(spec, weights, mode, limits, &mut add)?;
    }
    add("resid", &[s.resid, m, h], DType::F32)?;
    let branches = usize::from(spec.architecture().norms.after.is_some());
    let kept: &[(&str, usize, &[usize], DType)] = &[
        ("attn_out", branches * s.cheap, &[m, h], DType::F32),
        ("ffn_out", branches * ffn_out_slots(spec, mode), &[m, h], DType::F32),
        ("mid", s.mid, &[m, h], DType::F32),
        ("qkv", qkv.0, &[m, qkv.1], weights),
        ("q", s.attends, &[m, q], weights),
        ("keys", whole_kv, &[limits.blocks, spec.kv_heads as usize, d, KV_BLOCK], weights),
        ("values", whole_kv, &[limits.blocks, spec.kv_heads as usize, KV_BLOCK, d], weights),
        ("attn", attn.0, &[m, attn.1], weights),
        ("gate_up", gate_up.0, &[m, gate_up.1], weights),
        ("product", s.product, &[m, spec.gate_up_width() as usize / 2], weights),
    ];
    let norms: &[(&str, usize, &[usize], DType)] = match mode.recompute() {
        Some(_) => &[
            ("norm_attn", s.cheap, &[m, h], weights),
            ("norm_ffn", s.cheap, &[m, h], weights),
            ("lse", s.attends, &[m, spec.heads as usize], DType::F32),
        ],
        None => &[("norm", 1, &[m, h], weights)],
    };
    for (name, slots, shape, dtype) in norms.iter().chain(kept).filter(|t| t.1 > 0) {
        add_in(turn_of(spec, mode, name), name, &[&[*slots], *shape].concat(), *dtype)?;
    }
    add_of_family(spec, weights, mode, limits, &mut add_in)?;
    add_head(spec, weights, target, mode, r, &mut add_in)?;
    if mode.recompute().is_some() {
        add_backward(spec, weights, target.kind, mode, limits, &mut add_in)?;
    }
    let leaving = leaving(spec, mode);
    if leaving > 0 {
        let shape = [leaving, m, h].map(|n| n as u64);
        regions.offloaded(&kept::region(&prefix), "model", &shape, DType::F32)?;
    }
    Ok(regions)
}

/// Regions that some families have: of experts, of gates of heads, of linear attention.
fn add_of_family(
    spec: &ModelSpec,
    weights: DType,
    mode: Mode,
    limits: PassLimits,
    add: &mut impl FnMut(Turn, &str, &[usize], DType) -> Result<()>,
) -> Result<()> {
    let (m, has_gradients) = (limits.rows, mode.recompute().is_some());
    let routes = (slots(spec, mode).routes, turn_of(spec, mode, "routes"));
    experts::add_regions(spec, weights, m, routes, has_gradients, add)?;
    gates::add_regions(spec, weights, m, has_gradients, add)?;
    let keeps = match mode {
        Mode::Rollout { .. } => Keeps::States,
        _ if has_gradients => Keeps::Gradients,
        _ => Keeps::Nothing,
    };
    delta::add_regions(spec, weights, (m, limits.segments, limits.places), keeps, add)
}

/// Layers whose cache holds their windows alone.
fn windowed(spec: &ModelSpec, limits: &PassLimits) -> LayerSet {
    let window = spec.attention.window.filter(|_| limits.window_blocks > 0);
    window.map_or(LayerSet::default(), |window| window.layers)
}

/// Regions of the layers whose cache holds their windows alone.
fn add_window(
    spec: &ModelSpec,
    weights: DType,
    mode: Mode,
    limits: PassLimits,
    add: &mut impl FnMut(&str, &[usize], DType) -> Result<()>,
) -> Result<()> {
    assert!(matches!(mode, Mode::Rollout { .. }), "other passes see whole sequences");
    let (layers, d) = (windowed(spec, &limits).len() as usize, spec.head_dim as usize);
    let (blocks, heads) = (limits.window_blocks, spec.kv_heads as usize);
    add("window.slots", &[limits.rows], DType::U32)?;
    add("window.tables", &[limits.table_entries], DType::U32)?;
    if limits.copies > 0 {
        add("window.copies", &[limits.copies, 3], DType::U32)?;
    }
    add("window.keys", &[layers, blocks, heads, d, KV_BLOCK], weights)?;
    add("window.values", &[layers, blocks, heads, KV_BLOCK, d], weights)
}

/// When a layer's tensor is in use: what the backward pass computes again, or never reads, is free while the head runs.
fn turn_of(spec: &ModelSpec, mode: Mode, name: &str) -> Turn {
    match (mode.recompute(), name) {
        (None, _) | (_, "ffn_out") => Turn::Whole,
        (Some(Recompute::Layer | Recompute::Offload), _) => Turn::Layers,
        (Some(_), "product") if spec.experts.is_some() => Turn::Layers,
        (Some(Recompute::Cheap), "attn_out" | "mid" | "norm_attn" | "norm_ffn" | "product") => Turn::Layers,
        (Some(_), "qkv") if !keeps_first(spec) => Turn::Layers,
        (Some(_), _) => Turn::Whole,
    }
}

/// Regions of the head for `r` rows.
fn add_head(
    spec: &ModelSpec,
    weights: DType,
    target: Target,
    mode: Mode,
    r: usize,
    add_in: &mut impl FnMut(Turn, &str, &[usize], DType) -> Result<()>,
) -> Result<()> {
    let h = spec.hidden as usize;
    let mut add = |name: &str, shape: &[usize], dtype: DType| add_in(Turn::Whole, name, shape, dtype);
    add("head.input", &[r, h], DType::F32)?;
    add("head.norm", &[r, h], weights)?;
    if mode.has_values() {
        return add("head.values", &[r], DType::F32);
    }
    for name in ["head.logprobs", "head.lse", "head.entropy"] {
        add(name, &[r], DType::F32)?;
    }
    if let Mode::Rollout { .. } = mode {
        add("sampler.keys", &[r, 3], DType::U32)?;
        add("tokens", &[r], DType::U32)?;
    } else {
        add("targets", &[r], DType::U32)?;
    }
    let truncates = matches!(mode, Mode::Rollout { truncates: true });
    let tile = sizes::head_tile(target.kind, target.threads, r, spec.vocab as usize, truncates);
    let turn = if mode.recompute().is_some() { Turn::Head } else { Turn::Whole };
    add_in(turn, "head.tile", &[tile as usize], DType::F32)
}

fn add_backward(
    spec: &ModelSpec,
    weights: DType,
    kind: DeviceKind,
    mode: Mode,
    limits: PassLimits,
    add: &mut impl FnMut(Turn, &str, &[usize], DType) -> Result<()>,
) -> Result<()> {
    let (m, r) = (limits.rows, limits.head_rows);
    let h = spec.hidden as usize;
    let (q, kv) = (spec.q_width() as usize, spec.kv_width() as usize);
    let (first, mixed) = spec.widest();
    add(Turn::Whole, "d_resid", &[m, h], DType::F32)?;
    for (name, width, dtype) in [
        ("d_norm", h, weights),
        ("d_out", h, weights),
        ("d_attn", mixed as usize, weights),
        ("d_q", q, DType::F32),
        ("d_kv", 2 * kv, DType::F32),
        ("d_qkv", first as usize, weights),
        ("rstd", 1, DType::F32),
    ]
    .into_iter()
    .chain(spec.architecture().norms.after.map(|_| ("d_branch", h, DType::F32)))
    {
        add(Turn::Layers, name, &[m, width], dtype)?;
    }
    if mode.has_values() {
        add(Turn::Whole, "head.d_values", &[r], DType::F32)?;
        add(Turn::Head, "head.d_out", &[r], weights)?;
    } else {
        add(Turn::Whole, "head.d_logprobs", &[r], DType::F32)?;
        add(Turn::Whole, "head.d_entropy", &[r], DType::F32)?;
        let tile = sizes::head_gradient_tile(kind, r, spec.vocab as usize);
        add(Turn::Head, "head.d_tile", &[tile as usize], weights)?;
    }
    add(Turn::Head, "head.d_norm", &[r, h], DType::F32)?;
    add(Turn::Head, "head.d_input", &[r, h], DType::F32)?;
    add(Turn::Head, "head.rstd", &[r], DType::F32)?;
    let outputs = if mode.has_values() { 1 } else { HEAD_TILE.min(spec.vocab as usize) };
    match largest_pack(spec, weights, kind, limits, outputs) {
        0 => Ok(()),
        pack => add(Turn::Whole, "pack", &[pack as usize], weights),
    }
}

/// Elements of the packing buffer: the largest that any weight gradient of a pass asks for. `outputs`: columns that the
/// head's gradient takes at a time.
fn largest_pack(
    spec: &ModelSpec,
    weights: DType,
    kind: DeviceKind,
    limits: PassLimits,
    outputs: usize,
) -> u64 {
    // Of experts one at a time, which no row goes to twice.
    let of = |layer| products(spec, layer).into_iter().map(|product| (limits.rows, product.n, product.k));
    (0..spec.layers)
        .flat_map(of)
        .chain([(limits.head_rows, outputs as u32, spec.hidden)])
        .map(|(m, n, k)| sizes::pack(kind, m as u64, n.into(), k.into(), weights))
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
    pub(crate) kv_slots: Buf<'p>,
    pub(crate) segments: Buf<'p>,
    pub(crate) tables: Buf<'p>,
    pub(crate) copies: Option<Buf<'p>>,
    pub(crate) head_rows: Buf<'p>,
    resid: Buf<'p>,
    /// The inputs that wait in the host's memory.
    kept: Option<Buf<'p>>,
    mid: Option<Buf<'p>>,
    attn_out: Option<Buf<'p>>,
    ffn_out: Option<Buf<'p>>,
    norm_attn: Buf<'p>,
    norm_ffn: Buf<'p>,
    lse: Option<Buf<'p>>,
    qkv: Buf<'p>,
    q: Buf<'p>,
    /// None where every layer has a window and a cache of its own.
    kv: Option<(Buf<'p>, Buf<'p>)>,
    pub(crate) window: Option<WindowBufs<'p>>,
    attn: Buf<'p>,
    gate_up: Buf<'p>,
    product: Buf<'p>,
    pub(crate) experts: Option<ExpertRegions<'p>>,
    gates: Option<GateRegions<'p>>,
    pub(crate) delta: Option<DeltaRegions<'p>>,
    pub(crate) head_input: Buf<'p>,
    pub(crate) head_norm: Buf<'p>,
    pub(crate) head: HeadBufs<'p>,
    pub(crate) targets: Option<Buf<'p>>,
    pub(crate) sampler: Option<(Buf<'p>, Buf<'p>)>,
    pub(crate) backward: Option<Backward<'p>>,
    pub(crate) adapt: AdaptBufs<'p>,
}

impl<'p> Activations<'p> {
    /// Resolves the handles of a pass whose regions `layout` gave.
    pub fn bind(phase: &InPhase<'p>, mode: Mode, limits: PassLimits) -> Activations<'p> {
        assert_eq!(phase.phase(), mode.phase(), "the pass belongs to another phase");
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
        };
        Activations {
            mode,
            limits,
            ids: buf("ids"),
            positions: buf("positions"),
            kv_slots: buf("slots"),
            segments: buf("segments"),
            tables: buf("tables"),
            copies: get("copies"),
            head_rows: buf("head_rows"),
            resid: buf("resid"),
            kept: phase.offloaded(&kept::region(&name)),
            mid: get("mid"),
            attn_out: get("attn_out"),
            ffn_out: get("ffn_out"),
            norm_attn: norm.unwrap_or_else(|| buf("norm_attn")),
            norm_ffn: norm.unwrap_or_else(|| buf("norm_ffn")),
            lse: get("lse"),
            qkv: buf("qkv"),
            q: buf("q"),
            kv: get("keys").map(|keys| (keys, buf("values"))),
            window: get("window.keys").map(|keys| WindowBufs::bind(keys, &get, &buf)),
            attn: buf("attn"),
            gate_up: buf("gate_up"),
            product: buf("product"),
            experts: ExpertRegions::bind(&get),
            gates: GateRegions::bind(&get),
            delta: DeltaRegions::bind(&get),
            head_input: buf("head.input"),
            head_norm: buf("head.norm"),
            head: get("head.values").map_or_else(vocabulary, HeadBufs::Values),
            targets: get("targets"),
            sampler: get("sampler.keys").map(|keys| (keys, buf("tokens"))),
            backward: mode.recompute().map(|_| Backward::bind(&get, &buf)),
            adapt: AdaptBufs::bind(get),
        }
    }

    /// The inputs of layers for `m` rows, where they wait in the host's memory.
    pub(crate) fn kept(&self, m: usize) -> Option<Kept<'p>> {
        let width = self.resid.len() / INPUT_SLOTS / self.limits.rows;
        let each = (self.limits.rows * width, m * width);
        self.kept.map(|host| Kept { slots: self.resid, host, each })
    }

    /// The first `m` rows of layer `layer`'s buffers.
    pub(crate) fn layer(&self, spec: &ModelSpec, layer: usize, m: usize) -> LayerBufs<'p> {
        let (s, all) = (slots(spec, self.mode), self.limits.rows);
        let h = spec.hidden as usize;
        let (q, index) = (spec.q_width() as usize, layer as u32);
        let (first, mixed) = (spec.first_width(index) as usize, spec.mixed_width(index) as usize);
        let attends = attends(spec, layer);
        // Slot `layer` where every layer has its own, else slot 0.
        let rows = |buf: Buf<'p>, slots: usize, layer: usize, width: usize| {
            buf.slice(if slots > 1 { layer * all * width } else { 0 }, m * width)
        };
        let rows_after = |buf: Buf<'p>, slots: usize, before: usize, width: usize| {
            buf.slice(if slots > 1 { all * before } else { 0 }, m * width)
        };
        let [first_before, mixed_before] = mixed_before(spec, index);
        let attn = rows_after(self.attn, s.kept, mixed_before, mixed);
        let gates = self.gates.filter(|_| spec.delta_of(index).is_none()).map(|gates| gates.rows(spec, m));
        let of = spec.experts_of(layer as u32);
        let gate_up = of.map_or(2 * spec.ffn, |experts| experts.gate_up_width()) as usize;
        let routes = of.map(|experts| {
            let index = experts.layers.before(layer as u32) as usize;
            (experts, (index, if s.routes > 1 { index } else { 0 }))
        });
        let input = |layer: usize| rows(self.resid, s.resid, layer % s.resid, h);
        let resid = input(layer);
        let (mid, next) = match self.mid {
            Some(mid) => (rows(mid, s.mid, layer, h), input(layer + 1)),
            None => (resid, resid),
        };
        LayerBufs {
            resid,
            mid,
            next,
            attn_out: self.attn_out.map(|buf| rows(buf, s.cheap, layer, h)),
            ffn_out: self.ffn_out.map(|buf| rows(buf, ffn_out_slots(spec, self.mode), layer, h)),
            norm_attn: rows(self.norm_attn, s.cheap, layer, h),
            norm_ffn: rows(self.norm_ffn, s.cheap, layer, h),
            lse: self.lse.map(|lse| rows(lse, s.attends, attends, spec.heads as usize)),
            qkv: rows_after(self.qkv, s.qkv, first_before, first),
            q: rows(self.q, s.attends, attends, q),
            kv: self.kv(spec, layer),
            attn,
            mixed: gates.map_or(attn, |gates| gates.out),
            gates,
            delta: self.delta.and_then(|delta| delta.layer(spec, index, m)),
            gate_up: rows_after(self.gate_up, s.kept, gate_up_before(spec, index), gate_up),
            product: rows(self.product, s.product, layer, gate_up / 2),
            experts: self
                .experts
                .zip(routes)
                .map(|(regions, (experts, slot))| regions.layer(spec, experts, slot, (all, m))),
            u: self.adapt.layer(
                |site| Some((adapter_slots(spec, self.mode, site), adapter_slot(spec, site, index)?)),
                all,
                m,
            ),
            u_once: self.adapt.u_once,
        }
    }

    /// Layer `layer`'s keys and values.
    pub(crate) fn kv(&self, spec: &ModelSpec, layer: usize) -> Kv<'p> {
        let of = windowed(spec, &self.limits);
        let (windows_before, index) = (of.before(layer as u32) as usize, layer as u32);
        let ((keys, values), blocks, slot) = match self.window {
            Some(window) if of.contains(index) => {
                ((window.keys, window.values), self.limits.window_blocks, windows_before)
            }
            _ => {
                let attends = attends(spec, layer) - windows_before;
                let slot = if slots(spec, self.mode).kv > 1 { attends } else { 0 };
                (self.kv.expect("a cache for a layer without a window"), self.limits.blocks, slot)
            }
        };
        let elements = blocks * KV_BLOCK * spec.kv_width() as usize;
        Kv {
            keys: keys.part(slot, elements),
            values: values.part(slot, elements),
            kv_heads: spec.kv_heads as usize,
            head_dim: spec.head_dim as usize,
        }
    }

    /// The residual stream after the last layer.
    pub(crate) fn last_resid(&self, spec: &ModelSpec, m: usize) -> Buf<'p> {
        let width = spec.hidden as usize;
        let slot = spec.layers as usize % slots(spec, self.mode).resid;
        self.resid.slice(slot * self.limits.rows * width, m * width)
    }

    /// The index arrays, cut to what is in use.
    pub(crate) fn batch(
        &self,
        rows: usize,
        segments: usize,
        table_entries: usize,
        keys_max: usize,
    ) -> Batch<'p> {
        Batch {
            positions: self.positions.slice(0, rows),
            slots: self.kv_slots.slice(0, rows),
            segments: self.segments.slice(0, segments * SEGMENT_FIELDS),
            tables: self.tables.slice(0, table_entries),
            keys_max,
        }
    }
}
