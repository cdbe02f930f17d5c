//! The formats that are read, a file each. Crates decode them; what is checked before is here.

mod bmp;
mod gif;
mod jpeg;
mod jpeg_walk;
mod png;
mod webp;

use crate::ImageFault;
use crate::header::{ImageFormat, ImageHeader};

/// Reads the header of a file.
pub(crate) fn header(format: ImageFormat, bytes: &[u8]) -> Result<ImageHeader, ImageFault> {
    match format {
        ImageFormat::Jpeg => jpeg::header(bytes),
        ImageFormat::Png => png::header(bytes),
        ImageFormat::Gif => gif::header(bytes),
        ImageFormat::Webp => webp::header(bytes),
        ImageFormat::Bmp => bmp::header(bytes),
    }
}

/// Decodes the pixels as they are stored, [height, width, 3] u8.
pub(crate) fn rgb(bytes: &[u8], header: &ImageHeader) -> Result<Vec<u8>, ImageFault> {
    match header.format {
        ImageFormat::Jpeg => jpeg::rgb(bytes, header),
        ImageFormat::Png => png::rgb(bytes),
        ImageFormat::Gif => gif::rgb(bytes, header),
        ImageFormat::Webp => webp::rgb(bytes, header),
        ImageFormat::Bmp => bmp::rgb(bytes, header),
    }
}
