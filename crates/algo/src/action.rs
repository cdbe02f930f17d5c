//! Action distributions of an environment policy: choices by logits, and independent normals. Log-probs, entropies,
//! draws and gradients are computed row by row, so no number depends on the rest of the batch.
//!
//! An action is a row of f32: the index of each choice, or the numbers themselves.

use plimsoll_base::math::{exp, ln};
use plimsoll_base::rng::{normal_pair, unit_f32};

/// ln(2 pi) / 2.
const HALF_LN_TAU: f64 = 0.918_938_533_204_672_7;

/// The distribution that a row of actor outputs parametrizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ActionDist<'a> {
    /// Logits of several choices, end to end: `sizes[i]` of choice i.
    Categorical {
        /// Number of logits of each choice.
        sizes: &'a [u32],
    },
    /// Means of independent normals.
    Gaussian {
        /// [A]: logarithms of their standard deviations.
        log_std: &'a [f32],
    },
}

/// How to pick an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Explore {
    /// Sampled from the distribution.
    #[default]
    Sample,
    /// The most likely: the largest logit (ties: the lowest index), or the mean.
    Mode,
}

/// Log-probability and entropy of one action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// Log-probability of the whole action: the sum over its parts.
    pub logp: f32,
    /// In nats; for normals the differential entropy.
    pub entropy: f32,
}

impl ActionDist<'_> {
    /// Returns how many numbers `score` keeps for `gradient`, per action.
    pub fn kept(&self) -> usize {
        match self {
            ActionDist::Categorical { sizes } => 2 * sizes.iter().sum::<u32>() as usize,
            ActionDist::Gaussian { log_std } => 2 * log_std.len(),
        }
    }

    /// Scores `action` under `outputs`: log-probability and entropy. Fills `kept`, [kept()], for `gradient`.
    pub fn score(&self, outputs: &[f32], action: &[f32], kept: &mut [f64]) -> Scored {
        let (mut logp, mut entropy) = (0.0, 0.0);
        let (first_kept, second_kept) = kept.split_at_mut(outputs.len());
        match self {
            ActionDist::Categorical { sizes } => {
                let mut first = 0;
                for (&size, &chosen) in sizes.iter().zip(action) {
                    let range = first..first + size as usize;
                    first = range.end;
                    let (p, log_p) = (&mut first_kept[range.clone()], &mut second_kept[range.clone()]);
                    softmax(&outputs[range], p, log_p);
                    logp += log_p[chosen as usize];
                    entropy -= p.iter().zip(log_p.iter()).map(|(p, log_p)| p * log_p).sum::<f64>();
                }
            }
            ActionDist::Gaussian { log_std } => {
                for (i, (&mean, &log_std)) in outputs.iter().zip(*log_std).enumerate() {
                    let log_std = f64::from(log_std);
                    let scale = exp(-log_std);
                    let z = (f64::from(action[i]) - f64::from(mean)) * scale;
                    (first_kept[i], second_kept[i]) = (z, scale);
                    logp -= 0.5 * z * z + log_std + HALF_LN_TAU;
                    entropy += 0.5 + HALF_LN_TAU + log_std;
                }
            }
        }
        Scored { logp: logp as f32, entropy: entropy as f32 }
    }

    /// Draws an action for `outputs`. `noise(block)` gives four random words; block counts up from 0.
    pub fn draw(&self, how: Explore, outputs: &[f32], noise: impl Fn(u32) -> [u32; 4], action: &mut [f32]) {
        match self {
            ActionDist::Categorical { sizes } => {
                let mut first = 0;
                for (i, (&size, action)) in sizes.iter().zip(action).enumerate() {
                    let logits = &outputs[first..first + size as usize];
                    first += size as usize;
                    let word = || noise(i as u32 / 4)[i % 4];
                    let chosen = if how == Explore::Mode { largest(logits) } else { drawn(logits, word()) };
                    *action = chosen as f32;
                }
            }
            ActionDist::Gaussian { log_std } => {
                for (i, ((&mean, &log_std), action)) in outputs.iter().zip(*log_std).zip(action).enumerate() {
                    *action = mean;
                    if how == Explore::Sample {
                        // Two normals per pair of words, two pairs per block.
                        let block = noise(i as u32 / 4);
                        let pair = normal_pair(block[i % 4 / 2 * 2], block[i % 4 / 2 * 2 + 1]);
                        let z = f64::from(if i.is_multiple_of(2) { pair.0 } else { pair.1 });
                        *action = (f64::from(mean) + exp(log_std.into()) * z) as f32;
                    }
                }
            }
        }
    }

    /// Writes d loss / d outputs for d loss / d logp and d loss / d entropy of one action, and adds to `d_log_std`, [A]
    /// (empty for choices). `kept` is what `score` wrote for the same outputs and action.
    pub fn gradient(
        &self,
        action: &[f32],
        kept: &[f64],
        d: Slopes,
        d_outputs: &mut [f32],
        d_log_std: &mut [f64],
    ) {
        let (d_logp, d_entropy) = (f64::from(d.logp), f64::from(d.entropy));
        let (first_kept, second_kept) = kept.split_at(d_outputs.len());
        match self {
            ActionDist::Categorical { sizes } => {
                let mut first = 0;
                for (&size, &chosen) in sizes.iter().zip(action) {
                    let range = first..first + size as usize;
                    first = range.end;
                    let (p, log_p) = (&first_kept[range.clone()], &second_kept[range.clone()]);
                    let entropy = -p.iter().zip(log_p).map(|(p, log_p)| p * log_p).sum::<f64>();
                    for (i, to) in d_outputs[range].iter_mut().enumerate() {
                        let hit = if i == chosen as usize { 1.0 } else { 0.0 };
                        *to = (d_logp * (hit - p[i]) - d_entropy * p[i] * (log_p[i] + entropy)) as f32;
                    }
                }
            }
            ActionDist::Gaussian { .. } => {
                for (i, (&z, &scale)) in first_kept.iter().zip(second_kept).enumerate() {
                    d_outputs[i] = (d_logp * z * scale) as f32;
                    d_log_std[i] += d_logp * (z * z - 1.0) + d_entropy;
                }
            }
        }
    }
}

