//! Images among the rows of a text: which rows are vectors, their places, and what a tower gives for them.
//!
//! A number of a row from V on is not a token: number V + i is vector i of all that a run may name, of which a table
//! has those that are needed. The device's ids have the image's token there, whose embedding the vector replaces; the
//! gradient of such a row goes to the table and not to the embedding. A pass without such rows has none of this, and
//! the operations of a plain text.

mod index;
mod regions;
mod seen;

pub use index::{ImageIndex, TextImage, TextPlaces, place_rows};
pub use regions::{ImageLimits, ImageRegions, images_layout, kept_rows_layout, vectors_layout};
pub use seen::SeenImages;

use crate::tower::VectorTable;
use plimsoll_arch::RopeAxes;
use plimsoll_device::{Axes, Device};
use plimsoll_memory::Buf;

/// Where a pass puts the gradients of vectors, if the tower is trained.
#[derive(Clone, Copy, Debug)]
pub enum VectorGradients<'p> {
    /// They are added to those of a table.
    Added(VectorTable<'p>),
    /// They are kept as rows, [sets, I, H] f32: ranks add those of all passes, in order.
    Kept(Buf<'p>),
}

/// The rows of images in a pass, with their index arrays on the device.
#[derive(Clone, Copy, Debug)]
pub struct Images<'p> {
    /// What the tower gave.
    pub(crate) vectors: VectorTable<'p>,
    /// Where the vectors' gradients go, if the tower is trained.
    pub(crate) d_vectors: Option<VectorGradients<'p>>,
    /// [I] u32: rows of the pass that are vectors, ascending.
    rows: Buf<'p>,
    /// [I] u32: which vector each is.
    which: Buf<'p>,
    /// [I, H] f32: vectors, or gradients, on their way.
    taken: Buf<'p>,
    /// [M, 3] u32.
    places: Buf<'p>,
    axes: RopeAxes,
}

impl<'p> Images<'p> {
    /// Uploads the index arrays of a pass. Panics if they exceed a limit. `places`: [M, 3], those of all rows;
    /// `vectors`: what the tower gave for the images of the pass; `d_vectors`: where their gradients go, if the tower
    /// is trained.
    pub fn upload(
        dev: &dyn Device,
        regions: &ImageRegions<'p>,
        (index, places): (&ImageIndex, &[u32]),
        axes: RopeAxes,
        vectors: VectorTable<'p>,
        d_vectors: Option<VectorGradients<'p>>,
    ) -> Images<'p> {
        let count = index.rows.len();
        assert_eq!(count, index.which.len(), "a vector for each row");
        dev.write_u32(regions.rows, 0, &index.rows);
        dev.write_u32(regions.which, 0, &index.which);
        dev.write_u32(regions.places, 0, places);
        let taken = regions.taken.slice(0, count * vectors.width);
        Images {
            vectors,
            d_vectors,
            rows: regions.rows.slice(0, count),
            which: regions.which.slice(0, count),
            taken,
            places: regions.places.slice(0, places.len()),
            axes,
        }
    }

    /// Returns the places of the first `rows` rows, for rotations.
    pub(crate) fn axes(&self, rows: usize) -> Axes<'p> {
        assert_eq!(self.places.len(), 3 * rows, "a place for each of {rows} rows");
        Axes { places: self.places, of: self.axes }
    }

    /// True if rows of the pass are vectors.
    fn is_any(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Replaces embeddings by vectors; `resid`: [M, H] f32.
    pub(crate) fn put(&self, dev: &dyn Device, resid: Buf<'_>) {
        if self.is_any() {
            dev.gather_rows(self.vectors.set(0), self.which, self.taken);
            dev.replace_rows(self.taken, self.rows, resid);
        }
    }

    /// Returns the set that is added after a layer of the text.
    fn set_of(&self, layer: usize) -> Option<usize> {
        Some(layer + 1).filter(|set| self.is_any() && *set < self.vectors.sets)
    }

    /// Adds the further features that come after layer `layer` to its output, [M, H] f32.
    pub(crate) fn add_after(&self, dev: &dyn Device, layer: usize, resid: Buf<'_>) {
        if let Some(set) = self.set_of(layer) {
            dev.gather_rows(self.vectors.set(set), self.which, self.taken);
            dev.scatter_add_rows(self.taken, self.rows, resid);
        }
    }

    /// Adds the gradient of what came after layer `layer` to that of its vectors; `d`: that of the layer's output.
    pub(crate) fn add_after_backward(&self, dev: &dyn Device, layer: usize, d: Buf<'_>) {
        if let (Some(set), Some(to)) = (self.set_of(layer), self.d_vectors) {
            self.give_back(dev, d, (to, set));
        }
    }

    /// Adds the gradient of rows that are vectors to that of their vectors, and takes it out of `d`, [M, H] f32: the
    /// embedding has none of it.
    pub(crate) fn put_backward(&self, dev: &dyn Device, d: Buf<'_>) {
        if !self.is_any() {
            return;
        }
        if let Some(to) = self.d_vectors {
            self.give_back(dev, d, (to, 0));
        }
        dev.zero(self.taken);
        dev.replace_rows(self.taken, self.rows, d);
    }

    /// Adds rows of gradients to those of vectors, rows ascending, or keeps them.
    fn give_back(&self, dev: &dyn Device, d: Buf<'_>, (to, set): (VectorGradients<'_>, usize)) {
        match to {
            VectorGradients::Added(to) => {
                dev.gather_rows(d, self.rows, self.taken);
                dev.scatter_add_rows(self.taken, self.which, to.set(set));
            }
            VectorGradients::Kept(all) => {
                let kept = kept_rows(all, (set, self.vectors.sets), self.taken.len());
                dev.gather_rows(d, self.rows, kept);
            }
        }
    }

    /// Brings rows of text, one of each sequence, to their next places.
    pub(crate) fn advance(&self, dev: &dyn Device) {
        assert!(!self.is_any(), "rows that are drawn are tokens");
        dev.next_places(self.places);
    }
}

/// Returns the first `elements` that a pass kept of one of `sets` sets.
pub(crate) fn kept_rows(all: Buf<'_>, (set, sets): (usize, usize), elements: usize) -> Buf<'_> {
    all.part(set, all.len() / sets).slice(0, elements)
}
