//! Keys that requests share: a prompt begins after the blocks that an earlier prompt or response has left with the same
//! rows, and its own full blocks can be found from the pass on that computes them.
//!
//! A block's hash follows from the one before it and from its rows; the first one's from whose weights they are and who
//! may share them. So two blocks with one hash have the same keys, bit for bit, however their rows were cut into
//! passes. The last row of a prompt is always computed. Only caches whose blocks hold all keys can be shared, and
//! states (`kept_states.rs`): a ring lets go of keys that a later prompt would read.

use super::Schedule;
use super::hashes::{Prefixes, PromptBlocks, ResponseBlocks, after, push_row, root};
use super::kept::{BlockHash, KeptBlocks};
use crate::ask::Ask;
use crate::limits::EngineLimits;
use plimsoll_arch::Cache;
use plimsoll_device::KV_BLOCK;
use sha2::{Digest, Sha256};

/// A prompt waits while another one computes keys of at least this many blocks of its own, or all that they share.
const WORTH_WAITING: usize = 8;

impl Schedule {
    /// Returns whether the caches let prompts share keys.
    pub(crate) fn shares_prefixes(limits: &EngineLimits) -> bool {
        limits.caches.each().all(|cache| matches!(cache, Cache::Paged | Cache::State))
    }

    /// Keeps full blocks for later prompts from now on; every unit must be free. Does nothing where caches do not allow
    /// it.
    pub(crate) fn keep_prefixes(&mut self) {
        if Schedule::shares_prefixes(&self.limits) {
            self.pools.keep(true);
            self.prefixes = Some(Prefixes::new(&self.limits));
        }
    }

    /// Returns the heap bytes that `keep_prefixes` adds.
    pub(crate) fn prefix_bytes(limits: &EngineLimits) -> u64 {
        if !Schedule::shares_prefixes(limits) {
            return 0;
        }
        let hashes = limits.context() / KV_BLOCK * size_of::<BlockHash>();
        let each = size_of::<PromptBlocks>() + size_of::<ResponseBlocks>() + hashes + size_of::<u32>();
        let kept = |index| KeptBlocks::bytes(limits.caches.units(index));
        (limits.samples * each) as u64 + kept(Cache::PAGED) + kept(Cache::STATE)
    }

    /// Hashes the rows of a group that has opened. Rows from `vocab` on are vectors of the request's images.
    pub(crate) fn hash_prompt(&mut self, g: usize, slots: &[usize], ask: &Ask<'_>, vocab: u32) {
        let Some(prefixes) = &mut self.prefixes else { return };
        let prompt = &mut prefixes.prompts[g];
        (prompt.reads, prompt.found) = (!ask.scores_prompt, None);
        prompt.hashes.clear();
        let mut last = root(&ask.prefix);
        let (blocks, tail) = ask.prompt.as_chunks::<KV_BLOCK>();
        let hash = |mut rows: Sha256, ids: &[u32]| {
            ids.iter().for_each(|&id| push_row(&mut rows, id, vocab, ask.images));
            rows
        };
        for block in blocks {
            last = hash(after(&last), block).finalize().into();
            prompt.hashes.push(last);
        }
        let rows = hash(after(&last), tail);
        for &s in slots {
            prefixes.responses[s] = ResponseBlocks { rows: rows.clone(), count: ask.prompt.len() };
        }
    }

    /// Returns the tokens of a sequence's prompt whose keys were there when it began.
    pub(crate) fn found_tokens(&self, s: usize) -> usize {
        let found = |prefixes: &Prefixes| prefixes.prompts[self.sequences[s].group].found;
        self.prefixes.as_ref().and_then(found).unwrap_or(0)
    }

    /// Returns the blocks without a holder that a prompt may still read.
    pub(crate) fn num_kept(&self) -> usize {
        self.pools.kept().map_or(0, KeptBlocks::num_idle)
    }

    /// Returns the kept block at a place of a group's prompt.
    pub(super) fn found_at(&self, g: usize, place: usize) -> Option<u32> {
        let prompt = self.prefixes.as_ref().map(|prefixes| &prefixes.prompts[g])?;
        // The last row is computed, so the block that it is in is the prompt's own.
        let most = (self.groups[g].prompt_tokens - 1) / KV_BLOCK;
        let hash = prompt.hashes.get(place).filter(|_| prompt.reads && place < most)?;
        self.pools.kept()?.find(hash)
    }

