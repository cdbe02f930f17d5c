//! Keeps the episodes of a rollout: which are free, who plays which, and how each ended.

use super::token::Tokens;
use super::tree::{AgentSequence, Drawn, EpisodeLimits, Heard, Tree};
use crate::guard::{Guard, Pass};
use crate::refusal::Reply;
use plimsoll_base::{Error, Result, shown, slugs};
use plimsoll_device::Sampling;
use plimsoll_text::Message;
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

/// Holds an episode that has ended.
#[derive(Debug)]
pub struct Played {
    /// The reward that the agent reported, or why there is none.
    pub outcome: Result<f64>,
    pub sequences: Vec<AgentSequence>,
    /// For each response: the messages since the one before it, and its text.
    pub said: Vec<(Vec<Message>, String)>,
    /// True if a limit refused a request of it.
    pub was_limited: bool,
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
    spec: EpisodesSpec,
    tokens: Tokens,
    state: Mutex<State>,
    /// Wakes the agents that wait for an episode.
    offered: Notify,
}

struct State {
    /// Number of rollouts so far.
    round: u64,
    episodes: Vec<Episode>,
    next: usize,
    first_sample_id: u64,
    sampling: Sampling,
    /// Time of the last event of any episode.
    last: Instant,
    is_over: bool,
}

struct Episode {
    start: Value,
    stage: Stage,
    tree: Tree,
    /// Responses that are being drawn.
    under_way: usize,
    last: Instant,
    agent: Option<String>,
    was_limited: bool,
    /// Lock that is held while a request of the episode is tokenized.
    turn: Arc<tokio::sync::Mutex<()>>,
}

