//! The trait of a text environment, the start of an episode and the reply to a turn.

use plimsoll_base::rng::{Stream, philox};
use plimsoll_base::{Bytes, Result};
use plimsoll_text::Message;
use plimsoll_worker::{ContainerTasks, Network, ReplyImages, ReplyLimits, Stop, ToolFunction};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Identifies an episode and determines its randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The run's seed, or `environment.seed`.
    pub seed: u64,
    /// Number of the episode; the episodes of a group share it.
    pub index: u64,
    /// True for evaluation, whose episodes do not depend on the run's seed.
    pub held_out: bool,
}

/// The seed of evaluation episodes.
const EVAL_SEED: u64 = 0x504C_494D_534F_4C4C;

impl Start {
    pub fn train(seed: u64, index: u64) -> Start {
        Start { seed, index, held_out: false }
    }

    pub fn eval(index: u64) -> Start {
        Start { seed: EVAL_SEED, index, held_out: true }
    }

    /// Draws four random numbers of the episode.
    pub fn draw(&self, draw: u32) -> [u32; 4] {
        philox(self.seed, Stream::Episode, self.index, u64::from(self.held_out) << 32 | u64::from(draw))
    }
}

/// An environment's reply to a turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// Empty when the episode is over.
    pub messages: Vec<Message>,
    pub reward: f64,
    /// True if the episode is over.
    pub done: bool,
    /// True if its worker cut its text.
    pub is_cut: bool,
    /// The content of the files of its images, in the order of the placeholders in its messages.
    pub images: Vec<Vec<u8>>,
    /// The first row of an episode, if the run's rewards grade it.
    pub columns: Map<String, Value>,
}

impl Said {
    /// Ends the episode with a reward.
    pub fn end(reward: f64) -> Said {
        Said { reward, done: true, ..Said::default() }
    }

    /// Replies without a reward.
    pub fn words(text: impl Into<String>) -> Said {
        Said { messages: vec![Message::new("user", text)], ..Said::default() }
    }
}

/// A text task played in turns, one episode at a time.
pub trait TextEnvironment: Send {
    /// Begins the episode of `start` and returns the messages that the model answers. Equal starts give equal messages.
    fn reset(&mut self, start: &Start) -> Vec<Message>;

    /// Takes up an episode that was begun with `reset`, after `turns` turns that did not end it.
    fn take_up(&mut self, turns: usize);

    /// Takes the model's turn, without special tokens and stop string. An error ends the episode and is counted.
    fn step(&mut self, response: &str) -> Result<Said>;
}

/// Settings of an environment's workers and programs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Functions outside a class that the model may call.
    pub tools: Vec<ToolFunction>,
    /// Servers of the Model Context Protocol whose tools the model may call: each a command, or an address.
    pub servers: Vec<String>,
    /// Files of first rows, for training and for evaluation, if there are tools.
    pub rows: Option<PathBuf>,
    pub eval_rows: Option<PathBuf>,
    /// Tasks that are played in containers.
    pub tasks: ContainerTasks,
    /// Column of their prompts.
    pub prompt_column: String,
    /// True if the assistant's last turn is left out of a prompt that ends with it; else such a prompt is refused.
    pub drops_answers: bool,
    /// Columns and fields of messages that are left out.
    pub ignored: Vec<String>,
    /// The keys of an OpenEnv server's actions and observations (`plimsoll_worker::EpisodesSpec`).
    pub action: String,
    pub observation: Option<String>,
    /// The most that a worker's reply to a turn may hold.
    pub reply: ReplyLimits,
    /// The images that a worker's reply may have, if any.
    pub images: Option<ReplyImages>,
    /// The Python interpreter; `None` for `python3`.
    pub python: Option<String>,
    /// Worker processes of an environment that needs them.
    pub num_workers: u32,
    /// Limit on the address space of one worker.
    pub worker_memory: Bytes,
    pub network: Network,
    /// Longest time for the reply to one turn.
    pub step_timeout: Duration,
    /// Longest time to begin an episode, and for a worker to start.
    pub reset_timeout: Duration,
}

pub(crate) type Make = Arc<dyn Fn() -> Box<dyn TextEnvironment> + Send + Sync>;

#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// For example `text:countdown`.
    pub name: &'static str,
    /// True if a process answers turns, so that the rollout does not wait for them.
    pub has_workers: bool,
    /// Prepares what its episodes share, and returns a constructor of episodes.
    pub(crate) open: fn(&Settings, &Stop) -> Result<Make>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn episodes_differ_by_seed_index_and_purpose() {
        let all =
            [Start::train(0, 0), Start::train(0, 1), Start::train(1, 0), Start::eval(0), Start::eval(1)];
        let drawn: std::collections::HashSet<[u32; 4]> = all.iter().map(|start| start.draw(0)).collect();
        assert_eq!(drawn.len(), all.len());
        assert_ne!(all[0].draw(0), all[0].draw(1));
    }
}
