//! `train.optimizer = "muon"`: its numbers.

use super::sections::Train;
use plimsoll_algo::update::MuonOptions;

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
