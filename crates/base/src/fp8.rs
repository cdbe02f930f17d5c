//! Numbers of eight bits in blocks that share a power of two: four bits of exponent and three of mantissa (OCP E4M3).
//!
//! A code is a sign, an exponent E and a mantissa M: (8 + M) 2^(E - 10), or M 2^-9 where E is 0. There is no infinity;
//! E and M of ones are NaN, so the largest is 448. As scales are powers of two, bf16 holds every rounded number, and a
//! device without such arithmetic computes the same products with it.

/// Neighbours along a row that share a scale; of weights, as many rows of them do.
pub const FP8_BLOCK: usize = 128;
/// Rows of weights and of inputs are whole units of 16 numbers, as cards copy them.
pub const FP8_UNIT: usize = 16;
/// The largest number.
const LARGEST: u8 = 0x7e;
const NAN: u8 = 0x7f;
/// Bits of an f32's mantissa below those of a code.
const CUT: u32 = 20;
/// Least f32 above which a code has a whole mantissa: 2^-6.
const NORMAL: f32 = 1.0 / 64.0;

/// Returns the scale of a block: the least power of two under which its largest number is at most 448; 1 of a block of
/// zeros, or with a number that is not finite. `largest`: the f32 bits of the largest absolute value.
#[inline(always)]
pub fn scale_of(largest: u32) -> f32 {
    let (exponent, is_above) = (largest >> 23, u32::from(largest & 0x7f_ffff > 0x60_0000));
    let scale = if largest == 0 || exponent == 255 { 127 } else { (exponent + is_above).max(9) - 8 };
    f32::from_bits(scale << 23)
}

/// Returns the code of the nearest number, ties to even. `x`: scaled to 448 at most; NaN otherwise.
#[inline(always)]
pub fn encode(x: f32) -> u8 {
    let (size, sign) = (x.abs(), (x.to_bits() >> 24 & 0x80) as u8);
    let code = if size < NORMAL {
        (size * 512.0).round_ties_even() as u8
    } else {
        let bits = size.to_bits();
        let rounded = bits.wrapping_add((1 << (CUT - 1)) - 1 + (bits >> CUT & 1));
        ((rounded >> CUT).wrapping_sub(120 << 3)).min(u32::from(LARGEST)) as u8
    };
    sign | if size <= 448.0 { code } else { NAN }
}

/// Returns the number of a code.
#[inline(always)]
pub fn decode(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> 3 & 15), u32::from(code & 7));
    let size = match exponent {
        15 if mantissa == 7 => f32::NAN,
        0 => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | mantissa << CUT),
    };
    if code & 0x80 == 0 { size } else { -size }
}

/// Returns the number that `x` becomes in a block with this scale of finite numbers.
#[inline(always)]
pub fn rounded(x: f32, scale: f32) -> f32 {
    decode(encode(x * f32::from_bits((254 << 23) - scale.to_bits()))) * scale
}

/// Replaces the numbers of a block by those of their codes. With one that is not finite, all become NaN.
pub fn round_block(block: &mut [f32]) {
    let largest = largest(block);
    if largest >= f32::INFINITY.to_bits() {
        return block.fill(f32::NAN);
    }
    let scale = scale_of(largest);
    block.iter_mut().for_each(|x| *x = rounded(*x, scale));
}

/// Returns the f32 bits of the largest absolute value; of NaN, if there is one.
#[inline(always)]
pub fn largest(x: &[f32]) -> u32 {
    x.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_code_and_what_lies_between_goes_to_the_nearest() {
        let numbers: Vec<f32> = (0..=LARGEST).map(decode).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "codes ascend");
        assert_eq!((numbers[1], numbers[8], numbers[126]), (1.0 / 512.0, 1.0 / 64.0, 448.0));
        for (code, pair) in numbers.windows(2).enumerate() {
            let (low, high, half) = (code as u8, code as u8 + 1, (pair[0] + pair[1]) / 2.0);
            assert_eq!([encode(pair[0]), encode(-pair[0])], [low, low | 0x80]);
            let even = if low % 2 == 0 { low } else { high };
            assert_eq!([encode(half.next_down()), encode(half), encode(half.next_up())], [low, even, high]);
        }
        assert!(decode(encode(f32::NAN)).is_nan() && decode(encode(449.0)).is_nan());
    }

    #[test]
    fn a_scale_is_the_least_power_of_two_that_holds_the_block() {
        // Above 1.875 2^127 the nearest number is infinite.
        for bits in (1u32..0x7f70_0000).step_by(77_777) {
            let (x, scale) = (f32::from_bits(bits), scale_of(bits));
            assert!(x / scale <= 448.0, "{x:e}");
            assert!(scale == f32::MIN_POSITIVE || x / (scale / 2.0) > 448.0, "{x:e} under {scale:e}");
            let error = (rounded(x, scale) - x).abs();
            assert!(error <= x / 16.0 || x < 1e-35, "{x:e}: {error:e}");
        }
        assert_eq!((scale_of(0), scale_of(f32::NAN.to_bits())), (1.0, 1.0));
    }

    #[test]
    fn bf16_holds_rounded_numbers_and_rounding_again_changes_nothing() {
        let mut block: Vec<f32> = (0..FP8_BLOCK).map(|i| (i as f32 - 60.0) * 0.037).collect();
        round_block(&mut block);
        assert!(block.iter().all(|x| x.to_bits() & 0xffff == 0));
        let mut again = block.clone();
        round_block(&mut again);
        assert_eq!(again, block);
        block[7] = f32::INFINITY;
        round_block(&mut block);
        assert!(block.iter().all(|x| x.is_nan()));
    }
}
