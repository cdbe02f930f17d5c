//! Handles to adapters, or to their gradients, resolved once at start.

use super::slots::SlotTable;
use crate::params::{ALIGN, Param, ParamTable};
use plimsoll_arch::{LoraShape, ModelSpec, ParamKind, Site, SiteMap};
use plimsoll_base::DType;
use plimsoll_device::{
    ADAPTER_BLOCKS_MAX, Adapter, AdapterBlock, EXPERTS_BLOCKS_MAX, Experts, ExpertsAdapter, Matrix,
    MatrixLayout,
};
use plimsoll_memory::Buf;

/// The adapters of one layer; also the shape of their gradients.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerAdapters<'a> {
    of_sites: SiteMap<Adapter<'a>>,
    /// Adapters of experts, in a layer with experts.
    of_experts: SiteMap<ExpertsAdapter<'a>>,
    /// True if the layer's weights include them: a forward pass adds nothing, and gradients go through the weights.
    pub(crate) are_merged: bool,
    /// The slots that rows choose from, of which these are the first; none if all rows have these.
    pub(crate) slots: Option<SlotTable<'a>>,
}

impl<'a> LayerAdapters<'a> {
    pub fn at(&self, site: Site) -> Option<Adapter<'a>> {
        self.of_sites.get(site)
    }

    /// Returns the adapters of a product that experts compute.
    pub fn of_experts(&self, site: Site) -> Option<ExpertsAdapter<'a>> {
        self.of_experts.get(site)
    }

    /// Returns what a pass adds to the product; none if the adapters are merged.
    pub(crate) fn added(&self, site: Site) -> Option<Adapter<'a>> {
        self.at(site).filter(|_| !self.are_merged)
    }
}

/// All adapters of a decoder over one flat buffer; also the shape of their gradients.
#[derive(Clone, Debug)]
pub struct Adapters<'a> {
    pub all: Buf<'a>,
    pub layers: Vec<LayerAdapters<'a>>,
    /// [1, h]: the head of a critic or a reward model, trained together with the adapters.
    pub head: Option<Matrix<'a>>,
    /// The slots that rows choose from, of which these are the first.
    pub slots: Option<SlotTable<'a>>,
}

impl<'a> Adapters<'a> {
    /// Resolves the handles. `all` holds `table.elements` elements; `weights` is the dtype of the decoder's weights,
    /// which decides the element order of gradients too.
    pub fn bind(
        spec: &ModelSpec,
        table: &ParamTable,
        weights: DType,
        lora: LoraShape,
        scale: f32,
        all: Buf<'a>,
    ) -> Adapters<'a> {
        assert_eq!(all.len() as u64, table.elements, "the flat buffer of adapters");
        let layout = MatrixLayout::of_weights(table.device, weights);
        let matrix = |param: &Param| {
            let buf = all.slice(param.offset as usize, param.elements as usize);
            Matrix::new(buf, param.n as usize, param.k as usize, layout)
        };
        let at = |layer, site: Site| {
            let a = matrix(table.find(ParamKind::AdapterA(site), layer)?);
            let mut blocks = [None; ADAPTER_BLOCKS_MAX];
            for (block, (target, first)) in blocks.iter_mut().zip(site.targets(spec, lora, layer)) {
                let b = table.find(ParamKind::AdapterB(target), layer).expect("an A has its B");
                *block = Some(AdapterBlock { b: matrix(b), first });
            }
            Some(Adapter { a, blocks, scale })
        };
        let has_experts = |layer, site: Site| spec.layer(layer).experts().is_some() && site.is_of_experts();
        let each = |kind, layer| {
            let [first, ..] = table.each(kind, layer) else { return None };
            let count = table.each(kind, layer).len();
            let stride = first.elements.next_multiple_of(ALIGN) as usize;
            let buf = all.slice(first.offset as usize, count * stride);
            Some(Experts::apart(buf, count, first.n as usize, first.k as usize, layout))
        };
        let of_experts = |layer, site: Site| {
            let a = each(ParamKind::AdapterA(site), layer)?;
            let mut blocks = [None; EXPERTS_BLOCKS_MAX];
            for (block, (target, first)) in blocks.iter_mut().zip(site.targets(spec, lora, layer)) {
                *block = Some((each(ParamKind::AdapterB(target), layer).expect("an A has its B"), first));
            }
            Some(ExpertsAdapter { a, blocks, n: site.outputs(spec, layer) as usize, scale })
        };
        let layer =
            |layer| LayerAdapters {
                of_sites: SiteMap::of(|site| if has_experts(layer, site) { None } else { at(layer, site) }),
                of_experts: SiteMap::of(|site| {
                    if has_experts(layer, site) { of_experts(layer, site) } else { None }
                }),
                are_merged: false,
                slots: None,
            };
        let head = table.find(ParamKind::ValueHead, 0).map(matrix);
        Adapters { all, layers: (0..spec.layers.len()).map(layer).collect(), head, slots: None }
    }

    /// Returns those of slot 0, next to which a pass finds the others.
    pub fn with_slots(mut self, slots: SlotTable<'a>) -> Adapters<'a> {
        self.layers.iter_mut().for_each(|layer| layer.slots = Some(slots));
        self.slots = Some(slots);
        self
    }
}
