//! The regions that adapters add to those of a pass.

use super::site::Site;
use crate::activations::{Mode, PassLimits, Target, adapter_slots};
use plimsoll_base::{DType, LoraShape, ModelSpec, PhaseSet, Result};
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
    let (mut widest, mut pack) = (0, 0);
    for site in Site::ALL {
        let width = site.width(spec, lora);
        if width == 0 {
            continue;
        }
        widest = widest.max(width);
        if !is_merged {
            add(Turn::Whole, site.region(), &[adapter_slots(spec, mode, site) as u64, rows, width as u64])?;
        }
        let of = |n: usize, k: usize| sizes::pack(target.kind, rows, n as u64, k as u64, weights);
        pack = pack.max(of(width, site.layers()[0].widths(spec).0 as usize));
        for (target, _) in site.targets(spec, lora) {
            pack = pack.max(of(target.widths(spec).1 as usize, lora.rank as usize));
        }
    }
    if learns {
        if is_merged {
            add(Turn::Layers, "adapt.u", &[rows, widest as u64])?;
        }
        add(Turn::Layers, "adapt.d_u", &[rows, widest as u64])?;
        if pack > 0 {
            add(Turn::Layers, "adapt.pack", &[pack])?;
        }
    }
    Ok(regions)
}
