//! The synchronous step of the methods that sample: rollout, reward, score, advantage, update.
//! Legend: P prompts, G samples each, N response tokens of the step.

use crate::buffers::StepBuffers;
use crate::dataset::{Item, TextModel};
use crate::grading::Grading;
use crate::objective::Objective;
use crate::runfile::{RunFile, Schedule, Train};
use crate::status::Doing;
use crate::trainer::{Trainer, UpdateStats, sampling};
use crate::values::{CriticReport, critic_updates, gae_advantages};
use plimsoll_algo::advantage::{KlReward, discounted_returns, token_rewards, whiten};
use plimsoll_algo::entropy::{EntropySums, entropy_bonus};
use plimsoll_algo::kl::{KlLoss, KlSums, add_kl_loss};
use plimsoll_algo::packed::Packed;
use plimsoll_algo::policy_loss::{PolicyBatch, PolicySums, policy_loss};
use plimsoll_algo::shaping::{RewardMetrics, shape_rewards};
use plimsoll_base::{Error, Result};
use plimsoll_device::Device;
use plimsoll_reward::{Rewards, Scored, Tally};
use plimsoll_rollout::{Finish, Request, RolloutStats};
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
    /// Told what begins.
    pub edge: &'s mut dyn FnMut(Doing),
}

/// What a step did.
#[derive(Debug, Default)]
pub struct StepReport {
    /// Rewards before shaping.
    pub rewards: RewardMetrics,
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
    /// Largest difference between the rollout's and the trainer's log-probability before the weights moved.
    pub logprob_mismatch_max: f64,
    /// Mean response length.
    pub mean_length: f64,
    /// Share of responses that the limit cut.
    pub clipped_ratio: f64,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// Response tokens.
    pub response_tokens: usize,
    /// Rows of training passes, all epochs.
    pub update_rows: u64,
    /// Seconds of each part.
    pub seconds: StepSeconds,
    /// Total reward of each sample.
    pub totals: Vec<Option<f32>>,
    /// Text of each response.
    pub texts: Vec<String>,
}

/// Seconds of each part of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepSeconds {
    /// Sampling.
    pub rollout: f64,
    /// Grading behind the rollout: what was not done by its end.
    pub reward: f64,
    /// Reference log-probs.
    pub score: f64,
    /// The critic's values and its updates.
    pub critic: f64,
    /// Forward, backward and optimizer.
    pub update: f64,
}

/// One step over P prompts. `step` counts from 1.
pub fn step<D: Device + ?Sized>(
    trainer: &mut Trainer<'_, D>,
    cx: &mut StepContext<'_>,
    items: &[Item],
    step: u32,
) -> Result<StepReport> {
    let mut report = StepReport::default();
    let group = cx.run.rollout.group_size as usize;

    // 1. Rollout; responses are graded as they end.
    (cx.edge)(Doing::Rollout);
    let started = Instant::now();
    roll_out(trainer, cx, items, step, &mut report)?;
    report.seconds.rollout = started.elapsed().as_secs_f64();

    // 2. Reward: what is still being graded.
    (cx.edge)(Doing::Reward);
    let started = Instant::now();
    finish_rewards(&mut cx.rewards, &mut report)?;
    report.seconds.reward = started.elapsed().as_secs_f64();

    // 3. Score: log-probs of the reference, where there is one.
    (cx.edge)(Doing::Score);
    let started = Instant::now();
    let samples = std::mem::replace(&mut trainer.samples, plimsoll_rollout::Samples::with_capacity(0, 1));
    let sequences: Vec<Sequence<'_>> = (0..samples.len())
        .map(|s| Sequence { group: s / group, prompt: &items[s / group].ids, response: samples.ids(s) })
        .collect();
    begin_buffers(trainer, &samples);
    let inv_temperature = sampling(&cx.run.rollout, 0).inv_temperature();
    let result = (|| {
        trainer.score_reference(&sequences, inv_temperature)?;
        report.seconds.score = started.elapsed().as_secs_f64();

        // 4. Advantage; with a critic, over its values, and what they should have been is what it learns from.
        let started = Instant::now();
        if trainer.roles.critic.is_some() {
            (cx.edge)(Doing::Critic);
        }
        trainer.score_values(&sequences)?;
        advantages(trainer, cx, group, &mut report)?;
        report.critic = critic_updates(trainer, cx, &sequences, step)?;
        report.seconds.critic = started.elapsed().as_secs_f64();

        // 5. Update. 6. The new weights are already where the rollout reads them.
        (cx.edge)(Doing::Update);
        let started = Instant::now();
        updates(trainer, cx, &sequences, inv_temperature, step, &mut report)?;
        report.seconds.update = started.elapsed().as_secs_f64();
        Ok(())
    })();
    drop(sequences);
    trainer.samples = samples;
    result.map(|()| report)
}

