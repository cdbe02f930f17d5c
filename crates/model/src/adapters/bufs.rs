//! Handles to the regions that adapters add to those of a pass.

use super::site::region_of;
use plimsoll_arch::Site;
use plimsoll_memory::Buf;

/// U of each product, and what the backward pass takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AdaptBufs<'p> {
    u: [Option<Buf<'p>>; 4],
    /// U of one product at a time: of experts, and of any product in the backward pass of merged adapters.
    pub(crate) u_once: Option<Buf<'p>>,
    pub(crate) d_u: Option<Buf<'p>>,
    pub(crate) pack: Option<Buf<'p>>,
}

impl<'p> AdaptBufs<'p> {
    pub(crate) fn bind(get: impl Fn(&str) -> Option<Buf<'p>>) -> AdaptBufs<'p> {
        AdaptBufs {
            u: Site::ALL.map(|site| get(region_of(site))),
            u_once: get("adapt.u"),
            d_u: get("adapt.d_u"),
            pack: get("adapt.pack"),
        }
    }

    /// Returns u of each product for the first `m` of `all` rows of a layer. `slots`: how many layers' worth a product's u holds, and which
    /// of them is this layer's; none where experts compute the product.
    pub(crate) fn layer(
        &self,
        slots: impl Fn(Site) -> Option<(usize, usize)>,
        all: usize,
        m: usize,
    ) -> [Option<Buf<'p>>; 4] {
        Site::ALL.map(|site| {
            let ((slots, slot), buf) = (slots(site)?, self.u[site as usize]?);
            let width = buf.len() / (slots * all);
            Some(buf.slice(if slots > 1 { slot * all * width } else { 0 }, m * width))
        })
    }
}
