//! What `async.partial_rollouts` would bring: steps of a run whose responses have given lengths, in ticks and in
//! seconds, with the memory of each number of carried prompts.

mod gain;
mod lengths;
mod render;
mod simulate;

pub use gain::{Gain, Gains};
pub use lengths::{RecordedLengths, ResponseLengths};

use crate::cost::{self, Work};
use crate::facts::Facts;
use crate::planner::Purpose;
use crate::planning::{bare, limits_of_ranks, with_planner};
use crate::work::work;
use plimsoll_base::Result;
use plimsoll_config::{RunSpec, SEQUENCES_PER_STEP_MAX};
use plimsoll_memory::{Limits, Pool};
use simulate::{Simulation, Sizes, Step};

/// A gain below this factor is not worth older samples.
const WORTH: f64 = 1.05;

/// Returns what 0, P/4, P/2, P and 2 P carried prompts bring, and as many as the run file has. `rows`: those of the
/// data, if known.
///
/// Errors: `size-overflow`.
pub fn gains(
    run: &RunSpec,
    facts: &Facts,
    given: &Limits,
    lengths: &ResponseLengths,
    rows: Option<u64>,
) -> Result<Gains> {
    let (prompts, now) = (run.rollout.prompts_per_step, run.partial_rollouts());
    let mut all = vec![0, prompts / 4, prompts / 2, prompts, prompts.saturating_mul(2), now];
    all.sort_unstable();
    all.dedup();
    let refused = |carry: u32| {
        let under_way = u64::from(prompts) + u64::from(carry);
        match rows.filter(|rows| under_way > *rows) {
            Some(rows) => Some(format!("the data has {rows} rows")),
            None if under_way * u64::from(run.rollout.group_size) > SEQUENCES_PER_STEP_MAX => {
                Some(format!("a run has at most {SEQUENCES_PER_STEP_MAX} responses under way"))
            }
            None => None,
        }
    };
    let gain = |&carry: &u32| match refused(carry).filter(|_| carry > 0) {
        Some(why) => Ok(Gain { carry, refused: Some(why), ..Gain::default() }),
        None => gain(run, facts, given, lengths, carry),
    };
    let rows: Vec<Gain> = all.iter().map(gain).collect::<Result<_>>()?;
    let recommended = recommended(&rows);
    let words = render::sentence(&rows, recommended, now);
    Ok(Gains { lengths: lengths.words(), now, rows, recommended, words })
}

/// Plans and simulates the run with `carry` carried prompts.
fn gain(run: &RunSpec, facts: &Facts, given: &Limits, lengths: &ResponseLengths, carry: u32) -> Result<Gain> {
    let mut run = run.clone();
    run.trains.samples_mut().expect("a run that samples").asynchrony.partial_rollouts = carry;
    let rollout = &run.rollout;
    let sizes = Sizes {
        prompts: rollout.prompts_per_step as usize,
        group: rollout.group_size as usize,
        carry: carry as usize,
        new_tokens: run.response_tokens_max(),
        lag_tokens_max: run.stale_tokens_max().filter(|_| carry > 0),
    };
    let steps = Simulation::new(sizes, lengths).steady();
    with_planner(&run, facts, &limits_of_ranks(&run, facts, given), Purpose::Train, |planner| {
        let report = bare(planner, &run)?;
        let work = work(&run, facts);
        let mut gain = Gain {
            carry,
            fits: report.fits,
            host_bytes: report.plan.peak(Pool::Host).peak,
            device_bytes: report.plan.peak(Pool::Device).peak,
            sequences_max: report.resolved.sequences_max,
            ..of_steps(&steps, &work)
        };
        let (shape, rates) = (&report.shape, planner.of_rank);
        let keys = |rows| cost::keys_s(&work, shape, rates, rows);
        let (mut rollout_s, mut recomputed_s) = (0.0, 0.0);
        for step in &steps {
            let begin = keys(work.prompt_tokens * step.joined as f64);
            let all = keys(work.prompt_tokens * (step.joined + step.again.0) as f64 + step.again.1 as f64);
            recomputed_s += (all - begin) / steps.len() as f64;
            rollout_s += (all + cost::stretches_s(&work, shape, rates, &step.stretches)) / steps.len() as f64;
        }
        // All else of a step has as many tokens as are trained.
        let mean = gain.trained_tokens / (work.prompts * work.group);
        let trained = Work { response_tokens: mean, ..work };
        let rest = cost::predict(&trained, shape, rates);
        (gain.predicted_rollout_s, gain.predicted_recomputed_s) = (rollout_s, recomputed_s);
        gain.predicted_step_s = rollout_s + rest.total_s() - rest.rollout_s;
        gain.trained_tokens_per_second = gain.trained_tokens / gain.predicted_step_s;
        Ok(gain)
    })
}

/// Returns what follows from the simulation alone.
fn of_steps(steps: &[Step], work: &Work) -> Gain {
    let sum = |of: fn(&Step) -> u64| steps.iter().map(of).sum::<u64>() as f64;
    let count = steps.len() as f64;
    let mean = |of: &dyn Fn(&Step) -> f64| steps.iter().map(of).sum::<f64>() / count;
    let (trained, ticks) = (sum(|step| step.trained), sum(|step| step.ticks));
    let again = sum(|step| step.again.1) + work.prompt_tokens * sum(|step| step.again.0);
    let new = sum(|step| step.drawn) + work.prompt_tokens * sum(|step| step.joined);
    Gain {
        ticks: ticks / count,
        idle_share: mean(&Step::idle_share),
        tail_share: mean(&|step| step.tail as f64 / step.ticks.max(1) as f64),
        staleness: work.updates * sum(|step| step.ages) / trained,
        stale_share: mean(&|step| step.stale as f64 / step.trained as f64),
        recomputed_share: again / (again + new),
        trained_tokens: trained / count,
        trained_tokens_per_tick: trained / ticks.max(1.0),
        ..Gain::default()
    }
}

/// Returns the least number of carried prompts with nearly the most trained tokens a second of those that fit.
fn recommended(rows: &[Gain]) -> Option<u32> {
    let fitting = || rows.iter().filter(|gain| gain.fits);
    let most = fitting().map(|gain| gain.trained_tokens_per_second).fold(0.0, f64::max);
    fitting().find(|gain| gain.trained_tokens_per_second * WORTH >= most).map(|gain| gain.carry)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
