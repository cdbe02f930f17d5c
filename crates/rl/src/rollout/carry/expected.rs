//! What a run expects of the groups in a checkpoint: a file that was cut, or that something else wrote, is refused with
//! the line that is wrong.

use super::groups::{Group, Response};
use plimsoll_rollout::Finish;

/// Largest log-probability: rounding may leave one slightly above 0.
const LOGPROB_MAX: f32 = 1e-3;
/// Bytes of a token in a line: id, bits of its log-probability, and a version with a count, with their commas.
const TOKEN_BYTES: u64 = 11 + 11 + 34;
/// Bytes of a line besides tokens, and of a response.
const LINE_BYTES: u64 = 256;

/// The run that reads the groups, as it was when the checkpoint was saved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    /// Groups that `state.json` names.
    pub count: u64,
    /// Most groups.
    pub carry: u64,
    /// Responses of a group.
    pub size: usize,
    /// Most tokens of a response.
    pub most: usize,
    /// Tokens of the model.
    pub vocab: u32,
    /// Updates of the weights.
    pub updates: u64,
    /// Prompts and samples that have begun.
    pub data_position: u64,
    pub next_sample_id: u64,
}

impl Expected {
    /// Returns the most bytes of a line.
    pub(super) fn line_bytes_max(&self) -> u64 {
        (self.size as u64).saturating_mul(LINE_BYTES + self.most as u64 * TOKEN_BYTES) + LINE_BYTES
    }

    /// Requires that there are as many groups as `state.json` names, and that a run can have them under way.
    pub(super) fn check_count(&self, groups: usize) -> Result<(), String> {
        match groups as u64 {
            groups if groups != self.count => Err(format!("{groups} groups, state.json says {}", self.count)),
            groups if groups > self.carry => {
                Err(format!("{groups} groups go on, and rollout.carry is {}", self.carry))
            }
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
            None if tokens == most => return Err(format!("a response of {most} tokens goes on")),
            Some(_) if tokens == 0 => return Err("a response without a token has ended".to_string()),
            Some(Finish::Length) if tokens < most => {
                return Err(format!("a response of {tokens} tokens was cut at {most}"));
            }
            _ => {}
        }
        if let Some(id) = response.ids.iter().find(|id| **id >= self.vocab) {
            return Err(format!("token {id}, the model has {}", self.vocab));
        }
        let is_logprob = |value: f32| value.is_finite() && value <= LOGPROB_MAX;
        if let Some(value) = response.logprobs.iter().find(|value| !is_logprob(**value)) {
            return Err(format!("the log-probability {value}"));
        }
        if let Some(pair) = response.versions.windows(2).find(|pair| pair[0] > pair[1]) {
            return Err(format!("a token of version {} after one of version {}", pair[1], pair[0]));
        }
        match response.versions.last() {
            Some(version) if *version > self.updates => Err(format!(
                "a token of version {version}, and the weights have seen {} updates",
                self.updates
            )),
            _ => Ok(()),
        }
    }
}
