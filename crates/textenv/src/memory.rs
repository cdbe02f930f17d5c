//! Host memory of episodes, as rows of the plan.

use crate::hosts::STACK_BYTES;
use plimsoll_base::Bytes;

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
