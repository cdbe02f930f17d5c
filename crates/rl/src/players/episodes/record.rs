//! The record of one rollout's episodes: their messages, their rewards and their faults.

use super::episode::Episode;
use super::events::Events;
use crate::arrays::TokenArrays;
use crate::players::groups::{Group, Response};
use crate::players::turn::PlayedTurn;
use plimsoll_base::{Error, Result, slugs};
use plimsoll_config::{Credit, Environment, RunSpec};
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::{Samples, Turn};
use plimsoll_textenv::{EnvironmentTally, Start};

/// Bounds of a turn's reward where it is credited to its turn: those of a shaped reward.
const REWARD_CLIP: f64 = 10.0;

/// The episodes of a run's last rollout.
pub struct Episodes {
    pub(in crate::players) section: Environment,
    /// True if each turn's reward is placed on its last token as it is.
    pays_turns: bool,
    pub(in crate::players) seed: u64,
    pub(in crate::players) played: Vec<Episode>,
    pub(in crate::players) events: Events,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundReport {
    pub turns_mean: f64,
    /// Mean sum of rewards, over episodes without a fault.
    pub return_mean: f64,
    /// For each turn: the share of episodes that have it, and their mean reward in it.
    pub by_turn: Vec<(f64, f64)>,
    /// Counts of faults and of truncations.
    pub tally: EnvironmentTally,
    pub fault: Option<String>,
}

impl Episodes {
    /// Begins without an episode.
    pub(in crate::players) fn new(run: &RunSpec, section: &Environment) -> Episodes {
        Episodes {
            section: section.clone(),
            pays_turns: section.credit == Credit::Turn && run.turn_credit().is_none(),
            seed: run.episode_seed(),
            played: Vec::new(),
            events: Events::default(),
        }
    }

    /// Returns the number of episodes of the last rollout.
    pub(crate) fn num_played(&self) -> usize {
        self.played.len()
    }

    /// Clears the last rollout, to begin one of `episodes` episodes.
    pub(in crate::players) fn begin_round(&mut self, episodes: usize) {
        let tally = EnvironmentTally { episodes: episodes as u64, ..Default::default() };
        self.events = Events { tally, fault: None };
        self.played.clear();
    }

    /// Takes over episodes as far as they have come; without `has_sequence` one is left out of the rollout's samples.
    pub(in crate::players) fn set_played<'g>(
        &mut self,
        so_far: impl ExactSizeIterator<Item = (&'g Group, &'g Response, bool)>,
    ) {
        self.begin_round(so_far.len());
        let mut sequences = 0;
        for (group, response, has_sequence) in so_far {
            let first = sequences;
            sequences += usize::from(has_sequence);
            self.played.push(Episode::of(group, response, self.seed, first..sequences));
        }
    }

    /// Adds what happened on all ranks.
    ///
    /// Errors: `text-environment-failing`, on all ranks, if more episodes failed on all of them together than may.
    pub(in crate::players) fn add_events(&mut self, all: Vec<Events>) -> Result<()> {
        let ranks = all.len();
        for (rank, Events { tally, fault }) in all.into_iter().enumerate() {
            self.events.tally.add(&tally);
            let fault = fault.map(|fault| if ranks > 1 { fault.on_rank(rank) } else { fault });
            self.events.fault = self.events.fault.take().or(fault);
        }
        self.check_faults()
    }

    /// Returns the starts of `groups` groups of training episodes from episode `first` on: those of the run's seed.
    pub(in crate::players) fn starts(&self, first: u64, groups: usize) -> Vec<Start> {
        (first..first + groups as u64).map(|i| Start::train(self.seed, i)).collect()
    }

    /// Returns the fault of an episode whose rewards add up to no number of 32 bits.
    pub(in crate::players) fn sum_fault(&self, slot: usize) -> Option<Error> {
        let sum: f64 = self.played[slot].turns.iter().map(|turn| turn.reward).sum();
        let message =
            format!("{}: the rewards of an episode add up to {sum:e}, beyond 32 bits", self.section.env);
        (!(sum as f32).is_finite()).then(|| {
            Error::new(slugs::TEXT_ENVIRONMENT_BAD_REPLY, message).hint("let rewards be of a few units")
        })
    }

    /// Returns the return of each episode; `None` where a fault ended it.
    pub fn returns(&self) -> Vec<Option<f32>> {
        self.sums(|turns| turns)
    }

    /// Returns the reward at the end of each episode: its return, or, where turns are paid, the last turn's reward.
    pub fn outcomes(&self) -> Vec<Option<f32>> {
        if self.pays_turns {
            self.sums(|turns| &turns[turns.len().saturating_sub(1)..])
        } else {
            self.returns()
        }
    }

