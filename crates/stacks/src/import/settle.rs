//! Removes what a run file would refuse with its method and batch, and lists it with the reason.

use super::draft::{Draft, Fate};
use crate::setting::number;

/// Methods whose loss is not PPO's, and has no dual clip.
const OWN_LOSS: [&str; 10] =
    ["gspo", "luspo", "cispo", "sapo", "gmpo", "dppo_tv", "dppo_kl", "vespo", "gpg", "reinforce"];
/// Methods whose loss clips nothing.
const NO_CLIP: [&str; 4] = ["sapo", "vespo", "gpg", "reinforce"];

impl Draft {
    /// Removes one of our keys, and lists its setting with `why`.
    fn withdraw(&mut self, key: &str, why: &str) {
        let Some(at) = self.lines.iter().position(|line| line.key == key) else { return };
        let gone = self.lines.remove(at);
        let entry = self.entries.iter_mut().find(|entry| entry.given.key == gone.from && !entry.is_default);
        if let Some(entry) = entry {
            entry.fate = Fate::Left(why.into());
        }
    }

    /// Removes what the run file would refuse with this method and batch.
    pub fn settle(&mut self) {
        let method = self.get("method").unwrap_or_default().trim_matches('"').to_string();
        if matches!(method.as_str(), "sft" | "dpo" | "simpo" | "cpo" | "orpo" | "kto" | "reward_model") {
            self.settle_data_alone(&method);
        }
        if self.get("environment.env").is_some() {
            self.settle_episodes();
        }
        let no_critic = format!("`{method}` has no critic");
        if method != "ppo" {
            for key in ["model", "learning_rate", "value_clip", "warmup_steps", "updates_per_rollout"] {
                self.withdraw(&format!("critic.{key}"), &no_critic);
            }
            self.withdraw("loss.lambda", &no_critic);
        }
        if !matches!(method.as_str(), "ppo" | "reinforce") {
            self.withdraw("loss.gamma", &format!("`{method}` does not discount"));
        }
        // A loss that is written out is the one that counts.
        let loss = self.get("loss.policy").map_or(method.clone(), |loss| loss.trim_matches('"').to_string());
        if OWN_LOSS.contains(&loss.as_str()) {
            self.withdraw("loss.dual_clip", &format!("`{method}` has no dual clip"));
        }
        if NO_CLIP.contains(&loss.as_str()) {
            self.withdraw("loss.clip_low", &format!("`{method}` does not clip"));
            self.withdraw("loss.clip_high", &format!("`{method}` does not clip"));
        }
        if self.get("loss.kl_coef").is_none_or(|value| number(value) == Some(0.0)) {
            for key in ["loss.kl_target", "loss.kl_estimator", "loss.kl_in"] {
                self.withdraw(key, "there is no KL term");
            }
        }
        if self.get("loss.kl_target").is_none() {
            self.withdraw("loss.kl_horizon", "there is no KL target");
        }
        if self.get("loss.overlong_buffer").is_none() {
            self.withdraw("loss.overlong_factor", "there is no overlong buffer");
        }
        if self.get("lora.rank").is_some() {
            for key in ["train.grad_dtype", "train.optimizer_dtype"] {
                self.withdraw(key, "gradients and states of adapters are f32");
            }
        }
        self.settle_batch();
    }

    /// Removes the keys of sampling runs from a run that trains on fixed data.
    fn settle_data_alone(&mut self, method: &str) {
        const READ: [&str; 8] = [
            "rollout.prompts_per_step",
            "loss.dpo_beta",
            "loss.loss_type",
            "loss.label_smoothing",
            "loss.simpo_gamma",
            "loss.desirable_weight",
            "loss.undesirable_weight",
            "loss.nll_coef",
        ];
        let is_of_samples = |key: &str| {
            let section = key.split('.').next().unwrap_or_default();
            let of_batch =
                ["train.mini_batch", "train.epochs_per_rollout", "eval.samples", "eval.temperature"];
            (matches!(section, "rollout" | "loss" | "critic") && !READ.contains(&key))
                || of_batch.contains(&key)
        };
        let keys: Vec<String> = self.lines.iter().map(|line| line.key.clone()).collect();
        for key in keys.iter().filter(|key| is_of_samples(key)) {
            self.withdraw(key, &format!("`{method}` learns from its data and samples nothing"));
        }
    }

    /// Removes what an environment provides: prompts, held-out prompts, and rewards unless it has none.
    fn settle_episodes(&mut self) {
        let is_graded = self.get("environment.env") == Some("\"tools\"");
        for key in ["data.prompts", "data.eval"] {
            self.withdraw(
                key,
                if is_graded { "episodes begin with the rows of environment.rows here, one JSONL or Parquet file or hf:org/name" } else { "the environment's `reset` gives the prompts here; rows for it are environment.rows, one JSONL or Parquet file or hf:org/name" },
            );
        }
        for key in [
            "loss.overlong_buffer",
            "loss.dynamic_sampling",
            "loss.dynamic_sampling_retries",
            "data.overlong",
        ] {
            self.withdraw(key, "episodes of an environment are neither cut nor filtered here");
        }
        self.missing.retain(|line| !line.starts_with("data.prompts:"));
        if !is_graded {
            self.missing.retain(|line| !line.starts_with("reward.0.kind:"));
            self.rewards.clear();
        }
    }

    fn settle_batch(&mut self) {
        if let (Some(sequences), Some(mini)) = (self.sequences(), self.count("train.mini_batch"))
            && (mini <= 0 || mini >= sequences || sequences % mini != 0)
        {
            let why = if mini == sequences {
                "one update a step, as here without a key".to_string()
            } else {
                format!("does not divide the {sequences} sequences of a step; one update a step")
            };
            self.withdraw("train.mini_batch", &why);
        }
        if let (Some(sequences), Some(updates)) = (self.sequences(), self.count("critic.updates_per_rollout"))
            && updates > 0
            && sequences % updates != 0
        {
            // Parts are equal here: use the nearest smaller number that divides the step.
            let nearest = (1..updates.min(sequences)).rev().find(|&n| sequences % n == 0).unwrap_or(1);
            self.withdraw("critic.updates_per_rollout", "");
            let how = format!("{nearest}, which divides the {sequences} sequences of a step");
            self.set_toml("critic.updates_per_rollout", nearest, &how);
            if let Some(entry) =
                self.entries.iter_mut().find(|entry| matches!(&entry.fate, Fate::Left(why) if why.is_empty()))
            {
                entry.fate = Fate::Changed(how);
            }
        }
        // With train.epochs they follow from the rows.
        let steps = self.count("train.steps").unwrap_or(i64::MAX);
        for key in ["train.warmup_steps", "critic.warmup_steps"] {
            if self.count(key).is_some_and(|warmup| warmup > steps) {
                self.withdraw(key, &format!("more than the {steps} steps of the run"));
            }
        }
    }
}
