//! What episodes take of the host, and the lengths that a plan needs before one is played.

use super::glue::prompt;
use crate::dataset::{TextModel, forgetting};
use plimsoll_base::{Bytes, Result};
use plimsoll_config::RunFile;
use plimsoll_textenv::{EpisodeMemory, Hosts, Kind, Start};

/// Episodes that show how long an environment's prompts are.
const LOOKED_AT: u64 = 64;
/// The part of a run's shape that its environment decides.
pub fn episode_memory(run: &RunFile) -> EpisodeMemory {
    let Some(section) = &run.environment else { return EpisodeMemory::default() };
    let has_workers = Kind::parse(&section.env).is_ok_and(|kind| kind.has_workers());
    let workers = if has_workers { section.num_workers.value().unwrap_or(1) } else { 0 };
    EpisodeMemory {
        turns_max: run.turns_max(),
        workers: Bytes(section.worker_memory.0.0.saturating_mul(u64::from(workers))),
        threads: workers as usize,
        is_there: true,
    }
}

/// Longest prompt of a run's environment: what the run file says, else that of the first episodes, which are of one form.
///
/// Errors: those of the template and the tokenizer.
pub fn first_prompt_tokens(run: &RunFile, text: &TextModel) -> Result<usize> {
    let Some(section) = &run.environment else { return Ok(0) };
    if let Some(limit) = run.data.prompt_tokens_max {
        return Ok(limit as usize);
    }
    let seed = run.episode_seed();
    let starts: Vec<Start> = (0..LOOKED_AT).flat_map(|i| [Start::train(seed, i), Start::eval(i)]).collect();
    let firsts = Hosts::first_messages(&Kind::parse(&section.env)?, &section.host_settings(), &starts)?;
    let lengths: Result<Vec<usize>> =
        forgetting(|| firsts.iter().map(|first| Ok(prompt(text, first)?.1.len())).collect());
    Ok(lengths?.into_iter().max().unwrap_or(1).max(1))
}
