//! Sequences that come and go between passes: a group opens with its own longest response, and any of its sequences may
//! be cancelled. Tickets grow: the first to come is the first to be served and the last to be preempted.

use super::held::SequenceUnits;
use super::{Group, Schedule, State};
use crate::limits::{Count, EngineLimits};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    pub(crate) prompt_tokens: usize,
    pub(crate) new_tokens: usize,
    /// Number of its sequences.
    pub(crate) count: usize,
    /// The ticket of the first sequence; the others have the next ones.
    pub(crate) ticket: u64,
}

impl Schedule {
    /// Starts without sequences; every block is free.
    pub(crate) fn begin_slots(&mut self) {
        self.begin([].into_iter(), 1);
        self.num_groups = self.groups.len();
        for group in &mut self.groups {
            let held = SequenceUnits::with_capacity(most_of_prompt(&self.limits));
            *group = Group { held, ..Group::default() };
        }
        self.take_scores();
    }

    /// Returns the heap bytes that `begin_slots` adds: a prompt may be as long as a sequence.
    pub(crate) fn slots_bytes(limits: &EngineLimits) -> u64 {
        (limits.samples * limits.blocks(most_of_prompt(limits)) * 4) as u64 + Schedule::score_bytes(limits)
    }

    /// Returns the slots of sequences that have not ended.
    pub(crate) fn open_slots(&self) -> &[usize] {
        &self.line
    }

    /// Returns the number of sequences that may be opened.
    pub(crate) fn free_slots(&self) -> usize {
        self.sequences.len() - self.line.len()
    }

    /// Opens a group and adds its sequences to `slots`. Returns its index, which is free once all of them have ended.
    pub(crate) fn open(&mut self, opening: Opening, slots: &mut Vec<usize>) -> usize {
        let Opening { prompt_tokens, new_tokens, count, ticket } = opening;
        assert!(count > 0 && count <= self.free_slots(), "{count} sequences in {} slots", self.free_slots());
        let g = self.groups.iter().position(|group| group.live == 0).expect("a group for each sequence");
        let group = &mut self.groups[g];
        (group.prompt_tokens, group.new_tokens, group.computed, group.live) =
            (prompt_tokens, new_tokens, 0, count);
        group.is_alone = count == 1;
        let free =
            self.sequences.iter_mut().enumerate().filter(|(_, sequence)| sequence.state == State::Done);
        for (ticket, (s, sequence)) in (ticket..).zip(free).take(count) {
            (sequence.state, sequence.group, sequence.ticket) = (State::Waiting, g, ticket);
            slots.push(s);
            self.line.push(s);
        }
        g
    }

    /// Ends a sequence that waits or runs, and frees its slot.
    pub(crate) fn close(&mut self, s: usize) {
        match self.sequences[s].state {
            State::Waiting => {
                self.sequences[s].state = State::Done;
                self.leave_group(self.sequences[s].group);
            }
            State::Running => self.end(s),
            other => panic!("a slot is closed once: {other:?}"),
        }
        let place = self.line.iter().position(|&other| other == s).expect("an open slot is in the line");
        self.line.remove(place);
    }

    pub(crate) fn num_running(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn blocks(&self) -> (usize, usize) {
        (self.limits.blocks(self.pools.free()), self.limits.blocks(self.pools.total()))
    }
}

/// Returns the units of a prompt that is as long as a sequence.
fn most_of_prompt(limits: &EngineLimits) -> Count {
    let longest = limits.extent(limits.context(), false);
    limits.count(|cache| cache.of_prompt(longest))
}
