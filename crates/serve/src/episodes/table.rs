//! Keeps the episodes of a rollout: which are free, who plays which, and how each ended.

use super::carried::{CARRIED, Carried};
use super::episode::{Episode, Played, Stage};
use super::token::Tokens;
use super::tree::{EpisodeLimits, Tree};
use crate::gate::SampledResponse;
use crate::guard::{Guard, Pass};
use crate::owner::Heard;
use crate::protocol::refusal::Reply;
use plimsoll_base::{Error, Result, shown, slugs};
use plimsoll_device::Sampling;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Distance between the sample ids of two responses of an episode, as a power of two.
const TURN_SHIFT: u32 = 56;
/// Longest words of an agent about its own failure.
const FAULT_BYTES_MAX: usize = 1000;

/// Says which episodes a rollout asks for.
#[derive(Clone, Debug)]
pub struct Round {
    /// Object that the agent of each episode is given.
    pub starts: Vec<Value>,
    /// The first response to episode e draws as sample `first_sample_id` + e.
    pub first_sample_id: u64,
    pub sampling: Sampling,
}

/// Bounds the episodes of a run.
#[derive(Clone, Copy, Debug)]
pub struct EpisodesSpec {
    pub limits: EpisodeLimits,
    /// Longest time between two requests of an episode.
    pub step_timeout: Duration,
    /// Longest time until some agent takes an episode.
    pub claim_timeout: Duration,
    /// True if the run starts the agents; otherwise the user does.
    pub starts_agents: bool,
}

pub struct EpisodeTable {
    pub(super) spec: EpisodesSpec,
    tokens: Tokens,
    state: Mutex<State>,
    /// Wakes the agents that wait for an episode.
    pub(super) offered: Notify,
}

pub(super) struct State {
    /// Number of rollouts so far.
    round: u64,
    episodes: Vec<Episode>,
    /// Episodes of several steps.
    pub carried: Carried,
    pub sampling: Sampling,
    /// Time of the last event of any episode.
    pub last: Instant,
    is_over: bool,
}

/// Answers an agent that asks for an episode.
pub enum Claim {
    Episode {
        id: String,
        /// Token that its agent sends to speak in it and to report.
        token: String,
        start: Value,
    },
    /// None is free now.
    Later,
    /// The run has ended.
    Over,
}

