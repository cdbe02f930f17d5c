//! What a step works with besides the trainer, for all its parts.

use crate::data::dataset::{Item, TextModel};
use crate::episodes::Episodes;
use crate::rollout::held::Held;
use plimsoll_base::Result;
use plimsoll_config::{Objective, RunSpec};
use plimsoll_reward::Rewards;
use plimsoll_run::status::Doing;

/// Prompts from a position of the data on: position, and how many.
pub type Prompts<'s> = &'s mut dyn FnMut(u64, usize) -> Result<Vec<Item>>;

/// What a step works with.
pub struct StepContext<'s> {
    /// The run.
    pub run: &'s RunSpec,
    /// The model's text side.
    pub text: &'s TextModel,
    /// Tokens that end a response.
    pub eos: &'s [u32],
    /// What is optimised; its KL controller moves.
    pub objective: Objective,
    /// What scores responses.
    pub rewards: &'s mut Rewards,
    /// The data.
    pub prompts: Prompts<'s>,
    /// The environment that gives prompts and rewards instead, if there is one.
    pub episodes: Option<&'s mut Episodes>,
    /// Where the next prompts and samples come from; it moves.
    pub cursor: Cursor,
    /// What the last rollout kept.
    pub held: &'s mut Held,
    /// Called as each part of the step begins.
    pub edge: &'s mut dyn FnMut(Doing),
}

/// Where the next prompt is in the data, and which random numbers the next sample draws: counters that a checkpoint has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Position of the next prompt.
    pub data_position: u64,
    /// Number of the next sample.
    pub next_sample_id: u64,
}
