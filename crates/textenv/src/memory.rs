//! Host memory of episodes, as rows of the plan.

use crate::hosts::STACK_BYTES;
use plimsoll_base::Bytes;
use plimsoll_worker::REPLY_IMAGE_BYTES_MAX;

/// Bytes of a token as text, times the copies of an episode's text: messages, rendered, request.
const TEXT_BYTES_PER_TOKEN: u64 = 6 * 4;
/// An episode without its texts: its record, its turns' records, and the state of a built-in environment.
const EPISODE_BYTES: u64 = 1024;
/// A token of an agent's episode: as requested and sampled, its log-probability, and in the resulting sequence.
const AGENT_BYTES_PER_TOKEN: u64 = 32;
const TURN_BYTES: u64 = 256;
/// A turn that is compared with others: its tokens and length, rewards and advantages, twice while lists grow.
const COMPARED_TURN_BYTES: u64 = 96;
/// A step of a response as it is read, as ranks send it, and as it waits.
const STEP_BYTES: u64 = 4 * 16;
/// Largest memory of a thread for one turn: its stack, 1 MiB of reply, and the parsed reply.
const THREAD_BYTES: u64 = STACK_BYTES as u64 + (3 << 20);

/// Copies of a reply's images while a thread reads it: its line, which grows by doubling, and the files.
const IMAGE_COPIES: u64 = 4;

/// The counts that determine the host memory of episodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpisodeMemory {
    /// Most turns of a response; 1 without an environment.
    pub turns_max: usize,
    /// Memory of all worker processes.
    pub workers: Bytes,
    pub threads: usize,
    /// Memory of the longest reply to a turn; 0 if no thread waits for one.
    pub reply: Bytes,
    /// Most images of an episode's replies; each is a file, and in a line of its worker.
    pub images_max: usize,
    /// Memory of the container of an episode; 0 without containers.
    pub container: Bytes,
    /// True if programs with their own loop play.
    pub plays_agents: bool,
    /// True if the turns of a group are compared with each other.
    pub compares_turns: bool,
    /// Most steps of a response that a reward returns; 0 if none are read.
    pub steps_max: usize,
    pub has_environment: bool,
}

impl Default for EpisodeMemory {
    fn default() -> EpisodeMemory {
        EpisodeMemory {
            turns_max: 1,
            workers: Bytes(0),
            threads: 0,
            reply: Bytes(0),
            images_max: 0,
            container: Bytes(0),
            plays_agents: false,
            compares_turns: false,
            steps_max: 0,
            has_environment: false,
        }
    }
}

impl EpisodeMemory {
    /// Returns the host bytes of the steps of `samples` responses, each with one more for its score.
    pub fn step_bytes(&self, samples: usize) -> u64 {
        let steps = if self.steps_max > 0 { self.steps_max as u64 + 1 } else { 0 };
        (samples as u64).saturating_mul(steps * (STEP_BYTES + COMPARED_TURN_BYTES))
    }

    /// Returns the host bytes of the containers of `samples` episodes.
    pub fn containers(&self, samples: usize) -> u64 {
        self.container.0.saturating_mul(samples as u64)
    }

    /// Returns the host bytes of `samples` episodes of up to `tokens` tokens, including prompts.
    pub fn host_bytes(&self, samples: usize, tokens: usize) -> u64 {
        if !self.has_environment {
            return 0;
        }
        let token = TEXT_BYTES_PER_TOKEN + if self.plays_agents { AGENT_BYTES_PER_TOKEN } else { 0 };
        let turn = TURN_BYTES + if self.compares_turns { COMPARED_TURN_BYTES } else { 0 };
        // The last one waits; those before it are in its messages and in their turns.
        let replies = self.reply.0.saturating_mul(2 * self.turns_max.max(1) as u64 - 1);
        let images = self.images_max as u64 * REPLY_IMAGE_BYTES_MAX as u64;
        let one = EPISODE_BYTES + turn * self.turns_max as u64 + token * tokens as u64 + replies + images;
        let threads = self.threads as u64 * (THREAD_BYTES + IMAGE_COPIES * images);
        (samples as u64).saturating_mul(one).saturating_add(threads)
    }
}
