//! Routing of rows to experts: the choice, weights and gradients of every kind of router, against f64.
#![allow(dead_code)] // Each binary uses its part.

use super::experts::{Case, FACTOR, segments};
use super::{Machine, Rig, bits, check_close, normal, round};
use plimsoll_base::DType::{self, F32};
use plimsoll_device::CORRECTION_TERMS;

/// Writes corrections as sums of three numbers of the dtype.
pub fn set_corrections<D: Machine>(rig: &Rig<D>, corrections: &[f32]) {
    let e = rig.buf("correction").dtype();
    let (mut rest, mut terms) = (corrections.to_vec(), vec![]);
    for _ in 0..CORRECTION_TERMS {
        let rounded: Vec<f32> = rest.iter().map(|&x| round(x, e)).collect();
        rest.iter_mut().zip(&rounded).for_each(|(rest, term)| *rest -= term);
        terms.extend(rounded);
    }
    assert!(rest.iter().all(|&rest| rest == 0.0));
    rig.set("correction", &terms);
}

/// The numbers of a row, of which the largest are chosen: logits, or scores with corrections in the row's groups.
fn keys(case: &Case, row: &[f32], corrections: &[f32]) -> Vec<f32> {
    let Some([groups, groups_chosen]) = case.sigmoid else { return row.to_vec() };
    let score = |(&x, correction): (&f32, &f32)| (1.0 / (1.0 + (-f64::from(x)).exp())) as f32 + correction;
    let mut keys: Vec<f32> = row.iter().zip(corrections).map(score).collect();
    let size = case.experts / groups;
    let of_group = |of: &[f32]| largest(of, 2).iter().map(|&expert| of[expert as usize]).sum::<f32>();
    if groups_chosen < groups {
        let sums: Vec<f32> = keys.chunks(size).map(of_group).collect();
        let kept = largest(&sums, groups_chosen);
        for (group, keys) in (0u32..).zip(keys.chunks_mut(size)) {
            if !kept.contains(&group) {
                keys.fill(f32::NEG_INFINITY);
            }
        }
    }
    keys
}

/// The indices of the largest numbers, ascending; NaN before all, ties by the lower index.
fn largest(of: &[f32], count: usize) -> Vec<u32> {
    let rank = |x: f32| if x.is_nan() { f32::INFINITY } else { x };
    let mut all: Vec<u32> = (0..of.len() as u32).collect();
    // A stable sort: ties keep their order.
    all.sort_by(|&a, &b| rank(of[b as usize]).total_cmp(&rank(of[a as usize])));
    all.truncate(count);
    all.sort_unstable();
    all
}

/// The tables that a router should make: experts of each row, pairs, places and starts.
fn tables(case: &Case, logits: &[f32], corrections: &[f32]) -> [Vec<u32>; 4] {
    let of_row = |row: &[f32]| largest(&keys(case, row, corrections), case.chosen);
    let experts: Vec<u32> = logits.chunks(case.experts).flat_map(of_row).collect();
    let mut pairs: Vec<u32> = (0..experts.len() as u32).collect();
    pairs.sort_by_key(|&pair| experts[pair as usize]);
    let mut places = vec![0; pairs.len()];
    pairs.iter().enumerate().for_each(|(place, &pair)| places[pair as usize] = place as u32);
    let starts = (0..=case.experts as u32)
        .map(|e| experts.iter().filter(|&&expert| expert < e).count() as u32)
        .collect();
    [experts, pairs, places, starts]
}

fn probabilities(row: &[f32]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f32::MIN, f32::max);
    let exps: Vec<f64> = row.iter().map(|&x| (f64::from(x) - f64::from(largest)).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|x| x / sum).collect()
}

fn sigmoids(row: &[f32]) -> Vec<f64> {
    row.iter().map(|&x| 1.0 / (1.0 + (-f64::from(x)).exp())).collect()
}

