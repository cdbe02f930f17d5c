//! Low-rank adapters of a tower's products: their place after the text's in the table of a model's adapters, and
//! handles to them, or to their gradients.
//!
//! Legend: r rank, S adapters of a product, of K inputs and N outputs.

use super::params::{Linear, TowerParams};
use crate::params::{Param, ParamTable, Part};
use plimsoll_arch::{ParamKind, TowerParam, TowerSpec, tower_adapted};
use plimsoll_base::DType;
use plimsoll_device::{ADAPTER_BLOCKS_MAX, Adapter, AdapterBlock, Layouts, Matrix, MatrixLayout};
use plimsoll_files::{LoraPart, tower_adapter_name};
use plimsoll_memory::Buf;

/// The products of a layer and of a merger that have adapters.
const OF_LAYER: [TowerParam; 4] = [TowerParam::Qkv, TowerParam::Output, TowerParam::Up, TowerParam::Down];
const OF_MERGER: [TowerParam; 2] = [TowerParam::MergeUp, TowerParam::MergeDown];

impl ParamTable {
    /// Returns the table with adapters of a tower's products, by peft's names, after those of a text.
    pub fn with_tower_adapters(
        mut self,
        spec: &TowerSpec,
        kind: &'static Layouts,
        weights: DType,
        rank: u32,
    ) -> ParamTable {
        for layers in tower_adapted(spec) {
            let (param, index, k) = (layers[0].param, layers[0].index, layers[0].cols);
            let a = |weight: &str| Part::new(tower_adapter_name(weight, LoraPart::A), rank, k);
            let down = layers.iter().map(|layer| a(&layer.name)).collect();
            self.add_parts(kind, weights, ParamKind::TowerA(param), index, k, down);
            for (block, layer) in layers.iter().enumerate() {
                let up = Part::new(tower_adapter_name(&layer.name, LoraPart::B), layer.rows, rank);
                let of = ParamKind::TowerB(param, block as u8);
                self.add_parts(kind, weights, of, index, rank, vec![up]);
            }
        }
        self
    }
}

/// The adapters of a tower; also the shape of their gradients.
#[derive(Clone, Debug)]
pub struct TowerAdapters<'a> {
    /// The elements of `ParamTable::tower_run`.
    pub all: Buf<'a>,
    /// In the order of `OF_LAYER`.
    layers: Vec<[Adapter<'a>; 4]>,
    /// In the order of `OF_MERGER`.
    mergers: Vec<[Adapter<'a>; 2]>,
}

impl<'a> TowerAdapters<'a> {
    /// Resolves the handles; none if the table has no adapters of a tower. `all`: the elements of its `tower_run`;
    /// `weights`: the dtype of the tower's weights, which decides the element order of gradients too.
    pub fn bind(
        spec: &TowerSpec,
        table: &ParamTable,
        weights: DType,
        scale: f32,
        all: Buf<'a>,
    ) -> Option<TowerAdapters<'a>> {
        let run = table.tower_run();
        assert_eq!(all.len() as u64, run.elements, "the elements of a tower's adapters");
        let layout = MatrixLayout::of_weights(table.device, weights);
        let matrix = |param: &Param| {
            let buf = all.slice((param.offset - run.start) as usize, param.elements as usize);
            Matrix::new(buf, param.n as usize, param.k as usize, layout)
        };
        let adapter = |param, index| {
            let a = matrix(table.find(ParamKind::TowerA(param), index)?);
            let (mut blocks, mut first) = ([None; ADAPTER_BLOCKS_MAX], 0);
            for (number, block) in blocks.iter_mut().enumerate() {
                let Some(b) = table.find(ParamKind::TowerB(param, number as u8), index) else { break };
                *block = Some(AdapterBlock { b: matrix(b), first });
                first += b.n as usize;
            }
            Some(Adapter { a, blocks, scale })
        };
        adapter(TowerParam::Qkv, 0)?;
        let of = |param, index| adapter(param, index).expect("a tower has adapters of all its products");
        let mergers = 0..=spec.deep.as_slice().len() as u32;
        Some(TowerAdapters {
            all,
            layers: (0..spec.depth).map(|layer| OF_LAYER.map(|param| of(param, layer))).collect(),
            mergers: mergers.map(|merger| OF_MERGER.map(|param| of(param, merger))).collect(),
        })
    }

    /// Returns the adapters of a layer: of queries, keys and values, the output, up and down.
    pub(super) fn layer(&self, index: usize) -> [Adapter<'a>; 4] {
        self.layers[index]
    }

    /// Returns the adapters of a merger: up and down.
    pub(super) fn merger(&self, index: usize) -> [Adapter<'a>; 2] {
        self.mergers[index]
    }
}

impl<'a> TowerParams<'a> {
    /// Returns the weights with adapters on their products.
    pub fn with_adapters(self, adapters: &TowerAdapters<'a>) -> TowerParams<'a> {
        let mut params = self;
        let put = |linear: &mut Linear<'a>, adapter| linear.adapter = Some(adapter);
        for (layer, [qkv, output, up, down]) in params.layers.iter_mut().zip(&adapters.layers) {
            put(&mut layer.qkv, *qkv);
            put(&mut layer.output, *output);
            put(&mut layer.up, *up);
            put(&mut layer.down, *down);
        }
        for (merger, [up, down]) in params.mergers.iter_mut().zip(&adapters.mergers) {
            put(&mut merger.up, *up);
            put(&mut merger.down, *down);
        }
        params
    }
}
