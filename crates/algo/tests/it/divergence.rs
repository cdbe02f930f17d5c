//! Divergences against TRL's code with autograd (`golden/divergence.json`, which `golden/divergence.py` writes in f64).
//!
//! Tolerance: 2e-6 of the largest number, a few units in the last place of the f32 that log-probs are given in; the
//! bucket of the rest is 1 minus their sum, so its relative error is larger where it is small.

use plimsoll_algo::aggregation::{Aggregation, AggregationKind};
use plimsoll_algo::divergence::{Divergence, divergence_loss, listed_mass};
use plimsoll_algo::packed::Packed;
use serde_json::Value;

fn list(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn f32s(value: &Value) -> Vec<f32> {
    list(value).into_iter().map(|x| x as f32).collect()
}

fn how(case: &Value) -> Divergence {
    match case["divergence"].as_str().expect("a name") {
        "reverse" => Divergence::Reverse,
        "forward" => Divergence::Forward,
        _ => Divergence::Jsd { beta: case["beta"].as_f64().expect("a number") },
    }
}

#[test]
fn values_and_gradients_are_those_of_trl() {
    let file: Value = serde_json::from_str(include_str!("../golden/divergence.json")).expect("JSON");
    let cases = file["cases"].as_array().expect("a list");
    assert_eq!(cases.len(), 60);
    for case in cases {
        let (how, ids, logp) = (how(case), list(&case["ids"]), list(&case["logp"]));
        let mut slopes = vec![0.0; ids.len()];
        let has_rest = ids.len() < logp.len();
        let of = how.of_row(&f32s(&case["teacher"]), &f32s(&case["student"]), has_rest, &mut slopes);
        let what = format!("{how:?} of {} tokens", ids.len());
        let value = case["value"].as_f64().expect("a number");
        assert!((f64::from(of.value) - value).abs() < 2e-6 * (1.0 + value), "{what}: {} {value}", of.value);
        let reference = list(&case["d_logits"]);
        let largest = reference.iter().fold(1.0, |most: f64, d| most.max(d.abs()));
        for (v, reference) in reference.iter().enumerate() {
            let ours = match ids.iter().position(|&id| id == v as f64) {
                Some(j) => f64::from(slopes[j]),
                None => f64::from(of.rest) * logp[v].exp(),
            };
            assert!((ours - reference).abs() < 2e-6 * largest, "{what}, logit {v}: {ours:e} {reference:e}");
        }
    }
}

#[test]
fn a_student_that_is_its_teacher_has_nothing_to_learn() {
    let logp = [-0.4, -1.3, -4.0f32];
    for how in [Divergence::Reverse, Divergence::Forward, Divergence::Jsd { beta: 0.3 }] {
        let mut slopes = [1.0; 3];
        let of = how.of_row(&logp, &logp, true, &mut slopes);
        assert!(of.value.abs() < 1e-7 && of.rest.abs() < 1e-7, "{how:?}: {of:?}");
        assert!(slopes.iter().all(|slope| slope.abs() < 1e-7), "{how:?}: {slopes:?}");
    }
    // Nothing at all, also where the list has all mass but some: an optimizer makes steps of its rate of any gradient.
    let sure = [-1e-8f32, -19.0, -19.5];
    for how in [Divergence::Reverse, Divergence::Forward] {
        let mut slopes = [1.0; 3];
        let of = how.of_row(&sure, &sure, true, &mut slopes);
        assert_eq!((of.value, of.rest, slopes), (0.0, 0.0, [0.0; 3]), "{how:?}");
    }
}

/// The list may hold all mass of one side, to the rounding of f32: numbers stay finite and in proportion.
#[test]
fn a_rest_of_no_mass_leaves_numbers_finite() {
    let (all, half) = ([-1e-8f32, -30.0], [-0.7f32, -30.0]);
    for how in [Divergence::Reverse, Divergence::Forward, Divergence::Jsd { beta: 0.5 }] {
        for (teacher, student) in [(all, half), (half, all), (all, all)] {
            let mut slopes = [0.0; 2];
            let of = how.of_row(&teacher, &student, true, &mut slopes);
            assert!(of.value.is_finite() && of.value > -1e-6, "{how:?}: {of:?}");
            assert!(slopes.iter().all(|slope| slope.abs() <= 16.0), "{how:?}: {slopes:?}");
            // The rest's tokens have p of the rest together.
            assert!(of.rest.abs() <= 1.0 / 1e-6, "{how:?}: {of:?}");
        }
    }
}

/// Differences of the divergence itself in f64, by every logit, where the student's rest counts as 1e-6 and where it
/// just does not: the gradient is that of a loss.
#[test]
fn slopes_are_those_of_the_divergence_where_the_rest_is_raised() {
    const K: usize = 3;
    let log_softmax = |logits: &[f64]| -> Vec<f64> {
        let sum = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
        logits.iter().map(|x| x - sum).collect()
    };
    let teacher = log_softmax(&[1.0, 0.6, 0.1, -0.2, -0.9]);
    // The tails have 3e-9, 2e-7 and 4e-6 of the student's mass.
    for tail in [-19.0, -15.0, -12.0] {
        let student = [0.7, 1.1, -0.4, tail, tail - 0.5];
        for how in [Divergence::Reverse, Divergence::Forward, Divergence::Jsd { beta: 0.3 }] {
            let value = |logits: &[f64]| -> f64 {
                // Of the listed tokens and the rest, as a distribution.
                let whole = |of: &[f64]| -> Vec<f64> {
                    let listed = of[..K].iter().map(|x| x.exp()).sum::<f64>();
                    let rest = (1.0 - listed).max(1e-6);
                    let sum = (listed + rest).ln();
                    of[..K].iter().copied().chain([rest.ln()]).map(|x| x - sum).collect()
                };
                let buckets = whole(&log_softmax(logits)).into_iter().zip(whole(&teacher));
                let part = |(lp, lq): (f64, f64)| match how {
                    Divergence::Reverse => lp.exp() * (lp - lq),
                    Divergence::Forward => lq.exp() * (lq - lp),
                    Divergence::Jsd { beta } => {
                        let lm = (beta * lq.exp() + (1.0 - beta) * lp.exp()).ln();
                        beta * lq.exp() * (lq - lm) + (1.0 - beta) * lp.exp() * (lp - lm)
                    }
                };
                buckets.map(part).sum()
            };
            let f32s = |of: &[f64]| of[..K].iter().map(|x| *x as f32).collect::<Vec<_>>();
            // 1e-7 is the rounding of log-probs to f32; of 4e-6 it is 3 %, of a bucket with 17 % of the teacher.
            let tolerance = if tail < -13.0 { 1e-6 } else { 8e-3 };
            let (lp, mut slopes) = (log_softmax(&student), [0.0; K]);
            let of = how.of_row(&f32s(&teacher), &f32s(&lp), true, &mut slopes);
            let mut sum = 0.0;
            for v in 0..student.len() {
                let at = |by: f64| {
                    let mut logits = student;
                    logits[v] += by;
                    value(&logits)
                };
                let reference = (at(1e-5) - at(-1e-5)) / 2e-5;
                let ours = if v < K { f64::from(slopes[v]) } else { f64::from(of.rest) * lp[v].exp() };
                assert!((ours - reference).abs() < tolerance, "{how:?} {tail} {v}: {ours:e} {reference:e}");
                sum += ours;
            }
            assert!(sum.abs() < tolerance, "{how:?} {tail}: slopes sum to {sum:e}");
        }
    }
}

#[test]
fn the_loss_is_aggregated_and_reads_no_masked_position() {
    let packed = Packed { mask: &[1.0, 0.0, 1.0, 1.0], seq_offsets: &[0, 3, 4] };
    let aggregation = Aggregation::of_batch(AggregationKind::TokenMean, packed, 1.0);
    let mut d = [9.0; 4];
    let sums = divergence_loss(1.5, packed, &[0.5, f32::NAN, 0.25, 1.0], &aggregation, &mut d);
    assert_eq!((sums.kl, sums.tokens, sums.loss), (1.75, 3.0, 1.5 * 1.75 / 3.0));
    assert_eq!(d, [0.5, 0.0, 0.5, 0.5]);
    let logprobs = [0.5f32.ln(), 0.25f32.ln(), f32::NAN, f32::NAN, -0.0, f32::NEG_INFINITY, -0.0, -50.0];
    assert!((listed_mass(packed, 2, &logprobs) - 2.75 / 3.0).abs() < 1e-7);
}
