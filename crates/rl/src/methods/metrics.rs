//! The metrics of the parts of a step.

use crate::roles::UpdateStats;
use crate::{
    methods::actor::ActorReport, methods::critic::CriticReport, methods::pairs::PairReport,
    methods::sft::SftReport, players::RoundReport, supply::gathered::Gathered, supply::group::SampleGroup,
};
use plimsoll_algo::{correction::CorrectionSums, covariance::CovarianceSums, shaping::RewardMetrics};
use plimsoll_reward::{Scored, Tally};
use plimsoll_rollout::Drafted;
use plimsoll_run::metrics::Metrics;

const TURNS_TOLD: usize = 8;

fn named<const N: usize>(rows: [(&str, f64); N]) -> Metrics {
    rows.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

/// Adds the metrics of a rollout, and the counts of its rewards and its environment.
pub(crate) fn add_rollout(metrics: &mut Metrics, gathered: &Gathered) {
    metrics.extend(named([
        ("time/rollout", gathered.rollout_s),
        ("time/reward", gathered.reward_s),
        ("tokens_per_second/rollout", gathered.tokens as f64 / gathered.rollout_s.max(1e-9)),
        ("rollout/preemptions", gathered.stats.preemptions as f64),
        ("rollout/passes", gathered.stats.passes as f64),
    ]));
    metrics.extend(of_drafts(&gathered.stats.drafted));
    if gathered.filters {
        metrics.extend(named([
            ("dynamic_sampling/rounds", f64::from(gathered.rounds)),
            ("dynamic_sampling/kept_share", gathered.kept_share()),
            ("dynamic_sampling/missing", gathered.missing as f64),
            ("dynamic_sampling/reward", gathered.mean_reward()),
        ]));
    }
    metrics.extend(gathered.of_supply.clone());
    for (name, value) in &gathered.logged {
        metrics.insert(format!("rewards/{name}"), *value);
    }
    if let Some(episodes) = &gathered.episodes {
        metrics.extend(of_episodes(episodes));
    }
    // Last, so that nothing that a function logs hides its own failures.
    for (name, tally) in &gathered.tallies {
        metrics.extend(of_tally(&format!("rewards/{name}"), tally));
    }
}

/// Returns the metrics of drafts; none where nothing was drafted.
fn of_drafts(of: &Drafted) -> Metrics {
    if of.passes == 0 {
        return Metrics::default();
    }
    let (accepted, drafts) = (of.accepted as f64, of.drafts as f64);
    named([
        ("speculate/passes", of.passes as f64),
        ("speculate/drafts", drafts),
        ("speculate/accepted", accepted),
        ("speculate/acceptance", accepted / drafts.max(1.0)),
        // Of a sequence, with the token that it would have had without drafts.
        ("speculate/tokens_a_pass", 1.0 + accepted / of.sequences.max(1) as f64),
    ])
}

/// Returns the counters of failures, each named after `of`.
pub(crate) fn of_tally(of: &str, tally: &Tally) -> Metrics {
    tally.named().into_iter().map(|(what, count)| (format!("{of}/{what}"), count as f64)).collect()
}

/// Returns the metrics of an environment. Turns have metrics of their own up to the eighth.
fn of_episodes(report: &RoundReport) -> Metrics {
    let mut metrics = if report.by_turn.is_empty() {
        // Without an episode there is no mean.
        Metrics::default()
    } else {
        named([("episode/turns_mean", report.turns_mean), ("episode/return", report.return_mean)])
    };
    for (t, (share, reward)) in (1..=TURNS_TOLD).zip(&report.by_turn) {
        metrics.insert(format!("episode/turn_{t}/share"), *share);
        metrics.insert(format!("episode/turn_{t}/reward"), *reward);
    }
    let counters = report.tally.named().into_iter();
    metrics.extend(counters.map(|(what, count)| (format!("environment/{what}"), count as f64)));
    metrics
}

/// Adds the mean reward of each set and its share of the prompts, where there are several sets. A set without a reward
/// in this step has no mean.
pub fn add_sets(metrics: &mut Metrics, names: &[&str], groups: &[SampleGroup]) {
    if names.len() < 2 || groups.is_empty() {
        return;
    }
    for (set, name) in names.iter().enumerate() {
        let of_set = || groups.iter().filter(|group| group.item.set == set);
        let rewards =
            of_set().flat_map(|group| &group.scored).filter_map(|scored| scored.total.map(f64::from));
        let count = rewards.clone().count();
        if count > 0 {
            metrics.insert(format!("sets/{name}/reward"), rewards.sum::<f64>() / count as f64);
        }
        metrics.insert(format!("sets/{name}/share"), of_set().count() as f64 / groups.len() as f64);
    }
}

/// Returns the metrics of rewards before shaping. Without any score there is nothing to report.
pub(crate) fn of_rewards(rewards: &RewardMetrics, has_scores: bool) -> Metrics {
    if !has_scores {
        return Metrics::default();
    }
    named([
        ("reward", rewards.reward),
        ("reward_std", rewards.reward_std),
        ("frac_reward_zero_std", rewards.frac_reward_zero_std),
    ])
}

/// Returns the mean of each reward over the samples that it scored, unweighted. A reward that scored none has no mean.
pub(crate) fn of_reward_parts<'s>(
    names: &[&str],
    scored: impl Iterator<Item = &'s Scored> + Clone,
) -> Metrics {
    let mean = |i: usize| {
        let scores = scored.clone().filter_map(|s| s.parts[i]).map(f64::from);
        let count = scores.clone().count();
        (count > 0).then(|| scores.sum::<f64>() / count as f64)
    };
    let one = |(i, name)| Some((format!("rewards/{name}/mean"), mean(i)?));
    names.iter().enumerate().filter_map(one).collect()
}

