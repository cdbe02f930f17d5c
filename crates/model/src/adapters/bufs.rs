//! Handles to the regions that adapters add to those of a pass.

use super::site::Site;
use plimsoll_memory::Buf;

/// U of each product, and what the backward pass takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AdaptBufs<'p> {
    u: [Option<Buf<'p>>; 4],
    /// U of one product at a time, which only the backward pass of merged adapters computes.
    pub(crate) u_of_merged: Option<Buf<'p>>,
    pub(crate) d_u: Option<Buf<'p>>,
    pub(crate) pack: Option<Buf<'p>>,
}

impl<'p> AdaptBufs<'p> {
    pub(crate) fn bind(get: impl Fn(&str) -> Option<Buf<'p>>) -> AdaptBufs<'p> {
        AdaptBufs {
            u: Site::ALL.map(|site| get(site.region())),
            u_of_merged: get("adapt.u"),
            d_u: get("adapt.d_u"),
            pack: get("adapt.pack"),
        }
    }

    /// Returns u of each product for the first `m` of `all` rows of a layer. `slots`: how many layers' worth a product's u holds.
    pub(crate) fn layer(
        &self,
        slots: impl Fn(Site) -> usize,
        layer: usize,
        all: usize,
        m: usize,
    ) -> [Option<Buf<'p>>; 4] {
        Site::ALL.map(|site| {
            let (slots, buf) = (slots(site), self.u[site as usize]?);
            let width = buf.len() / (slots * all);
            Some(buf.slice(if slots > 1 { layer * all * width } else { 0 }, m * width))
        })
    }
}
