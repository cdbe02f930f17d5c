//! The context that all parts of a step share, apart from the trainer.

use crate::methods::estimator::UserEstimator;
use crate::methods::parts::StepParts;
use crate::players::{Play, Player, Prompts};
use plimsoll_config::{Objective, RunSpec};
use plimsoll_infer::text::TextModel;
use plimsoll_reward::Rewards;
use plimsoll_run::status::Doing;

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
    /// Who produces the responses.
    pub player: &'s mut dyn Player,
    /// The next prompts and samples; advances during the step.
    pub cursor: Cursor,
    /// Called as each part of the step begins.
    pub edge: &'s mut dyn FnMut(Doing),
    /// Called with what this rank needs of another, before it waits for it.
    pub waits: &'s mut dyn FnMut(String),
}

impl StepContext<'_> {
    /// Returns the player, and what it has to play with in a step.
    pub fn play(&mut self, step: u32) -> (&mut dyn Player, Play<'_>) {
        let play = Play {
            run: self.run,
            text: self.text,
            eos: self.eos,
            rewards: &mut *self.rewards,
            prompts: &mut *self.prompts,
            edge: &mut *self.edge,
            shaping: self.objective.shaping.group,
            step,
            position: self.cursor.data_position,
            sample_id: self.cursor.next_sample_id,
        };
        (&mut *self.player, play)
    }
}

/// The next prompt of the data, and the random numbers of the next sample: counters that a checkpoint keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    pub data_position: u64,
    pub next_sample_id: u64,
}
