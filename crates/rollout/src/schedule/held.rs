//! The units of each cache that a prompt or a sequence holds. Places of blocks count from a sequence's first key.

use crate::limits::Count;
use plimsoll_arch::{CACHES, Cache, KV_BLOCK};
use std::ops::Range;

/// Free units of one cache.
#[derive(Debug)]
struct Pool {
    free: Vec<u32>,
    total: usize,
}

impl Pool {
    /// Returns a pool with all units free; unit 0 is taken first.
    fn new(total: usize) -> Pool {
        Pool { free: (0..total as u32).rev().collect(), total }
    }

    /// Frees units. The last one freed is taken first: it is still in the processor's cache.
    fn give_back(&mut self, units: &[u32]) {
        self.free.extend(units.iter().rev());
        debug_assert!(self.free.len() <= self.total, "a unit was given back twice");
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
        Count(self.0.each_ref().map(|pool| pool.free.len()))
    }

    pub(super) fn total(&self) -> Count {
        Count(self.0.each_ref().map(|pool| pool.total))
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
            let Some(unit) = pool.free.pop() else { return false };
            self.units[self.len as usize] = unit;
            self.len += 1;
        }
        true
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

    pub(super) fn give_back(&mut self, pools: &mut Pools) {
        (self.0.iter_mut().zip(&mut pools.0)).for_each(|(span, pool)| span.drop_before(usize::MAX, pool));
    }

    /// Frees the units of a cache whose places are all before `place`.
    pub(super) fn drop_before(&mut self, cache: Cache, place: usize, pools: &mut Pools) {
        self.of_mut(cache).drop_before(place, &mut pools.0[cache.index()]);
    }
}
