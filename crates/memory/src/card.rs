//! The memory of a card, by who holds it.

use plimsoll_base::Bytes;

/// Bytes of the card, by who took them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CardMemory {
    /// Taken by others before this process opened the card.
    pub others: Bytes,
    /// Context, modules and libraries of this process: what is taken beside the arena.
    pub libraries: Bytes,
    /// Free now.
    pub free: Bytes,
    /// All of the card.
    pub total: Bytes,
}

impl CardMemory {
    /// What this process took: the arena and what libraries hold.
    pub fn ours(&self) -> Bytes {
        Bytes((self.total.0 - self.free.0).saturating_sub(self.others.0))
    }
}
