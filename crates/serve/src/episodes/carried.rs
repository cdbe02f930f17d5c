//! Episodes that take several steps. Time is counted in tokens: a tick is a token that an episode draws, and what its
//! agent does takes none. A request is drawn only once the step is certain to go on beyond its tick, so which weights
//! draw it follows from tokens, however fast agents are. The others are held, with their agents, until the next step.

use super::table::{Episode, EpisodeTable, Stage, State};
use super::tree::{AgentSequence, Drawn};
use crate::refusal::Reply;
use plimsoll_base::{Error, Result, shown, slugs};
use plimsoll_device::Sampling;
use plimsoll_rollout::GroupTimes;
use plimsoll_text::Message;
use serde_json::Value;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The rollout that the names of carried episodes begin with: theirs are several.
pub(super) const CARRIED: u64 = 0;

/// Holds a response that an episode has had.
#[derive(Clone, Debug)]
pub struct Had {
    pub prompt: Vec<u32>,
    pub drawn: Drawn,
}

/// Names an episode of a step.
#[derive(Clone, Debug)]
pub struct Begun {
    /// The sample that its first response is drawn as, which is its name too.
    pub sample_id: u64,
    /// Object that its agent is given.
    pub start: Value,
    pub has_ended: bool,
    /// What it has had, for an agent that begins it again after a resume.
    pub had: Vec<Had>,
}

/// Says which episodes a step goes on with, by age.
#[derive(Clone, Debug)]
pub struct CarriedRound {
    pub begun: Vec<Begun>,
    /// Episodes of a group.
    pub size: usize,
    /// The step's groups; those that have ended have the tick 0.
    pub times: GroupTimes,
    pub sampling: Sampling,
}

/// Holds an episode as far as a step has brought it.
#[derive(Debug)]
pub struct Progress {
    /// Its tokens from the beginning, if a response was drawn.
    pub sequence: Option<AgentSequence>,
    /// For each response, also the one that is yet to be drawn: the messages since the one before it, and its text.
    pub said: Vec<(Vec<Message>, String)>,
    /// The reward that its agent reported in this step, or why there is none.
    pub outcome: Option<Result<f64>>,
    pub was_limited: bool,
}

/// What only episodes of several steps have.
#[derive(Default)]
pub(super) struct Walk {
    /// Tokens that it has drawn in this step.
    ticks: u64,
    is_drawing: bool,
    /// True while an answer of an earlier process is given again.
    is_repeating: bool,
    had: VecDeque<Had>,
    ended_before: bool,
}

/// Holds the episodes that take several steps.
#[derive(Default)]
pub(super) struct Carried {
    pub episodes: Vec<Episode>,
    /// The groups of the step that is being made, and their size.
    clock: Option<(GroupTimes, usize)>,
    /// One more than the newest name.
    begun: u64,
}

