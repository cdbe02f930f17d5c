//! The evaluations of a run: their number, and the time of each.

use crate::cost;
use crate::duration::duration;
use crate::facts::Facts;
use crate::shape::RunShape;
use crate::work::work;
use plimsoll_config::RunSpec;
use plimsoll_devices::Rates;
use serde::Serialize;

/// Evaluations before the first step, after the last, and between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Evaluations {
    pub count: u32,
    /// Sequences that one evaluation samples; none if the number of held-out rows is unknown.
    pub sequences: Option<u64>,
    /// Predicted seconds of one evaluation, with every response at full length.
    pub each_s: f64,
}

impl Evaluations {
    /// Returns the evaluations of a training run, one rank of which has these rates.
    pub(crate) fn of(run: &RunSpec, facts: &Facts, shape: &RunShape, rates: &Rates) -> Evaluations {
        let prompts = facts.eval_prompts;
        // A supervised run without a reward scores pairs, which costs less than a step.
        let samples_any = run.has_rewards() || run.environment().is_some();
        if run.eval_sets.is_empty() || prompts == 0 || !samples_any {
            return Evaluations::default();
        }
        let between = run.eval.every.map_or(0, |every| run.train().steps.saturating_sub(1) / every.max(1));
        let count = 2 + between;
        if prompts == usize::MAX {
            return Evaluations { count, sequences: None, each_s: 0.0 };
        }
        let (sets, samples) = (run.eval_sets.len().max(1) as f64, f64::from(run.eval.samples.max(1)));
        let one = work(run, facts).of_evaluation(
            sets * prompts as f64,
            samples,
            f64::from(run.rollout.max_new_tokens),
        );
        let each_s = cost::sampling_s(&one, shape, rates);
        Evaluations { count, sequences: Some((sets * prompts as f64 * samples) as u64), each_s }
    }

    pub(crate) fn all_s(&self) -> f64 {
        f64::from(self.count) * self.each_s
    }

    /// Formats them to follow the steps: ` and 12 evaluations of 8.3 s`.
    pub(crate) fn words(&self) -> String {
        match (self.count, self.sequences) {
            (0, _) => String::new(),
            (count, None) => format!(" without {count} evaluations, whose rows are not counted here"),
            (count, Some(sequences)) => {
                format!(" and {count} evaluations of {sequences} responses ({} each)", duration(self.each_s))
            }
        }
    }
}
