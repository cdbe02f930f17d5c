//! The synchronous step of the methods that sample: rollout, reward, score, advantage, update.
//! Legend: P prompts, G samples each, N response tokens of the step.

use crate::arrays::TokenArrays;
use crate::context::StepContext;
use crate::flops::{step_flops, update_passes};
use crate::methods::actor::actor_updates;
use crate::methods::batch::Batch;
use crate::methods::critic::{critic_updates, gae_advantages};
use crate::methods::report::StepReport;
use crate::methods::{metrics, turns};
use crate::roles::Trainer;
use crate::supply::Supply;
use crate::supply::gathered::Gathered;
use crate::supply::group::SampleGroup;
use plimsoll_algo::advantage::{KlReward, discounted_returns, token_rewards, whiten};
use plimsoll_algo::kl::KlSums;
use plimsoll_algo::packed::Packed;
use plimsoll_algo::shaping::{GroupShaping, decoupled, shape_rewards, subtract_greedy};
use plimsoll_base::Result;
use plimsoll_config::{Objective, RunSpec};
use plimsoll_plan::RoleName;
use plimsoll_reward::Scored;
use plimsoll_run::{status::Doing, vitals::Vitals};
use std::time::Instant;

/// Makes one step over the samples of its supply. `step` counts from 1.
///
/// Errors: `dynamic-sampling-exhausted`, `logprob-mismatch`, `loss-not-finite`, `gradient-not-finite`; those of
/// sampling and of the rewards. `cx.cursor` is then past what the step sampled, and must not be kept.
pub fn step(
    trainer: &mut Trainer<'_>,
    supply: &mut dyn Supply,
    cx: &mut StepContext<'_>,
    step: u32,
) -> Result<StepReport> {
    // 1. Rollout and 2. reward: responses are graded as they end.
    let mut gathered = Gathered::default();
    let samples = supply.next(trainer, cx, step, &mut gathered)?;
    let made = match &samples {
        Some(samples) => train(trainer, cx, &Batch::new(cx.run, samples, step)),
        None => Ok(StepReport::default()),
    };
    let mut report = supply.commit(trainer, cx, step, made, &mut gathered)?;
    report.add_rollout(gathered, cx.run.rollout.group_size as usize);
    report.samples = samples;
    Ok(report)
}

/// Runs the parts of a step that read no data: score, advantage and update.
fn train(trainer: &mut Trainer<'_>, cx: &mut StepContext<'_>, batch: &Batch<'_>) -> Result<StepReport> {
    let mut report = StepReport::default();
    begin_arrays(trainer, cx, batch);

    // 3. Score: log-probs of the reference and the teacher, if any, and of the actor, if another version sampled.
    (cx.edge)(Doing::Score);
    let started = Instant::now();
    let (sequences, inv_temperature) = (&batch.sequences, batch.inv_temperature);
    // A reference that is the teacher alone reads the teacher's prompts below, and nothing else.
    if cx.objective.kl.is_some() {
        trainer.score_into(RoleName::Reference, sequences, inv_temperature, |b| &mut b.ref_logprobs)?;
    }
    if let Some(teaching) = &mut cx.parts.teaching {
        report.teacher = teaching.score(trainer, batch)?;
    }
    // Ratios to what drew each token need no other numbers than those recorded with it; a correction weighs the two.
    let corrects_old = cx.objective.correction.is_some() && batch.has_stale();
    if !batch.is_recorded || corrects_old {
        trainer.score_into(RoleName::Actor, sequences, inv_temperature, |b| &mut b.old_logprobs)?;
        trainer.arrays.stale.clear();
    }
    if let Some(sharp) = &mut cx.parts.sharp {
        sharp.score(trainer, batch)?;
    }
    report.add("time/score", started.elapsed().as_secs_f64());

    // 4. Advantage; with a critic, from its values, and its updates towards their targets.
    let started = Instant::now();
    if trainer.role(RoleName::Critic).is_some() {
        (cx.edge)(Doing::Critic);
    }
    trainer.score_into(RoleName::Critic, sequences, 1.0, |b| &mut b.values_mut().old_values)?;
    let kl = advantages(trainer, cx, batch, &mut report)?;
    let critic = critic_updates(trainer, cx, batch)?;
    let critic_seconds = started.elapsed().as_secs_f64();

    // 5. Update. 6. The new weights are already where the rollout reads them.
    (cx.edge)(Doing::Update);
    let started = Instant::now();
    let actor = actor_updates(trainer, cx, batch, kl)?;
    report.seconds.update = started.elapsed().as_secs_f64();

    report.add_actor(&actor);
    report.vitals.loss = Some(actor.policy.loss);
    report.vitals.grad_norm = (actor.rows > 0).then_some(actor.update.grad_norm);
    if let Some(critic) = critic {
        report.metrics.extend(metrics::of_critic(&critic));
        report.add("ratio/mean", actor.policy.mean_ratio());
        report.add("time/critic", critic_seconds);
    }
    let shape = trainer.sampler.shape;
    let flops = update_passes(shape.lora.is_some()) * step_flops(&shape.spec, &batch.sequences);
    report.add_samples(cx, batch, flops);
    Ok(report)
}

