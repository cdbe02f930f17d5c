//! The table of adapters: which tensors they are, under peft's names, and where each lies in their flat buffer.

use super::site::Site;
use crate::params::{ParamKind, ParamTable};
use plimsoll_base::{DType, LoraShape, ModelSpec};
use plimsoll_device::DeviceKind;
use plimsoll_files::{ADAPTER_SCORE, LoraPart, adapter_tensor_name};

impl ParamTable {
    /// The table of a decoder's adapters, under the names that peft gives them.
    pub fn adapters(spec: &ModelSpec, kind: DeviceKind, weights: DType, lora: LoraShape) -> ParamTable {
        let mut table = ParamTable::empty(kind);
        for layer in 0..spec.layers {
            for site in Site::ALL {
                let down: Vec<(String, u32)> = site
                    .targets(spec, lora)
                    .map(|(target, _)| (adapter_tensor_name(spec, layer, target, LoraPart::A), lora.rank))
                    .collect();
                if down.is_empty() {
                    continue;
                }
                let inputs = site.layers()[0].widths(spec).0;
                table.add(kind, weights, ParamKind::AdapterA(site), layer, inputs, down);
                for (target, _) in site.targets(spec, lora) {
                    let up =
                        vec![(adapter_tensor_name(spec, layer, target, LoraPart::B), target.widths(spec).1)];
                    table.add(kind, weights, ParamKind::AdapterB(target), layer, lora.rank, up);
                }
            }
        }
        table
    }

    /// The same, and after them the head of a critic or of a reward model: all of it is learnt, as peft does.
    pub fn adapters_and_score(
        spec: &ModelSpec,
        kind: DeviceKind,
        weights: DType,
        lora: LoraShape,
    ) -> ParamTable {
        let mut table = ParamTable::adapters(spec, kind, weights, lora);
        table.add(kind, weights, ParamKind::ValueHead, 0, spec.hidden, vec![(ADAPTER_SCORE.into(), 1)]);
        table
    }
}
