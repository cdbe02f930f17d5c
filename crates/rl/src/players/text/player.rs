//! The player of a text environment.

use super::environment::TextPlayer;
use super::playing::play_own;
use super::whole::play_text;
use crate::players::dealt::draw;
use crate::players::episodes::{
    self, Episodes, EpisodesPlayer, EpisodesRequest, Events, KeptEpisode, Played,
};
use crate::players::groups::Group;
use crate::players::player::{Answered, Grades, Play, PlayLimits, Player, Prompts};
use crate::players::step_rollout::StepRollout;
use crate::roles::Trainer;
use crate::supply::gathered::Gathered;
use plimsoll_base::{Error, Result};
use plimsoll_config::RunSpec;
use plimsoll_infer::album::RowImage;
use plimsoll_infer::eval::EvalHow;
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_reward::Rewards;
use plimsoll_rollout::{GroupTimes, Samples};
use plimsoll_run::scores::EvalReport;
use plimsoll_textenv::Start;
use std::sync::Arc;

impl Player for TextPlayer {
    fn prompts(&mut self, text: &TextModel, _: Prompts<'_>, first: u64, count: usize) -> Result<Vec<Item>> {
        let starts = self.episodes.starts(first, count);
        self.begin(text, &starts, 1)
    }

    fn play(
        &mut self,
        trainer: &mut Trainer<'_>,
        play: &mut Play<'_>,
        count: usize,
        gathered: &mut Gathered,
    ) -> Result<Answered> {
        episodes::play(self, trainer, play, count, gathered)
    }

    fn play_on(
        &mut self,
        trainer: &mut Trainer<'_>,
        play: &mut Play<'_>,
        groups: &mut [Group],
        times: GroupTimes,
    ) -> Result<StepRollout> {
        draw(trainer, play, groups, times, &mut |trainer, play, part, drawing| {
            play_own(self, trainer, play, part, drawing)
        })
    }

    fn grade(
        &mut self,
        trainer: &mut Trainer<'_>,
        play: &mut Play<'_>,
        taken: &[Group],
        events: Vec<Events>,
        gathered: &mut Gathered,
    ) -> Result<Grades> {
        episodes::hand_over(self, trainer, play, taken, events, gathered)
    }

    fn limits(&self, run: &RunSpec) -> PlayLimits {
        PlayLimits { turns: run.turns_max(), prompt: 0 }
    }

    fn episodes(&self) -> Option<&Episodes> {
        Some(&self.episodes)
    }

    fn images_of(&self, position: u64) -> Option<&[Arc<RowImage>]> {
        Some(self.images_of_row(Start::train(self.episodes.seed, position)))
    }

    fn evaluate(
        &mut self,
        trainer: &mut Trainer<'_>,
        how: &EvalHow<'_>,
        rewards: &mut Rewards,
        count: usize,
    ) -> Result<Option<(EvalReport, Vec<KeptEpisode>)>> {
        episodes::evaluate(self, trainer, how, rewards, count)
    }
}

impl EpisodesPlayer for TextPlayer {
    fn record(&mut self) -> &mut Episodes {
        &mut self.episodes
    }

    fn play_starts(
        &mut self,
        trainer: &mut Trainer<'_>,
        rewards: &mut Rewards,
        asked: &EpisodesRequest<'_>,
    ) -> Result<Played> {
        play_text(trainer, self, rewards, asked)
    }

    fn check_left(&self, samples: &Samples) -> Result<()> {
        let (all, failed) = self.episodes.num_failed();
        // A worker that dies is one fault and takes many along, so they count.
        let may_fail = failed <= self.episodes.section.restarts_max as usize;
        if !samples.is_empty() && (failed < all || may_fail) {
            return Ok(());
        }
        let message = format!("{}: all {all} episodes of one rollout failed", self.episodes.section.env);
        Err(self.episodes.with_first_fault(Error::new("text-environment-failing", message)))
    }

    fn grade_trained(
        &mut self,
        trainer: &Trainer<'_>,
        play: &mut Play<'_>,
        groups: &[Group],
        gathered: &mut Gathered,
    ) -> Result<()> {
        if self.episodes.section.is_graded() {
            self.grade_groups(trainer, play, groups, gathered)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
#[path = "player_tests.rs"]
mod tests;
