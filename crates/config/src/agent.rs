//! The run file of an environment policy: values of absent keys, and refusals.

use super::limits::{bad_value, contradiction, divisor};
use super::provenance::{Origin, Provenance};
use super::sections::{RunFile, is_python_env};
use super::values::{Auto, ByteSize, RunDevice};
use crate::TrainedKind;
use plimsoll_base::{Bytes, Error, Result};

/// Number of environments if the run file sets none.
const NUM_ENVS: u32 = 8;
/// Frames of an environment in a batch if the run file sets none.
const FRAMES_EACH: u32 = 128;
/// Factor of the value loss in CleanRL and Stable-Baselines3.
const VALUE_COEF: f64 = 0.5;
/// Memory limit of a worker of Python environments if the run file sets none.
const WORKER_MEMORY: Bytes = Bytes(2 << 30);
/// Values of `eval.metric`: the mean return of the evaluation episodes.
const EVAL_METRICS: [&str; 3] = ["reward", "return", "eval/return"];

/// Fills in keys that follow from others.
pub(super) fn fill(run: &mut RunFile, provenance: &mut Provenance) {
    if run.trains() == TrainedKind::LanguageModel {
        return;
    }
    let Some(environment) = &mut run.environment else { return };
    let says_worker_memory = provenance.origins.contains_key("environment.worker_memory");
    let mut note = |key: &str| drop(provenance.origins.insert(key.into(), Origin::Method));
    if environment.num_envs.is_none() {
        note("environment.num_envs");
    }
    let num_envs = *environment.num_envs.get_or_insert(NUM_ENVS);
    if is_python_env(&environment.env) && !says_worker_memory {
        note("environment.worker_memory");
        environment.worker_memory = ByteSize(WORKER_MEMORY);
    }
    if environment.frames_per_batch.is_none() {
        note("environment.frames_per_batch");
    }
    let frames = *environment.frames_per_batch.get_or_insert(num_envs.saturating_mul(FRAMES_EACH));
    if let (Some(total), 0) = (environment.total_frames, run.train.steps) {
        note("train.steps");
        run.train.steps = u32::try_from(total / u64::from(frames.max(1))).unwrap_or(u32::MAX).max(1);
    }
    if run.train.mini_batch.is_none() {
        note("train.mini_batch");
    }
    run.train.mini_batch.get_or_insert(frames);
    if let Some(critic) = &mut run.critic
        && critic.value_coef.is_none()
    {
        note("critic.value_coef");
        critic.value_coef = Some(VALUE_COEF);
    }
    if run.run.device == Auto::Auto {
        // Small networks stay on the host on every machine.
        note("run.device");
        run.run.device = Auto::Value(RunDevice::Cpu);
    }
}

/// Requires keys without a default.
pub(super) fn required(run: &RunFile, at: &Provenance) -> Result<()> {
    match run.environment.as_ref().and_then(|environment| environment.total_frames) {
        Some(_) => Ok(()),
        None => Err(super::de::missing_key(&at.source, &Origin::Default, "environment.total_frames")),
    }
}

/// Checks the keys of an environment policy after `fill`.
pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    let environment = run.environment.as_ref().expect("an environment policy has an environment");
    if environment.env.is_empty() {
        return Err(at
            .error("bad-value", "environment.env", "`environment.env` is empty")
            .hint("set environment.env = \"CartPole-v1\""));
    }
    evaluation(run, at)?;
    batches(run, at)
}

/// Checks the evaluation: whole episodes, of the most likely actions or of sampled ones.
fn evaluation(run: &RunFile, at: &Provenance) -> Result<()> {
    let eval = &run.eval;
    if eval.temperature != 0.0 && eval.temperature != 1.0 {
        let wanted = "0 for the most likely actions, or 1 for sampled actions";
        return Err(bad_value(at, "eval.temperature", eval.temperature, wanted));
    }
    if !EVAL_METRICS.contains(&eval.metric.as_str()) {
        let message = format!("`eval.metric` is \"{}\", which this run does not measure", eval.metric);
        return Err(at
            .error("unknown-metric", "eval.metric", &message)
            .fact(format!("it measures {}", EVAL_METRICS.join(", ")))
            .hint("set eval.metric = \"reward\": the mean return of an episode"));
    }
    Ok(())
}

/// Requires that frames divide into environments and mini-batches.
fn batches(run: &RunFile, at: &Provenance) -> Result<()> {
    let environment = run.environment.as_ref().expect("an environment policy has an environment");
    let (envs, frames) = (environment.num_envs.unwrap_or(0), environment.frames_per_batch.unwrap_or(0));
    if !frames.is_multiple_of(envs) {
        let message = format!(
            "environment.frames_per_batch = {frames} is not a whole number of frames for each of {envs} environments"
        );
        let whole = (frames / envs).max(1) * envs;
        return Err(contradiction(at, "environment.frames_per_batch", &message)
            .hint(format!("set environment.frames_per_batch = {whole}")));
    }
    let mini_batch = run.train.mini_batch.unwrap_or(frames);
    if !frames.is_multiple_of(mini_batch) {
        let message =
            format!("train.mini_batch = {mini_batch} does not divide the {frames} frames of a batch");
        let below = divisor(u64::from(frames), u64::from(mini_batch));
        return Err(contradiction(at, "train.mini_batch", &message)
            .hint(format!("set train.mini_batch = {below}, or remove it for one update a pass")));
    }
    if environment.total_frames.is_some_and(|total| total < u64::from(frames)) {
        return Err(bad_frames(at, frames));
    }
    Ok(())
}

fn bad_frames(at: &Provenance, frames: u32) -> Error {
    let message = format!("environment.total_frames is less than the {frames} frames of one batch");
    contradiction(at, "environment.total_frames", &message)
        .hint(format!("set environment.total_frames to at least {frames}"))
}
