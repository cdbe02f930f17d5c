//! Every gradient against central differences of its own loss value, and CISPO and SAPO, for which no golden values
//! exist, against twins written here from their formulas with the C library's `exp`.
//!
//! Step 2^-10: exact in f32 near 1, and its truncation error, h^2/6 times a third derivative of order 1, is 2e-7.
//! Gradients are returned in f32, so the bound is 1e-5 of the largest gradient. Inputs stay clear of the kinks.

use plimsoll_algo::aggregation::{Aggregation, AggregationKind};
use plimsoll_algo::entropy::entropy_bonus;
use plimsoll_algo::kl::{KlEstimator, KlLoss, add_kl_loss};
use plimsoll_algo::packed::Packed;
use plimsoll_algo::policy_loss::{PolicyBatch, PolicyLoss, policy_loss};
use plimsoll_algo::preference::{PairBatch, PreferenceLoss, preference_loss, reward_model_loss};
use plimsoll_algo::supervised::sft_loss;
use plimsoll_algo::value_loss::{ValueBatch, value_loss};

const H: f32 = 1.0 / 1024.0;
const MASK: [f32; 9] = [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];
const OFFSETS: [usize; 5] = [0, 4, 6, 8, 9]; // the third sequence has no trained token
const LOGP: [f32; 9] = [-0.2, -1.1, -0.5, -9.0, -0.7, -0.3, -9.0, -9.0, -1.5];
const OLD: [f32; 9] = [-0.25, -1.0, -0.9, -9.0, -0.6, -0.75, -9.0, -9.0, -1.2];
const REFERENCE: [f32; 9] = [-0.3, -0.9, -0.7, -9.0, -0.8, -0.35, -9.0, -9.0, -2.0];
const ADVANTAGES: [f32; 9] = [1.0, -0.7, 0.5, 3.0, -1.2, -0.4, 3.0, 3.0, 0.9];
const WEIGHTS: [f32; 9] = [1.0, 0.8, 1.5, 2.0, 1.0, 0.0, 2.0, 2.0, 1.1];

fn packed() -> Packed<'static> {
    Packed { mask: &MASK, seq_offsets: &OFFSETS }
}

fn aggregations() -> impl Iterator<Item = Aggregation> {
    AggregationKind::ALL.into_iter().map(|kind| Aggregation::of_batch(kind, packed(), 7.0))
}

/// Compares `gradient` with central differences of `loss` around `at`.
fn check(what: &str, at: &[f32], gradient: &[f32], loss: impl Fn(&[f32]) -> f64) {
    let largest = gradient.iter().fold(0.0f32, |m, g| m.max(g.abs()));
    for i in 0..at.len() {
        let mut moved = at.to_vec();
        moved[i] = at[i] + H;
        let (above, high) = (loss(&moved), moved[i]);
        moved[i] = at[i] - H;
        let (below, low) = (loss(&moved), moved[i]);
        let slope = (above - below) / f64::from(high - low);
        let error = (slope - f64::from(gradient[i])).abs();
        assert!(error <= 1e-5 * f64::from(largest), "{what}[{i}]: gradient {}, slope {slope}", gradient[i]);
    }
}

fn policy(loss: &PolicyLoss, logp: &[f32], agg: &Aggregation) -> (f64, Vec<f32>) {
    let batch = PolicyBatch {
        packed: packed(),
        logp,
        old_logp: &OLD,
        advantages: &ADVANTAGES,
        weights: Some(&WEIGHTS),
    };
    let mut d_logp = vec![f32::NAN; 9];
    let sums = policy_loss(loss, &batch, agg, &mut d_logp);
    (sums.loss, d_logp)
}

