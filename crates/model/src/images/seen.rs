//! What a pass over text needs of images: those that a table has, and where its index arrays go.

use super::{ImageIndex, ImageRegions, Images, TextImage, VectorGradients, kept_rows, place_rows};
use crate::activations::Activations;
use crate::pass::{Pass, PassIndex};
use crate::tower::VectorTable;
use plimsoll_arch::SightSpec;
use plimsoll_base::Result;
use plimsoll_device::Device;
use plimsoll_memory::Buf;

/// The images that rows may be vectors of, for the passes of a phase.
#[derive(Clone, Copy, Debug)]
pub struct SeenImages<'m, 'p> {
    pub spec: &'m SightSpec,
    pub regions: ImageRegions<'p>,
    /// What the tower gave.
    pub vectors: VectorTable<'p>,
    /// Where the vectors' gradients go, if the tower is trained.
    pub d_vectors: Option<VectorGradients<'p>>,
    /// The images that the table has, by their first vectors, ascending.
    pub images: &'m [TextImage],
}

impl<'p> SeenImages<'_, 'p> {
    /// Uploads a pass whose places are known. The index's ids become tokens; `taken` is overwritten. A row before an
    /// image predicts nothing that is learnt: its target becomes some token.
    pub fn upload(
        &self,
        dev: &dyn Device,
        acts: Activations<'p>,
        (index, taken): (&mut PassIndex, &mut ImageIndex),
        vocab: u32,
    ) -> Pass<'p> {
        taken.take(&mut index.ids, self.spec, vocab, self.images);
        index.targets.iter_mut().filter(|target| **target >= vocab).for_each(|target| *target = 0);
        let of = (&*taken, &*index.places);
        let images = Images::upload(dev, &self.regions, of, self.spec.axes, self.vectors, self.d_vectors);
        Pass::upload(dev, acts, index).with_images(images)
    }

    /// Uploads a pass over whole texts, or beginnings with what goes on from them; writes their places. The index's ids
    /// become tokens.
    ///
    /// Errors: `image-rows-incomplete`.
    pub fn upload_texts(
        &self,
        dev: &dyn Device,
        acts: Activations<'p>,
        index: &mut PassIndex,
        vocab: u32,
    ) -> Result<Pass<'p>> {
        index.places.clear();
        place_rows((&index.ids, &index.segments), vocab, self.images, &mut index.places)?;
        let mut taken = ImageIndex::default();
        Ok(self.upload(dev, acts, (index, &mut taken), vocab))
    }

    /// Returns which vector each row of a pass is that is one, ascending by rows. The index's ids become tokens.
    pub fn which(&self, index: &mut PassIndex, vocab: u32) -> Vec<u32> {
        let mut taken = ImageIndex::default();
        taken.take(&mut index.ids, self.spec, vocab, self.images);
        taken.which
    }

    /// Returns the number of sets of vectors.
    pub fn sets(&self) -> usize {
        self.vectors.sets
    }

    /// Returns the rows of a set that a pass with `count` rows of images kept; none where rows are not kept.
    pub fn kept(&self, set: usize, count: usize) -> Option<Buf<'p>> {
        let Some(VectorGradients::Kept(all)) = self.d_vectors else { return None };
        Some(kept_rows(all, (set, self.sets()), count * self.vectors.width))
    }

    /// Returns memory for kept rows of another rank, [count, H] f32; a pass's own are not read from it then.
    pub fn landing(&self, count: usize) -> Buf<'p> {
        self.regions.taken.slice(0, count * self.vectors.width)
    }

    /// Adds rows that a pass kept to the gradients of vectors, in their order; `which`: the vector of each.
    pub fn add_kept(&self, dev: &dyn Device, rows: Buf<'_>, which: &[u32], to: Buf<'_>) {
        dev.write_u32(self.regions.which, 0, which);
        dev.scatter_add_rows(rows, self.regions.which.slice(0, which.len()), to);
    }
}
