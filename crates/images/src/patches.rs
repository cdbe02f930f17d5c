//! The rows that a vision tower reads: a patch of pixels each, in the order in which four neighbours become a token.

use crate::{Pixels, Processor};

/// The patches of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchGrid {
    /// Patches in time: 1, an image does not move.
    pub frames: u32,
    /// Rows of patches.
    pub height: u32,
    /// Patches of a row.
    pub width: u32,
}

impl PatchGrid {
    /// Returns the number of patches.
    pub fn patches(&self) -> usize {
        self.frames as usize * self.height as usize * self.width as usize
    }

    /// Returns the number of tokens, of `merge` times `merge` patches each.
    pub fn tokens(&self, merge: u32) -> usize {
        self.patches() / (merge as usize * merge as usize)
    }
}

/// What writes patches: each byte's number by colour, computed once.
#[derive(Clone, Debug)]
pub struct PatchRows {
    processor: Processor,
    /// [3, 256] f32.
    numbers: Vec<[f32; 256]>,
}

impl PatchRows {
    /// Computes the numbers as transformers does with numpy: a byte times the factor in 64 bits, rounded to 32, less
    /// the mean, divided by the deviation.
    pub fn new(processor: Processor) -> PatchRows {
        let of = |colour: usize| {
            std::array::from_fn(|byte| {
                let scaled = (byte as f64 * processor.scale) as f32;
                (scaled - processor.mean[colour]) / processor.std[colour]
            })
        };
        PatchRows { processor, numbers: (0..3).map(of).collect() }
    }

    /// Returns the number of values of a patch: 3 colours, each frame, each pixel.
    pub fn row_len(&self) -> usize {
        3 * self.processor.frames as usize * (self.processor.patch as usize).pow(2)
    }

    /// Writes the patches of an image whose sides are multiples of the processor's factor.
    ///
    /// `rows`: [patches, 3, frames, patch, patch]. Blocks of `merge` times `merge` patches follow one another from the
    /// left and from the top, and so do the patches in a block.
    pub fn write(&self, image: &Pixels, rows: &mut [f32]) {
        let Processor { patch, merge, frames, .. } = self.processor;
        let [patch, merge, frames] = [patch, merge, frames].map(|n| n as usize);
        let (height, width) = (image.height as usize / patch, image.width as usize / patch);
        assert_eq!((image.height as usize % (patch * merge), image.width as usize % (patch * merge)), (0, 0));
        assert_eq!(rows.len(), height * width * self.row_len(), "rows of {height} x {width} patches");
        let mut rows = rows.chunks_exact_mut(self.row_len());
        for block in 0..height / merge * (width / merge) {
            let (top, left) = (block / (width / merge) * merge, block % (width / merge) * merge);
            for inside in 0..merge * merge {
                let (y, x) = (top + inside / merge, left + inside % merge);
                let row = rows.next().expect("a row for each patch");
                for (colour, planes) in row.chunks_exact_mut(frames * patch * patch).enumerate() {
                    let (first, others) = planes.split_at_mut(patch * patch);
                    for (i, line) in first.chunks_exact_mut(patch).enumerate() {
                        let at = 3 * ((y * patch + i) * image.width as usize + x * patch);
                        let bytes = image.rgb[at..at + 3 * patch].chunks_exact(3);
                        for (value, pixel) in line.iter_mut().zip(bytes) {
                            *value = self.numbers[colour][usize::from(pixel[colour])];
                        }
                    }
                    others.chunks_exact_mut(patch * patch).for_each(|plane| plane.copy_from_slice(first));
                }
            }
        }
    }
}
