//! What episodes take of the host, and the lengths that a plan needs before one is played.

use super::glue::prompt;
use super::hosts::{Hosts, STACK_BYTES};
use super::{Kind, Start};
use crate::dataset::{TextModel, forgetting};
use crate::runfile::RunFile;
use plimsoll_base::{Bytes, Result};

/// Episodes of an evaluation where `eval.prompts_max` does not say.
const EVAL_EPISODES: u32 = 256;
/// Episodes that show how long an environment's prompts are.
const LOOKED_AT: u64 = 64;
/// Bytes of a token as text, and the copies of an episode's text: as messages, rendered, and as a request.
const TEXT_BYTES_PER_TOKEN: u64 = 6 * 4;
/// An episode without its texts: its record, its turns' records, and the state of an environment of ours.
const EPISODE_BYTES: u64 = 1024;
const TURN_BYTES: u64 = 256;
/// Most that a thread holds for one turn: its stack, 1 MiB of reply, and the same as values.
const THREAD_BYTES: u64 = STACK_BYTES as u64 + (3 << 20);

/// What episodes take beside the engine and the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpisodeMemory {
    /// Turns of a response, at most; 1 without an environment.
    pub turns_max: usize,
    /// All worker processes together.
    pub workers: Bytes,
    /// Threads that step environments.
    pub threads: usize,
    /// True if there is an environment.
    pub is_there: bool,
}

impl Default for EpisodeMemory {
    fn default() -> EpisodeMemory {
        EpisodeMemory { turns_max: 1, workers: Bytes(0), threads: 0, is_there: false }
    }
}

impl EpisodeMemory {
    /// Host bytes of `samples` episodes of up to `tokens` tokens, prompts included.
    pub fn host_bytes(&self, samples: usize, tokens: usize) -> u64 {
        if !self.is_there {
            return 0;
        }
        let one = EPISODE_BYTES + TURN_BYTES * self.turns_max as u64 + TEXT_BYTES_PER_TOKEN * tokens as u64;
        (samples as u64).saturating_mul(one).saturating_add(self.threads as u64 * THREAD_BYTES)
    }
}

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

/// Episodes of an evaluation; 0 where the run file asks for none, or has no environment.
pub fn eval_episodes(run: &RunFile) -> usize {
    match run.environment.is_some() && !run.data.asks_no_eval() {
        true => run.eval.prompts_max.unwrap_or(EVAL_EPISODES) as usize,
        false => 0,
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
    let seed = super::seed(run);
    let starts: Vec<Start> = (0..LOOKED_AT).flat_map(|i| [Start::train(seed, i), Start::eval(i)]).collect();
    let firsts = Hosts::first_messages(&Kind::parse(&section.env)?, section, &starts)?;
    let lengths: Result<Vec<usize>> =
        forgetting(|| firsts.iter().map(|first| Ok(prompt(text, first)?.1.len())).collect());
    Ok(lengths?.into_iter().max().unwrap_or(1).max(1))
}
