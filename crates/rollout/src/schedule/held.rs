//! The units of each cache that a prompt or a sequence holds. Places of blocks count from a sequence's first key.

use super::kept::{BlockHash, KeptBlocks};
use crate::limits::Count;
use plimsoll_arch::{CACHES, Cache, KV_BLOCK};
use std::ops::Range;

/// Free units of one cache.
#[derive(Debug)]
struct Pool {
    free: Vec<u32>,
    total: usize,
    /// What its blocks are kept for, if later prompts read them.
    kept: Option<KeptBlocks>,
}

impl Pool {
    /// Returns a pool with all units free; unit 0 is taken first.
    fn new(total: usize) -> Pool {
        Pool { free: (0..total as u32).rev().collect(), total, kept: None }
    }

    /// Returns how many units can be taken.
    fn num_free(&self) -> usize {
        self.free.len() + self.kept.as_ref().map_or(0, KeptBlocks::num_idle)
    }

    /// Takes a unit: one without keys that someone may read again, if there is one.
    fn take(&mut self) -> Option<u32> {
        let unit = self.free.pop().or_else(|| self.kept.as_mut()?.evict())?;
        self.kept.iter_mut().for_each(|kept| kept.hold(unit));
        Some(unit)
    }

    /// Frees units. The last one freed is taken first: it is still in the processor's cache. Of blocks that are kept
    /// the last ones of a sequence are given up first, for they are of no use without those before them.
    fn give_back(&mut self, units: &[u32]) {
        match &mut self.kept {
            None => self.free.extend(units.iter().rev()),
            Some(kept) => self.free.extend(units.iter().rev().filter(|&&unit| kept.release(unit))),
        }
        debug_assert!(self.num_free() <= self.total, "a unit was given back twice");
    }

    /// Forgets what its blocks are, and keeps them from now on if `keeps`. All units must be free.
    fn keep(&mut self, keeps: bool) {
        while let Some(block) = self.kept.as_mut().and_then(KeptBlocks::evict) {
            self.free.push(block);
        }
        self.kept = keeps.then(|| KeptBlocks::new(self.total));
    }
}

/// Free units of each cache.
#[derive(Debug)]
pub(super) struct Pools([Pool; CACHES]);

impl Pools {
    /// Returns pools with all units free.
    pub(super) fn new(units: Count) -> Pools {
        Pools(units.0.map(Pool::new))
    }

    pub(super) fn free(&self) -> Count {
        Count(self.0.each_ref().map(Pool::num_free))
    }

    pub(super) fn total(&self) -> Count {
        Count(self.0.each_ref().map(|pool| pool.total))
    }

    /// Forgets which blocks and states are which, and keeps them from now on if `keeps`. All units must be free.
    pub(super) fn keep(&mut self, keeps: bool) {
        [Cache::PAGED, Cache::STATE].into_iter().for_each(|cache| self.0[cache].keep(keeps));
    }

    /// Returns the states that are kept.
    pub(super) fn kept_states(&self) -> Option<&KeptBlocks> {
        self.0[Cache::STATE].kept.as_ref()
    }

    /// Holds a state that is kept.
    pub(super) fn hold_state(&mut self, state: u32) {
        self.0[Cache::STATE].kept.iter_mut().for_each(|kept| kept.hold(state));
    }

    /// Gives back a state of `hold_state` or `keep_state`.
    pub(super) fn give_back_state(&mut self, state: u32) {
        self.0[Cache::STATE].give_back(&[state]);
    }

    /// Keeps the state of a span, which goes on with another one. Returns the one that is kept, which is still held;
    /// none if there is no other one.
    pub(super) fn keep_state(&mut self, of: &mut Span, hash: BlockHash) -> Option<u32> {
        let pool = &mut self.0[Cache::STATE];
        let other = pool.take()?;
        let state = std::mem::replace(&mut of.units[0], other);
        pool.kept.iter_mut().for_each(|kept| kept.name(state, hash));
        Some(state)
    }

    /// Returns the blocks that are kept, of the paged cache.
    pub(super) fn kept(&self) -> Option<&KeptBlocks> {
        self.0[Cache::PAGED].kept.as_ref()
    }

    /// Gives a block of the paged cache its hash.
    pub(super) fn name(&mut self, block: u32, hash: BlockHash) {
        self.0[Cache::PAGED].kept.iter_mut().for_each(|kept| kept.name(block, hash));
    }
}

/// Units at consecutive places.
#[derive(Debug, Default)]
pub(super) struct Span {
    first: u32,
    len: u32,
    units: Box<[u32]>,
}

impl Span {
    fn with_capacity(units: usize) -> Span {
        Span { first: 0, len: 0, units: vec![0; units].into() }
    }

    fn held(&self) -> &[u32] {
        &self.units[..self.len as usize]
    }

