//! What every player can do, and what it plays with.

use super::episodes::{Episodes, Events, KeptEpisode};
use super::groups::Group;
use super::step_rollout::StepRollout;
use crate::roles::Trainer;
use crate::supply::gathered::Gathered;
use crate::supply::group::Branch;
use plimsoll_algo::shaping::GroupShaping;
use plimsoll_base::Result;
use plimsoll_config::RunSpec;
use plimsoll_infer::album::RowImage;
use plimsoll_infer::eval::EvalHow;
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_ranks::Group as Ranks;
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::GroupTimes;
use plimsoll_run::scores::EvalReport;
use plimsoll_run::status::Doing;
use std::path::Path;
use std::sync::Arc;

/// Reads prompts of the data: position of the first, and how many.
pub type Prompts<'s> = &'s mut dyn FnMut(u64, usize) -> Result<Vec<Item>>;

/// What a player has to play with in a step.
pub struct Play<'p> {
    pub run: &'p RunSpec,
    pub text: &'p TextModel,
    pub eos: &'p [u32],
    pub rewards: &'p mut Rewards,
    pub prompts: Prompts<'p>,
    /// Called as each part of the step begins.
    pub edge: &'p mut dyn FnMut(Doing),
    /// How rewards are compared within a group.
    pub shaping: GroupShaping,
    pub step: u32,
    /// The next prompt, and the number of the next sample.
    pub position: u64,
    pub sample_id: u64,
}

impl Play<'_> {
    /// Returns the number of samples of a prompt.
    pub fn size(&self) -> usize {
        self.run.rollout.group_size as usize
    }

    /// Returns the step and the number of steps.
    pub fn steps(&self) -> [u32; 2] {
        [self.step, self.run.train().steps]
    }
}

/// Prompts, and the scores and texts of the responses to them.
pub struct Answered {
    pub items: Vec<Item>,
    pub scored: Vec<Scored>,
    /// Empty for episodes, which keep their own.
    pub texts: Vec<String>,
    /// By group, the sequences of its samples, if a sample may have several.
    pub branches: Option<Vec<Vec<Branch>>>,
    /// By group, the reward of the greedy answer; empty where samples are not compared with it.
    pub greedy: Vec<Option<f32>>,
}

/// The grades of the responses of some groups.
#[derive(Default)]
pub struct Grades {
    pub scored: Vec<Scored>,
    /// Empty for episodes, which keep their own.
    pub texts: Vec<String>,
    /// Seconds of grading that ran while earlier steps did something else.
    pub seconds_ahead: f64,
}

/// The most that one response may bring besides its tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlayLimits {
    /// Turns of an episode; 0 where none is played.
    pub turns: usize,
    /// Tokens of a prompt of the player's own; 0 where it has none.
    pub prompt: usize,
}

/// Produces the responses of a run, whose tokens are the trainer's `samples`.
pub trait Player {
    /// Returns the prompts of training samples from number `first` on. `data` has those of the run's data.
    ///
    /// Errors: those of `data`; those of resetting an environment, of the template and of the tokenizer.
    fn prompts(&mut self, text: &TextModel, data: Prompts<'_>, first: u64, count: usize)
    -> Result<Vec<Item>>;

    /// Draws and grades the responses to the next `count` prompts, and adds to `gathered` what that took.
    ///
    /// Errors: those of sampling, of the rewards, of the environment and of agents; `rank-lost` where another rank has
    /// one.
    fn play(
        &mut self,
        trainer: &mut Trainer<'_>,
        play: &mut Play<'_>,
        count: usize,
        gathered: &mut Gathered,
    ) -> Result<Answered>;

    /// Goes on with the responses of groups until those of `times` that the step trains have ended.
    ///
    /// Errors: as `play`.
    fn play_on(
        &mut self,
        trainer: &mut Trainer<'_>,
        play: &mut Play<'_>,
        groups: &mut [Group],
        times: GroupTimes,
    ) -> Result<StepRollout>;

    /// Grades groups that have ended, which the step trains. `events`: what `play_on` returned of each rank.
    ///
    /// Errors: those of the rewards; those of too many faults; `rank-lost` where another rank has one.
    fn grade(
        &mut self,
        trainer: &mut Trainer<'_>,
        play: &mut Play<'_>,
        taken: &[Group],
        events: Vec<Events>,
        gathered: &mut Gathered,
    ) -> Result<Grades>;

    /// Begins to grade what has ended of groups that go on. Episodes are graded when they are trained.
    fn grade_ahead(&mut self, _: &Ranks, _: &mut Play<'_>, _: &[Group]) {}

    /// Returns the sequences of a group that has ended, if a response may have any number; otherwise each has one,
    /// after the group's prompt.
    fn branches(&self, _: &Group) -> Option<Vec<Branch>> {
        None
    }

    /// Returns what one response may bring besides its tokens.
    fn limits(&self, _: &RunSpec) -> PlayLimits {
        PlayLimits::default()
    }

    /// Returns the episodes of the last rollout, if this player plays episodes.
    fn episodes(&self) -> Option<&Episodes> {
        None
    }

    /// Returns the images of the prompt of training samples at a position; `None` where prompts are the data's.
    fn images_of(&self, _position: u64) -> Option<&[Arc<RowImage>]> {
        None
    }

    /// Plays `how.samples` held-out episodes of each of `count` starts; `None` where held-out sets are prompts.
    ///
    /// Errors: as `play`.
    fn evaluate(
        &mut self,
        _: &mut Trainer<'_>,
        _: &EvalHow<'_>,
        _: &mut Rewards,
        _count: usize,
    ) -> Result<Option<(EvalReport, Vec<KeptEpisode>)>> {
        Ok(None)
    }

    /// Lets those who play elsewhere know of a run in `dir`. Returns a line for people about them.
    ///
    /// Errors: `run-dir-unwritable`.
    fn announce(&mut self, _dir: &Path) -> Result<Option<String>> {
        Ok(None)
    }

    /// Takes the lines that were printed by those who play, up to the end of step 1.
    fn first_lines(&self) -> Vec<String> {
        Vec::new()
    }
}
