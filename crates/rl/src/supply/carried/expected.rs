//! What a run expects of the groups in a checkpoint: a file that was cut, or that something else wrote, is refused with
//! the line that is wrong.

use crate::players::{Group, PlayLimits, PlayedTurn, Response};
use crate::supply::restored::Restored;
use plimsoll_rollout::Finish;

/// Largest log-probability: the head takes the logit from the largest one, then ln of a sum of at least 1.
const LOGPROB_MAX: f32 = 0.0;
/// Bytes of a token in a line: id, bits of its log-probability, and a version with a count, with their commas.
const TOKEN_BYTES: u64 = 11 + 11 + 34;
/// Bytes of a line besides tokens, and of a response.
const LINE_BYTES: u64 = 256;
/// Bytes of a token as text, escaped: the longest of common tokenizers have 128.
const TEXT_BYTES: u64 = 1024;
/// Bytes of a turn besides its text: its numbers, and an answer of 1 MiB, escaped.
const TURN_BYTES: u64 = 2 << 20;
/// Bytes of an agent's request beyond that, by token of the context.
const REQUEST_BYTES_PER_TOKEN: u64 = 64;

/// The run that reads the groups, as it was when the checkpoint was saved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// Groups that `state.json` names.
    pub count: u64,
    /// Most groups.
    pub carry: u64,
    /// Responses of a group.
    pub size: usize,
    /// Most tokens of a response, and of a turn.
    pub most: usize,
    pub turn: usize,
    /// Most turns of an episode; 0 without an environment.
    pub turns: usize,
    /// Most tokens of the prompt that an agent brings; 0 where none plays.
    pub prompt: usize,
    /// Tokens of the model.
    pub vocab: u32,
    /// Steps that were made.
    pub step: u32,
    /// Updates of the weights.
    pub updates: u64,
    /// Prompts and samples that have begun.
    pub data_position: u64,
    pub next_sample_id: u64,
}

impl Expected {
    /// Returns what the run of a checkpoint expects, whose state names `count` groups and of which `carry` may be.
    pub(super) fn new(from: &Restored<'_>, count: u64, carry: u64) -> Expected {
        let Restored { run, state, vocab, limits: PlayLimits { turns, prompt }, .. } = *from;
        Expected {
            count,
            carry,
            size: run.rollout.group_size as usize,
            most: run.response_tokens_max(),
            turn: run.rollout.max_new_tokens as usize,
            turns,
            prompt,
            vocab,
            step: state.progress.step,
            updates: state.policy_version,
            data_position: state.data_position,
            next_sample_id: state.next_sample_id,
        }
    }

    /// Returns the most bytes of a line.
    pub(super) fn line_bytes_max(&self) -> u64 {
        let text = if self.turns > 0 { TEXT_BYTES } else { 0 };
        // What an agent asked first, and the context that its requests may add.
        let (requests, prompt) = match self.prompt as u64 {
            0 => (self.turns as u64 * TURN_BYTES, 0),
            prompt => {
                let request = TURN_BYTES + (prompt + self.most as u64) * REQUEST_BYTES_PER_TOKEN;
                ((self.turns as u64 + 1).saturating_mul(request), prompt * TOKEN_BYTES)
            }
        };
        let one = LINE_BYTES + prompt + self.most as u64 * (TOKEN_BYTES + text);
        (self.size as u64).saturating_mul(one.saturating_add(requests)).saturating_add(LINE_BYTES)
    }

    /// Requires that there are as many groups as `state.json` names, and that a run can have them under way.
    pub(super) fn check_count(&self, groups: usize) -> Result<(), String> {
        match groups as u64 {
            groups if groups != self.count => Err(format!("{groups} groups, state.json says {}", self.count)),
            groups if groups > self.carry => Err(format!("{groups} groups go on, and {} may", self.carry)),
            _ => Ok(()),
        }
    }

    /// Requires that a group can follow `before`, the one on the line before.
    pub(super) fn check(&self, group: &Group, before: Option<&Group>) -> Result<(), String> {
        let Group { position, first_sample_id, ref responses, .. } = *group;
        let size = self.size as u64;
        if responses.len() != self.size {
            return Err(format!("a group of {} responses, the run has {size}", responses.len()));
        }
        if position >= self.data_position {
            return Err(format!("prompt {position}, and {} have begun", self.data_position));
        }
        if first_sample_id.checked_add(size).is_none_or(|end| end > self.next_sample_id) {
            return Err(format!("samples from {first_sample_id}, and {} have begun", self.next_sample_id));
        }
        if let Some(before) = before.filter(|before| position <= before.position) {
            return Err(format!(
                "prompt {position} after prompt {}: twice, or out of order",
                before.position
            ));
        }
        if before.is_some_and(|before| first_sample_id < before.first_sample_id + size) {
            return Err(format!("samples from {first_sample_id}, which the line before has or has passed"));
        }
        responses.iter().try_for_each(|response| self.check_response(response))
    }

