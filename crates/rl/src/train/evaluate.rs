//! The evaluations of a language-model run: each held-out set by its name, sampled or over pairs.

use super::run::LanguageRun;
use crate::methods::PairMethod;
use plimsoll_base::Result;
use plimsoll_infer::eval::{EvalHow, Evaluated, evaluate};
use plimsoll_infer::sampler::sampling;
use plimsoll_run::events::{EvalResult, Event};
use plimsoll_run::lead::Lead;
use plimsoll_run::progress::Progress;
use plimsoll_run::report::eval_samples_name;
use plimsoll_run::scores::{EvalReport, PairScore, mean_over_sets, mean_where_measured, metric_value};
use plimsoll_run::status::Doing;

impl LanguageRun<'_> {
    /// Scores each held-out set, if there are any.
    pub(super) fn evaluate_sets(
        &mut self,
        lead: &mut Lead<'_, '_, '_, '_>,
        step: u32,
    ) -> Result<Vec<EvalReport>> {
        let mut reports = Vec::with_capacity(self.session.eval.len());
        for index in 0..self.session.eval.len() {
            let report = self.evaluate_set(lead, index, step)?;
            lead.say(&Event::Eval(EvalResult {
                step,
                set: self.session.eval[index].name.clone(),
                score: report.score,
                pass_at_k: report.pass_at_k.clone(),
                pairs: report.pairs,
                num_samples: report.num_samples,
                num_empty: report.num_empty,
                num_cut: report.num_cut,
                seconds: report.seconds,
            }))?;
            reports.push(report);
        }
        if !reports.is_empty() {
            let progress = &mut lead.progress;
            record_pairs(progress, step, self.run.train().steps, &reports);
            progress.last_metric =
                self.run.training().metric.and_then(|metric| metric_value(metric, &reports));
            progress.last_eval = mean_where_measured(reports.iter().map(|report| report.score));
            progress.last_eval_step = Some(step);
        }
        Ok(reports)
    }

    fn evaluate_set(
        &mut self,
        lead: &mut Lead<'_, '_, '_, '_>,
        index: usize,
        step: u32,
    ) -> Result<EvalReport> {
        let pairs = self.evaluate_pairs(lead, index, step)?;
        if let (Some(found), true) = (pairs, !self.run.has_rewards()) {
            // Over pairs alone the score is their accuracy.
            return Ok(EvalReport { score: Some(found.accuracy), pairs, ..EvalReport::default() });
        }
        lead.part(Doing::Eval, step);
        let mut how = sampling(&self.run.rollout, self.run.seed);
        how.temperature = self.run.eval.temperature as f32;
        let how = EvalHow {
            text: &self.session.text,
            rollout: &self.run.rollout,
            eos: &self.session.model.eos_token_ids,
            sampling: how,
            samples: self.run.eval.samples.max(1) as usize,
            step,
            answer_column: &self.run.data.answer_column,
            model_rewards: &self.run.model_rewards,
        };
        let count = self.run.eval_episodes();
        let of_episodes = self.player.evaluate(&mut self.trainer, &how, &mut self.rewards, count)?;
        if let Some((report, examples)) = of_episodes {
            lead.dir.write_samples_named(&eval_samples_name(step, None), &examples)?;
            return Ok(report);
        }
        let sets = &self.session.eval;
        let Evaluated { report, examples } =
            evaluate(&mut self.trainer, &how, &mut self.rewards, &sets[index], None)?;
        let name = eval_samples_name(step, (sets.len() > 1).then_some(sets[index].name.as_str()));
        lead.dir.write_samples_named(&name, &examples)?;
        Ok(EvalReport { pairs, ..report })
    }

    /// Scores the held-out pairs of a set; `None` for methods without pairs.
    fn evaluate_pairs(
        &mut self,
        lead: &mut Lead<'_, '_, '_, '_>,
        set: usize,
        step: u32,
    ) -> Result<Option<PairScore>> {
        if !self.run.learns_from_judged() {
            return Ok(None);
        }
        lead.part(Doing::Update, step);
        let items = &self.session.eval[set].items;
        (PairMethod::of(self.run.method()).score)(&mut self.trainer, self.run, items).map(Some)
    }
}

/// Records accuracy and margin before the first step and after the last, the mean over the sets.
fn record_pairs(progress: &mut Progress, step: u32, steps: u32, reports: &[EvalReport]) {
    let scores: Vec<PairScore> = reports.iter().filter_map(|report| report.pairs).collect();
    let mean =
        |of: fn(&PairScore) -> f64| (!scores.is_empty()).then(|| mean_over_sets(scores.iter().map(of)));
    let (accuracy, margin) = (mean(|pairs| pairs.accuracy), mean(|pairs| pairs.margin));
    if step == 0 {
        (progress.pair_accuracy_before, progress.pair_margin_before) = (accuracy, margin);
    }
    if step == steps {
        (progress.pair_accuracy_after, progress.pair_margin_after) = (accuracy, margin);
    }
}
