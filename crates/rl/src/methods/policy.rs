//! The synchronous step of the methods that sample: rollout, reward, score, advantage, update.
//! Legend: P prompts, G samples each, N response tokens of the step.

use crate::data::dataset::{Item, TextModel};
use crate::episodes::{Episodes, RoundReport};
use crate::methods::buffers::StepBuffers;
use crate::methods::critic::{CriticReport, critic_updates, gae_advantages};
use crate::methods::metrics::step_flops;
use crate::roles::{Trainer, UpdateStats, sampling};
use crate::rollout::gather::{Cursor, Gathered, gather};
use crate::rollout::held::{Held, HeldGroup};
use crate::rollout::model_reward;
use plimsoll_algo::advantage::{KlReward, discounted_returns, token_rewards, whiten};
use plimsoll_algo::correction::CorrectionSums;
use plimsoll_algo::entropy::{EntropySums, entropy_bonus};
use plimsoll_algo::kl::{KlLoss, KlSums, add_kl_loss};
use plimsoll_algo::packed::Packed;
use plimsoll_algo::policy_loss::{PolicyBatch, PolicySums, policy_loss};
use plimsoll_algo::shaping::{RewardMetrics, shape_rewards};
use plimsoll_base::{Error, Result};
use plimsoll_config::Objective;
use plimsoll_config::RunFile;
use plimsoll_plan::RoleName;
use plimsoll_reward::{Rewards, Scored, Tally};
use plimsoll_rollout::{Finish, RolloutStats, Samples};
use plimsoll_run::ending::loss_not_finite;
use plimsoll_run::status::Doing;
use plimsoll_train::{Sequence, UpdateOptions};
use std::ops::Range;
use std::time::Instant;

/// What a step needs beside the trainer.
pub struct StepContext<'s> {
    /// The run file.
    pub run: &'s RunFile,
    /// The model's text side.
    pub text: &'s TextModel,
    /// Tokens that end a response.
    pub eos: &'s [u32],
    /// What is optimised; its KL controller moves.
    pub objective: Objective,
    /// What scores responses.
    pub rewards: Rewards,
    /// So many prompts from a position of the data on.
    pub prompts: &'s mut dyn FnMut(u64, usize) -> Result<Vec<Item>>,
    /// The environment that gives prompts and rewards instead, if there is one.
    pub episodes: Option<&'s mut Episodes>,
    /// Where the next prompts and samples come from; it moves.
    pub cursor: Cursor,
    /// What the last rollout kept.
    pub held: Held,
    /// Told what begins.
    pub edge: &'s mut dyn FnMut(Doing),
}

/// What a step did.
#[derive(Debug, Default)]
pub struct StepReport {
    /// Rewards before shaping.
    pub rewards: RewardMetrics,
    /// What the rollout took, in a step that has one of its own.
    pub gathered: Option<Gathered>,
    /// True if groups may not be kept.
    pub filters: bool,
    /// Steps since the samples were made.
    pub policy_lag: u32,
    /// Sums of the correction, where the run file asks for one.
    pub correction: Option<CorrectionSums>,
    /// Mean of each reward, unweighted.
    pub reward_parts: Vec<(String, f64)>,
    /// What went wrong with the rewards that are other people's code.
    pub reward_tallies: Vec<(String, Tally)>,
    /// Means of what they logged beside their scores.
    pub reward_logged: Vec<(String, f64)>,
    /// The rollout's counters.
    pub rollout: RolloutStats,
    /// Sums of the policy loss over all updates.
    pub policy: PolicySums,
    /// Sums of the KL term.
    pub kl: KlSums,
    /// Entropy of the trained policy.
    pub entropy: EntropySums,
    /// The last update's counters.
    pub update: UpdateStats,
    /// What the critic did, where there is one.
    pub critic: Option<CriticReport>,
    /// Largest difference between the trainer's log-probability before the weights moved and l_old, which is the rollout's
    /// unless another policy version sampled.
    pub logprob_mismatch_max: f64,
    /// Mean response length.
    pub mean_length: f64,
    /// Share of responses that the limit cut.
    pub clipped_ratio: f64,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// Response tokens that were sampled.
    pub sampled_tokens: usize,
    /// Rows of training passes, all epochs.
    pub update_rows: u64,
    /// Seconds of each part.
    pub seconds: StepSeconds,
    /// Operations, as the work is defined: a forward pass for what is sampled, three for what is trained.
    pub flops: f64,
    /// Total reward of each sample that is trained.
    pub totals: Vec<Option<f32>>,
    /// What the episodes came to, where there is an environment.
    pub episodes: Option<RoundReport>,
}

