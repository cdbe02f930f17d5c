//! Holds one episode: who plays it, what was said in it, and how it ended.

use super::tree::{AgentSequence, Response, Tree};
use crate::gate::SampledResponse;
use crate::protocol::refusal::Reply;
use plimsoll_base::{Error, Result, shown, slugs};
use plimsoll_text::Message;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

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

/// Holds a response that an episode has had.
#[derive(Clone, Debug)]
pub struct Had {
    pub prompt: Vec<u32>,
    pub drawn: SampledResponse,
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

pub(super) struct Episode {
    pub start: Value,
    /// The sample that its first response is drawn as.
    pub sample_id: u64,
    pub stage: Stage,
    pub tree: Tree,
    /// Responses that are being drawn.
    pub under_way: usize,
    pub last: Instant,
    pub agent: Option<String>,
    pub was_limited: bool,
    /// Lock that is held while a request of the episode is tokenized.
    pub turn: Arc<tokio::sync::Mutex<()>>,
    pub walk: Walk,
}

pub(super) enum Stage {
    Free,
    Open,
    Ended(Result<f64>),
}

/// Holds what only episodes of several steps have.
#[derive(Default)]
pub(super) struct Walk {
    /// Tokens that it has drawn in this step.
    pub ticks: u64,
    pub is_drawing: bool,
    /// Tokens of the response that is being drawn.
    pub drawn: u64,
    /// True while an answer of an earlier process is given again.
    pub is_repeating: bool,
    pub had: VecDeque<Had>,
    pub ended_before: bool,
}

impl Episode {
    pub fn new(start: Value, sample_id: u64, now: Instant) -> Episode {
        Episode {
            start,
            sample_id,
            stage: Stage::Free,
            tree: Tree::default(),
            under_way: 0,
            last: now,
            agent: None,
            was_limited: false,
            turn: Arc::default(),
            walk: Walk::default(),
        }
    }

    pub fn played(self, prompt_tokens: usize) -> Played {
        let sequences = self.tree.sequences(prompt_tokens);
        let said =
            |response: Response| (response.heard, response.drawn.map(|drawn| drawn.text).unwrap_or_default());
        let outcome = match self.stage {
            Stage::Ended(outcome) => outcome,
            Stage::Free | Stage::Open => Err(Error::new("internal", "an episode was taken before its end")),
        };
        let outcome = said_something(outcome, !sequences.is_empty());
        let said = self.tree.responses.into_iter().map(said).collect();
        Played { outcome, sequences, said, was_limited: self.was_limited }
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended(_))
    }

    /// True if it has ended since the rollout began.
    pub fn has_ended_now(&self) -> bool {
        self.has_ended() && !self.walk.ended_before
    }

    /// True if its agent waits for a response that is not being drawn.
    pub fn waits(&self) -> bool {
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
                .fact("with async.partial_rollouts an episode has one at a time")
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
    pub fn record_carried(&mut self, number: usize, drawn: Option<SampledResponse>) {
        let is_repeated = std::mem::take(&mut self.walk.is_repeating);
        (self.walk.is_drawing, self.walk.drawn) = (false, 0);
        match drawn {
            Some(drawn) => {
                self.walk.ticks += if is_repeated { 0 } else { drawn.ids.len() as u64 };
                self.tree.responses[number].drawn = Some(drawn);
            }
            None => self.tree.responses.truncate(number),
        }
    }

    pub fn progress(&self, prompt_tokens: usize) -> Progress {
        let text = |drawn: &Option<SampledResponse>| {
            drawn.as_ref().map(|drawn| drawn.text.clone()).unwrap_or_default()
        };
        let outcome = match &self.stage {
            Stage::Ended(outcome) if !self.walk.ended_before => Some(outcome.clone()),
            _ => None,
        };
        let sequence = self.tree.sequences(prompt_tokens).into_iter().next();
        Progress {
            outcome: outcome.map(|outcome| said_something(outcome, sequence.is_some())),
            sequence,
            said: self.tree.responses.iter().map(|of| (of.heard.clone(), text(&of.drawn))).collect(),
            was_limited: self.was_limited,
        }
    }
}

/// Requires of an episode with a reward that the model said something in it.
fn said_something(outcome: Result<f64>, has_said: bool) -> Result<f64> {
    match outcome {
        Ok(_) if !has_said => {
            let message = "an agent reported a reward for an episode in which the model said nothing";
            Err(Error::new(slugs::TEXT_ENVIRONMENT_BAD_REPLY, message))
        }
        outcome => outcome,
    }
}

/// Makes the error of an agent that does not do again what it did.
fn differs(how: &str) -> Error {
    let message = format!("an agent plays an episode otherwise when it is begun again: {}", shown(how));
    Error::new(slugs::TEXT_ENVIRONMENT_BAD_REPLY, message)
        .hint("derive all randomness from the seed of the episode; environment.replay promises that a resumed run may begin it again")
}