/// Compares each reward of a sample within its group by itself; the weighted sums are the shaped rewards.
fn decouple(run: &RunSpec, batch: &Batch<'_>, eps: f64, shaped: &mut [f32]) {
    let mut weights = run.reward_weights();
    let scored = batch.groups.iter().flat_map(|group| &group.scored);
    let parts: Vec<&[Option<f32>]> = if weights.is_empty() {
        // An environment gives one reward.
        scored.map(|scored| std::slice::from_ref(&scored.total)).collect()
    } else {
        scored.map(|scored| &scored.parts[..]).collect()
    };
    if weights.is_empty() {
        weights.push(1.0);
    }
    decoupled(&parts, &weights, run.rollout.group_size as usize, eps, shaped);
}

/// Begins the arrays of the step, with the log-probs that the rollout recorded.
fn begin_arrays(trainer: &mut Trainer<'_>, cx: &mut StepContext<'_>, batch: &Batch<'_>) {
    let (arrays, samples) = (&mut trainer.arrays, batch.samples);
    arrays.begin(batch.which.clone().map(|s| samples.ids(s).len()));
    for (i, s) in batch.which.clone().enumerate() {
        arrays.set_rollout_logprobs(i, samples.logprobs(s));
        arrays.train_only(i, samples.turns(s));
    }
    arrays.stale.extend_from_slice(batch.stale);
    if cx.run.trains.samples().is_some_and(|of| of.mask_truncated) {
        batch.cut().for_each(|i| arrays.leave_out(i));
    }
    cx.parts.correction.iter_mut().for_each(|correction| correction.begin(arrays));
}

/// Returns the response tokens of each sample, over all of its sequences.
fn lengths_of(batch: &Batch<'_>, buffers: &TokenArrays) -> Vec<usize> {
    let mut lengths = vec![0; batch.groups.iter().map(|group| group.scored.len()).sum()];
    for (s, &owner) in batch.owners.iter().enumerate() {
        lengths[owner] += buffers.offsets[s + 1] - buffers.offsets[s];
    }
    lengths
}

/// Shapes rewards by a baseline that needs more than the sums of a group.
fn compare(run: &RunSpec, batch: &Batch<'_>, shaping: GroupShaping, shaped: &mut [f32]) {
    match shaping {
        GroupShaping::Decoupled { eps } => decouple(run, batch, eps, shaped),
        GroupShaping::Greedy => {
            let greedy: Vec<Option<f32>> = batch.groups.iter().map(|group| group.greedy).collect();
            subtract_greedy(&greedy, run.rollout.group_size as usize, shaped);
        }
        _ => {}
    }
}

/// Returns the reward of each sample; none of a group whose greedy answer has none, if they are compared with it.
fn totals_of(batch: &Batch<'_>, shaping: GroupShaping) -> Vec<Option<f32>> {
    let one = |group: &SampleGroup| {
        let has_baseline = shaping != GroupShaping::Greedy || group.greedy.is_some();
        let total = |scored: &Scored| scored.total.filter(|_| has_baseline);
        group.scored.iter().map(total).collect::<Vec<_>>()
    };
    batch.groups.iter().flat_map(one).collect()
}

/// Writes the discounted returns of token rewards as advantages.
fn returns(gamma: f64, arrays: &mut TokenArrays) {
    let TokenArrays { mask, offsets, token_rewards, advantages, .. } = arrays;
    discounted_returns(gamma, Packed { mask, seq_offsets: offsets }, token_rewards, advantages);
}

