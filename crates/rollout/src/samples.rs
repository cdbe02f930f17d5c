//! Results of a rollout: tokens and their log-probabilities, in arrays allocated once.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// An end-of-text token, which is part of the response.
    Eos,
    Stop,
    Length,
}

/// Consecutive drawn tokens of a response; the tokens between two turns are an environment's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// First token, an index into the response.
    pub start: u32,
    /// One past the last token.
    pub end: u32,
    pub finish: Finish,
}

impl Turn {
    /// Returns the turn's tokens, as indices into the response.
    pub fn tokens(&self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Responses of one request. Sample s belongs to prompt s / group_size.
#[derive(Clone, Debug)]
pub struct Samples {
    new_tokens: usize,
    turns_max: usize,
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    lens: Vec<u32>,
    finish: Vec<Finish>,
    /// Turns that have ended, `turns_max` entries per sample.
    turns: Vec<Turn>,
    num_turns: Vec<u32>,
    /// Start of each sample's current turn.
    turn_start: Vec<u32>,
}

const NO_TURN: Turn = Turn { start: 0, end: 0, finish: Finish::Length };

impl Samples {
    /// Allocates for `samples` responses of one turn of up to `new_tokens` tokens.
    pub fn with_capacity(samples: usize, new_tokens: usize) -> Samples {
        Samples::with_turns(samples, new_tokens, 1)
    }

    /// Allocates for `samples` responses of up to `turns_max` turns, `new_tokens` tokens including those between turns.
    pub fn with_turns(samples: usize, new_tokens: usize, turns_max: usize) -> Samples {
        Samples {
            new_tokens,
            turns_max,
            ids: vec![0; samples * new_tokens],
            logprobs: vec![0.0; samples * new_tokens],
            lens: Vec::with_capacity(samples),
            finish: Vec::with_capacity(samples),
            turns: vec![NO_TURN; samples * turns_max],
            num_turns: Vec::with_capacity(samples),
            turn_start: Vec::with_capacity(samples),
        }
    }

    /// Returns the samples of `room` to be drawn into: those, or others of their size while someone still reads them.
    pub fn to_write(room: &mut Arc<Samples>) -> &mut Samples {
        if Arc::get_mut(room).is_none() {
            let samples = room.turns.len() / room.turns_max;
            *room = Arc::new(Samples::with_turns(samples, room.new_tokens, room.turns_max));
        }
        Arc::get_mut(room).expect("no one reads them")
    }

    /// Copies finished responses of one turn into room for as many, of at most `new_tokens` tokens.
    pub fn copied(&self, new_tokens: usize) -> Samples {
        let mut copy = Samples::with_capacity(self.len(), new_tokens);
        copy.clear();
        (0..self.len()).for_each(|s| copy.push_response(self.ids(s), self.logprobs(s), self.finish(s)));
        copy
    }

    pub fn bytes(samples: usize, new_tokens: usize, turns_max: usize) -> u64 {
        let turns = (turns_max * size_of::<Turn>()) as u64;
        samples as u64 * (new_tokens as u64 * 8 + turns + 13)
    }

    pub(crate) fn reset(&mut self, samples: usize) {
        assert!(
            samples * self.new_tokens <= self.ids.len(),
            "{samples} samples of {} tokens",
            self.new_tokens
        );
        self.lens.clear();
        self.lens.resize(samples, 0);
        self.finish.clear();
        self.finish.resize(samples, Finish::Length);
        for counts in [&mut self.num_turns, &mut self.turn_start] {
            counts.clear();
            counts.resize(samples, 0);
        }
    }

    /// Restarts the response of one sample.
    pub(crate) fn begin(&mut self, sample: usize) {
        (self.lens[sample], self.num_turns[sample], self.turn_start[sample]) = (0, 0, 0);
    }

    /// Begins a response with tokens that were drawn earlier.
    pub(crate) fn go_on(&mut self, sample: usize, ids: &[u32], logprobs: &[f32]) {
        assert_eq!(ids.len(), logprobs.len(), "one log-probability a token");
        assert!(ids.len() < self.new_tokens, "a response of {} tokens has ended", ids.len());
        let at = sample * self.new_tokens;
        self.ids[at..at + ids.len()].copy_from_slice(ids);
        self.logprobs[at..at + ids.len()].copy_from_slice(logprobs);
        self.lens[sample] = ids.len() as u32;
    }

    /// Begins a turn after those that were drawn earlier.
    pub(crate) fn begin_turn(&mut self, sample: usize, ids: &[u32], logprobs: &[f32]) {
        self.go_on(sample, ids, logprobs);
        self.turn_start[sample] = self.lens[sample];
    }

    pub(crate) fn push(&mut self, sample: usize, token: u32, logprob: f32) {
        let at = sample * self.new_tokens + self.lens[sample] as usize;
        debug_assert!((self.lens[sample] as usize) < self.new_tokens, "a response beyond its limit");
        self.ids[at] = token;
        self.logprobs[at] = logprob;
        self.lens[sample] += 1;
    }

    /// Appends an environment's tokens. They were not drawn: their log-probability is NaN, which must reach no result.
    pub(crate) fn append(&mut self, sample: usize, tokens: &[u32]) {
        let len = self.lens[sample] as usize;
        assert!(len + tokens.len() < self.new_tokens, "no room for a turn after {} tokens", tokens.len());
        let at = sample * self.new_tokens + len;
        self.ids[at..at + tokens.len()].copy_from_slice(tokens);
        self.logprobs[at..at + tokens.len()].fill(f32::NAN);
        self.lens[sample] += tokens.len() as u32;
        self.turn_start[sample] = self.lens[sample];
    }

    pub(crate) fn end_turn(&mut self, sample: usize, finish: Finish) {
        let n = self.num_turns[sample] as usize;
        assert!(n < self.turns_max, "sample {sample} has more than {} turns", self.turns_max);
        self.turns[sample * self.turns_max + n] =
            Turn { start: self.turn_start[sample], end: self.lens[sample], finish };
        self.num_turns[sample] += 1;
        self.finish[sample] = finish;
    }

    /// Returns the tokens of the current turn.
    pub(crate) fn turn(&self, sample: usize) -> &[u32] {
        &self.ids(sample)[self.turn_start[sample] as usize..]
    }

    pub fn clear(&mut self) {
        self.reset(0);
    }

    /// True if there is room for another response of `tokens` tokens.
    pub fn has_room(&self, tokens: usize) -> bool {
        tokens <= self.new_tokens && (self.len() + 1) * self.new_tokens <= self.ids.len()
    }

    /// Adds a finished response of one turn. Panics beyond the allocated room.
    pub fn push_response(&mut self, ids: &[u32], logprobs: &[f32], finish: Finish) {
        self.push_turns(ids, logprobs, &[Turn { start: 0, end: ids.len() as u32, finish }]);
    }

    /// Adds a response of ended turns; `ids` and `logprobs` include tokens between them. Panics if there is no room.
    pub fn push_turns(&mut self, ids: &[u32], logprobs: &[f32], turns: &[Turn]) {
        let (sample, tokens) = (self.len(), ids.len());
        assert!(turns.len() <= self.turns_max, "sample {sample} has more than {} turns", self.turns_max);
        let last = turns.last().expect("a response has a turn");
        assert!(self.has_room(tokens), "no room for sample {sample} of {tokens} tokens");
        assert_eq!(tokens, logprobs.len(), "one log-probability a token");
        let at = sample * self.new_tokens;
        self.ids[at..at + tokens].copy_from_slice(ids);
        self.logprobs[at..at + tokens].copy_from_slice(logprobs);
        self.turns[sample * self.turns_max..][..turns.len()].copy_from_slice(turns);
        self.lens.push(tokens as u32);
        self.finish.push(last.finish);
        self.num_turns.push(turns.len() as u32);
        self.turn_start.push(last.start);
    }

    pub fn len(&self) -> usize {
        self.lens.len()
    }

    /// True if there are no responses.
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    pub fn ids(&self, sample: usize) -> &[u32] {
        &self.ids[sample * self.new_tokens..][..self.lens[sample] as usize]
    }

    /// Returns its tokens' log-probabilities, of the untruncated policy at the sampling temperature. NaN between turns.
    pub fn logprobs(&self, sample: usize) -> &[f32] {
        &self.logprobs[sample * self.new_tokens..][..self.lens[sample] as usize]
    }

    /// Returns why its last turn ended.
    pub fn finish(&self, sample: usize) -> Finish {
        self.finish[sample]
    }

    /// Returns a response's turns, in order: the tokens that were drawn. A response without an environment is one turn.
    pub fn turns(&self, sample: usize) -> &[Turn] {
        &self.turns[sample * self.turns_max..][..self.num_turns[sample] as usize]
    }

    /// Returns the number of drawn tokens in all responses.
    pub fn sampled_tokens(&self) -> usize {
        (0..self.len()).flat_map(|s| self.turns(s)).map(|turn| turn.tokens().len()).sum()
    }

    /// Returns the number of tokens in all responses, including those between turns.
    pub fn total_tokens(&self) -> usize {
        self.lens.iter().map(|&n| n as usize).sum()
    }
}
