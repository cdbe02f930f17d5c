//! Tokens that the sampler draws, and what it records of them.

use super::{CASES, Inputs, case, plain, softmax};
use crate::both::{Machine, Open, normal};
use plimsoll_base::DType::{Bf16, F32};
use plimsoll_device::Sampling;

pub fn what_is_recorded_equals_the_head_to_the_bit<D: Machine>(open: Open<D>) {
    let truncated = Sampling { top_k: 7, top_p: 0.8, min_p: 0.05, ..plain(1.3) };
    for &case in CASES {
        let inputs = case.inputs();
        for how in [plain(1.0), plain(0.0), plain(0.6), truncated] {
            for mut head in inputs.each(open) {
                let (tokens, sampled) = head.sample(0, case.rows, how);
                head.rig.check_guards();
                let can_be = |&t: &u32| (t as usize) < case.vocab && !case.suppressed.has(t);
                assert!(tokens.iter().all(can_be), "{case:?} {how:?}");
                head.rig.set_u32("targets", &tokens);
                let scored = head.forward(0, case.rows, how.inv_temperature());
                assert!(sampled == scored, "{case:?} {how:?}");
            }
        }
    }
}

pub fn greedy_takes_the_lowest_id_of_the_largest<D: Machine>(open: Open<D>) {
    for vocab in [1301, 20_001] {
        // Rows of W repeat after 650: every logit occurs at least twice.
        let w = normal(3, 650 * 4, 1.0, F32).into_iter().cycle().take(vocab * 4).collect();
        let inputs = Inputs { w, ..case(4, vocab, 4, F32).inputs() };
        for head in inputs.each(open) {
            for (row, &token) in head.sample(0, 4, plain(0.0)).0.iter().enumerate() {
                let logits = inputs.logits(&inputs.row(row), 1.0);
                let best = (0..650).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
                assert_eq!(token as usize, best, "row {row} of {vocab}");
            }
        }
    }
}

pub fn rows_that_are_not_finite_are_marked<D: Machine>(open: Open<D>) {
    for case in [case(5, 700, 6, Bf16), case(5, 9000, 8, Bf16)] {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut inputs = case.inputs();
            inputs.x[2 * case.k] = bad;
            for how in [plain(1.0), plain(0.0), Sampling { top_k: 3, ..plain(1.0) }] {
                for head in inputs.each(open) {
                    let (tokens, [logprobs, lse, _]) = head.sample(0, 5, how);
                    for row in 0..5 {
                        let nan = |x: &[u32]| f32::from_bits(x[row]).is_nan();
                        let marks = [tokens[row] == u32::MAX, nan(&logprobs), nan(&lse)];
                        assert_eq!(marks, [row == 2; 3], "{bad} {how:?} row {row}");
                    }
                }
            }
        }
    }
}

/// Draws of one row whose logits are `logits`: K = 1 and x = 1; drawn `rows` times by the last of a device's rigs.
fn drawn<D: Machine>(open: Open<D>, logits: &[f32], how: Sampling, rows: usize) -> Option<Vec<u32>> {
    let case = case(rows, logits.len(), 1, F32);
    let inputs = Inputs { case, x: vec![1.0; rows], w: logits.to_vec(), targets: vec![0; rows] };
    Some(inputs.each(open).pop()?.sample(0, rows, how).0)
}

/// Panics unless tokens are as frequent as they should be.
pub fn check_frequencies<D: Machine>(open: Open<D>, vocab: usize) {
    let logits = normal(4, vocab, 2.0, F32);
    for how in [plain(1.0), plain(0.5), Sampling { top_p: 0.9999999, ..plain(1.0) }] {
        let rows = 20_000;
        let mut counts = vec![0.0; vocab];
        let Some(tokens) = drawn(open, &logits, how, rows) else { return };
        tokens.iter().for_each(|&t| counts[t as usize] += 1.0);
        let scaled: Vec<f64> = logits.iter().map(|&x| f64::from(x) / f64::from(how.temperature)).collect();
        // Five standard errors, and one draw for the rarest; more on a card, where 10,000 tokens are looked at.
        let (errors, draws) = if D::KIND.name == "cpu" { (5.0, 1.0) } else { (6.0, 2.0) };
        for (token, logp) in softmax(&scaled).0.into_iter().enumerate() {
            let (expected, n) = (logp.exp(), rows as f64);
            let bound = errors * (expected * (1.0 - expected) / n).sqrt() + draws / n;
            let got = counts[token] / n;
            assert!((got - expected).abs() < bound, "{how:?} token {token}: {got} of {expected}");
        }
    }
}

pub fn frequencies_follow_the_softmax<D: Machine>(open: Open<D>) {
    for vocab in [4, 700] {
        check_frequencies(open, vocab);
    }
}

