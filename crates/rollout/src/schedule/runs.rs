//! Decode passes that follow each other without the host: one index for all of them, with units allocated in advance.

use super::{Schedule, state_of};
use crate::Samples;
use crate::limits::{Count, bucket, keys_bucket};
use plimsoll_arch::Cache;
use plimsoll_device::{KV_BLOCK, NO_PARENT};
use plimsoll_model::PassIndex;

impl Schedule {
    /// Fills `index` with the rows of a run of decode passes and allocates their units. Returns the number of passes,
    /// or 0 if something else must be done first. `max_new_tokens`: of a sample.
    ///
    /// The index holds one row per running sequence, in the order of `key`, padded to a bucket with copies of the last.
    pub(crate) fn next_run<K: Ord>(
        &mut self,
        samples: &Samples,
        max_new_tokens: impl Fn(usize) -> usize + Copy,
        most: usize,
        key: impl Fn(usize) -> K,
        index: &mut PassIndex,
    ) -> usize {
        index.clear();
        self.head_samples.clear();
        self.scored.clear();
        self.give_back_states();
        self.drop_unneeded();
        self.admit(samples);
        if self.running.is_empty() || !self.running.iter().all(|&s| self.only_decodes(s, samples)) {
            return 0;
        }
        let tokens = |s: &usize| samples.ids(*s).len();
        let position = |s: &usize| self.group_of(*s).prompt_tokens + tokens(s) - 1;
        let longest = self.running.iter().map(position).max().expect("someone runs");
        let left = self.running.iter().map(|s| max_new_tokens(*s) - tokens(s)).max().expect("someone runs");
        let rotary = self.limits.prompt_tokens + self.limits.new_tokens - longest;
        let mut passes = most.min(left).min(rotary).min(self.limits.step());
        while passes > 0 && !self.lacking(samples, max_new_tokens, passes).fits(self.pools.free()) {
            passes /= 2;
        }
        if passes == 0 {
            return 0;
        }
        self.take_units(samples, max_new_tokens, passes);
        self.put_in_order(key);
        self.push_run(samples, index);
        index.keys_max = keys_bucket(longest + passes + 1);
        passes
    }

    /// True if a sequence needs only one row next.
    fn only_decodes(&self, s: usize, samples: &Samples) -> bool {
        let (group, sequence) = (self.group_of(s), &self.sequences[s]);
        let tokens = samples.ids(s).len();
        let copied = sequence.has_tail || group.prompt_tokens.is_multiple_of(KV_BLOCK);
        // Each pass of the run continues in the units of the one before it, which must not be a shared prompt's.
        let has_own = group.is_alone || sequence.computed > 0 || !self.limits.has_units();
        has_own
            && tokens > 0
            && sequence.computed + 1 == tokens
            && group.computed == group.prompt_tokens
            && copied
    }

    /// Returns the own units of a sequence after some decode passes.
    fn units_after(
        &self,
        s: usize,
        samples: &Samples,
        max_new_tokens: impl Fn(usize) -> usize,
        passes: usize,
    ) -> Count {
        self.of_tokens(s, (samples.ids(s).len() + passes - 1).min(max_new_tokens(s) - 1))
    }

    fn lacking(
        &self,
        samples: &Samples,
        max_new_tokens: impl Fn(usize) -> usize + Copy,
        passes: usize,
    ) -> Count {
        let lacking = |&s: &usize| {
            self.units_after(s, samples, max_new_tokens, passes).less(self.sequences[s].held.count())
        };
        self.running.iter().map(lacking).fold(Count::default(), Count::plus)
    }

    fn take_units(
        &mut self,
        samples: &Samples,
        max_new_tokens: impl Fn(usize) -> usize + Copy,
        passes: usize,
    ) {
        for at in 0..self.running.len() {
            let s = self.running[at];
            let wanted = self.units_after(s, samples, max_new_tokens, passes);
            let held = &mut self.sequences[s].held;
            assert!(held.take(wanted, &mut self.pools), "the room was counted");
            let end = self.groups[self.sequences[s].group].prompt_tokens / KV_BLOCK + wanted.0[Cache::PAGED];
            for cache in self.limits.caches.each().filter(|cache| cache.has_blocks()) {
                self.sequences[s].held.of_mut(cache).slide(end);
            }
        }
    }

    fn push_run(&mut self, samples: &Samples, index: &mut PassIndex) {
        let (stride, limits) = (self.limits.table_stride(), self.limits.pass());
        for at in 0..bucket(self.order.len()) {
            let is_filler = at >= self.order.len();
            let s = self.order[at.min(self.order.len() - 1)];
            let tokens = samples.ids(s);
            let (&token, first) =
                (tokens.last().expect("it decodes"), index.caches[Cache::PAGED].tables.len());
            // A copy of the last has the same bits at the same places. A state is not read twice, so it has no copy:
            // the row that pads a bucket is then a sequence of its own, whose keys are in the spare blocks.
            let is_stateless = is_filler && self.limits.has_units();
            let position = if is_stateless { 0 } else { self.group_of(s).prompt_tokens + tokens.len() - 1 };
            index.ids.push(token);
            index.positions.push(position as u32);
            index.adapters.extend(self.adapters.get(self.sequences[s].group));
            let own = self.own_places.get(s).and_then(Option::as_ref);
            let places = own.or_else(|| self.places.get(self.sequences[s].group));
            index.places.extend(places.map(|of| of.at(position)).into_iter().flatten());
            index.segments.extend_from_slice(&[at as u32, 1, position as u32, first as u32, NO_PARENT]);
            index.head_rows.push(at as u32);
            if is_stateless {
                index.push_spare(&limits, stride);
                continue;
            }
            let (group, sequence) = (self.group_of(s), &self.sequences[s]);
            let shared = group.prompt_tokens / KV_BLOCK;
            for cache in self.limits.caches.each() {
                let to = &mut index.caches[cache.index()];
                if !cache.has_blocks() {
                    to.slots.extend(state_of(cache, group, sequence).into_iter().flatten());
                    continue;
                }
                let (filler, prompt, own) =
                    (self.limits.spare(cache), group.held.of(cache), sequence.held.of(cache));
                prompt.push_table(0..shared, filler, &mut to.tables);
                own.push_table(shared..stride, filler, &mut to.tables);
                let block = to.tables[first + position / KV_BLOCK];
                to.slots.push(block * KV_BLOCK as u32 + (position % KV_BLOCK) as u32);
            }
            if !is_filler {
                self.head_samples.push(s);
            }
        }
    }

    /// Ends a run of decode passes: all tokens of running sequences but the last have their keys.
    pub(crate) fn end_run(&mut self, samples: &Samples) {
        for at in 0..self.running.len() {
            let s = self.running[at];
            self.keep_up(s, samples.ids(s));
        }
    }

    /// Notes that all tokens of a sequence but the last have their keys.
    pub(crate) fn keep_up(&mut self, s: usize, tokens: &[u32]) {
        self.sequences[s].computed = tokens.len() - 1;
        self.name_response(s, tokens);
    }
}
