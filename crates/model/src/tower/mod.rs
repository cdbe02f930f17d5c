//! A tower over images: weights, regions, forward pass and gradients. Rows are patches; a pass has those of several
//! images, and a row sees all rows of its own image and none of others.
//!
//! What it gives are vectors in a table: set 0 has those of tokens, the further sets are added after layers of the
//! text. The update keeps each layer's input and computes the rest of a layer again. Products may have adapters, which
//! are then trained instead of all weights.
//!
//! Legend: M patches, h hidden, a heads, d elements of a head, w = a d with heads padded to whole vectors, f
//! feed-forward, s^2 rows of a vector, n vectors, H width of a vector.

mod adapters;
mod backward;
mod forward;
mod index;
mod params;
mod pass;
mod regions;

pub use adapters::TowerAdapters;
pub use backward::{TowerGradients, backward as tower_backward};
pub use forward::forward as tower_forward;
pub use index::{PatchGrid, TowerIndex};
pub use params::{TowerParams, load_tower, tower_table};
pub use pass::{Tower, TowerPass};
pub use regions::{TowerLimits, TowerRegions, tower_layout, tower_rope_layout};

use plimsoll_arch::TowerSpec;
use plimsoll_memory::Buf;

/// Vectors of images, in sets: those of tokens, and the further features of a tower.
#[derive(Clone, Copy, Debug)]
pub struct VectorTable<'a> {
    /// [sets, n, H] f32.
    pub all: Buf<'a>,
    pub sets: usize,
    /// H.
    pub width: usize,
}

impl<'a> VectorTable<'a> {
    /// Returns the table in a region of `vectors_layout`.
    pub fn new(spec: &TowerSpec, all: Buf<'a>) -> VectorTable<'a> {
        VectorTable { all, sets: spec.sets(), width: spec.out as usize }
    }

    /// Returns n: the vectors that a set has room for.
    pub fn vectors(&self) -> usize {
        self.all.len() / (self.sets * self.width)
    }

    /// Returns a set, [n, H].
    pub fn set(&self, set: usize) -> Buf<'a> {
        self.all.part(set, self.vectors() * self.width)
    }

    /// Returns `count` vectors of a set from vector `first` on.
    pub fn part(&self, set: usize, first: usize, count: usize) -> Buf<'a> {
        self.set(set).slice(first * self.width, count * self.width)
    }
}
