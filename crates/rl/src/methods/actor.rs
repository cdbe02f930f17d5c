//! The actor's part of a step: epochs of mini-batches, each with one optimizer update, and the loss of a micro-batch.

use crate::arrays::{MicroArrays, TokenArrays};
use crate::context::StepContext;
use crate::methods::batch::Batch;
use crate::methods::parts::StepParts;
use crate::roles::{InOrder, Trainer, UpdateStats};
use plimsoll_algo::aggregation::Aggregation;
use plimsoll_algo::covariance::add_penalties;
use plimsoll_algo::divergence::divergence_loss;
use plimsoll_algo::entropy::{EntropySums, entropy_bonus};
use plimsoll_algo::kl::{KlLoss, KlSums, add_kl_loss};
use plimsoll_algo::policy_loss::{PolicyBatch, PolicySums, policy_loss};
use plimsoll_base::{Error, Result, slugs};
use plimsoll_config::Objective;
use plimsoll_plan::RoleName;
use plimsoll_run::ending::finite_loss;
use std::ops::Range;

#[derive(Clone, Copy, Debug, Default)]
pub struct ActorReport {
    pub policy: PolicySums,
    pub kl: KlSums,
    pub entropy: EntropySums,
    /// Sums of the divergence from a teacher, if it is part of the loss.
    pub divergence: Option<KlSums>,
    /// Counters of the last update.
    pub update: UpdateStats,
    /// Updates made, whose losses `policy` and `divergence` add.
    pub updates: u32,
    pub rows: u64,
    /// Seconds of all updates in which ranks exchange, as in their counters.
    pub exchange_s: Option<f64>,
    /// Learning rate of the step; 0 without an update.
    pub learning_rate: f64,
    /// Largest |l - l_old| before the weights changed.
    pub mismatch_max: f64,
}

/// Sums of a micro-batch.
#[derive(Default)]
pub(crate) struct ActorSums {
    pub policy: PolicySums,
    pub kl: KlSums,
    pub entropy: EntropySums,
    pub divergence: Option<KlSums>,
    pub mismatch_max: f64,
}

impl ActorReport {
    /// Counts an update that was made.
    pub(crate) fn count(&mut self, stats: UpdateStats) {
        self.rows += stats.rows;
        self.updates += 1;
        if let Some(seconds) = stats.exchange_s {
            *self.exchange_s.get_or_insert_default() += seconds;
        }
        self.update = stats;
    }

    pub(crate) fn add(&mut self, micro: ActorSums) {
        self.policy.merge(micro.policy);
        self.kl.merge(micro.kl);
        self.entropy.merge(micro.entropy);
        if let Some(of) = micro.divergence {
            self.divergence.get_or_insert_default().merge(of);
        }
        self.mismatch_max = self.mismatch_max.max(micro.mismatch_max);
    }
}

/// The loss of a mini-batch, micro-batch by micro-batch.
pub(crate) struct ActorLoss<'l> {
    pub objective: &'l Objective,
    pub aggregation: Aggregation,
    /// Factor of the divergence from a teacher, if it is part of the loss.
    pub divergence_coef: Option<f64>,
    pub step: u32,
    /// The parts that weigh tokens.
    pub parts: &'l StepParts,
    /// True before the first update of the step: no weight has changed since l_old was recorded.
    pub on_policy: bool,
}

