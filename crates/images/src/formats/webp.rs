//! WebP. Its frames have sizes of their own, which are compared with the header's before a decoder believes them.

use crate::ImageFault;
use crate::bytes::{array, u16_le, u32_le};
use crate::colour::on_white;
use crate::fault::{cut, damaged};
use crate::header::{ImageFormat, ImageHeader};
use crate::orientation::orientation;
use image_webp::WebPDecoder;
use std::io::Cursor;

/// Most bytes that the decoder may take for what is not pixels, such as profiles.
const OTHER_BYTES_MAX: usize = 16 << 20;
/// Most chunks of a file; each frame of an animation is one.
const CHUNKS_MAX: usize = 1 << 16;

pub(super) fn header(bytes: &[u8]) -> Result<ImageHeader, ImageFault> {
    let mut decoder = open(bytes)?;
    let (width, height) = decoder.dimensions();
    let exif = decoder.exif_metadata().map_err(damaged)?;
    let orientation = exif.map_or(1, |exif| orientation(&exif));
    Ok(ImageHeader { format: ImageFormat::Webp, width, height, orientation })
}

pub(super) fn rgb(bytes: &[u8], header: &ImageHeader) -> Result<Vec<u8>, ImageFault> {
    check_frames(bytes.get(12..).ok_or_else(cut)?, header, true)?;
    let mut decoder = open(bytes)?;
    let size = decoder.output_buffer_size().ok_or_else(|| damaged("its pixels are too many"))?;
    let mut pixels = vec![0; size];
    decoder.read_image(&mut pixels).map_err(damaged)?;
    Ok(if decoder.has_alpha() { on_white(&pixels) } else { pixels })
}

fn open(bytes: &[u8]) -> Result<WebPDecoder<Cursor<&[u8]>>, ImageFault> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(damaged)?;
    decoder.set_memory_limit(OTHER_BYTES_MAX);
    Ok(decoder)
}

/// Requires that no frame is larger than the header says. Frames of an animation hold chunks themselves.
fn check_frames(mut chunks: &[u8], header: &ImageHeader, has_frames: bool) -> Result<(), ImageFault> {
    for _ in 0..CHUNKS_MAX {
        let (Some(name), Some(length)) = (array::<4>(chunks, 0), u32_le(chunks, 4)) else { return Ok(()) };
        let length = length as usize;
        let body = &chunks[8..length.saturating_add(8).min(chunks.len())];
        let size = match &name {
            b"VP8 " => {
                u16_le(body, 6).zip(u16_le(body, 8)).map(|(w, h)| [w & 0x3fff, h & 0x3fff].map(u32::from))
            }
            b"VP8L" => u32_le(body, 1).map(|bits| [1 + (bits & 0x3fff), 1 + (bits >> 14 & 0x3fff)]),
            b"ANMF" if has_frames => {
                check_frames(body.get(16..).ok_or_else(cut)?, header, false)?;
                None
            }
            _ => None,
        };
        if let Some([width, height]) =
            size.filter(|[width, height]| *width > header.width || *height > header.height)
        {
            let ImageHeader { width: most, height: rows, .. } = header;
            return Err(damaged(format!(
                "a frame of {width} x {height} pixels in an image of {most} x {rows}"
            )));
        }
        // Chunks are padded to an even length.
        chunks = chunks.get(8 + length.next_multiple_of(2)..).unwrap_or_default();
    }
    Err(damaged(format!("it has more than {CHUNKS_MAX} chunks")))
}
