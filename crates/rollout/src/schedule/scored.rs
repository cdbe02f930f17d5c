//! Prompts of which each token's log-probability is computed: their rows go through the head, each once.

use super::{Schedule, ScoredRow};
use crate::EngineLimits;

/// A group of which no row is scored.
const NONE: usize = usize::MAX;

impl Schedule {
    /// Makes room for scored rows.
    pub(super) fn take_scores(&mut self) {
        self.scored = Vec::with_capacity(self.limits.pass().head_rows);
        self.scored_from = vec![NONE; self.limits.samples];
    }

    /// Returns the heap bytes that `take_scores` adds.
    pub(super) fn score_bytes(limits: &EngineLimits) -> u64 {
        (limits.pass().head_rows * size_of::<ScoredRow>() + limits.samples * size_of::<usize>()) as u64
    }

    /// Decides whether the rows of a group that has opened are scored.
    pub(crate) fn score_prompt(&mut self, g: usize, scores: bool) {
        self.scored_from[g] = if scores { 0 } else { NONE };
    }

    /// Returns the group of a sequence.
    pub(crate) fn group(&self, s: usize) -> usize {
        self.sequences[s].group
    }

    /// Returns the tokens that are listed of a head row at most.
    pub(crate) fn listed(&self) -> usize {
        self.limits.listed
    }

    /// Returns how many of `room` rows a prompt may have: as many as the head has room for, if they are scored. There
    /// is
    /// some for the first prompt of a pass.
    pub(super) fn scored_room(&self, g: usize, room: usize) -> usize {
        let Some(&from) = self.scored_from.get(g).filter(|&&from| from != NONE) else { return room };
        let group = &self.groups[g];
        let last = group.prompt_tokens - 1;
        // Rows that were scored before the prompt's blocks were given back.
        let again = from.saturating_sub(group.computed.min(last));
        match self.limits.pass().head_rows.saturating_sub(self.running.len() + self.scored.len()) {
            // The last row draws.
            most if from + most >= last => room.min(again + most + 1),
            // Its sequences draw nothing before the last row, so there is room for one.
            most => room.min(again + most.max(1)),
        }
    }

    /// Scores the rows of a prompt that are new: `rows` of them are in this pass, from row `first_row` and position
    /// `first` on.
    pub(super) fn score_rows(
        &mut self,
        sample: usize,
        prompt: &[u32],
        (first_row, first): (usize, usize),
        rows: usize,
    ) {
        let g = self.sequences[sample].group;
        let Some(from) = self.scored_from.get_mut(g).filter(|from| **from != NONE) else { return };
        let upto = (first + rows).min(prompt.len() - 1);
        for position in (*from).max(first)..upto {
            let row = (first_row + position - first) as u32;
            self.scored.push(ScoredRow { row, sample, position, next: prompt[position + 1] });
        }
        *from = (*from).max(upto);
    }
}