#[test]
fn policy_losses() {
    for loss in [
        PolicyLoss::Ppo { clip_low: 0.2, clip_high: 0.28, dual_clip: None },
        PolicyLoss::Ppo { clip_low: 0.2, clip_high: 0.2, dual_clip: Some(1.3) },
        PolicyLoss::Gspo { clip_low: 0.2, clip_high: 0.2 },
        PolicyLoss::Gspo { clip_low: 3e-4, clip_high: 4e-4 },
        PolicyLoss::Gmpo { clip_low: 0.5, clip_high: 0.5 },
        PolicyLoss::Gmpo { clip_low: 0.08, clip_high: 0.03 },
        PolicyLoss::Sapo { tau_positive: 1.0, tau_negative: 1.05 },
        PolicyLoss::Reinforce,
    ] {
        for agg in aggregations() {
            let (_, gradient) = policy(&loss, &LOGP, &agg);
            check(&format!("{loss:?} {:?}", agg.kind), &LOGP, &gradient, |logp| policy(&loss, logp, &agg).0);
        }
    }
}

/// CISPO's ratio is detached: the slope is taken of a loss whose ratio stays where it was.
#[test]
fn cispo_against_its_twin() {
    for (low, high) in [(0.0, 5.0), (0.8, 1.2), (0.0, 1.1)] {
        for agg in aggregations() {
            let loss = PolicyLoss::Cispo { clip_low: low, clip_high: high };
            let twin = |logp: &[f32]| {
                twin_sum(&agg, |t| {
                    let held = (f64::from(LOGP[t]) - f64::from(OLD[t])).exp().clamp(low, high);
                    -held * f64::from(ADVANTAGES[t]) * f64::from(logp[t])
                })
            };
            let (value, gradient) = policy(&loss, &LOGP, &agg);
            assert!((value - twin(&LOGP)).abs() < 1e-13, "{value} {}", twin(&LOGP));
            check(&format!("{loss:?} {:?}", agg.kind), &LOGP, &gradient, twin);
        }
    }
}

#[test]
fn sapo_against_its_twin() {
    for agg in aggregations() {
        let twin = |logp: &[f32]| {
            twin_sum(&agg, |t| {
                let ratio = (f64::from(logp[t]) - f64::from(OLD[t])).exp();
                let a = f64::from(ADVANTAGES[t]);
                let tau = if a > 0.0 { 1.0 } else { 1.05 };
                -(4.0 / tau) / (1.0 + (-tau * (ratio - 1.0)).exp()) * a
            })
        };
        let (value, gradient) =
            policy(&PolicyLoss::Sapo { tau_positive: 1.0, tau_negative: 1.05 }, &LOGP, &agg);
        assert!((value - twin(&LOGP)).abs() < 1e-13, "{value} {}", twin(&LOGP));
        check(&format!("sapo {:?}", agg.kind), &LOGP, &gradient, twin);
    }
}

/// The weighted sum of a token loss, from the definitions of the aggregations.
fn twin_sum(agg: &Aggregation, term: impl Fn(usize) -> f64) -> f64 {
    let mut sum = 0.0;
    for pair in OFFSETS.windows(2) {
        let length: f64 = MASK[pair[0]..pair[1]].iter().map(|&m| f64::from(m)).sum();
        for t in (pair[0]..pair[1]).filter(|&t| MASK[t] == 1.0) {
            let value = f64::from(WEIGHTS[t]) * term(t);
            sum += match agg.kind {
                AggregationKind::TokenMean => value / 6.0,
                AggregationKind::SeqMeanTokenMean => value / length / 3.0,
                AggregationKind::SeqMeanTokenSum => value / 3.0,
                AggregationKind::SeqMeanTokenSumNorm => value / 3.0 / 7.0,
                AggregationKind::TokenSum => value,
            };
        }
    }
    sum
}