/// d loss / d logp and d loss / d entropy of one action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slopes {
    /// d loss / d log-probability.
    pub logp: f32,
    /// d loss / d entropy.
    pub entropy: f32,
}

/// Computes probabilities and their logarithms.
fn softmax(logits: &[f32], p: &mut [f64], log_p: &mut [f64]) {
    let top = f64::from(logits[largest(logits)]);
    let mut sum = 0.0;
    for (&x, p) in logits.iter().zip(p.iter_mut()) {
        *p = weight(x, top);
        sum += *p;
    }
    let log_sum = top + ln(sum);
    for ((&x, p), log_p) in logits.iter().zip(p).zip(log_p) {
        *p /= sum;
        *log_p = f64::from(x) - log_sum;
    }
}

/// Returns e^(x - top). The largest is 1 without being computed, which halves the work of two choices.
fn weight(x: f32, top: f64) -> f64 {
    if f64::from(x) == top { 1.0 } else { exp(f64::from(x) - top) }
}

fn largest(logits: &[f32]) -> usize {
    let mut best = 0;
    for (i, x) in logits.iter().enumerate() {
        if *x > logits[best] {
            best = i;
        }
    }
    best
}

/// Samples by the inverse of the cumulative distribution, from one random word.
fn drawn(logits: &[f32], word: u32) -> usize {
    let top = f64::from(logits[largest(logits)]);
    let total: f64 = logits.iter().map(|&x| weight(x, top)).sum();
    let mut left = f64::from(unit_f32(word)) * total;
    for (i, &x) in logits.iter().enumerate() {
        left -= weight(x, top);
        if left < 0.0 {
            return i;
        }
    }
    largest(logits) // What rounding leaves of the last one's share.
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::rng::{Stream, philox};
    use std::f32::consts::LN_2;

    #[test]
    fn scores_are_those_of_the_formulas() {
        let dist = ActionDist::Categorical { sizes: &[2, 3] };
        let outputs = [0.0, 0.0, 1.0, 2.0, 3.0];
        let scored = dist.score(&outputs, &[1.0, 2.0], &mut [0.0; 10]);
        // ln 1/2 and 3 - ln(e + e^2 + e^3); entropies ln 2 and 0.832394.
        assert!((scored.logp - (-LN_2 - 0.407_606)).abs() < 1e-5, "{scored:?}");
        assert!((scored.entropy - (LN_2 + 0.832_394)).abs() < 1e-5, "{scored:?}");
        let dist = ActionDist::Gaussian { log_std: &[0.0, LN_2] };
        let scored = dist.score(&[0.0, 1.0], &[1.0, 1.0], &mut [0.0; 4]);
        assert!((scored.logp - (-0.5 - 2.0 * 0.918_938_5 - LN_2)).abs() < 1e-5, "{scored:?}");
        assert!((scored.entropy - (1.0 + 2.0 * 0.918_938_5 + LN_2)).abs() < 1e-5, "{scored:?}");
    }

    #[test]
    fn gradients_are_slopes() {
        let slopes = Slopes { logp: 0.7, entropy: -0.3 };
        let check = |log_std: &[f32], outputs: &[f32], action: &[f32], sizes: &[u32]| {
            let loss = |outputs: &[f32], log_std: &[f32]| {
                let dist = match sizes {
                    [] => ActionDist::Gaussian { log_std },
                    sizes => ActionDist::Categorical { sizes },
                };
                let scored = dist.score(outputs, action, &mut vec![0.0; dist.kept()]);
                0.7 * f64::from(scored.logp) - 0.3 * f64::from(scored.entropy)
            };
            let dist = match sizes {
                [] => ActionDist::Gaussian { log_std },
                sizes => ActionDist::Categorical { sizes },
            };
            let (mut d, mut d_log_std) = (vec![0.0; outputs.len()], vec![0.0; log_std.len()]);
            let mut kept = vec![0.0; dist.kept()];
            dist.score(outputs, action, &mut kept);
            dist.gradient(action, &kept, slopes, &mut d, &mut d_log_std);
            let moved = |x: &[f32], i: usize, by: f32| {
                let mut x = x.to_vec();
                x[i] += by;
                x
            };
            for (i, &ours) in d.iter().enumerate() {
                let slope = (loss(&moved(outputs, i, 0.01), log_std)
                    - loss(&moved(outputs, i, -0.01), log_std))
                    / 0.02;
                assert!((slope - f64::from(ours)).abs() < 2e-4, "output {i}: {slope} against {ours}");
            }
            for (i, &ours) in d_log_std.iter().enumerate() {
                let slope = (loss(outputs, &moved(log_std, i, 0.01))
                    - loss(outputs, &moved(log_std, i, -0.01)))
                    / 0.02;
                assert!((slope - ours).abs() < 1e-3, "log_std {i}: {slope} against {ours}");
            }
        };
        check(&[], &[0.3, -1.0, 0.5, 2.0, 0.1], &[1.0, 0.0], &[2, 3]);
        check(&[0.2, -0.4, 0.0], &[0.3, -1.0, 0.5], &[1.0, -0.5, 0.5], &[]);
    }

    #[test]
    fn draws_have_the_frequencies_of_their_distribution() {
        let n = 20_000;
        let noise = |row: u64| move |block: u32| philox(1, Stream::Bench, row, block.into());
        let outputs = [0.0, 1.0, -1.0];
        let mut counts = [0.0; 3];
        for row in 0..n {
            let mut action = [0.0];
            ActionDist::Categorical { sizes: &[3] }.draw(Explore::Sample, &outputs, noise(row), &mut action);
            counts[action[0] as usize] += 1.0 / n as f64;
        }
        // A standard error is 3.5e-3; four of them.
        for (count, p) in counts.iter().zip([0.2447, 0.6652, 0.0900]) {
            assert!((count - p).abs() < 0.014, "{counts:?}");
        }
        let dist = ActionDist::Gaussian { log_std: &[0.0, LN_2, 0.0, 0.0, -1.0] };
        let (mut sum, mut squares) = ([0.0; 5], [0.0; 5]);
        for row in 0..n {
            let mut action = [0.0; 5];
            dist.draw(Explore::Sample, &[0.0, 1.0, 0.0, 0.0, 0.0], noise(row), &mut action);
            for i in 0..5 {
                sum[i] += f64::from(action[i]) / n as f64;
                squares[i] += f64::from(action[i]).powi(2) / n as f64;
            }
        }
        assert!((sum[1] - 1.0).abs() < 0.06 && (squares[1] - 5.0).abs() < 0.3, "{sum:?} {squares:?}");
        assert!(sum[0].abs() < 0.03 && (squares[3] - 1.0).abs() < 0.05, "{sum:?} {squares:?}");
        let mut action = [9.0; 5];
        dist.draw(Explore::Mode, &[0.0, 1.0, 0.5, 0.0, 0.0], noise(0), &mut action);
        assert_eq!(action, [0.0, 1.0, 0.5, 0.0, 0.0]);
        let mut action = [9.0];
        ActionDist::Categorical { sizes: &[3] }.draw(Explore::Mode, &[1.0, 1.0, 0.0], noise(0), &mut action);
        assert_eq!(action, [0.0]);
    }
}
