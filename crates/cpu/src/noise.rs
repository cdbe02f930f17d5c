//! Noise on the sampler's rows: see `SamplerNoise`.

use crate::view::Real;
use plimsoll_base::rng::{Stream, normal_pair, philox, unit_f32};
use plimsoll_device::{KEY_WORDS, SamplerNoise};

/// Largest number of e4m3.
const E4M3_MAX: f32 = 448.0;

/// Returns rows of `k` numbers with noise. `keys`: [R, 3] u32: sample id (low, high) and position.
pub(crate) fn noisy<E: Real>(x: &[E], k: usize, keys: &[u32], noise: SamplerNoise) -> Vec<E> {
    let mut rows = x.to_vec();
    for (row, key) in rows.chunks_mut(k).zip(keys.chunks(KEY_WORDS)) {
        match noise {
            SamplerNoise::Normal { sigma, share, seed } => blur(row, key, sigma, share, seed),
            SamplerNoise::EightBits => round(row),
        }
    }
    rows
}

fn blur<E: Real>(row: &mut [E], key: &[u32], sigma: f32, share: f32, seed: u64) {
    let sample_id = u64::from(key[1]) << 32 | u64::from(key[0]);
    // Draws of a token: its position in the upper half of the counter. The last of them says whether it is hit.
    let draw = |n: u64| philox(seed, Stream::Bench, sample_id, u64::from(key[2]) << 32 | n);
    if unit_f32(draw(u64::from(u32::MAX))[0]) >= share {
        return;
    }
    for (n, part) in row.chunks_mut(4).enumerate() {
        let r = draw(n as u64);
        let (first, second) = (normal_pair(r[0], r[1]), normal_pair(r[2], r[3]));
        for (x, g) in part.iter_mut().zip([first.0, first.1, second.0, second.1]) {
            *x = E::from_f32(x.to_f32() * (1.0 + sigma * g));
        }
    }
}

fn round<E: Real>(row: &mut [E]) {
    let largest = row.iter().fold(0.0, |most: f32, x| most.max(x.to_f32().abs()));
    if largest == 0.0 {
        return;
    }
    let scale = E4M3_MAX / largest;
    for x in row {
        *x = E::from_f32(nearest_e4m3(x.to_f32() * scale) / scale);
    }
}

/// Returns the nearest number with three bits after the leading one, whose exponent is at least -6; ties to even.
fn nearest_e4m3(x: f32) -> f32 {
    let exponent = ((x.to_bits() >> 23 & 0xff) as i32 - 127).max(-6);
    let quantum = 2f32.powi(exponent - 3);
    (x / quantum).round_ties_even() * quantum
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [f32; 8] = [1.0, -0.5, 0.3, 0.0, 2.0, 0.1, -0.7, 4.0];
    const KEYS: [u32; 2 * KEY_WORDS] = [7, 0, 3, 0, 0, 8, 0, 3, 0, 0];

    #[test]
    fn noise_is_a_tokens_own_wherever_it_is_computed() {
        let noise = SamplerNoise::Normal { sigma: 0.1, share: 1.0, seed: 5 };
        let both = noisy(&ROWS, 4, &KEYS, noise);
        assert_eq!(both[4..], noisy(&ROWS[4..], 4, &KEYS[KEY_WORDS..], noise));
        assert_ne!(both, ROWS);
        assert_eq!(both[3], 0.0, "what is 0 stays 0: padding");
        let none = SamplerNoise::Normal { sigma: 0.1, share: 0.0, seed: 5 };
        assert_eq!(noisy(&ROWS, 4, &KEYS, none), ROWS);
    }

    #[test]
    fn a_share_of_the_rows_is_hit() {
        let keys: Vec<u32> = (0..4000).flat_map(|id| [id, 0, 1, 0, 0]).collect();
        let noise = SamplerNoise::Normal { sigma: 1.0, share: 0.01, seed: 1 };
        let hit = noisy(&vec![1.0f32; 4000], 1, &keys, noise).iter().filter(|x| **x != 1.0).count();
        assert!((20..70).contains(&hit), "{hit} of 4000");
    }

    #[test]
    fn eight_bits_keep_four_digits_of_the_mantissa() {
        let rounded = noisy(&ROWS, 8, &KEYS, SamplerNoise::EightBits);
        assert_eq!(rounded[7], 4.0, "the largest is exact");
        for (x, y) in ROWS.iter().zip(&rounded) {
            assert!((x - y).abs() <= x.abs() / 16.0, "{x} {y}");
        }
        assert_ne!(rounded, ROWS);
    }
}
