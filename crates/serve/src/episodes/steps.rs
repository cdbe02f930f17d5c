//! Goes from step to step with the episodes of a table that take several.

use super::carried::CarriedRound;
use super::episode::{Episode, Progress, Stage};
use super::table::{EpisodeTable, State};
use crate::gate::Admission;
use plimsoll_base::Error;
use plimsoll_rollout::GroupTimes;
use std::time::Instant;

impl EpisodeTable {
    /// True if an agent may be playing an episode of several steps, so that it need not begin again.
    pub fn is_under_way(&self, sample_id: u64) -> bool {
        self.lock().carried.of(sample_id).is_some()
    }

    /// Begins a step: goes on with the episodes that it names, offers those that are new, and forgets all others.
    pub fn begin_carried(&self, round: CarriedRound) {
        let mut state = self.lock();
        let now = Instant::now();
        let State { carried, sampling, last, .. } = &mut *state;
        let mut known = std::mem::take(&mut carried.episodes).into_iter().peekable();
        for begun in round.begun {
            while known.next_if(|episode| episode.sample_id < begun.sample_id).is_some() {}
            let known = known.next_if(|episode| episode.sample_id == begun.sample_id);
            let mut episode = known.unwrap_or_else(|| {
                let mut new = Episode::new(begun.start, begun.sample_id, now);
                new.stage = if begun.has_ended { Stage::Ended(Ok(0.0)) } else { Stage::Free };
                new.walk.had = begun.had.into();
                new
            });
            // One that ended between two steps, with its agent, ends in this one.
            (episode.walk.ticks, episode.walk.ended_before) = (0, begun.has_ended);
            carried.begun = carried.begun.max(begun.sample_id + 1);
            carried.episodes.push(episode);
        }
        carried.clock = Some((round.times, round.size));
        (*sampling, *last) = (round.sampling, now);
        drop(state);
        self.offered.notify_waiters();
    }

    /// Ends a step. Returns its episodes in the order in which they were named, and when groups have ended.
    pub fn take_carried(&self) -> (Vec<Progress>, GroupTimes) {
        let mut state = self.lock();
        let times = state.carried.times().expect("a step was begun");
        state.carried.clock = None;
        let prompt_tokens = self.spec.limits.prompt_tokens;
        (state.carried.episodes.iter().map(|episode| episode.progress(prompt_tokens)).collect(), times)
    }

    /// Returns a tick that the step's end is not before; 0 between two steps.
    pub(super) fn floor(&self) -> u64 {
        self.lock().carried.floor()
    }

    /// Decides whether an episode's request is drawn where the step goes on beyond tick `floor`, and takes what it has
    /// had.
    pub(super) fn admission(&self, name: u64, floor: u64) -> Admission {
        let mut state = self.lock();
        let is_playing = state.carried.is_playing();
        let Some(episode) = state.carried.of(name).filter(|episode| !episode.has_ended()) else {
            return Admission::Never(Error::new("agent-episode-over", "the episode has ended").into());
        };
        let walk = &mut episode.walk;
        match walk.had.pop_front() {
            Some(had) => {
                walk.is_repeating = true;
                Admission::Drawn(had.drawn)
            }
            None if is_playing && floor > walk.ticks => Admission::Now,
            None => Admission::Later,
        }
    }

    /// Notes that an episode's response is being drawn, and its tokens so far.
    pub(super) fn draws(&self, name: u64, num_tokens: u64) {
        if let Some(episode) = self.lock().carried.of(name) {
            (episode.walk.is_drawing, episode.walk.drawn) = (true, num_tokens);
        }
    }
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
