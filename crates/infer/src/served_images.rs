//! The images of a server: what its plan must know, and the tower that its engine's thread runs between two passes.

use crate::album::Album;
use crate::image_table::ImageTable;
use plimsoll_base::Result;
use plimsoll_device::Device;
use plimsoll_images::{Marks, Prepared};
use plimsoll_memory::InPhase;
use plimsoll_plan::SightShape;
use plimsoll_serve::{ImageHosts, ImageTower, ServedImages};
use std::sync::Arc;

/// The tower of a server, in the phase that samples.
pub(crate) struct ServedTower<'r, 'p, 'a> {
    pub(crate) dev: &'r dyn Device,
    pub(crate) phase: &'r InPhase<'p>,
    pub(crate) images: &'r mut ImageTable<'a>,
}

impl ImageTower for ServedTower<'_, '_, '_> {
    fn see(&mut self, image: &Prepared, first: u32) -> Result<()> {
        self.images.see_one(self.dev, self.phase, image, first as usize)
    }
}

/// Returns how a server takes images, and what its plan must know: room for `images` of the largest size, which come
/// in requests or from `hosts`. An image is at most as long as a prompt.
pub(crate) fn served_images(
    album: &Album,
    (images, hosts): (usize, &Arc<ImageHosts>),
    prompt_tokens: usize,
) -> (ServedImages, SightShape) {
    let (sight, processor) = (album.sight, album.processor);
    let of_pixels = processor.pixels_max / u64::from(processor.factor()).pow(2);
    let largest = prompt_tokens.min(of_pixels as usize).max(1);
    let [start, end] = sight.around;
    let served = ServedImages {
        processor,
        marks: Marks { start, pad: sight.image_token, end },
        images_max: images,
        image_vectors_max: largest,
        vectors: images * largest,
        hosts: hosts.clone(),
    };
    let (patches, side) =
        (largest * sight.tower.rows_per_vector() as usize, largest * sight.tower.merge as usize);
    // The server decodes on a thread of its own, and holds pixels: their bytes are among those of clients.
    let shape = SightShape {
        spec: sight,
        patches,
        side,
        vectors: served.vectors,
        answers: 0,
        episode_answers: 0,
        pixels: 0,
        file: 0,
        trains: false,
        teacher: None,
        ahead: false,
    };
    (served, shape)
}
