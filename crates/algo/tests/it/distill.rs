//! Distillation against KLs and gradients by definition (`golden/distill.json`, which `golden/distill.py` writes in
//! f64): a student of three tokens and two positions, with all of its nine responses.
//!
//! Tolerance: 1e-6, a few units in the last place of the f32 in which log-probs and advantages are stored.

use plimsoll_algo::aggregation::{Aggregation, AggregationKind};
use plimsoll_algo::distill::add_teacher_advantages;
use plimsoll_algo::method::Method;
use plimsoll_algo::packed::Packed;
use plimsoll_algo::policy_loss::{PolicyBatch, PolicyLoss, policy_loss};
use serde_json::Value;

const VOCABULARY: usize = 3;

struct Row {
    logp: Vec<f64>,
    teacher_logp: Vec<f64>,
    advantages: Vec<f64>,
    kl: f64,
    d_kl: Vec<f64>,
}

/// The coefficient, and the distributions: of the first token, then of the second one after each first.
fn golden() -> (f64, Vec<Row>) {
    let file: Value = serde_json::from_str(include_str!("../golden/distill.json")).expect("JSON");
    let number = |value: &Value| value.as_f64().expect("a number");
    let list = |value: &Value| value.as_array().expect("a list").iter().map(number).collect::<Vec<f64>>();
    let row = |row: &Value| Row {
        logp: list(&row["logp"]),
        teacher_logp: list(&row["teacher_logp"]),
        advantages: list(&row["advantages"]),
        kl: number(&row["kl"]),
        d_kl: list(&row["d_kl"]),
    };
    (number(&file["coef"]), file["rows"].as_array().expect("a list").iter().map(row).collect())
}

fn close(what: &str, ours: f64, reference: f64) {
    assert!((ours - reference).abs() < 1e-6, "{what}: ours {ours:e}, reference {reference:e}");
}

/// Advantages and d loss / d l of a response whose tokens are drawn from `rows`.
fn of_response(loss: &PolicyLoss, coef: f64, rows: [&Row; 2], tokens: [usize; 2]) -> ([f32; 2], [f32; 2]) {
    let packed = Packed { mask: &[1.0; 2], seq_offsets: &[0, 2] };
    let of = |pick: fn(&Row) -> &[f64]| [0, 1].map(|t| pick(rows[t])[tokens[t]] as f32);
    let (logp, teacher) = (of(|row| &row.logp), of(|row| &row.teacher_logp));
    let (mut advantages, mut d_logp) = ([0.0; 2], [0.0; 2]);
    add_teacher_advantages(coef, packed, &logp, &teacher, &mut advantages);
    let batch = PolicyBatch { packed, logp: &logp, old_logp: &logp, advantages: &advantages, weights: None };
    let aggregation = Aggregation::of_batch(AggregationKind::TokenSum, packed, 1.0);
    policy_loss(loss, &batch, &aggregation, &mut d_logp);
    (advantages, d_logp)
}

#[test]
fn advantages_are_those_of_the_definition() {
    let (coef, rows) = golden();
    let loss = PolicyLoss::Reinforce;
    for (first, second) in (0..VOCABULARY).flat_map(|i| (0..VOCABULARY).map(move |k| (i, k))) {
        let of = [&rows[0], &rows[1 + first]];
        let (advantages, _) = of_response(&loss, coef, of, [first, second]);
        close("first", f64::from(advantages[0]), of[0].advantages[first]);
        close("second", f64::from(advantages[1]), of[1].advantages[second]);
    }
}

/// The mean of the loss's gradient over all that the student may sample is coef times the gradient of the reverse KL at
/// each position, with prefixes as the student draws them; the mean of d is that KL.
#[test]
fn the_expected_gradient_is_that_of_the_reverse_kl() {
    let (coef, rows) = golden();
    let method = Method::Distill.spec().sampling.expect("it samples").loss;
    for loss in [method, PolicyLoss::Reinforce] {
        // By distribution and logit.
        let mut gradient = [[0.0f64; VOCABULARY]; 4];
        let mut kl = [0.0f64; 2];
        for first in 0..VOCABULARY {
            for second in 0..VOCABULARY {
                let of = [&rows[0], &rows[1 + first]];
                let tokens = [first, second];
                let chance = (of[0].logp[first] + of[1].logp[second]).exp();
                let (advantages, d_logp) = of_response(&loss, coef, of, tokens);
                for (t, place) in [0, 1 + first].into_iter().enumerate() {
                    kl[t] -= chance * f64::from(advantages[t]) / coef;
                    for (k, sum) in gradient[place].iter_mut().enumerate() {
                        // d l / d z_k = [k is the token] - p_k.
                        let d_logit = f64::from(u8::from(k == tokens[t])) - rows[place].logp[k].exp();
                        *sum += chance * f64::from(d_logp[t]) * d_logit;
                    }
                }
            }
        }
        let drawn = |place: usize| if place == 0 { 1.0 } else { rows[0].logp[place - 1].exp() };
        for (place, row) in rows.iter().enumerate() {
            for (k, (ours, d_kl)) in gradient[place].iter().zip(&row.d_kl).enumerate() {
                let what = format!("{:?}: distribution {place}, logit {k}", loss.kind());
                close(&what, *ours, coef * drawn(place) * d_kl);
            }
        }
        close("the first KL", kl[0], rows[0].kl);
        close("the second KL", kl[1], (1..4).map(|place| drawn(place) * rows[place].kl).sum());
    }
}
