//! Handles to the regions that adapters add to those of a pass.

use super::site::{layers_with, region_of};
use crate::activations::shape::PassShape;
use plimsoll_arch::SiteMap;
use plimsoll_memory::Buf;

/// u = A x of each product, and buffers of the backward pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AdaptBufs<'p> {
    u: SiteMap<Buf<'p>>,
    /// u of one product at a time: of experts, or in the backward pass of merged adapters.
    pub(crate) u_once: Option<Buf<'p>>,
    pub(crate) d_u: Option<Buf<'p>>,
    /// The gradient by A of a product of heads, of one pass.
    pub(crate) d_a: Option<Buf<'p>>,
    pub(crate) pack: Option<Buf<'p>>,
    /// The slot of each row, where rows choose among several adapters.
    pub(crate) rows: Option<Buf<'p>>,
}

impl<'p> AdaptBufs<'p> {
    pub(crate) fn bind(get: impl Fn(&str) -> Option<Buf<'p>>) -> AdaptBufs<'p> {
        AdaptBufs {
            u: SiteMap::of(|site| get(&region_of(site))),
            u_once: get("adapt.u"),
            d_u: get("adapt.d_u"),
            d_a: get("adapt.d_a"),
            pack: get("adapt.pack"),
            rows: get("adapt.rows"),
        }
    }

    /// Returns u of each product for the first `m` rows of a layer; none if experts compute the product.
    pub(crate) fn layer(&self, of: &PassShape<'_>, layer: u32, m: usize) -> SiteMap<Buf<'p>> {
        SiteMap::of(|site| {
            let (buf, layers) = (self.u.get(site)?, layers_with(site));
            let has_it = (layers.width)(of, layer) > 0;
            let (slots, all) = (layers.slots(of).0, of.limits.rows);
            let width = buf.len() / (slots * all);
            has_it.then(|| buf.slice(layers.before(of, layer) * all * width, m * width))
        })
    }
}
