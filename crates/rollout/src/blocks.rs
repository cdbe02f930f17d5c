//! The block pool owns which KV blocks are free. It never touches their contents.

#[derive(Debug)]
pub struct BlockPool {
    free: Vec<u32>,
    total: usize,
}

impl BlockPool {
    /// A pool of `total` blocks, all free.
    pub fn new(total: usize) -> BlockPool {
        // Reversed, so that block 0 is taken first.
        BlockPool { free: (0..total as u32).rev().collect(), total }
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn total(&self) -> usize {
        self.total
    }

    /// Takes a block; the one given back last comes first: it is still in the cache.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Gives a list's blocks back and empties it.
    pub fn give_back(&mut self, blocks: &mut Vec<u32>) {
        self.give_back_some(blocks.drain(..));
    }

    pub(crate) fn give_back_some(&mut self, blocks: impl DoubleEndedIterator<Item = u32>) {
        self.free.extend(blocks.rev());
        debug_assert!(self.free.len() <= self.total, "a block was given back twice");
    }
}
