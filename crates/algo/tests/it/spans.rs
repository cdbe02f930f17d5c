//! Distillation over spans against KLs by definition and their derivatives by differences (`golden/spans.json`, which
//! `golden/spans.py` writes in f64): all texts of two letters, of which one side has a token a letter, the other one a
//! text.
//!
//! Tolerance: 1e-6, a few units in the last place of the f32 in which log-probs and advantages are stored; differences
//! of fourth order are exact to about 1e-12.

use plimsoll_algo::aggregation::{Aggregation, AggregationKind};
use plimsoll_algo::method::Method;
use plimsoll_algo::packed::Packed;
use plimsoll_algo::policy_loss::{PolicyBatch, policy_loss};
use plimsoll_algo::spans::{TokenSpan, add_span_advantages};
use serde_json::Value;

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn list(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(number).collect()
}

fn lists(value: &Value) -> Vec<Vec<f64>> {
    value.as_array().expect("a list").iter().map(list).collect()
}

/// The mean over all texts of d, and of the loss's derivatives by the student's logits.
fn means(case: &Value, coef: f64) -> (f64, Vec<Vec<f64>>) {
    let (logp, teacher) = (lists(&case["logp"]), lists(&case["teacher_logp"]));
    let probabilities = lists(&case["probabilities"]);
    let loss = Method::Distill.spec().sampling.expect("it samples").loss;
    let mut gradient: Vec<Vec<f64>> = probabilities.iter().map(|row| vec![0.0; row.len()]).collect();
    let mut kl = 0.0;
    for text in 0..4 {
        let chance = logp[text].iter().sum::<f64>().exp();
        let old: Vec<f32> = logp[text].iter().map(|&l| l as f32).collect();
        let of_teacher: Vec<f32> = teacher[text].iter().map(|&l| l as f32).collect();
        let n = old.len();
        let span = TokenSpan { student: 0..n as u32, teacher: 0..of_teacher.len() as u32 };
        let (mask, offsets) = (vec![1.0; n], [0, n]);
        let packed = Packed { mask: &mask, seq_offsets: &offsets };
        let (mut advantages, mut d_logp) = (vec![0.0; n], vec![0.0; n]);
        let sums = add_span_advantages(coef, packed, &[span], &old, &of_teacher, &mut advantages);
        kl += chance * sums.kl;
        let batch =
            PolicyBatch { packed, logp: &old, old_logp: &old, advantages: &advantages, weights: None };
        let aggregation = Aggregation::of_batch(AggregationKind::TokenSum, packed, 1.0);
        policy_loss(&loss, &batch, &aggregation, &mut d_logp);
        // The distribution and the choice of each token.
        let drawn = if n == 1 { vec![(0, text)] } else { vec![(0, text / 2), (1 + text / 2, text % 2)] };
        for (t, (row, token)) in drawn.into_iter().enumerate() {
            for (k, sum) in gradient[row].iter_mut().enumerate() {
                // d l / d z_k = [k is the token] - p_k.
                *sum +=
                    chance * f64::from(d_logp[t]) * (f64::from(u8::from(k == token)) - probabilities[row][k]);
            }
        }
    }
    (kl, gradient)
}

#[test]
fn the_expected_gradient_is_that_of_the_reverse_kl_of_a_span() {
    let file: Value = serde_json::from_str(include_str!("../golden/spans.json")).expect("JSON");
    let coef = number(&file["coef"]);
    let cases = file["cases"].as_array().expect("a list");
    assert_eq!(cases.len(), 2);
    for case in cases {
        let (kl, gradient) = means(case, coef);
        assert!((kl - number(&case["kl"])).abs() < 1e-6, "{}: KL {kl}", case["name"]);
        assert!(number(&case["kl"]) > 0.05, "{}", case["name"]);
        for (row, d_kl) in lists(&case["d_kl"]).into_iter().enumerate() {
            for (k, d_kl) in d_kl.into_iter().enumerate() {
                let ours = gradient[row][k];
                assert!((ours - coef * d_kl).abs() < 1e-6, "{}: {row} {k}: {ours} {d_kl}", case["name"]);
            }
        }
    }
}
