//! Reward models within the run (`[[reward]] kind = "model"`): their weights are next to the actor's, and they score
//! prompt and response after each rollout, one after the other, in a separate phase. They are never trained.

use crate::responder::Responder;
use crate::text::Item;
use plimsoll_base::{Error, Result, slugs};
use plimsoll_config::ModelReward;
use plimsoll_plan::RoleName;
use plimsoll_reward::{Rewards, Scored};
use plimsoll_train::Sequence;
use std::sync::Arc;

/// Returns the names of a run's rewards in metrics, in the order of their scores.
pub fn names<'n>(rewards: &'n Rewards, models: &'n [ModelReward]) -> Vec<&'n str> {
    let mut names = rewards.names();
    for model in models {
        names.insert(model.index, &model.name);
    }
    names
}

/// Scores the responses of the last rollout, `group` per item, and adds them to the other rewards' scores.
///
/// Errors: `reward-not-finite`; those of the device.
pub fn add(
    models: &[ModelReward],
    responder: &mut dyn Responder<'_>,
    items: &[Item],
    group: usize,
    scored: &mut [Scored],
) -> Result<()> {
    if models.is_empty() {
        return Ok(());
    }
    let samples = Arc::clone(&responder.sampler().samples);
    let sequence =
        |s: usize| Sequence { group: s / group, prompt: &items[s / group].ids, response: samples.ids(s) };
    let sequences: Vec<Sequence<'_>> = (0..samples.len()).map(sequence).collect();
    let score = |(role, _): (RoleName, &ModelReward)| responder.reward_scores(role, &sequences);
    let scores: Result<Vec<Vec<f32>>> = RoleName::rewards().zip(models).map(score).collect();
    // In the order of the run file, in which each score has its place.
    for (model, scores) in models.iter().zip(scores?) {
        for (sample, (one, score)) in scored.iter_mut().zip(scores).enumerate() {
            let weighted = (f64::from(score) * model.weight) as f32;
            if !weighted.is_finite() {
                let message = format!("the reward model `{}` gave {score} for sample {sample}", model.name);
                return Err(Error::new(slugs::REWARD_NOT_FINITE, message)
                    .hint("check its weights, and the weight of the reward"));
            }
            one.parts.insert(model.index, Some(score));
            one.add(weighted);
        }
    }
    Ok(())
}
