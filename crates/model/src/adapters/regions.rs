//! The regions that adapters add to a pass.

use super::site::{layers_with, region_of};
use crate::activations::mode::Mode;
use crate::activations::shape::{Life, PassLimits, PassShape, Regions, Target};
use plimsoll_arch::{Ffn, LayerSpec, LoraShape, ModelSpec, Site};
use plimsoll_base::{DType, Result};
use plimsoll_device::PANEL;
use plimsoll_memory::Layout;

/// Returns the regions of u of each product and of the backward pass. With `is_merged`, a forward pass needs none.
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
    let mut to = Regions::new(PassShape { spec, mode, limits }, weights, target);
    let (learns, rows) = (mode.recompute().is_some(), limits.rows);
    // Elements per row: of u and its gradient for the widest product, and of a u that is not kept.
    let (mut widest, mut once, mut pack) = (0, 0, 0);
    for site in Site::ALL {
        let width = site.width(spec, lora);
        if width == 0 {
            continue;
        }
        let slots = layers_with(site).slots(&to.of).0;
        if !is_merged && slots > 0 {
            to.add(Life::Pass, &region_of(site), &[slots, rows, width], weights)?;
        }
        // Of experts a row has as many u as it has experts. Of heads it has one at a time, but all for gradients.
        let each = |layer: LayerSpec| match (layer.ffn, layer.latent()) {
            (Ffn::Experts(experts), _) if site.is_of_experts() => experts.chosen as usize,
            (_, Some(latent)) if site.is_of_heads() && learns => latent.heads as usize,
            (_, Some(_)) if site.is_of_heads() => 1,
            _ => 0,
        };
        let times = spec.each_layer().map(each).max().unwrap_or(0);
        let of_pairs = width * times;
        widest = widest.max(of_pairs).max(if slots > 0 { width } else { 0 });
        once = once.max(if is_merged { 0 } else { of_pairs });
        // One expert at a time, to which no row goes twice; all heads at once.
        let rows = if site.is_of_heads() { rows * times.max(1) } else { rows };
        let of = |n: u32, k: u32| (target.kind.pack)(rows as u64, n.into(), k.into(), weights);
        for layer in (0..spec.layers.len()).filter(|layer| spec.layer(*layer).has(site)) {
            let inputs = site.target(spec, layer).map_or(0, |target| target.widths(spec, layer).0);
            pack = pack.max(of(width as u32, inputs));
            for (target, _) in site.targets(spec, lora, layer) {
                pack = pack.max(of(target.widths(spec, layer).1, lora.rank));
            }
        }
    }
    let once = if is_merged && learns { widest } else { once };
    if once > 0 {
        to.add(Life::Layer, "adapt.u", &[rows, once], weights)?;
    }
    if learns {
        to.add(Life::Layer, "adapt.d_u", &[rows, widest], weights)?;
        add_sum(&mut to, lora)?;
        if pack > 0 {
            to.add(Life::Layer, "adapt.pack", &[pack as usize], weights)?;
        }
    }
    Ok(to.layout)
}

/// Adds the gradient by A of a product of heads, which is a sum of that of its keys and that of its values. It is whole
/// before it is added to that of other passes: their number, and on which rank they are, change no bit.
fn add_sum(to: &mut Regions<'_>, lora: LoraShape) -> Result<()> {
    let (spec, site) = (to.of.spec, Site::LatentUp);
    let inputs = |layer| site.target(spec, layer).map(|target| target.widths(spec, layer).0);
    match ((0..spec.layers.len()).filter_map(inputs).max(), site.width(spec, lora)) {
        (Some(inputs), width) if width > 0 => {
            // As a matrix takes in any layout.
            let shape = [width.next_multiple_of(PANEL), inputs.next_multiple_of(2) as usize];
            to.add(Life::Layer, "adapt.d_a", &shape, DType::F32)
        }
        _ => Ok(()),
    }
}