/// Gives each sequence's reward to its tokens, less the KL term if it is part of the reward. Returns its sums.
fn reward_tokens(objective: &Objective, shaped: &[f32], arrays: &mut TokenArrays) -> KlSums {
    let packed = Packed { mask: &arrays.mask, seq_offsets: &arrays.offsets };
    let kl = objective.kl.filter(|kl| kl.in_reward).map(|kl| KlReward {
        estimator: kl.estimator,
        coef: kl.controller.coef(),
        old_logp: &arrays.old_logprobs,
        ref_logp: &arrays.ref_logprobs,
    });
    let has_kl = kl.is_some();
    let sums = token_rewards(packed, shaped, kl, &mut arrays.token_rewards);
    if has_kl { sums } else { KlSums::default() }
}

/// Turns rewards into one advantage per token. Returns the sums of a KL term that is part of the reward.
fn advantages(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    batch: &Batch<'_>,
    report: &mut StepReport,
) -> Result<KlSums> {
    let (objective, arrays) = (&cx.objective, &mut trainer.arrays);
    let lengths = lengths_of(batch, arrays);
    let totals = totals_of(batch, objective.shaping.group);
    let mut shaped = vec![0f32; lengths.len()];
    let group = cx.run.rollout.group_size as usize;
    let rewards = shape_rewards(&objective.shaping, &totals, &lengths, group, &mut shaped)?;
    compare(cx.run, batch, objective.shaping.group, &mut shaped);
    let scored = totals.len() - rewards.num_left_out;
    report.reward = (scored > 0).then_some(rewards.reward);
    report.metrics.extend(metrics::of_rewards(&rewards, scored > 0));
    // A teacher needs no score; an episode without one has failed.
    let (teaches, needs_score) =
        (cx.run.distill(), cx.run.distill().is_none() || cx.player.episodes().is_some());
    if needs_score {
        let without = batch.owners.iter().enumerate().filter(|(_, owner)| totals[**owner].is_none());
        without.for_each(|(s, _)| arrays.leave_out(s));
    }
    let of_turns = turns::compare(cx, batch, arrays, &mut shaped)?;
    // Every sequence of a sample has the sample's reward.
    let shaped: Vec<f32> = batch.owners.iter().map(|&owner| shaped[owner]).collect();
    let kl_sums = reward_tokens(objective, &shaped, arrays);
    if let Some(episodes) = cx.player.episodes() {
        episodes.credit_turns(batch.samples, arrays);
    }
    if let Some(correction) = &mut cx.parts.correction {
        report.metrics.extend(metrics::of_correction(&correction.correct(arrays)));
    }
    match (&objective.gae, &mut cx.estimator) {
        (Some(how), _) => gae_advantages(how, arrays),
        (None, Some(own)) => own.estimate(batch, shaped, cx.run, trainer.group, arrays)?,
        (None, None) => {
            returns(objective.gamma, arrays);
            cx.parts.sharp.iter_mut().for_each(|sharp| sharp.subtract(batch, group, arrays));
        }
    }
    of_turns.iter().for_each(|it| it.credit(arrays));
    if let (Some(distill), Some(teaching)) = (teaches, &mut cx.parts.teaching) {
        let sums = teaching.weigh(distill, arrays);
        report.reverse_kl = Some(sums.mean_kl());
        report.add("distill/reverse_kl", sums.mean_kl());
        report.metrics.extend(teaching.metrics(arrays));
    }
    whiten(objective.whiten, &arrays.mask, &mut arrays.advantages);
    if let Some(choice) = &mut cx.parts.choice {
        let sums = choice.choose(arrays, (cx.run.seed, u64::from(batch.step)));
        report.metrics.extend(metrics::of_covariance(&sums));
    }
    let trained = arrays.mask.iter().zip(&arrays.advantages).filter(|(mask, _)| **mask != 0.0);
    let advantage_max = trained.map(|(_, advantage)| advantage.abs()).reduce(f32::max);
    report.vitals = Vitals {
        scored: needs_score.then_some([totals.len(), scored]),
        left_out: advantage_max.is_none(),
        // A divergence is learned without advantages.
        advantage_max: advantage_max.filter(|_| teaches.is_none_or(|how| how.divergence().is_none())),
        taught: teaches.is_some(),
        reward: report.reward,
        ..Vitals::default()
    };
    Ok(kl_sums)
}
