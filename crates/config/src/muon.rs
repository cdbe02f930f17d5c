//! `train.optimizer = "muon"`: its numbers, and what does not go with it.

use super::limits::contradiction;
use super::provenance::Provenance;
use super::sections::{RunFile, Train};
use super::values::{Auto, Offload, OptimizerDtype};
use crate::Trains;
use plimsoll_algo::update::MuonOptions;
use plimsoll_base::Result;

impl Train {
    /// Returns Muon's options of the update in `step`; none where AdamW updates all weights.
    pub fn muon_options(&self, step: u32) -> Option<MuonOptions> {
        if self.optimizer.is_adamw() {
            return None;
        }
        let default = MuonOptions::default();
        Some(MuonOptions {
            lr: self.muon_learning_rate.unwrap_or(self.learning_rate) * self.lr_factor(step),
            momentum: self.muon_momentum.unwrap_or(default.momentum),
            nesterov: self.muon_nesterov.unwrap_or(default.nesterov),
            iterations: self.muon_iterations.unwrap_or(default.iterations),
            coefficients: self.muon_coefficients.unwrap_or(default.coefficients),
            weight_decay: self.muon_weight_decay.unwrap_or(self.weight_decay),
            rate: self.muon_rate.unwrap_or_default(),
        })
    }
}

/// Checks that the other keys fit the optimizer.
pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    let train = &run.train;
    if train.optimizer.is_adamw() {
        let of_muon = |key: &&String| key.starts_with("train.muon_");
        let Some(key) = at.origins.keys().find(of_muon) else { return Ok(()) };
        let message = format!("`{key}` is set, and train.optimizer = \"adamw\" does not read it");
        return Err(
            contradiction(at, key, &message).hint(format!("set train.optimizer = \"muon\", or remove {key}"))
        );
    }
    let wrong = |key: &str, why: &str, hint: &str| {
        let message = format!("train.optimizer = \"muon\" {why}");
        Err(contradiction(at, key, &message).hint(hint))
    };
    if run.trains() == Trains::Policy {
        let why = "with an environment policy, which is small and trained by AdamW";
        return wrong("train.optimizer", why, "remove train.optimizer");
    }
    if run.lora.is_some() {
        let why = "with [lora]: adapters are trained by AdamW";
        return wrong("train.optimizer", why, "remove train.optimizer, or [lora] to train all weights");
    }
    if let Auto::Value(dtype @ (OptimizerDtype::Bf16 | OptimizerDtype::Int8)) = train.optimizer_dtype {
        let why = format!("with train.optimizer_dtype = \"{dtype}\": its momentum and weights are f32");
        return wrong("train.optimizer_dtype", &why, "remove train.optimizer_dtype, or set it to \"f32\"");
    }
    if run.memory.offloads(Offload::Optimizer) {
        let why = "with memory.offload = [\"optimizer\"]: the states of whole matrices stay on the device";
        return wrong("memory.offload", why, "remove \"optimizer\" from memory.offload");
    }
    Ok(())
}