/// Seconds of each part of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepSeconds {
    /// Sampling.
    pub rollout: f64,
    /// Grading behind the rollout: what was not done by its end.
    pub reward: f64,
    /// Log-probs of the reference, and of the actor for older samples.
    pub score: f64,
    /// The critic's values and its updates.
    pub critic: f64,
    /// Forward, backward and optimizer.
    pub update: f64,
}

/// One step over P prompts: those that the last rollout has left, else those of a new rollout. `step` counts from 1.
///
/// Errors: `dynamic-sampling-exhausted`, `logprob-mismatch`, `loss-not-finite`, `gradient-not-finite`; those of sampling and of
/// the rewards. `cx.cursor` is then beyond what the step sampled, and must not be kept.
pub fn step(trainer: &mut Trainer<'_>, cx: &mut StepContext<'_>, step: u32) -> Result<StepReport> {
    let mut report = StepReport { filters: cx.objective.filter.is_some(), ..StepReport::default() };
    let prompts = cx.run.rollout.prompts_per_step as usize;

    // 1. Rollout and 2. reward: responses are graded as they end.
    if cx.held.next(prompts).is_empty() {
        gather(trainer, cx, step, &mut report)?;
    }
    let (held, samples) = (std::mem::take(&mut cx.held), trainer.take_samples());
    let groups = held.next(prompts);
    let result = train_on(trainer, cx, &held, &samples, groups.clone(), step, &mut report);
    trainer.put_samples(samples);
    cx.held = held;
    result?;
    cx.held.done(groups);
    Ok(report)
}

/// Score, advantage and update over some groups of a rollout.
fn train_on(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    held: &Held,
    samples: &Samples,
    groups: Range<usize>,
    step: u32,
    report: &mut StepReport,
) -> Result<()> {
    let size = cx.run.rollout.group_size as usize;
    let which = groups.start * size..groups.end * size;
    let prompt = |s: usize| held.groups()[s / size].item.ids.as_slice();
    let sequences: Vec<Sequence<'_>> = which
        .clone()
        .map(|s| Sequence { group: s / size, prompt: prompt(s), response: samples.ids(s) })
        .collect();
    begin_buffers(trainer, samples, which.clone());
    if cx.run.loss.mask_truncated {
        let cut = which.clone().enumerate().filter(|&(_, s)| samples.finish(s) == Finish::Length);
        cut.for_each(|(i, _)| trainer.buffers.leave_out(i));
    }
    report.see_samples(
        &model_reward::names(&cx.rewards, &cx.run.reward),
        &held.groups()[groups],
        samples,
        which,
    );
    report.policy_lag = step - held.of().step;
    report.flops += 3.0 * step_flops(&trainer.shape.spec, &sequences);
    let inv_temperature = sampling(&cx.run.rollout, 0).inv_temperature();

    // 3. Score: log-probs of the reference, where there is one, and of the actor, where the samples are not its own.
    (cx.edge)(Doing::Score);
    let started = Instant::now();
    trainer.score_reference(&sequences, inv_temperature)?;
    if held.of().policy_version != trainer.updates() {
        trainer.score_actor(&sequences, inv_temperature)?;
    }
    report.seconds.score = started.elapsed().as_secs_f64();

    // 4. Advantage; with a critic, over its values, and what they should have been is what it learns from.
    let started = Instant::now();
    if trainer.role(RoleName::Critic).is_some() {
        (cx.edge)(Doing::Critic);
    }
    trainer.score_values(&sequences)?;
    advantages(trainer, cx, samples, size, report)?;
    report.critic = critic_updates(trainer, cx, &sequences, step)?;
    report.seconds.critic = started.elapsed().as_secs_f64();

    // 5. Update. 6. The new weights are already where the rollout reads them.
    (cx.edge)(Doing::Update);
    let started = Instant::now();
    updates(trainer, cx, &sequences, inv_temperature, step, report)?;
    report.seconds.update = started.elapsed().as_secs_f64();
    Ok(())
}

