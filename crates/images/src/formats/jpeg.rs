//! JPEG, decoded by zune-jpeg without its code for one processor, so that all machines have the same bits. The colours
//! are converted here, as libjpeg and Pillow do.

use super::jpeg_walk::walk;
use crate::ImageFault;
use crate::colour::{of_grey, of_inks, of_luma};
use crate::fault::damaged;
use crate::header::{ImageFormat, ImageHeader};
use crate::orientation::orientation;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

pub(super) fn header(bytes: &[u8]) -> Result<ImageHeader, ImageFault> {
    let walked = walk(bytes)?;
    let [width, height] = [walked.width, walked.height].map(u32::from);
    Ok(ImageHeader { format: ImageFormat::Jpeg, width, height, orientation: orientation(walked.exif) })
}

pub(super) fn rgb(bytes: &[u8], header: &ImageHeader) -> Result<Vec<u8>, ImageFault> {
    let options = DecoderOptions::new_safe()
        .set_max_width(header.width as usize)
        .set_max_height(header.height as usize);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|err| damaged(err.to_string()))?;
    let stored = decoder.input_colorspace().ok_or_else(|| damaged("it has no colours"))?;
    decoder.set_options(options.jpeg_set_out_colorspace(stored));
    let mut bytes = decoder.decode().map_err(|err| damaged(err.to_string()))?;
    match stored {
        ColorSpace::Luma => Ok(of_grey(&bytes)),
        ColorSpace::RGB => Ok(bytes),
        ColorSpace::YCbCr => {
            of_luma::<3>(&mut bytes, false);
            Ok(bytes)
        }
        ColorSpace::CMYK => Ok(of_inks(&bytes)),
        ColorSpace::YCCK => {
            of_luma::<4>(&mut bytes, true);
            Ok(of_inks(&bytes))
        }
        other => Err(damaged(format!("its colours are {other:?}"))),
    }
}