/// The ratio 1 and the ratio's clip at +-20: no gradient beyond, and CISPO keeps its bounds.
#[test]
fn extreme_ratios_are_held() {
    let packed = Packed { mask: &[1.0, 1.0], seq_offsets: &[0, 2] };
    let agg = Aggregation::of_batch(AggregationKind::TokenSum, packed, 1.0);
    let gradient = |loss: PolicyLoss| {
        let batch = PolicyBatch {
            packed,
            logp: &[-1.0, -70.0],
            old_logp: &[-70.0, -1.0],
            advantages: &[-1.0, 1.0],
            weights: None,
        };
        let mut d_logp = [f32::NAN; 2];
        let sums = policy_loss(&loss, &batch, &agg, &mut d_logp);
        assert!(sums.loss.is_finite(), "{loss:?}");
        d_logp
    };
    assert_eq!(gradient(PolicyLoss::Ppo { clip_low: 0.2, clip_high: 0.2, dual_clip: None }), [0.0, 0.0]);
    assert_eq!(gradient(PolicyLoss::Cispo { clip_low: 0.0, clip_high: 5.0 })[0], 5.0);
    assert_eq!(gradient(PolicyLoss::Sapo { tau_positive: 1.0, tau_negative: 1.05 }), [0.0, 0.0]);
}

#[test]
fn kl_loss() {
    for estimator in [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3] {
        for agg in aggregations() {
            let options = KlLoss { estimator, coef: 0.5, unbiased: false };
            let mut gradient = [0.0f32; 9];
            add_kl_loss(&options, packed(), &LOGP, &OLD, &REFERENCE, &agg, &mut gradient);
            // k3's value has f32 rounding (1e-7 of 1); over a step of 2^-9 that is 1e-4 of the slope, so an f64 twin.
            let twin = |logp: &[f32]| {
                0.5 * twin_sum_unweighted(&agg, |t| {
                    let d = f64::from(logp[t]) - f64::from(REFERENCE[t]);
                    match estimator {
                        KlEstimator::K1 => d,
                        KlEstimator::K2 => d * d / 2.0,
                        KlEstimator::K3 => (-d).exp() - 1.0 + d,
                    }
                })
            };
            check(&format!("{estimator:?} {:?}", agg.kind), &LOGP, &gradient, twin);
        }
    }
}

fn twin_sum_unweighted(agg: &Aggregation, term: impl Fn(usize) -> f64) -> f64 {
    twin_sum(agg, |t| if WEIGHTS[t] == 0.0 { 0.0 } else { term(t) / f64::from(WEIGHTS[t]) })
        + zero_weight_part(agg, term)
}

/// Token 5 has weight 0 in `WEIGHTS`; its sequence has two trained tokens.
fn zero_weight_part(agg: &Aggregation, term: impl Fn(usize) -> f64) -> f64 {
    term(5) * agg.token_weight(&MASK[4..6])
}

#[test]
fn kl_is_added_to_the_sum() {
    let agg = Aggregation::of_batch(AggregationKind::TokenMean, packed(), 1.0);
    let options = KlLoss { estimator: KlEstimator::K3, coef: 0.1, unbiased: false };
    let (mut alone, mut added) = ([0.0f32; 9], [2.0f32; 9]);
    add_kl_loss(&options, packed(), &LOGP, &OLD, &REFERENCE, &agg, &mut alone);
    add_kl_loss(&options, packed(), &LOGP, &OLD, &REFERENCE, &agg, &mut added);
    for t in 0..9 {
        assert_eq!(added[t], 2.0 + alone[t]);
    }
}

#[test]
fn entropy_and_supervised() {
    for agg in aggregations() {
        let entropy = [0.5f32, 1.5, 2.0, 9.0, 0.1, 0.7, 9.0, 9.0, 1.0];
        let bonus = |entropy: &[f32]| {
            let mut d = [f32::NAN; 9];
            let sums = entropy_bonus(0.01, packed(), entropy, &agg, &mut d);
            (sums.loss, d)
        };
        check(&format!("entropy {:?}", agg.kind), &entropy, &bonus(&entropy).1, |h| bonus(h).0);
        let sft = |logp: &[f32]| {
            let mut d = [f32::NAN; 9];
            let sums = sft_loss(packed(), logp, &agg, &mut d);
            (sums.loss, d)
        };
        check(&format!("sft {:?}", agg.kind), &LOGP, &sft(&LOGP).1, |l| sft(l).0);
    }
    let mut off = [f32::NAN; 9];
    let agg = Aggregation::of_batch(AggregationKind::TokenMean, packed(), 1.0);
    let sums = entropy_bonus(0.0, packed(), &[1.0; 9], &agg, &mut off);
    assert_eq!((off.map(f32::to_bits), sums.loss, sums.mean_entropy()), ([0; 9], 0.0, 1.0));
}

