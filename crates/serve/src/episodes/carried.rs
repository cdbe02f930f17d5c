//! Episodes that take several steps. Time is counted in tokens: a tick is a token that an episode draws, and what its
//! agent does takes none. A request is drawn only once the step is certain to go on beyond its tick, so which weights
//! draw it follows from tokens, however fast agents are. The others are held, with their agents, until the next step.

use super::episode::{Episode, Had, Stage};
use plimsoll_base::{Error, Result};
use plimsoll_device::Sampling;
use plimsoll_rollout::GroupTimes;
use serde_json::Value;
use std::time::{Duration, Instant};

/// The rollout that the names of carried episodes begin with: theirs are several.
pub(super) const CARRIED: u64 = 0;

/// Names an episode of a step.
#[derive(Clone, Debug)]
pub struct EpisodeOfStep {
    /// The sample that its first response is drawn as, which is its name too.
    pub sample_id: u64,
    /// Object that its agent is given.
    pub start: Value,
    pub has_ended: bool,
    /// Responses that it has had, for an agent that begins it again after a resume.
    pub had: Vec<Had>,
}

/// Says which episodes a step goes on with, by age.
#[derive(Clone, Debug)]
pub struct CarriedRound {
    pub begun: Vec<EpisodeOfStep>,
    /// Episodes of a group.
    pub size: usize,
    /// The step's groups; those that have ended have the tick 0.
    pub times: GroupTimes,
    pub sampling: Sampling,
}

/// Holds the episodes that take several steps.
#[derive(Default)]
pub(super) struct Carried {
    pub episodes: Vec<Episode>,
    /// The groups of the step that is being made, and their size.
    pub clock: Option<(GroupTimes, usize)>,
    /// One more than the newest name.
    pub begun: u64,
}

impl Carried {
    /// True while a step goes on with them.
    pub fn is_playing(&self) -> bool {
        self.clock.is_some()
    }

    pub fn of(&mut self, name: u64) -> Option<&mut Episode> {
        let at = self.episodes.binary_search_by_key(&name, |episode| episode.sample_id).ok()?;
        Some(&mut self.episodes[at])
    }

    /// True if an episode was ever given to an agent.
    pub fn was_offered(&self, name: u64) -> bool {
        match self.episodes.binary_search_by_key(&name, |episode| episode.sample_id) {
            Ok(at) => !matches!(self.episodes[at].stage, Stage::Free),
            Err(_) => name < self.begun,
        }
    }

    /// Returns when groups have ended, as far as is known.
    pub fn times(&self) -> Option<GroupTimes> {
        let (times, size) = self.clock.as_ref()?;
        let mut times = times.clone();
        for (g, group) in self.episodes.chunks(*size).enumerate() {
            if group.iter().all(Episode::has_ended) {
                times.end(g, group.iter().map(|episode| episode.walk.ticks).max().unwrap_or(0));
            }
        }
        Some(times)
    }

    /// True once every episode has ended, or asks at the step's tick or later.
    pub fn is_settled(&self) -> bool {
        let bound = self.times().map_or(0, |times| times.bound());
        let waits = |episode: &Episode| episode.waits() && episode.walk.ticks >= bound;
        bound < u64::MAX && self.episodes.iter().all(|episode| episode.has_ended() || waits(episode))
    }

    /// Returns a tick that the step's end is not before.
    pub fn floor(&self) -> u64 {
        let (Some(times), Some((_, size))) = (self.times(), &self.clock) else { return 0 };
        let least = |episode: &Episode| {
            let is_asking = episode.waits() || episode.walk.is_drawing;
            let tokens = if is_asking && !episode.has_ended() { episode.walk.drawn.max(1) } else { 0 };
            episode.walk.ticks + tokens
        };
        let groups = self.episodes.chunks(*size);
        let least: Vec<u64> = groups.map(|group| group.iter().map(least).max().unwrap_or(0)).collect();
        times.floor(&least)
    }

    /// Requires that a step can go on: an episode that no agent takes must not be what all others wait for.
    ///
    /// Errors: `agent-missing`.
    pub fn check_agents(&self, now: Instant, last: Instant, longest: Duration) -> Result<()> {
        let free = self.episodes.iter().filter(|episode| matches!(episode.stage, Stage::Free)).count();
        let open = || self.episodes.iter().filter(|episode| !episode.has_ended());
        let held = open().filter(|episode| episode.waits()).count();
        let last = open().map(|episode| episode.last).fold(last, Instant::max);
        let is_stuck = free > 0 && held > 0 && free + held == open().count();
        if !is_stuck || now.saturating_duration_since(last) < longest {
            return Ok(());
        }
        let message = format!(
            "{held} episodes wait for {free} that no agent has asked for in {} ms",
            longest.as_millis()
        );
        Err(Error::new("agent-missing", message)
            .fact("with async.partial_rollouts an agent keeps an episode that goes on in the next step")
            .hint("let agents play async.partial_rollouts * rollout.group_size episodes and one more at once; all of (prompts_per_step + carry) * group_size is fastest"))
    }
}
