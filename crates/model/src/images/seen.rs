//! What a pass over text needs of images: those that a table has, and where its index arrays go.

use super::{ImageIndex, ImageRegions, Images, TextImage, place_rows};
use crate::activations::Activations;
use crate::pass::{Pass, PassIndex};
use crate::tower::VectorTable;
use plimsoll_arch::SightSpec;
use plimsoll_base::Result;
use plimsoll_device::Device;

/// The images that rows may be vectors of, for the passes of a phase.
#[derive(Clone, Copy, Debug)]
pub struct SeenImages<'m, 'p> {
    pub spec: &'m SightSpec,
    pub regions: ImageRegions<'p>,
    /// What the tower gave.
    pub vectors: VectorTable<'p>,
    /// Where the vectors' gradients are added, if the tower is trained.
    pub d_vectors: Option<VectorTable<'p>>,
    /// The images that the table has, by their first vectors, ascending.
    pub images: &'m [TextImage],
}

impl<'p> SeenImages<'_, 'p> {
    /// Uploads a pass whose places are known. The index's ids become tokens; `taken` is overwritten.
    pub fn upload(
        &self,
        dev: &dyn Device,
        acts: Activations<'p>,
        (index, taken): (&mut PassIndex, &mut ImageIndex),
        vocab: u32,
    ) -> Pass<'p> {
        taken.take(&mut index.ids, self.spec, vocab, self.images);
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
}