    fn check_response(&self, response: &Response) -> Result<(), String> {
        let (tokens, most) = (response.ids.len(), self.most);
        if tokens > most {
            return Err(format!("a response of {tokens} tokens, the longest has {most}"));
        }
        match response.finish {
            None if tokens == most && self.prompt == 0 => {
                return Err(format!("a response of {most} tokens goes on"));
            }
            Some(_) if tokens == 0 && !(self.prompt > 0 && response.has_fault) => {
                return Err("a response without a token has ended".to_string());
            }
            Some(Finish::Length) if tokens < most && self.turns == 0 => {
                return Err(format!("a response of {tokens} tokens was cut at {most}"));
            }
            Some(_) if !(1..=self.step).contains(&response.ended_in) => {
                let made = self.step;
                return Err(format!(
                    "a response has ended in step {}, and {made} were made",
                    response.ended_in
                ));
            }
            _ => {}
        }
        let prompt = response.asked.iter().flat_map(|asked| &asked.prompt);
        if let Some(id) = response.ids.iter().chain(prompt).find(|id| **id >= self.vocab) {
            return Err(format!("token {id}, the model has {}", self.vocab));
        }
        if let Some(pair) = response.versions.windows(2).find(|pair| pair[0] > pair[1]) {
            return Err(format!("a token of version {} after one of version {}", pair[1], pair[0]));
        }
        if let Some(version) = response.versions.last().filter(|version| **version > self.updates) {
            let updates = self.updates;
            return Err(format!("a token of version {version}, and the weights have seen {updates} updates"));
        }
        match self.turns {
            0 if !response.turns.is_empty() || response.has_fault || response.asked.is_some() => {
                Err("a turn, and the run has no environment".to_string())
            }
            0 => check_logprobs(&response.logprobs),
            _ => self.check_episode(response),
        }
    }

    fn check_episode(&self, episode: &Response) -> Result<(), String> {
        let (num_turns, most) = (episode.turns.len(), self.turns);
        match &episode.asked {
            Some(asked) if asked.prompt.is_empty() || asked.prompt.len() > self.prompt => {
                let (tokens, longest) = (asked.prompt.len(), self.prompt);
                return Err(format!("an agent's prompt of {tokens} tokens, the longest has {longest}"));
            }
            Some(_) if num_turns == 0 => return Err("an agent's prompt without a turn".to_string()),
            None if num_turns > 0 && self.prompt > 0 => {
                return Err("a turn without an agent's prompt".to_string());
            }
            _ => {}
        }
        let Some(last) = episode.turns.last() else {
            return match episode.ids.len() {
                0 => Ok(()),
                tokens => Err(format!("a response of {tokens} tokens without a turn")),
            };
        };
        match episode.finish {
            _ if num_turns > most => {
                return Err(format!("an episode of {num_turns} turns, the most are {most}"));
            }
            // An agent may yet report its reward.
            None if num_turns == most && self.prompt == 0 => {
                return Err(format!("an episode of {num_turns} turns goes on, the most are {most}"));
            }
            None if episode.has_fault => return Err("an episode goes on after a fault".to_string()),
            Some(finish) if finish != last.turn.finish => {
                let of = last.turn.finish;
                return Err(format!("an episode has ended with {finish:?}, its last turn with {of:?}"));
            }
            _ => {}
        }
        let mut end = 0;
        for of in &episode.turns {
            let (tokens, all) = (of.turn.start as usize..of.turn.end as usize, episode.ids.len());
            if tokens.is_empty() || tokens.start < end || tokens.end > all {
                let (from, to) = (of.turn.start, of.turn.end);
                return Err(format!("a turn of tokens {from} to {to} of {all}, after {end}"));
            }
            check_said(&episode.logprobs[end..tokens.start])?;
            end = tokens.end;
            self.check_turn(episode, of)?;
        }
        check_said(&episode.logprobs[end..])
    }

    fn check_turn(&self, episode: &Response, of: &PlayedTurn) -> Result<(), String> {
        let (tokens, most) = (of.turn.tokens(), self.turn);
        match (tokens.len(), of.turn.finish) {
            (len, _) if len > most => return Err(format!("a turn of {len} tokens, the longest has {most}")),
            (len, Finish::Length) if len < most && tokens.end < self.most && self.prompt == 0 => {
                return Err(format!("a turn of {len} tokens was cut at {most}"));
            }
            _ => {}
        }
        if !of.reward.is_finite() {
            return Err(format!("the reward {}", of.reward));
        }
        check_logprobs(&episode.logprobs[tokens.clone()])?;
        match episode.versions[tokens].iter().find(|version| **version != of.version) {
            Some(version) => {
                Err(format!("a turn of version {} with a token of version {version}", of.version))
            }
            None => Ok(()),
        }
    }
}

/// Requires log-probabilities of tokens that were drawn.
fn check_logprobs(logprobs: &[f32]) -> Result<(), String> {
    let is_logprob = |value: f32| value.is_finite() && value <= LOGPROB_MAX;
    match logprobs.iter().find(|value| !is_logprob(**value)) {
        Some(value) => Err(format!("the log-probability {value}")),
        None => Ok(()),
    }
}

/// Requires that no log-probability is of a token that an environment said.
fn check_said(logprobs: &[f32]) -> Result<(), String> {
    match logprobs.iter().find(|value| !value.is_nan()) {
        Some(value) => Err(format!("the log-probability {value} of a token that was not drawn")),
        None => Ok(()),
    }
}
