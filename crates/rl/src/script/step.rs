//! A step as a script makes it: its requests are served until one ends the step, and what they did is its report.

use super::fault::{Fault, Served, bad_request, out_of_order};
use super::peer::Script;
use super::verbs::{StepHow, Verb};
use crate::context::StepContext;
use crate::methods::actor::ActorReport;
use crate::methods::batch::Batch;
use crate::methods::metrics;
use crate::methods::report::StepReport;
use crate::roles::{Trainer, UpdateStats};
use crate::supply::gathered::Gathered;
use crate::supply::rollout::StepSamples;
use plimsoll_algo::shaping::{GroupShaping, Shaping, shape_rewards};
use plimsoll_base::Result;
use plimsoll_plan::RoleName;
use plimsoll_run::{metrics::Metrics, status::Doing, vitals::Vitals};
use serde_json::json;
use std::time::Instant;

/// Most numbers that a script adds to those of a step, and the longest name of one.
const METRICS_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 100;

/// What a step has done so far.
pub(super) struct ScriptStep {
    pub step: u32,
    pub gathered: Gathered,
    pub actor: ActorReport,
    /// The gradients since the last update, if there are any.
    pub pending: Option<UpdateStats>,
    /// The newest samples that were graded.
    pub samples: Option<StepSamples>,
    /// Trained tokens of all requests, and the largest magnitude of an advantage.
    pub learned: f64,
    pub advantage_max: Option<f32>,
    pub score_s: f64,
    pub update_s: f64,
    pub flops: f64,
}

impl Script {
    /// Makes step `n`: serves the script until it ends the step.
    ///
    /// Errors: `script-ended`, `script-bad-frame`; those of sampling and of the rewards.
    pub(crate) fn step(
        &mut self,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        n: u32,
    ) -> Result<StepReport> {
        let mut made = ScriptStep {
            step: n,
            gathered: Gathered::default(),
            actor: ActorReport::default(),
            pending: None,
            samples: None,
            learned: 0.0,
            advantage_max: None,
            score_s: 0.0,
            update_s: 0.0,
            flops: 0.0,
        };
        loop {
            match self.serve(&mut made, trainer, cx) {
                Ok(None) => {}
                Ok(Some(how)) => {
                    self.keep();
                    return report(made, trainer, cx, how);
                }
                Err(Fault::OfRequest(error)) => self.link.refuse(&error)?,
                Err(Fault::OfRun(error)) => return Err(error),
            }
        }
    }

    /// Serves a request. Returns how the step ends, if it does.
    fn serve(
        &mut self,
        made: &mut ScriptStep,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
    ) -> Served<Option<StepHow>> {
        match self.next()? {
            Verb::Prompts { count } => self.prompts(cx, count)?,
            Verb::Sample(how) => self.sample(made, trainer, cx, &how)?,
            Verb::Score(how) => self.score(made, trainer, cx, &how)?,
            Verb::Learn(how) => self.learn(made, trainer, cx, &how)?,
            Verb::Drop {} => {
                made.pending = None;
                self.link.answer(json!({}), &[])?;
            }
            Verb::Step(how) => {
                check(&how)?;
                self.update(made, trainer, cx, &how)?;
                if !how.more {
                    return Ok(Some(how));
                }
                let of = &made.actor;
                let numbers = json!({ "grad_norm": of.update.grad_norm, "learning_rate": of.learning_rate });
                self.link.answer(json!({ "metrics": numbers }), &[])?;
            }
            Verb::Save {} | Verb::Close { .. } => {
                let hint = "end the step first: step(), or step(update=False)";
                return Err(out_of_order("a step is under way, and a checkpoint lies between two", hint));
            }
            Verb::Begin {} => return Err(out_of_order("the run has begun", "begin it once")),
            Verb::Gradients { .. } | Verb::Abandon {} => {
                return Err(out_of_order("no gradients were asked for", "answer questions alone"));
            }
        }
        Ok(None)
    }

    /// Applies the gradients, if the request is for an update.
    fn update(
        &mut self,
        made: &mut ScriptStep,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        how: &StepHow,
    ) -> Served<()> {
        if !how.update {
            return match made.pending {
                Some(_) => Err(out_of_order(
                    "gradients wait for an update",
                    "step() applies them, drop() forgets them",
                )),
                None => Ok(()),
            };
        }
        if made.pending.is_none() {
            let hint = "call forward_backward first; step(update=False) ends a step that learns nothing";
            return Err(out_of_order("there are no gradients to apply", hint));
        }
        let mut options = cx.run.train().update_options(made.step, cx.run.seed);
        if let Some(lr) = how.lr {
            if options.muon.is_some() {
                return Err(bad_request("lr: Muon has rates of its own", "leave out lr"));
            }
            options.lr = lr as f32;
        }
        let started = Instant::now();
        let stats = made.pending.take().expect("it was just there");
        let stats = trainer.apply(RoleName::Actor, stats, options).map_err(Fault::of_pass)?;
        made.update_s += started.elapsed().as_secs_f64();
        made.actor.learning_rate = f64::from(options.lr);
        made.actor.count(stats);
        Ok(())
    }
}