impl StepReport {
    /// Takes what the rewards counted beside the scores of a round.
    pub(crate) fn add_graded(&mut self, rewards: &Rewards) {
        for (name, tally) in rewards.tallies() {
            match self.reward_tallies.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => sum.add(&tally),
                None => self.reward_tallies.push((name.to_string(), tally)),
            }
        }
        // What functions log beside their scores is that of the last round.
        self.reward_logged = rewards.logged().collect();
    }

    /// Takes what is known of the samples `which` of these groups before they train.
    fn see_samples(
        &mut self,
        rewards: &[&str],
        groups: &[HeldGroup],
        samples: &Samples,
        which: Range<usize>,
    ) {
        let scored = || groups.iter().flat_map(|group| &group.scored);
        self.reward_parts = mean_parts(rewards, scored());
        self.totals = scored().map(|s| s.total).collect();
        let drawn = |s: usize| samples.turns(s).iter().map(|turn| turn.tokens().len()).sum::<usize>();
        let lengths = which.clone().map(drawn);
        self.mean_length = lengths.sum::<usize>() as f64 / which.len() as f64;
        let cut = which.clone().filter(|&s| samples.finish(s) == Finish::Length).count();
        self.clipped_ratio = cut as f64 / which.len() as f64;
    }
}

/// The mean of each reward over the samples that it scored.
fn mean_parts<'s>(rewards: &[&str], scored: impl Iterator<Item = &'s Scored> + Clone) -> Vec<(String, f64)> {
    let mean = |i: usize| {
        let scores = scored.clone().filter_map(|s| s.parts[i]).map(f64::from);
        scores.clone().sum::<f64>() / scores.count().max(1) as f64
    };
    rewards.iter().enumerate().map(|(i, name)| (name.to_string(), mean(i))).collect()
}

/// The arrays of the step, with the log-probs that the rollout recorded.
fn begin_buffers(trainer: &mut Trainer<'_>, samples: &Samples, which: Range<usize>) {
    let buffers = &mut trainer.buffers;
    buffers.begin(which.clone().map(|s| samples.ids(s).len()));
    for (i, s) in which.enumerate() {
        buffers.set_rollout_logprobs(i, samples.logprobs(s));
        buffers.train_only(i, samples.turns(s));
    }
}

/// Rewards to one advantage a token.
fn advantages(
    trainer: &mut Trainer<'_>,
    cx: &StepContext<'_>,
    samples: &Samples,
    group: usize,
    report: &mut StepReport,
) -> Result<()> {
    let (objective, buffers) = (&cx.objective, &mut trainer.buffers);
    let lengths: Vec<usize> = buffers.offsets.windows(2).map(|o| o[1] - o[0]).collect();
    let mut shaped = vec![0f32; lengths.len()];
    report.rewards = shape_rewards(&objective.shaping, &report.totals, &lengths, group, &mut shaped)?;
    for (s, total) in report.totals.iter().enumerate() {
        if total.is_none() {
            buffers.leave_out(s);
        }
    }
    let packed = Packed { mask: &buffers.mask, seq_offsets: &buffers.offsets };
    let kl = objective.kl.filter(|kl| kl.in_reward).map(|kl| KlReward {
        estimator: kl.estimator,
        coef: kl.controller.coef(),
        old_logp: &buffers.old_logprobs,
        ref_logp: &buffers.ref_logprobs,
    });
    let sums = token_rewards(packed, &shaped, kl, &mut buffers.token_rewards);
    if objective.kl.is_some_and(|kl| kl.in_reward) {
        report.kl = sums;
    }
    if let Some(episodes) = &cx.episodes {
        episodes.credit_turns(samples, buffers);
    }
    report.correction = objective.correction.map(|how| buffers.correct(how));
    let packed = Packed { mask: &buffers.mask, seq_offsets: &buffers.offsets };
    match &objective.gae {
        Some(how) => gae_advantages(how, buffers),
        None => discounted_returns(objective.gamma, packed, &buffers.token_rewards, &mut buffers.advantages),
    }
    whiten(objective.whiten, &buffers.mask, &mut buffers.advantages);
    Ok(())
}

