//! PNG. Of 16 bits the higher eight are taken, for greys too, where Pillow's `convert("RGB")` cuts all above 255 off.

use crate::ImageFault;
use crate::colour::{grey_on_white, of_grey, on_white};
use crate::fault::damaged;
use crate::header::{ImageFormat, ImageHeader};
use crate::orientation::orientation;
use crate::pixels::checked_pixels;
use png::{ColorType, Decoder, Reader, Transformations};
use std::io::Cursor;

/// Most bytes that the decoder may take for what is not pixels.
const OTHER_BYTES_MAX: usize = 16 << 20;

pub(super) fn header(bytes: &[u8]) -> Result<ImageHeader, ImageFault> {
    let reader = open(bytes)?;
    let info = reader.info();
    let orientation = info.exif_metadata.as_deref().map_or(1, orientation);
    Ok(ImageHeader { format: ImageFormat::Png, width: info.width, height: info.height, orientation })
}

pub(super) fn rgb(bytes: &[u8]) -> Result<Vec<u8>, ImageFault> {
    let mut reader = open(bytes)?;
    let size = reader.output_buffer_size().ok_or_else(|| damaged("its pixels are too many"))?;
    let mut pixels = vec![0; size];
    let info = reader.next_frame(&mut pixels).map_err(damaged)?;
    pixels.truncate(info.buffer_size());
    Ok(match info.color_type {
        ColorType::Grayscale => of_grey(&pixels),
        ColorType::GrayscaleAlpha => grey_on_white(&pixels),
        ColorType::Rgba => on_white(&pixels),
        ColorType::Rgb | ColorType::Indexed => pixels,
    })
}

/// Reads up to the pixels. Their number is checked first: the decoder takes memory for a row.
fn open(bytes: &[u8]) -> Result<Reader<Cursor<&[u8]>>, ImageFault> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: OTHER_BYTES_MAX });
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let info = decoder.read_header_info().map_err(damaged)?;
    checked_pixels(info.width, info.height)?;
    decoder.read_info().map_err(damaged)
}