pub fn truncation_keeps_the_sets_that_the_definitions_name<D: Machine>(open: Open<D>) {
    let logits = [1.0f32, 3.0, 3.0, 0.0, 2.5, -1.0, 2.9, -30.0];
    // (top_k, top_p, min_p, kept): probabilities are about .043 .321 .321 .016 .195 .006 .290 0 before normalisation.
    let cases: &[(u32, f32, f32, &[u32])] = &[
        (1, 1.0, 0.0, &[1, 2]), // equal logits at the edge of top-k stay
        (2, 1.0, 0.0, &[1, 2]),
        (3, 1.0, 0.0, &[1, 2, 6]),
        (100, 1.0, 0.0, &[0, 1, 2, 3, 4, 5, 6]),
        (0, 0.1, 0.0, &[1]), // equal masses at the edge of top-p: the first
        (0, 0.3, 0.0, &[1, 2]),
        (0, 0.7, 0.0, &[1, 2, 6]),
        (0, 0.9, 0.0, &[1, 2, 4, 6]),
        (2, 0.9, 0.0, &[1, 2]),
        (4, 0.9, 0.0, &[1, 2, 4, 6]), // of the four: .285 .285 .258 .173
        (4, 0.8, 0.0, &[1, 2, 6]),
        (0, 1.0, 0.5, &[1, 2, 4, 6]),
        (0, 1.0, 1.0, &[1, 2]),
        (3, 0.99, 0.95, &[1, 2]),
    ];
    for &(top_k, top_p, min_p, kept) in cases {
        let how = Sampling { top_k, top_p, min_p, ..plain(1.0) };
        let Some(mut seen) = drawn(open, &logits, how, 4000) else { return };
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, kept, "{how:?}");
    }
}

/// Panics unless tokens that are drawn are those that the definitions keep.
pub fn check_draws<D: Machine>(open: Open<D>, vocab: usize, spread: f32) {
    let logits = normal(11, vocab, spread, F32);
    for (top_k, top_p, min_p) in
        [(50, 1.0, 0.0), (2000, 1.0, 0.0), (0, 0.6, 0.0), (50, 0.9, 0.0), (0, 1.0, 0.02), (300, 0.95, 0.01)]
    {
        let how = Sampling { top_k, top_p, min_p, ..plain(0.9) };
        let kept = kept_by_sorting(&logits, &how);
        let Some(mut seen) = drawn(open, &logits, how, 2000) else { return };
        assert!(seen.iter().all(|token| kept.contains(token)), "{how:?} of {vocab}");
        seen.sort_unstable();
        seen.dedup();
        // Every token of one per cent or more of the kept mass shows up in 2,000 draws.
        let mass = |t: u32| (f64::from(logits[t as usize]) / 0.9).exp();
        let total: f64 = kept.iter().map(|&t| mass(t)).sum();
        assert!(kept.iter().all(|t| mass(*t) < 0.01 * total || seen.contains(t)), "{how:?} of {vocab}");
    }
}

pub fn draws_stay_inside_the_set_that_sorting_gives<D: Machine>(open: Open<D>) {
    for (vocab, spread) in [(3001, 1.0), (3001, 6.0), (520, 3.0)] {
        check_draws(open, vocab, spread);
    }
}

/// The definition: sort, cut by number, by cumulated mass, by share of the largest.
fn kept_by_sorting(logits: &[f32], how: &Sampling) -> Vec<u32> {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    if how.top_k > 0 {
        order.truncate(how.top_k as usize);
    }
    let mass = |t: u32| (f64::from(logits[t as usize]) / f64::from(how.temperature)).exp();
    let (total, mut before) = (order.iter().map(|&t| mass(t)).sum::<f64>(), 0.0);
    let largest = mass(order[0]);
    order.retain(|&t| {
        let keep = before < f64::from(how.top_p) * total && mass(t) >= f64::from(how.min_p) * largest;
        before += mass(t);
        keep
    });
    order
}

/// Panics unless draws are the same in other company, and others with another seed.
pub fn check_keys<D: Machine>(open: Open<D>, vocab: usize) {
    let inputs = case(700, vocab, 16, Bf16).inputs();
    for how in [plain(1.0), Sampling { top_p: 0.9, ..plain(1.0) }] {
        let Some(head) = inputs.each(open).pop() else { return };
        let (tokens, _) = head.sample(0, 700, how);
        for (first, rows) in [(0, 7), (33, 1), (500, 200)] {
            assert_eq!(head.sample(first, rows, how).0, tokens[first..first + rows], "{how:?} of {vocab}");
        }
        assert_ne!(head.sample(0, 700, Sampling { seed: 6, ..how }).0, tokens);
    }
}

pub fn a_draw_depends_on_its_key_alone<D: Machine>(open: Open<D>) {
    check_keys(open, 1301);
}
