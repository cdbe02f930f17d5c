//! Stored blocks to f32. One function per encoding, written as the format's description has it, one block at a time.

use crate::tensors::Encoding;
use half::{bf16, f16};

/// Decodes whole blocks: `out` has as many values as the blocks in `bytes` hold.
pub(crate) fn decode(encoding: Encoding, bytes: &[u8], out: &mut [f32]) {
    let (block_bytes, block_values) = (encoding.block_bytes() as usize, encoding.block_values() as usize);
    debug_assert_eq!(bytes.len() / block_bytes * block_values, out.len());
    match encoding {
        Encoding::F32 => each(bytes, out, 4, 1, |b, y| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        Encoding::F16 => each(bytes, out, 2, 1, |b, y| y[0] = half_at(b, 0)),
        Encoding::Bf16 => each(bytes, out, 2, 1, |b, y| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32()),
        Encoding::Q8_0 => each(bytes, out, block_bytes, block_values, q8_0),
        Encoding::Q4_0 => each(bytes, out, block_bytes, block_values, q4_0),
        Encoding::Q4_1 => each(bytes, out, block_bytes, block_values, q4_1),
        Encoding::Q5_0 => each(bytes, out, block_bytes, block_values, q5_0),
        Encoding::Q5_1 => each(bytes, out, block_bytes, block_values, q5_1),
        Encoding::Q4K => each(bytes, out, block_bytes, block_values, q4_k),
        Encoding::Q5K => each(bytes, out, block_bytes, block_values, q5_k),
        Encoding::Q6K => each(bytes, out, block_bytes, block_values, q6_k),
    }
}

fn each(
    bytes: &[u8],
    out: &mut [f32],
    block_bytes: usize,
    block_values: usize,
    f: impl Fn(&[u8], &mut [f32]),
) {
    for (block, values) in bytes.chunks_exact(block_bytes).zip(out.chunks_exact_mut(block_values)) {
        f(block, values);
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn q8_0(b: &[u8], y: &mut [f32]) {
    let scale = half_at(b, 0);
    for (y, &q) in y.iter_mut().zip(&b[2..34]) {
        *y = f32::from(q as i8) * scale;
    }
}

/// Low nibbles are values 0 to 15 of a block, high nibbles 16 to 31.
fn nibbles(qs: &[u8], y: &mut [f32], value: impl Fn(u8, usize) -> f32) {
    for (i, &q) in qs.iter().enumerate() {
        y[i] = value(q & 15, i);
        y[i + 16] = value(q >> 4, i + 16);
    }
}

fn q4_0(b: &[u8], y: &mut [f32]) {
    let scale = half_at(b, 0);
    nibbles(&b[2..18], y, |q, _| (f32::from(q) - 8.0) * scale);
}

fn q4_1(b: &[u8], y: &mut [f32]) {
    let (scale, minimum) = (half_at(b, 0), half_at(b, 2));
    nibbles(&b[4..20], y, |q, _| f32::from(q) * scale + minimum);
}

/// The fifth bit of value `i`.
fn fifth(b: &[u8], at: usize, i: usize) -> u8 {
    (b[at + i / 8] >> (i % 8) & 1) << 4
}

fn q5_0(b: &[u8], y: &mut [f32]) {
    let scale = half_at(b, 0);
    nibbles(&b[6..22], y, |q, i| (f32::from(q | fifth(b, 2, i)) - 16.0) * scale);
}

fn q5_1(b: &[u8], y: &mut [f32]) {
    let (scale, minimum) = (half_at(b, 0), half_at(b, 2));
    nibbles(&b[8..24], y, |q, i| f32::from(q | fifth(b, 4, i)) * scale + minimum);
}

/// Scale and minimum of group `j` of 8: twelve bytes hold sixteen 6-bit numbers.
fn scale_and_minimum(s: &[u8], j: usize) -> (f32, f32) {
    let (scale, minimum) = if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        ((s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4)
    };
    (f32::from(scale), f32::from(minimum))
}

/// Shared by Q4_K and Q5_K: 32 bytes hold groups 2p (low nibbles) and 2p + 1 (high nibbles).
fn k_groups(b: &[u8], qs: &[u8], y: &mut [f32], high: impl Fn(usize, usize) -> u8) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    for group in 0..8 {
        let (scale, minimum) = scale_and_minimum(&b[4..16], group);
        let (scale, minimum) = (d * scale, dmin * minimum);
        for l in 0..32 {
            let q = qs[group / 2 * 32 + l] >> (group % 2 * 4) & 15;
            y[group * 32 + l] = scale * f32::from(q | high(group, l)) - minimum;
        }
    }
}

fn q4_k(b: &[u8], y: &mut [f32]) {
    k_groups(b, &b[16..144], y, |_, _| 0);
}

fn q5_k(b: &[u8], y: &mut [f32]) {
    k_groups(b, &b[48..176], y, |group, l| (b[16 + l] >> group & 1) << 4);
}

fn q6_k(b: &[u8], y: &mut [f32]) {
    let (ql, qh, scales, d) = (&b[..128], &b[128..192], &b[192..208], half_at(b, 208));
    for (i, y) in y.iter_mut().enumerate() {
        // Half n of the block has 64 low bytes and 32 high ones; its quarter p takes bits 2p of the high bytes.
        let (n, p, l) = (i / 128, i % 128 / 32, i % 32);
        let low = ql[n * 64 + p % 2 * 32 + l] >> (p / 2 * 4) & 15;
        let high = qh[n * 32 + l] >> (p * 2) & 3;
        let q = i32::from(low | high << 4) - 32;
        let scale = scales[n * 8 + p * 2 + l / 16] as i8;
        *y = d * f32::from(scale) * q as f32;
    }
}

#[cfg(test)]
#[path = "dequant_tests.rs"]
mod tests;
