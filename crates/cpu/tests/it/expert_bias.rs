//! Biases of experts and clamped gates against f64, for every path of the machine.

use crate::both::experts::{CASES, Case};
use crate::both::{Rig, bits, check_close, normal, paths};
use plimsoll_arch::{GATE_ALPHA, GATE_LIMIT, Gate};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_cpu::Isa;
use plimsoll_device::{Device, ExpertBiasBackward, GluExpertsBackward, RowsOf};

fn open(case: &Case, isa: Isa, threads: usize, e: DType) -> Rig {
    let mut buffers = case.buffers(&plimsoll_cpu::LAYOUTS, e, F32);
    buffers.extend([("bias", e, case.experts * case.h), ("d_bias", F32, case.experts * case.h)]);
    Rig::new(isa, threads, &buffers)
}

/// A rig whose rows are routed, and its pairs: rows, experts and weights.
fn routed(case: &Case, isa: Isa, threads: usize, e: DType) -> (Rig, Vec<(usize, usize, f64)>) {
    let rig = open(case, isa, threads, e);
    case.correct(&rig);
    rig.set("logits", &case.logits());
    rig.dev.route(rig.buf("logits"), case.routing(&rig), case.routes(&rig, case.m));
    let (pairs, experts, weights) = (rig.get_u32("pairs"), rig.get_u32("experts"), rig.get("weights"));
    let of = |&pair: &u32| {
        let i = pair as usize;
        (i / case.chosen, experts[i] as usize, f64::from(weights[i]))
    };
    let pairs = pairs.iter().map(of).collect();
    (rig, pairs)
}

/// Returns what one rounding to `e` of numbers as large as these may be off by, of each.
fn rounding(e: DType, want: &[f64]) -> Vec<f64> {
    let unit = if e == Bf16 { 1.0 / 256.0 } else { 1e-6 };
    want.iter().map(|x| x.abs() * unit + 1e-6).collect()
}

fn each(check: impl Fn(&Case, Isa, DType)) {
    for isa in paths() {
        for case in CASES {
            [Bf16, F32].into_iter().for_each(|e| check(case, isa, e));
        }
    }
}

#[test]
fn biases_are_added_to_pairs_with_their_weights_or_without() {
    each(|case, isa, e| {
        let (rig, pairs) = routed(case, isa, 2, e);
        let h = case.h;
        let (y, bias) = (normal(31, pairs.len() * h, 1.0, e), normal(32, case.experts * h, 1.0, e));
        rig.set("bias", &bias);
        for (weighs, to) in [(true, "y"), (false, "y"), (false, "y_e")] {
            rig.set(to, &y);
            rig.dev.add_expert_bias(rig.buf(to), rig.buf("bias"), case.routes(&rig, case.m), weighs);
            let want: Vec<f64> = (0..pairs.len() * h)
                .map(|i| {
                    let (_, expert, weight) = pairs[i / h];
                    let weight = if weighs { weight } else { 1.0 };
                    f64::from(y[i]) + weight * f64::from(bias[expert * h + i % h])
                })
                .collect();
            let stored = rig.buf(to).dtype();
            let what = format!("{case:?} {isa:?} {} {weighs}", e.name());
            check_close(&rig.get(to), &want, &rounding(stored, &want), 1.0, &what);
        }
    });
}

#[test]
fn gradients_of_biases_are_sums_over_pairs_and_those_of_weights_products() {
    each(|case, isa, e| {
        let h = case.h;
        let run = |threads| {
            let (rig, pairs) = routed(case, isa, threads, e);
            let (dy, bias) = (normal(33, case.m * h, 1.0, e), normal(32, case.experts * h, 1.0, e));
            rig.set("dy", &dy);
            rig.set("bias", &bias);
            rig.set("d_weights", &vec![0.5; pairs.len()]);
            let routes = case.routes(&rig, case.m);
            rig.dev.bias_weights_backward(rig.buf("dy"), rig.buf("bias"), routes, rig.buf("d_weights"));
            let d = ExpertBiasBackward {
                dy: rig.buf("dy"),
                dy_has: RowsOf::Rows,
                routes,
                weighs: true,
                grad: rig.buf("d_bias"),
                add: false,
            };
            rig.dev.expert_bias_backward(d);
            (rig, pairs, dy, bias)
        };
        let (rig, pairs, dy, bias) = run(2);
        let what = format!("{case:?} {isa:?} {}", e.name());
        let number = |x: f32| f64::from(x);
        let want: Vec<f64> = pairs
            .iter()
            .map(|&(row, expert, _)| {
                0.5 + (0..h).map(|i| number(dy[row * h + i]) * number(bias[expert * h + i])).sum::<f64>()
            })
            .collect();
        check_close(&rig.get("d_weights"), &want, &vec![h as f64; want.len()], 1e-5, &what);
        let (mut want, mut sizes) = (vec![0.0; case.experts * h], vec![1e-6; case.experts * h]);
        for &(row, expert, weight) in &pairs {
            for i in 0..h {
                let term = weight * number(dy[row * h + i]);
                want[expert * h + i] += term;
                sizes[expert * h + i] += term.abs();
            }
        }
        check_close(&rig.get("d_bias"), &want, &sizes, 1e-5, &what);
        let one = run(1).0;
        assert_eq!(bits(&one.get("d_bias")), bits(&rig.get("d_bias")), "{what}: threads");
        // The same by pairs, each with its row's gradient times its weight.
        let of_pairs: Vec<f32> = pairs.iter().flat_map(|&(row, ..)| dy[row * h..][..h].to_vec()).collect();
        rig.set("y_e", &of_pairs);
        rig.dev.expert_bias_backward(ExpertBiasBackward {
            dy: rig.buf("y_e"),
            dy_has: RowsOf::Pairs,
            routes: case.routes(&rig, case.m),
            weighs: true,
            grad: rig.buf("d_bias"),
            add: true,
        });
        let twice: Vec<f64> = want.iter().map(|x| 2.0 * x).collect();
        check_close(&rig.get("d_bias"), &twice, &sizes, 2e-5, &what);
    });
}

