//! Experts with biases: the keys of gpt-oss, whose gates and ups are clamped.

use super::keys::{Config, EXPERT_WIDTH, FFN_MAX, brief, short, unsupported};
use plimsoll_arch::{
    Architecture, EXPERTS_MAX, ExpertsSpec, FileShape, GATE_ALPHA, GATE_LIMIT, Gate, LayerSet, LayersWith,
};
use plimsoll_base::Result;
use serde_json::{Map, Value, json};

/// The numbers of clamped gates, and what is built.
const CLAMPED: [(&str, f32); 2] = [("swiglu_limit", GATE_LIMIT), ("swiglu_alpha", GATE_ALPHA)];
/// The number of experts of a row in the first files of the family, next to `num_experts_per_tok`.
const PER_TOKEN: &str = "experts_per_token";
/// The number of experts of a layer.
const COUNT: &str = "num_local_experts";

impl Config<'_> {
    /// Reads the experts of a decoder of `layers` layers, all of which have some.
    pub(super) fn biased_experts(&self, count: u32, layers: u32) -> Result<LayersWith<ExpertsSpec>> {
        let chosen = self.size("num_experts_per_tok", EXPERTS_MAX as u64)?;
        if let Some(value) = self.present(PER_TOKEN).filter(|value| value.as_u64() != Some(chosen.into())) {
            return Err(
                self.invalid(format!("num_experts_per_tok = {chosen}, and {PER_TOKEN} = {}", brief(value)))
            );
        }
        let each = ExpertsSpec {
            count,
            chosen,
            ffn: self.size("intermediate_size", FFN_MAX)?,
            // A softmax over the chosen ones is one over all, divided by the sum of theirs.
            normalizes: true,
            sigmoid: None,
            balance: self.balance()?,
            shared: None,
            gates_shared: false,
            is_fused: true,
            biased: true,
        };
        self.refuse_dense_layers(&each)?;
        Ok(LayersWith { layers: LayerSet::of(layers, |_| true), each })
    }

    /// Refuses numbers of clamped gates that differ from those that are built, and all of them in other families.
    pub(super) fn refuse_other_clamps(&self, architecture: &Architecture) -> Result<()> {
        let is_clamped = architecture.gate == Gate::ClampedSilu;
        for (key, built) in CLAMPED {
            let is_built = |value: &&Value| is_clamped && value.as_f64() == Some(short(built));
            if let Some(value) = self.present(key).filter(|value| !is_built(value)) {
                let built = if is_clamped { short(built).to_string() } else { "none".into() };
                return Err(unsupported(self.file, key, value, &built));
            }
        }
        match self.map.get(EXPERT_WIDTH).filter(|value| is_clamped && !value.is_null()) {
            Some(value) => {
                Err(unsupported(self.file, EXPERT_WIDTH, value, "none: intermediate_size is that"))
            }
            None => Ok(()),
        }
    }
}

/// Writes the keys that `biased_experts` reads.
pub(super) fn write(shape: &FileShape, map: &mut Map<String, Value>) {
    let Some(LayersWith { each: experts, .. }) = shape.experts else { return };
    for (key, value) in [
        (COUNT, experts.count.into()),
        ("num_experts_per_tok", experts.chosen.into()),
        ("intermediate_size", experts.ffn.into()),
        ("router_aux_loss_coef", short(experts.balance).into()),
    ] {
        map.insert(key.into(), value);
    }
    for (key, built) in CLAMPED {
        map.insert(key.into(), json!(short(built)));
    }
}
