//! The images of a prompt as its rewards and lines of samples have them.

use crate::album::{Album, RowImage};
use crate::responses::{KEPT_IMAGES_MAX, KeptImage};
use crate::text::Item;
use plimsoll_base::Result;
use plimsoll_images::Thumbnail;
use plimsoll_reward::SampleImage;
use std::sync::Arc;

pub use plimsoll_images::THUMBNAIL_BYTES_MAX;

/// Returns a prompt's images for its rewards: the whole path of a file, or the content that the row holds. Nothing is
/// decoded.
pub fn sample_images(item: &Item) -> Arc<[SampleImage]> {
    item.images.iter().map(|image| image.file.clone()).collect()
}

/// Returns a prompt's images as lines of samples name them. `write`: writes the file of a small copy, by its name.
///
/// Errors: those of reading and decoding; those of `write`.
pub fn kept_images(
    images: &[Arc<RowImage>],
    album: &Album,
    write: &mut dyn FnMut(&str, &[u8]) -> Result<()>,
) -> Result<Vec<KeptImage>> {
    let images = images.iter().take(KEPT_IMAGES_MAX);
    images
        .map(|image| {
            let prepared = image.prepare(&album.processor)?;
            let Thumbnail { file, png } = Thumbnail::of(&prepared.pixels);
            write(&file, &png)?;
            let size = [prepared.pixels.width, prepared.pixels.height];
            Ok(KeptImage::new(image.name.as_deref(), size, image.tokens, Some(file)))
        })
        .collect()
}
