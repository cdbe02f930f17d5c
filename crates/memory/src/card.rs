//! The memory of a card, by holder.

use plimsoll_base::Bytes;

/// Bytes of a card, by holder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CardMemory {
    /// Used by other processes before this one opened the card.
    pub others: Bytes,
    /// Context, modules and libraries of this process: everything except the arena.
    pub libraries: Bytes,
    pub free: Bytes,
    pub total: Bytes,
}

impl CardMemory {
    /// Returns what this process holds: the arena and libraries.
    pub fn ours(&self) -> Bytes {
        Bytes((self.total.0 - self.free.0).saturating_sub(self.others.0))
    }
}
