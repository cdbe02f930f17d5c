//! The orientation that a camera writes into EXIF data, and turning pixels by it.

use crate::Pixels;
use crate::bytes::{array, u16_be, u16_le, u32_be, u32_le};

const ORIENTATION: u16 = 0x0112;
/// Most entries of the first directory that are looked at.
const ENTRIES_MAX: u16 = 512;

/// Returns the orientation in EXIF data, from 1 to 8; 1 if there is none.
pub(crate) fn orientation(exif: &[u8]) -> u8 {
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    found(tiff).filter(|value| (1..=8).contains(value)).unwrap_or(1)
}

fn found(tiff: &[u8]) -> Option<u8> {
    let is_big = match &array::<4>(tiff, 0)? {
        b"II*\0" => false,
        b"MM\0*" => true,
        _ => return None,
    };
    let short = |at| if is_big { u16_be(tiff, at) } else { u16_le(tiff, at) };
    let long = if is_big { u32_be(tiff, 4) } else { u32_le(tiff, 4) };
    let directory = usize::try_from(long?).ok()?;
    let entries = short(directory)?.min(ENTRIES_MAX);
    (0..usize::from(entries)).find_map(|i| {
        let at = directory.checked_add(2 + 12 * i)?;
        (short(at)? == ORIENTATION).then(|| short(at + 8)).flatten()?.try_into().ok()
    })
}

/// Turns pixels as the orientation says, so that the top is above.
pub(crate) fn turned(image: Pixels, orientation: u8) -> Pixels {
    let (width, height) = (image.width as usize, image.height as usize);
    // The pixel of the given image that comes to (row, column).
    let source: fn(usize, usize, usize, usize) -> (usize, usize) = match orientation {
        2 => |y, x, _, w| (y, w - 1 - x),
        3 => |y, x, h, w| (h - 1 - y, w - 1 - x),
        4 => |y, x, h, _| (h - 1 - y, x),
        5 => |y, x, _, _| (x, y),
        6 => |y, x, h, _| (h - 1 - x, y),
        7 => |y, x, h, w| (h - 1 - x, w - 1 - y),
        8 => |y, x, _, w| (x, w - 1 - y),
        _ => return image,
    };
    let (rows, columns) = if orientation < 5 { (height, width) } else { (width, height) };
    let mut rgb = Vec::with_capacity(image.rgb.len());
    for y in 0..rows {
        for x in 0..columns {
            let (row, column) = source(y, x, height, width);
            let at = 3 * (row * width + column);
            rgb.extend_from_slice(&image.rgb[at..at + 3]);
        }
    }
    Pixels { width: columns as u32, height: rows as u32, rgb }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_orientation_brings_the_corners_where_pillow_has_them() {
        // Pixels 0 1 2 above 3 4 5; the result as rows, as `PIL.ImageOps.exif_transpose` gives it.
        let expected: [(u8, &[&[u8]]); 8] = [
            (1, &[&[0, 1, 2], &[3, 4, 5]]),
            (2, &[&[2, 1, 0], &[5, 4, 3]]),
            (3, &[&[5, 4, 3], &[2, 1, 0]]),
            (4, &[&[3, 4, 5], &[0, 1, 2]]),
            (5, &[&[0, 3], &[1, 4], &[2, 5]]),
            (6, &[&[3, 0], &[4, 1], &[5, 2]]),
            (7, &[&[5, 2], &[4, 1], &[3, 0]]),
            (8, &[&[2, 5], &[1, 4], &[0, 3]]),
        ];
        for (orientation, rows) in expected {
            let image = Pixels { width: 3, height: 2, rgb: (0..6).flat_map(|n| [n; 3]).collect() };
            let rgb: Vec<u8> = rows.concat().iter().flat_map(|&n| [n; 3]).collect();
            let (width, height) = (rows[0].len() as u32, rows.len() as u32);
            assert_eq!(turned(image, orientation), Pixels { width, height, rgb }, "{orientation}");
        }
    }

    #[test]
    fn exif_that_is_cut_or_no_exif_says_nothing() {
        let exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
        assert_eq!(orientation(exif), 6);
        for end in 0..22 {
            assert_eq!(orientation(&exif[..end]), 1, "{end}");
        }
        assert_eq!(orientation(b"II*\0\xff\xff\xff\xff"), 1);
    }
}
