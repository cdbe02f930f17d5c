//! Decoding: the format by its first bytes, the header with its limits, then the pixels, turned and in RGB.

use crate::fault::BYTES_MAX;
use crate::formats;
use crate::guard::guarded;
use crate::header::{ImageFormat, ImageHeader};
use crate::orientation::turned;
use crate::pixels::checked_pixels;
use crate::{ImageFault, Pixels};

/// Reads the header. A JPEG is walked to its end, which shows if it is cut off.
///
/// Errors: every `ImageFault` but `TooNarrow`.
pub fn header(bytes: &[u8]) -> Result<ImageHeader, ImageFault> {
    if bytes.len() > BYTES_MAX {
        return Err(ImageFault::TooManyBytes { bytes: bytes.len() as u64 });
    }
    let format = ImageFormat::of(bytes)?;
    let header = guarded(|| formats::header(format, bytes))?;
    checked_pixels(header.width, header.height)?;
    Ok(header)
}

/// Decodes an image to RGB: the first frame, turned as EXIF data say, what is transparent on white.
///
/// Errors: every `ImageFault` but `TooNarrow`.
pub fn decode(bytes: &[u8]) -> Result<Pixels, ImageFault> {
    let header = header(bytes)?;
    let rgb = guarded(|| formats::rgb(bytes, &header))?;
    let ImageHeader { width, height, orientation, .. } = header;
    let expected = 3 * checked_pixels(width, height)?;
    if rgb.len() != expected {
        let said = format!("{} bytes of pixels, its header says {expected}", rgb.len());
        return Err(ImageFault::Damaged(said));
    }
    Ok(turned(Pixels { width, height, rgb }, orientation))
}
