//! The metrics of a step under their names, and the work that a step is counted as.

use crate::episodes::RoundReport;
use crate::methods::critic::CriticReport;
use crate::methods::pairs::PairReport;
use crate::methods::policy::StepReport;
use crate::methods::sft::SftReport;
use crate::rollout::held::HeldGroup;
use plimsoll_base::ModelSpec;
use plimsoll_run::metrics::Metrics;
use plimsoll_train::Sequence;

/// Turns of an episode that have metrics of their own.
const TURNS_TOLD: usize = 8;

/// The metrics of a step that samples.
pub fn of_step(report: &StepReport, num_tokens: u64) -> Metrics {
    let s = &report.seconds;
    let mut metrics: Metrics = [
        ("reward", report.rewards.reward),
        ("reward_std", report.rewards.reward_std),
        ("frac_reward_zero_std", report.rewards.frac_reward_zero_std),
        ("completions/mean_length", report.mean_length),
        ("completions/clipped_ratio", report.clipped_ratio),
        ("kl", report.kl.mean_kl()),
        ("entropy", report.entropy.mean_entropy()),
        ("clip_ratio/region_mean", report.policy.clip_ratio()),
        ("clip_ratio/low_mean", report.policy.clip_ratio_low()),
        ("clip_ratio/high_mean", report.policy.clip_ratio_high()),
        ("loss/policy", report.policy.loss),
        ("grad_norm", report.update.grad_norm),
        ("learning_rate", report.learning_rate),
        ("num_tokens", num_tokens as f64),
        ("time/rollout", s.rollout),
        ("time/reward", s.reward),
        ("time/score", s.score),
        ("time/update", s.update),
        ("tokens_per_second/rollout", report.sampled_tokens as f64 / s.rollout.max(1e-9)),
        ("tokens_per_second/update", report.update_rows as f64 / s.update.max(1e-9)),
        ("rollout/preemptions", report.rollout.preemptions as f64),
        ("rollout/passes", report.rollout.passes as f64),
        ("rollout/logprob_mismatch_max", report.logprob_mismatch_max),
        ("update/micro_batches", f64::from(report.update.micro_batches)),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_string(), value))
    .collect();
    if let Some(critic) = &report.critic {
        metrics.extend(of_critic(critic).map(|(name, value)| (name.to_string(), value)));
        metrics.insert("ratio/mean".into(), report.policy.mean_ratio());
        metrics.insert("time/critic".into(), s.critic);
    }
    metrics.extend(of_samples(report).map(|(name, value)| (name.to_string(), value)));
    for (name, mean) in &report.reward_parts {
        metrics.insert(format!("rewards/{name}/mean"), *mean);
    }
    for (name, value) in &report.reward_logged {
        metrics.insert(format!("rewards/{name}"), *value);
    }
    if let Some(episodes) = &report.episodes {
        metrics.extend(of_episodes(episodes));
    }
    // Last, so that nothing that a function logs hides what went wrong with it.
    for (name, tally) in &report.reward_tallies {
        let counters = tally.named().into_iter();
        metrics.extend(counters.map(|(what, count)| (format!("rewards/{name}/{what}"), count as f64)));
    }
    metrics
}

/// What an environment adds. Turns are told one by one up to the eighth.
fn of_episodes(report: &RoundReport) -> Metrics {
    let mut metrics: Metrics =
        [("episode/turns_mean", report.turns_mean), ("episode/return", report.return_mean)]
            .into_iter()
            .map(|(name, value)| (name.to_string(), value))
            .collect();
    for (t, (share, reward)) in (1..=TURNS_TOLD).zip(&report.by_turn) {
        metrics.insert(format!("episode/turn_{t}/share"), *share);
        metrics.insert(format!("episode/turn_{t}/reward"), *reward);
    }
    let counters = report.tally.named().into_iter();
    metrics.extend(counters.map(|(what, count)| (format!("environment/{what}"), count as f64)));
    metrics
}

