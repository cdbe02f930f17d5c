//! The table of adapters: their tensors, by peft's names, and the offset of each in their flat buffer.

use crate::params::{Param, ParamTable, Part};
use plimsoll_arch::{LoraShape, LoraTarget, ModelSpec, ParamKind};
use plimsoll_base::DType;
use plimsoll_device::Layouts;
use plimsoll_files::{ADAPTER_SCORE, LoraPart, adapter_tensor_name};

impl ParamTable {
    /// Returns the table of a decoder's adapters, by peft's names. Each expert's are separate parameters: all A of a
    /// product one after the other, then all B of a target.
    pub fn adapters(spec: &ModelSpec, kind: &'static Layouts, weights: DType, lora: LoraShape) -> ParamTable {
        let mut table = ParamTable::empty(kind);
        for layer in 0..spec.layers.len() {
            for site in spec.layer(layer).sites().filter(|site| site.has_adapter(spec, lora, layer)) {
                let Some(one) = site.target(spec, layer) else { continue };
                let experts = || one.of_experts(spec, layer);
                let name = |expert, target, part| {
                    adapter_tensor_name(spec, lora.targets, (layer, expert), target, part)
                };
                let (inputs, count) = (one.widths(spec, layer).0, experts().count() as u64);
                // A tensor of all experts has their A one after the other, and the columns of their B.
                let whole = |part: Part, target: LoraTarget, axis: usize| {
                    let mut shape = part.shape.clone();
                    shape[axis] *= if target.is_of_all_experts() { count } else { 1 };
                    Part { shape, ..part }
                };
                for expert in experts() {
                    let a = |target| Part::new(name(expert, target, LoraPart::A), lora.rank, inputs);
                    let down = site.targets(spec, lora, layer);
                    let down = down.map(|(target, _)| whole(a(target), target, 0)).collect();
                    table.add_parts(kind, weights, ParamKind::AdapterA(site), layer, inputs, down);
                }
                for (target, _) in site.targets(spec, lora, layer) {
                    let groups = target.row(spec, layer).and_then(|row| row.groups);
                    for expert in experts() {
                        let (name, rows) = (name(expert, target, LoraPart::B), target.widths(spec, layer).1);
                        let up = whole(Part { groups, ..Part::new(name, rows, lora.rank) }, target, 1);
                        table.add_parts(
                            kind,
                            weights,
                            ParamKind::AdapterB(target),
                            layer,
                            lora.rank,
                            vec![up],
                        );
                    }
                }
            }
        }
        table
    }

    /// Returns the parameters of a kind in a layer, which are adjacent: one, or one per expert in order.
    pub(super) fn each(&self, kind: ParamKind, layer: u32) -> &[Param] {
        let is_one = |param: &Param| param.kind == kind && param.layer == layer;
        let first = self.params.iter().position(is_one).unwrap_or(self.params.len());
        let count = self.params[first..].iter().take_while(|param| is_one(param)).count();
        &self.params[first..first + count]
    }

    /// Returns the adapters' table plus the head of a critic or reward model, which is trained in full, as in peft.
    pub fn adapters_and_score(
        spec: &ModelSpec,
        kind: &'static Layouts,
        weights: DType,
        lora: LoraShape,
    ) -> ParamTable {
        let mut table = ParamTable::adapters(spec, kind, weights, lora);
        table.add(kind, weights, ParamKind::ValueHead, 0, spec.hidden, vec![(ADAPTER_SCORE.into(), 1)]);
        table
    }
}
