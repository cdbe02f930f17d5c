//! The rollout of a step that draws ahead: what a later step trains on is drawn and graded, and the step takes what
//! waits for it.

use super::queue::Rollout;
use super::report::{Ages, AheadReport};
use crate::context::StepContext;
use crate::roles::Trainer;
use crate::rollout::buffer::RolloutBuffer;
use crate::rollout::gather::{self, Gathered};
use plimsoll_base::Result;
use plimsoll_infer::responder::Responder;
use plimsoll_rollout::Samples;
use plimsoll_run::checkpoint::BufferState;

/// Fills `cx.buffer` with the samples of `step`, and draws those of the steps up to L later that have none: one, in the
/// first step all. Nothing is drawn that the run would not train.
///
/// Errors: those of drawing.
pub(crate) fn gather(trainer: &mut Trainer<'_>, cx: &mut StepContext<'_>, step: u32) -> Result<Gathered> {
    let last = step.saturating_add(cx.run.rollout.ahead).min(cx.run.train.steps);
    cx.buffer.ahead.begin();
    let (mut gathered, version) = (Gathered::default(), trainer.updates());
    for of_step in step + cx.buffer.ahead.num_waiting()..=last {
        let rollout = draw(trainer, cx, (step, of_step), &mut gathered)?;
        cx.buffer.ahead.push(rollout);
    }
    let ages = take(trainer, cx.buffer, version);
    gathered.ahead = Some(AheadReport { ages, waiting: last - step });
    Ok(gathered)
}

/// Draws and grades in `step` the samples that `of_step` trains on.
///
/// Errors: those of drawing and of the rewards.
pub(crate) fn draw(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    (step, of_step): (u32, u32),
    gathered: &mut Gathered,
) -> Result<Rollout> {
    gathered.add(gather::gather(trainer, cx, of_step)?);
    Ok(Rollout {
        of: BufferState { step, ..cx.buffer.of() },
        samples: copied(trainer.step_samples(), cx.run.rollout.max_new_tokens as usize),
        groups: cx.buffer.take_groups(),
        versions: Vec::new(),
    })
}

/// Copies the samples of the step to the trainer, and their groups to `buffer`. Returns the ages of their tokens.
pub(crate) fn take(trainer: &mut Trainer<'_>, buffer: &mut RolloutBuffer, version: u64) -> Ages {
    let ahead = std::mem::take(&mut buffer.ahead);
    let rollout = ahead.first();
    let Rollout { of, groups, samples, .. } = rollout;
    let to = trainer.step_samples_mut();
    to.clear();
    (0..samples.len()).for_each(|s| to.push_response(samples.ids(s), samples.logprobs(s), samples.finish(s)));
    buffer.begin(of.step, of.policy_version);
    groups.iter().for_each(|group| buffer.push(group.clone()));
    let stale: Vec<usize> = (0..samples.len()).map(|s| rollout.stale(s, version)).collect();
    let ages = Ages {
        tokens: samples.sampled_tokens() as u64,
        stale: stale.iter().sum::<usize>() as u64,
        sum: (0..samples.len()).map(|s| rollout.age(s, version)).sum(),
    };
    buffer.set_stale(stale);
    buffer.ahead = ahead;
    ages
}

/// Returns a copy of responses of at most `tokens` tokens.
pub(crate) fn copied(samples: &Samples, tokens: usize) -> Samples {
    let mut copy = Samples::with_capacity(samples.len(), tokens);
    copy.clear();
    (0..samples.len())
        .for_each(|s| copy.push_response(samples.ids(s), samples.logprobs(s), samples.finish(s)));
    copy
}