/// The weights of all pairs in f64, in the order of `experts`.
fn weights(case: &Case, logits: &[f32], experts: &[u32]) -> Vec<f64> {
    let of_row = |(row, chosen): (&[f32], &[u32])| {
        let is_sigmoid = case.sigmoid.is_some();
        let p = if is_sigmoid { sigmoids(row) } else { probabilities(row) };
        let all: Vec<f64> = chosen.iter().map(|&e| p[e as usize]).collect();
        let sum: f64 = if case.normalizes { all.iter().sum() } else { 1.0 };
        let by = if is_sigmoid { f64::from(FACTOR) } else { 1.0 } / sum;
        all.into_iter().map(move |w| w * by).collect::<Vec<_>>()
    };
    logits.chunks(case.experts).zip(experts.chunks(case.chosen)).flat_map(of_row).collect()
}

fn check_tables<D: Machine>(case: &Case, rig: &Rig<D>, (logits, corrections): (&[f32], &[f32]), what: &str) {
    let names = ["experts", "pairs", "places", "starts"];
    for (want, name) in tables(case, logits, corrections).iter().zip(names) {
        assert_eq!(&rig.get_u32(name), want, "{name} of {what}");
    }
}

/// Panics unless rows go to the experts with the largest logits, ties and NaN included, with the weights of f64.
pub fn check_routing<D: Machine>(case: &Case, rig: &mut Rig<D>, e: DType, how: &str) {
    let what = format!("{case:?}, {how}");
    case.fill(rig, e);
    let mut logits = case.logits();
    let routes = case.routes(rig, case.m);
    rig.dev.route(rig.buf("logits"), case.routing(rig), routes);
    check_tables(case, rig, (&logits, &case.corrections()), &what);
    let want = weights(case, &logits, &rig.get_u32("experts"));
    check_close(&rig.get("weights"), &want, &want, 2e-6, &format!("weights of {what}"));
    // A row that is all ties, one of NaN, one with a NaN, and one of which one logit is left.
    for (m, row) in logits.chunks_mut(case.experts).enumerate() {
        match m % 4 {
            0 => row.fill(0.25),
            1 => row.fill(f32::NAN),
            2 => row[case.experts / 2] = f32::NAN,
            _ => row[1..].fill(-1e30),
        }
    }
    rig.set("logits", &logits);
    let none = vec![0.0; case.experts];
    set_corrections(rig, &none);
    rig.dev.route(rig.buf("logits"), case.routing(rig), routes);
    check_tables(case, rig, (&logits, &none), &format!("rows of ties and NaN, {what}"));
    let is_alone = case.sigmoid.is_some() && !case.normalizes;
    let most = if case.sigmoid.is_some() { FACTOR } else { 1.0 };
    for (m, weights) in rig.get("weights").chunks(case.chosen).enumerate() {
        let of_ties = if is_alone {
            most * sigmoids(&[0.25])[0] as f32
        } else {
            most / if case.normalizes { case.chosen } else { case.experts } as f32
        };
        let of_one =
            if is_alone { most * sigmoids(&logits[m * case.experts..][..1])[0] as f32 } else { most };
        match m % 4 {
            0 => assert!(weights.iter().all(|w| (w - of_ties).abs() < 1e-6), "{weights:?} of {what}"),
            2 if is_alone => assert!(weights.iter().any(|w| w.is_nan()), "{weights:?} of {what}"),
            3 => {
                let is_one = (weights[0] - of_one).abs() <= 2e-6 * of_one;
                assert!(is_one && weights[1..].iter().all(|&w| w < 1e-30), "{weights:?} of {what}")
            }
            _ => assert!(weights.iter().all(|w| w.is_nan()), "{weights:?} of {what}"),
        }
    }
    rig.check_guards();
}

