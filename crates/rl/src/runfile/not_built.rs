//! Keys that have their names already and no code yet: they parse, and using one is `not-built`.

use super::provenance::Provenance;
use super::sections::{RunFile, VerbFile};
use super::values::{MaskHole, Method, Offload};
use plimsoll_base::{Error, Result};

/// Refuses what a run file asks for and this build cannot do.
pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    let methods = "grpo, dr_grpo, rloo, reinforce, reinforce_baseline, gspo, cispo, sapo, ppo and sft";
    if matches!(run.method, Method::Dpo | Method::RewardModel) {
        return Err(error(at, "method", run.method.name(), methods));
    }
    if run.environment.is_some() {
        return Err(error(at, "environment", "an environment", "[data] with prompts"));
    }
    if run.run.zero_stage != 0 {
        return Err(error(at, "run.zero_stage", &run.run.zero_stage.to_string(), "0: one process"));
    }
    if run.memory.offloads(Offload::Gradients) {
        return Err(error(at, "memory.offload", "\"gradients\"", "\"optimizer\" and \"reference\""));
    }
    loss(run, at)?;
    for (key, path) in [("data.prompts", &run.data.prompts), ("data.eval", &run.data.eval)] {
        parquet(path.as_deref(), key, at)?;
    }
    Ok(())
}

/// The same for what `generate` and `eval` take.
pub(super) fn check_verb(verb: &VerbFile, at: &Provenance) -> Result<()> {
    parquet(verb.data.eval.as_deref().or(verb.data.prompts.as_deref()), "data.eval", at)
}

fn loss(run: &RunFile, at: &Provenance) -> Result<()> {
    if run.loss.correction.is_some() {
        return Err(error(
            at,
            "loss.correction",
            "a correction",
            "rollouts of the trained weights, where it would be exactly 1",
        ));
    }
    if run.loss.dynamic_sampling.is_some() || run.loss.dynamic_sampling_retries.is_some() {
        return Err(error(at, "loss.dynamic_sampling", "dynamic sampling", "steps that keep every group"));
    }
    if run.loss.mask_hole == MaskHole::ZeroValue {
        return Err(error(at, "loss.mask_hole", "\"zero_value\"", "\"skip\""));
    }
    Ok(())
}

fn parquet(path: Option<&str>, key: &str, at: &Provenance) -> Result<()> {
    match path {
        Some(path) if path.ends_with(".parquet") => Err(error(at, key, "a Parquet file", "JSON lines")
            .hint("convert it: python -c \"import pandas; pandas.read_parquet('a.parquet').to_json('a.jsonl', orient='records', lines=True)\"")),
        _ => Ok(()),
    }
}

/// `not-built` for `asked` at `key`, with what there is.
pub(super) fn error(at: &Provenance, key: &str, asked: &str, built: &str) -> Error {
    at.error("not-built", key, &format!("`{key}`: {asked} is not built yet"))
        .hint(format!("built is {built}"))
}
