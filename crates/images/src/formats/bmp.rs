//! BMP. A fourth byte is an alpha only where the header has a mask for it.

use crate::ImageFault;
use crate::bytes::{array, u16_le, u32_le};
use crate::colour::{of_grey, on_white};
use crate::fault::{cut, damaged};
use crate::header::{ImageFormat, ImageHeader};
use crate::pixels::checked_pixels;
use zune_bmp::BmpDecoder;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

/// Compressions that pack runs of equal pixels.
const PACKED_8: u32 = 1;
const PACKED_4: u32 = 2;

pub(super) fn header(bytes: &[u8]) -> Result<ImageHeader, ImageFault> {
    let (width, height) = if u32_le(bytes, 14).ok_or_else(cut)? == 12 {
        (u16_le(bytes, 18).map(u32::from), u16_le(bytes, 20).map(u32::from))
    } else {
        let side = |at| array(bytes, at).map(|side| i32::from_le_bytes(side).unsigned_abs());
        (side(18), side(22))
    };
    let (width, height) = width.zip(height).ok_or_else(cut)?;
    checked_pixels(width, height)?;
    check_length(bytes, width, height)?;
    Ok(ImageHeader { format: ImageFormat::Bmp, width, height, orientation: 1 })
}

/// Requires that a file whose pixels are not packed has all of them: the decoder takes zeros for what is missing.
fn check_length(bytes: &[u8], width: u32, height: u32) -> Result<(), ImageFault> {
    let start = u32_le(bytes, 10).ok_or_else(cut)?;
    let is_old = u32_le(bytes, 14) == Some(12);
    let bits = u16_le(bytes, if is_old { 24 } else { 28 }).ok_or_else(cut)?;
    let compression = if is_old { 0 } else { u32_le(bytes, 30).ok_or_else(cut)? };
    if matches!(compression, PACKED_8 | PACKED_4) {
        return Ok(());
    }
    // A row has whole words of 32 bits. The last one's end may be left out.
    let row = u64::from(width) * u64::from(bits);
    let all = row.div_ceil(32).saturating_mul(4).saturating_mul(u64::from(height).saturating_sub(1));
    let end = all.saturating_add(row.div_ceil(8)).saturating_add(u64::from(start));
    if end > bytes.len() as u64 {
        return Err(ImageFault::Damaged(format!(
            "it has {} bytes, and its pixels end at {end}",
            bytes.len()
        )));
    }
    Ok(())
}

pub(super) fn rgb(bytes: &[u8], header: &ImageHeader) -> Result<Vec<u8>, ImageFault> {
    let options = DecoderOptions::new_safe()
        .set_max_width(header.width as usize)
        .set_max_height(header.height as usize);
    let mut decoder = BmpDecoder::new_with_options(ZCursor::new(bytes), options);
    let mut pixels = decoder.decode().map_err(|err| damaged(format!("{err:?}")))?;
    match decoder.colorspace() {
        Some(ColorSpace::RGB) => Ok(pixels),
        Some(ColorSpace::Luma) => Ok(of_grey(&pixels)),
        Some(ColorSpace::RGBA) => {
            if !has_alpha(bytes) {
                pixels.chunks_exact_mut(4).for_each(|pixel| pixel[3] = 255);
            }
            Ok(on_white(&pixels))
        }
        other => Err(damaged(format!("its colours are {other:?}"))),
    }
}

/// Returns true if a header of version 4 or later has a mask for the alpha.
fn has_alpha(bytes: &[u8]) -> bool {
    const BITFIELDS: u32 = 3;
    let [length, compression, mask] = [14, 30, 66].map(|at| u32_le(bytes, at).unwrap_or(0));
    length >= 56 && compression == BITFIELDS && mask != 0
}