/// Where prompts come from several sets: the mean reward of each, and its share of the prompts. A set without a reward in
/// this step has no mean.
pub fn add_sets(metrics: &mut Metrics, names: &[&str], groups: &[HeldGroup]) {
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

/// What tells of older samples, and of groups that were not kept. In a step without a rollout of its own nothing was sampled.
fn of_samples(report: &StepReport) -> impl Iterator<Item = (&'static str, f64)> {
    let filtered = report.gathered.filter(|_| report.filters).map(|gathered| {
        [
            ("dynamic_sampling/rounds", f64::from(gathered.rounds)),
            ("dynamic_sampling/kept_share", gathered.kept_share()),
            ("dynamic_sampling/missing", gathered.missing as f64),
            ("dynamic_sampling/reward", gathered.mean_reward()),
        ]
    });
    let corrected = report.correction.map(|sums| {
        [
            ("correction/mean", sums.mean_weight()),
            ("correction/masked_share", sums.masked_share()),
            ("correction/outside_share", sums.outside_ratio()),
        ]
    });
    let lag = [("rollout/policy_lag", f64::from(report.policy_lag))];
    lag.into_iter().chain(filtered.into_iter().flatten()).chain(corrected.into_iter().flatten())
}

/// What a critic adds: its loss is the mean of its updates, its values are those before them.
fn of_critic(critic: &CriticReport) -> [(&'static str, f64); 6] {
    [
        ("loss/value", critic.sums.loss / f64::from(critic.updates.max(1))),
        ("value/mean", critic.mean_value),
        ("value/explained_variance", critic.explained_variance),
        ("value/clip_ratio", critic.sums.clip_ratio()),
        ("critic/grad_norm", critic.update.grad_norm),
        ("critic/learning_rate", critic.learning_rate),
    ]
}

/// The metrics of a supervised step.
pub fn of_sft(report: &SftReport) -> Metrics {
    [
        ("loss", report.sums.mean_nll()),
        ("grad_norm", report.update.grad_norm),
        ("learning_rate", report.learning_rate),
        ("update/micro_batches", f64::from(report.update.micro_batches)),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_string(), value))
    .collect()
}

/// The metrics of a step over pairs; rewards are those before the update.
pub fn of_pairs(report: &PairReport) -> Metrics {
    let (sums, pairs) = (&report.sums, report.sums.pairs.max(1.0));
    let mut metrics: Metrics = [
        ("loss", sums.loss),
        ("rewards/chosen", sums.reward_chosen / pairs),
        ("rewards/rejected", sums.reward_rejected / pairs),
        ("rewards/accuracies", sums.accuracy()),
        ("rewards/margins", sums.mean_margin()),
        ("grad_norm", report.update.grad_norm),
        ("learning_rate", report.learning_rate),
        ("update/micro_batches", f64::from(report.update.micro_batches)),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_string(), value))
    .collect();
    for (name, value) in ["logps/chosen", "logps/rejected"].iter().zip(report.logps.iter().flatten()) {
        metrics.insert(name.to_string(), *value);
    }
    metrics
}

/// Operations of one forward pass over the sequences of a step: each prompt once, recompute not counted.
pub fn step_flops(spec: &ModelSpec, sequences: &[Sequence<'_>]) -> f64 {
    let prompts = sequences.chunk_by(|a, b| a.group == b.group).map(|group| group[0].prompt.len());
    forward_flops(spec, prompts, sequences.iter().map(|s| (s.prompt.len(), s.response.len())))
}

/// Operations of one forward pass, in sampling and in training alike: prompts once, each response token but the last,
/// and one head row a response token.
pub fn forward_flops(
    spec: &ModelSpec,
    prompts: impl Iterator<Item = usize>,
    sequences: impl Iterator<Item = (usize, usize)>,
) -> f64 {
    let rows = |first: usize, n: usize| -> f64 {
        // The mean context of n rows from position `first` on.
        let context = first as f64 + (n as f64 + 1.0) / 2.0;
        n as f64 * (spec.layer_flops(0) as f64 + context * (spec.layer_flops(1) - spec.layer_flops(0)) as f64)
    };
    let prompts: f64 = prompts.map(|p| rows(0, p)).sum();
    let responses: f64 =
        sequences.map(|(p, t)| rows(p, t.saturating_sub(1)) + t as f64 * spec.head_flops() as f64).sum();
    prompts + responses
}
