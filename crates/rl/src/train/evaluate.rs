//! The part of the loop that evaluates: each held-out set by its name, sampled or over pairs.

use super::Run;
use crate::episodes::evaluate_episodes;
use crate::eval::{EvalHow, Evaluated, evaluate};
use crate::roles::sampling;
use crate::rollout::model_reward::ModelReward;
use plimsoll_base::Result;
use plimsoll_config::EvalMetric;
use plimsoll_run::events::{EvalResult, Event};
use plimsoll_run::report::eval_samples_name;
use plimsoll_run::scores::{EvalReport, mean_over_sets, metric_value};
use plimsoll_run::status::Doing;

impl<'r: 'scope, 'scope> Run<'r, '_, 'scope, '_> {
    /// Scores each held-out set; nothing without one.
    pub(super) fn evaluate(&mut self, step: u32) -> Result<Vec<EvalReport>> {
        let mut reports = Vec::with_capacity(self.eval_sets.len());
        for index in 0..self.eval_sets.len() {
            let report = self.evaluate_set(index, step)?;
            let event = Event::Eval(EvalResult {
                step,
                set: self.eval_sets[index].name.clone(),
                score: report.score,
                pass_at_k: report.pass_at_k.clone(),
                pairs: report.pairs,
                num_samples: report.num_samples,
                seconds: report.seconds,
            });
            self.say(&event)?;
            reports.push(report);
        }
        if !reports.is_empty() {
            self.see_pairs(step, &reports);
            self.progress.last_metric = EvalMetric::of(self.run).map(|metric| metric_value(metric, &reports));
            self.progress.last_eval = Some(mean_over_sets(reports.iter().map(|report| report.score)));
            self.progress.last_eval_step = Some(step);
        }
        Ok(reports)
    }

    fn evaluate_set(&mut self, index: usize, step: u32) -> Result<EvalReport> {
        let pairs = self.evaluate_pairs(index, step)?;
        if let (Some(found), true) = (pairs, self.run.reward.is_empty()) {
            // Over pairs alone the score is their accuracy.
            return Ok(EvalReport { score: found.accuracy, pairs, ..EvalReport::default() });
        }
        self.begin(Doing::Eval, step);
        let mut how = sampling(&self.run.rollout, self.run.seed);
        how.temperature = self.run.eval.temperature as f32;
        let how = EvalHow {
            text: &self.session.text,
            rollout: &self.run.rollout,
            eos: &self.session.model.eos_token_ids,
            sampling: how,
            samples: self.run.eval.samples.max(1) as usize,
            step,
            model_reward: ModelReward::of(&self.run.reward),
        };
        if let Some(episodes) = &mut self.episodes {
            let count = self.run.eval_episodes();
            let (report, examples) = evaluate_episodes(&mut self.trainer, &how, episodes, count)?;
            self.dir.write_samples_named(&eval_samples_name(step, None), &examples)?;
            return Ok(report);
        }
        let rewards = self.rewards.as_mut().expect("rewards come back after each step");
        let set = &self.eval_sets[index];
        let Evaluated { report, examples } = evaluate(&mut self.trainer, &how, rewards, set)?;
        let name = eval_samples_name(step, (self.eval_sets.len() > 1).then_some(set.name.as_str()));
        self.dir.write_samples_named(&name, &examples)?;
        Ok(EvalReport { pairs, ..report })
    }
}
