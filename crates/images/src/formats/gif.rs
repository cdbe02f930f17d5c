//! GIF: the first frame on the screen that the header declares. What it does not cover is white.

use crate::ImageFault;
use crate::bytes::u16_le;
use crate::fault::{cut, damaged};
use crate::header::{ImageFormat, ImageHeader};
use crate::pixels::checked_pixels;
use gif::{ColorOutput, DecodeOptions, MemoryLimit};
use std::num::NonZeroU64;

/// Most bytes that the decoder takes for a frame, which is as large as it says.
const FRAME_BYTES_MAX: NonZeroU64 = NonZeroU64::new(crate::PIXELS_MAX).expect("a number above 0");

pub(super) fn header(bytes: &[u8]) -> Result<ImageHeader, ImageFault> {
    let side = |at| u16_le(bytes, at).map(u32::from).ok_or_else(cut);
    Ok(ImageHeader { format: ImageFormat::Gif, width: side(6)?, height: side(8)?, orientation: 1 })
}

pub(super) fn rgb(bytes: &[u8], header: &ImageHeader) -> Result<Vec<u8>, ImageFault> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    options.set_memory_limit(MemoryLimit::Bytes(FRAME_BYTES_MAX));
    let mut decoder = options.read_info(bytes).map_err(damaged)?;
    let global = decoder.global_palette().map(<[u8]>::to_vec);
    let frame = decoder.next_frame_info().map_err(damaged)?.ok_or_else(|| damaged("it has no frame"))?;
    let frame = frame.clone();
    let mut indices = vec![0; checked_pixels(frame.width.into(), frame.height.into())?];
    decoder.read_into_buffer(&mut indices).map_err(damaged)?;
    let palette = frame.palette.or(global).ok_or_else(|| damaged("it has no palette"))?;
    let [width, height, left, top, frame_width] = [
        header.width as usize,
        header.height as usize,
        frame.left.into(),
        frame.top.into(),
        frame.width.into(),
    ];
    let mut rgb = vec![255; 3 * width * height];
    for (y, row) in indices.chunks_exact(frame_width).enumerate().take(height.saturating_sub(top)) {
        let start = 3 * ((top + y) * width + left.min(width));
        let pixels = rgb[start..3 * (top + y + 1) * width].chunks_exact_mut(3);
        for (pixel, &index) in pixels.zip(row).filter(|(_, index)| Some(**index) != frame.transparent) {
            let colour = palette.get(3 * usize::from(index)..3 * usize::from(index) + 3);
            pixel.copy_from_slice(colour.unwrap_or(&[0; 3]));
        }
    }
    Ok(rgb)
}
