//! 8-bit floating-point codes for AdamW's moments, with a power-of-two scale for each block.
//!
//! A code is (sign,) exponent E and mantissa M of three bits: (8 + M) 2^(E-1) scales, or M scales where E is 0: gradual
//! underflow. There is no infinity and no NaN. The scale is the least power of two under which the block's largest
//! number does not exceed the largest code, 15 2^14 or 15 2^30 scales, and at least 2^-126. So every number has at most
//! four significant bits and an exponent of f32, and bf16 holds it exactly. A value is exact under each smaller scale
//! that holds the block, so a number that does not change is stored as it was, whatever its block does.

pub use plimsoll_base::DType;
pub use plimsoll_base::fp8::largest;
use plimsoll_memory::Buf;

/// Elements that share a scale: 1.016 bytes a number.
pub const CODE_BLOCK: usize = 256;
/// Bits of an f32's mantissa below those of a code.
const CUT: u32 = 20;
/// One half: as `random` (16 bits) of `Code::encode` it rounds to the nearest.
pub const NEAREST: u32 = 1 << 15;

#[derive(Clone, Copy, Debug)]
pub struct Coded<'a> {
    /// [n] e4m3 or e5m3.
    pub codes: Buf<'a>,
    /// [n / CODE_BLOCK, rounded up] f32, powers of two; 0 of a block that was never written.
    pub scales: Buf<'a>,
}

impl<'a> Coded<'a> {
    /// Returns `len` elements from `start`, the first of a block.
    pub fn slice(self, start: usize, len: usize) -> Coded<'a> {
        assert_eq!(start % CODE_BLOCK, 0, "a part of codes starts at a block");
        let scales = self.scales.slice(start / CODE_BLOCK, len.div_ceil(CODE_BLOCK));
        Coded { codes: self.codes.slice(start, len), scales }
    }

    pub fn check(&self) {
        let (n, scales) = (self.codes.len(), self.scales.len());
        assert_eq!(
            (scales, self.scales.dtype()),
            (n.div_ceil(CODE_BLOCK), DType::F32),
            "scales of {n} codes"
        );
    }
}

pub trait Code: Copy + Default {
    /// The sign bit; 0 without one.
    const SIGN: u32;
    /// The largest exponent E.
    const EXPONENT_MAX: u32;

    fn of_bits(bits: u8) -> Self;
    fn bits(self) -> u8;

    /// Returns the code's value under `scale`.
    #[inline(always)]
    fn decode(self, scale: f32) -> f32 {
        let bits = u32::from(self.bits());
        let (exponent, mantissa) = (bits >> 3 & Self::EXPONENT_MAX, bits & 7);
        let normal = u32::from(exponent > 0);
        let power = f32::from_bits((exponent - normal + 127) << 23);
        let size = (mantissa | normal << 3) as f32 * power * scale;
        f32::from_bits(size.to_bits() | (bits & Self::SIGN) << 24)
    }

    /// Returns the code of `x` under a scale of `scale_of`. Rounds up with the probability of what is cut off, by the
    /// low 16 bits of `random`. A second moment above zero never becomes zero, because it divides.
    #[inline(always)]
    fn encode(x: f32, scale: f32, random: u32) -> Self {
        let largest = f32::from_bits((Self::EXPONENT_MAX - 1 + 127) << 23) * 15.0;
        let inverse = f32::from_bits((254 << 23) - scale.to_bits());
        let size = (x.abs() * inverse).min(largest);
        // Below 8 a step is 1: adding 8 puts these numbers where three bits of mantissa are cut at 1.
        let low = size < 8.0;
        let shifted = size + if low { 8.0 } else { 0.0 };
        let first = if low { 130 } else { 129 } << 3;
        let code = ((shifted.to_bits() + ((random & 0xffff) << (CUT - 16))) >> CUT) - first;
        let code = if Self::SIGN == 0 { code.max(u32::from(x > 0.0)) } else { code };
        Self::of_bits((code | x.to_bits() >> 24 & Self::SIGN) as u8)
    }

    /// Returns the scale of a block; `largest` has the f32 bits of its largest absolute value.
    #[inline(always)]
    fn scale_of(largest: u32) -> f32 {
        // Rounded up to three bits of mantissa, so that rounding up within the block stays within the codes.
        let exponent = ((largest + ((1 << CUT) - 1)) >> 23).min(254);
        let steps = Self::EXPONENT_MAX + 2;
        f32::from_bits((exponent.max(steps + 1) - steps) << 23)
    }
}

