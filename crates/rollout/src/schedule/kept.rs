//! Blocks that stay readable after their sequences: each full block has the hash of everything that its keys follow
//! from, and a later prompt with the same beginning reads them. A block without a holder is taken for other keys
//! when no free one is left, the one that was given up first before the others.
//!
//! Its vectors are allocated once. It refuses nothing: a block without a hash is an ordinary one.

/// The hash of a block's tokens and of all that comes before them.
pub(crate) type BlockHash = [u8; 32];

/// No block: the end of the list, or a free place in the table.
const NONE: u32 = u32::MAX;
/// What a block without a hash has; no hash is that.
const UNNAMED: BlockHash = [0; 32];

/// The hashes, holders and order of one cache's blocks.
#[derive(Debug)]
pub(super) struct KeptBlocks {
    /// By block: sequences and prompts that hold it.
    holders: Box<[u32]>,
    hashes: Box<[BlockHash]>,
    /// By block: its neighbours among those without a holder, [given up earlier, given up later].
    neighbours: Box<[[u32; 2]]>,
    /// The first and the last of these.
    ends: [u32; 2],
    num_idle: usize,
    /// Blocks with a hash, at the first free place from their hash's on.
    table: Box<[u32]>,
}

impl KeptBlocks {
    /// Starts with `total` blocks without holders and hashes.
    pub(super) fn new(total: usize) -> KeptBlocks {
        KeptBlocks {
            holders: vec![0; total].into(),
            hashes: vec![UNNAMED; total].into(),
            neighbours: vec![[NONE; 2]; total].into(),
            ends: [NONE; 2],
            num_idle: 0,
            table: vec![NONE; places(total)].into(),
        }
    }

    /// Returns the heap bytes for `total` blocks.
    pub(super) fn bytes(total: usize) -> u64 {
        let of_block = size_of::<u32>() + size_of::<BlockHash>() + size_of::<[u32; 2]>();
        (total * of_block + places(total) * size_of::<u32>()) as u64
    }

    /// Returns the number of blocks with a hash and without a holder.
    pub(super) fn num_idle(&self) -> usize {
        self.num_idle
    }

    pub(super) fn is_held(&self, block: u32) -> bool {
        self.holders[block as usize] > 0
    }

    /// Returns the block with this hash.
    pub(super) fn find(&self, hash: &BlockHash) -> Option<u32> {
        let mut place = self.home(hash);
        while self.table[place] != NONE {
            let block = self.table[place];
            if self.hashes[block as usize] == *hash {
                return Some(block);
            }
            place = (place + 1) & self.mask();
        }
        None
    }

    /// Adds a holder.
    pub(super) fn hold(&mut self, block: u32) {
        let at = block as usize;
        if self.holders[at] == 0 && self.hashes[at] != UNNAMED {
            self.unlink(block);
        }
        self.holders[at] += 1;
    }

    /// Takes a holder away. Returns true if the block is now free: it has neither a holder nor a hash.
    pub(super) fn release(&mut self, block: u32) -> bool {
        let at = block as usize;
        debug_assert!(self.holders[at] > 0, "block {block} was given back twice");
        self.holders[at] -= 1;
        if self.holders[at] > 0 {
            return false;
        }
        if self.hashes[at] == UNNAMED {
            return true;
        }
        let [_, last] = self.ends;
        self.neighbours[at] = [last, NONE];
        *self.next_of(last) = block;
        self.ends[1] = block;
        self.num_idle += 1;
        false
    }

    /// Takes its hash from the block that was given up first, and returns that block, which is free.
    pub(super) fn evict(&mut self) -> Option<u32> {
        let [block, _] = self.ends;
        if block == NONE {
            return None;
        }
        self.unlink(block);
        self.remove(block);
        Some(block)
    }