impl ScriptStep {
    /// Refuses what would reuse the memory of gradients that wait.
    pub(super) fn no_gradients_wait(&self, what: &str) -> Served<()> {
        match self.pending {
            Some(_) => Err(out_of_order(
                format!("{what}: gradients wait for an update, and {what} uses their memory"),
                "step(more=True) applies them within the step; sample and score before forward_backward",
            )),
            None => Ok(()),
        }
    }
}

/// Requires finite numbers with names of bounded length.
fn check(how: &StepHow) -> Served<()> {
    if how.metrics.len() > METRICS_MAX || how.metrics.keys().any(|name| name.len() > NAME_BYTES_MAX) {
        let what = format!("metrics: at most {METRICS_MAX}, with names of {NAME_BYTES_MAX} bytes");
        return Err(bad_request(what, "keep fewer of them"));
    }
    let numbers = how.metrics.iter().map(|(name, value)| (name.as_str(), *value));
    let own = [("lr", how.lr), ("reward", how.reward)].map(|(name, value)| (name, value.unwrap_or(0.0)));
    match numbers.chain(own).find(|(_, value)| !value.is_finite()) {
        Some((name, value)) => Err(bad_request(format!("{name} is {value}"), "give a finite number")),
        None if how.lr.is_some_and(|lr| lr < 0.0) => Err(bad_request("lr is negative", "give 0 or more")),
        None => Ok(()),
    }
}

/// Returns what a step reports: the numbers of a run's own steps, in their places, and the script's.
fn report(
    made: ScriptStep,
    trainer: &Trainer<'_>,
    cx: &mut StepContext<'_>,
    how: StepHow,
) -> Result<StepReport> {
    let mut report =
        StepReport { metrics: how.metrics.into_iter().collect::<Metrics>(), ..Default::default() };
    report.add("time/score", made.score_s);
    let rewards = rewards_of(&made, cx)?;
    let mut scored = None;
    if let Some((rewards, count)) = rewards {
        let given = count - rewards.num_left_out;
        report.reward = (given > 0).then_some(rewards.reward);
        report.metrics.extend(metrics::of_rewards(&rewards, given > 0));
        scored = Some([count, given]);
    }
    report.reward = how.reward.or(report.reward);
    report.vitals = Vitals {
        scored,
        left_out: false,
        advantage_max: made.advantage_max,
        reward: report.reward,
        loss: (made.learned > 0.0).then_some(made.actor.policy.loss),
        grad_norm: (made.actor.rows > 0).then_some(made.actor.update.grad_norm),
        ..Vitals::default()
    };
    report.seconds.update = made.update_s;
    report.add_actor(&made.actor);
    match &made.samples {
        Some(samples) => report.add_samples(cx, &Batch::new(cx.run, samples, made.step), made.flops),
        None => report.flops += made.flops,
    }
    report.add_rollout(made.gathered, cx.run.rollout.group_size as usize);
    // Those that are kept for people are by groups of the run file's size.
    let size = cx.run.rollout.group_size as usize;
    report.samples = made.samples.filter(|of| of.groups().iter().all(|group| group.scored.len() == size));
    debug_assert!(trainer.group.is_alone(), "a script leads one rank");
    Ok(report)
}

/// Returns the numbers of the newest rewards, and how many samples they are of.
fn rewards_of(
    made: &ScriptStep,
    cx: &StepContext<'_>,
) -> Result<Option<(plimsoll_algo::shaping::RewardMetrics, usize)>> {
    let Some(samples) = &made.samples else { return Ok(None) };
    let totals: Vec<Option<f32>> =
        samples.groups().iter().flat_map(|group| &group.scored).map(|scored| scored.total).collect();
    let lengths: Vec<usize> = samples.sequences().map(|s| samples.rollout.samples.ids(s).len()).collect();
    let size = samples.groups().first().map_or(1, |group| group.scored.len());
    let how = Shaping { group: GroupShaping::None, ..cx.objective.shaping };
    let mut shaped = vec![0.0; totals.len()];
    let rewards = shape_rewards(&how, &totals, &lengths, size, &mut shaped)?;
    Ok(Some((rewards, totals.len())))
}

/// Begins a part of the step, for the load line and for people.
pub(super) fn begins(cx: &mut StepContext<'_>, doing: Doing) -> Instant {
    (cx.edge)(doing);
    Instant::now()
}