/// Says whether a request of an episode is drawn.
pub enum Pass {
    Now,
    Later,
    /// It was answered before the run was resumed.
    Had(Drawn),
    Over,
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
    fn times(&self) -> Option<GroupTimes> {
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

    /// Returns a tick that the step's end is not before. `drawn`: the tokens so far of responses, by episode.
    fn floor(&self, drawn: &[(u64, u64)]) -> u64 {
        let (Some(times), Some((_, size))) = (self.times(), &self.clock) else { return 0 };
        let least = |episode: &Episode| {
            let tokens =
                drawn.iter().find(|(of, _)| *of == episode.sample_id).map_or(0, |(_, tokens)| *tokens);
            let is_asking = episode.waits() || episode.walk.is_drawing;
            episode.walk.ticks + if is_asking && !episode.has_ended() { tokens.max(1) } else { 0 }
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
            .fact("with rollout.carry an agent keeps an episode that goes on in the next step")
            .hint("let agents play rollout.carry * rollout.group_size episodes and one more at once; all of (prompts_per_step + carry) * group_size is fastest"))
    }
}

impl Episode {
    pub fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended(_))
    }

    /// True if it has ended since the rollout began.
    pub fn has_ended_now(&self) -> bool {
        self.has_ended() && !self.walk.ended_before
    }

    /// True if its agent waits for a response that is not being drawn.
    fn waits(&self) -> bool {
        let walk = &self.walk;
        matches!(self.stage, Stage::Open)
            && self.under_way > 0
            && !walk.is_drawing
            && !walk.is_repeating
            && walk.had.is_empty()
    }

    /// Ends it as its agent reports; one that is begun again and ends otherwise than before has no reward.
    pub fn report(&mut self, outcome: Result<f64>) {
        self.stage = Stage::Ended(match self.walk.had.len() {
            0 => outcome,
            left => Err(differs(&format!("it reports {left} responses earlier"))),
        });
    }

    /// Requires of an episode of several steps one response at a time, and of one that is begun again the same request.
    ///
    /// Errors: `agent-limit`, `text-environment-bad-reply`.
    pub fn check_request(&mut self, prompt: &[u32], count: usize) -> Reply<()> {
        if self.under_way > 0 || count > 1 {
            let message = format!("{} responses of an episode at once", self.under_way + count);
            return Err(Error::new("agent-limit", message)
                .fact("with rollout.carry an episode has one at a time")
                .hint("wait for an answer before the next request, and leave out n")
                .into());
        }
        let Some(had) = self.walk.had.front().filter(|had| had.prompt != prompt) else { return Ok(()) };
        let number = self.tree.responses.len() + 1;
        let same = had.prompt.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let how = format!(
            "its request {number} has {} tokens and had {}, the first {same} of them the same",
            prompt.len(),
            had.prompt.len()
        );
        let error = differs(&how);
        self.stage = Stage::Ended(Err(error.clone()));
        Err(error.into())
    }

    /// Takes over a response that has come to its end, or takes the request back whose client has gone.
    pub fn record_carried(&mut self, number: usize, drawn: Option<Drawn>) {
        let is_repeated = std::mem::take(&mut self.walk.is_repeating);
        self.walk.is_drawing = false;
        match drawn {
            Some(drawn) => {
                self.walk.ticks += if is_repeated { 0 } else { drawn.ids.len() as u64 };
                self.tree.responses[number].drawn = Some(drawn);
            }
            None => self.tree.responses.truncate(number),
        }
    }

    fn progress(&self, prompt_tokens: usize) -> Progress {
        let text = |drawn: &Option<Drawn>| drawn.as_ref().map(|drawn| drawn.text.clone()).unwrap_or_default();
        let outcome = match &self.stage {
            Stage::Ended(outcome) if !self.walk.ended_before => Some(outcome.clone()),
            _ => None,
        };
        let sequence = self.tree.sequences(prompt_tokens).into_iter().next();
        Progress {
            outcome: outcome.map(|outcome| super::table::said_something(outcome, sequence.is_some())),
            sequence,
            said: self.tree.responses.iter().map(|of| (of.heard.clone(), text(&of.drawn))).collect(),
            was_limited: self.was_limited,
        }
    }
}

/// Makes the error of an agent that does not do again what it did.
fn differs(how: &str) -> Error {
    let message = format!("an agent plays an episode otherwise when it is begun again: {}", shown(how));
    Error::new(slugs::TEXT_ENVIRONMENT_BAD_REPLY, message)
        .hint("derive all randomness from the seed of the episode; environment.replay promises that a resumed run may begin it again")
}

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
    pub(super) fn floor(&self, drawn: &[(u64, u64)]) -> u64 {
        self.lock().carried.floor(drawn)
    }

    /// Decides whether an episode's request is drawn, and takes what it has had.
    pub(super) fn pass(&self, name: u64, floor: u64) -> Pass {
        let mut state = self.lock();
        let is_playing = state.carried.is_playing();
        let Some(episode) = state.carried.of(name).filter(|episode| !episode.has_ended()) else {
            return Pass::Over;
        };
        let walk = &mut episode.walk;
        match walk.had.pop_front() {
            Some(had) => {
                walk.is_repeating = true;
                Pass::Had(had.drawn)
            }
            None if is_playing && floor > walk.ticks => Pass::Now,
            None => Pass::Later,
        }
    }

    /// Notes that an episode's response begins to be drawn.
    pub(super) fn draws(&self, name: u64) {
        if let Some(episode) = self.lock().carried.of(name) {
            episode.walk.is_drawing = true;
        }
    }
}

#[cfg(test)]
#[path = "carried_tests.rs"]
mod tests;
