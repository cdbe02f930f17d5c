//! The blocks that a prompt or a sequence holds: all of its own in the cache of whole sequences, and of those of its
//! window the ones that a row may still see. Places of blocks are counted from a sequence's first key. And the state of its linear
//! attention.

use crate::BlockPool;
use crate::limits::Count;

/// Which blocks of both caches are free.
#[derive(Debug)]
pub(super) struct Pools {
    whole: BlockPool,
    window: BlockPool,
    states: BlockPool,
}

impl Pools {
    /// All free.
    pub(super) fn new(blocks: Count) -> Pools {
        let [whole, window, states] = [blocks.whole, blocks.window, blocks.states].map(BlockPool::new);
        Pools { whole, window, states }
    }

    pub(super) fn free(&self) -> Count {
        Count { whole: self.whole.free(), window: self.window.free(), states: self.states.free() }
    }

    pub(super) fn total(&self) -> Count {
        Count { whole: self.whole.total(), window: self.window.total(), states: self.states.total() }
    }
}

/// Blocks at places that follow each other.
#[derive(Debug, Default)]
pub(super) struct Span {
    first: usize,
    blocks: Vec<u32>,
}

impl Span {
    /// Returns the block at a place, which is one of the span's.
    pub(super) fn at(&self, place: usize) -> u32 {
        self.blocks[place - self.first]
    }

    /// True if it holds the places from `from` up to `end`.
    pub(super) fn covers(&self, from: usize, end: usize) -> bool {
        self.first <= from && end <= self.end()
    }

    fn end(&self) -> usize {
        self.first + self.blocks.len()
    }

    /// Moves on until it ends at `end`, if it ends before: its first blocks become its last.
    pub(super) fn slide(&mut self, end: usize) {
        let places = end.saturating_sub(self.end());
        assert!(places <= self.blocks.len(), "{places} places further with {} blocks", self.blocks.len());
        self.blocks.rotate_left(places);
        self.first += places;
    }

    /// Adds a table of the places up to `end`, from `begin` on; `filler` where it has none.
    pub(super) fn push_table(&self, (begin, end): (usize, usize), filler: u32, tables: &mut Vec<u32>) {
        let at = tables.len();
        tables.resize(at + end - begin, filler);
        let (from, upto) = (begin.max(self.first), end.min(self.end()));
        if from < upto {
            let held = &self.blocks[from - self.first..upto - self.first];
            tables[at + from - begin..][..held.len()].copy_from_slice(held);
        }
    }
}

/// Blocks of both caches, and a state.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) whole: Vec<u32>,
    pub(super) window: Span,
    pub(super) state: Option<u32>,
}

impl Held {
    /// Without a block, and with room for some.
    pub(super) fn with_capacity(blocks: Count) -> Held {
        let window = Span { first: 0, blocks: Vec::with_capacity(blocks.window) };
        Held { whole: Vec::with_capacity(blocks.whole), window, state: None }
    }

    /// Makes room for as many blocks.
    pub(super) fn reserve(&mut self, blocks: Count) {
        self.whole.reserve(blocks.whole);
        self.window.blocks.reserve(blocks.window);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.window.blocks.is_empty() && self.state.is_none()
    }

    pub(super) fn count(&self) -> Count {
        let states = usize::from(self.state.is_some());
        Count { whole: self.whole.len(), window: self.window.blocks.len(), states }
    }

    /// Says at which place the window's first block will be, if it has none.
    pub(super) fn begin_window(&mut self, place: usize) {
        if self.window.blocks.is_empty() {
            self.window.first = place;
        }
    }

    /// Takes blocks until there are `wanted`. False if they run out; then it keeps what it got.
    pub(super) fn take(&mut self, wanted: Count, pools: &mut Pools) -> bool {
        if wanted.states > 0 && self.state.is_none() {
            self.state = pools.states.take();
        }
        take(&mut self.whole, wanted.whole, &mut pools.whole)
            && take(&mut self.window.blocks, wanted.window, &mut pools.window)
            && (wanted.states == 0 || self.state.is_some())
    }

    pub(super) fn give_back(&mut self, pools: &mut Pools) {
        pools.whole.give_back(&mut self.whole);
        pools.window.give_back(&mut self.window.blocks);
        self.give_back_state(pools);
    }

    pub(super) fn give_back_state(&mut self, pools: &mut Pools) {
        pools.states.give_back_some(self.state.take().into_iter());
    }

    /// Gives the window's blocks back of which all places are before `place`.
    pub(super) fn drop_before(&mut self, place: usize, pools: &mut Pools) {
        let blocks = place.saturating_sub(self.window.first).min(self.window.blocks.len());
        pools.window.give_back_some(self.window.blocks.drain(..blocks));
        self.window.first += blocks;
    }
}

fn take(blocks: &mut Vec<u32>, wanted: usize, pool: &mut BlockPool) -> bool {
    while blocks.len() < wanted {
        let Some(block) = pool.take() else { return false };
        blocks.push(block);
    }
    true
}
