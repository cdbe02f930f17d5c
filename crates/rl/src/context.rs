//! The context that all parts of a step share, apart from the trainer.

use crate::episodes::Episodes;
use crate::methods::estimator::UserEstimator;
use crate::methods::parts::StepParts;
use plimsoll_base::Result;
use plimsoll_config::{Objective, RunSpec};
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_reward::Rewards;
use plimsoll_run::status::Doing;

/// Reads prompts of the data: position of the first, and how many.
pub type Prompts<'s> = &'s mut dyn FnMut(u64, usize) -> Result<Vec<Item>>;

pub struct StepContext<'s> {
    pub run: &'s RunSpec,
    pub text: &'s TextModel,
    pub eos: &'s [u32],
    /// The objective, whose KL controller changes during the run.
    pub objective: Objective,
    pub rewards: &'s mut Rewards,
    /// The function that estimates advantages, if the run has one.
    pub estimator: Option<&'s mut UserEstimator>,
    /// The parts of the step that only some runs have.
    pub parts: &'s mut StepParts,
    pub prompts: Prompts<'s>,
    /// The environment that gives prompts and rewards instead of the data, if there is one.
    pub episodes: Option<&'s mut Episodes>,
    /// The next prompts and samples; advances during the step.
    pub cursor: Cursor,
    /// Called as each part of the step begins.
    pub edge: &'s mut dyn FnMut(Doing),
    /// Called with what this rank needs of another, before it waits for it.
    pub waits: &'s mut dyn FnMut(String),
}

/// The next prompt of the data, and the random numbers of the next sample: counters that a checkpoint keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    pub data_position: u64,
    pub next_sample_id: u64,
}