    /// Returns the rewards of each episode's turns; `None` of an episode without a return.
    pub(crate) fn turn_rewards(&self) -> impl Iterator<Item = Option<Vec<f64>>> {
        let of = |(episode, total): (&Episode, Option<f32>)| {
            total.map(|_| episode.turns.iter().map(|turn| turn.reward).collect())
        };
        self.played.iter().zip(self.returns()).map(of)
    }

    fn sums(&self, which: impl Fn(&[PlayedTurn]) -> &[PlayedTurn]) -> Vec<Option<f32>> {
        let sum =
            |episode: &Episode| which(&episode.turns).iter().map(|turn| turn.reward).sum::<f64>() as f32;
        let one = |episode: &Episode| match (&episode.scored, episode.has_fault) {
            (_, true) => None,
            (Some(scored), false) => scored.total,
            (None, false) => Some(sum(episode)),
        };
        self.played.iter().map(one).collect()
    }

    /// Adds the rewards of turns before the last to the rewards of their last tokens, if turns are paid.
    pub(crate) fn credit_turns(&self, samples: &Samples, buffers: &mut TokenArrays) {
        if !self.pays_turns {
            return;
        }
        for (s, episode) in self.played.iter().enumerate().filter(|(_, episode)| !episode.has_fault) {
            let rewards: Vec<f64> = episode.turns.iter().map(|turn| turn.reward).collect();
            let tokens = buffers.offsets[s]..buffers.offsets[s + 1];
            credit_earlier(samples.turns(s), &rewards, &mut buffers.token_rewards[tokens]);
        }
    }

    pub fn report(&self) -> RoundReport {
        let whole: Vec<&Episode> = self.played.iter().filter(|episode| !episode.has_fault).collect();
        let share = |part: f64| part / whole.len().max(1) as f64;
        let longest = whole.iter().map(|episode| episode.turns.len()).max().unwrap_or(0);
        let by_turn = (0..longest).map(|t| {
            let rewards: Vec<f64> =
                whole.iter().filter_map(|e| e.turns.get(t)).map(|turn| turn.reward).collect();
            (share(rewards.len() as f64), rewards.iter().sum::<f64>() / rewards.len() as f64)
        });
        let returns = self.returns().into_iter().flatten().map(f64::from).sum();
        RoundReport {
            turns_mean: share(whole.iter().map(|episode| episode.turns.len() as f64).sum()),
            return_mean: share(returns),
            by_turn: by_turn.collect(),
            tally: self.events.tally,
            fault: self.events.fault.as_ref().map(|fault| fault.message.clone()),
        }
    }

    /// Returns the score of each episode: by the run's rewards, or its return if its environment gives one.
    pub(in crate::players) fn scored(&self, rewards: &Rewards) -> Vec<Scored> {
        let none = || vec![None; if self.section.is_graded() { rewards.names().len() } else { 0 }];
        let one = |(episode, total): (&Episode, Option<f32>)| match &episode.scored {
            Some(scored) if !episode.has_fault => scored.clone(),
            _ => Scored { total, parts: none(), failed: episode.has_fault, ..Scored::default() },
        };
        self.played.iter().zip(self.outcomes()).map(one).collect()
    }

    /// Records a fault that ended an episode; more than `restarts_max` in a round end the run.
    pub(in crate::players) fn fail(&mut self, slot: usize, fault: Option<Error>) -> Result<()> {
        self.played[slot].has_fault = true;
        self.events.abort(fault.as_ref());
        if fault.is_some() { self.check_faults() } else { Ok(()) }
    }

    /// Returns how many episodes there are, and how many failed.
    pub(in crate::players) fn num_failed(&self) -> (usize, usize) {
        (self.played.len(), self.played.iter().filter(|of| of.has_fault).count())
    }

    /// Adds to an error the first fault of the round, which led to it.
    pub(in crate::players) fn with_first_fault(&self, error: Error) -> Error {
        match &self.events.fault {
            Some(first) => first.as_cause_of(error),
            None => error.hint("let an agent ask the model before it reports the reward of its episode"),
        }
    }

    /// Refuses more faults than a round may have.
    ///
    /// Errors: `text-environment-failing`.
    pub(in crate::players) fn check_faults(&self) -> Result<()> {
        let (most, faults) = (self.section.restarts_max, self.events.tally.faults());
        match &self.events.fault {
            Some(first) if faults > u64::from(most) => Err(first.too_many(&self.section.env, faults, most)),
            _ => Ok(()),
        }
    }
}

/// Adds the reward of each turn but the last to its last token's.
fn credit_earlier(turns: &[Turn], rewards: &[f64], token_rewards: &mut [f32]) {
    let earlier = rewards.len().saturating_sub(1);
    for (turn, reward) in turns.iter().zip(rewards).take(earlier) {
        token_rewards[turn.end as usize - 1] += reward.clamp(-REWARD_CLIP, REWARD_CLIP) as f32;
    }
}

#[cfg(test)]
#[path = "credit_tests.rs"]
mod tests;
