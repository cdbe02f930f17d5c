//! Products of numbers of eight bits; `plimsoll_base::fp8` defines the numbers.
//!
//! y = Q(x) Q(W)^T, with blocks of 128 neighbours of a row of x, and of 128 x 128 of W, each with its scale. The order
//! of a sum is that of every product, with one addition for each 128 inputs where a device multiplies codes. A gradient
//! passes through the rounding as if it were not there: dx = Q(dy) Q(W).

use crate::{Layouts, matrix_elements};
use plimsoll_base::DType;
pub use plimsoll_base::fp8::{FP8_BLOCK, FP8_UNIT};
use plimsoll_memory::Buf;

/// Maximum inputs and outputs of a product: the steps for which a card's kernel has room.
pub const FP8_WIDTH_MAX: usize = 508 * FP8_BLOCK;

/// A matrix of weights `[n, k]` that is rounded. n and k are multiples of `FP8_UNIT`.
#[derive(Clone, Copy, Debug)]
pub struct Fp8<'a> {
    /// Codes [n, k] where the device multiplies them (`Layouts::multiplies_fp8`), else numbers as weights lie.
    pub codes: Buf<'a>,
    /// [n / 128, k / 128] f32 next to codes: rows of whole fours.
    pub scales: Option<Buf<'a>>,
    pub n: usize,
    pub k: usize,
}

/// Memory that a product of rounded numbers writes first.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Room<'a> {
    /// The rounded inputs: codes, or numbers e.
    pub rows: Buf<'a>,
    /// Scales of the inputs' codes: `fp8_row_scales` f32.
    pub scales: Option<Buf<'a>>,
    /// For gradients of inputs, where codes are multiplied: `fp8_turned` bytes.
    pub turned: Option<Buf<'a>>,
}

/// Rounded weights, and the memory of a product with them.
#[derive(Clone, Copy, Debug)]
pub struct Rounded<'a> {
    pub w: Fp8<'a>,
    pub room: Fp8Room<'a>,
}

/// Returns the elements of `Fp8::codes` and of `Fp8::scales`.
pub fn fp8_elements(kind: &Layouts, n: u64, k: u64, weights: DType) -> (u64, u64) {
    if kind.multiplies_fp8 {
        (n * k, n.div_ceil(FP8_BLOCK as u64) * fp8_pitch(k))
    } else {
        (matrix_elements(kind, n, k, weights), 0)
    }
}

/// Returns the dtype of `Fp8::codes` and of `Fp8Room::rows`.
pub fn fp8_dtype(kind: &Layouts, weights: DType) -> DType {
    if kind.multiplies_fp8 { DType::U8 } else { weights }
}

/// Returns the scales of a row of blocks of weights.
pub const fn fp8_pitch(k: u64) -> u64 {
    k.div_ceil(FP8_BLOCK as u64).next_multiple_of(4)
}

/// Returns the scales of `rows` rows of `width` inputs. Those of a block's column lie side by side; rows that are no
/// whole tile or no whole four take more.
pub const fn fp8_row_scales(rows: u64, width: u64) -> u64 {
    (rows.next_multiple_of(FP8_BLOCK as u64) + 8) * width.div_ceil(FP8_BLOCK as u64)
}

/// Returns the bytes of the transpose of codes `[n, k]` and of its scales.
pub const fn fp8_turned(n: u64, k: u64) -> u64 {
    n * k + 4 * k.div_ceil(FP8_BLOCK as u64) * fp8_pitch(n)
}

impl<'a> Fp8<'a> {
    /// Returns a matrix over buffers of exactly the right lengths.
    pub fn new(
        kind: &Layouts,
        weights: DType,
        (codes, scales): (Buf<'a>, Option<Buf<'a>>),
        n: usize,
        k: usize,
    ) -> Fp8<'a> {
        let found = (codes.len() as u64, scales.map_or(0, |scales| scales.len() as u64));
        assert_eq!(found, fp8_elements(kind, n as u64, k as u64, weights), "codes and scales of [{n}, {k}]");
        assert_eq!(codes.dtype(), fp8_dtype(kind, weights), "codes of [{n}, {k}]");
        assert!(n.is_multiple_of(FP8_UNIT) && k.is_multiple_of(FP8_UNIT), "[{n}, {k}] of whole units");
        Fp8 { codes, scales, n, k }
    }
}
