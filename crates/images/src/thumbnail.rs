//! Small copies of images for people, as PNG: what `plimsoll watch` shows next to a sample.

use crate::{Pixels, resize};

/// Longest side of a small copy, in pixels.
pub const THUMBNAIL_SIDE_MAX: u32 = 192;
/// Longest file of one: 192 x 192 pixels of 3 bytes that cannot be packed, and 2 % for the format.
pub const THUMBNAIL_BYTES_MAX: usize = 113 << 10;

/// The small copy of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thumbnail {
    /// The name of its file, which follows from the pixels: an image has one file, however often it is drawn.
    pub file: String,
    /// The file.
    pub png: Vec<u8>,
}

impl Thumbnail {
    /// Makes the small copy of pixels; smaller images keep their size.
    pub fn of(pixels: &Pixels) -> Thumbnail {
        let Pixels { width, height, .. } = *pixels;
        let longest = width.max(height).max(1);
        let side = |side: u32| {
            let scaled = u64::from(side) * u64::from(THUMBNAIL_SIDE_MAX) / u64::from(longest);
            if longest > THUMBNAIL_SIDE_MAX { (scaled as u32).max(1) } else { side }
        };
        let small = resize(pixels, side(width), side(height));
        Thumbnail { file: format!("image-{:016x}.png", hash(pixels)), png: png_of(&small) }
    }
}

/// Returns true for the name of a small copy.
pub fn is_thumbnail(file: &str) -> bool {
    let digits = file.strip_prefix("image-").and_then(|rest| rest.strip_suffix(".png"));
    digits.is_some_and(|digits| {
        digits.len() == 16
            && digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
}

/// Returns 64 bits of the size and the pixels (FNV-1a).
fn hash(pixels: &Pixels) -> u64 {
    let size = [pixels.width, pixels.height].map(u32::to_le_bytes);
    let bytes = size.iter().flatten().chain(&pixels.rgb);
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

fn png_of(pixels: &Pixels) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, pixels.width, pixels.height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(&pixels.rgb)?;
        writer.finish()
    });
    written.expect("memory takes every byte, and the pixels are as many as the header says");
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode;

    #[test]
    fn a_small_copy_is_bounded_and_an_image_has_one() {
        let noise = |width: u32, height: u32| {
            let mut state = 1u32;
            let byte = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            Pixels { width, height, rgb: (0..3 * width * height).map(byte).collect() }
        };
        for (width, height, expect) in
            [(192, 192, (192, 192)), (400, 300, (192, 144)), (3, 900, (1, 192)), (8, 5, (8, 5))]
        {
            let made = Thumbnail::of(&noise(width, height));
            let read = decode(&made.png).unwrap();
            assert_eq!((read.width, read.height), expect);
            assert!(made.png.len() <= THUMBNAIL_BYTES_MAX && is_thumbnail(&made.file), "{}", made.png.len());
            assert_eq!(made, Thumbnail::of(&noise(width, height)));
        }
        assert_eq!(decode(&Thumbnail::of(&noise(8, 5)).png).unwrap(), noise(8, 5));
        assert_ne!(Thumbnail::of(&noise(8, 5)).file, Thumbnail::of(&noise(5, 8)).file);
        for name in
            ["../image-0123456789abcdef.png", "image-0123456789abcdeg.png", "image-.png", "step-1.jsonl"]
        {
            assert!(!is_thumbnail(name), "{name}");
        }
    }
}
