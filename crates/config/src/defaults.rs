//! Defaults that depend on the method, from the method table of `algo`.

use super::estimator::Estimator;
use super::provenance::{Origin, Provenance};
use super::sections::RunFile;
use super::values::DynamicSampling;
use plimsoll_algo::{advantage::Advantage, method::Method};

/// The least of SimPO's paper; that of DPO is far too small for means over tokens.
const SIMPO_BETA: f64 = 2.0;
/// The value clip of TRL and Open-Reasoner-Zero.
const VALUE_CLIP: f64 = 0.2;
/// verl's DAPO recipe makes at most ten batches, of which the first is no retry.
const DYNAMIC_SAMPLING_RETRIES: u32 = 10;
/// OpenRLHF's band.
const CORRECTION_BAND: [f64; 2] = [0.5, 5.0];

/// Fills in what the method sets and the run file does not.
pub(super) fn fill(run: &mut RunFile, provenance: &mut Provenance) {
    if run.method == Method::Simpo && !provenance.origins.contains_key("loss.dpo_beta") {
        run.loss.dpo_beta = SIMPO_BETA;
        provenance.origins.insert("loss.dpo_beta".to_string(), Origin::Method);
    }
    let Some(spec) = run.method.spec().sampling else { return };
    let (has_critic, compares) = (run.method.needs().critic, run.learns_from_rewards());
    let mut filled: Vec<&str> = Vec::new();
    let mut note = |was_none: bool, key| {
        if was_none {
            filled.push(key);
        }
    };
    note(run.loss.policy.is_none(), "loss.policy");
    let policy = *run.loss.policy.get_or_insert(spec.loss.kind());
    if let Some([clip_low, clip_high]) = spec.loss_of(policy).clips() {
        note(run.loss.clip_low.is_none(), "loss.clip_low");
        note(run.loss.clip_high.is_none(), "loss.clip_high");
        run.loss.clip_low.get_or_insert(clip_low);
        run.loss.clip_high.get_or_insert(clip_high);
    }
    if run.loss.dynamic_sampling.and_then(DynamicSampling::filter).is_some() {
        run.loss.dynamic_sampling_retries.get_or_insert(DYNAMIC_SAMPLING_RETRIES);
    }
    if run.loss.correction.is_some() {
        run.loss.correction_band.get_or_insert(CORRECTION_BAND);
    }
    note(run.loss.covariance.is_none() && spec.covariance.is_some(), "loss.covariance");
    run.loss.covariance = run.loss.covariance.or(spec.covariance);
    run.loss.fill_covariance();
    note(run.loss.aggregation.is_none(), "loss.aggregation");
    note(run.loss.advantage.is_none(), "loss.advantage");
    note(run.loss.whiten.is_none(), "loss.whiten");
    run.loss.aggregation.get_or_insert(spec.aggregation);
    run.loss.whiten.get_or_insert(spec.whiten);
    run.loss.advantage.get_or_insert(Estimator::Named(match (has_critic, spec.shaping) {
        (true, _) => Advantage::Gae,
        _ if !compares => Advantage::None,
        (false, shaping) => Advantage::of_shaping(shaping),
    }));
    if has_critic {
        let learning_rate = run.train.learning_rate;
        let critic = run.critic.get_or_insert_default();
        note(critic.learning_rate.is_none(), "critic.learning_rate");
        note(critic.value_clip.is_none(), "critic.value_clip");
        note(critic.warmup_steps.is_none(), "critic.warmup_steps");
        critic.learning_rate.get_or_insert(learning_rate);
        critic.value_clip.get_or_insert(VALUE_CLIP);
        critic.warmup_steps.get_or_insert(0);
    }
    for key in filled {
        provenance.origins.insert(key.to_string(), Origin::Method);
    }
}
