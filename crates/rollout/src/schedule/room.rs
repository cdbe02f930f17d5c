//! Admission: sequences start while there are units for them, grow, and are preempted when none are left.

use super::{Schedule, Sequence, State};
use crate::limits::Count;
use crate::{OnFull, Samples};
use plimsoll_arch::Cache;
use plimsoll_device::KV_BLOCK;

impl Schedule {
    /// Starts sequences in order while there is room: first those that continue, then those that have not begun.
    pub(super) fn admit(&mut self, samples: &Samples) {
        if self.num_ready > 0 && !self.admit_all(State::Ready, samples) {
            return;
        }
        self.admit_all(State::Waiting, samples);
    }

    /// Starts sequences in this state. False if one of them has no room.
    fn admit_all(&mut self, state: State, samples: &Samples) -> bool {
        for at in 0..self.line.len() {
            let s = self.line[at];
            if self.running.len() == self.limits.sequences {
                return false;
            }
            if self.sequences[s].state != state || self.awaits_prefix(self.sequences[s].group) {
                continue;
            }
            while !self.has_room_for(s, samples) {
                // With no sequence running, prompts of idle groups and paused sequences may hold the blocks.
                let none = self.running.is_empty();
                if !none || !(self.give_up_idle_prompt(self.sequences[s].group) || self.give_up_paused(s)) {
                    return false;
                }
            }
            self.start(s, samples);
        }
        true
    }

    fn start(&mut self, s: usize, samples: &Samples) {
        let g = self.sequences[s].group;
        if self.sequences[s].state == State::Ready {
            self.num_ready -= 1; // What was promised to it before its pause still is.
        } else if self.on_full == OnFull::WorstCase {
            self.promised = self.promised.plus(self.to_promise(g));
        }
        self.take_prompt(s, samples);
        let first_own = self.groups[g].prompt_tokens / KV_BLOCK;
        self.sequences[s].held.begin(first_own);
        self.sequences[s].state = State::Running;
        self.groups[g].running += 1;
        let place = self.place_of(s);
        self.running.insert(place, s);
    }

    fn has_room_for(&self, s: usize, samples: &Samples) -> bool {
        let g = self.sequences[s].group;
        let goes_on = self.sequences[s].state == State::Ready;
        match self.on_full {
            OnFull::WorstCase if goes_on => true,
            OnFull::WorstCase => {
                self.promised.plus(self.extra()).plus(self.to_promise(g)).fits(self.pools.total())
            }
            // Units for the next token of all running sequences, so that a new one does not preempt at once.
            OnFull::Preempt => {
                // The rest of its group waits for the prompt: in vain, if it were preempted at once.
                let has_lost = !goes_on && self.has_lost_prompt(s, samples);
                let (of, others_run) = (self.extent(s), usize::from(!self.running.is_empty()));
                let lacking = self.wanted(s, samples).less(self.sequences[s].held.count());
                let own = self.limits.count(|cache| match lacking.0[cache.index()] {
                    lacking if goes_on => lacking,
                    lacking if has_lost && cache.has_blocks() => lacking + others_run,
                    _ => cache.of_next(of, 0),
                });
                let next = |r: &usize| {
                    let (of, held) = (self.extent(*r), self.sequences[*r].held.count());
                    self.limits.count(|cache| cache.of_next(of, held.0[cache.index()]))
                };
                let others = self.running.iter().map(next).fold(own, Count::plus);
                self.prompt_lacks(s, samples).plus(others).fits(self.pools.free())
            }
        }
    }

    /// Returns the most that a sequence may own, plus the prompt's units for the first sequence of a group.
    fn to_promise(&self, g: usize) -> Count {
        let prompt = if self.groups[g].held.has_begun() { Count::default() } else { self.of_prompt(g) };
        prompt.plus(self.owned_most(g))
    }

    pub(super) fn of_prompt(&self, g: usize) -> Count {
        let of = self.groups[g].extent(&self.limits);
        self.limits.count(|cache| cache.of_prompt(of))
    }

    fn owned_most(&self, g: usize) -> Count {
        let of = self.groups[g].extent(&self.limits);
        self.limits.count(|cache| cache.of_response(of, self.groups[g].new_tokens))
    }

    /// True if a starting sequence needs its prompt recomputed: it needs units that the prompt has given back.
    fn has_lost_prompt(&self, s: usize, samples: &Samples) -> bool {
        let (group, of, computed) = (self.group_of(s), self.extent(s), self.sequences[s].computed);
        let held = |cache| group.held.of(cache).places();
        let lacks = |cache: Cache| cache.lacks(of, held(cache), computed, samples.ids(s).is_empty());
        group.computed == group.prompt_tokens && self.limits.caches.each().any(lacks)
    }

    /// Returns the units that a sequence's prompt lacks.
    fn prompt_lacks(&self, s: usize, samples: &Samples) -> Count {
        let g = self.sequences[s].group;
        let held = &self.groups[g].held;
        if !held.has_begun() || self.has_lost_prompt(s, samples) {
            let mut shared = Count::default();
            shared.0[Cache::PAGED] = if held.has_begun() { 0 } else { self.num_shared(g) };
            self.of_prompt(g).less(held.count()).less(shared)
        } else {
            Count::default()
        }
    }

    fn take_prompt(&mut self, s: usize, samples: &Samples) {
        let g = self.sequences[s].group;
        let (wanted, is_lost) = (self.of_prompt(g), self.has_lost_prompt(s, samples));
        let group = &mut self.groups[g];
        if is_lost {
            // All keys of the prompt are recomputed, with the same bits, so sequences that read paged ones may go on.
            for cache in self.limits.caches.each().filter(|cache| cache.lets_go()) {
                group.held.drop_before(cache, usize::MAX, &mut self.pools);
            }
            group.computed = 0;
        }
        if is_lost || !group.held.has_begun() {
            group.held.begin(0);
            if !is_lost {
                self.take_found(g);
            }
            let group = &mut self.groups[g];
            assert!(group.held.take(wanted, &mut self.pools), "admission checked the room");
        }
    }

