//! A reward model within the run (`[[reward]] kind = "model"`): its weights are next to the actor's, and it scores
//! prompt and response after each rollout, in a separate phase. It is never trained.

use crate::{data::dataset::Item, roles::Trainer};
use plimsoll_base::{Error, Result, slugs};
use plimsoll_config::ModelReward;
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::Samples;
use plimsoll_train::Sequence;

/// Its name in metrics.
const NAME: &str = "model";

/// Returns the names of a run's rewards in metrics, in the order of their scores.
pub fn names<'n>(rewards: &'n Rewards, model: Option<&ModelReward>) -> Vec<&'n str> {
    let mut names = rewards.names();
    if let Some(model) = model {
        names.insert(model.index, NAME);
    }
    names
}

/// Scores the responses of the last rollout, `group` per item, and adds them to the other rewards' scores.
///
/// Errors: `reward-not-finite`; those of the device.
pub fn add(
    model: &ModelReward,
    trainer: &mut Trainer<'_>,
    items: &[Item],
    group: usize,
    scored: &mut [Scored],
) -> Result<()> {
    let samples = std::mem::replace(&mut trainer.samples, Samples::with_capacity(0, 1));
    let sequence =
        |s: usize| Sequence { group: s / group, prompt: &items[s / group].ids, response: samples.ids(s) };
    let sequences: Vec<Sequence<'_>> = (0..samples.len()).map(sequence).collect();
    let scores = trainer.reward_scores(&sequences);
    drop(sequences);
    trainer.samples = samples;
    for (sample, (one, score)) in scored.iter_mut().zip(scores?).enumerate() {
        let weighted = (f64::from(score) * model.weight) as f32;
        if !weighted.is_finite() {
            let message = format!("the reward model gave {score} for sample {sample}");
            return Err(Error::new(slugs::REWARD_NOT_FINITE, message)
                .hint("check its weights, and the weight of the reward"));
        }
        one.parts.insert(model.index, Some(score));
        one.total = Some(one.total.unwrap_or(0.0) + weighted);
    }
    Ok(())
}