/// All optimizer steps of a rollout: epochs of mini-batches.
fn updates(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    sequences: &[Sequence<'_>],
    inv_temperature: f32,
    step: u32,
    report: &mut StepReport,
) -> Result<()> {
    let train = &cx.run.train;
    if cx.run.critic.as_ref().and_then(|critic| critic.warmup_steps).is_some_and(|steps| step <= steps) {
        return Ok(()); // Only the critic learns.
    }
    let mini_batch = train.mini_batch.map_or(sequences.len(), |n| n as usize);
    let how = train.update_options(step, cx.run.seed);
    report.learning_rate = f64::from(how.lr);
    for epoch in 0..train.epochs_per_rollout {
        for first in (0..sequences.len()).step_by(mini_batch) {
            let which = first..(first + mini_batch).min(sequences.len());
            let on_policy = epoch == 0 && first == 0;
            mini_batch_update(
                trainer,
                &cx.objective,
                sequences,
                which,
                inv_temperature,
                how,
                on_policy,
                step,
                report,
            )?;
        }
    }
    let samples = sequences.len();
    if let Some(kl) = &mut cx.objective.kl {
        kl.controller.update(report.kl.mean_kl(), samples);
    }
    Ok(())
}

#[allow(clippy::too_many_arguments)] // The step's state, by name.
fn mini_batch_update(
    trainer: &mut Trainer<'_>,
    objective: &Objective,
    sequences: &[Sequence<'_>],
    which: Range<usize>,
    inv_temperature: f32,
    how: UpdateOptions,
    on_policy: bool,
    step: u32,
    report: &mut StepReport,
) -> Result<()> {
    let Some((total_tokens, total_sequences)) = mini_batch_totals(&trainer.buffers, &which) else {
        return Ok(());
    };
    let aggregation = objective.aggregation_of(total_tokens, total_sequences);
    let kl = objective.kl.filter(|kl| !kl.in_reward);
    let mut loss = |buffers: &mut StepBuffers, tokens: Range<usize>| -> Result<()> {
        if on_policy {
            let differs = mismatch(buffers, tokens.clone());
            report.logprob_mismatch_max = report.logprob_mismatch_max.max(differs);
            if differs.is_infinite() {
                let message = format!("step {step}: a token is trained that the rollout did not draw");
                return Err(Error::new("logprob-mismatch", message).hint(
                    "this is a defect of plimsoll: the loss mask lets through what an environment said",
                ));
            }
        }
        let micro = buffers.micro_batch(tokens);
        let batch = PolicyBatch {
            packed: micro.packed,
            logp: micro.logprobs,
            old_logp: micro.old_logprobs,
            advantages: micro.advantages,
            weights: micro.weights,
        };
        let mut sums = policy_loss(&objective.loss, &batch, &aggregation, micro.d_logprobs);
        if on_policy {
            check_ratio(step, &sums)?;
        }
        if let Some(kl) = kl {
            let options =
                KlLoss { estimator: kl.estimator, coef: kl.controller.coef(), unbiased: kl.unbiased };
            let (old, reference) = (micro.old_logprobs, micro.ref_logprobs);
            let kl = add_kl_loss(
                &options,
                micro.packed,
                micro.logprobs,
                old,
                reference,
                &aggregation,
                micro.d_logprobs,
            );
            sums.loss += kl.loss;
            report.kl.merge(kl);
        }
        let entropy =
            entropy_bonus(objective.entropy_coef, micro.packed, micro.entropy, &aggregation, micro.d_entropy);
        sums.loss += entropy.loss;
        if !sums.loss.is_finite() {
            return Err(loss_not_finite(step, sums.loss));
        }
        report.policy.merge(sums);
        report.entropy.merge(entropy);
        Ok(())
    };
    let stats = trainer.update(RoleName::Actor, sequences, which, inv_temperature, how, &mut loss)?;
    report.update_rows += stats.rows;
    report.update = stats;
    Ok(())
}

/// Trained tokens of some sequences, and sequences with one; `None` where every sample was left out, so that there is
/// nothing to learn from.
pub(crate) fn mini_batch_totals(buffers: &StepBuffers, which: &Range<usize>) -> Option<(f64, f64)> {
    let tokens = |s: usize| -> f64 {
        let tokens = buffers.offsets[s]..buffers.offsets[s + 1];
        buffers.mask[tokens].iter().map(|&m| f64::from(m)).sum()
    };
    let sums = which.clone().map(tokens).filter(|&tokens| tokens > 0.0);
    let (total, sequences) = sums.fold((0.0, 0.0), |(total, n), tokens| (total + tokens, n + 1.0));
    (total > 0.0).then_some((total, sequences))
}

/// Largest |l - l_old| of the trained tokens among these; the promise is 0. A token that the rollout did not draw has no
/// number, and differs without bound.
fn mismatch(buffers: &StepBuffers, tokens: Range<usize>) -> f64 {
    let trained = tokens.filter(|&t| buffers.mask[t] != 0.0);
    let differs = |t: usize| f64::from((buffers.logprobs[t] - buffers.old_logprobs[t]).abs());
    trained.map(differs).fold(0.0, |most, by| if by.is_nan() { f64::INFINITY } else { most.max(by) })
}

/// In the first mini-batch of a step no weight has moved since l_old was recorded, so the ratio of every trained token, or of
/// its sequence, is exactly 1 whatever the method.
///
/// Errors: `logprob-mismatch`.
fn check_ratio(step: u32, sums: &PolicySums) -> Result<()> {
    if sums.tokens == 0.0 || (sums.ratio_min == 1.0 && sums.ratio_max == 1.0) {
        return Ok(());
    }
    let (low, high) = (sums.ratio_min, sums.ratio_max);
    let message =
        format!("step {step}: before the first update the ratios are {low:e} to {high:e}, and must be 1");
    Err(Error::new("logprob-mismatch", message)
        .fact(
            "the trainer's log-probabilities are not those that the policy had when it was sampled or scored",
        )
        .hint("this is a defect of plimsoll or of the machine: `plimsoll bench exactness` looks for it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_algo::aggregation::Aggregation;
    use plimsoll_algo::method::METHODS;
    use plimsoll_algo::policy_loss::PolicyLoss;

    /// Two responses of two tokens; the last is not trained.
    fn sums(loss: &PolicyLoss, logprobs: [f32; 4]) -> PolicySums {
        let old = [-0.5, -1.25, -0.03, -2.0];
        let packed = Packed { mask: &[1.0, 1.0, 1.0, 0.0], seq_offsets: &[0, 2, 4] };
        let aggregation = Aggregation::of_batch(Default::default(), packed, 1.0);
        let batch = PolicyBatch {
            packed,
            logp: &logprobs,
            old_logp: &old,
            advantages: &[1.0, -1.0, 0.5, 9.0],
            weights: None,
        };
        policy_loss(loss, &batch, &aggregation, &mut [0.0; 4])
    }

    #[test]
    fn a_ratio_that_is_not_one_before_the_first_update_ends_the_run_whatever_the_method() {
        for spec in &METHODS {
            let same = sums(&spec.loss, [-0.5, -1.25, -0.03, f32::NAN]);
            assert!(check_ratio(1, &same).is_ok(), "{}", spec.method);
            // The last bit of one log-probability.
            let off = f32::from_bits(0.5f32.to_bits() + 1);
            let error =
                check_ratio(1, &sums(&spec.loss, [-off, -1.25, -0.03, 0.0])).expect_err(spec.method.name());
            assert_eq!(error.slug, "logprob-mismatch", "{}", spec.method);
        }
        assert!(check_ratio(1, &PolicySums::default()).is_ok(), "nothing is trained");
    }
}
