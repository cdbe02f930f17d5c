//! `[[reward]] kind = "model"`: which of its keys are required, and where a reward model is allowed.

use super::{limits::contradiction, provenance::Provenance, sections::Reward};
use plimsoll_base::{Error, Result};

const MODEL: &str = "model";

impl Reward {
    /// True if a reward model within the run scores.
    pub fn is_model(&self) -> bool {
        self.kind == MODEL
    }
}

pub(super) fn check(rewards: &[Reward], at: &Provenance) -> Result<()> {
    let mut first = None;
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
            Some(_) if first.replace(index).is_some() => {
                return Err(super::not_built::error(
                    at,
                    &key,
                    "a second reward model",
                    "one reward model a run",
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Refuses reward models where nothing is trained.
pub(super) fn refuse(rewards: &[Reward], at: &Provenance) -> Result<()> {
    let Some(index) = rewards.iter().position(Reward::is_model) else { return Ok(()) };
    let error: Error = super::not_built::error(
        at,
        &format!("reward.{index}.kind"),
        "a reward model in `eval`",
        "every other reward",
    );
    Err(error.hint("a training run evaluates with it: its events have the scores"))
}