/// A signed code, for first moments.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct E4M3(u8);

/// A code without a sign, for second moments.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct E5M3(u8);

impl Code for E4M3 {
    const SIGN: u32 = 0x80;
    const EXPONENT_MAX: u32 = 15;
    fn of_bits(bits: u8) -> E4M3 {
        E4M3(bits)
    }
    fn bits(self) -> u8 {
        self.0
    }
}

impl Code for E5M3 {
    const SIGN: u32 = 0;
    const EXPONENT_MAX: u32 = 31;
    fn of_bits(bits: u8) -> E5M3 {
        E5M3(bits)
    }
    fn bits(self) -> u8 {
        self.0
    }
}

/// Widens elements of a block-aligned array from element `start` on.
pub fn decode_from<C: Code>(codes: &[C], scales: &[f32], start: usize, out: &mut [f32]) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = codes[i].decode(scales[(start + i) / CODE_BLOCK - start / CODE_BLOCK]);
    }
}

/// Rounds whole blocks to the nearest codes.
pub fn encode_blocks<C: Code>(x: &[f32], codes: &mut [C], scales: &mut [f32]) {
    let blocks = x.chunks(CODE_BLOCK).zip(codes.chunks_mut(CODE_BLOCK));
    for ((x, codes), scale) in blocks.zip(scales) {
        *scale = C::scale_of(largest(x));
        for (code, &x) in codes.iter_mut().zip(x) {
            *code = C::encode(x, *scale, NEAREST);
        }
    }
}

/// Runs an expression with `C` as the type of a buffer of codes.
#[macro_export]
macro_rules! by_code {
    ($buf:expr, $C:ident => $e:expr) => {
        match $buf.dtype() {
            $crate::codes::DType::E4M3 => {
                type $C = $crate::codes::E4M3;
                $e
            }
            $crate::codes::DType::E5M3 => {
                type $C = $crate::codes::E5M3;
                $e
            }
            other => panic!("a buffer of {} where codes belong", other.name()),
        }
    };
}
pub use by_code;

#[cfg(test)]
mod tests {
    use super::*;

    /// All codes under all scales, those of neighbours too.
    fn check<C: Code>(codes: u32) {
        let steps = C::EXPONENT_MAX + 2;
        for exponent in 1..=254 - steps {
            let scale = f32::from_bits(exponent << 23);
            for bits in 0..codes {
                let x = C::of_bits(bits as u8).decode(scale);
                assert!(x.is_finite());
                assert_eq!(
                    half::bf16::from_f32(x).to_f32().to_bits(),
                    x.to_bits(),
                    "{bits} of 2^{exponent} in bf16"
                );
                for random in [0, NEAREST, 0xffff] {
                    assert_eq!(u32::from(C::encode(x, scale, random).bits()), bits, "{x:e} of 2^{exponent}");
                }
                let smallest = C::scale_of(x.to_bits() & 0x7fff_ffff);
                assert!(smallest <= scale, "{x:e}: {smallest:e} of {scale:e}");
                let again = C::encode(x, smallest, 0).decode(smallest);
                assert_eq!(again.to_bits(), x.to_bits(), "under its own scale");
            }
        }
    }

    #[test]
    fn a_code_is_what_its_number_becomes_whatever_the_random_number_and_bf16_holds_it() {
        check::<E4M3>(256);
        check::<E5M3>(256);
    }

    #[test]
    fn the_largest_of_a_block_rounds_within_the_codes() {
        for bits in (1u32..0x7f80_0000).step_by(99_991) {
            let x = f32::from_bits(bits);
            let (m, v) = (E4M3::scale_of(bits), E5M3::scale_of(bits));
            for random in [0, NEAREST, 0xffff] {
                let (m, v) = (E4M3::encode(-x, m, random).decode(m), E5M3::encode(x, v, random).decode(v));
                // Half a step where the scale is not held up by the smallest f32, nor the number by the largest.
                let near = |y: f32| (y / x - 1.0).abs() <= 0.125 || !(1e-36..=3e38).contains(&x);
                assert!(near(-m) && near(v), "{x:e}: {m:e} {v:e}");
                assert!(v > 0.0, "{x:e} became zero");
            }
        }
        let tiny = E5M3::encode(f32::MIN_POSITIVE, E5M3::scale_of(1.0f32.to_bits()), 0);
        assert_eq!(tiny.bits(), 1, "a second moment above zero stays so");
        assert_eq!(E5M3::encode(0.0, 1.0, 0xffff).bits(), 0);
    }
}