enum Stage {
    Free,
    Open,
    Ended(Result<f64>),
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
            next: 0,
            first_sample_id: 0,
            sampling,
            last: Instant::now(),
            is_over: false,
        };
        EpisodeTable { spec, tokens: Tokens::new(secret), state: Mutex::new(state), offered: Notify::new() }
    }

    /// Offers the episodes of a rollout.
    pub fn begin(&self, round: Round) {
        let now = Instant::now();
        let episode = |start| Episode {
            start,
            stage: Stage::Free,
            tree: Tree::default(),
            under_way: 0,
            last: now,
            agent: None,
            was_limited: false,
            turn: Arc::default(),
        };
        let mut state = self.lock();
        state.round += 1;
        state.episodes = round.starts.into_iter().map(episode).collect();
        (state.next, state.first_sample_id, state.sampling, state.last) =
            (0, round.first_sample_id, round.sampling, now);
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
        self.lock().episodes.iter().all(|episode| matches!(episode.stage, Stage::Ended(_)))
    }

    /// Returns the number of episodes that have ended in this rollout.
    pub fn num_ended(&self) -> usize {
        self.lock().episodes.iter().filter(|episode| matches!(episode.stage, Stage::Ended(_))).count()
    }

    /// Ends episodes whose agents are silent.
    ///
    /// Errors: `agent-missing` if none of them takes an episode for too long.
    pub fn look(&self, now: Instant) -> Result<()> {
        let mut state = self.lock();
        let mut is_played = false;
        for episode in &mut state.episodes {
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
        let has_free = state.next < state.episodes.len();
        if has_free && !is_played && now.saturating_duration_since(state.last) >= self.spec.claim_timeout {
            let message = format!(
                "no agent has asked for an episode for {} ms, and {} are free",
                self.spec.claim_timeout.as_millis(),
                state.episodes.len() - state.next
            );
            let error = Error::new("agent-missing", message);
            return Err(match self.spec.starts_agents {
                true => error
                    .hint("environment.command runs and asks for nothing: is it stopped, or does it wait for something?")
                    .hint("what it printed is in RUN/agents.log; environment.reset_timeout_ms is how long it may take"),
                false => error
                    .hint("start agents; RUN/agent.json has the address and the token")
                    .hint("or set environment.command, and the run starts them"),
            });
        }
        Ok(())
    }

    /// Ends the episodes of an agent that has died.
    pub fn agent_died(&self, agent: &str, error: &Error) {
        let mut state = self.lock();
        let open = |episode: &&mut Episode| matches!(episode.stage, Stage::Open);
        for episode in state.episodes.iter_mut().filter(open) {
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

    fn try_claim(&self, agent: Option<&str>) -> Claim {
        let (mut state, now) = (self.lock(), Instant::now());
        if state.is_over {
            return Claim::Over;
        }
        // Agents that wait between two rollouts are there.
        state.last = now;
        let (number, round) = (state.next, state.round);
        let Some(episode) = state.episodes.get_mut(number) else { return Claim::Later };
        (episode.stage, episode.last, episode.agent) = (Stage::Open, now, agent.map(str::to_string));
        let start = episode.start.clone();
        state.next += 1;
        let id = format!("{round}-{number}");
        Claim::Episode { token: self.tokens.of(&id), id, start }
    }

    /// Ends an episode as its agent reports.
    ///
    /// Errors: `agent-episode-unknown`, `agent-episode-over`.
    pub(super) fn report(&self, id: &str, outcome: std::result::Result<f64, String>) -> Reply<()> {
        let mut state = self.lock();
        state.last = Instant::now();
        let episode = state.open(id)?;
        episode.stage = Stage::Ended(outcome.map_err(|words| {
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
    pub(crate) fn check_token(&self, id: &str, authorization: &str, run: &Guard) -> Reply<()> {
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
        Err(match is_of_run {
            true => error
                .hint("the run's token only takes episodes: send `token` of the answer to POST /v1/episodes"),
            false => error
                .hint("send Authorization: Bearer TOKEN, with `token` of the answer to POST /v1/episodes"),
        }
        .into())
    }

    /// Returns true if an episode of that id was ever given to an agent.
    fn was_offered(&self, id: &str) -> bool {
        let state = self.lock();
        slot_of(id).is_some_and(|(round, slot)| {
            (1..=state.round).contains(&round) && (round < state.round || slot < state.next)
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
        let first_sample_id = state.first_sample_id;
        let slot = slot_of(id).map_or(0, |(_, slot)| slot) as u64;
        let episode = state.open(id)?;
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
            places.push((number, first_sample_id + slot + ((number as u64) << TURN_SHIFT), new));
        }
        episode.under_way += count;
        episode.last = Instant::now();
        Ok(places)
    }

    /// Records a drawn response; `drawn` is none if it did not reach its end.
    pub(super) fn record(&self, id: &str, number: usize, drawn: Option<Drawn>) {
        let mut state = self.lock();
        // The episode may have ended before.
        let Ok(episode) = state.open(id) else { return };
        episode.under_way = episode.under_way.saturating_sub(1);
        episode.last = Instant::now();
        episode.tree.responses[number].drawn = drawn;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

impl State {
    /// Returns an open episode of this rollout.
    fn open(&mut self, id: &str) -> Reply<&mut Episode> {
        let unknown = || {
            Error::new("agent-episode-unknown", format!("there is no episode {:?}", shown(id)))
                .hint("POST /v1/episodes gives episodes")
        };
        let over = || Error::new("agent-episode-over", format!("the episode {id} is over"));
        let Some((round, slot)) = slot_of(id).filter(|(round, _)| (1..=self.round).contains(round)) else {
            return Err(unknown().into());
        };
        if round < self.round || self.episodes.is_empty() {
            return Err(over().fact("its rollout has ended").into());
        }
        let Some(episode) = self.episodes.get_mut(slot) else { return Err(unknown().into()) };
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

impl Episode {
    fn played(self, prompt_tokens: usize) -> Played {
        let sequences = self.tree.sequences(prompt_tokens);
        let said = |response: super::tree::Response| {
            (response.heard, response.drawn.map(|drawn| drawn.text).unwrap_or_default())
        };
        let outcome = match self.stage {
            Stage::Ended(outcome) => outcome,
            Stage::Free | Stage::Open => Err(Error::new("internal", "an episode was taken before its end")),
        };
        let outcome = match outcome {
            Ok(_) if sequences.is_empty() => {
                let message = "an agent reported a reward for an episode in which the model said nothing";
                Err(Error::new(slugs::TEXT_ENVIRONMENT_BAD_REPLY, message))
            }
            outcome => outcome,
        };
        let said = self.tree.responses.into_iter().map(said).collect();
        Played { outcome, sequences, said, was_limited: self.was_limited }
    }
}

fn slot_of(id: &str) -> Option<(u64, usize)> {
    let (round, slot) = id.split_once('-')?;
    let found: (u64, usize) = (round.parse().ok()?, slot.parse().ok()?);
    // One name an episode: no zeros before it, no sign.
    (id == format!("{}-{}", found.0, found.1)).then_some(found)
}

/// Returns the id of the episode that a path names; none for the path that gives episodes.
pub(crate) fn named_in(path: &str) -> Option<&str> {
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
