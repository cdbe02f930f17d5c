//! Decode passes that follow each other without the host: one index for all of them, with units allocated in advance;
//! and passes that verify drafts, whose rows of a sequence are those that such passes would have one after the other.

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
        if self.only_decoding(samples, index).is_empty() {
            return 0;
        }
        let tokens = |s: &usize| samples.ids(*s).len();
        let longest = self.longest(samples);
        let left = self.running.iter().map(|s| max_new_tokens(*s) - tokens(s)).max().expect("someone runs");
        let rotary = self.limits.prompt_tokens + self.limits.new_tokens - longest;
        let mut passes = most.min(left).min(rotary).min(self.limits.step());
        while passes > 0 && !self.lacking(samples, max_new_tokens, |_| passes).fits(self.pools.free()) {
            passes /= 2;
        }
        if passes == 0 {
            return 0;
        }
        self.take_units(samples, max_new_tokens, |_| passes);
        self.put_in_order(key);
        self.push_run(samples, |_| &[], index);
        index.keys_max = keys_bucket(longest + passes + 1);
        passes
    }

    /// Begins a pass. Returns the running sequences if each needs one row next, else none.
    pub(crate) fn only_decoding(&mut self, samples: &Samples, index: &mut PassIndex) -> &[usize] {
        self.begin_pass(samples, index);
        let decodes = self.running.iter().all(|&s| self.only_decodes(s, samples));
        if decodes { &self.running } else { &[] }
    }

    /// Fills `index` with the last token of every running sequence and its drafts after that, a row and a segment each,
    /// and allocates their units; after `only_decoding` has returned some. False if there is no room for the drafts.
    pub(crate) fn next_verified<'d>(
        &mut self,
        samples: &Samples,
        max_new_tokens: impl Fn(usize) -> usize + Copy,
        drafts: impl Fn(usize) -> &'d [u32] + Copy,
        index: &mut PassIndex,
    ) -> bool {
        let rows = |s: usize| 1 + drafts(s).len();
        if !self.lacking(samples, max_new_tokens, rows).fits(self.pools.free()) {
            return false;
        }
        self.take_units(samples, max_new_tokens, rows);
        self.put_in_order(|_| ());
        self.push_run(samples, drafts, index);
        if self.limits.ahead {
            let most = self.running.iter().map(|&s| rows(s)).max().expect("someone runs");
            index.keys_max = keys_bucket(self.longest(samples) + most + 1);
        }
        true
    }

    /// Returns the last position of the longest running sequence.
    fn longest(&self, samples: &Samples) -> usize {
        let position = |&s: &usize| self.group_of(s).prompt_tokens + samples.ids(s).len() - 1;
        self.running.iter().map(position).max().expect("someone runs")
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
        passes: impl Fn(usize) -> usize,
    ) -> Count {
        let lacking = |&s: &usize| {
            self.units_after(s, samples, max_new_tokens, passes(s)).less(self.sequences[s].held.count())
        };
        self.running.iter().map(lacking).fold(Count::default(), Count::plus)
    }

    fn take_units(
        &mut self,
        samples: &Samples,
        max_new_tokens: impl Fn(usize) -> usize + Copy,
        passes: impl Fn(usize) -> usize,
    ) {
        for at in 0..self.running.len() {
            let s = self.running[at];
            let wanted = self.units_after(s, samples, max_new_tokens, passes(s));
            let held = &mut self.sequences[s].held;
            assert!(held.take(wanted, &mut self.pools), "the room was counted");
            let end = self.groups[self.sequences[s].group].prompt_tokens / KV_BLOCK + wanted.0[Cache::PAGED];
            for cache in self.limits.caches.each().filter(|cache| cache.has_blocks()) {
                self.sequences[s].held.of_mut(cache).slide(end);
            }
        }
    }

    /// Adds the rows of all running sequences: of each its last token and its drafts.
    fn push_run<'d>(
        &mut self,
        samples: &Samples,
        drafts: impl Fn(usize) -> &'d [u32],
        index: &mut PassIndex,
    ) {
        let mut last = None;
        for at in 0..self.order.len() {
            let s = self.order[at];
            let (token, first) = (samples.ids(s).last().expect("it decodes"), samples.ids(s).len() - 1);
            for (token, more) in [token].into_iter().chain(drafts(s)).zip(0..) {
                let row =
                    DecodeRow { s, token: *token, position: self.group_of(s).prompt_tokens + first + more };
                self.push_row(&row, false, index);
                self.head_samples.push(s);
                last = Some(row);
            }
        }
        let last = last.expect("someone runs");
        let rows = if self.limits.ahead { bucket(index.ids.len()) } else { index.ids.len() };
        while index.ids.len() < rows {
            self.push_row(&last, true, index);
        }
    }

    /// Adds a row, a segment of its own. One that fills a bucket is a copy of the last: it has the same bits at the
    /// same places. A state is not read twice, so it has no copy: the row that pads a bucket is then a sequence of its
    /// own, whose keys are in the spare blocks.
    fn push_row(&self, row: &DecodeRow, is_filler: bool, index: &mut PassIndex) {
        let (stride, s) = (self.limits.table_stride(), row.s);
        let (at, first) = (index.ids.len() as u32, index.caches[Cache::PAGED].tables.len());
        let is_stateless = is_filler && self.limits.has_units();
        let position = if is_stateless { 0 } else { row.position };
        index.ids.push(row.token);
        index.positions.push(position as u32);
        index.adapters.extend(self.adapters.get(self.sequences[s].group));
        let own = self.own_places.get(s).and_then(Option::as_ref);
        let places = own.or_else(|| self.places.get(self.sequences[s].group));
        index.places.extend(places.map(|of| of.at(position)).into_iter().flatten());
        index.segments.extend_from_slice(&[at, 1, position as u32, first as u32, NO_PARENT]);
        index.head_rows.push(at);
        if is_stateless {
            return index.push_spare(&self.limits.pass(), stride);
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
        self.know(s, &tokens[..tokens.len() - 1]);
    }

    /// Notes that the tokens of a sequence up to now have their keys: no other row of it counts.
    pub(crate) fn know(&mut self, s: usize, tokens: &[u32]) {
        self.sequences[s].computed = tokens.len();
        self.name_response(s, tokens);
    }
}

/// A row of a pass that decodes.
struct DecodeRow {
    s: usize,
    token: u32,
    position: usize,
}
