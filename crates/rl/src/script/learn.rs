//! Log-probabilities of sequences, and gradients of a loss over them, by the passes and losses of a run's own update.

use super::fault::{Fault, Served, bad_array, bad_request, out_of_order};
use super::held::form;
use super::link::Numbers;
use super::objective::asked;
use super::own::{OwnLoss, check, one_each};
use super::peer::Script;
use super::room::{ScriptArrays, ScriptGradients, ScriptLimits};
use super::step::{ScriptStep, begins};
use super::verbs::{LearnBy, LearnHow, ScoreHow};
use crate::arrays::TokenArrays;
use crate::context::StepContext;
use crate::flops::{step_flops, update_passes};
use crate::methods::actor::{ActorLoss, ActorReport};
use crate::roles::{Trainer, UpdateStats};
use plimsoll_config::Objective;
use plimsoll_device::Sampling;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::sampler::sampling;
use plimsoll_plan::RoleName;
use plimsoll_run::status::Doing;
use plimsoll_train::Sequence;
use serde_json::json;
use std::ops::Range;

impl Script {
    /// Answers with the log-probabilities of sequences under the actor or the reference.
    pub(super) fn score(
        &mut self,
        made: &mut ScriptStep,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        how: &ScoreHow,
    ) -> Served<()> {
        made.no_gradients_wait("score")?;
        let role = match how.role.as_str() {
            "actor" => RoleName::Actor,
            "reference" => RoleName::Reference,
            _ => return Err(bad_request("a role is \"actor\" or \"reference\"", "choose one")),
        };
        if trainer.role(role).is_none() {
            return Err(bad_request("this run has no reference", "set loss.kl_coef, which plans one"));
        }
        let inv_temperature = inv_temperature(cx, how.temperature)?;
        let form = form(&mut self.form, trainer, cx, how.schema.as_deref())?;
        let started = begins(cx, Doing::Score);
        let (arrays, out) = self.room.as_mut().expect("a run that has begun has its room");
        let sequences = arrays.sequences()?;
        out.logprobs.clear();
        out.logprobs.resize(arrays.tokens.len(), 0.0);
        let at =
            |which: &Range<usize>| arrays.offsets[which.start] as usize..arrays.offsets[which.end] as usize;
        let own = std::mem::replace(&mut trainer.form, form);
        let scored = trainer.score(role, &sequences, inv_temperature, &mut out.logprobs, at);
        trainer.form = own;
        scored?;
        made.flops += step_flops(&trainer.sampler.shape.spec, &sequences);
        made.score_s += started.elapsed().as_secs_f64();
        let numbers = [("logprobs", Numbers::F32(vec![&out.logprobs]))];
        self.link.answer(json!({ "version": trainer.updates() }), &numbers)?;
        Ok(())
    }

    /// Adds the gradients of a loss over sequences to those since the last update, and answers with what it computed.
    pub(super) fn learn(
        &mut self,
        made: &mut ScriptStep,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        how: &LearnHow,
    ) -> Served<()> {
        let goes_on = made.pending.is_some();
        if goes_on && !trainer.adds_up(RoleName::Actor) {
            return Err(out_of_order(
                "gradients of a second call are not added: train.fold or train.gradient_wire forms each by itself",
                "set train.fold = 1 and train.gradient_wire = \"f32\", or call step(more=True) between",
            ));
        }
        let objective = asked(&cx.objective, how)?;
        let inv_temperature = inv_temperature(cx, how.temperature)?;
        let form = form(&mut self.form, trainer, cx, how.schema.as_deref())?;
        let started = begins(cx, Doing::Update);
        let before = made.actor;
        let own = std::mem::replace(&mut trainer.form, form);
        let stats = self.gradients(made, trainer, cx, (how, &objective, inv_temperature, goes_on));
        trainer.form = own;
        let Some(stats) = stats? else {
            let metrics = json!({ "loss": 0.0, "tokens": 0 });
            self.link.answer(json!({ "metrics": metrics }), &[])?;
            return Ok(());
        };
        made.pending = Some(joined(made.pending.take(), stats));
        made.update_s += started.elapsed().as_secs_f64();
        let buffers = &trainer.arrays;
        let numbers = [
            ("logprobs", Numbers::F32(vec![&buffers.logprobs])),
            ("entropy", Numbers::F32(vec![&buffers.entropy])),
        ];
        self.link.answer(json!({ "metrics": numbers_of(&before, &made.actor) }), &numbers)?;
        Ok(())
    }