/// Panics unless the gradient by the logits is that of f64, with and without the loss of balance.
pub fn check_route_backward<D: Machine>(case: &Case, rig: &mut Rig<D>, e: DType, how: &str) {
    let &Case { m, experts, chosen, .. } = case;
    let what = |of: &str| format!("{of} of {case:?}, {}, {how}", e.name());
    case.fill(rig, e);
    rig.dev.route(rig.buf("logits"), case.routing(rig), case.routes(rig, m));
    let d_weights = normal(9, case.pairs(), 1.0, F32);
    rig.set("d_weights", &d_weights);
    let (logits, of, places) = (case.logits(), rig.get_u32("experts"), rig.get_u32("places"));
    for balance in [None, Some(0.7), Some(0.0)] {
        let (mut want, mut rows) = (vec![0.0; m * experts], vec![0.0; m]);
        // The parent is in as many sequences as it has children.
        let children = |first: usize| if first == 0 { segments(m).len().max(2) - 1 } else { 1 };
        for (first, n) in segments(m) {
            let all = &of[first * chosen..(first + n) * chosen];
            let shares: Vec<f64> = (0..experts).map(|expert| share(all, expert) / n as f64).collect();
            for row in first..first + n {
                let s = case.sigmoid.map(|_| sigmoids(&logits[row * experts..][..experts]));
                let all: f64 = s.iter().flatten().sum();
                let p = match &s {
                    Some(s) => s.iter().map(|s| s / all).collect(),
                    None => probabilities(&logits[row * experts..][..experts]),
                };
                let mut dp = vec![0.0; experts];
                let mine = row * chosen..(row + 1) * chosen;
                let sum: f64 = of[mine.clone()].iter().map(|&e| p[e as usize]).sum();
                // A score is a probability times the sum of all.
                let of_scores = f64::from(FACTOR) * if case.normalizes { 1.0 } else { all };
                let by = if s.is_some() { of_scores } else { 1.0 };
                let d = |j: usize| f64::from(d_weights[places[j] as usize]);
                let mean: f64 = mine.clone().map(|j| d(j) * p[of[j] as usize] / sum).sum();
                for j in mine {
                    dp[of[j] as usize] += if case.normalizes { (d(j) - mean) / sum } else { d(j) } * by;
                }
                // Weights do not depend on the sum of all scores.
                let direct =
                    if s.is_some() { std::mem::replace(&mut dp, vec![0.0; experts]) } else { vec![] };
                if let Some(factor) = balance {
                    let factor = f64::from(factor) * children(first) as f64;
                    dp.iter_mut().zip(&shares).for_each(|(dp, share)| *dp += factor * share);
                    let sum: f64 = p.iter().zip(&shares).map(|(p, share)| p * share).sum();
                    rows[row] = children(first) as f64 * sum;
                }
                let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
                let to = &mut want[row * experts..][..experts];
                to.iter_mut().zip(&p).zip(&dp).for_each(|((to, p), dp)| *to = p * (dp - mean));
                for (expert, s) in s.iter().flatten().enumerate() {
                    to[expert] = (to[expert] + p[expert] * direct[expert]) * (1.0 - s);
                }
            }
        }
        rig.dev.route_backward(case.args(rig, "d_logits", balance.map(|b: f32| b)));
        close_enough(&rig.get("d_logits"), &want, &what(&format!("d logits with {balance:?}")));
        if balance.is_some() {
            let sizes: Vec<f64> = rows.iter().map(|row| row.max(1.0)).collect();
            check_close(&rig.get("rows"), &rows, &sizes, 2e-6, &what("balance of rows"));
        }
        let exact = rig.get("d_logits");
        if case.normalizes && balance.is_none() {
            for (row, of) in of.chunks_exact(chosen).enumerate() {
                let mut others = (0..experts).filter(|&expert| !of.contains(&(expert as u32)));
                let is_zero = others.all(|expert| exact[row * experts + expert] == 0.0);
                assert!(is_zero, "{}: row {row} has some that no weight depends on", what("d logits"));
            }
        }
        rig.dev.route_backward(case.args(rig, "d_logits_e", balance));
        let rounded: Vec<f32> = exact.iter().map(|&x| round(x, e)).collect();
        assert_eq!(bits(&rig.get("d_logits_e")), bits(&rounded), "{}", what("d logits, rounded"));
    }
    rig.check_guards();
}

/// Returns how many of `chosen` are an expert.
fn share(chosen: &[u32], expert: usize) -> f64 {
    chosen.iter().filter(|&&e| e as usize == expert).count() as f64
}

/// Within what f32 loses where derivatives cancel.
fn close_enough(got: &[f32], want: &[f64], what: &str) {
    check_close(got, want, &vec![1.0; want.len()], 3e-6, what);
}
