//! A rollout of episodes: whole ones, and those of several steps that are trained.

use super::episode::EpisodesRequest;
use super::events::Events;
use super::record::Episodes;
use crate::players::groups::{Group, Response};
use crate::players::player::{Answered, Grades, Play, Player};
use crate::roles::Trainer;
use crate::rollout::counted::CountedByAll;
use crate::supply::gathered::Gathered;
use crate::supply::group::Branch;
use plimsoll_base::Result;
use plimsoll_infer::sampler::sampling;
use plimsoll_infer::text::Item;
use plimsoll_plan::SAMPLES_KEPT;
use plimsoll_reward::Rewards;
use plimsoll_rollout::{RolloutStats, Samples, Turn};
use plimsoll_run::status::Doing;
use plimsoll_textenv::Start;
use std::time::Instant;

/// What was played. The samples are in `trainer.sampler.samples`, and the rest of the episodes in `Episodes`.
pub(in crate::players) struct Played {
    /// The prompt of each start.
    pub items: Vec<Item>,
    pub stats: RolloutStats,
    /// The sequences of the samples of each start, where a sample may have several.
    pub branches: Option<Vec<Vec<Branch>>>,
    /// Counts of the run's rewards, if they grade episodes.
    pub counted: CountedByAll,
}

/// A player of episodes.
pub(in crate::players) trait EpisodesPlayer: Player {
    fn record(&mut self) -> &mut Episodes;

    /// Plays the episodes of all starts.
    ///
    /// Errors: those of sampling, of the environment and of the rewards; `rank-lost` where another rank has one.
    fn play_starts(
        &mut self,
        trainer: &mut Trainer<'_>,
        rewards: &mut Rewards,
        asked: &EpisodesRequest<'_>,
    ) -> Result<Played>;

    /// Refuses a rollout that leaves nothing to train on.
    ///
    /// Errors: `agent-failing`, `text-environment-failing`.
    fn check_left(&self, samples: &Samples) -> Result<()>;

    /// Grades the episodes of groups that the step trains with the run's rewards, if the environment gives none.
    ///
    /// Errors: those of the rewards; `rank-lost` where another rank has one.
    fn grade_trained(
        &mut self,
        _: &Trainer<'_>,
        _: &mut Play<'_>,
        _: &[Group],
        _: &mut Gathered,
    ) -> Result<()> {
        Ok(())
    }
}

impl<'q> EpisodesRequest<'q> {
    /// Returns the request of a step for the episodes of some starts.
    pub(in crate::players) fn of_step<'p: 'q>(
        play: &Play<'p>,
        starts: &'q [Start],
        kept: usize,
    ) -> EpisodesRequest<'q> {
        EpisodesRequest {
            text: play.text,
            rollout: &play.run.rollout,
            starts,
            group_size: play.size(),
            sampling: sampling(&play.run.rollout, play.run.seed),
            eos: play.eos,
            steps: play.steps(),
            first_sample_id: play.sample_id,
            kept,
        }
    }
}

/// Plays the next episodes, of `count` starts.
pub(in crate::players) fn play(
    player: &mut impl EpisodesPlayer,
    trainer: &mut Trainer<'_>,
    play: &mut Play<'_>,
    count: usize,
    gathered: &mut Gathered,
) -> Result<Answered> {
    (play.edge)(Doing::Rollout);
    let started = Instant::now();
    let starts = player.record().starts(play.position, count);
    let asked = EpisodesRequest::of_step(play, &starts, SAMPLES_KEPT);
    let Played { items, stats, branches, counted } = player.play_starts(trainer, play.rewards, &asked)?;
    player.check_left(&trainer.sampler.samples)?;
    gathered.add_counted(counted);
    gathered.stats.add_counts(&stats);
    gathered.rollout_s += started.elapsed().as_secs_f64();
    gathered.episodes = Some(player.record().report());
    let scored = player.record().scored(play.rewards);
    Ok(Answered { items, scored, texts: Vec::new(), branches, greedy: Vec::new() })
}

/// Hands over the episodes of a step, whose tokens are then the trainer's `samples`. Returns their scores: those that
/// their environment gave, or the run's.
pub(in crate::players) fn hand_over(
    player: &mut impl EpisodesPlayer,
    trainer: &mut Trainer<'_>,
    play: &mut Play<'_>,
    taken: &[Group],
    events: Vec<Events>,
    gathered: &mut Gathered,
) -> Result<Grades> {
    let mut trained: Vec<(&Group, &Response, bool)> = Vec::new();
    for group in taken {
        let branches = player.branches(group);
        let has_sequence = |s: usize| branches.as_ref().is_none_or(|all| all.iter().any(|of| of.sample == s));
        trained.extend(
            group.responses.iter().enumerate().map(|(s, response)| (group, response, has_sequence(s))),
        );
    }
    let samples = Samples::to_write(&mut trainer.sampler.samples);
    samples.clear();
    for (_, response, _) in trained.iter().filter(|(_, _, has_sequence)| *has_sequence) {
        let turns: Vec<Turn> = response.turns.iter().map(|of| of.turn).collect();
        samples.push_turns(&response.ids, &response.logprobs, &turns);
    }
    player.record().set_played(trained.into_iter());
    player.record().add_events(events)?;
    player.check_left(&trainer.sampler.samples)?;
    player.grade_trained(trainer, play, taken, gathered)?;
    gathered.episodes = Some(player.record().report());
    taken.iter().for_each(|group| group.teach(&mut trainer.lengths));
    Ok(Grades { scored: player.record().scored(play.rewards), ..Grades::default() })
}
