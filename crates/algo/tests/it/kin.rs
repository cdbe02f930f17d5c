//! GRPO's kin against the code of verl 0.9.1 and TRL 1.16, in f64 (`golden/kin.json`).
//!
//! Tolerance: inputs and results are f32, the arithmetic is f64 on both sides: half a unit of f32 in a result near 1
//! is 6e-8, and 2e-7 leaves room for the sums of sixteen.

use plimsoll_algo::aggregation::{Aggregation, AggregationKind};
use plimsoll_algo::covariance::{Covariance, add_penalties, choose};
use plimsoll_algo::method::Method;
use plimsoll_algo::optimal_token::subtract_optimal;
use plimsoll_algo::packed::Packed;
use plimsoll_algo::policy_loss::{PolicyBatch, PolicyLoss, policy_loss};
use plimsoll_algo::preference::{PairBatch, PreferenceLoss, preference_loss};
use plimsoll_algo::shaping::{GroupShaping, Shaping, decoupled, shape_rewards, subtract_greedy};
use serde_json::Value;

const OFFSETS: [usize; 5] = [0, 4, 8, 12, 16];
const TOLERANCE: f64 = 2e-7;

pub fn read(text: &str) -> Value {
    serde_json::from_str(text).expect("the golden file is JSON")
}

/// All numbers of a nested list, in order.
pub fn flat(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(flat).collect(),
        other => vec![other.as_f64().expect("a number")],
    }
}

pub fn narrow(value: &Value) -> Vec<f32> {
    flat(value).into_iter().map(|x| x as f32).collect()
}

pub fn all_close(what: &str, ours: &[f32], theirs: &Value) {
    let theirs = flat(theirs);
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (i, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        let error = (f64::from(*a) - b).abs();
        assert!(error <= TOLERANCE * b.abs().max(1.0), "{what}[{i}]: ours {a:e}, theirs {b:e}");
    }
}

#[test]
fn losses_and_gradients_are_those_of_verl_and_trl() {
    let (kin, inputs) = (read(plimsoll_algo::KIN), &read(plimsoll_algo::GOLDEN)["inputs"]);
    let row = |name: &str| narrow(&inputs[name]);
    let (logp, old, advantages, mask) =
        (row("log_probs"), row("old_log_probs"), row("advantages"), row("action_mask"));
    let packed = Packed { mask: &mask, seq_offsets: &OFFSETS };
    let both = |clip: f64| (clip, clip);
    let gmpo = |(clip_low, clip_high)| PolicyLoss::Gmpo { clip_low, clip_high };
    let tv = |(clip_low, clip_high)| PolicyLoss::DppoTv { clip_low, clip_high };
    let kl = |(clip_low, clip_high)| PolicyLoss::DppoKl { clip_low, clip_high };
    let (tokens, means) = (AggregationKind::TokenMean, AggregationKind::SeqMeanTokenMean);
    for (key, loss, kind) in [
        ("gmpo_0.4", gmpo(both(0.4)), means),
        ("gmpo_0.1", gmpo(both(0.1)), means),
        ("dppo_tv_0.15", tv(both(0.15)), tokens),
        ("dppo_tv_0.02", tv(both(0.02)), tokens),
        ("dppo_kl_0.05", kl(both(0.05)), tokens),
        ("dppo_kl_0.001", kl(both(0.001)), tokens),
        ("vespo", PolicyLoss::Vespo { positive: [2.0, 3.0], negative: [3.0, 2.0] }, tokens),
        ("luspo", PolicyLoss::Gspo { clip_low: 3e-4, clip_high: 4e-4 }, AggregationKind::SeqMeanTokenSum),
    ] {
        let aggregation = Aggregation::of_batch(kind, packed, 4.0);
        let batch =
            PolicyBatch { packed, logp: &logp, old_logp: &old, advantages: &advantages, weights: None };
        let mut gradient = vec![f32::NAN; 16];
        let sums = policy_loss(&loss, &batch, &aggregation, &mut gradient);
        all_close(&format!("{key} loss"), &[sums.loss as f32], &kin["loss"][key]["loss"]);
        all_close(&format!("{key} gradient"), &gradient, &kin["loss"][key]["grad_log_probs"]);
        // The narrow bounds hold some tokens, or they would test nothing.
        let holds = sums.clipped_low + sums.clipped_high > 0.0;
        assert!(
            holds || !["gmpo_0.1", "dppo_tv_0.02", "dppo_kl_0.001"].contains(&key),
            "{key} holds nothing"
        );
    }
}

