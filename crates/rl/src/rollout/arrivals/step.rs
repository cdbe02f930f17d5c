//! The rollout of a step that follows a schedule, where ranks take turns.

use super::flow::Flow;
use crate::context::StepContext;
use crate::roles::Trainer;
use crate::rollout::ahead::{AheadReport, take};
use crate::rollout::gather::Gathered;
use plimsoll_base::Result;
use plimsoll_infer::responder::Responder;

/// Draws to where the weights that the step makes arrive, and fills `cx.buffer` with the samples of `step`.
///
/// Errors: those of drawing and of the rewards.
pub(crate) fn gather(trainer: &mut Trainer<'_>, cx: &mut StepContext<'_>, step: u32) -> Result<Gathered> {
    let arrival = cx.buffer.ahead.schedule.as_ref().expect("such a run follows one").at(step);
    cx.buffer.ahead.begin();
    let mut flow = Flow::begin(cx, step);
    flow.to(trainer, cx, arrival)?;
    let Flow { groups, rollouts, mut gathered, .. } = flow;
    rollouts.into_iter().for_each(|rollout| cx.buffer.ahead.push(rollout));
    let ages = take(trainer, cx.buffer, trainer.updates());
    cx.buffer.carried.next = Some(groups);
    let waiting = arrival.rollout - step - 1;
    gathered.ahead = Some(AheadReport { ages, waiting });
    gathered.arrival = Some(arrival);
    Ok(gathered)
}
