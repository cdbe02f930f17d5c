//! The regions of u of a product's adapters: their names, and which layers have them.

use crate::activations::shape::{Life, Rows};
use plimsoll_arch::Site;

/// Returns the name of the region of a product's u.
pub(super) fn region_of(site: Site) -> &'static str {
    match site {
        Site::Qkv => "adapt.qkv",
        Site::Output => "adapt.output",
        Site::GateUp => "adapt.gate_up",
        Site::Down => "adapt.down",
    }
}

/// Returns one for each layer that computes a product without experts. The last product's u is never recomputed.
pub(super) fn layers_with(site: Site) -> Rows {
    let life = if site == Site::Down { Life::Always } else { Life::Kept };
    match site.is_of_experts() {
        true => Rows { life, width: |of, layer| of.spec.layer(layer).dense().is_some().into() },
        false => Rows { life, width: |_, _| 1 },
    }
}
