//! A step of a rank that only samples or only trains.

use super::handed::{Drawn, Handed, hand_over};
use super::place::Apart;
use super::weights;
use crate::context::StepContext;
use crate::methods::policy::{StepReport, train_next};
use crate::roles::Trainer;
use crate::rollout::ahead::{AheadReport, take};
use crate::rollout::gather::{Gathered, gather};
use plimsoll_base::Result;
use plimsoll_infer::responder::Responder;
use plimsoll_ranks::Group;

/// Makes a step: ranks that train use the samples that wait for it, while the others draw those of the step L later.
/// The report of a rank that samples has what the loop decides by.
///
/// Errors: this rank's own; one that all ranks share; `rank-lost` where another rank has one.
pub(crate) fn step<'a>(
    trainer: &mut Trainer<'a>,
    cx: &mut StepContext<'_>,
    with: (&'a Group, &'a Apart),
    step: u32,
) -> Result<StepReport> {
    let (all, apart) = with;
    let (end, steps) = (step.saturating_add(cx.run.rollout.ahead), cx.run.train.steps);
    let of = (step, trainer.updates());
    let mut gathered = Gathered::default();
    cx.buffer.ahead.begin();
    // What earlier steps would have drawn, had there been any.
    for of_step in step + cx.buffer.ahead.num_waiting()..end.min(steps + 1) {
        let own = if apart.trains() { Ok(Handed::default()) } else { draw(trainer, cx, with, of_step) };
        hand_over(trainer, with, cx, own, of, &mut gathered)?;
    }
    let (made, own) = match apart.trains() {
        true => {
            let made = train(trainer, cx, with, step, &mut gathered);
            Handed::of_training(trainer, made)
        }
        false if end <= steps => (Ok(StepReport::default()), draw(trainer, cx, with, end)),
        false => (Ok(StepReport::default()), Ok(Handed::default())),
    };
    let handed = hand_over(trainer, with, cx, own, of, &mut gathered);
    let mut report = made?;
    let trained = handed?.expect("the first rank trains");
    weights::copy(trainer, all, apart, &trained.updates)?;
    if !apart.trains() {
        (report.reward, report.vitals) = (trained.reward, trained.vitals);
    }
    cx.buffer.ahead.commit();
    report.add_rollout(gathered, cx.run.rollout.group_size as usize);
    Ok(report)
}

/// Draws and grades the samples of a step, with the ranks that sample.
fn draw<'a>(
    trainer: &mut Trainer<'a>,
    cx: &mut StepContext<'_>,
    (all, apart): (&'a Group, &'a Apart),
    of_step: u32,
) -> Result<Handed> {
    trainer.group = apart.own();
    let gathered = gather(trainer, cx, of_step);
    trainer.group = Some(all);
    let drawn = Drawn::take(trainer, cx, gathered?);
    // All ranks that sample have all samples.
    let speaks = all.rank() == apart.first_sampler();
    Ok(Handed { drawn: speaks.then_some(drawn), ..Handed::default() })
}

/// Trains on the samples that wait for `step`, with the ranks that train.
fn train<'a>(
    trainer: &mut Trainer<'a>,
    cx: &mut StepContext<'_>,
    (all, apart): (&'a Group, &'a Apart),
    step: u32,
    gathered: &mut Gathered,
) -> Result<StepReport> {
    let version = trainer.updates();
    let staleness = version - take(trainer, cx.buffer, version);
    let last = step.saturating_add(cx.run.rollout.ahead).min(cx.run.train.steps);
    gathered.ahead = Some(AheadReport { staleness, waiting: last - step });
    trainer.group = apart.own();
    let made = train_next(trainer, cx, step);
    trainer.group = Some(all);
    made
}
