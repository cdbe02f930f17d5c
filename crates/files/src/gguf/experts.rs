//! Experts in a GGUF file: the keys that say how a router chooses and which layers have one.

use crate::config::{defaults, unsupported};
use crate::gguf::header::GgufValue;
use crate::gguf::model::Meta;
use crate::gguf::names::key;
use plimsoll_arch::{Architecture, ExpertsSpec, FileShape, LayerSet, LayersWith, SigmoidSpec};
use plimsoll_base::Result;
use serde_json::{Value, json};

/// Values of `expert_gating_func`.
const SOFTMAX: i64 = 1;
const SIGMOID: i64 = 2;
/// The last tensor of gates and ups of all experts of a layer.
const WHOLE: &str = "ffn_gate_up_exps.weight";

impl Meta<'_> {
    /// Returns the experts of a model's layers. Where a file has no key, llama.cpp has the value in its code.
    pub(super) fn experts(&self, shape: &FileShape) -> Result<Option<LayersWith<ExpertsSpec>>> {
        let row = shape.architecture();
        if !row.has_experts {
            return Ok(None);
        }
        let ffn = self.size(key::EXPERT_FFN)?;
        let balance =
            defaults::of(row).get("router_aux_loss_coef").and_then(Value::as_f64).unwrap_or_default();
        let plain = ExpertsSpec {
            count: self.size(key::EXPERTS)?,
            chosen: self.size(key::EXPERTS_USED)?,
            ffn,
            normalizes: true,
            sigmoid: None,
            balance: balance as f32,
            shared: None,
            gates_shared: true,
            is_fused: self.gguf.tensors.iter().any(|tensor| tensor.name.ends_with(WHOLE)),
            biased: false,
        };
        if row.has_sigmoid_router {
            let each = ExpertsSpec {
                normalizes: self.flag(key::NORMALIZES),
                sigmoid: Some(self.sigmoid()?),
                shared: Some(self.size(key::SHARED)?.saturating_mul(ffn)),
                gates_shared: false,
                balance: 0.0,
                ..plain
            };
            let dense = if self.int(key::DENSE) == Some(0) { 0 } else { self.size(key::DENSE)? };
            let layers = LayerSet::onwards(dense.min(shape.layers), shape.layers);
            return Ok(Some(LayersWith { layers, each }));
        }
        let shared = row.has_shared_expert.then(|| self.size(key::SHARED_FFN)).transpose()?;
        let layers = LayerSet::of(shape.layers, |_| true);
        Ok(Some(LayersWith { layers, each: ExpertsSpec { shared, ..plain } }))
    }

    fn sigmoid(&self) -> Result<SigmoidSpec> {
        let of = |key| if self.int(key).is_some() { self.size(key) } else { Ok(1) };
        Ok(SigmoidSpec {
            groups: of(key::GROUPS)?,
            groups_chosen: of(key::GROUPS_USED)?,
            factor: self.factor(key::EXPERT_SCALE)?.unwrap_or(1.0),
        })
    }

    fn flag(&self, key: &str) -> bool {
        self.gguf.metadata.get(&self.key(key)) == Some(&GgufValue::Bool(true))
    }

    /// Refuses what a family's experts do otherwise. Errors: `model-unsupported`.
    pub(super) fn refuse_other_experts(&self, row: &Architecture) -> Result<()> {
        let of_softmax = [
            (key::SHARED, GgufValue::Int(0)),
            (key::DENSE, GgufValue::Int(0)),
            (key::GROUPS, GgufValue::Int(0)),
            (key::GATING, GgufValue::Int(SOFTMAX)),
            (key::NORMALIZES, GgufValue::Bool(true)),
            (key::EXPERT_SCALE, GgufValue::Float(1.0)),
        ];
        let of_sigmoid = [(key::GATING, GgufValue::Int(SIGMOID))];
        let built = if row.has_sigmoid_router { &of_sigmoid[..] } else { &of_softmax[..] };
        for (key, built) in built {
            if let Some(value) = self.gguf.metadata.get(&self.key(key)).filter(|value| *value != built) {
                let (file, key) = (&self.gguf.file, self.key(key));
                return Err(unsupported(file, &key, &json!(value.to_string()), &built.to_string()));
            }
        }
        Ok(())
    }
}

/// Returns the keys with the whole numbers of a model's experts.
pub(super) fn numbers(shape: &FileShape) -> Vec<(&'static str, u32)> {
    let Some(LayersWith { layers, each }) = shape.experts else { return Vec::new() };
    let mut numbers =
        vec![(key::EXPERTS, each.count), (key::EXPERTS_USED, each.chosen), (key::EXPERT_FFN, each.ffn)];
    let Some(sigmoid) = each.sigmoid else {
        numbers.extend(each.shared.map(|width| (key::SHARED_FFN, width)));
        return numbers;
    };
    let dense = (0..shape.layers).take_while(|layer| !layers.contains(*layer)).count() as u32;
    numbers.extend([
        (key::SHARED, each.shared.unwrap_or(0) / each.ffn),
        (key::DENSE, dense),
        (key::GATING, SIGMOID as u32),
    ]);
    if sigmoid.groups > 1 {
        numbers.extend([(key::GROUPS, sigmoid.groups), (key::GROUPS_USED, sigmoid.groups_chosen)]);
    }
    numbers
}
