//! Results of evaluations: the scores of one set, and means over the sets of a run.

use plimsoll_config::{EvalMetric, EvalNumber};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub struct EvalReport {
    /// Mean reward of the responses that have one; `None` if none has.
    pub score: Option<f64>,
    /// Mean over prompts of the best sample's reward; `None` if none has one.
    pub best: Option<f64>,
    /// Mean over prompts of pass@k, by k: the powers of two up to the samples per prompt. A response without a score of
    /// the first reward counts as a failure.
    pub pass_at_k: BTreeMap<u32, f64>,
    pub num_samples: usize,
    pub num_unscored: usize,
    pub num_empty: usize,
    /// Responses that the length limit cut.
    pub num_cut: usize,
    pub tokens: usize,
    /// Seconds of sampling and grading.
    pub seconds: f64,
    pub pairs: Option<PairScore>,
    /// Share of responses that succeeded, per prompt.
    pub pass_rates: Vec<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PairScore {
    /// Share of pairs whose chosen answer scores higher.
    pub accuracy: f64,
    pub margin: f64,
    pub loss: f64,
    pub num_pairs: usize,
}

impl EvalReport {
    /// Describes responses without a visible character and cut ones, which may be the same; empty if there are none.
    pub fn fault_words(num_empty: usize, num_cut: usize) -> String {
        let one = |count: usize, what: &str| (count > 0).then(|| format!(", {count} {what}"));
        let words = [one(num_empty, "without a visible character"), one(num_cut, "cut by the length limit")];
        words.into_iter().flatten().collect()
    }
}

/// Formats pass@k: `pass@1 0.2500, pass@2 0.4000`.
pub fn pass_words(pass_at_k: &BTreeMap<u32, f64>, digits: usize) -> String {
    let words: Vec<String> = pass_at_k.iter().map(|(k, pass)| format!("pass@{k} {pass:.digits$}")).collect();
    words.join(", ")
}

/// Returns the mean over sets, each weighted equally whatever its number of prompts.
pub fn mean_over_sets(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let sets = values.len().max(1) as f64;
    values.sum::<f64>() / sets
}

/// Returns the mean over the sets that have a value; `None` if none has.
pub fn mean_where_measured(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let measured: Vec<f64> = values.flatten().collect();
    (!measured.is_empty()).then(|| mean_over_sets(measured.into_iter()))
}

/// Returns the value of `metric`; `reports` has one entry per set. `None` if nothing was measured.
pub fn metric_value(metric: EvalMetric, reports: &[EvalReport]) -> Option<f64> {
    let one = |report: &EvalReport| match metric.what {
        EvalNumber::Reward => report.score,
        EvalNumber::PassAt(k) => Some(report.pass_at_k.get(&k).copied().unwrap_or(0.0)),
    };
    match metric.set {
        Some(set) => one(&reports[set]),
        None => mean_where_measured(reports.iter().map(one)),
    }
}

/// Returns the mean of pass@k over sets, which all have the same number of samples per prompt.
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
            score: Some(score),
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
            assert_eq!(metric_value(EvalMetric { set, what }, &reports), Some(expect), "{set:?} {what:?}");
        }
        let unscored = [EvalReport::default(), report(0.25, 1.0)];
        let reward = |set| metric_value(EvalMetric { set, what: EvalNumber::Reward }, &unscored);
        assert_eq!((reward(Some(0)), reward(None)), (None, Some(0.25)), "a set without a score has no mean");
    }
}