/// Makes all optimizer updates of a rollout. `kl`: the sums of a KL term that is part of the reward.
///
/// Errors: `logprob-mismatch`, `loss-not-finite`, `gradient-not-finite`; those of the device.
pub(crate) fn actor_updates(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    batch: &Batch<'_>,
    kl: KlSums,
) -> Result<ActorReport> {
    let mut report = ActorReport { kl, ..ActorReport::default() };
    let (train, step) = (cx.run.train(), batch.step);
    if cx.run.critic().and_then(|critic| critic.warmup_steps).is_some_and(|steps| step <= steps) {
        return Ok(report); // Only the critic learns.
    }
    let samples = batch.sequences.len();
    let mini_batch = train.mini_batch.map_or(samples, |n| n as usize);
    let how = train.update_options(step, cx.run.seed);
    let divergence_coef = cx.run.distill().and_then(|how| how.divergence().and(Some(how.coef)));
    report.learning_rate = f64::from(how.lr);
    for epoch in 0..train.epochs_per_rollout {
        for first in (0..samples).step_by(mini_batch) {
            let which = first..(first + mini_batch).min(samples);
            let Some((tokens, sequences)) = trainer.arrays.trained(&which) else { continue };
            let aggregation = cx.objective.aggregation_of(tokens, sequences);
            let on_policy = epoch == 0 && first == 0;
            let objective = &cx.objective;
            let parts = &*cx.parts;
            let loss = ActorLoss { objective, aggregation, divergence_coef, step, parts, on_policy };
            let mut of_tokens = loss.adding(trainer.arrays.tokens(&which).start, &mut report);
            let (role, inv_temperature) = (RoleName::Actor, batch.inv_temperature);
            let stats =
                trainer.update(role, &batch.sequences, which, inv_temperature, how, &mut of_tokens)?;
            drop(of_tokens);
            report.count(stats);
        }
    }
    if let Some(kl) = &mut cx.objective.kl {
        kl.controller.update(report.kl.mean_kl(), samples);
    }
    Ok(report)
}

impl ActorLoss<'_> {
    /// Returns what an update calls for each micro-batch, from token `first` of the step on: it adds their sums to
    /// `report` in their order.
    pub(crate) fn adding<'r>(
        &'r self,
        first: usize,
        report: &'r mut ActorReport,
    ) -> impl FnMut(&mut TokenArrays, Range<usize>) -> Result<()> + 'r {
        let mut order = InOrder::from(first, |micro| report.add(micro));
        move |buffers, tokens| {
            order.add(tokens.clone(), self.micro_batch(buffers, tokens)?);
            Ok(())
        }
    }

    /// Writes the derivatives for the tokens of a micro-batch, and returns its sums.
    fn micro_batch(&self, buffers: &mut TokenArrays, tokens: Range<usize>) -> Result<ActorSums> {
        let (objective, aggregation) = (self.objective, &self.aggregation);
        let mut of = ActorSums::default();
        if self.on_policy {
            of.mismatch_max = checked_mismatch(self.step, buffers, &tokens)?;
        }
        let is_fresh = buffers.stale.is_empty();
        let weights = self.parts.correction.as_ref().map(|of| &of.weights[tokens.clone()]);
        let penalties = self.parts.choice.as_ref().map(|of| &of.penalties[tokens.clone()]);
        let micro = buffers.micro_batch(tokens);
        let batch = PolicyBatch {
            packed: micro.packed,
            logp: micro.logprobs,
            old_logp: micro.old_logprobs,
            advantages: micro.advantages,
            weights,
        };
        let mut sums = policy_loss(&objective.loss, &batch, aggregation, micro.d_logprobs);
        if self.on_policy && is_fresh {
            check_ratio(self.step, &sums)?;
        }
        if let Some(kl) = objective.kl.filter(|kl| !kl.in_reward) {
            let options =
                KlLoss { estimator: kl.estimator, coef: kl.controller.coef(), unbiased: kl.unbiased };
            let kl = add_kl_loss(
                &options,
                micro.packed,
                micro.logprobs,
                micro.old_logprobs,
                micro.ref_logprobs,
                aggregation,
                micro.d_logprobs,
            );
            sums.loss += kl.loss;
            of.kl = kl;
        }
        if let Some(penalties) = penalties {
            let MicroArrays { packed, logprobs, old_logprobs, .. } = micro;
            sums.loss +=
                add_penalties(penalties, packed, logprobs, old_logprobs, aggregation, micro.d_logprobs);
        }
        of.entropy =
            entropy_bonus(objective.entropy_coef, micro.packed, micro.entropy, aggregation, micro.d_entropy);
        sums.loss += of.entropy.loss;
        if let Some(coef) = self.divergence_coef {
            let from = divergence_loss(coef, micro.packed, micro.divergence, aggregation, micro.d_divergence);
            sums.loss += from.loss;
            of.divergence = Some(from);
        }
        finite_loss(self.step, sums.loss)?;
        of.policy = sums;
        Ok(of)
    }
}

