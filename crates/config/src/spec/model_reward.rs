//! Reward models among the rewards of a run.

use crate::Reward;

/// A reward model among the rewards.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelReward {
    /// Its place among all rewards.
    pub index: usize,
    /// Its name in metrics: `model`, `model_2`, and so on.
    pub name: String,
    pub weight: f64,
    /// Its path or name.
    pub model: String,
}

impl ModelReward {
    pub(super) fn of(rewards: &[Reward]) -> Vec<ModelReward> {
        let models = rewards.iter().enumerate().filter(|(_, reward)| reward.is_model());
        let named = models.enumerate().map(|(nth, (index, reward))| ModelReward {
            index,
            name: if nth == 0 { "model".to_string() } else { format!("model_{}", nth + 1) },
            weight: reward.weight,
            model: reward.model.clone().unwrap_or_default(),
        });
        named.collect()
    }
}
