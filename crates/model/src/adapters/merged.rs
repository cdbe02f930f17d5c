//! Weights with their adapters merged in: what the products of a merged decoder read, in rollout and update alike.
//!
//! The frozen weights are kept. Merged ones are computed from them after each update, so no rounding accumulates.

use super::handles::Adapters;
use crate::params::{Param, ParamTable};
use crate::parts::experts;
use crate::weights::Params;
use plimsoll_arch::{LoraShape, ModelSpec, Site, SiteMap};
use plimsoll_base::DType;
use plimsoll_device::{Device, Layouts, Matrix, MatrixLayout};
use plimsoll_memory::Buf;

impl ParamTable {
    /// Returns the table of a decoder's products that have an adapter, with the adapter merged.
    pub fn merged(spec: &ModelSpec, kind: &'static Layouts, weights: DType, lora: LoraShape) -> ParamTable {
        let all = ParamTable::new(spec, kind, weights);
        let mut table = ParamTable::empty(kind);
        let has_adapter =
            |param: &Param| param.kind.site().is_some_and(|site| site.has_adapter(spec, lora, param.layer));
        for param in all.params.into_iter().filter(has_adapter) {
            let parts = param.parts.into_iter().map(|part| (part.name, part.rows)).collect();
            table.add(kind, weights, param.kind, param.layer, param.k, parts);
        }
        table
    }
}

/// The merged products of each layer over one flat buffer.
#[derive(Clone, Debug)]
pub struct Merged<'a> {
    layers: Vec<SiteMap<Matrix<'a>>>,
}

impl<'a> Merged<'a> {
    /// Resolves the handles. `all` holds `table.elements` elements.
    pub fn bind(spec: &ModelSpec, table: &ParamTable, weights: DType, all: Buf<'a>) -> Merged<'a> {
        assert_eq!(all.len() as u64, table.elements, "the flat buffer of merged weights");
        let layout = MatrixLayout::of_weights(table.device, weights);
        let mut layers = vec![SiteMap::default(); spec.layers.len() as usize];
        for param in &table.params {
            let site = param.kind.site().expect("the table has products alone");
            let buf = all.slice(param.offset as usize, param.elements as usize);
            let matrix = Matrix::new(buf, param.n as usize, param.k as usize, layout);
            *layers[param.layer as usize].get_mut(site) = Some(matrix);
        }
        Merged { layers }
    }

    /// Recomputes all of them: w + scale B A, each rounded once.
    pub fn update(&self, dev: &dyn Device, weights: &Params<'a>, adapters: &Adapters<'a>) {
        for ((merged, weights), adapters) in self.layers.iter().zip(&weights.layers).zip(&adapters.layers) {
            for site in Site::ALL {
                let Some(merged) = merged.get(site) else { continue };
                if let Some(adapter) = adapters.at(site) {
                    dev.merge(weights.at(site), adapter, merged);
                }
                if let Some(adapter) = adapters.of_experts(site) {
                    let count = adapter.a.count;
                    let [from, to] = [weights.at(site), merged].map(|of| experts::cut(of, count));
                    (0..count).for_each(|e| dev.merge(from.of(e), adapter.of(e), to.of(e)));
                }
            }
        }
    }
}

impl<'a> Params<'a> {
    /// Returns the weights with merged products instead of those that have adapters.
    pub fn with_merged(self, adapters: &Adapters<'a>, merged: &Merged<'a>) -> Params<'a> {
        let mut params = self.with_adapters(Some(adapters));
        for (layer, merged) in params.layers.iter_mut().zip(&merged.layers) {
            layer.adapters.are_merged = true;
            for site in Site::ALL {
                if let Some((product, w)) = layer.products.get_mut(site).as_mut().zip(merged.get(site)) {
                    product.w = w;
                }
            }
        }
        params
    }
}
