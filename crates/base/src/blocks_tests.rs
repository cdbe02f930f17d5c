//! Each encoding against a second decoder, written the other way round: value by value, from the format's layout.

use super::*;
use half::f16;
use proptest::prelude::*;

const QUANTISED: [Encoding; 8] = [
    Encoding::Q8_0,
    Encoding::Q4_0,
    Encoding::Q4_1,
    Encoding::Q5_0,
    Encoding::Q5_1,
    Encoding::Q4K,
    Encoding::Q5K,
    Encoding::Q6K,
];

fn f16_of(b: &[u8], at: usize) -> f32 {
    f16::from_bits(u16::from(b[at]) | u16::from(b[at + 1]) << 8).to_f32()
}

/// Bit `n` of a little-endian run of bytes.
fn bit(b: &[u8], n: usize) -> u32 {
    u32::from(b[n / 8] >> (n % 8) & 1)
}

/// `width` bits from bit `n` on.
fn bits(b: &[u8], n: usize, width: usize) -> u32 {
    (0..width).map(|i| bit(b, n + i) << i).sum()
}

/// Value `i` of a block, by the layout.
fn value(encoding: Encoding, b: &[u8], i: usize) -> f32 {
    let nibble =
        |at: usize| if i < 16 { bits(&b[at..], i * 8, 4) } else { bits(&b[at..], (i - 16) * 8 + 4, 4) };
    let scales = |at: usize, group: usize| -> (f32, f32) {
        // Twelve bytes: 4 x (6 bits of scale g | 2 high bits of scale g + 4), the same for minima, 4 x low nibbles.
        let s = &b[at..at + 12];
        let (scale, minimum) = match group {
            0..4 => (bits(s, group * 8, 6), bits(s, (group + 4) * 8, 6)),
            _ => (
                bits(s, (group + 4) * 8, 4) | bits(s, (group - 4) * 8 + 6, 2) << 4,
                bits(s, (group + 4) * 8 + 4, 4) | bits(s, group * 8 + 6, 2) << 4,
            ),
        };
        (f16_of(b, 0) * scale as f32, f16_of(b, 2) * minimum as f32)
    };
    let (group, l) = (i / 32, i % 32);
    match encoding {
        Encoding::Q8_0 => f32::from(b[2 + i] as i8) * f16_of(b, 0),
        Encoding::Q4_0 => (nibble(2) as f32 - 8.0) * f16_of(b, 0),
        Encoding::Q4_1 => nibble(4) as f32 * f16_of(b, 0) + f16_of(b, 2),
        Encoding::Q5_0 => ((nibble(6) + 16 * bit(&b[2..], i)) as f32 - 16.0) * f16_of(b, 0),
        Encoding::Q5_1 => (nibble(8) + 16 * bit(&b[4..], i)) as f32 * f16_of(b, 0) + f16_of(b, 2),
        Encoding::Q4K => {
            let q = bits(&b[16..], (group / 2 * 32 + l) * 8 + group % 2 * 4, 4);
            let (scale, minimum) = scales(4, group);
            scale * q as f32 - minimum
        }
        Encoding::Q5K => {
            let q = bits(&b[48..], (group / 2 * 32 + l) * 8 + group % 2 * 4, 4)
                + 16 * bit(&b[16..], l * 8 + group);
            let (scale, minimum) = scales(4, group);
            scale * q as f32 - minimum
        }
        Encoding::Q6K => {
            let (half, quarter) = (i / 128, i % 128 / 32);
            let low = bits(&b[half * 64..], (quarter % 2 * 32 + l) * 8 + quarter / 2 * 4, 4);
            let high = bits(&b[128 + half * 32..], l * 8 + quarter * 2, 2);
            let scale = b[192 + i / 16] as i8;
            f16_of(b, 208) * f32::from(scale) * ((low + 16 * high) as f32 - 32.0)
        }
        Encoding::F32 | Encoding::F16 | Encoding::Bf16 | Encoding::Nf4 | Encoding::Mxfp4 => {
            unreachable!("not in the list")
        }
    }
}

proptest! {
    #[test]
    fn every_block_decodes_by_its_layout(mut bytes in proptest::collection::vec(any::<u8>(), 420), which in 0usize..8) {
        let encoding = QUANTISED[which];
        let (block, values) = (encoding.block_bytes() as usize, encoding.block_values() as usize);
        // Exponents below 2^15: NaN compares with nothing.
        for at in [0, 2, 208] {
            for block_start in [0, block] {
                if block_start + at + 1 < bytes.len() { bytes[block_start + at + 1] &= 0xbf; }
            }
        }
        let mut out = vec![0.0; 2 * values];
        decode(encoding, &bytes[..2 * block], &[], &mut out);
        for (i, &found) in out.iter().enumerate() {
            let expect = value(encoding, &bytes[i / values * block..][..block], i % values);
            prop_assert_eq!(found.to_bits(), expect.to_bits(), "{} value {}: {} {}", encoding.name(), i, found, expect);
        }
    }
}

#[test]
fn numbers_of_four_bits_are_exact_in_bf16_and_a_scale_of_255_is_none() {
    for scale in 0..=u8::MAX {
        let block: Vec<u8> = std::iter::once(scale).chain((0..16).map(|i| i | (15 - i) << 4)).collect();
        let mut out = [0.0; 32];
        decode(Encoding::Mxfp4, &block, &[], &mut out);
        for (i, &x) in out.iter().enumerate() {
            let code = if i % 2 == 0 { i / 2 } else { 15 - i / 2 };
            let (exponent, mantissa) = (code >> 1 & 3, (code & 1) as f64);
            let size = if exponent == 0 {
                mantissa / 2.0
            } else {
                (1.0 + mantissa / 2.0) * 2f64.powi(exponent as i32 - 1)
            };
            let want = size * 2f64.powi(i32::from(scale) - 127) * if code >= 8 { -1.0 } else { 1.0 };
            if scale == 255 {
                assert!(x.is_nan());
            } else if want.abs() < f64::from(f32::MAX) {
                assert_eq!((f64::from(x), x.is_sign_negative()), (want, code >= 8), "{scale} {code}");
                assert_eq!(half::bf16::from_f32(x).to_f32().to_bits(), x.to_bits(), "{scale} {code}");
            }
        }
    }
}

#[test]
fn a_half_is_its_f32() {
    for bits in 0..=u16::MAX {
        let (found, expect) = (half(bits), f16::from_bits(bits).to_f32());
        assert!(found.to_bits() == expect.to_bits() || found.is_nan() && expect.is_nan(), "{bits:#06x}");
    }
}

#[test]
fn an_encoding_has_the_place_of_its_number() {
    assert!(Encoding::ALL.into_iter().enumerate().all(|(number, encoding)| encoding as usize == number));
    for encoding in Encoding::ALL {
        assert!(encoding.gguf_number().is_none_or(|number| Encoding::of_gguf(number) == Some(encoding)));
    }
    assert_eq!(Encoding::of_gguf(4), None);
}
