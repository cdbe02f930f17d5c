//! The arrays that come with a script's request, in room that the plan has a row for.
//!
//! Legend: S sequences, P prompts, N response tokens of all sequences.

use super::fault::{Served, bad_array, too_large};
use plimsoll_base::Bytes;
use plimsoll_config::RunSpec;
use plimsoll_plan::Facts;
use plimsoll_train::Sequence;

/// Most bytes of rows of the script's own in a request.
const ROWS_BYTES_MAX: usize = 1 << 20;
/// Most bytes that a script keeps in checkpoints.
const STATE_BYTES_MAX: usize = 16 << 20;
/// What a sequence takes in the form that passes read, with its place in a text's offsets.
const BYTES_PER_SEQUENCE: u64 = 64;
/// Host bytes of parsed rows for each byte of their text.
const VALUES_PER_BYTE: u64 = 8;

/// The most that a request of a run may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScriptLimits {
    pub sequences: usize,
    /// Of one prompt.
    pub prompt_tokens: usize,
    /// Of one response.
    pub response_tokens: usize,
    pub vocab: u32,
    /// Of rows of the script's own, and of what it keeps in checkpoints.
    pub rows_bytes: usize,
    pub state_bytes: usize,
}

impl ScriptLimits {
    /// No arrays at all, for what comes before there is a plan.
    pub(super) const NONE: ScriptLimits = ScriptLimits {
        sequences: 0,
        prompt_tokens: 0,
        response_tokens: 0,
        vocab: 0,
        rows_bytes: 0,
        state_bytes: 0,
    };

    pub(super) fn of(run: &RunSpec, facts: &Facts) -> ScriptLimits {
        ScriptLimits {
            sequences: run.sequences_per_step() as usize,
            prompt_tokens: facts.prompt_tokens,
            response_tokens: run.response_tokens_max(),
            vocab: facts.spec.vocab,
            rows_bytes: ROWS_BYTES_MAX,
            state_bytes: STATE_BYTES_MAX,
        }
    }

    pub(super) fn tokens(&self) -> usize {
        self.sequences * self.response_tokens
    }

    fn all_prompt_tokens(&self) -> usize {
        self.sequences * self.prompt_tokens
    }

    /// Returns the host bytes of `ScriptArrays` and of what is made of them.
    pub(super) fn bytes(&self) -> Bytes {
        let (s, n) = (self.sequences as u64, self.tokens() as u64);
        // Tokens, log-probs, those of a reference, advantages, the mask, and two gradients.
        let tokens = 7 * 4 * n + 4 * self.all_prompt_tokens() as u64;
        let indices = 4 * (2 * (s + 1) + s) + 8 * s;
        let rows = self.rows_bytes as u64 * (1 + VALUES_PER_BYTE);
        Bytes(tokens + indices + s * BYTES_PER_SEQUENCE + rows + self.state_bytes as u64)
    }
}

/// The arrays of a request; those that did not come are empty.
#[derive(Debug)]
pub(super) struct ScriptArrays {
    /// Response tokens, [N].
    pub tokens: Vec<u32>,
    /// Sequence s is `offsets[s]..offsets[s + 1]`, [S + 1].
    pub offsets: Vec<u32>,
    /// The prompt of each sequence, ascending, [S].
    pub owners: Vec<u32>,
    /// Tokens of all prompts, and where each begins, [P + 1].
    pub prompts: Vec<u32>,
    pub prompt_offsets: Vec<u32>,
    /// Prompts by their positions in the data, [P].
    pub positions: Vec<u64>,
    /// Log-probs before the update, of a reference; advantages; 1 on trained tokens: [N] each.
    pub logprobs: Vec<f32>,
    pub reference: Vec<f32>,
    pub advantages: Vec<f32>,
    pub mask: Vec<f32>,
    /// Rows of the script's own, JSON lines.
    pub rows: Vec<u8>,
    /// What the script keeps, and whether the last request brought it.
    pub state: Vec<u8>,
    pub brings_state: bool,
    limits: ScriptLimits,
}

/// Gradients of a loss: by log-probabilities and by entropies, [N] each or those of a micro-batch.
#[derive(Debug)]
pub(super) struct ScriptGradients {
    pub logprobs: Vec<f32>,
    pub entropy: Vec<f32>,
}

