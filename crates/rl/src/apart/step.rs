//! A step of a rank that only samples or only trains.

use super::handed::{Drawn, Handed, hand_over};
use super::place::Apart;
use super::weights;
use crate::context::StepContext;
use crate::methods::policy::{StepReport, train_next};
use crate::roles::Trainer;
use crate::rollout::ahead::{self, AheadReport, take};
use crate::rollout::arrivals::Flow;
use crate::rollout::gather::Gathered;
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
    let of = (step, trainer.updates());
    let mut gathered = Gathered::default();
    cx.buffer.ahead.begin();
    let mut flow = cx.run.arrives_midway().then(|| Flow::begin(cx, step));
    // What the step cannot begin without, or earlier steps would have drawn, had there been any.
    let end = step.saturating_add(cx.run.rollout.ahead).min(cx.run.train.steps + 1);
    let lacking = step + cx.buffer.ahead.num_waiting()..if flow.is_some() { step + 1 } else { end };
    for of_step in lacking {
        let own = match (apart.trains(), &mut flow) {
            (true, _) => Ok(Handed::default()),
            (false, Some(flow)) => first(trainer, cx, with, flow),
            (false, None) => draw(trainer, cx, with, (step, of_step)),
        };
        let there = cx.buffer.ahead.num_there();
        say_whom(cx, apart, (step, of_step), there);
        hand_over(trainer, with, cx, own, of, &mut gathered)?;
    }
    let (made, own) = match (apart.trains(), flow) {
        (true, _) => {
            let made = train(trainer, cx, with, step, &mut gathered);
            // Weights may arrive from here on.
            all.post(u64::from(step));
            Handed::of_training(trainer, made)
        }
        (false, Some(flow)) => (Ok(StepReport::default()), go_on(trainer, cx, with, flow, step)),
        (false, None) => (Ok(StepReport::default()), {
            let of_step = step.saturating_add(cx.run.rollout.ahead);
            match of_step <= cx.run.train.steps {
                true => draw(trainer, cx, with, (step, of_step)),
                false => Ok(Handed::default()),
            }
        }),
    };
    // Ranks that train have emptied a place, and those that sample have filled it.
    let there = cx.buffer.ahead.num_there();
    say_whom(cx, apart, (step, step + there), there.saturating_sub(u32::from(apart.trains())));
    let handed = hand_over(trainer, with, cx, own, of, &mut gathered);
    let mut report = made?;
    let trained = handed?.expect("the first rank trains");
    weights::copy(trainer, all, apart, &trained.updates)?;
    if !apart.trains() {
        (report.reward, report.vitals) = (trained.reward, trained.vitals);
    }
    cx.buffer.carried.commit();
    cx.buffer.ahead.commit();
    let waiting = cx.buffer.ahead.num_waiting();
    gathered.ahead.iter_mut().for_each(|report| report.waiting = waiting);
    report.add_rollout(gathered, cx.run.rollout.group_size as usize);
    Ok(report)
}

/// Says what this rank needs before it can go on, the rollout of a step or the weights of this one, and how many
/// places of the queue are full.
fn say_whom(cx: &mut StepContext<'_>, apart: &Apart, (step, of_step): (u32, u32), full: u32) {
    let what = match apart.trains() {
        true => ("rollout", of_step),
        false => ("weights", step),
    };
    (cx.waits)(whom(apart, what, (full, cx.run.rollout.ahead)));
}

/// Returns what this rank waits for once it has ended a step: the others' end of it.
pub(crate) fn whom_at_end(apart: &Apart, step: u32, queue: (u32, u32)) -> String {
    whom(apart, ("end", step), queue)
}

fn whom(apart: &Apart, (what, step): (&str, u32), (full, places): (u32, u32)) -> String {
    let from = if apart.trains() { apart.first_sampler() } else { 0 };
    format!("the {what} of step {step} from rank {from} (queue `rollouts`, {full} of {places} places full)")
}

/// Calls `body` with the ranks that do the same as this one.
fn with_own<'a, T>(
    trainer: &mut Trainer<'a>,
    (all, apart): (&'a Group, &'a Apart),
    body: impl FnOnce(&mut Trainer<'a>) -> T,
) -> T {
    trainer.group = apart.own();
    let done = body(trainer);
    trainer.group = all;
    done
}

/// Returns what this rank hands over of what the ranks that sample have drawn: all of them have all of it.
fn spoken((all, apart): (&Group, &Apart), drawn: Drawn) -> Handed {
    let speaks = all.rank() == apart.first_sampler();
    Handed { drawn: speaks.then_some(drawn), ..Handed::default() }
}

/// Draws and grades in `step` the samples of a step, with the ranks that sample.
fn draw<'a>(
    trainer: &mut Trainer<'a>,
    cx: &mut StepContext<'_>,
    with: (&'a Group, &'a Apart),
    steps: (u32, u32),
) -> Result<Handed> {
    let mut gathered = Gathered::default();
    let rollout = with_own(trainer, with, |trainer| ahead::draw(trainer, cx, steps, &mut gathered))?;
    Ok(spoken(with, Drawn::new(cx.cursor, vec![rollout], (Vec::new(), None), gathered)))
}

/// Finishes the rollout that the step trains on.
fn first<'a>(
    trainer: &mut Trainer<'a>,
    cx: &mut StepContext<'_>,
    with: (&'a Group, &'a Apart),
    flow: &mut Flow,
) -> Result<Handed> {
    with_own(trainer, with, |trainer| flow.finish(trainer, cx))?;
    let (rollouts, gathered) = (std::mem::take(&mut flow.rollouts), std::mem::take(&mut flow.gathered));
    Ok(spoken(with, Drawn::new(cx.cursor, rollouts, (Vec::new(), None), gathered)))
}

/// Draws until the weights that the step makes arrive: at the tick that the run's schedule has, or as soon as they are
/// there.
fn go_on<'a>(
    trainer: &mut Trainer<'a>,
    cx: &mut StepContext<'_>,
    with: (&'a Group, &'a Apart),
    mut flow: Flow,
    step: u32,
) -> Result<Handed> {
    let (all, _) = with;
    let has_come = || all.posted(0) >= u64::from(step);
    let written = cx.buffer.ahead.schedule.as_ref().map(|schedule| schedule.at(step));
    let arrival = with_own(trainer, with, |trainer| match written {
        Some(arrival) => flow.to(trainer, cx, arrival).map(|()| arrival),
        None => flow.until(trainer, cx, &has_come),
    })?;
    let Flow { groups, rollouts, gathered, .. } = flow;
    Ok(spoken(with, Drawn::new(cx.cursor, rollouts, (groups, Some(arrival)), gathered)))
}

/// Trains on the samples that wait for `step`, with the ranks that train.
fn train<'a>(
    trainer: &mut Trainer<'a>,
    cx: &mut StepContext<'_>,
    with: (&'a Group, &'a Apart),
    step: u32,
    gathered: &mut Gathered,
) -> Result<StepReport> {
    let ages = take(trainer, cx.buffer, trainer.updates());
    gathered.ahead = Some(AheadReport { ages, waiting: 0 });
    with_own(trainer, with, |trainer| train_next(trainer, cx, step))
}
