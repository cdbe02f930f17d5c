//! The options of each update: learning rates by warm-up and schedule.

use crate::{Schedule, Train};
use plimsoll_algo::update::UpdateOptions;

impl Train {
    /// Returns the options of the update in `step`, which counts from 1. `seed` is the key of stochastic rounding.
    pub fn update_options(&self, step: u32, seed: u64) -> UpdateOptions {
        UpdateOptions {
            lr: (self.learning_rate * self.lr_factor(step)) as f32,
            betas: (self.betas[0] as f32, self.betas[1] as f32),
            epsilon: self.adam_epsilon as f32,
            weight_decay: self.weight_decay as f32,
            grad_clip: self.grad_clip as f32,
            seed,
            muon: self.muon_options(step),
        }
    }

    /// Returns the factor of a learning rate in `step`: warm-up, then the schedule. The last step's factor is above 0.
    pub fn lr_factor(&self, step: u32) -> f64 {
        let (step, warmup, steps) = (f64::from(step), f64::from(self.warmup_steps), f64::from(self.steps));
        if step <= warmup {
            return step / warmup;
        }
        let progress = (step - 1.0 - warmup) / (steps - warmup).max(1.0);
        match self.schedule {
            Schedule::Constant => 1.0,
            Schedule::Linear => 1.0 - progress,
            Schedule::Cosine => 0.5 * (1.0 + plimsoll_base::math::sin_cos(std::f64::consts::PI * progress).1),
        }
    }
}