/// Returns the mismatch of these tokens, which must be a number.
fn checked_mismatch(step: u32, buffers: &TokenArrays, tokens: &Range<usize>) -> Result<f64> {
    let differs = mismatch(buffers, tokens.clone());
    if differs == 0.0 || differs.is_finite() && buffers.stale.is_empty() {
        return Ok(differs);
    }
    if differs.is_finite() {
        return Err(Error::new(slugs::LOGPROB_MISMATCH, format!("step {step}: log-probabilities of tokens that the newest weights drew differ by up to {differs:e}, and must not"))
            .hint("this is a bug in plimsoll or a fault of the machine: `plimsoll bench exactness` looks for it"));
    }
    let message = format!("step {step}: a token is trained that the rollout did not sample");
    Err(Error::new(slugs::LOGPROB_MISMATCH, message)
        .hint("this is a bug in plimsoll: the loss mask includes an environment's words"))
}

/// Returns the largest |l - l_old| of the trained tokens among these; 0 is promised. A token that the rollout did not
/// sample is NaN, and counts as infinite.
fn mismatch(buffers: &TokenArrays, tokens: Range<usize>) -> f64 {
    let trained = tokens.filter(|&t| buffers.mask[t] != 0.0 && !buffers.is_stale(t));
    let differs = |t: usize| f64::from((buffers.logprobs[t] - buffers.old_logprobs[t]).abs());
    trained.map(differs).fold(0.0, |most, by| if by.is_nan() { f64::INFINITY } else { most.max(by) })
}

/// Requires a ratio of exactly 1 in the first mini-batch of a step: no weight has changed since l_old was recorded,
/// whatever the method.
///
/// Errors: `logprob-mismatch`.
fn check_ratio(step: u32, sums: &PolicySums) -> Result<()> {
    if sums.tokens == 0.0 || (sums.ratio_min == 1.0 && sums.ratio_max == 1.0) {
        return Ok(());
    }
    let (low, high) = (sums.ratio_min, sums.ratio_max);
    let message =
        format!("step {step}: before the first update the ratios are {low:e} to {high:e}, and must be 1");
    Err(Error::new(slugs::LOGPROB_MISMATCH, message)
        .fact(
            "the trainer's log-probabilities are not those that the policy had when it was sampled or scored",
        )
        .hint("this is a bug in plimsoll or a fault of the machine: `plimsoll bench exactness` looks for it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_algo::aggregation::Aggregation;
    use plimsoll_algo::method::METHODS;
    use plimsoll_algo::packed::Packed;
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
        for (spec, sampling) in METHODS.iter().filter_map(|spec| Some((spec, spec.sampling?))) {
            let same = sums(&sampling.loss, [-0.5, -1.25, -0.03, f32::NAN]);
            assert!(check_ratio(1, &same).is_ok(), "{}", spec.method);
            // The last bit of one log-probability.
            let off = f32::from_bits(0.5f32.to_bits() + 1);
            let error = check_ratio(1, &sums(&sampling.loss, [-off, -1.25, -0.03, 0.0]))
                .expect_err(spec.method.name());
            assert_eq!(error.slug, "logprob-mismatch", "{}", spec.method);
        }
        assert!(check_ratio(1, &PolicySums::default()).is_ok(), "nothing is trained");
    }
}
