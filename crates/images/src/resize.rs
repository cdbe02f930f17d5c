//! Resizing as Pillow's `Image.resize(size, BICUBIC)` does, to the bit: two passes, each of which rounds to bytes.
//!
//! The filter is widened when an image gets smaller, so that each pixel counts. Weights have 22 bits of fraction.

use crate::Pixels;

/// Bits of a weight's fraction: 32, but 8 for the pixel and 2 for weights above 1 and the sign.
const FRACTION_BITS: u32 = 32 - 8 - 2;
/// Pixels on each side that the filter reads when an image does not get smaller.
const SUPPORT: f64 = 2.0;

/// Returns the image with this many columns and rows, which are at least 1.
pub fn resize(image: &Pixels, width: u32, height: u32) -> Pixels {
    assert!(width > 0 && height > 0, "an image of {width} x {height} pixels");
    let is_down_first = is_down_first(image, width, height);
    let first = if is_down_first { down(image, height) } else { across(image, width) };
    let between = first.as_ref().unwrap_or(image);
    let second = if is_down_first { across(between, width) } else { down(between, height) };
    second.or(first).unwrap_or_else(|| image.clone())
}

/// Tells if the columns are resized first. Each pass rounds, so the order moves bits. Pillow 13 begins with them where
/// that takes more than twice as many rows away as columns; Pillow 12 never does.
fn is_down_first(image: &Pixels, width: u32, height: u32) -> bool {
    let [rows, columns] =
        [(image.height, height), (image.width, width)].map(|(from, to)| i64::from(from) - i64::from(to));
    rows > 0 && rows > 2 * columns
}

/// Resizes rows, unless they keep their length.
fn across(image: &Pixels, width: u32) -> Option<Pixels> {
    let taps = (width != image.width).then(|| Taps::new(image.width, width))?;
    let rgb = rows_of(&image.rgb, image.width as usize, &taps);
    Some(Pixels { width, height: image.height, rgb })
}

/// Resizes columns, unless they keep their length.
fn down(image: &Pixels, height: u32) -> Option<Pixels> {
    let taps = (height != image.height).then(|| Taps::new(image.height, height))?;
    let rgb = columns_of(&image.rgb, 3 * image.width as usize, &taps);
    Some(Pixels { width: image.width, height, rgb })
}

/// The weights of one pass.
struct Taps {
    /// The first pixel that each result reads, and how many.
    spans: Vec<(usize, usize)>,
    /// `most` weights for each result.
    weights: Vec<i32>,
    most: usize,
}

impl Taps {
    fn new(from: u32, to: u32) -> Taps {
        let scale = f64::from(from) / f64::from(to);
        let widened = scale.max(1.0);
        let support = SUPPORT * widened;
        let most = support.ceil() as usize * 2 + 1;
        let (mut spans, mut weights) = (Vec::with_capacity(to as usize), vec![0; to as usize * most]);
        let mut exact = vec![0.0; most];
        for (index, weights) in weights.chunks_exact_mut(most).enumerate() {
            let center = (index as f64 + 0.5) * scale;
            let first = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(from as usize);
            let exact = &mut exact[..end - first];
            let mut sum = 0.0;
            for (i, weight) in exact.iter_mut().enumerate() {
                *weight = bicubic(((i + first) as f64 - center + 0.5) * (1.0 / widened));
                sum += *weight;
            }
            for (weight, exact) in weights.iter_mut().zip(exact.iter()) {
                let share = if sum == 0.0 { *exact } else { exact / sum };
                let scaled = share * f64::from(1u32 << FRACTION_BITS);
                *weight = if share < 0.0 { scaled - 0.5 } else { scaled + 0.5 } as i32;
            }
            spans.push((first, end - first));
        }
        Taps { spans, weights, most }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let weights = self.weights.chunks_exact(self.most);
        self.spans.iter().zip(weights).map(|(&(first, count), weights)| (first, &weights[..count]))
    }
}

/// The cubic filter with a = -0.5.
fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// Returns a sum of weighted pixels as a byte. Sums begin with half a byte, which rounds.
fn byte(sum: i32) -> u8 {
    (sum >> FRACTION_BITS).clamp(0, 255) as u8
}

const HALF: i32 = 1 << (FRACTION_BITS - 1);

/// Resizes rows of `width` pixels.
fn rows_of(rgb: &[u8], width: usize, taps: &Taps) -> Vec<u8> {
    let mut out = vec![0; rgb.len() / width * taps.spans.len()];
    for (row, out) in rgb.chunks_exact(3 * width).zip(out.chunks_exact_mut(3 * taps.spans.len())) {
        for ((first, weights), out) in taps.iter().zip(out.chunks_exact_mut(3)) {
            let mut sums = [HALF; 3];
            for (pixel, &weight) in row[3 * first..].chunks_exact(3).zip(weights) {
                for (sum, &byte) in sums.iter_mut().zip(pixel) {
                    *sum = sum.wrapping_add(i32::from(byte).wrapping_mul(weight));
                }
            }
            out.copy_from_slice(&sums.map(byte));
        }
    }
    out
}

/// Resizes columns. Rows have `row_bytes` bytes, each of which is summed with those above and below it.
fn columns_of(rgb: &[u8], row_bytes: usize, taps: &Taps) -> Vec<u8> {
    let mut out = vec![0; row_bytes * taps.spans.len()];
    let mut sums = vec![0i32; row_bytes];
    for ((first, weights), out) in taps.iter().zip(out.chunks_exact_mut(row_bytes)) {
        sums.fill(HALF);
        for (row, &weight) in rgb[row_bytes * first..].chunks_exact(row_bytes).zip(weights) {
            for (sum, &byte) in sums.iter_mut().zip(row) {
                *sum = sum.wrapping_add(i32::from(byte).wrapping_mul(weight));
            }
        }
        for (out, &sum) in out.iter_mut().zip(&sums) {
            *out = byte(sum);
        }
    }
    out
}
