//! The metrics of a step of an environment policy.

use super::{gather::Ended, learner::LearnReport};
use plimsoll_collect::Stats;
use plimsoll_run::metrics::Metrics;

#[derive(Clone, Debug, Default)]
pub struct StepReport {
    pub frames: usize,
    pub learn: LearnReport,
    pub ended: Ended,
    /// Mean return of the last 100 episodes.
    pub recent_return: Option<f64>,
    pub learning_rate: f64,
    /// Seconds of rollout, of values and advantages, and of updates.
    pub seconds: [f64; 3],
}

/// Returns all metrics by name. `before` and `now`: the collector's counts before and after the rollout.
pub(crate) fn of_step(report: &StepReport, before: &Stats, now: &Stats, num_frames: u64) -> Metrics {
    let LearnReport { policy, value, entropy, .. } = &report.learn;
    let updates = f64::from(report.learn.updates.max(1));
    let [rollout, score, update] = report.seconds;
    let frames = report.frames as f64;
    let each = |a: f64, b: f64| (b - a) / frames.max(1.0) * 1e6;
    let mut metrics: Metrics = [
        ("num_frames", num_frames as f64),
        ("episode/count", report.ended.count as f64),
        ("entropy", entropy.mean_entropy()),
        ("kl_to_rollout", policy.mean_kl_to_old()),
        ("clip_ratio/region_mean", policy.clip_ratio()),
        ("clip_ratio/low_mean", policy.clip_ratio_low()),
        ("clip_ratio/high_mean", policy.clip_ratio_high()),
        ("loss/policy", policy.loss / updates),
        ("loss/value", value.loss / updates),
        ("value/explained_variance", value.explained_variance()),
        ("value/clip_ratio", value.clip_ratio()),
        ("grad_norm", report.learn.grad_norm),
        ("learning_rate", report.learning_rate),
        ("rollout/logprob_mismatch_max", report.learn.mismatch),
        ("time/rollout", rollout),
        ("time/score", score),
        ("time/update", update),
        ("frames_per_second/rollout", frames / rollout.max(1e-9)),
        ("frames_per_second", frames / (rollout + score + update).max(1e-9)),
        ("collect/env_us", each(before.env_seconds, now.env_seconds)),
        ("collect/policy_us", each(before.policy_seconds, now.policy_seconds)),
        ("collect/restarts", now.counters.restarts as f64),
        ("collect/exceptions", now.counters.exceptions as f64),
        ("collect/timeouts", now.counters.timeouts as f64),
        ("collect/over_budget", now.counters.over_budget as f64),
        ("collect/frames_aborted", now.counters.frames_aborted as f64),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_string(), value))
    .collect();
    if let Some(recent) = report.recent_return {
        metrics.insert("episode/return_mean_100".into(), recent);
    }
    if report.ended.count > 0 {
        let count = report.ended.count as f64;
        metrics.insert("episode/return_mean".into(), report.ended.returns / count);
        metrics.insert("episode/length_mean".into(), report.ended.frames as f64 / count);
    }
    metrics
}