fn roll_out<D: Device + ?Sized>(
    trainer: &mut Trainer<'_, D>,
    cx: &mut StepContext<'_>,
    items: &[Item],
    step: u32,
    report: &mut StepReport,
) -> Result<()> {
    let group = cx.run.rollout.group_size as usize;
    let prompts: Vec<&[u32]> = items.iter().map(|i| i.ids.as_slice()).collect();
    let samples = items.len() * group;
    let request = Request {
        prompts: &prompts,
        group_size: group,
        max_new_tokens: cx.run.rollout.max_new_tokens as usize,
        sampling: sampling(&cx.run.rollout, cx.run.seed),
        eos: cx.eos,
        first_sample_id: u64::from(step - 1) * samples as u64,
    };
    let steps = [step, cx.run.train.steps];
    let mut grading = Grading::begin(&mut cx.rewards, cx.text, &cx.run.rollout, items, group, steps)?;
    report.rollout = trainer.rollout(&request, &mut grading)?;
    report.texts = grading.texts();
    let out = &trainer.samples;
    report.response_tokens = out.total_tokens();
    report.mean_length = report.response_tokens as f64 / samples as f64;
    let cut = (0..out.len()).filter(|&s| out.finish(s) == Finish::Length).count();
    report.clipped_ratio = cut as f64 / samples as f64;
    Ok(())
}

fn finish_rewards(rewards: &mut Rewards, report: &mut StepReport) -> Result<()> {
    let scored = rewards.finish()?;
    report.reward_parts = mean_parts(rewards, &scored);
    report.reward_tallies = rewards.tallies().map(|(name, tally)| (name.to_string(), tally)).collect();
    report.reward_logged = rewards.logged().collect();
    report.totals = scored.iter().map(|s| s.total).collect();
    Ok(())
}

fn mean_parts(rewards: &Rewards, scored: &[Scored]) -> Vec<(String, f64)> {
    let names = rewards.names();
    let mean = |i: usize| {
        let scores: Vec<f64> = scored.iter().filter_map(|s| s.parts[i]).map(f64::from).collect();
        scores.iter().sum::<f64>() / scores.len().max(1) as f64
    };
    names.iter().enumerate().map(|(i, name)| (name.to_string(), mean(i))).collect()
}

fn begin_buffers<D: Device + ?Sized>(trainer: &mut Trainer<'_, D>, samples: &plimsoll_rollout::Samples) {
    let buffers = &mut trainer.buffers;
    buffers.begin((0..samples.len()).map(|s| samples.ids(s).len()));
    for s in 0..samples.len() {
        let tokens = buffers.offsets[s]..buffers.offsets[s + 1];
        buffers.old_logprobs[tokens].copy_from_slice(samples.logprobs(s));
    }
}

/// Rewards to one advantage a token.
fn advantages<D: Device + ?Sized>(
    trainer: &mut Trainer<'_, D>,
    cx: &StepContext<'_>,
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
    match &objective.gae {
        Some(how) => gae_advantages(how, buffers),
        None => discounted_returns(objective.gamma, packed, &buffers.token_rewards, &mut buffers.advantages),
    }
    whiten(objective.whiten, &buffers.mask, &mut buffers.advantages);
    Ok(())
}

/// All optimizer steps of a rollout: epochs of mini-batches.
fn updates<D: Device + ?Sized>(
    trainer: &mut Trainer<'_, D>,
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
    let how = update_options(train, step, cx.run.seed);
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
fn mini_batch_update<D: Device + ?Sized>(
    trainer: &mut Trainer<'_, D>,
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
            // No weight has moved since the rollout, so PPO's ratio is exactly 1 for every token.
            assert!(objective.gae.is_none() || differs == 0.0, "a log-probability differs by {differs}");
            report.logprob_mismatch_max = report.logprob_mismatch_max.max(differs);
        }
        let micro = buffers.micro_batch(tokens);
        let batch = PolicyBatch {
            packed: micro.packed,
            logp: micro.logprobs,
            old_logp: micro.old_logprobs,
            advantages: micro.advantages,
            weights: None,
        };
        let mut sums = policy_loss(&objective.loss, &batch, &aggregation, micro.d_logprobs);
        if let Some(kl) = kl {
            let options = KlLoss { estimator: kl.estimator, coef: kl.controller.coef(), unbiased: false };
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
    let stats = trainer.update(sequences, which, inv_temperature, how, &mut loss)?;
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

/// Largest |trainer - rollout| of some tokens; the promise is 0.
fn mismatch(buffers: &StepBuffers, tokens: Range<usize>) -> f64 {
    let pairs = buffers.logprobs[tokens.clone()].iter().zip(&buffers.old_logprobs[tokens]);
    pairs.map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
}

/// The options of the update in a step: learning rate by warm-up and schedule.
pub fn update_options(train: &Train, step: u32, seed: u64) -> UpdateOptions {
    UpdateOptions {
        lr: (train.learning_rate * lr_factor(train, step)) as f32,
        betas: (train.betas[0] as f32, train.betas[1] as f32),
        weight_decay: train.weight_decay as f32,
        grad_clip: train.grad_clip as f32,
        seed,
    }
}

/// Factor of a learning rate in a step: warm-up, then the schedule.
pub(crate) fn lr_factor(train: &Train, step: u32) -> f64 {
    let (step, warmup, steps) = (f64::from(step), f64::from(train.warmup_steps), f64::from(train.steps));
    if step <= warmup {
        return step / warmup;
    }
    // The last step has the last value above 0.
    let progress = (step - 1.0 - warmup) / (steps - warmup).max(1.0);
    match train.schedule {
        Schedule::Constant => 1.0,
        Schedule::Linear => 1.0 - progress,
        Schedule::Cosine => 0.5 * (1.0 + plimsoll_base::math::sin_cos(std::f64::consts::PI * progress).1),
    }
}

/// The loss of a step is NaN or infinite.
pub fn loss_not_finite(step: u32, loss: f64) -> Error {
    Error::new("loss-not-finite", format!("step {step}: the loss is {loss}"))
        .hint("lower train.learning_rate")
}
