//! The regions of a pass through a tower, as rows of the plan, and the handles to them.

use crate::activations::mode::Mode;
use crate::activations::shape::Target;
use plimsoll_arch::{TowerMlp, TowerParam, TowerSpec, TowerTensor, tower_adapted, tower_tensors};
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::{KV_BLOCK, SEGMENT_FIELDS};
use plimsoll_memory::{Buf, InPhase, Layout, Pool};

/// Limits of a pass through a tower; enforced where images are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TowerLimits {
    /// M: patches of all images.
    pub patches: usize,
    /// Images.
    pub images: usize,
}

impl TowerLimits {
    /// Returns the blocks of keys: each segment begins one.
    fn blocks(self, segments: usize) -> usize {
        self.patches.div_ceil(KV_BLOCK) + segments
    }
}

/// Returns the padded elements of a head.
pub(super) fn padded(spec: &TowerSpec) -> usize {
    spec.padded_head_dim() as usize
}

/// Returns the region `tower.rope`: [sides, d/2, 2] f32, resident; `sides`: the most patches of an image's side.
///
/// Errors: `size-overflow`.
pub fn tower_rope_layout(name: &str, spec: &TowerSpec, sides: usize, pool: Pool) -> Result<Layout> {
    let shape = [sides as u64, u64::from(spec.head_dim()) / 2, 2];
    let mut layout = Layout::new();
    layout.arena(name, "model", pool, PhaseSet::RESIDENT, &shape, DType::F32).map(|()| layout)
}

/// Sizes of the regions of a pass: name, shape, and dtype if it is not that of weights.
fn sizes(
    spec: &TowerSpec,
    kind: &plimsoll_device::Layouts,
    weights: DType,
    (update, rank): (bool, Option<u32>),
    limits: TowerLimits,
) -> Vec<(&'static str, Vec<usize>, DType)> {
    let m = limits.patches;
    let [h, a, f, out] = [spec.hidden, spec.heads, spec.ffn, spec.out].map(|n| n as usize);
    let (wide, merged) = (a * padded(spec), spec.merged() as usize);
    let vectors = m / spec.rows_per_vector() as usize;
    let windows = spec.windows_max(m, limits.images);
    let cache = limits.blocks(limits.images.max(windows)) * KV_BLOCK * wide;
    let (up, gates) = match spec.mlp {
        TowerMlp::Plain(_) => (f, false),
        TowerMlp::Gated(_) => (2 * f, true),
    };
    let inputs = if update { spec.depth as usize + 1 } else { 1 };
    let mut all = vec![
        ("places", vec![m, 3], DType::U32),
        ("positions", vec![m], DType::U32),
        ("slots", vec![m], DType::U32),
        ("tables", vec![limits.blocks(limits.images)], DType::U32),
        ("segments", vec![limits.images, SEGMENT_FIELDS], DType::U32),
        ("pixels", vec![m, spec.patch_elements() as usize], weights),
        ("resid", vec![inputs, m, h], DType::F32),
        ("mid", vec![m, h], DType::F32),
        ("spare", vec![m, h], DType::F32),
        ("norm", vec![m, h], weights),
        ("qkv", vec![m, 3 * h], weights),
        ("q", vec![m, wide], weights),
        ("keys", vec![cache], weights),
        ("values", vec![cache], weights),
        ("attn", vec![m, wide], weights),
        ("up", vec![m, up], weights),
        ("merge", vec![vectors, merged], weights),
    ];
    if spec.positions.is_some() {
        all.extend([("corners", vec![4, m], DType::U32), ("corner_weights", vec![4, m], DType::F32)]);
    }
    if spec.window.is_some() {
        all.extend([
            ("window_slots", vec![m], DType::U32),
            ("window_tables", vec![limits.blocks(windows)], DType::U32),
            ("window_segments", vec![windows, SEGMENT_FIELDS], DType::U32),
            ("order", vec![vectors], DType::U32),
            ("vectors", vec![vectors, out], DType::F32),
        ]);
    }
    if gates || update {
        all.push(("act", vec![m, f], weights));
    }
    if wide > h {
        all.extend([("wide_qkv", vec![m, 3 * wide], weights), ("mixed", vec![m, h], weights)]);
    }
    if let Some(rank) = rank {
        all.push(("u", vec![m, widest_u(spec, rank)], weights));
    }
    if update {
        all.extend(sizes_of_update(spec, kind, weights, limits));
    }
    if let Some(rank) = rank.filter(|_| update) {
        all.push(("d_u", vec![m, widest_u(spec, rank)], weights));
        all.push(("adapt_pack", vec![adapter_pack(spec, kind, weights, (limits, rank))], weights));
    }
    all
}