    /// Computes the gradients. Returns none where no token is trained.
    fn gradients(
        &mut self,
        made: &mut ScriptStep,
        trainer: &mut Trainer<'_>,
        cx: &mut StepContext<'_>,
        (how, objective, inv_temperature, goes_on): (&LearnHow, &Objective, f32, bool),
    ) -> Served<Option<UpdateStats>> {
        let Script { link, room, .. } = self;
        let (arrays, gradients) = room.as_mut().expect("a run that has begun has its room");
        let sequences = arrays.sequences()?;
        let is_fresh = how.version == Some(trainer.updates());
        let buffers = &mut trainer.arrays;
        buffers.begin(sequences.iter().map(|sequence| sequence.response.len()));
        fill(buffers, (arrays, gradients), how.by, objective)?;
        let which = 0..sequences.len();
        let Some(totals) = buffers.trained(&which) else { return Ok(None) };
        let whole = (how.total_tokens.unwrap_or(totals.0), how.total_sequences.unwrap_or(totals.1));
        if !(whole.0 >= totals.0 && whole.1 >= totals.1 && whole.0.is_finite() && whole.1.is_finite()) {
            return Err(bad_request("the totals of an update are below its own tokens", "leave them out"));
        }
        if how.by == LearnBy::Loss {
            let trained = buffers.mask.iter().zip(&buffers.advantages).filter(|(mask, _)| **mask != 0.0);
            let largest = trained.map(|(_, advantage)| advantage.abs()).reduce(f32::max);
            made.advantage_max = made.advantage_max.into_iter().chain(largest).reduce(f32::max);
        }
        let flops = update_passes(trainer.sampler.shape.lora.is_some())
            * step_flops(&trainer.sampler.shape.spec, &sequences);
        let mut report = made.actor;
        let pass = (inv_temperature, goes_on);
        let stats = match how.by {
            LearnBy::Loss => {
                let loss = ActorLoss {
                    objective,
                    aggregation: objective.aggregation_of(whole.0, whole.1),
                    divergence_coef: None,
                    step: made.step,
                    parts: cx.parts,
                    on_policy: is_fresh,
                };
                let mut of_tokens = loss.adding(0, &mut report);
                trainer
                    .add_gradients(RoleName::Actor, &sequences, which, pass, &mut of_tokens)
                    .map_err(Fault::of_pass)
            }
            LearnBy::Arrays | LearnBy::Questions => {
                // A question's answer has no arrays but its gradients.
                let mut none = ScriptArrays::bind(ScriptLimits::NONE).0;
                let mut own = OwnLoss {
                    by: how.by,
                    link,
                    arrays: &mut none,
                    gradients,
                    objective,
                    totals: whole,
                    refused: None,
                };
                report.policy.loss += how.loss_value.filter(|value| value.is_finite()).unwrap_or(0.0);
                let made = with_own(trainer, &sequences, pass, &mut own, &mut report);
                made.map_err(|error| {
                    own.refused.take().map_or_else(|| Fault::of_pass(error), Fault::OfRequest)
                })
            }
        };
        // What was added of a pass that failed cannot be taken away.
        let stats = stats.inspect_err(|_| made.pending = None)?;
        made.actor = report;
        made.learned += totals.0;
        made.flops += flops;
        Ok(Some(stats))
    }
}

