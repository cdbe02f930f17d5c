//! The progress of a run: the numbers of its summary, which checkpoints carry from one process to the next.

use crate::carry::CarryCounts;
use crate::checkpoint::{Best, exact, exact_map, exact_option};
use crate::scores::{EvalReport, mean_pass_at_k, mean_where_measured};
use crate::vitals::DeadSteps;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The numbers of the summary. Checkpoints keep the bits of every number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    pub step: u32,
    pub saved_step: Option<u32>,
    /// Mean over the sets before the first step.
    #[serde(with = "exact_option")]
    pub eval_before: Option<f64>,
    #[serde(with = "exact_option")]
    pub eval_after: Option<f64>,
    /// pass@k before the first step, by k; empty without an evaluation.
    #[serde(with = "exact_map", default)]
    pub pass_at_k_before: BTreeMap<u32, f64>,
    #[serde(with = "exact_map", default)]
    pub pass_at_k_after: BTreeMap<u32, f64>,
    #[serde(default)]
    pub sets: BTreeMap<String, SetProgress>,
    #[serde(with = "exact_option", default)]
    pub pair_accuracy_before: Option<f64>,
    #[serde(with = "exact_option", default)]
    pub pair_margin_before: Option<f64>,
    #[serde(with = "exact_option", default)]
    pub pair_accuracy_after: Option<f64>,
    #[serde(with = "exact_option", default)]
    pub pair_margin_after: Option<f64>,
    /// True once the evaluation after the last step is done, or there is none.
    pub evaluated_at_end: bool,
    #[serde(with = "exact_option")]
    pub last_eval: Option<f64>,
    /// The last evaluation's value of the metric that chooses the best checkpoint.
    #[serde(with = "exact_option", default)]
    pub last_metric: Option<f64>,
    pub last_eval_step: Option<u32>,
    pub best: Option<Best>,
    #[serde(with = "exact_option")]
    pub reward_first: Option<f64>,
    #[serde(with = "exact_option")]
    pub reward_last: Option<f64>,
    /// Largest difference between log-probabilities of rollout and trainer.
    #[serde(with = "exact")]
    pub mismatch_max: f64,
    pub rollout_tokens: u64,
    pub update_tokens: u64,
    #[serde(with = "exact")]
    pub rollout_s: f64,
    #[serde(with = "exact")]
    pub update_s: f64,
    /// Floating-point operations, counted from the definition of the work.
    #[serde(with = "exact")]
    pub flops: f64,
    /// Those of rollouts among them, and the passes of these.
    #[serde(with = "exact", default)]
    pub rollout_flops: f64,
    #[serde(default)]
    pub rollout_passes: u64,
    #[serde(with = "exact")]
    pub step_s: f64,
    /// Seconds of this run's earlier processes. Wall clocks are never read: they may go backwards.
    #[serde(with = "exact")]
    pub seconds_before: f64,
    /// Optimizer updates at the end of the last step.
    pub updates: u64,
    #[serde(default)]
    pub dead_steps: DeadSteps,
    /// None without carried groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carry: Option<CarryCounts>,
}

/// One evaluation set before the first step and after the last; pass@k by k.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetProgress {
    #[serde(with = "exact_option")]
    pub before: Option<f64>,
    #[serde(with = "exact_option")]
    pub after: Option<f64>,
    #[serde(with = "exact_map")]
    pub pass_at_k_before: BTreeMap<u32, f64>,
    #[serde(with = "exact_map")]
    pub pass_at_k_after: BTreeMap<u32, f64>,
}

impl Progress {
    /// Records the evaluation before the first step; an empty slice records none.
    pub fn set_before(&mut self, names: &[String], reports: &[EvalReport]) {
        (self.eval_before, self.pass_at_k_before) = means(reports);
        for (name, report) in names.iter().zip(reports) {
            let set = self.sets.entry(name.clone()).or_default();
            (set.before, set.pass_at_k_before) = (report.score, report.pass_at_k.clone());
        }
    }

    pub fn set_after(&mut self, names: &[String], reports: &[EvalReport]) {
        (self.eval_after, self.pass_at_k_after) = means(reports);
        for (name, report) in names.iter().zip(reports) {
            let set = self.sets.entry(name.clone()).or_default();
            (set.after, set.pass_at_k_after) = (report.score, report.pass_at_k.clone());
        }
    }

    /// Returns the sets as in `summary.json`.
    pub fn sets_json(&self) -> Value {
        let one = |(name, set): (&String, &SetProgress)| {
            let set = json!({
                "before": set.before, "after": set.after,
                "pass_at_k_before": set.pass_at_k_before, "pass_at_k_after": set.pass_at_k_after,
            });
            (name.clone(), set)
        };
        Value::Object(self.sets.iter().map(one).collect())
    }
}

fn means(reports: &[EvalReport]) -> (Option<f64>, BTreeMap<u32, f64>) {
    (mean_where_measured(reports.iter().map(|report| report.score)), mean_pass_at_k(reports))
}
