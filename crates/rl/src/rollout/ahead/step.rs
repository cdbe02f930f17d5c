//! The rollout of a step that draws ahead: what a later step trains on is drawn and graded, and the step takes what
//! waits for it.

use super::queue::Rollout;
use super::report::AheadReport;
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
        gathered.add(gather::gather(trainer, cx, of_step)?);
        let rollout = Rollout {
            of: BufferState { step, policy_version: version, groups: 0 },
            samples: copied(trainer.step_samples(), cx.run.rollout.max_new_tokens as usize),
            groups: cx.buffer.take_groups(),
        };
        cx.buffer.ahead.push(rollout);
    }
    let drew = take(trainer, cx.buffer, version);
    gathered.ahead = Some(AheadReport { staleness: version - drew, waiting: last - step });
    Ok(gathered)
}

/// Copies the samples of the step to the trainer, and their groups to `buffer`. Returns the version that drew them.
pub(crate) fn take(trainer: &mut Trainer<'_>, buffer: &mut RolloutBuffer, version: u64) -> u64 {
    let ahead = std::mem::take(&mut buffer.ahead);
    let Rollout { of, groups, samples } = ahead.first();
    let to = trainer.step_samples_mut();
    to.clear();
    (0..samples.len()).for_each(|s| to.push_response(samples.ids(s), samples.logprobs(s), samples.finish(s)));
    buffer.begin(of.step, of.policy_version);
    groups.iter().for_each(|group| buffer.push(group.clone()));
    if of.policy_version < version {
        buffer.set_stale((0..samples.len()).map(|s| samples.ids(s).len()).collect());
    }
    let drew = of.policy_version;
    buffer.ahead = ahead;
    drew
}

/// Returns a copy of responses of at most `tokens` tokens.
fn copied(samples: &Samples, tokens: usize) -> Samples {
    let mut copy = Samples::with_capacity(samples.len(), tokens);
    copy.clear();
    (0..samples.len())
        .for_each(|s| copy.push_response(samples.ids(s), samples.logprobs(s), samples.finish(s)));
    copy
}
