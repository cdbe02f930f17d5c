//! Pixels in memory.

use crate::ImageFault;
use crate::fault::PIXELS_MAX;

/// An image: rows from the top, pixels from the left, three bytes each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// [height, width, 3] u8: red, green, blue.
    pub rgb: Vec<u8>,
}

/// Returns the number of pixels, if there is one and they are not too many.
pub(crate) fn checked_pixels(width: u32, height: u32) -> Result<usize, ImageFault> {
    let pixels = u64::from(width) * u64::from(height);
    if pixels == 0 {
        return Err(ImageFault::Damaged(format!("its header says {width} x {height} pixels")));
    }
    if pixels > PIXELS_MAX {
        return Err(ImageFault::TooManyPixels { width, height });
    }
    Ok(pixels as usize)
}
