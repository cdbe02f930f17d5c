//! States that prompts share, in models that have such: a state is that after one row, so a prompt begins where one is
//! kept, which is less than the blocks that were found.
//!
//! A state is kept where a pass ends with a prompt: at the end of the blocks that it has in common with earlier
//! prompts, and of its last full block. Its next rows read the state that is kept and write another one, so nothing is
//! copied. States that are kept are those that prompts and responses do not need now.

use super::Schedule;
use super::hashes::PromptBlocks;
use crate::OnFull;
use crate::limits::Count;
use plimsoll_arch::Cache;
use plimsoll_device::KV_BLOCK;

/// A state is kept after at least this many blocks that were computed for it: a pass more costs as much.
const WORTH_KEEPING: usize = 4;

impl Schedule {
    /// Gives back the states that the last pass has read, and those of prompts that have left since.
    pub(super) fn give_back_states(&mut self) {
        let Some(prefixes) = &mut self.prefixes else { return };
        if prefixes.num_extra == 0 {
            return;
        }
        for (prompt, group) in prefixes.prompts.iter_mut().zip(&self.groups) {
            let has_left = |begins: &mut (u32, usize)| !group.held.has_begun() || group.computed != begins.1;
            prefixes.read.extend(prompt.begins.take_if(has_left).map(|(state, _)| state));
        }
        prefixes.num_extra -= prefixes.read.len();
        prefixes.read.drain(..).for_each(|state| self.pools.give_back_state(state));
    }

    /// Keeps nothing any more.
    pub(super) fn forget_prefixes(&mut self) {
        if let Some(prefixes) = self.prefixes.take() {
            let begins = prefixes.prompts.iter().filter_map(|prompt| prompt.begins.map(|(state, _)| state));
            begins.chain(prefixes.read.iter().copied()).for_each(|state| self.pools.give_back_state(state));
        }
        self.pools.keep(false);
    }

    /// Returns the states that are held in addition to what prompts and responses were promised.
    pub(super) fn extra(&self) -> Count {
        let mut count = Count::default();
        count.0[Cache::STATE] = self.prefixes.as_ref().map_or(0, |prefixes| prefixes.num_extra);
        count
    }

    /// Returns whether one more state may be held without a prompt or a response going short of one.
    pub(super) fn has_room_for_state(&self) -> bool {
        let [total, free, promised, extra] =
            [self.pools.total(), self.pools.free(), self.promised, self.extra()].map(|of| of.0[Cache::STATE]);
        match self.on_full {
            OnFull::WorstCase => promised + extra < total,
            OnFull::Preempt => free > self.running.len() + 1,
        }
    }

    /// Lets a group's prompt begin with a state after its first `blocks` blocks, if it is given one, and decides where
    /// its own states are kept.
    pub(super) fn begin_with_state(&mut self, g: usize, blocks: usize, state: Option<u32>) {
        if !self.limits.has_units() {
            return;
        }
        // All blocks that were found, with a state or without one.
        let in_common = (0..).map_while(|place| self.found_at(g, place)).count();
        let last = (self.groups[g].prompt_tokens - 1) / KV_BLOCK;
        let mut cuts = [0; 2];
        let mut from = blocks;
        let wanted = [in_common, last].into_iter().filter(|&to| {
            let is_worth = to >= from + WORTH_KEEPING;
            from = if is_worth { to } else { from };
            is_worth
        });
        cuts.iter_mut().zip(wanted).for_each(|(cut, to)| *cut = to * KV_BLOCK);
        state.into_iter().for_each(|state| self.pools.hold_state(state));
        let Some(prefixes) = &mut self.prefixes else { return };
        let PromptBlocks { cuts: to, begins, .. } = &mut prefixes.prompts[g];
        *to = cuts;
        let before = std::mem::replace(begins, state.map(|state| (state, blocks * KV_BLOCK)));
        prefixes.read.extend(before.map(|(state, _)| state));
        prefixes.num_extra += usize::from(state.is_some());
    }

    /// Returns how many of `rows` rows from `first` on a group's prompt has in a pass, which ends where a state is
    /// kept.
    pub(super) fn rows_to_cut(&self, g: usize, first: usize, rows: usize) -> usize {
        let cuts = self.prefixes.as_ref().map_or([0; 2], |prefixes| prefixes.prompts[g].cuts);
        cuts.into_iter().find(|&cut| cut > first).map_or(rows, |cut| rows.min(cut - first))
    }

    /// Takes the state that is kept with which rows of a group's prompt from `first` on begin, if they do.
    pub(super) fn take_begin(&mut self, g: usize, first: usize) -> Option<u32> {
        let prefixes = self.prefixes.as_mut()?;
        let (state, _) = prefixes.prompts[g].begins.take_if(|begins| begins.1 == first)?;
        prefixes.read.push(state);
        Some(state)
    }

    /// Keeps the state of a group's prompt if this pass ends where it should be kept.
    pub(super) fn keep_state(&mut self, g: usize) {
        let Some(prefixes) = &self.prefixes else { return };
        let (group, prompt) = (&self.groups[g], &prefixes.prompts[g]);
        let at = group.computed;
        if at == 0 || !prompt.cuts.contains(&at) || !self.has_room_for_state() {
            return;
        }
        let Some(&hash) = prompt.hashes.get(at / KV_BLOCK - 1) else { return };
        if self.pools.kept_states().is_none_or(|states| states.find(&hash).is_some()) {
            return;
        }
        let span = self.groups[g].held.of_mut(Cache::State);
        let kept = self.pools.keep_state(span, hash);
        if let Some((prefixes, state)) = self.prefixes.as_mut().zip(kept) {
            prefixes.prompts[g].begins = Some((state, at));
            prefixes.num_extra += 1;
        }
    }
}
