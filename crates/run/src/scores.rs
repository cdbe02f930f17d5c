//! What evaluations find: the scores of a set, and means over the sets of a run.

use plimsoll_config::{EvalMetric, EvalNumber};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What an evaluation found.
#[derive(Clone, Debug, Default)]
pub struct EvalReport {
    /// Mean reward.
    pub score: f64,
    /// Mean over prompts of the best sample's reward.
    pub best: f64,
    /// Mean over prompts of pass@k, by k: the powers of two up to the samples a prompt. A response without a score of
    /// the first reward has not succeeded.
    pub pass_at_k: BTreeMap<u32, f64>,
    /// Responses.
    pub num_samples: usize,
    /// Responses without a score.
    pub num_unscored: usize,
    /// Response tokens.
    pub tokens: usize,
    /// Seconds of sampling and grading.
    pub seconds: f64,
    /// What was found over held-out pairs, for methods that learn from them.
    pub pairs: Option<PairScore>,
    /// The share of each prompt's responses that succeeded.
    pub pass_rates: Vec<f32>,
}

/// What an evaluation over held-out pairs found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PairScore {
    /// Share of pairs whose chosen answer is ahead.
    pub accuracy: f64,
    /// Mean of chosen less rejected reward.
    pub margin: f64,
    /// Mean loss.
    pub loss: f64,
    /// Pairs.
    pub num_pairs: usize,
}

/// `pass@1 0.2500, pass@2 0.4000`, for people.
pub fn pass_words(pass_at_k: &BTreeMap<u32, f64>, digits: usize) -> String {
    let words: Vec<String> = pass_at_k.iter().map(|(k, pass)| format!("pass@{k} {pass:.digits$}")).collect();
    words.join(", ")
}

/// Means of each set weigh the same, however many prompts it has.
pub fn mean_over_sets(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let sets = values.len().max(1) as f64;
    values.sum::<f64>() / sets
}

/// The value of `metric`; `reports` has one entry a set.
pub fn metric_value(metric: EvalMetric, reports: &[EvalReport]) -> f64 {
    let one = |report: &EvalReport| match metric.what {
        EvalNumber::Reward => report.score,
        EvalNumber::PassAt(k) => report.pass_at_k.get(&k).copied().unwrap_or(0.0),
    };
    match metric.set {
        Some(set) => one(&reports[set]),
        None => mean_over_sets(reports.iter().map(one)),
    }
}

/// pass@k, the mean over sets, which all have as many samples a prompt.
pub fn mean_pass_at_k(reports: &[EvalReport]) -> BTreeMap<u32, f64> {
    let ks = reports.first().into_iter().flat_map(|report| report.pass_at_k.keys().copied());
    ks.map(|k| (k, mean_over_sets(reports.iter().map(|r| r.pass_at_k.get(&k).copied().unwrap_or(0.0)))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_the_number_of_a_set_or_the_mean_over_sets() {
        let report = |score, pass| EvalReport {
            score,
            pass_at_k: [(1, score), (4, pass)].into(),
            ..EvalReport::default()
        };
        let reports = [report(0.5, 0.75), report(0.25, 1.0)];
        for (set, what, expect) in [
            (None, EvalNumber::Reward, 0.375),
            (None, EvalNumber::PassAt(4), 0.875),
            (Some(0), EvalNumber::Reward, 0.5),
            (Some(1), EvalNumber::PassAt(4), 1.0),
        ] {
            assert_eq!(metric_value(EvalMetric { set, what }, &reports), expect, "{set:?} {what:?}");
        }
    }
}