/// Returns the width of u of the product with the most linear layers.
fn widest_u(spec: &TowerSpec, rank: u32) -> usize {
    rank as usize * tower_adapted(spec).iter().map(Vec::len).max().unwrap_or(0)
}

/// Returns the elements of scratch for packing what gradients of adapters are products of.
fn adapter_pack(
    spec: &TowerSpec,
    kind: &plimsoll_device::Layouts,
    weights: DType,
    (limits, rank): (TowerLimits, u32),
) -> usize {
    let vectors = limits.patches / spec.rows_per_vector() as usize;
    let of = |layers: &Vec<TowerTensor>| {
        let rows = if layers[0].param.is_merger() { vectors } else { limits.patches };
        let pack = |n: u32, k: u32| (kind.pack)(rows as u64, n.into(), k.into(), weights);
        let down = pack(rank * layers.len() as u32, layers[0].cols);
        layers.iter().map(|layer| pack(layer.rows, rank)).fold(down, u64::max)
    };
    tower_adapted(spec).iter().map(of).max().unwrap_or(0) as usize
}

/// Sizes of the regions that a backward pass adds, as `sizes`.
fn sizes_of_update(
    spec: &TowerSpec,
    kind: &plimsoll_device::Layouts,
    weights: DType,
    limits: TowerLimits,
) -> Vec<(&'static str, Vec<usize>, DType)> {
    let m = limits.patches;
    let [h, a, out] = [spec.hidden, spec.heads, spec.out].map(|n| n as usize);
    let (wide, merged) = (a * padded(spec), spec.merged() as usize);
    let vectors = m / spec.rows_per_vector() as usize;
    let pack = tower_tensors(spec).into_iter().filter(|tensor| tensor.cols > 0).map(|tensor| {
        let rows = if tensor.param.is_merger() { vectors } else { m };
        let is_product = tensor.param != TowerParam::Positions;
        if is_product { (kind.pack)(rows as u64, tensor.rows.into(), tensor.cols.into(), weights) } else { 0 }
    });
    let pack = pack.max().unwrap_or(0) as usize;
    vec![
        ("lse", vec![m, a], DType::F32),
        ("merge_act", vec![vectors, merged], weights),
        ("d_resid", vec![m, h], DType::F32),
        ("d_out", vec![m, h], weights),
        ("d_norm", vec![m, h], weights),
        ("d_attn", vec![m, wide], weights),
        ("dq", vec![m, wide], DType::F32),
        ("dkv", vec![m, 2 * wide], DType::F32),
        ("stats", vec![2, m], DType::F32),
        ("d_vectors", vec![vectors, out], weights),
        ("d_merge", vec![vectors, merged], weights),
        ("pack", vec![pack], weights),
    ]
}

/// Returns the regions of a tower's pass in the phase of a mode. Names begin with the mode's prefix and `tower`.
/// `rank`: that of the tower's adapters, if it has some.
///
/// Errors: `size-overflow`.
pub fn tower_layout(
    spec: &TowerSpec,
    weights: DType,
    target: Target,
    mode: Mode,
    limits: TowerLimits,
    rank: Option<u32>,
) -> Result<Layout> {
    let mut layout = Layout::new();
    let phases = PhaseSet::of(&[mode.phase()]);
    let update = mode.recompute().is_some();
    for (name, shape, dtype) in sizes(spec, target.kind, weights, (update, rank), limits) {
        let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
        let name = format!("{}.tower.{name}", mode.prefix());
        layout.arena(&name, "model", target.pool, phases, &shape, dtype)?;
    }
    Ok(layout)
}

/// Index arrays of rows that see each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentRegions<'p> {
    pub(super) slots: Buf<'p>,
    pub(super) tables: Buf<'p>,
    pub(super) segments: Buf<'p>,
}

/// Regions of windows.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowRegions<'p> {
    pub(super) of: SegmentRegions<'p>,
    /// [n] u32, see `TowerIndex`
    pub(super) order: Buf<'p>,
    /// [n, H] f32: vectors, or their gradients, in the order of the pass
    pub(super) vectors: Buf<'p>,
}

/// Regions of heads that are padded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wide<'p> {
    /// [M, 3w] e
    pub(super) qkv: Buf<'p>,
    /// [M, h] e: attention's outputs without padding, or their gradient
    pub(super) mixed: Buf<'p>,
}

