//! One image from bytes to the pixels that a run keeps.

use crate::decode::{decode, header};
use crate::{ImageFault, PatchGrid, Pixels, Processor, Size, resize, smart_size};

/// An image as the tower sees it, before the numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// The pixels after resizing: 3 MiB a megapixel.
    pub pixels: Pixels,
    /// Its patches.
    pub grid: PatchGrid,
    /// Its tokens in a prompt.
    pub tokens: usize,
}

impl Processor {
    /// Returns the size after resizing, the patches and the tokens of an image of this size.
    ///
    /// Errors: `TooNarrow`.
    pub fn size_of(&self, from: Size) -> Result<(Size, PatchGrid, usize), ImageFault> {
        let size = smart_size(from, self.factor(), self.pixels_min, self.pixels_max)?;
        let grid = PatchGrid { frames: 1, height: size.height / self.patch, width: size.width / self.patch };
        Ok((size, grid, grid.tokens(self.merge)))
    }
}

/// Decodes and resizes an image. All limits but those of the compressed data are checked before it is decoded.
///
/// Errors: every `ImageFault`.
pub fn prepare(bytes: &[u8], processor: &Processor) -> Result<Prepared, ImageFault> {
    let (size, grid, tokens) = processor.size_of(header(bytes)?.size())?;
    let decoded = decode(bytes)?;
    Ok(Prepared { pixels: resize(&decoded, size.width, size.height), grid, tokens })
}
