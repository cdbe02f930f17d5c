//! Biases of experts and clamped gates against f64, and products of experts in MXFP4 against those of their numbers.
#![allow(dead_code)] // Each binary uses its part.

use super::experts::{CASES, Case, Load};
use super::{Machine, Open, Rig, bits, blocks, check_close, normal};
use plimsoll_arch::{GATE_ALPHA, GATE_LIMIT, Gate};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_base::Encoding::{self, Mxfp4};
use plimsoll_device::{ExpertBiasBackward, Experts, GluExpertsBackward, RowsOf};

/// Routes a rig's rows, and returns its pairs: rows, experts and weights.
fn route<D: Machine>(case: &Case, rig: &Rig<D>) -> Vec<(usize, usize, f64)> {
    case.correct(rig);
    rig.set("logits", &case.logits());
    rig.dev.route(rig.buf("logits"), case.routing(rig), case.routes(rig, case.m));
    let (pairs, experts, weights) = (rig.get_u32("pairs"), rig.get_u32("experts"), rig.get("weights"));
    let of = |&pair: &u32| {
        let i = pair as usize;
        (i / case.chosen, experts[i] as usize, f64::from(weights[i]))
    };
    pairs.iter().map(of).collect()
}

/// Returns what one rounding to `e` of numbers as large as these may be off by, of each.
fn rounding(e: DType, want: &[f64]) -> Vec<f64> {
    let unit = if e == Bf16 { 1.0 / 256.0 } else { 1e-6 };
    want.iter().map(|x| x.abs() * unit + 1e-6).collect()
}

/// Runs a check of each case and dtype on rigs of a device.
fn each<D: Machine>(open: Open<D>, check: impl Fn(&Case, &mut Rig<D>, DType, &str)) {
    for (case, e) in CASES.iter().flat_map(|case| [(case, Bf16), (case, F32)]) {
        let mut buffers = case.buffers(D::KIND, e, F32);
        buffers.extend([("bias", e, case.experts * case.h), ("d_bias", F32, case.experts * case.h)]);
        for rig in &mut open(&buffers) {
            check(case, rig, e, &format!("{case:?} {}", e.name()));
            rig.check_guards();
        }
    }
}

pub fn biases_are_added_to_pairs_with_their_weights_or_without<D: Machine>(open: Open<D>) {
    each(open, |case, rig, e, what| {
        let (pairs, h) = (route(case, rig), case.h);
        let (y, bias) = (normal(31, pairs.len() * h, 1.0, e), normal(32, case.experts * h, 1.0, e));
        rig.set("bias", &bias);
        for (weighs, to) in [(true, "y"), (false, "y"), (false, "y_e")] {
            rig.set(to, &y);
            rig.dev.add_expert_bias(rig.buf(to), rig.buf("bias"), case.routes(rig, case.m), weighs);
            let want: Vec<f64> = (0..pairs.len() * h)
                .map(|i| {
                    let (_, expert, weight) = pairs[i / h];
                    let weight = if weighs { weight } else { 1.0 };
                    f64::from(y[i]) + weight * f64::from(bias[expert * h + i % h])
                })
                .collect();
            let stored = rig.buf(to).dtype();
            check_close(&rig.get(to), &want, &rounding(stored, &want), 1.0, &format!("{what} {weighs}"));
        }
    });
}

/// Multiplies weights of pairs by a number of each expert, as Gemma 4 does, and computes the gradient of the numbers.
pub fn a_bias_of_one_output_is_a_number_that_weighs_an_expert<D: Machine>(open: Open<D>) {
    each(open, |case, rig, e, what| {
        let pairs = route(case, rig);
        let (factors, dy) = (normal(34, case.experts, 1.0, e), normal(35, pairs.len(), 1.0, F32));
        rig.set("bias", &[factors.clone(), vec![0.0; case.experts * (case.h - 1)]].concat());
        let number_of = |name: &str| rig.buf(name).slice(0, case.experts);
        let (routes, to) = (case.routes(rig, case.m), rig.buf("d_weights"));
        rig.dev.zero(to);
        rig.dev.add_expert_bias(to, number_of("bias"), routes, true);
        let weighed: Vec<f64> =
            pairs.iter().map(|&(_, expert, weight)| weight * f64::from(factors[expert])).collect();
        check_close(&rig.get("d_weights"), &weighed, &rounding(F32, &weighed), 1.0, what);
        rig.set("d_weights", &dy);
        let (dy_has, grad) = (RowsOf::Pairs, number_of("d_bias"));
        rig.dev.expert_bias_backward(ExpertBiasBackward {
            dy: to,
            dy_has,
            routes,
            weighs: true,
            grad,
            add: false,
        });
        let (mut want, mut sizes) = (vec![0.0; case.experts], vec![1e-6; case.experts]);
        for (&(_, expert, weight), dy) in pairs.iter().zip(dy) {
            want[expert] += weight * f64::from(dy);
            sizes[expert] += (weight * f64::from(dy)).abs();
        }
        check_close(&rig.get("d_bias")[..case.experts], &want, &sizes, 1e-5, what);
    });
}

