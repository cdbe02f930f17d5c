//! Reserved keys that this build does not implement: they parse, and using one is `not-built`.

use super::{provenance::Provenance, sections::RunFile, values::Offload};
use crate::{Auto, Speculate, TrainedKind};
use plimsoll_base::{Error, Result};

/// Refuses what a run file asks for and this build does not implement.
pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    if let Some(environment) = run.environment.as_ref().filter(|_| run.trains() == TrainedKind::LanguageModel)
        && !environment.env.is_empty()
        && !environment.plays_agents()
        && !environment.is_graded()
        && !environment.plays_tasks()
        && !["text:", "python:", "gym:", "openenv:"].iter().any(|kind| environment.env.starts_with(kind))
    {
        let asked = format!("\"{}\" with a language model", environment.env);
        let built = "text environments (text:NAME, python:FILE.py:CLASS, tools, harbor, gym:ID, openenv:URL, http-agent), and native ones with model = \"mlp:64x64\"";
        return Err(error(at, "environment.env", &asked, built));
    }
    if let Auto::Value(stage) = run.run.zero_stage {
        // Run directories of earlier builds have 0.
        if !matches!(stage, 0 | 2 | 3) {
            return Err(error(at, "run.zero_stage", &stage.to_string(), "2, 3 and \"auto\""));
        }
    }
    if matches!(run.rollout.speculate, Speculate::Mtp | Speculate::Trained) {
        let asked = format!("\"{}\"", run.rollout.speculate);
        return Err(error(at, "rollout.speculate", &asked, "\"ngram\", \"suffix\" and \"auto\""));
    }
    if run.memory.offloads(Offload::Gradients) {
        return Err(error(at, "memory.offload", "\"gradients\"", "\"optimizer\" and \"reference\""));
    }
    Ok(())
}

/// Returns the `not-built` error for `asked` at `key`; `built` names what is implemented.
pub fn error(at: &Provenance, key: &str, asked: &str, built: &str) -> Error {
    at.error("not-built", key, &format!("`{key}`: {asked} is not built yet"))
        .hint(format!("built is {built}"))
}
