//! Images as data: bytes that are not trusted to pixels (u8, RGB), resized as Pillow does, to patches of a tower.
//!
//! An image is decoded once; what a run keeps and reads again are the pixels after resizing. Every size is compared
//! with its limit before it is allocated. Files, URLs, models and devices are not reached from here.

#![warn(missing_docs)]

mod bytes;
mod colour;
mod decode;
mod fault;
mod formats;
mod guard;
mod header;
mod orientation;
mod patches;
mod pixels;
mod placeholders;
mod prepare;
mod processor;
mod resize;
mod size;
mod tally;
mod thumbnail;

pub use decode::{decode, header};
pub use fault::{BYTES_MAX, ImageFault, PIXELS_MAX, RATIO_MAX, SCANS_MAX};
pub use guard::panic_becomes_an_error;
pub use header::{ImageFormat, ImageHeader};
pub use patches::{PatchGrid, PatchRows};
pub use pixels::Pixels;
pub use placeholders::{Expanded, FAMILIES, Marks, PLACEHOLDER, expand, expand_text};
pub use prepare::{Prepared, prepare};
pub use processor::Processor;
pub use resize::resize;
pub use size::{Size, smart_size};
pub use tally::ImageTally;
pub use thumbnail::{THUMBNAIL_BYTES_MAX, THUMBNAIL_SIDE_MAX, Thumbnail, is_thumbnail};