    /// Gives a block its hash, unless it or another block has that.
    pub(super) fn name(&mut self, block: u32, hash: BlockHash) {
        debug_assert!(self.is_held(block) && hash != UNNAMED, "a block is named by its holder");
        if self.hashes[block as usize] != UNNAMED || self.find(&hash).is_some() {
            return;
        }
        let mut place = self.home(&hash);
        while self.table[place] != NONE {
            place = (place + 1) & self.mask();
        }
        (self.table[place], self.hashes[block as usize]) = (block, hash);
    }

    fn mask(&self) -> usize {
        self.table.len() - 1
    }

    fn home(&self, hash: &BlockHash) -> usize {
        let first = u64::from_le_bytes(hash[..8].try_into().expect("8 bytes"));
        first as usize & self.mask()
    }

    fn next_of(&mut self, block: u32) -> &mut u32 {
        if block == NONE { &mut self.ends[0] } else { &mut self.neighbours[block as usize][1] }
    }

    fn unlink(&mut self, block: u32) {
        let [before, after] = self.neighbours[block as usize];
        *self.next_of(before) = after;
        if after == NONE {
            self.ends[1] = before;
        } else {
            self.neighbours[after as usize][0] = before;
        }
        self.num_idle -= 1;
    }

    /// Takes a block out of the table, and moves those after it to where a search still finds them.
    fn remove(&mut self, block: u32) {
        let mask = self.mask();
        let mut hole = self.home(&self.hashes[block as usize]);
        while self.table[hole] != block {
            hole = (hole + 1) & mask;
        }
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let other = self.table[place];
            if other == NONE {
                break;
            }
            let home = self.home(&self.hashes[other as usize]);
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(hole) & mask {
                self.table[hole] = other;
                hole = place;
            }
        }
        self.table[hole] = NONE;
        self.hashes[block as usize] = UNNAMED;
    }
}

/// Returns the places of a table that is at most half full.
fn places(total: usize) -> usize {
    (2 * total).next_power_of_two().max(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, VecDeque};

    /// A hash whose place in a small table is shared by many.
    fn hash(n: u8) -> BlockHash {
        let mut hash = [n; 32];
        hash[..8].copy_from_slice(&u64::from(n % 3 + 1).to_le_bytes());
        hash
    }

    /// Compares it with a map and a queue over many operations.
    #[test]
    fn blocks_are_found_until_they_are_taken_in_the_order_in_which_they_were_given_up() {
        const TOTAL: usize = 7;
        let mut kept = KeptBlocks::new(TOTAL);
        let (mut names, mut idle) = (HashMap::new(), VecDeque::new());
        let mut holders = [0u32; TOTAL];
        let mut state = 12345u32;
        for step in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let block = (state >> 16) % TOTAL as u32;
            let at = block as usize;
            match state >> 24 & 3 {
                0 if holders[at] > 0 || names.values().any(|&b| b == block) => {
                    kept.hold(block);
                    holders[at] += 1;
                    idle.retain(|&b| b != block);
                }
                0 => {
                    kept.hold(block);
                    holders[at] += 1;
                }
                1 if holders[at] > 0 => {
                    holders[at] -= 1;
                    let is_free = kept.release(block);
                    let has_name = names.values().any(|&b| b == block);
                    assert_eq!(is_free, holders[at] == 0 && !has_name, "step {step}");
                    if holders[at] == 0 && has_name {
                        idle.push_back(block);
                    }
                }
                2 if holders[at] > 0 => {
                    let new = (state >> 8) as u8 % 11;
                    kept.name(block, hash(new));
                    if !names.values().any(|&b| b == block) {
                        names.entry(new).or_insert(block);
                    }
                }
                _ => {
                    let taken = kept.evict();
                    assert_eq!(taken, idle.pop_front(), "step {step}");
                    names.retain(|_, b| Some(*b) != taken);
                }
            }
            assert_eq!(kept.num_idle(), idle.len());
            for n in 0..11 {
                assert_eq!(kept.find(&hash(n)), names.get(&n).copied(), "step {step}, hash {n}");
            }
        }
    }
}