/// verl chooses by the policy of its micro-batch, so the choice here is given its log-probs in place of the rollout's.
#[test]
fn losses_that_look_at_covariances_are_those_of_verl() {
    let (kin, inputs) = (read(plimsoll_algo::KIN), &read(plimsoll_algo::GOLDEN)["inputs"]);
    let row = |name: &str| narrow(&inputs[name]);
    let (logp, old, mask) = (row("log_probs"), row("old_log_probs"), row("action_mask"));
    let packed = Packed { mask: &mask, seq_offsets: &OFFSETS };
    let aggregation = Aggregation::of_batch(AggregationKind::TokenMean, packed, 4.0);
    for (key, how, method, count) in [
        ("clip_cov", Covariance::Clip { share: 1.0, band: [-0.2, 0.22] }, Method::ClipCov, 3.0),
        ("kl_cov", Covariance::Kl { share: 0.3, coef: 0.5 }, Method::KlCov, 3.0),
    ] {
        let (mut advantages, mut penalties) = (row("advantages"), [0.0; 16]);
        let sums = choose(how, packed, &logp, &mut advantages, &mut penalties, (0, 0), &mut Vec::new());
        assert_eq!(sums.chosen, count, "{key}");
        let batch =
            PolicyBatch { packed, logp: &logp, old_logp: &old, advantages: &advantages, weights: None };
        let mut gradient = vec![f32::NAN; 16];
        let loss = method.spec().sampling.expect("it samples").loss;
        let mut sums = policy_loss(&loss, &batch, &aggregation, &mut gradient);
        sums.loss += add_penalties(&penalties, packed, &logp, &old, &aggregation, &mut gradient);
        all_close(&format!("{key} loss"), &[sums.loss as f32], &kin["loss"][key]["loss"]);
        all_close(&format!("{key} gradient"), &gradient, &kin["loss"][key]["grad_log_probs"]);
    }
}

/// Tolerance: the sum of squared probabilities comes from two log-probs of up to 12, each rounded by at most 5e-7.
#[test]
fn a_baseline_of_each_token_is_that_of_verl() {
    let given = &read(plimsoll_algo::KIN)["optimal_token"];
    let whole = |name: &str| flat(&given[name]).into_iter().map(|x| x as usize).collect::<Vec<_>>();
    let row = |name: &str| narrow(&given[name]);
    let (mask, offsets) = (row("mask"), whole("offsets"));
    let packed = Packed { mask: &mask, seq_offsets: &offsets };
    let mut advantages = row("returns");
    subtract_optimal(packed, &whole("prompts"), &row("logp"), &mut row("sharp_logp"), &mut advantages);
    for (i, (ours, theirs)) in advantages.iter().zip(flat(&given["advantages"])).enumerate() {
        assert!((f64::from(*ours) - theirs).abs() < 1e-6, "{i}: ours {ours:e}, theirs {theirs:e}");
    }
}

#[test]
fn shaped_rewards_are_those_of_verl_and_trl() {
    let kin = read(plimsoll_algo::KIN);
    let of = |name: &str| &kin["groups"][name];
    let rewards: Vec<Option<f32>> = narrow(of("rewards")).into_iter().map(Some).collect();
    let lengths: Vec<usize> = flat(of("lengths")).into_iter().map(|length| length as usize).collect();
    let mut shaped = vec![f32::NAN; rewards.len()];
    for (key, group) in [
        ("opo", GroupShaping::LengthWeighted),
        ("gpg", GroupShaping::Gpg),
        ("pass_k", GroupShaping::Lead { eps: 1e-4 }),
    ] {
        let options = Shaping { overlong: None, group, clip: [-10.0, 10.0] };
        shape_rewards(&options, &rewards, &lengths, 4, &mut shaped).expect("groups of four");
        all_close(key, &shaped, &kin["shaped"][key]);
    }
    let pairs: Vec<[Option<f32>; 2]> =
        rewards.iter().zip(narrow(of("second"))).map(|(first, second)| [*first, Some(second)]).collect();
    let parts: Vec<&[Option<f32>]> = pairs.iter().map(|pair| &pair[..]).collect();
    decoupled(&parts, &flat(of("weights")), 4, 1e-4, &mut shaped);
    all_close("gdpo", &shaped, &kin["shaped"]["gdpo"]);
    let options = Shaping { overlong: None, group: GroupShaping::Greedy, clip: [-10.0, 10.0] };
    shape_rewards(&options, &rewards, &lengths, 4, &mut shaped).expect("a group of any size");
    let mut greedy: Vec<Option<f32>> = narrow(of("greedy")).into_iter().map(Some).collect();
    subtract_greedy(&greedy, 4, &mut shaped);
    all_close("remax", &shaped, &kin["shaped"]["remax"]);
    greedy[1] = None;
    subtract_greedy(&greedy, 4, &mut shaped);
    assert_eq!(shaped[4..8], [0.0; 4], "nothing to be compared with");
}