    /// Returns how many kept blocks a group's prompt begins with, and the state after them if the model has states.
    fn num_found(&self, g: usize) -> (usize, Option<u32>) {
        let blocks = (0..).map_while(|place| self.found_at(g, place)).count();
        if !self.limits.has_units() {
            return (blocks, None);
        }
        let of = self.prefixes.as_ref().zip(self.pools.kept_states()).filter(|_| self.has_room_for_state());
        let found = of.and_then(|(prefixes, states)| {
            let hashes = prefixes.prompts[g].hashes[..blocks].iter().enumerate().rev();
            hashes.filter_map(|(place, hash)| states.find(hash).map(|state| (place + 1, Some(state)))).next()
        });
        found.unwrap_or((0, None))
    }

    /// Returns how many blocks of a prompt that has none are held by others, and so need no free ones.
    pub(super) fn num_shared(&self, g: usize) -> usize {
        let is_held = |&block: &u32| self.pools.kept().is_some_and(|kept| kept.is_held(block));
        (0..self.num_found(g).0).filter_map(|place| self.found_at(g, place)).filter(is_held).count()
    }

    /// Takes the kept blocks with which a group's prompt begins; it has none yet.
    pub(super) fn take_found(&mut self, g: usize) {
        if self.prefixes.is_none() {
            return;
        }
        let (blocks, state) = self.num_found(g);
        for place in 0..blocks {
            let block = self.found_at(g, place).expect("it was found");
            self.groups[g].held.take_kept(block, &mut self.pools);
        }
        self.begin_with_state(g, blocks, state);
        self.groups[g].computed = blocks * KV_BLOCK;
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.prompts[g].found.get_or_insert(blocks * KV_BLOCK);
        }
    }

    /// Returns whether a prompt that has not begun waits for another one's rows, which are computed now: of all prompts
    /// that begin alike the first one computes.
    pub(super) fn awaits_prefix(&self, g: usize) -> bool {
        let Some(prefixes) = &self.prefixes else { return false };
        let own = &prefixes.prompts[g];
        if !own.reads || self.groups[g].held.has_begun() {
            return false;
        }
        let most = (self.groups[g].prompt_tokens - 1) / KV_BLOCK;
        self.running.iter().any(|&s| {
            let of = self.sequences[s].group;
            let (group, other) = (&self.groups[of], &prefixes.prompts[of].hashes);
            let (computed, upto) = (group.computed / KV_BLOCK, most.min(other.len()));
            if group.computed == group.prompt_tokens || computed >= upto {
                return false;
            }
            // Blocks with one hash have all those before them in common.
            let worth = WORTH_WAITING.min(upto - computed);
            own.hashes[computed + worth - 1] == other[computed + worth - 1]
        })
    }

    /// Names the blocks of a prompt whose rows from `computed` on are in this pass.
    pub(super) fn name_prompt(&mut self, g: usize, computed: usize) {
        let Some(prefixes) = &self.prefixes else { return };
        let group = &self.groups[g];
        let hashes = prefixes.prompts[g].hashes.iter().enumerate();
        for (place, hash) in hashes.take(group.computed / KV_BLOCK).skip(computed / KV_BLOCK) {
            self.pools.name(group.held.of(Cache::Paged).at(place), *hash);
        }
    }

    /// Names the full blocks of a response whose last rows are in this pass.
    pub(super) fn name_response(&mut self, s: usize, tokens: &[u32]) {
        let Some(prefixes) = &mut self.prefixes else { return };
        let (sequence, rows) = (&self.sequences[s], &mut prefixes.responses[s]);
        let prompt_tokens = self.groups[sequence.group].prompt_tokens;
        while rows.count < prompt_tokens + sequence.computed {
            rows.rows.update(tokens[rows.count - prompt_tokens].to_le_bytes());
            rows.count += 1;
            if rows.count.is_multiple_of(KV_BLOCK) {
                let hash: BlockHash = std::mem::take(&mut rows.rows).finalize().into();
                let block = sequence.held.of(Cache::Paged).at(rows.count / KV_BLOCK - 1);
                self.pools.name(block, hash);
                rows.rows = after(&hash);
            }
        }
    }
}
