//! The table of encodings of weights: plain numbers, the blocks of GGUF files, and NF4, and how they are decoded.
//!
//! Each encoding has one decoder, written like the format's description, one block at a time. Its f32 operations and
//! their order are the description's too, so every device that keeps them gives the same bits.

use crate::nf4;

/// Declares the encodings, a row each: values and bytes of a block, whether its scale is in these bytes (`whole`) or
/// lies apart, the number in GGUF files if they have it, and the decoder of a block.
macro_rules! encodings {
    ($($(#[$doc:meta])* $row:ident = $name:literal: $values:literal in $bytes:literal $scale:ident, $gguf:expr, $decode:path;)+) => {
        /// Encoding of a stored tensor: blocks of neighbours in a row. A plain number is a block of one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Encoding {
            $($(#[$doc])* $row,)+
        }

        impl Encoding {
            /// All encodings, in the order of their numbers.
            pub const ALL: [Encoding; [$($name),+].len()] = [$(Encoding::$row),+];

            /// Returns the number of values in one block.
            pub const fn block_values(self) -> u64 {
                match self {
                    $(Encoding::$row => $values,)+
                }
            }

            /// Returns the bytes of one block, without a scale that lies apart.
            pub const fn block_bytes(self) -> u64 {
                match self {
                    $(Encoding::$row => $bytes,)+
                }
            }

            /// Returns whether each block has a scale, an f32, that lies apart from its bytes.
            pub const fn has_scales(self) -> bool {
                match self {
                    $(Encoding::$row => scales!($scale),)+
                }
            }

            /// Returns the number of its type in GGUF files, if they have it.
            pub const fn gguf_number(self) -> Option<u32> {
                match self {
                    $(Encoding::$row => $gguf,)+
                }
            }

            /// Returns the name in messages and plans.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Encoding::$row => $name,)+
                }
            }
        }

        /// Decodes whole blocks: `out` has as many values as the blocks in `bytes` hold. `scales`: one of each block,
        /// if they lie apart, else none.
        // Inlined with what it calls, so that callers compile it for the instructions that they have checked for.
        #[inline(always)]
        pub fn decode(encoding: Encoding, bytes: &[u8], scales: &[f32], out: &mut [f32]) {
            let (block_bytes, block_values) =
                (encoding.block_bytes() as usize, encoding.block_values() as usize);
            debug_assert_eq!(bytes.len() / block_bytes * block_values, out.len());
            debug_assert_eq!(scales.len() * block_values, if encoding.has_scales() { out.len() } else { 0 });
            match encoding {
                $(Encoding::$row => each!($scale, bytes, scales, out, [$bytes, $values], $decode),)+
            }
        }
    };
}

/// True if scales lie apart.
macro_rules! scales {
    (whole) => {
        false
    };
    (apart) => {
        true
    };
}

/// Decodes block by block. A macro, because a function passed as an argument may not be inlined.
macro_rules! each {
    (whole, $bytes:expr, $scales:expr, $out:expr, [$size:literal, $values:literal], $decode:path) => {
        for (b, y) in $bytes.chunks_exact($size).zip($out.chunks_exact_mut($values)) {
            $decode(b, y);
        }
    };
    (apart, $bytes:expr, $scales:expr, $out:expr, [$size:literal, $values:literal], $decode:path) => {
        for ((b, scale), y) in $bytes.chunks_exact($size).zip($scales).zip($out.chunks_exact_mut($values)) {
            $decode(b, *scale, y);
        }
    };
}

encodings! {
    /// IEEE binary32.
    F32 = "f32": 1 in 4 whole, Some(0), f32_plain;
    /// IEEE binary16.
    F16 = "f16": 1 in 2 whole, Some(1), f16_plain;
    /// The upper half of a binary32.
    Bf16 = "bf16": 1 in 2 whole, Some(30), bf16_plain;
    /// 32 values: scale f16, 32 signed bytes.
    Q8_0 = "q8_0": 32 in 34 whole, Some(8), q8_0;
    /// 32 values: scale f16, 32 nibbles less 8.
    Q4_0 = "q4_0": 32 in 18 whole, Some(2), q4_0;
    /// 32 values: scale f16, minimum f16, 32 nibbles.
    Q4_1 = "q4_1": 32 in 20 whole, Some(3), q4_1;
    /// 32 values: scale f16, 32 fifth bits, 32 nibbles, less 16.
    Q5_0 = "q5_0": 32 in 22 whole, Some(6), q5_0;
    /// 32 values: scale f16, minimum f16, 32 fifth bits, 32 nibbles.
    Q5_1 = "q5_1": 32 in 24 whole, Some(7), q5_1;
    /// 256 values in 8 groups, each with a 6-bit scale and minimum, 4 bits a value.
    Q4K = "q4_k": 256 in 144 whole, Some(12), q4_k;
    /// 256 values in 8 groups, each with a 6-bit scale and minimum, 5 bits a value.
    Q5K = "q5_k": 256 in 176 whole, Some(13), q5_k;
    /// 256 values in 16 groups, each with an 8-bit scale, 6 bits a value.
    Q6K = "q6_k": 256 in 210 whole, Some(14), q6_k;
    /// 64 values: 4-bit codes, with a scale apart. Files hold none: weights are rounded to it as they are loaded.
    Nf4 = "nf4": 64 in 32 apart, None, nf4::block;
    /// 32 values: scale 2^(byte - 127), 32 nibbles of a sign and a number of 4 bits: two neighbours in a byte, the
    /// first in the lower half. Files of gpt-oss have them; the block of that name in GGUF files has another order.
    Mxfp4 = "mxfp4": 32 in 17 whole, None, mxfp4;
}

impl Encoding {
    /// Returns the encoding with this number in GGUF files.
    pub fn of_gguf(number: u32) -> Option<Encoding> {
        Encoding::ALL.into_iter().find(|encoding| encoding.gguf_number() == Some(number))
    }

    /// Returns the bytes of a tensor; `None` if the product overflows or the last axis does not fill whole blocks.
    pub fn tensor_bytes(self, shape: &[u64]) -> Option<u64> {
        let row = *shape.last()?;
        let outer = shape[..shape.len() - 1].iter().try_fold(1u64, |n, &d| n.checked_mul(d))?;
        if row % self.block_values() != 0 {
            return None;
        }
        (row / self.block_values()).checked_mul(self.block_bytes())?.checked_mul(outer)
    }
}

#[inline(always)]
fn f32_plain(b: &[u8], y: &mut [f32]) {
    y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
}

#[inline(always)]
fn f16_plain(b: &[u8], y: &mut [f32]) {
    y[0] = half_at(b, 0);
}

#[inline(always)]
fn bf16_plain(b: &[u8], y: &mut [f32]) {
    y[0] = f32::from_le_bytes([0, 0, b[0], b[1]]);
}

#[inline(always)]
fn half_at(bytes: &[u8], at: usize) -> f32 {
    half(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// Returns the value of an IEEE binary16, which f32 holds exactly.
#[inline(always)]
fn half(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let (sign, exponent, mantissa) = ((bits & 0x8000) << 16, bits >> 10 & 31, bits & 0x3ff);
    let size = match exponent {
        // 2^-24 times the mantissa.
        0 => (mantissa as f32 * f32::from_bits((127 - 24) << 23)).to_bits(),
        31 => 0xff << 23 | mantissa << 13,
        _ => (exponent + 127 - 15) << 23 | mantissa << 13,
    };
    f32::from_bits(sign | size)
}

/// The numbers of four bits: sign, two of exponent and one of mantissa (OCP Microscaling Formats, E2M1).
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Returns 2^(byte - 127); NaN of 255.
#[inline(always)]
fn e8m0(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

#[inline(always)]
fn mxfp4(b: &[u8], y: &mut [f32]) {
    let scale = e8m0(b[0]);
    for (pair, q) in y.as_chunks_mut::<2>().0.iter_mut().zip(first::<16, _>(&b[1..])) {
        *pair = [E2M1[usize::from(q & 15)] * scale, E2M1[usize::from(q >> 4)] * scale];
    }
}

#[inline(always)]
fn q8_0(b: &[u8], y: &mut [f32]) {
    let scale = half_at(b, 0);
    // A loop as short and simple as this one is unrolled before it becomes vectors, if the compiler knows its length.
    let len = std::hint::black_box(32);
    for (y, &q) in y[..len].iter_mut().zip(&b[2..2 + len]) {
        *y = f32::from(q as i8) * scale;
    }
}

/// Decodes nibbles with the bits above them: low ones are values 0 to 15 of a block, high ones 16 to 31.
#[inline(always)]
fn nibbles(qs: &[u8], above: impl Fn(usize) -> u32, y: &mut [f32], value: impl Fn(f32) -> f32) {
    let twice = [*first::<16, _>(qs); 2];
    for (i, (y, q)) in y.as_chunks_mut::<32>().0[0].iter_mut().zip(twice.as_flattened()).enumerate() {
        *y = value(number(u32::from(*q) >> (i / 16 * 4) & 15 | above(i)));
    }
}

/// Returns the first `N` elements: arrays of known length become vectors.
#[inline(always)]
fn first<const N: usize, T>(of: &[T]) -> &[T; N] {
    of.first_chunk().expect("a whole block")
}

/// Returns a small number: a conversion of signed numbers is one instruction everywhere.
#[inline(always)]
fn number(code: u32) -> f32 {
    code as i32 as f32
}

#[inline(always)]
fn q4_0(b: &[u8], y: &mut [f32]) {
    let scale = half_at(b, 0);
    nibbles(&b[2..], |_| 0, y, |q| (q - 8.0) * scale);
}

#[inline(always)]
fn q4_1(b: &[u8], y: &mut [f32]) {
    let (scale, minimum) = (half_at(b, 0), half_at(b, 2));
    nibbles(&b[4..], |_| 0, y, |q| q * scale + minimum);
}

/// Returns the fifth bits of a block's values in their places.
#[inline(always)]
fn fifths(bits: &[u8]) -> impl Fn(usize) -> u32 {
    let bits = u32::from_le_bytes(*first(bits));
    move |i| (bits >> i & 1) << 4
}

#[inline(always)]
fn q5_0(b: &[u8], y: &mut [f32]) {
    let scale = half_at(b, 0);
    nibbles(&b[6..], fifths(&b[2..]), y, |q| (q - 16.0) * scale);
}

#[inline(always)]
fn q5_1(b: &[u8], y: &mut [f32]) {
    let (scale, minimum) = (half_at(b, 0), half_at(b, 2));
    nibbles(&b[8..], fifths(&b[4..]), y, |q| q * scale + minimum);
}

/// Reads scale and minimum of group `j` of 8: twelve bytes hold sixteen 6-bit numbers.
#[inline(always)]
fn scale_and_minimum(s: &[u8], j: usize) -> (f32, f32) {
    let (scale, minimum) = if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        ((s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4)
    };
    (f32::from(scale), f32::from(minimum))
}

/// Decodes Q4_K and Q5_K: 32 bytes hold groups 2p (low nibbles) and 2p + 1 (high nibbles).
#[inline(always)]
fn k_groups(b: &[u8], qs: &[u8], y: &mut [f32], high: impl Fn(usize, usize) -> u32) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    let (pairs, groups) = (qs.as_chunks::<32>().0, y.as_chunks_mut::<32>().0);
    for (group, y) in groups.iter_mut().enumerate() {
        let (scale, minimum) = scale_and_minimum(&b[4..16], group);
        let (scale, minimum) = (d * scale, dmin * minimum);
        let (pair, shift) = (&pairs[group / 2], group % 2 * 4);
        for (l, (y, q)) in y.iter_mut().zip(pair).enumerate() {
            *y = scale * number(u32::from(q >> shift & 15) | high(group, l)) - minimum;
        }
    }
}

#[inline(always)]
fn q4_k(b: &[u8], y: &mut [f32]) {
    k_groups(b, &b[16..144], y, |_, _| 0);
}

#[inline(always)]
fn q5_k(b: &[u8], y: &mut [f32]) {
    let fifths: &[u8; 32] = b[16..48].as_chunks().0.first().expect("32 bytes");
    k_groups(b, &b[48..176], y, |group, l| (u32::from(fifths[l]) >> group & 1) << 4);
}

#[inline(always)]
fn q6_k(b: &[u8], y: &mut [f32]) {
    let (ql, qh, scales, d) =
        (first::<128, _>(b), first::<64, _>(&b[128..]), first::<16, _>(&b[192..]), half_at(b, 208));
    // A half of the block has 64 low bytes and 32 high ones; its quarter p takes bits 2p of the high bytes.
    for (half, y) in y.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        for (p, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (ql, qh) = (first::<32, _>(&ql[half * 64 + p % 2 * 32..]), first::<32, _>(&qh[half * 32..]));
            let scales = [0, 1].map(|l| d * f32::from(scales[half * 8 + p * 2 + l] as i8));
            for (i, (y, (&low, &high))) in y.iter_mut().zip(ql.iter().zip(qh)).enumerate() {
                let code = u32::from(low) >> (p / 2 * 4) & 15 | (u32::from(high) >> (p * 2) & 3) << 4;
                *y = scales[i / 16] * (number(code) - 32.0);
            }
        }
    }
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