/// The value of a clamped gate and up, and its slopes by both.
fn clamped(g: f32, u: f32) -> [f64; 3] {
    let (limit, alpha) = (f64::from(GATE_LIMIT), f64::from(GATE_ALPHA));
    let (open_g, open_u) = (g <= GATE_LIMIT, u.abs() <= GATE_LIMIT);
    let (g, u) = (f64::from(g).min(limit), f64::from(u).clamp(-limit, limit));
    let sig = 1.0 / (1.0 + (-alpha * g).exp());
    let by_g = (u + 1.0) * sig * (1.0 + alpha * g * (1.0 - sig));
    [(u + 1.0) * g * sig, if open_g { by_g } else { 0.0 }, if open_u { g * sig } else { 0.0 }]
}

#[test]
fn clamped_gates_alternate_with_ups_and_have_no_gradient_where_they_are_clamped() {
    each(|case, isa, e| {
        let (rig, pairs) = routed(case, isa, 2, e);
        let (f, routes) = (case.f, case.routes(&rig, case.m));
        let mut x = normal(34, pairs.len() * 2 * f, 5.0, e);
        // At the limits, and far beyond them.
        x.iter_mut()
            .zip([7.0, 7.0, 7.0, -7.0, 40.0, 3.0, -300.0, 2.0, 1.0, 400.0])
            .for_each(|(x, to)| *x = to);
        let d = normal(35, pairs.len() * f, 1.0, e);
        let what = format!("{case:?} {isa:?} {}", e.name());
        rig.set("gate_up", &x);
        rig.dev.glu_experts(Gate::ClampedSilu, rig.buf("gate_up"), f, routes, rig.buf("product"));
        let of = |i: usize| clamped(x[2 * i], x[2 * i + 1]);
        let weight = |i: usize| pairs[i / f].2;
        let want: Vec<f64> = (0..pairs.len() * f).map(|i| weight(i) * of(i)[0]).collect();
        let product = rig.get("product");
        check_close(&product, &want, &rounding(e, &want), 4.0, &what);
        rig.set("d_product", &d);
        rig.dev.glu_experts_backward(GluExpertsBackward {
            how: Gate::ClampedSilu,
            gate_up: rig.buf("gate_up"),
            f,
            routes,
            dout: rig.buf("d_product"),
            d_weights: rig.buf("d_weights"),
        });
        assert_eq!(bits(&rig.get("d_product")), bits(&product), "{what}: the product again");
        let want: Vec<f64> =
            (0..x.len()).map(|i| weight(i / 2) * f64::from(d[i / 2]) * of(i / 2)[1 + i % 2]).collect();
        let got = rig.get("gate_up");
        let sizes: Vec<f64> = rounding(e, &want).iter().map(|size| size + 4e-6).collect();
        check_close(&got, &want, &sizes, 4.0, &what);
        let mut clamped = want.iter().zip(&got).filter(|(want, _)| **want == 0.0);
        assert!(clamped.all(|(_, got)| *got == 0.0), "{what}");
        let terms = |p: usize| (p * f..(p + 1) * f).map(|i| f64::from(d[i]) * of(i)[0]);
        let want: Vec<f64> = (0..pairs.len()).map(|p| terms(p).sum()).collect();
        let sizes: Vec<f64> = (0..pairs.len()).map(|p| terms(p).map(f64::abs).sum()).collect();
        check_close(&rig.get("d_weights"), &want, &sizes, 1e-5, &what);
    });
}
