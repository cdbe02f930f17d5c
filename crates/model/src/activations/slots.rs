//! How many layers' worth of its buffers a pass holds, by what it is for.

use super::mode::{Mode, Recompute};
use crate::kept;
use plimsoll_arch::{ModelSpec, Site};
use plimsoll_device::INPUT_SLOTS;

/// How many layers' worth of each kept tensor a mode holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    pub(super) resid: usize,
    pub(super) mid: usize,
    pub(super) kept: usize,
    pub(super) cheap: usize,
    pub(super) qkv: usize,
    pub(super) kv: usize,
    /// Of products of gates and ups, which layers with experts make again in any case.
    pub(super) product: usize,
    /// Of routes.
    pub(super) routes: usize,
    /// Of what layers that attend to keys have, alone.
    pub(super) attends: usize,
}

pub(super) fn slots(spec: &ModelSpec, mode: Mode) -> Slots {
    let layers = spec.layers as usize;
    let one = Slots { resid: 1, mid: 0, kept: 1, cheap: 1, qkv: 1, kv: 1, product: 1, routes: 1, attends: 1 };
    let attends = spec.attention_layers() as usize;
    match mode {
        Mode::Rollout { .. } => Slots { kv: attends, ..one },
        Mode::Reward(_) | Mode::Score | Mode::Teacher => one,
        Mode::Critic(recompute) | Mode::Update(recompute) | Mode::UpdateScore(recompute) => {
            let kept = if recompute.is_of_layers() { 1 } else { layers };
            let cheap = if recompute == Recompute::None { layers } else { 1 };
            let qkv = if keeps_first(spec) { kept } else { 1 };
            let attends = if kept > 1 { attends } else { 1 };
            let product = if spec.experts.is_some() { 1 } else { cheap };
            let routes = if kept > 1 { spec.expert_layers() as usize } else { 1 };
            let resid = if leaving(spec, mode) > 0 { INPUT_SLOTS } else { layers + 1 };
            Slots { resid, mid: cheap, kept, cheap, qkv, kv: attends, product, routes, attends }
        }
    }
}

/// How many layers' worth of gates and ups a mode holds, and their elements of a row: those of all layers together, where some are wider
/// than others.
pub(super) fn gate_up_slots(spec: &ModelSpec, kept: usize) -> (usize, usize) {
    together(kept, gate_up_before(spec, spec.layers), spec.gate_up_width())
}

/// As `gate_up_slots`, for what layers' first products give, and for what their mixers' last ones read.
pub(super) fn mixer_slots(spec: &ModelSpec, (qkv, kept): (usize, usize)) -> [(usize, usize); 2] {
    let ([first, mixed], widest) = (mixed_before(spec, spec.layers), spec.widest());
    [together(qkv, first, widest.0), together(kept, mixed, widest.1)]
}

fn together(slots: usize, all: usize, widest: u32) -> (usize, usize) {
    let widest = widest as usize;
    if slots == 1 || all == slots * widest { (slots, widest) } else { (1, all) }
}

/// Elements of a row in the layers before one: of what first products give, and of what the mixers' last ones read.
pub(super) fn mixed_before(spec: &ModelSpec, layer: u32) -> [usize; 2] {
    let linear = spec.delta.map_or(0, |delta| delta.layers.before(layer));
    let delta = spec.delta.map_or([0; 2], |delta| [delta.input_width(), delta.value_width()]);
    let attends = [spec.qkv_width(), spec.q_width()];
    std::array::from_fn(|i| {
        linear as usize * delta[i] as usize + (layer - linear) as usize * attends[i] as usize
    })
}

/// Elements of gates and ups of a row in the layers before one.
pub(super) fn gate_up_before(spec: &ModelSpec, layer: u32) -> usize {
    let (before, dense) = (layer as usize, 2 * spec.ffn as usize);
    spec.experts.map_or(before * dense, |experts| {
        let sparse = experts.layers.before(layer) as usize;
        (before - sparse) * dense + sparse * experts.gate_up_width() as usize
    })
}

/// How many layers' worth of what the last products give, where norms come after them: these are never computed again.
pub(super) fn ffn_out_slots(spec: &ModelSpec, mode: Mode) -> usize {
    if mode.recompute().is_some() { spec.layers as usize } else { 1 }
}

/// How many layers' worth of u of a product a mode holds: of those that compute it without experts. The last product's is never computed
/// again.
pub(crate) fn adapter_slots(spec: &ModelSpec, mode: Mode, site: Site) -> usize {
    let all = if site.is_of_experts() { spec.layers - spec.expert_layers() } else { spec.layers } as usize;
    match site {
        Site::Down if mode.recompute().is_some() => all,
        _ => slots(spec, mode).kept.min(all),
    }
}

/// The place of a layer among these; none where experts compute the product.
pub(super) fn adapter_slot(spec: &ModelSpec, site: Site, layer: u32) -> Option<usize> {
    match spec.experts.filter(|_| site.is_of_experts()) {
        Some(experts) if experts.layers.contains(layer) => None,
        Some(experts) => Some((layer - experts.layers.before(layer)) as usize),
        None => Some(layer as usize),
    }
}

/// The place of a layer among those that attend to keys; of one with linear attention that of any.
pub(super) fn attends(spec: &ModelSpec, layer: usize) -> usize {
    let before = layer - spec.delta.map_or(0, |delta| delta.layers.before(layer as u32) as usize);
    before.min(spec.attention_layers().saturating_sub(1) as usize)
}

/// Inputs of layers that wait in the host's memory.
pub(super) fn leaving(spec: &ModelSpec, mode: Mode) -> usize {
    if mode.recompute() == Some(Recompute::Offload) { kept::leaving(spec.layers) } else { 0 }
}

/// True if the backward pass reads what a layer's first product gave: its norms, gates or linear attention.
pub(super) fn keeps_first(spec: &ModelSpec) -> bool {
    spec.qk_norms.is_some() || spec.delta.is_some() || spec.attention.gated
}