/// Returns the metrics of the weights for samples of an older policy version.
pub(crate) fn of_correction(sums: &CorrectionSums) -> Metrics {
    named([
        ("correction/mean", sums.mean_weight()),
        ("correction/masked_share", sums.masked_share()),
        ("correction/outside_share", sums.outside_ratio()),
    ])
}

/// Returns the metrics of tokens that were chosen by their covariance.
pub(crate) fn of_covariance(sums: &CovarianceSums) -> Metrics {
    named([("covariance/mean", sums.mean()), ("covariance/chosen_share", sums.chosen_share())])
}

/// Returns the metrics of the actor's updates, which took `seconds`: losses are means over the updates.
pub(crate) fn of_actor(actor: &ActorReport, seconds: f64) -> Metrics {
    let mut metrics = of_experts(&actor.update);
    let updates = f64::from(actor.updates.max(1));
    if let Some(divergence) = &actor.divergence {
        metrics.extend(named([
            ("distill/divergence", divergence.mean_kl()),
            ("loss/divergence", divergence.loss / updates),
        ]));
    }
    metrics.extend(named([
        ("kl", actor.kl.mean_kl()),
        ("entropy", actor.entropy.mean_entropy()),
        ("clip_ratio/region_mean", actor.policy.clip_ratio()),
        ("clip_ratio/low_mean", actor.policy.clip_ratio_low()),
        ("clip_ratio/high_mean", actor.policy.clip_ratio_high()),
        ("loss/policy", actor.policy.loss / updates),
        ("grad_norm", actor.update.grad_norm),
        ("learning_rate", actor.learning_rate),
        ("time/update", seconds),
        ("tokens_per_second/update", actor.rows as f64 / seconds.max(1e-9)),
        ("rollout/logprob_mismatch_max", actor.mismatch_max),
        ("update/micro_batches", f64::from(actor.update.micro_batches)),
    ]));
    metrics.extend(actor.exchange_s.map(|seconds| ("time/exchange".to_string(), seconds)));
    metrics
}

/// Returns the metrics of experts in an update, the last one of a step; none of a model without experts.
fn of_experts(update: &UpdateStats) -> Metrics {
    let Some(experts) = update.experts else { return Metrics::default() };
    named([
        ("experts/balance", experts.balance),
        ("experts/load_max", experts.load_max),
        ("experts/idle", f64::from(experts.idle)),
    ])
}

/// Returns the metrics of the critic's updates: its loss is their mean, its values are those before them.
pub fn of_critic(critic: &CriticReport) -> Metrics {
    named([
        ("loss/value", critic.sums.loss / f64::from(critic.updates.max(1))),
        ("value/mean", critic.mean_value),
        ("value/explained_variance", critic.explained_variance),
        ("value/clip_ratio", critic.sums.clip_ratio()),
        ("critic/grad_norm", critic.update.grad_norm),
        ("critic/learning_rate", critic.learning_rate),
    ])
}

pub(crate) fn of_sft(report: &SftReport) -> Metrics {
    let mut metrics = of_experts(&report.update);
    metrics.extend(named([
        ("loss", report.sums.mean_nll()),
        ("grad_norm", report.update.grad_norm),
        ("learning_rate", report.learning_rate),
        ("update/micro_batches", f64::from(report.update.micro_batches)),
    ]));
    metrics
}

/// Returns the metrics of a step over pairs; rewards are those before the update.
pub fn of_pairs(report: &PairReport) -> Metrics {
    let (sums, pairs) = (&report.sums, report.sums.pairs.max(1.0));
    let mut metrics: Metrics = named([
        ("loss", sums.loss),
        ("rewards/chosen", sums.reward_chosen / pairs),
        ("rewards/rejected", sums.reward_rejected / pairs),
        ("rewards/accuracies", sums.accuracy()),
        ("rewards/margins", sums.mean_margin()),
        ("grad_norm", report.update.grad_norm),
        ("learning_rate", report.learning_rate),
        ("update/micro_batches", f64::from(report.update.micro_batches)),
    ]);
    metrics.extend(of_experts(&report.update));
    metrics.extend(report.kl.map(|kl| ("kl".to_string(), kl)));
    for (name, value) in ["logps/chosen", "logps/rejected"].iter().zip(report.logps.iter().flatten()) {
        metrics.insert(name.to_string(), *value);
    }
    metrics
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