/// Copies the arrays of a request to those of the step.
fn fill(
    buffers: &mut TokenArrays,
    (arrays, gradients): (&ScriptArrays, &ScriptGradients),
    by: LearnBy,
    objective: &Objective,
) -> Served<()> {
    take_mask(buffers, &arrays.mask)?;
    let TokenArrays { mask, old_logprobs, advantages, ref_logprobs, .. } = buffers;
    take("logprobs", &arrays.logprobs, mask, old_logprobs)?;
    match by {
        LearnBy::Loss => {
            take("advantages", &arrays.advantages, mask, advantages)?;
            match objective.kl {
                Some(_) => take("reference", &arrays.reference, mask, ref_logprobs),
                None => Ok(()),
            }
        }
        LearnBy::Arrays => check(gradients, mask.len(), mask),
        LearnBy::Questions => Ok(()),
    }
}

fn with_own(
    trainer: &mut Trainer<'_>,
    sequences: &[Sequence<'_>],
    pass: (f32, bool),
    own: &mut OwnLoss<'_>,
    report: &mut ActorReport,
) -> plimsoll_base::Result<UpdateStats> {
    let mut of_tokens = |buffers: &mut TokenArrays, tokens: Range<usize>| {
        report.add(own.micro_batch(buffers, tokens)?);
        Ok(())
    };
    trainer.add_gradients(RoleName::Actor, sequences, 0..sequences.len(), pass, &mut of_tokens)
}

/// Returns the scale of logits at a temperature.
fn inv_temperature(cx: &StepContext<'_>, temperature: f64) -> Served<f32> {
    if !temperature.is_finite() || temperature < 0.0 {
        return Err(bad_request(format!("temperature is {temperature}"), "give that of the samples"));
    }
    let how = Sampling { temperature: temperature as f32, ..sampling(&cx.run.rollout, 0) };
    Ok(how.inv_temperature())
}

fn take_mask(buffers: &mut TokenArrays, mask: &[f32]) -> Served<()> {
    if mask.is_empty() {
        return Ok(());
    }
    let tokens = buffers.num_tokens();
    if mask.len() != tokens {
        return Err(bad_array("mask", format!("{} entries for {tokens} tokens", mask.len())));
    }
    if let Some(at) = mask.iter().position(|of| *of != 0.0 && *of != 1.0) {
        return Err(bad_array("mask", format!("entry {at} is {}, and must be 0 or 1", mask[at])));
    }
    buffers.mask.copy_from_slice(mask);
    Ok(())
}

/// Takes an array with a number for each token, finite where the mask is 1.
fn take(name: &str, given: &[f32], mask: &[f32], out: &mut [f32]) -> Served<()> {
    one_each(name, given, out.len(), mask)?;
    out.copy_from_slice(given);
    Ok(())
}

/// Returns the counters of passes that were added up.
fn joined(before: Option<UpdateStats>, stats: UpdateStats) -> UpdateStats {
    let before = before.unwrap_or_default();
    UpdateStats {
        micro_batches: before.micro_batches + stats.micro_batches,
        rows: before.rows + stats.rows,
        forward_s: before.forward_s + stats.forward_s,
        backward_s: before.backward_s + stats.backward_s,
        ..stats
    }
}

/// Returns the numbers of one request: what it added to those of the step.
fn numbers_of(before: &ActorReport, after: &ActorReport) -> serde_json::Value {
    let (was, is) = (&before.policy, &after.policy);
    let tokens = is.tokens - was.tokens;
    let mean = |now: f64, then: f64| (now - then) / tokens.max(1.0);
    json!({
        "loss": is.loss - was.loss,
        "tokens": tokens,
        "clip_ratio_low": mean(is.clipped_low, was.clipped_low),
        "clip_ratio_high": mean(is.clipped_high, was.clipped_high),
        "kl_to_old": mean(is.kl_to_old, was.kl_to_old),
        "ratio": mean(is.ratios, was.ratios),
        "entropy": after.entropy.mean_entropy(),
        "kl": after.kl.mean_kl(),
        "logprob_mismatch_max": after.mismatch_max,
    })
}