/// A place for an array: its numbers, and how many it may have.
pub(super) enum Slot<'s> {
    U32(&'s mut Vec<u32>, usize),
    U64(&'s mut Vec<u64>, usize),
    F32(&'s mut Vec<f32>, usize),
    U8(&'s mut Vec<u8>, usize),
}

impl ScriptArrays {
    /// Allocates the planned room.
    pub(super) fn bind(limits: ScriptLimits) -> (ScriptArrays, ScriptGradients) {
        let (s, n) = (limits.sequences, || Vec::with_capacity(limits.tokens()));
        let arrays = ScriptArrays {
            tokens: Vec::with_capacity(limits.tokens()),
            offsets: Vec::with_capacity(s + 1),
            owners: Vec::with_capacity(s),
            prompts: Vec::with_capacity(limits.all_prompt_tokens()),
            prompt_offsets: Vec::with_capacity(s + 1),
            positions: Vec::with_capacity(s),
            logprobs: n(),
            reference: n(),
            advantages: n(),
            mask: n(),
            rows: Vec::with_capacity(limits.rows_bytes),
            state: Vec::with_capacity(limits.state_bytes),
            brings_state: false,
            limits,
        };
        (arrays, ScriptGradients { logprobs: n(), entropy: n() })
    }

    pub(super) fn limits(&self) -> ScriptLimits {
        self.limits
    }

    /// Forgets the arrays of the last request; what the script keeps stays.
    pub(super) fn clear(&mut self) {
        for numbers in [
            &mut self.tokens,
            &mut self.offsets,
            &mut self.owners,
            &mut self.prompts,
            &mut self.prompt_offsets,
        ] {
            numbers.clear();
        }
        for numbers in [&mut self.logprobs, &mut self.reference, &mut self.advantages, &mut self.mask] {
            numbers.clear();
        }
        self.positions.clear();
        self.rows.clear();
        self.brings_state = false;
    }

    /// Returns the place of an array; none of an unknown name.
    pub(super) fn slot<'s>(&'s mut self, of: &'s mut ScriptGradients, name: &str) -> Option<Slot<'s>> {
        let limits = self.limits;
        let (s, n) = (limits.sequences, limits.tokens());
        let room = of.logprobs.capacity();
        Some(match name {
            "tokens" => Slot::U32(&mut self.tokens, n),
            "offsets" => Slot::U32(&mut self.offsets, s + 1),
            "owners" => Slot::U32(&mut self.owners, s),
            "prompts" => Slot::U32(&mut self.prompts, limits.all_prompt_tokens()),
            "prompt_offsets" => Slot::U32(&mut self.prompt_offsets, s + 1),
            "positions" => Slot::U64(&mut self.positions, s),
            "logprobs" => Slot::F32(&mut self.logprobs, n),
            "reference" => Slot::F32(&mut self.reference, n),
            "advantages" => Slot::F32(&mut self.advantages, n),
            "mask" => Slot::F32(&mut self.mask, n),
            "gradients" => Slot::F32(&mut of.logprobs, room),
            "entropy_gradients" => Slot::F32(&mut of.entropy, room),
            "rows" => Slot::U8(&mut self.rows, limits.rows_bytes),
            "state" => {
                self.brings_state = true;
                Slot::U8(&mut self.state, limits.state_bytes)
            }
            _ => return None,
        })
    }

    /// Returns the prompts that came as tokens.
    pub(super) fn prompts(&self) -> Served<Vec<&[u32]>> {
        let parts = parts("prompt_offsets", &self.prompt_offsets, self.prompts.len())?;
        let longest = self.limits.prompt_tokens;
        let one = |(index, part): (usize, &std::ops::Range<usize>)| {
            let ids = &self.prompts[part.clone()];
            if ids.len() > longest {
                let what =
                    format!("prompt {index} has {} tokens, the plan has room for {longest}", ids.len());
                return Err(too_large(what, "set data.prompt_tokens_max"));
            }
            self.known("prompts", ids).map(|()| ids)
        };
        parts.iter().enumerate().map(one).collect()
    }

    /// Returns the sequences in the form that passes take. Neighbours of one prompt share its rows.
    pub(super) fn sequences(&self) -> Served<Vec<Sequence<'_>>> {
        let (prompts, longest) = (self.prompts()?, self.limits.response_tokens);
        let parts = parts("offsets", &self.offsets, self.tokens.len())?;
        if self.owners.len() != parts.len() || parts.is_empty() {
            let what = format!("{} entries for {} sequences", self.owners.len(), parts.len());
            return Err(bad_array("owners", what));
        }
        if self.owners.windows(2).any(|two| two[1] < two[0]) {
            return Err(bad_array("owners", "sequences of one prompt are not next to each other"));
        }
        self.known("tokens", &self.tokens)?;
        let one = |(part, owner): (&std::ops::Range<usize>, &u32)| {
            let group = *owner as usize;
            let Some(prompt) = prompts.get(group) else {
                return Err(bad_array("owners", format!("prompt {owner} of {}", prompts.len())));
            };
            if part.len() > longest {
                let what = format!("a response of {} tokens, the plan has room for {longest}", part.len());
                return Err(too_large(what, "set rollout.max_new_tokens"));
            }
            Ok(Sequence { group, prompt, response: &self.tokens[part.clone()] })
        };
        parts.iter().zip(&self.owners).map(one).collect()
    }

    /// Requires tokens of the vocabulary.
    fn known(&self, name: &str, ids: &[u32]) -> Served<()> {
        match ids.iter().find(|id| **id >= self.limits.vocab) {
            Some(id) => Err(bad_array(name, format!("token {id} of a vocabulary of {}", self.limits.vocab))),
            None => Ok(()),
        }
    }
}

/// Cuts `len` entries by ascending offsets, from 0 to the end, into parts that have some.
fn parts(name: &str, offsets: &[u32], len: usize) -> Served<Vec<std::ops::Range<usize>>> {
    let ends = (offsets.first(), offsets.last());
    if offsets.len() < 2 || ends != (Some(&0), Some(&(len as u32))) {
        return Err(bad_array(name, format!("they do not go from 0 to {len}")));
    }
    if offsets.windows(2).any(|two| two[1] <= two[0]) {
        return Err(bad_array(name, "they do not ascend, or a part has no token"));
    }
    Ok(offsets.windows(2).map(|two| two[0] as usize..two[1] as usize).collect())
}

#[cfg(test)]
#[path = "room_tests.rs"]
mod tests;