/// Regions of a backward pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct TowerBack<'p> {
    pub(super) lse: Buf<'p>,
    pub(super) merge_act: Buf<'p>,
    /// [M, h] f32
    pub(super) d_resid: Buf<'p>,
    /// [M, h] e: the same, rounded
    pub(super) d_out: Buf<'p>,
    pub(super) d_norm: Buf<'p>,
    pub(super) d_attn: Buf<'p>,
    pub(super) dq: Buf<'p>,
    pub(super) dkv: Buf<'p>,
    pub(super) stats: Buf<'p>,
    pub(super) d_vectors: Buf<'p>,
    pub(super) d_merge: Buf<'p>,
    pub(super) pack: Buf<'p>,
    /// The gradient of u, [M, S r] e, and scratch for packing, where adapters are trained.
    pub(super) adapt: Option<(Buf<'p>, Buf<'p>)>,
}

/// Handles to the regions of a pass through a tower.
#[derive(Clone, Copy, Debug)]
pub struct TowerRegions<'p> {
    pub(super) places: Buf<'p>,
    pub(super) positions: Buf<'p>,
    pub(super) whole: SegmentRegions<'p>,
    pub(super) windows: Option<WindowRegions<'p>>,
    /// Learned positions and their weights.
    pub(super) corners: Option<(Buf<'p>, Buf<'p>)>,
    pub(super) pixels: Buf<'p>,
    pub(super) resid: Buf<'p>,
    pub(super) mid: Buf<'p>,
    /// [M, h] f32: rows of a table on their way to sums
    pub(super) spare: Buf<'p>,
    pub(super) norm: Buf<'p>,
    pub(super) qkv: Buf<'p>,
    pub(super) q: Buf<'p>,
    pub(super) keys: Buf<'p>,
    pub(super) values: Buf<'p>,
    pub(super) attn: Buf<'p>,
    pub(super) wide: Option<Wide<'p>>,
    pub(super) up: Buf<'p>,
    /// [M, f] e: the activation's output, unless it is in place.
    pub(super) act: Option<Buf<'p>>,
    pub(super) merge: Buf<'p>,
    /// [M, S r] e: u of one product at a time, where products have adapters.
    pub(super) u: Option<Buf<'p>>,
    pub(super) back: Option<TowerBack<'p>>,
}

impl<'p> TowerRegions<'p> {
    /// Resolves the handles of `tower_layout` in a phase. Panics if the phase has no such regions.
    pub fn bind(phase: &InPhase<'p>, mode: Mode) -> TowerRegions<'p> {
        let prefix = mode.prefix();
        let get = |name: &str| phase.get(&format!("{prefix}.tower.{name}"));
        let buf = |name: &str| get(name).expect("a region of the tower's layout");
        let back = get("d_resid").map(|d_resid| TowerBack {
            lse: buf("lse"),
            merge_act: buf("merge_act"),
            d_resid,
            d_out: buf("d_out"),
            d_norm: buf("d_norm"),
            d_attn: buf("d_attn"),
            dq: buf("dq"),
            dkv: buf("dkv"),
            stats: buf("stats"),
            d_vectors: buf("d_vectors"),
            d_merge: buf("d_merge"),
            pack: buf("pack"),
            adapt: get("d_u").map(|d_u| (d_u, buf("adapt_pack"))),
        });
        TowerRegions {
            places: buf("places"),
            positions: buf("positions"),
            whole: SegmentRegions { slots: buf("slots"), tables: buf("tables"), segments: buf("segments") },
            windows: get("window_slots").map(|slots| WindowRegions {
                of: SegmentRegions { slots, tables: buf("window_tables"), segments: buf("window_segments") },
                order: buf("order"),
                vectors: buf("vectors"),
            }),
            corners: get("corners").map(|corners| (corners, buf("corner_weights"))),
            pixels: buf("pixels"),
            resid: buf("resid"),
            mid: buf("mid"),
            spare: buf("spare"),
            norm: buf("norm"),
            qkv: buf("qkv"),
            q: buf("q"),
            keys: buf("keys"),
            values: buf("values"),
            attn: buf("attn"),
            wide: get("wide_qkv").map(|qkv| Wide { qkv, mixed: buf("mixed") }),
            up: buf("up"),
            act: get("act"),
            merge: buf("merge"),
            u: get("u"),
            back,
        }
    }
}
