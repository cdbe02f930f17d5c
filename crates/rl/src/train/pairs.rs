//! The parts of the loop that are for pairs: their step, their evaluation, and what the summary says of them.

use super::Run;
use crate::methods::metrics;
use crate::methods::{dpo, reward_model};
use plimsoll_base::Result;
use plimsoll_config::Method;
use plimsoll_run::scores::EvalReport;
use plimsoll_run::scores::PairScore;
use plimsoll_run::scores::mean_over_sets;
use plimsoll_run::status::Doing;
use serde_json::{Value, json};
use std::time::Instant;

impl<'r: 'scope, 'scope> Run<'r, '_, 'scope, '_> {
    pub(super) fn pair_step(&mut self, n: u32) -> Result<()> {
        let started = Instant::now();
        let rows = self.run.rollout.prompts_per_step as usize;
        let items = self.session.data.batch(&self.session.text, self.cursor.data_position, rows)?;
        self.begin(Doing::Update, n);
        let report = match self.run.method {
            Method::Dpo => dpo::dpo_step(&mut self.trainer, self.run, &items, n)?,
            _ => reward_model::reward_model_step(&mut self.trainer, self.run, &items, n)?,
        };
        self.cursor.data_position += rows as u64;
        self.cursor.next_sample_id += 2 * rows as u64;
        let seconds = started.elapsed().as_secs_f64();
        self.progress.update_tokens += report.update.rows;
        self.progress.update_s += seconds;
        self.step_done(n, seconds, None, Some(report.sums.loss), metrics::of_pairs(&report))
    }

    /// Scores the held-out pairs of a set; `None` for methods without.
    pub(super) fn evaluate_pairs(&mut self, set: usize, step: u32) -> Result<Option<PairScore>> {
        if !self.run.method.has_pairs() {
            return Ok(None);
        }
        self.begin(Doing::Update, step);
        let items = &self.eval_sets[set].items;
        match self.run.method {
            Method::Dpo => dpo::score_pairs(&mut self.trainer, self.run, items).map(Some),
            _ => reward_model::score_pairs(&mut self.trainer, self.run, items).map(Some),
        }
    }

    /// Takes down accuracy and margin before the first step and after the last, the mean over the sets.
    pub(super) fn see_pairs(&mut self, step: u32, reports: &[EvalReport]) {
        let scores: Vec<PairScore> = reports.iter().filter_map(|report| report.pairs).collect();
        let mean =
            |of: fn(&PairScore) -> f64| (!scores.is_empty()).then(|| mean_over_sets(scores.iter().map(of)));
        let (accuracy, margin) = (mean(|pairs| pairs.accuracy), mean(|pairs| pairs.margin));
        let progress = &mut self.progress;
        if step == 0 {
            (progress.pair_accuracy_before, progress.pair_margin_before) = (accuracy, margin);
        }
        if step == self.run.train.steps {
            (progress.pair_accuracy_after, progress.pair_margin_after) = (accuracy, margin);
        }
    }

    pub(super) fn summarize_pairs(&self, summary: &mut Value) {
        let p = &self.progress;
        if let (Some(accuracy), Some(margin)) = (p.pair_accuracy_before, p.pair_margin_before) {
            summary["pairs_before"] = json!({ "accuracy": accuracy, "margin": margin });
        }
        if let (Some(accuracy), Some(margin)) = (p.pair_accuracy_after, p.pair_margin_after) {
            summary["pairs_after"] = json!({ "accuracy": accuracy, "margin": margin });
        }
    }
}