    /// Returns the unit at a place, which must be in the span.
    pub(super) fn at(&self, place: usize) -> u32 {
        self.held()[place - self.first as usize]
    }

    /// Returns the slot of the key at a position, whose block must be in the span.
    pub(super) fn slot(&self, position: usize) -> u32 {
        self.at(position / KV_BLOCK) * KV_BLOCK as u32 + (position % KV_BLOCK) as u32
    }

    /// Returns the first unit, if it has any.
    pub(super) fn first(&self) -> Option<u32> {
        self.held().first().copied()
    }

    /// Returns the places of the units.
    pub(super) fn places(&self) -> Range<usize> {
        self.first as usize..(self.first + self.len) as usize
    }

    /// Moves the span until it ends at `end`, if it ends earlier: its first units become its last.
    pub(super) fn slide(&mut self, end: usize) {
        let places = end.saturating_sub(self.places().end);
        let units = &mut self.units[..self.len as usize];
        assert!(places <= units.len(), "{places} places further with {} units", units.len());
        units.rotate_left(places);
        self.first += places as u32;
    }

    /// Adds a table of some places; `filler` where the span has no unit.
    pub(super) fn push_table(&self, of: Range<usize>, filler: u32, tables: &mut Vec<u32>) {
        let (at, places) = (tables.len(), self.places());
        tables.resize(at + of.len(), filler);
        let (from, upto) = (of.start.max(places.start), of.end.min(places.end));
        if from < upto {
            let held = &self.held()[from - places.start..upto - places.start];
            tables[at + from - of.start..][..held.len()].copy_from_slice(held);
        }
    }

    /// Takes units until there are `wanted`. False if they run out; the span then keeps what it got.
    fn take(&mut self, wanted: usize, pool: &mut Pool) -> bool {
        while (self.len as usize) < wanted {
            let Some(unit) = pool.take() else { return false };
            self.push(unit);
        }
        true
    }

    fn push(&mut self, unit: u32) {
        self.units[self.len as usize] = unit;
        self.len += 1;
    }

    /// Frees the units whose places are all before `place`.
    fn drop_before(&mut self, place: usize, pool: &mut Pool) {
        let units = place.saturating_sub(self.first as usize).min(self.len as usize);
        pool.give_back(&self.units[..units]);
        self.units.copy_within(units..self.len as usize, 0);
        (self.first, self.len) = (self.first + units as u32, self.len - units as u32);
    }
}

/// Units of each cache that a prompt or a sequence holds.
#[derive(Debug, Default)]
pub(super) struct SequenceUnits([Span; CACHES]);

impl SequenceUnits {
    /// Returns no units, with capacity for some.
    pub(super) fn with_capacity(units: Count) -> SequenceUnits {
        SequenceUnits(units.0.map(Span::with_capacity))
    }

    pub(super) fn of(&self, cache: Cache) -> &Span {
        &self.0[cache.index()]
    }

    pub(super) fn of_mut(&mut self, cache: Cache) -> &mut Span {
        &mut self.0[cache.index()]
    }

    /// Returns the end of the places in the paged cache; 0 if it holds none.
    pub(super) fn end(&self) -> usize {
        self.0[Cache::PAGED].places().end
    }

    /// Returns whether it holds what every sequence in passes holds.
    pub(super) fn has_begun(&self) -> bool {
        self.0[Cache::PAGED].len > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|span| span.len == 0)
    }

    pub(super) fn count(&self) -> Count {
        Count(self.0.each_ref().map(|span| span.len as usize))
    }

    /// Sets the place of the first unit in each cache of which it has none.
    pub(super) fn begin(&mut self, place: usize) {
        self.0.iter_mut().filter(|span| span.len == 0).for_each(|span| span.first = place as u32);
    }

    /// Takes units until there are `wanted`. False if they run out; it then keeps what it got.
    pub(super) fn take(&mut self, wanted: Count, pools: &mut Pools) -> bool {
        let mut each = self.0.iter_mut().zip(wanted.0).zip(&mut pools.0);
        each.all(|((span, wanted), pool)| span.take(wanted, pool))
    }

    /// Takes a block that is kept as the next one of the paged cache.
    pub(super) fn take_kept(&mut self, block: u32, pools: &mut Pools) {
        pools.0[Cache::PAGED].kept.as_mut().expect("blocks are kept").hold(block);
        self.0[Cache::PAGED].push(block);
    }

    pub(super) fn give_back(&mut self, pools: &mut Pools) {
        (self.0.iter_mut().zip(&mut pools.0)).for_each(|(span, pool)| span.drop_before(usize::MAX, pool));
    }

    /// Frees the units of a cache whose places are all before `place`.
    pub(super) fn drop_before(&mut self, cache: Cache, place: usize, pools: &mut Pools) {
        self.of_mut(cache).drop_before(place, &mut pools.0[cache.index()]);
    }
}
