//! Who has room: sequences start while there are blocks for them, grow, and give blocks back where none are left.

use super::{Group, Schedule, Sequence, State};
use crate::limits::Count;
use crate::{OnFull, Samples};
use plimsoll_device::KV_BLOCK;

impl Schedule {
    /// Starts sequences in order while there is room: those that go on, then those that have not begun.
    pub(super) fn admit(&mut self, samples: &Samples) {
        if self.num_ready > 0 && !self.admit_all(State::Ready, samples) {
            return;
        }
        self.admit_all(State::Waiting, samples);
    }

    /// False if one of them has no room.
    fn admit_all(&mut self, state: State, samples: &Samples) -> bool {
        for at in 0..self.line.len() {
            let s = self.line[at];
            if self.running.len() == self.limits.sequences {
                return false;
            }
            if self.sequences[s].state != state {
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
        self.take_prompt_blocks(s, samples);
        let first_own = self.groups[g].prompt_tokens / KV_BLOCK;
        self.sequences[s].held.begin_window(first_own);
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
            OnFull::WorstCase => self.promised.plus(self.to_promise(g)).fits(self.pools.total()),
            // One block for the next token of everyone who runs, so that a newcomer does not preempt at once.
            OnFull::Preempt => {
                let one = Count { whole: 1, window: self.ring.min(1), states: 0 };
                let wanted = || self.wanted_blocks(s, samples).less(self.sequences[s].held.count());
                let own = match goes_on {
                    true => wanted(),
                    // The others of its group wait for the prompt: in vain, if it were preempted at once.
                    false if self.has_lost_prompt(s, samples) => {
                        let next = if self.running.is_empty() { Count::default() } else { one };
                        Count { states: self.own_states(s), ..wanted().plus(next) }
                    }
                    false => Count { states: self.own_states(s), ..one },
                };
                let lacks = |&&s: &&usize| self.sequences[s].held.state.is_none() && self.own_states(s) > 0;
                let states = self.running.iter().filter(lacks).count();
                let others = Count { states, ..one.times(self.running.len()) };
                self.prompt_blocks_missing(s, samples).plus(own).plus(others).fits(self.pools.free())
            }
        }
    }

    /// What a sequence may own, and the prompt's blocks with the first sequence of a group that starts.
    fn to_promise(&self, g: usize) -> Count {
        let prompt =
            if self.groups[g].held.whole.is_empty() { self.prompt_blocks(g) } else { Count::default() };
        prompt.plus(self.own_blocks_max(g))
    }

    pub(super) fn prompt_blocks(&self, g: usize) -> Count {
        self.limits.of_prompt(self.groups[g].prompt_tokens)
    }

    fn own_blocks_max(&self, g: usize) -> Count {
        let Group { prompt_tokens, new_tokens, is_alone, .. } = self.groups[g];
        self.limits.of_response(prompt_tokens, new_tokens, is_alone)
    }

    /// The first key that a sequence's next row sees of a window.
    fn first_seen(&self, s: usize) -> usize {
        let window = self.limits.window.map_or(usize::MAX, |window| window.keys);
        let (prompt, computed) = (self.group_of(s).prompt_tokens, self.sequences[s].computed);
        // Without a row of its own it may need the prompt's last one again.
        (prompt + computed + usize::from(computed > 0)).saturating_sub(window)
    }

    /// True if a sequence needs what its prompt gave back of its window: others no longer see it, and this one lost its keys.
    fn has_lost_window(&self, s: usize) -> bool {
        let (group, seen) = (self.group_of(s), self.first_seen(s));
        let is_computed = group.computed == group.prompt_tokens;
        let end = group.prompt_tokens.div_ceil(KV_BLOCK);
        let is_needed = self.ring > 0 && is_computed && seen < group.prompt_tokens;
        is_needed && !group.held.window.covers(seen / KV_BLOCK, end)
    }

    /// True if a sequence that starts needs its prompt's state, or that before the prompt's last row, and neither is there any more.
    fn has_lost_state(&self, s: usize, samples: &Samples) -> bool {
        let (group, sequence) = (self.group_of(s), &self.sequences[s]);
        let is_needed = self.limits.states > 0 && sequence.computed == 0;
        let is_gone = group.held.state.is_none() || samples.ids(s).is_empty();
        is_needed && group.computed == group.prompt_tokens && is_gone
    }

    /// States of its own that a sequence has once it goes on after its prompt.
    fn own_states(&self, s: usize) -> usize {
        self.limits.of_own_state(self.group_of(s).is_alone)
    }

    /// True if a sequence that starts has its prompt computed again.
    fn has_lost_prompt(&self, s: usize, samples: &Samples) -> bool {
        self.has_lost_window(s) || self.has_lost_state(s, samples)
    }

    /// Blocks that a sequence's prompt lacks.
    fn prompt_blocks_missing(&self, s: usize, samples: &Samples) -> Count {
        let g = self.sequences[s].group;
        let held = self.groups[g].held.count();
        match held.whole == 0 || self.has_lost_prompt(s, samples) {
            true => self.prompt_blocks(g).less(held),
            false => Count::default(),
        }
    }

    fn take_prompt_blocks(&mut self, s: usize, samples: &Samples) {
        let g = self.sequences[s].group;
        let (wanted, is_lost) = (self.prompt_blocks(g), self.has_lost_prompt(s, samples));
        let group = &mut self.groups[g];
        if is_lost {
            // All keys of the prompt are computed again: with the same bits, so that who reads those of whole sequences may go on.
            group.held.drop_before(usize::MAX, &mut self.pools);
            group.computed = 0;
        }
        if is_lost || group.held.whole.is_empty() {
            group.held.begin_window(0);
            assert!(group.held.take(wanted, &mut self.pools), "admission checked the room");
        }
    }

    /// Gives back what prompts hold of windows that none of their sequences sees any more, and the states of those whose sequences all
    /// have their own.
    pub(super) fn drop_unseen(&mut self) {
        self.drop_states();
        if self.ring == 0 {
            return;
        }
        for group in &mut self.groups[..self.num_groups] {
            group.seen_from = usize::MAX;
        }
        for at in 0..self.line.len() {
            let s = self.line[at];
            if self.sequences[s].state != State::Done {
                let (seen, group) = (self.first_seen(s), &mut self.groups[self.sequences[s].group]);
                group.seen_from = group.seen_from.min(seen);
            }
        }
        for group in &mut self.groups[..self.num_groups] {
            if group.computed == group.prompt_tokens {
                group.held.drop_before(group.seen_from / KV_BLOCK, &mut self.pools);
            }
        }
    }

    fn drop_states(&mut self) {
        for g in 0..self.num_groups {
            let group = &self.groups[g];
            if group.held.state.is_none() || group.is_alone || group.computed < group.prompt_tokens {
                continue;
            }
            let needs_it = |&s: &usize| self.sequences[s].group == g && self.sequences[s].computed == 0;
            if !self.running.iter().any(needs_it) {
                self.groups[g].held.give_back_state(&mut self.pools);
            }
        }
    }

    /// Gives every running sequence the blocks of its tokens, preempting the youngest where none is left.
    pub(super) fn grow(&mut self, samples: &Samples) {
        let mut at = 0;
        while at < self.running.len() {
            let s = self.running[at];
            let wanted = self.wanted_blocks(s, samples);
            while self.sequences[s].state == State::Running {
                if self.sequences[s].held.take(wanted, &mut self.pools) {
                    break;
                }
                self.make_room();
            }
            at += usize::from(self.running.get(at) == Some(&s));
        }
    }

    /// Own blocks for the tokens that a sequence has.
    fn wanted_blocks(&self, s: usize, samples: &Samples) -> Count {
        self.own_blocks_of(s, samples.ids(s).len())
    }

    /// Own blocks for the first `tokens` own tokens of a sequence. Of windows those that its next pass writes: an answer may be longer, and
    /// until it is computed the prompt's blocks are still seen.
    pub(super) fn own_blocks_of(&self, s: usize, tokens: usize) -> Count {
        let prompt = self.group_of(s).prompt_tokens;
        let of =
            |tokens: usize| if tokens == 0 { 0 } else { (prompt % KV_BLOCK + tokens).div_ceil(KV_BLOCK) };
        let next = self.sequences[s].computed.saturating_add(self.limits.step());
        let states = if tokens == 0 { 0 } else { self.own_states(s) };
        Count { whole: of(tokens), window: of(tokens.min(next)).min(self.ring), states }
    }

    /// Frees at least one block: prompts of groups that do not run first, then who waits for an answer, else the
    /// youngest sequence.
    fn make_room(&mut self) {
        if self.give_up_idle_prompt(usize::MAX) || self.give_up_paused(usize::MAX) {
            return;
        }
        assert!(self.running.len() > 1, "{:?} do not hold one sequence", self.pools.total());
        let youngest = *self.running.last().expect("someone runs");
        self.leave(youngest, State::Waiting);
        self.preemptions += 1;
    }

    /// Frees the blocks of the last group that does not run, `keep` aside. False if there is none.
    fn give_up_idle_prompt(&mut self, keep: usize) -> bool {
        if self.on_full == OnFull::WorstCase {
            return false; // What is promised stays.
        }
        let idle = |&g: &usize| g != keep && self.groups[g].running == 0 && !self.groups[g].held.is_empty();
        let Some(g) = (0..self.num_groups).rev().find(idle) else { return false };
        self.groups[g].held.give_back(&mut self.pools);
        self.groups[g].computed = 0;
        if self.limits.states > 0 && self.groups[g].is_alone {
            // The state of the one that waits for an answer was its prompt's.
            let waits = |&s: &usize| self.sequences[s].group == g && self.sequences[s].computed > 0;
            self.line.iter().copied().find(waits).into_iter().for_each(|s| self.forget_keys(s));
        }
        true
    }

    /// Frees the own blocks of the youngest sequence that does not run, `keep` aside. False if there is none.
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

    /// Returns the place of a sequence among those that run, or where it would be.
    fn place_of(&self, s: usize) -> usize {
        self.running.partition_point(|&r| self.sequences[r].ticket < self.sequences[s].ticket)
    }

    /// Takes a sequence out of the passes, or out of its pause, without its blocks.
    pub(super) fn leave(&mut self, s: usize, state: State) {
        match self.sequences[s].state {
            State::Paused => self.num_paused -= 1,
            _ => self.stop_running(s),
        }
        if self.on_full == OnFull::WorstCase {
            self.promised = self.promised.less(self.own_blocks_max(self.sequences[s].group));
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
            // Its prompt's state has gone on with it.
            group.held.give_back_state(&mut self.pools);
        }
    }
}
