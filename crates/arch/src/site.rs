//! The table of products: what adapters may extend in a layer, by name.
//!
//! A layer has some of them: those that its mixer and its feed-forward part list, in the order in which it computes
//! them. Weights, codes, adapters, gradients and regions are kept by product, so a new one is a row here.

use crate::{LoraShape, LoraTarget, ParamKind, Site};

/// One product: a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteRow {
    /// The product.
    pub site: Site,
    /// Its weights.
    pub weight: ParamKind,
    /// Its bias, in layers that have one.
    pub bias: Option<ParamKind>,
    /// The linear layers that it consists of, in the order of its outputs.
    pub layers: &'static [LoraTarget],
    /// True if each expert of a layer has its own.
    pub is_of_experts: bool,
}

/// The table, in the order of `Site`.
pub const SITES: [SiteRow; Site::ALL.len()] = [
    SiteRow {
        site: Site::Qkv,
        weight: ParamKind::Qkv,
        bias: Some(ParamKind::QkvBias),
        layers: &[LoraTarget::Q, LoraTarget::K, LoraTarget::V],
        is_of_experts: false,
    },
    SiteRow {
        site: Site::Output,
        weight: ParamKind::Output,
        bias: Some(ParamKind::OutputBias),
        layers: &[LoraTarget::O],
        is_of_experts: false,
    },
    SiteRow {
        site: Site::GateUp,
        weight: ParamKind::GateUp,
        bias: Some(ParamKind::GateUpBias),
        layers: &[LoraTarget::Gate, LoraTarget::Up],
        is_of_experts: true,
    },
    SiteRow {
        site: Site::Down,
        weight: ParamKind::Down,
        bias: Some(ParamKind::DownBias),
        layers: &[LoraTarget::Down],
        is_of_experts: true,
    },
];

impl Site {
    /// Returns its row of the table.
    pub const fn row(self) -> &'static SiteRow {
        &SITES[self as usize]
    }

    /// Returns the linear layers that the product consists of, in the order of its outputs.
    pub const fn layers(self) -> &'static [LoraTarget] {
        self.row().layers
    }

    /// Returns whether each expert of a layer has its own.
    pub const fn is_of_experts(self) -> bool {
        self.row().is_of_experts
    }

    /// Returns S r, the width of A x; 0 without an adapter.
    pub fn width(self, lora: LoraShape) -> usize {
        self.layers().iter().filter(|target| lora.targets.contains(**target)).count() * lora.rank as usize
    }
}

impl ParamKind {
    /// Returns the product that this parameter is the weight of, if adapters may extend it.
    pub fn site(self) -> Option<Site> {
        SITES.iter().find(|row| row.weight == self).map(|row| row.site)
    }

    /// Returns whether a layer multiplies rows by this parameter.
    pub fn is_product(self) -> bool {
        self.site().is_some() || self == ParamKind::Router
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
    use crate::{PRESETS, products};

    #[test]
    fn the_table_is_in_the_order_of_the_products_and_no_weight_is_of_two() {
        for (row, site) in SITES.iter().zip(Site::ALL) {
            assert_eq!((row.site, site.row(), row.weight.site()), (site, row, Some(site)));
            assert!(row.bias.is_none_or(|bias| bias.site().is_none() && !bias.is_product()), "{site}");
        }
        let mut targets: Vec<LoraTarget> = SITES.iter().flat_map(|row| row.layers).copied().collect();
        assert_eq!(targets.len(), LoraTarget::ALL.len());
        targets.sort_unstable();
        targets.dedup();
        assert_eq!(targets, LoraTarget::ALL, "each linear layer is in one product");
    }

    #[test]
    fn a_layer_lists_the_products_of_its_tensors_in_their_order() {
        for (name, spec) in PRESETS {
            for (index, layer) in spec.each_layer().enumerate() {
                let listed: Vec<ParamKind> = layer.sites().map(|site| site.row().weight).collect();
                let kinds = products(spec, index as u32).into_iter().map(|product| product.kind);
                let kinds: Vec<ParamKind> = kinds.filter(|kind| *kind != ParamKind::Router).collect();
                assert_eq!(listed, kinds, "{name}, layer {index}");
                assert!(
                    Site::ALL.into_iter().all(|site| layer.has(site) == listed.contains(&site.row().weight))
                );
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
