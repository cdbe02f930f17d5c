//! The table of products: what adapters may extend in a layer, by name.
//!
//! A layer has some of them: those that its mixer and its feed-forward part list, in the order in which it computes
//! them. Weights, codes, adapters, gradients and regions are kept by product, so a new one is a name here
//! and its linear layers.

use crate::LoraTarget;

plimsoll_base::names! {
    /// A product of a layer that adapters may extend. The names are those of regions.
    Site {
        /// Queries, keys and values, n = (a + 2k) d.
        Qkv = "qkv",
        /// Queries of latent attention from their latent, n = N (P + R).
        QueryUp = "query_up",
        /// Keys and values of heads from latents, n = N (P + V), of which each row computes with the transposed keys.
        LatentUp = "latent_up",
        /// The output projection of attention, n = h.
        Output = "output",
        /// Gate and up projections, n = 2f.
        GateUp = "gate_up",
        /// The down projection, n = h.
        Down = "down",
        /// Gate and up projections of the shared expert, or of the dense part next to the experts.
        SharedGateUp = "shared_gate_up",
        /// The down projection of the shared expert, or of the dense part next to the experts, n = h.
        SharedDown = "shared_down",
        /// All inputs of linear attention.
        Delta = "delta",
        /// The output projection of linear attention, n = h.
        DeltaOutput = "delta_output",
    }
}

impl Site {
    /// Returns the linear layers that the product consists of, in the order of its outputs.
    pub const fn layers(self) -> &'static [LoraTarget] {
        match self {
            // Of latent attention the last two, or the first and the last.
            Site::Qkv => {
                &[LoraTarget::Q, LoraTarget::K, LoraTarget::V, LoraTarget::QueryDown, LoraTarget::LatentDown]
            }
            Site::QueryUp => &[LoraTarget::QueryUp],
            Site::LatentUp => &[LoraTarget::LatentUp],
            Site::Output => &[LoraTarget::O],
            Site::GateUp => &[LoraTarget::Gate, LoraTarget::Up],
            Site::Down => &[LoraTarget::Down],
            // Of one shared expert, of several in one, or of a dense part next to experts.
            Site::SharedGateUp => &[
                LoraTarget::SharedGate,
                LoraTarget::SharedUp,
                LoraTarget::SharedGates,
                LoraTarget::SharedUps,
                LoraTarget::Gate,
                LoraTarget::Up,
            ],
            Site::SharedDown => &[LoraTarget::SharedDown, LoraTarget::SharedDowns, LoraTarget::Down],
            // Either qkvz and ba, or the others.
            Site::Delta => &[
                LoraTarget::DeltaQkv,
                LoraTarget::DeltaZ,
                LoraTarget::DeltaB,
                LoraTarget::DeltaA,
                LoraTarget::DeltaQkvz,
                LoraTarget::DeltaBa,
            ],
            Site::DeltaOutput => &[LoraTarget::DeltaOut],
        }
    }

    /// Returns what peft calls the whole product of all experts of a layer, if it can be one of experts.
    pub const fn of_all_experts(self) -> Option<LoraTarget> {
        match self {
            Site::GateUp => Some(LoraTarget::ExpertsGateUp),
            Site::Down => Some(LoraTarget::ExpertsDown),
            _ => None,
        }
    }

    /// Returns whether rows meet it head by head, with the inputs of each head instead of one input of all.
    pub const fn is_of_heads(self) -> bool {
        matches!(self, Site::LatentUp)
    }

    /// Returns whether each expert of a layer has its own.
    pub const fn is_of_experts(self) -> bool {
        matches!(self, Site::GateUp | Site::Down)
    }
}

/// Something of each product of a layer; none for a product that the layer does not have.
#[derive(Clone, Copy, Debug)]
pub struct SiteMap<T>([Option<T>; Site::ALL.len()]);

impl<T: Copy> SiteMap<T> {
    /// Returns what `of` gives for each product.
    pub fn of(of: impl FnMut(Site) -> Option<T>) -> SiteMap<T> {
        SiteMap(Site::ALL.map(of))
    }

    /// Returns what there is of a product.
    pub fn get(&self, site: Site) -> Option<T> {
        self.0[site as usize]
    }

    /// Returns what there is of a product, to change it.
    pub fn get_mut(&mut self, site: Site) -> &mut Option<T> {
        &mut self.0[site as usize]
    }
}

impl<T> Default for SiteMap<T> {
    fn default() -> SiteMap<T> {
        SiteMap([const { None }; Site::ALL.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PRESETS, ParamKind, products};

    #[test]
    fn each_linear_layer_is_in_one_product_and_a_bias_is_none() {
        for site in Site::ALL {
            let (weight, bias) = (ParamKind::Weight(site), ParamKind::Bias(site));
            assert_eq!((weight.site(), weight.is_product()), (Some(site), true));
            assert_eq!((bias.site(), bias.is_product()), (None, false), "{site}");
        }
        let each = |site: Site| site.layers().iter().copied().chain(site.of_all_experts());
        let mut targets: Vec<LoraTarget> = Site::ALL.into_iter().flat_map(each).collect();
        // Those of a dense part are in another product where experts are next to it.
        assert_eq!(targets.len(), LoraTarget::ALL.len() + 3);
        targets.sort_unstable();
        targets.dedup();
        assert_eq!(targets, LoraTarget::ALL);
    }

    #[test]
    fn a_layer_lists_the_products_of_its_tensors_in_their_order() {
        for (name, spec) in PRESETS {
            for (index, layer) in spec.each_layer().enumerate() {
                let listed: Vec<ParamKind> = layer.sites().map(ParamKind::Weight).collect();
                let kinds = products(spec, index as u32).into_iter().map(|product| product.kind);
                let kinds: Vec<ParamKind> = kinds.filter(|kind| kind.site().is_some()).collect();
                assert_eq!(listed, kinds, "{name}, layer {index}");
                let is_listed = |site| listed.contains(&ParamKind::Weight(site));
                assert!(Site::ALL.into_iter().all(|site| layer.has(site) == is_listed(site)));
            }
        }
    }

    #[test]
    fn a_map_has_what_was_put_into_it() {
        let mut map = SiteMap::of(|site| (site != Site::Output).then_some(site as usize));
        assert_eq!((map.get(Site::Output), map.get(Site::Down)), (None, Some(Site::Down as usize)));
        *map.get_mut(Site::Output) = Some(7);
        assert_eq!(map.get(Site::Output), Some(7));
        assert_eq!(SiteMap::<u32>::default().get(Site::Qkv), None);
    }
}