#[test]
fn value_losses() {
    let old = [0.1f32, 0.2, 0.3, 9.0, 0.4, 0.5, 9.0, 9.0, 0.1];
    let returns = [1.0f32, 1.0, 1.0, 9.0, 0.0, 0.0, 9.0, 9.0, 0.5];
    let values = [0.9f32, 0.25, -0.5, 7.0, 0.55, -0.4, 7.0, 7.0, 0.2];
    for clip in [None, Some(0.2), Some(0.5)] {
        for agg in aggregations() {
            let run = |values: &[f32]| {
                let batch = ValueBatch { packed: packed(), values, old_values: &old, returns: &returns };
                let mut d = [f32::NAN; 9];
                let sums = value_loss(clip, &batch, &agg, &mut d);
                (sums.loss, d)
            };
            check(&format!("value {clip:?} {:?}", agg.kind), &values, &run(&values).1, |v| run(v).0);
        }
    }
}

#[test]
fn pair_losses() {
    let (chosen, rejected) = ([-1.0f32, -1.2, -0.8], [-1.1f32, -0.9, -1.5]);
    for loss in [
        PreferenceLoss::Dpo { beta: 0.7, label_smoothing: 0.0 },
        PreferenceLoss::Dpo { beta: 0.7, label_smoothing: 0.1 },
        PreferenceLoss::Ipo { beta: 0.7 },
        PreferenceLoss::SimPo { beta: 2.0, gamma: 0.5 },
        PreferenceLoss::Cpo { beta: 0.7, label_smoothing: 0.1, nll_coef: 0.5 },
        PreferenceLoss::OrPo { beta: 0.3 },
    ] {
        let run = |chosen: &[f32], rejected: &[f32]| {
            let (ref_chosen, ref_rejected) = ([-1.05f32, -1.1, -0.9], [-1.05f32, -1.0, -1.3]);
            let batch = PairBatch {
                chosen,
                rejected,
                ref_chosen: &ref_chosen,
                ref_rejected: &ref_rejected,
                tokens: [&[3.0, 1.0, 4.0], &[2.0, 2.0, 5.0]],
                chosen_tokens: 8.0,
            };
            let (mut dc, mut dr) = ([f32::NAN; 3], [f32::NAN; 3]);
            (preference_loss(loss, &batch, 5.0, &mut dc, &mut dr).loss, dc, dr)
        };
        let (_, dc, dr) = run(&chosen, &rejected);
        check(&format!("{loss:?} chosen"), &chosen, &dc, |c| run(c, &rejected).0);
        check(&format!("{loss:?} rejected"), &rejected, &dr, |r| run(&chosen, r).0);
    }
    for margins in [None, Some(&[0.5f32, 0.0, -0.3][..])] {
        let run = |chosen: &[f32], rejected: &[f32]| {
            let (mut dc, mut dr) = ([f32::NAN; 3], [f32::NAN; 3]);
            (reward_model_loss(chosen, rejected, margins, 3.0, &mut dc, &mut dr).loss, dc, dr)
        };
        let (value, dc, dr) = run(&chosen, &rejected);
        check("reward model chosen", &chosen, &dc, |c| run(c, &rejected).0);
        check("reward model rejected", &rejected, &dr, |r| run(&chosen, r).0);
        let twin: f64 = (0..3)
            .map(|p| {
                let gap =
                    f64::from(chosen[p]) - f64::from(rejected[p]) - margins.map_or(0.0, |m| f64::from(m[p]));
                (1.0 + (-gap).exp()).ln() / 3.0
            })
            .sum();
        assert!((value - twin).abs() < 1e-13, "{value} {twin}");
    }
}
