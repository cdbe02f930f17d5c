//! Noise on the sampler's rows against f64: what is recorded is of the rows with their noise.

use super::{Inputs, case, check_close, plain};
use crate::both::{Machine, Open};
use plimsoll_base::DType::F32;
use plimsoll_base::rng::{Stream, normal_pair, philox, unit_f32};
use plimsoll_device::SamplerNoise::{self, EightBits, Normal};

/// Rows of a rig have keys that begin with 0, 1, 2, then 3, 4, 5, and so on.
fn draw(row: usize, seed: u64, n: u32) -> [u32; 4] {
    let first = 3 * row as u64;
    philox(seed, Stream::Bench, (first + 1) << 32 | first, (first + 2) << 32 | u64::from(n))
}

/// All numbers of e4m3 from 0 to 448, of exponents -6 to 8 and the denormal ones below.
fn eight_bit_numbers() -> Vec<f64> {
    let normal = (-6..=8).flat_map(|e| (8..16).map(move |m| f64::from(m) * 2f64.powi(e - 3)));
    (0..8).map(|m| f64::from(m) * 2f64.powi(-9)).chain(normal).filter(|&x| x <= 448.0).collect()
}

fn noisy(x: &[f32], row: usize, noise: SamplerNoise) -> Vec<f32> {
    match noise {
        Normal { share, seed, .. } if unit_f32(draw(row, seed, u32::MAX)[0]) >= share => x.to_vec(),
        Normal { sigma, seed, .. } => {
            let factor = |i: usize| {
                let r = draw(row, seed, i as u32 / 4);
                let (a, b) = if i % 4 < 2 { (r[0], r[1]) } else { (r[2], r[3]) };
                let (even, odd) = normal_pair(a, b);
                1.0 + f64::from(sigma) * f64::from(if i.is_multiple_of(2) { even } else { odd })
            };
            x.iter().enumerate().map(|(i, &x)| (f64::from(x) * factor(i)) as f32).collect()
        }
        EightBits => {
            let scale = 448.0 / x.iter().fold(0.0f64, |most, &x| most.max(f64::from(x).abs()));
            let numbers = eight_bit_numbers();
            let nearest =
                |x: f64| numbers.iter().copied().min_by(|a, b| (a - x).abs().total_cmp(&(b - x).abs()));
            let of = |x: f64| nearest(x.abs() * scale).expect("some number").copysign(x) / scale;
            x.iter().map(|&x| of(x.into()) as f32).collect()
        }
    }
}

pub fn what_is_recorded_is_of_the_rows_with_their_noise<D: Machine>(open: Open<D>) {
    for case in [case(9, 1301, 12, F32), case(600, 33, 6, F32)] {
        let inputs = case.inputs();
        for noise in [
            EightBits,
            Normal { sigma: 0.1, share: 1.0, seed: 3 },
            Normal { sigma: 0.4, share: 0.3, seed: 4 },
        ] {
            let rows = inputs.x.chunks(case.k).enumerate();
            let x: Vec<f32> = rows.flat_map(|(row, x)| noisy(x, row, noise)).collect();
            for head in inputs.each(open) {
                head.rig.dev.set_sampler_noise(Some(noise));
                let (tokens, [logprobs, ..]) = head.sample(0, case.rows, plain(1.0));
                head.rig.dev.set_sampler_noise(None);
                let with = Inputs { x: x.clone(), targets: tokens, ..inputs.clone() }.reference(1.0);
                for (row, [want, ..]) in with.into_iter().enumerate() {
                    let got = f32::from_bits(logprobs[row]);
                    check_close(&[got], &[want], &[1.0], 2e-5, &format!("{noise:?} row {row}"));
                }
            }
        }
    }
}

pub fn rows_without_noise_draw_as_before<D: Machine>(open: Open<D>) {
    let case = case(9, 1301, 12, F32);
    let inputs = case.inputs();
    for head in inputs.each(open) {
        let plainly = head.sample(0, case.rows, plain(1.0));
        head.rig.dev.set_sampler_noise(Some(Normal { sigma: 0.5, share: 0.0, seed: 1 }));
        assert!(head.sample(0, case.rows, plain(1.0)) == plainly, "a share of 0");
        head.rig.dev.set_sampler_noise(Some(EightBits));
        assert!(head.sample(0, case.rows, plain(1.0)).1 != plainly.1, "eight bits");
        head.rig.dev.set_sampler_noise(None);
        head.rig.set("x", &inputs.x);
        assert!(head.sample(0, case.rows, plain(1.0)) == plainly, "noise that was taken away");
    }
}
