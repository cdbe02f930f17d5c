//! What a step of a method that samples reports.

use super::actor::ActorReport;
use super::batch::Batch;
use super::metrics;
use crate::context::StepContext;
use crate::supply::gathered::Gathered;
use crate::supply::rollout::StepSamples;
use crate::teachers::ServerReport;
use plimsoll_infer::model_reward;
use plimsoll_run::{metrics::Metrics, vitals::Vitals};

#[derive(Debug, Default)]
pub struct StepReport {
    /// Every metric of a part of the step, by name.
    pub metrics: Metrics,
    /// Mean reward before shaping; none if no sample has a score.
    pub reward: Option<f64>,
    /// Mean reverse KL of the student from its teacher before the update; none without a teacher.
    pub reverse_kl: Option<f64>,
    pub vitals: Vitals,
    pub sampled_tokens: usize,
    pub update_rows: u64,
    /// Largest difference between the trainer's log-probability before the weights changed and l_old, which is the
    /// rollout's unless another policy version sampled.
    pub logprob_mismatch_max: f64,
    pub seconds: StepSeconds,
    /// Operations counted from the work's definition: one forward pass for sampled tokens, three for trained ones.
    pub flops: f64,
    /// Those of the rollout, and its passes.
    pub rollout_flops: f64,
    pub rollout_passes: u64,
    /// The first fault of an episode or of a teacher's server, in one line.
    pub fault: Option<String>,
    /// The report of a teacher's server, if one was asked.
    pub(crate) teacher: Option<ServerReport>,
    /// The samples that the step trained on; none on a rank that only samples.
    pub samples: Option<StepSamples>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct StepSeconds {
    pub rollout: f64,
    /// Grading that was not finished when the rollout ended.
    pub reward: f64,
    pub update: f64,
}

impl StepReport {
    pub(crate) fn add(&mut self, name: &str, value: f64) {
        self.metrics.insert(name.to_string(), value);
    }

    pub(crate) fn add_actor(&mut self, actor: &ActorReport) {
        self.update_rows = actor.rows;
        self.logprob_mismatch_max = actor.mismatch_max;
        self.metrics.extend(metrics::of_actor(actor, self.seconds.update));
    }

    pub(crate) fn add_samples(&mut self, cx: &StepContext<'_>, batch: &Batch<'_>, flops: f64) {
        self.flops += flops;
        let count = batch.which.len() as f64;
        let drawn = |s: usize| batch.samples.turns(s).iter().map(|turn| turn.tokens().len()).sum::<usize>();
        self.add("completions/mean_length", batch.which.clone().map(drawn).sum::<usize>() as f64 / count);
        self.add("completions/clipped_ratio", batch.cut().count() as f64 / count);
        self.add("rollout/policy_lag", f64::from(batch.lag));
        let names = model_reward::names(cx.rewards, &cx.run.model_rewards);
        let scored = batch.groups.iter().flat_map(|group| &group.scored);
        self.metrics.extend(metrics::of_reward_parts(&names, scored));
    }

    /// Adds the metrics of a rollout. Last, so that nothing that a reward logs hides its own failures.
    pub(crate) fn add_rollout(&mut self, gathered: Gathered, group_size: usize) {
        let asked = self.teacher.take();
        let taught = asked.as_ref().map_or(0.0, |asked| asked.fault_share);
        self.vitals.fault_share = gathered.fault_share(group_size).max(taught);
        if gathered.sampled > 0 || asked.is_some() {
            self.add("reward/fault_share", self.vitals.fault_share);
        }
        self.sampled_tokens = gathered.tokens;
        self.flops += gathered.flops;
        (self.rollout_flops, self.rollout_passes) = (gathered.flops, gathered.stats.passes);
        (self.seconds.rollout, self.seconds.reward) = (gathered.rollout_s, gathered.reward_s);
        metrics::add_rollout(&mut self.metrics, &gathered);
        self.fault = gathered.episodes.and_then(|episodes| episodes.fault);
        if let Some(asked) = asked {
            self.metrics.extend(metrics::of_tally("teacher", &asked.tally));
            self.fault = self.fault.take().or(asked.fault);
        }
    }
}