impl EpisodeTable {
    /// Makes a table without episodes. `secret`: random words, from which the tokens of the episodes follow.
    pub fn new(spec: EpisodesSpec, secret: &str) -> EpisodeTable {
        let sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };
        let state = State {
            round: 0,
            episodes: Vec::new(),
            carried: Carried::default(),
            sampling,
            last: Instant::now(),
            is_over: false,
        };
        EpisodeTable { spec, tokens: Tokens::new(secret), state: Mutex::new(state), offered: Notify::new() }
    }

    /// Offers the episodes of a rollout.
    pub fn begin(&self, round: Round) {
        let now = Instant::now();
        let episode = |(start, sample_id)| Episode::new(start, sample_id, now);
        let mut state = self.lock();
        state.round += 1;
        state.episodes = round.starts.into_iter().zip(round.first_sample_id..).map(episode).collect();
        (state.sampling, state.last) = (round.sampling, now);
        drop(state);
        self.offered.notify_waiters();
    }

    /// Takes the episodes of the rollout, which have all ended.
    pub fn take(&self) -> Vec<Played> {
        let mut state = self.lock();
        let episodes = std::mem::take(&mut state.episodes);
        drop(state);
        episodes.into_iter().map(|episode| episode.played(self.spec.limits.prompt_tokens)).collect()
    }

    /// Tells agents that ask for an episode from now on that the run has ended.
    pub fn end(&self) {
        self.lock().is_over = true;
        self.offered.notify_waiters();
    }

    pub fn is_done(&self) -> bool {
        let state = self.lock();
        if state.carried.is_playing() {
            state.carried.is_settled()
        } else {
            state.episodes.iter().all(Episode::has_ended)
        }
    }

    /// Returns the number of episodes that have ended in this rollout.
    pub fn num_ended(&self) -> usize {
        self.lock().played().iter().filter(|episode| episode.has_ended_now()).count()
    }

    /// Ends episodes whose agents are silent.
    ///
    /// Errors: `agent-missing` if none of them takes an episode for too long.
    pub fn look(&self, now: Instant) -> Result<()> {
        let mut state = self.lock();
        let mut is_played = false;
        for episode in state.played() {
            let Stage::Open = episode.stage else { continue };
            let silent = now.saturating_duration_since(episode.last);
            if episode.under_way == 0 && silent >= self.spec.step_timeout {
                let message = format!(
                    "an agent sent neither a request nor a reward for {} ms",
                    self.spec.step_timeout.as_millis()
                );
                episode.stage = Stage::Ended(Err(Error::new(slugs::TEXT_ENVIRONMENT_TIMEOUT, message).hint(
                    "raise environment.step_timeout_ms, or let the agent report a reward or an error",
                )));
                continue;
            }
            is_played = true;
        }
        if state.carried.is_playing() {
            state.carried.check_agents(now, state.last, self.spec.claim_timeout)?;
        }
        let free = state.played().iter().filter(|episode| matches!(episode.stage, Stage::Free)).count();
        if free > 0 && !is_played && now.saturating_duration_since(state.last) >= self.spec.claim_timeout {
            let message = format!(
                "no agent has asked for an episode for {} ms, and {free} are free",
                self.spec.claim_timeout.as_millis(),
            );
            let error = Error::new("agent-missing", message);
            let hints = if self.spec.starts_agents {
                [
                    "environment.command runs and asks for nothing: is it stopped, or does it wait for something?",
                    "what it printed is in RUN/agents.log; environment.reset_timeout_ms is how long it may take",
                ]
            } else {
                [
                    "start agents; RUN/agent.json has the address and the token",
                    "or set environment.command, and the run starts them",
                ]
            };
            return Err(hints.into_iter().fold(error, Error::hint));
        }
        Ok(())
    }

    /// Ends the episodes of an agent that has died.
    pub fn agent_died(&self, agent: &str, error: &Error) {
        let mut state = self.lock();
        let State { episodes, carried, .. } = &mut *state;
        let open = |episode: &&mut Episode| matches!(episode.stage, Stage::Open);
        for episode in episodes.iter_mut().chain(&mut carried.episodes).filter(open) {
            if episode.agent.as_deref() == Some(agent) {
                episode.stage = Stage::Ended(Err(error.clone()));
            }
        }
    }

    /// Gives the next episode away, and waits up to `wait` for one.
    pub(super) async fn claim(&self, agent: Option<&str>, wait: Duration) -> Claim {
        let until = tokio::time::Instant::now() + wait;
        loop {
            let offered = self.offered.notified();
            match self.try_claim(agent) {
                Claim::Later => {}
                claim => return claim,
            }
            if tokio::time::timeout_at(until, offered).await.is_err() {
                return Claim::Later;
            }
        }
    }

    pub(super) fn try_claim(&self, agent: Option<&str>) -> Claim {
        let (mut state, now) = (self.lock(), Instant::now());
        if state.is_over {
            return Claim::Over;
        }
        // Agents that wait between two rollouts are there.
        state.last = now;
        let (round, is_carried) = (state.round, state.carried.is_playing());
        let mut all = state.played().iter_mut().enumerate();
        let free = all.find(|(_, episode)| matches!(episode.stage, Stage::Free));
        let Some((number, episode)) = free else { return Claim::Later };
        (episode.stage, episode.last, episode.agent) = (Stage::Open, now, agent.map(str::to_string));
        let start = episode.start.clone();
        let id =
            if is_carried { format!("{CARRIED}-{}", episode.sample_id) } else { format!("{round}-{number}") };
        Claim::Episode { token: self.tokens.of(&id), id, start }
    }

    /// Ends an episode as its agent reports.
    ///
    /// Errors: `agent-episode-unknown`, `agent-episode-over`.
    pub(super) fn report(&self, id: &str, outcome: std::result::Result<f64, String>) -> Reply<()> {
        let mut state = self.lock();
        state.last = Instant::now();
        let episode = state.open(id)?;
        episode.report(outcome.map_err(|words| {
            let words: String = words.chars().take(FAULT_BYTES_MAX).collect();
            Error::new(slugs::TEXT_ENVIRONMENT_RAISED, format!("an agent gave up: {}", shown(&words)))
        }));
        Ok(())
    }

    /// Requires that an episode goes on.
    ///
    /// Errors: `agent-episode-unknown`, `agent-episode-over`.
    pub(super) fn check_open(&self, id: &str) -> Reply<()> {
        let mut state = self.lock();
        let episode = state.open(id)?;
        episode.last = Instant::now();
        Ok(())
    }

    /// Requires that a request of an episode brings the episode's token.
    ///
    /// Errors: `serve-token-wrong`.
    pub(super) fn check_token(&self, id: &str, authorization: &str, run: &Guard) -> Reply<()> {
        if self.tokens.is_of(id, authorization.strip_prefix("Bearer ").unwrap_or_default()) {
            return Ok(());
        }
        let is_of_run = run.pass(authorization, "", "") == Pass::Yes;
        // `%2D` in the address is `-` where the episode is looked up.
        let is_plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if is_of_run && is_plain && !self.was_offered(id) {
            // The answer says that there is no such episode.
            return Ok(());
        }
        let error = Error::new("serve-token-wrong", "the request does not bring the token of this episode");
        let hint = if is_of_run {
            "the run's token only takes episodes: send `token` of the answer to POST /v1/episodes"
        } else {
            "send Authorization: Bearer TOKEN, with `token` of the answer to POST /v1/episodes"
        };
        Err(error.hint(hint).into())
    }

    /// Returns true if an episode of that id was ever given to an agent.
    fn was_offered(&self, id: &str) -> bool {
        let state = self.lock();
        let is_taken =
            |slot| state.episodes.get(slot).is_some_and(|of: &Episode| !matches!(of.stage, Stage::Free));
        slot_of(id).is_some_and(|(round, slot)| match round {
            CARRIED => state.carried.was_offered(slot as u64),
            round => round < state.round || round == state.round && is_taken(slot),
        })
    }

    /// Returns the lock that requests of an episode hold one after the other.
    pub(super) fn turn(&self, id: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.lock().open(id).map(|episode| episode.turn.clone()).unwrap_or_default()
    }

    pub(super) fn sampling(&self) -> Sampling {
        self.lock().sampling
    }

    /// Calls `read` with the responses of an episode; returns none if it is over.
    pub(super) fn with_tree<T>(&self, id: &str, read: impl FnOnce(&Tree) -> T) -> Option<T> {
        let mut state = self.lock();
        state.open(id).ok().map(|episode| read(&episode.tree))
    }

    /// Takes places for `count` responses to a prompt: (number, sample id, longest response) of each.
    pub(super) fn take_places(
        &self,
        id: &str,
        prompt: &[u32],
        count: usize,
        asked: Option<usize>,
        heard: &Heard,
    ) -> Reply<Vec<(usize, u64, usize)>> {
        let limits = self.spec.limits;
        let mut state = self.lock();
        let episode = state.open(id)?;
        if carried_in(id).is_some() {
            episode.check_request(prompt, count)?;
        }
        let refused = |what: String, key: &str| {
            Error::new("agent-limit", what)
                .hint(format!("raise environment.{key}, or let the agent report its reward earlier"))
        };
        if episode.tree.responses.len() + count > limits.turns {
            episode.was_limited = true;
            let message = format!(
                "{} responses of an episode, environment.turns_max is {}",
                episode.tree.responses.len() + count,
                limits.turns
            );
            return Err(refused(message, "turns_max").into());
        }
        let mut places = Vec::with_capacity(count);
        let begun = episode.tree.responses.len();
        for _ in 0..count {
            let place = episode.tree.place(prompt, &limits);
            let room = place.room;
            let new = asked.unwrap_or(room).min(limits.turn_tokens).min(room);
            let branches = episode.tree.branches() + usize::from(place.begins);
            let error = if branches > limits.branches {
                let message = format!(
                    "{branches} sequences of an episode, environment.branches_max is {}: the conversation does not go on after an earlier answer",
                    limits.branches
                );
                Some(refused(message, "branches_max"))
            } else if new == 0 {
                let message = format!("{} tokens leave no room for a response in this episode", prompt.len());
                Some(Error::new("serve-too-long", message).hint(
                    "raise data.prompt_tokens_max, environment.turn_tokens_max or environment.episode_tokens_max",
                ))
            } else {
                None
            };
            if let Some(error) = error {
                episode.was_limited = true;
                episode.tree.responses.truncate(begun);
                return Err(error.into());
            }
            let number = episode.tree.begin(&place, prompt);
            let response = &mut episode.tree.responses[number];
            (response.key, response.heard) = (heard.key, heard.messages.clone());
            places.push((number, episode.sample_id + ((number as u64) << TURN_SHIFT), new));
        }
        episode.under_way += count;
        episode.last = Instant::now();
        Ok(places)
    }

    /// Records a drawn response; `drawn` is none if it did not reach its end.
    pub(super) fn record(&self, id: &str, number: usize, drawn: Option<SampledResponse>) {
        let mut state = self.lock();
        // The episode may have ended before.
        let Ok(episode) = state.open(id) else { return };
        episode.under_way = episode.under_way.saturating_sub(1);
        episode.last = Instant::now();
        match carried_in(id) {
            Some(_) => episode.record_carried(number, drawn),
            None => episode.tree.responses[number].drawn = drawn,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

impl State {
    /// Returns the episodes that agents take.
    fn played(&mut self) -> &mut Vec<Episode> {
        if self.carried.is_playing() { &mut self.carried.episodes } else { &mut self.episodes }
    }

    /// Returns an open episode of this rollout.
    fn open(&mut self, id: &str) -> Reply<&mut Episode> {
        let unknown = || {
            Error::new("agent-episode-unknown", format!("there is no episode {:?}", shown(id)))
                .hint("POST /v1/episodes gives episodes")
        };
        let over = || Error::new("agent-episode-over", format!("the episode {id} is over"));
        let Some((round, slot)) = slot_of(id).filter(|(round, _)| *round <= self.round) else {
            return Err(unknown().into());
        };
        let was_trained = round == CARRIED && self.carried.was_offered(slot as u64);
        let found = match round {
            CARRIED => self.carried.of(slot as u64),
            round if round < self.round || self.episodes.is_empty() => {
                return Err(over().fact("its rollout has ended").into());
            }
            _ => self.episodes.get_mut(slot),
        };
        let Some(episode) = found else {
            return Err(if was_trained { over().fact("a step has trained it") } else { unknown() }.into());
        };
        match &episode.stage {
            Stage::Open => Ok(episode),
            Stage::Free => Err(unknown().into()),
            Stage::Ended(outcome) => {
                let how = match outcome {
                    Ok(reward) => format!("its agent reported the reward {reward}"),
                    Err(error) => format!("it ended with {}: {}", error.slug, error.message),
                };
                Err(over().fact(how).into())
            }
        }
    }
}

/// Returns the name of an episode of several steps.
pub(super) fn carried_in(id: &str) -> Option<u64> {
    slot_of(id).filter(|(round, _)| *round == CARRIED).map(|(_, name)| name as u64)
}

fn slot_of(id: &str) -> Option<(u64, usize)> {
    let (round, slot) = id.split_once('-')?;
    let found: (u64, usize) = (round.parse().ok()?, slot.parse().ok()?);
    // One name an episode: no zeros before it, no sign.
    (id == format!("{}-{}", found.0, found.1)).then_some(found)
}

/// Returns the id of the episode that a path names; none for the path that gives episodes.
pub(super) fn named_in(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("/episodes/").or_else(|| path.strip_prefix("/v1/episodes/"))?;
    Some(rest.split('/').next().unwrap_or_default())
}

/// Returns the object that an agent receives when it takes an episode.
pub(super) fn offer(id: &str, token: &str, start: Value, base: &str, model: &str) -> Value {
    let base_url = format!("{base}/episodes/{id}/v1");
    let mut offer = json!({ "id": id, "token": token, "base_url": base_url, "model": model });
    if let (Value::Object(offer), Value::Object(start)) = (&mut offer, start) {
        offer.extend(start);
    }
    offer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_missing_depends_on_who_starts_the_agents() {
        for (starts_agents, words, other) in [
            (true, "is it stopped", "set environment.command"),
            (false, "or set environment.command", "is it stopped"),
        ] {
            let limits =
                EpisodeLimits { turns: 1, branches: 1, prompt_tokens: 1, response_tokens: 1, turn_tokens: 1 };
            let second = Duration::from_secs(1);
            let spec = EpisodesSpec { limits, step_timeout: second, claim_timeout: second, starts_agents };
            let episodes = EpisodeTable::new(spec, "s");
            let sampling = episodes.sampling();
            episodes.begin(Round { starts: vec![json!({})], first_sample_id: 0, sampling });
            let error = episodes.look(Instant::now() + 2 * second).unwrap_err().to_string();
            assert!(
                error.contains("agent-missing") && error.contains(words) && !error.contains(other),
                "{error}"
            );
        }
    }
}
