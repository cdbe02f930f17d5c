//! Images of chats: what a request may bring, where their vectors are, and who computes them.
//!
//! An image comes in the request itself, or is fetched from a host that the server's user named (`hosts`); nothing else
//! is. `given` reads its bytes and counts its tokens where the body is read, and `decoding` makes pixels of it on a
//! thread of its own. `vectors` deals out the table of vectors, which is as large as planned, and `seeing` runs the
//! tower between two passes of the engine, one image at a time.

mod decoding;
mod given;
mod hosts;
mod seeing;
mod vectors;

pub use decoding::{ImageDoor, QueuedImages};
pub use given::{GivenImage, GivenImages, image_text_bytes, numbered, read_part};
pub use hosts::ImageHosts;
pub use seeing::ImageTower;
pub(crate) use seeing::Seeing;
pub use vectors::HeldVectors;

use hosts::FETCHED_BYTES;
use plimsoll_images::{Marks, Processor};
use std::sync::Arc;

/// Bytes of images in a body, as text: base64 has four for three. Photographs of phones have 2 to 5 MiB.
pub const IMAGE_TEXT_BYTES: usize = 12 << 20;
/// Most pixels of an image before it is resized, 17 million, and the bytes that decoding one takes for each.
pub const SENT_PIXELS_MAX: u64 = 1 << 24;
const DECODING_BYTES_PER_PIXEL: usize = 15;
/// Copies of the images of a body while it is read: the body, its values and the bytes.
const READING_COPIES: usize = 3;
/// Bodies with images that are held while they come, and requests whose images wait to be decoded.
pub const BODIES_HELD: usize = 2;

/// Says how a model takes images, and how many of them are held at one time.
#[derive(Clone, Debug)]
pub struct ServedImages {
    pub processor: Processor,
    pub marks: Marks,
    /// Images of a request.
    pub images_max: usize,
    /// Vectors of the largest image.
    pub image_vectors_max: usize,
    /// Vectors of all images that are held.
    pub vectors: usize,
    /// The hosts from which images may be fetched.
    pub hosts: Arc<ImageHosts>,
}

impl ServedImages {
    /// Returns what a server holds of images besides the table: their text and bytes, one that is decoded, and the
    /// pixels of all that wait for the tower. `readers`: bodies that are read at one time.
    pub fn host_bytes(&self, readers: usize) -> usize {
        // What is fetched grows by doubling.
        let fetched = if self.hosts.is_empty() { 0 } else { 2 * readers * FETCHED_BYTES };
        let texts = readers * READING_COPIES + 2 * BODIES_HELD;
        let side = self.processor.factor() as usize;
        let pixels = self.vectors.saturating_mul(3 * side * side);
        (texts * IMAGE_TEXT_BYTES + SENT_PIXELS_MAX as usize * DECODING_BYTES_PER_PIXEL)
            .saturating_add(fetched)
            .saturating_add(pixels)
    }
}
