//! The regions of u of a product's adapters: their names, and which layers have them.

use crate::activations::shape::{Life, PassShape, Rows};
use plimsoll_arch::Site;

/// Returns the name of the region of a product's u.
pub(super) fn region_of(site: Site) -> String {
    format!("adapt.{site}")
}

/// Returns one for each layer that computes a product with one input for all rows: not expert by expert, nor head by
/// head. The u of what a feed-forward part ends in is
/// never recomputed.
pub(super) fn layers_with(site: Site) -> Rows<impl Fn(&PassShape<'_>, u32) -> u32 + Copy> {
    let width = move |of: &PassShape<'_>, layer: u32| {
        let layer = of.spec.layer(layer);
        let is_apart = site.is_of_heads() || site.is_of_experts() && layer.experts().is_some();
        u32::from(layer.has(site) && !is_apart)
    };
    Rows { life: if is_last(site) { Life::Always } else { Life::Kept }, width }
}

fn is_last(site: Site) -> bool {
    matches!(site, Site::Down | Site::SharedDown)
}
