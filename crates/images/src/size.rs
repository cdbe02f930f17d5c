//! The size to which a model's processor resizes an image: multiples of a factor, within an area.

use crate::fault::{ImageFault, RATIO_MAX};

/// The sides of an image in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows.
    pub height: u32,
    /// Pixels of a row.
    pub width: u32,
}

/// Returns the size after resizing, as transformers' `smart_resize` does: each side a multiple of `factor`, rounded
/// half to even, and the area between two numbers of pixels where the sides allow it.
///
/// Errors: `TooNarrow`.
pub fn smart_size(from: Size, factor: u32, pixels_min: u64, pixels_max: u64) -> Result<Size, ImageFault> {
    let Size { height, width } = from;
    let (long, short) = (height.max(width), height.min(width));
    if f64::from(long) / f64::from(short) > f64::from(RATIO_MAX) {
        return Err(ImageFault::TooNarrow { width, height });
    }
    // The arithmetic is Python's: true division in 64 bits, and in this order.
    let [h, w, f] = [height, width, factor].map(f64::from);
    let area = h * w;
    let rounded = [h, w].map(|side| (side / f).round_ties_even() * f);
    let sides = if rounded[0] * rounded[1] > pixels_max as f64 {
        let beta = (area / pixels_max as f64).sqrt();
        [h, w].map(|side| ((side / beta / f).floor() * f).max(f))
    } else if rounded[0] * rounded[1] < pixels_min as f64 {
        let beta = (pixels_min as f64 / area).sqrt();
        [h, w].map(|side| (side * beta / f).ceil() * f)
    } else {
        rounded
    };
    let [height, width] = sides.map(|side| side as u32);
    Ok(Size { height, width })
}