    /// Frees what prompts hold that none of their sequences needs any more.
    pub(super) fn drop_unneeded(&mut self) {
        for cache in self.limits.caches.each().filter(|cache| cache.lets_go()) {
            for group in &mut self.groups[..self.num_groups] {
                group.needed_from = usize::MAX;
            }
            for at in 0..self.line.len() {
                let (of, sequence) = (self.extent(self.line[at]), &self.sequences[self.line[at]]);
                if sequence.state != State::Done {
                    let is_running = sequence.state == State::Running;
                    let needed = cache.needed_from(of, sequence.computed, is_running);
                    let group = &mut self.groups[sequence.group];
                    group.needed_from = group.needed_from.min(needed);
                }
            }
            for group in &mut self.groups[..self.num_groups] {
                if group.computed == group.prompt_tokens {
                    group.held.drop_before(cache, group.needed_from, &mut self.pools);
                }
            }
        }
    }

    /// Gives every running sequence the units of its tokens, preempting the youngest if none are left.
    pub(super) fn grow(&mut self, samples: &Samples) {
        let mut at = 0;
        while at < self.running.len() {
            let s = self.running[at];
            let wanted = self.wanted(s, samples);
            while self.sequences[s].state == State::Running {
                if self.sequences[s].held.take(wanted, &mut self.pools) {
                    break;
                }
                self.make_room();
            }
            at += usize::from(self.running.get(at) == Some(&s));
        }
    }

    /// Returns the own units for the tokens that a sequence has.
    fn wanted(&self, s: usize, samples: &Samples) -> Count {
        self.of_tokens(s, samples.ids(s).len())
    }

    /// Returns the own units for the first `tokens` own tokens of a sequence.
    pub(super) fn of_tokens(&self, s: usize, tokens: usize) -> Count {
        let (of, computed) = (self.extent(s), self.sequences[s].computed);
        self.limits.count(|cache| cache.of_tokens(of, tokens, computed))
    }

    /// Frees at least one block: of prompts whose groups do not run, else of a paused sequence, else of the youngest.
    fn make_room(&mut self) {
        if self.give_up_idle_prompt(usize::MAX) || self.give_up_paused(usize::MAX) {
            return;
        }
        assert!(self.running.len() > 1, "{:?} do not hold one sequence", self.pools.total());
        let youngest = *self.running.last().expect("someone runs");
        self.leave(youngest, State::Waiting);
        self.preemptions += 1;
    }

    /// Frees the blocks of the last group that does not run, except `keep`. False if there is none.
    fn give_up_idle_prompt(&mut self, keep: usize) -> bool {
        if self.on_full == OnFull::WorstCase {
            return false; // What is promised stays.
        }
        let idle = |&g: &usize| g != keep && self.groups[g].running == 0 && !self.groups[g].held.is_empty();
        let Some(g) = (0..self.num_groups).rev().find(idle) else { return false };
        self.groups[g].held.give_back(&mut self.pools);
        self.groups[g].computed = 0;
        if self.groups[g].is_alone && self.limits.has_units() {
            // The state of the sequence that waits for an answer was its prompt's.
            let waits = |&s: &usize| self.sequences[s].group == g && self.sequences[s].computed > 0;
            self.line.iter().copied().find(waits).into_iter().for_each(|s| self.forget_keys(s));
        }
        true
    }

    /// Frees the own blocks of the youngest sequence that does not run, except `keep`. False if there is none.
    fn give_up_paused(&mut self, keep: usize) -> bool {
        if self.on_full == OnFull::WorstCase || self.num_paused + self.num_ready == 0 {
            return false;
        }
        let rests = |s: &Sequence| matches!(s.state, State::Paused | State::Ready) && !s.held.is_empty();
        let found = |&s: &usize| s != keep && rests(&self.sequences[s]);
        let Some(s) = self.line.iter().rev().copied().find(found) else { return false };
        self.forget_keys(s);
        self.preemptions += 1;
        true
    }

    pub(super) fn stop_running(&mut self, s: usize) {
        let place = self.place_of(s);
        assert_eq!(self.running.get(place), Some(&s), "a running sequence is among them");
        self.running.remove(place);
        self.groups[self.sequences[s].group].running -= 1;
    }

    /// Returns the index of a sequence among the running ones, or where it would be.
    fn place_of(&self, s: usize) -> usize {
        self.running.partition_point(|&r| self.sequences[r].ticket < self.sequences[s].ticket)
    }

    /// Takes a sequence out of the passes or out of its pause, and frees its blocks.
    pub(super) fn leave(&mut self, s: usize, state: State) {
        match self.sequences[s].state {
            State::Paused => self.num_paused -= 1,
            _ => self.stop_running(s),
        }
        if self.on_full == OnFull::WorstCase {
            self.promised = self.promised.less(self.owned_most(self.sequences[s].group));
        }
        self.forget_keys(s);
        self.sequences[s].state = state;
    }

    fn forget_keys(&mut self, s: usize) {
        let sequence = &mut self.sequences[s];
        sequence.held.give_back(&mut self.pools);
        (sequence.computed, sequence.has_tail) = (0, false);
        let group = &mut self.groups[sequence.group];
        if group.is_alone && group.computed == group.prompt_tokens {
            // It has changed its prompt's state.
            for cache in self.limits.caches.each().filter(|cache| !cache.has_blocks()) {
                group.held.drop_before(cache, usize::MAX, &mut self.pools);
            }
        }
    }
}
