//! Decode passes that follow each other without the host: one index for all of them, whose blocks are given out before.

use super::Schedule;
use crate::Samples;
use crate::limits::{Count, bucket, keys_bucket};
use plimsoll_device::{KV_BLOCK, NO_PARENT, NO_STATE};
use plimsoll_model::PassIndex;

impl Schedule {
    /// Fills `index` with the rows of a run of decode passes and gives their blocks out. Returns the number of passes, or
    /// 0 if something else is to be done first.
    ///
    /// The index holds one row for each running sequence, in a bucket filled up with copies of the first.
    pub(crate) fn next_run(
        &mut self,
        samples: &Samples,
        max_new_tokens: usize,
        most: usize,
        index: &mut PassIndex,
    ) -> usize {
        index.clear();
        self.head_samples.clear();
        self.drop_unseen();
        self.admit(samples);
        if self.running.is_empty() || !self.running.iter().all(|&s| self.only_decodes(s, samples)) {
            return 0;
        }
        let tokens = |s: &usize| samples.ids(*s).len();
        let position = |s: &usize| self.group_of(*s).prompt_tokens + tokens(s) - 1;
        let longest = self.running.iter().map(position).max().expect("someone runs");
        let left = self.running.iter().map(|s| max_new_tokens - tokens(s)).max().expect("someone runs");
        let rotary = self.limits.prompt_tokens + self.limits.new_tokens - longest;
        let mut passes = most.min(left).min(rotary).min(self.step);
        while passes > 0 && !self.blocks_missing(samples, max_new_tokens, passes).fits(self.pools.free()) {
            passes /= 2;
        }
        if passes == 0 {
            return 0;
        }
        self.take_blocks(samples, max_new_tokens, passes);
        self.push_run(samples, index);
        index.keys_max = keys_bucket(longest + passes + 1);
        passes
    }

    /// True if all that a sequence needs next is one row.
    fn only_decodes(&self, s: usize, samples: &Samples) -> bool {
        let (group, sequence) = (self.group_of(s), &self.sequences[s]);
        let tokens = samples.ids(s).len();
        let copied = sequence.has_tail || group.prompt_tokens.is_multiple_of(KV_BLOCK);
        // A pass of the run goes on from the state that the one before it left.
        let has_state = self.limits.states == 0 || group.is_alone || sequence.computed > 0;
        has_state
            && tokens > 0
            && sequence.computed + 1 == tokens
            && group.computed == group.prompt_tokens
            && copied
    }

    /// Own blocks of a sequence after some decode passes.
    fn blocks_after(&self, s: usize, samples: &Samples, max_new_tokens: usize, passes: usize) -> Count {
        self.own_blocks_of(s, (samples.ids(s).len() + passes - 1).min(max_new_tokens - 1))
    }

    fn blocks_missing(&self, samples: &Samples, max_new_tokens: usize, passes: usize) -> Count {
        let missing = |&s: &usize| {
            self.blocks_after(s, samples, max_new_tokens, passes).less(self.sequences[s].held.count())
        };
        self.running.iter().map(missing).fold(Count::default(), Count::plus)
    }

    fn take_blocks(&mut self, samples: &Samples, max_new_tokens: usize, passes: usize) {
        for at in 0..self.running.len() {
            let s = self.running[at];
            let wanted = self.blocks_after(s, samples, max_new_tokens, passes);
            let shared = self.group_of(s).prompt_tokens / KV_BLOCK;
            let held = &mut self.sequences[s].held;
            assert!(held.take(wanted, &mut self.pools), "the room was counted");
            if self.ring > 0 {
                held.window.slide(shared + wanted.whole);
            }
        }
    }

    fn push_run(&mut self, samples: &Samples, index: &mut PassIndex) {
        let stride = self.limits.table_stride();
        for at in 0..bucket(self.running.len()) {
            let filler = at >= self.running.len();
            let s = self.running[if filler { 0 } else { at }];
            if filler && self.limits.states > 0 {
                self.push_stateless(at, samples.ids(s), index);
                continue;
            }
            let (group, sequence) = (self.group_of(s), &self.sequences[s]);
            let tokens = samples.ids(s);
            let position = group.prompt_tokens + tokens.len() - 1;
            let shared = group.prompt_tokens / KV_BLOCK;
            let first = index.tables.len();
            let own = &sequence.held;
            index.tables.extend_from_slice(&group.held.whole[..shared]);
            index.tables.extend_from_slice(&own.whole);
            let block = index.tables[first + position / KV_BLOCK];
            index.tables.resize(first + stride, self.limits.spare_block());
            if self.ring > 0 {
                let (filler, tables) = (self.limits.spare_window_block(), &mut index.window.tables);
                group.held.window.push_table((0, shared), filler, tables);
                own.window.push_table((shared, stride), filler, tables);
                let block = index.window.tables[first + position / KV_BLOCK];
                index.window.slots.push(block * KV_BLOCK as u32 + (position % KV_BLOCK) as u32);
            }
            if let Some(place) = self.place_of_state(s) {
                index.places.extend([place, place]);
            }
            index.ids.push(tokens[tokens.len() - 1]);
            index.positions.push(position as u32);
            index.slots.push(block * KV_BLOCK as u32 + (position % KV_BLOCK) as u32);
            index.segments.extend_from_slice(&[at as u32, 1, position as u32, first as u32, NO_PARENT]);
            index.head_rows.push(at as u32);
            if !filler {
                self.head_samples.push(s);
            }
        }
    }

    /// A row that fills a bucket where rows have states. It can't be a copy of the first, whose state is not read twice: it is a sequence of
    /// its own without a state, whose keys are in the spare block.
    fn push_stateless(&self, at: usize, tokens: &[u32], index: &mut PassIndex) {
        let (block, first) = (self.limits.spare_block(), index.tables.len());
        index.tables.resize(first + self.limits.table_stride(), block);
        if self.ring > 0 {
            let block = self.limits.spare_window_block();
            index.window.tables.resize(first + self.limits.table_stride(), block);
            index.window.slots.push(block * KV_BLOCK as u32);
        }
        index.places.extend([NO_STATE, NO_STATE]);
        index.ids.push(tokens[tokens.len() - 1]);
        index.positions.push(0);
        index.slots.push(block * KV_BLOCK as u32);
        index.segments.extend_from_slice(&[at as u32, 1, 0, first as u32, NO_PARENT]);
        index.head_rows.push(at as u32);
    }

    /// After a run of decode passes: every token but the last of those that still run has its key.
    pub(crate) fn end_run(&mut self, samples: &Samples) {
        for &s in &self.running {
            self.sequences[s].computed = samples.ids(s).len() - 1;
        }
    }
}
