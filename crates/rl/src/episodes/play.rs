//! The rollout of a step whose samples are episodes.

use crate::methods::policy::{StepContext, StepReport};
use crate::roles::Trainer;
use crate::rollout::gather::add;
use plimsoll_base::Result;
use plimsoll_reward::Scored;
use plimsoll_rollout::Request;
use std::time::Instant;

/// Plays the episodes that were begun with the request's prompts: what each earned, and no text, which is theirs to keep.
pub fn play(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    request: &Request<'_>,
    report: &mut StepReport,
) -> Result<(Vec<Scored>, Vec<String>)> {
    let started = Instant::now();
    let version = trainer.updates();
    let episodes = cx.episodes.as_mut().expect("the step is one of episodes");
    let stats = trainer.rollout(request, &mut episodes.talk(cx.text, &cx.run.rollout, version)?)?;
    add(&mut report.rollout, &stats);
    report.seconds.rollout += started.elapsed().as_secs_f64();
    report.episodes = Some(episodes.report());
    let outcomes = episodes.outcomes();
    let texts = vec![String::new(); outcomes.len()];
    Ok((outcomes.into_iter().map(|total| Scored { total, parts: Vec::new() }).collect(), texts))
}
