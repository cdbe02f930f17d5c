//! The regions that adapters add to those of a pass.

use super::site::region_of;
use crate::activations::{Mode, PassLimits, Target, adapter_slots};
use plimsoll_arch::{LoraShape, ModelSpec, Site};
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::sizes;
use plimsoll_memory::{Layout, Turn};

/// U of each product, and what the backward pass takes. Merged adapters (`is_merged`) are in the weights of a forward pass.
///
/// Errors: `size-overflow`.
pub fn layout(
    spec: &ModelSpec,
    weights: DType,
    target: Target,
    mode: Mode,
    limits: PassLimits,
    lora: LoraShape,
    is_merged: bool,
) -> Result<Layout> {
    let mut regions = Layout::new();
    let learns = mode.recompute().is_some();
    let (prefix, phases, rows) = (mode.prefix(), PhaseSet::of(&[mode.phase()]), limits.rows as u64);
    let mut add = |turn, name: &str, shape: &[u64]| {
        let name = format!("{prefix}.{name}");
        regions.arena_in_turn(&name, "model", target.pool, phases, turn, shape, weights)
    };
    // Elements of a row: of u and its gradient in the product where they are widest, and of a u that is not kept.
    let (mut widest, mut once, mut pack) = (0, 0, 0);
    for site in Site::ALL {
        let width = site.width(lora);
        if width == 0 {
            continue;
        }
        let slots = adapter_slots(spec, mode, site);
        if !is_merged && slots > 0 {
            add(Turn::Whole, region_of(site), &[slots as u64, rows, width as u64])?;
        }
        let experts = spec.experts.filter(|_| site.is_of_experts());
        let of_pairs = experts.map_or(0, |experts| experts.chosen as usize * width);
        widest = widest.max(of_pairs).max(if slots > 0 { width } else { 0 });
        once = once.max(if is_merged { 0 } else { of_pairs });
        // One expert at a time, which no row goes to twice.
        let of = |n: u32, k: u32| sizes::pack(target.kind, rows, n.into(), k.into(), weights);
        for layer in 0..spec.layers {
            pack = pack.max(of(width as u32, site.layers()[0].widths(spec, layer).0));
            for (target, _) in site.targets(spec, lora, layer) {
                pack = pack.max(of(target.widths(spec, layer).1, lora.rank));
            }
        }
    }
    let once = if is_merged && learns { widest } else { once };
    if once > 0 {
        let turn = if learns { Turn::Layers } else { Turn::Whole };
        add(turn, "adapt.u", &[rows, once as u64])?;
    }
    if learns {
        add(Turn::Layers, "adapt.d_u", &[rows, widest as u64])?;
        if pack > 0 {
            add(Turn::Layers, "adapt.pack", &[pack])?;
        }
    }
    Ok(regions)
}