#[test]
fn what_has_no_reward_takes_no_part() {
    let (a, b) = ([Some(1.0), None], [None, None]);
    let parts: Vec<&[Option<f32>]> = vec![&a, &[Some(0.0), Some(3.0)], &b, &[Some(0.5), Some(1.0)]];
    let mut shaped = [f32::NAN; 4];
    decoupled(&parts, &[1.0, 1.0], 2, 1e-4, &mut shaped);
    assert_eq!(shaped[2], 0.0, "a sample without any");
    assert!(shaped[0] > 0.0 && shaped[1] < 0.0, "{shaped:?}: the second reward alone compares nothing");
    let options = |group| Shaping { overlong: None, group, clip: [-10.0, 10.0] };
    let rewards = [Some(0.9), Some(0.9), None, Some(0.1)];
    shape_rewards(&options(GroupShaping::Lead { eps: 1e-4 }), &rewards, &[1; 4], 4, &mut shaped).unwrap();
    assert_eq!(shaped, [0.0; 4], "two best ones have no lead");
    shape_rewards(&options(GroupShaping::LengthWeighted), &rewards, &[2, 2, 50, 4], 4, &mut shaped).unwrap();
    assert_eq!(shaped.map(|x| (x * 1000.0).round() / 1000.0), [0.4, 0.4, 0.0, -0.4]);
}

#[test]
fn losses_of_pairs_are_those_of_trl() {
    let kin = &read(plimsoll_algo::KIN)["preference"];
    let of_side = |side: &str, one: fn(&[f64]) -> f64| -> Vec<f32> {
        let rows = kin["pairs"][side].as_array().expect("four rows");
        rows.iter().map(|row| one(&flat(row)) as f32).collect()
    };
    let sum = |row: &[f64]| row.iter().sum::<f64>();
    let count = |row: &[f64]| row.len() as f64;
    let (chosen, rejected) = (of_side("chosen", sum), of_side("rejected", sum));
    let tokens = [of_side("chosen", count), of_side("rejected", count)];
    let batch = PairBatch {
        chosen: &chosen,
        rejected: &rejected,
        ref_chosen: &[0.0; 4],
        ref_rejected: &[0.0; 4],
        tokens: [&tokens[0], &tokens[1]],
        chosen_tokens: tokens[0].iter().map(|&n| f64::from(n)).sum(),
    };
    let cpo = |beta, nll_coef, label_smoothing| PreferenceLoss::Cpo { beta, label_smoothing, nll_coef };
    for (key, loss) in [
        ("simpo", PreferenceLoss::SimPo { beta: 2.0, gamma: 0.5 }),
        ("cpo", cpo(0.1, 1.0, 0.0)),
        ("cpo_smooth", cpo(0.3, 0.5, 0.1)),
        ("orpo", PreferenceLoss::OrPo { beta: 0.1 }),
    ] {
        let mut slopes = [[f32::NAN; 4]; 2];
        let [d_chosen, d_rejected] = &mut slopes;
        let sums = preference_loss(loss, &batch, 4.0, d_chosen, d_rejected);
        all_close(&format!("{key} loss"), &[sums.loss as f32], &kin[key]["loss"]);
        let rewards = [sums.reward_chosen as f32, sums.reward_rejected as f32];
        all_close(&format!("{key} rewards"), &rewards, &kin[key]["rewards"]);
        for (side, slopes) in slopes.iter().enumerate() {
            let each: Vec<f32> = (0..4).flat_map(|p| vec![slopes[p]; tokens[side][p] as usize]).collect();
            all_close(&format!("{key} gradient of side {side}"), &each, &kin[key]["grads"][side]);
        }
    }
}
