//! Names of the regions in which what adapters compute of a product lies.

use plimsoll_arch::Site;

/// Returns the name of a product's region of u.
pub(super) fn region_of(site: Site) -> &'static str {
    match site {
        Site::Qkv => "adapt.qkv",
        Site::Output => "adapt.output",
        Site::GateUp => "adapt.gate_up",
        Site::Down => "adapt.down",
    }
}