/// Adds the gradient of biases to what is there, or writes it.
fn sum_biases<D: Machine>(case: &Case, rig: &Rig<D>, (dy, dy_has): (&str, RowsOf), add: bool) {
    let (routes, grad) = (case.routes(rig, case.m), rig.buf("d_bias"));
    let dy = rig.buf(dy);
    rig.dev.expert_bias_backward(ExpertBiasBackward { dy, dy_has, routes, weighs: true, grad, add });
}

pub fn gradients_of_biases_are_sums_over_pairs_and_those_of_weights_products<D: Machine>(open: Open<D>) {
    each(open, |case, rig, e, what| {
        let (pairs, h) = (route(case, rig), case.h);
        let (dy, bias) = (normal(33, case.m * h, 1.0, e), normal(32, case.experts * h, 1.0, e));
        rig.set("dy", &dy);
        rig.set("bias", &bias);
        rig.set("d_weights", &vec![0.5; pairs.len()]);
        let routes = case.routes(rig, case.m);
        rig.dev.bias_weights_backward(rig.buf("dy"), rig.buf("bias"), routes, rig.buf("d_weights"));
        sum_biases(case, rig, ("dy", RowsOf::Rows), false);
        let number = |x: f32| f64::from(x);
        let want: Vec<f64> = pairs
            .iter()
            .map(|&(row, expert, _)| {
                0.5 + (0..h).map(|i| number(dy[row * h + i]) * number(bias[expert * h + i])).sum::<f64>()
            })
            .collect();
        check_close(&rig.get("d_weights"), &want, &vec![h as f64; want.len()], 1e-5, what);
        let (mut want, mut sizes) = (vec![0.0; case.experts * h], vec![1e-6; case.experts * h]);
        for &(row, expert, weight) in &pairs {
            for i in 0..h {
                let term = weight * number(dy[row * h + i]);
                want[expert * h + i] += term;
                sizes[expert * h + i] += term.abs();
            }
        }
        let once = rig.get("d_bias");
        check_close(&once, &want, &sizes, 1e-5, what);
        sum_biases(case, rig, ("dy", RowsOf::Rows), false);
        assert_eq!(bits(&rig.get("d_bias")), bits(&once), "{what}: again");
        // The same by pairs, each with its row's gradient times its weight.
        let of_pairs: Vec<f32> = pairs.iter().flat_map(|&(row, ..)| dy[row * h..][..h].to_vec()).collect();
        rig.set("y_e", &of_pairs);
        sum_biases(case, rig, ("y_e", RowsOf::Pairs), true);
        let twice: Vec<f64> = want.iter().map(|x| 2.0 * x).collect();
        check_close(&rig.get("d_bias"), &twice, &sizes, 2e-5, what);
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

pub fn clamped_gates_alternate_with_ups_and_have_no_gradient_where_they_are_clamped<D: Machine>(
    open: Open<D>,
) {
    each(open, |case, rig, e, what| {
        let (pairs, f, routes) = (route(case, rig), case.f, case.routes(rig, case.m));
        let mut x = normal(34, pairs.len() * 2 * f, 5.0, e);
        // At the limits, and far beyond them.
        x.iter_mut()
            .zip([7.0, 7.0, 7.0, -7.0, 40.0, 3.0, -300.0, 2.0, 1.0, 400.0])
            .for_each(|(x, to)| *x = to);
        let d = normal(35, pairs.len() * f, 1.0, e);
        rig.set("gate_up", &x);
        rig.dev.glu_experts(Gate::ClampedSilu, rig.buf("gate_up"), f, routes, rig.buf("product"));
        let of = |i: usize| clamped(x[2 * i], x[2 * i + 1]);
        let weight = |i: usize| pairs[i / f].2;
        let want: Vec<f64> = (0..pairs.len() * f).map(|i| weight(i) * of(i)[0]).collect();
        let product = rig.get("product");
        check_close(&product, &want, &rounding(e, &want), 4.0, what);
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
        check_close(&got, &want, &sizes, 4.0, what);
        let mut clamped = want.iter().zip(&got).filter(|(want, _)| **want == 0.0);
        assert!(clamped.all(|(_, got)| *got == 0.0), "{what}");
        let terms = |p: usize| (p * f..(p + 1) * f).map(|i| f64::from(d[i]) * of(i)[0]);
        let want: Vec<f64> = (0..pairs.len()).map(|p| terms(p).sum()).collect();
        let sizes: Vec<f64> = (0..pairs.len()).map(|p| terms(p).map(f64::abs).sum()).collect();
        check_close(&rig.get("d_weights"), &want, &sizes, 1e-5, what);
    });
}

const fn coded(m: usize, h: usize, f: usize, load: Load) -> Case {
    Case { m, h, f, experts: 8, chosen: 2, normalizes: true, load, sigmoid: None }
}

/// Products of experts, and their rows in codes: of several steps, and of one and a half; of odd numbers of tiles.
const CODED: [(Case, &[(Encoding, usize)]); 2] = [
    (coded(320, 320, 72, Load::Even), &[(Mxfp4, 8 * 144)]),
    (coded(90, 96, 16, Load::Skewed), &[(Mxfp4, 8 * 32)]),
];

pub fn products_of_experts_in_codes_have_the_bits_of_their_numbers<D: Machine>(open: Open<D>) {
    for ((case, parts), e) in CODED.into_iter().flat_map(|of| [(of, Bf16), (of, F32)]) {
        let Case { h: k, experts, chosen, .. } = case;
        let (n, p) = (2 * case.f, case.pairs());
        let coded = blocks::buffers(D::KIND, (parts, k), e);
        let room = coded.last().expect("the widened matrix").2;
        let mut buffers = vec![("of_pairs", e, p * k), ("room", e, room)];
        buffers.extend(coded.into_iter().chain(case.buffers(D::KIND, e, F32)));
        buffers.extend([
            ("want", F32, p * n),
            ("got", F32, p * n),
            ("want_e", e, p * n),
            ("got_e", e, p * n),
        ]);
        for rig in &mut open(&buffers) {
            let codes = blocks::fill(rig, (parts, k));
            let [numbers, room] = ["dense", "room"].map(|name| rig.matrix(name, experts * n, k, e));
            rig.dev.dequantize(codes, numbers);
            rig.set("logits", &case.logits());
            rig.set("x", &normal(41, case.m * k, 1.0, e));
            rig.set("of_pairs", &normal(42, p * k, 1.0, e));
            // An expert has less than one pair on average, then up to as many as the widest tile has.
            for m in [1, 7, 30, 70, 90, 320].into_iter().filter(|m| *m <= case.m) {
                let (routes, pairs) = (case.routes(rig, m), m * chosen);
                rig.dev.route(rig.buf("logits").slice(0, m * experts), case.routing(rig), routes);
                for (name, rows, has) in [("x", m, RowsOf::Rows), ("of_pairs", pairs, RowsOf::Pairs)] {
                    let x = rig.buf(name).slice(0, rows * k);
                    for [want, got] in [["want", "got"], ["want_e", "got_e"]] {
                        let part = |name| rig.buf(name).slice(0, pairs * n);
                        rig.dev.matmul_experts(x, has, Experts::cut(numbers, experts), routes, part(want));
                        rig.dev.matmul_experts_codes(x, has, codes, room, routes, part(got));
                        let [want, got] = [want, got].map(|name| bits(&rig.get(name)[..pairs * n]));
                        assert!(want == got, "{case:?}, {m} rows of {name}, {}", e.name());
                    }
                }
            }
            rig.check_guards();
        }
    }
}
