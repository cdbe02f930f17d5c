//! `[[reward]] kind = "model"`: which of its keys are required, and how many there may be.

use super::{limits::contradiction, provenance::Provenance, sections::Reward};
use plimsoll_base::Result;

const MODEL: &str = "model";
/// Reward models of a run at most: each has a role of its own in the plan.
pub const REWARD_MODELS_MAX: usize = 4;

impl Reward {
    /// True if a reward model within the run scores.
    pub fn is_model(&self) -> bool {
        self.kind == MODEL
    }
}

pub(super) fn check(rewards: &[Reward], at: &Provenance) -> Result<()> {
    let mut models = 0;
    for (index, reward) in rewards.iter().enumerate() {
        let key = format!("reward.{index}.model");
        match &reward.model {
            Some(_) if !reward.is_model() => {
                let message = format!("`{key}` is set, but kind = \"{}\" has no model", reward.kind);
                return Err(
                    contradiction(at, &key, &message).hint(format!("remove {key}, or set kind = \"model\""))
                );
            }
            None if reward.is_model() => {
                let origin = at.of(&format!("reward.{index}.kind"));
                return Err(super::de::missing_key(&at.source, origin, &key).hint(
                    "set model to the directory of a reward model, such as RUN_DIR/checkpoints/latest",
                ));
            }
            Some(name) if name.is_empty() => {
                return Err(at
                    .error("bad-value", &key, &format!("`{key}` is empty"))
                    .hint("set it to the directory of a reward model"));
            }
            Some(_) => models += 1,
            None => {}
        }
        if models > REWARD_MODELS_MAX {
            let message = format!("`{key}`: more than {REWARD_MODELS_MAX} reward models");
            return Err(at
                .error("bad-value", &key, &message)
                .hint("score with fewer, or serve one of them and name it with kind = \"http:...\""));
        }
    }
    Ok(())
}
