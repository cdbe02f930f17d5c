//! Norms, gates, rows picked and added, casts and sums over rows, against f64.

use super::{Machine, Open, Rig, bits, check_norm, f64s, normal, round};
use plimsoll_arch::Gate;
use plimsoll_base::DType::{self, Bf16, F32, U32};
use plimsoll_device::{Norm, NormGrads};

const BOTH: [DType; 2] = [F32, Bf16];
/// On a card: rows shared by a warp, by blocks of 256 and 512 threads, and rows that are no groups of four or too wide.
const WIDTHS: [usize; 9] = [4, 64, 576, 896, 1536, 3584, 8192, 33, 16_388];
const EPS: f32 = 1e-5;

/// A relative error (2-norms) that one rounding to the dtype explains, and some of f32.
fn tolerance(dtype: DType) -> f64 {
    if dtype == Bf16 { 3e-3 } else { 1e-6 }
}

fn reciprocal_rms(x: &[f32]) -> f64 {
    1.0 / (x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64 + f64::from(EPS)).sqrt()
}

/// The norms of rows in f64.
fn norms(x: &[f32], w: &[f32], offset: f64) -> Vec<f64> {
    let of_row = |x: &[f32]| {
        let r = reciprocal_rms(x);
        x.iter().zip(w).map(|(&x, &w)| f64::from(x) * r * (f64::from(w) + offset)).collect::<Vec<_>>()
    };
    x.chunks(w.len()).flat_map(of_row).collect()
}

pub fn norms_are_added_to_the_residual_also_in_place<D: Machine>(open: Open<D>) {
    for e in BOTH {
        for h in [576, 3584, 33] {
            let rows = 37;
            let sizes = [("x", F32, rows * h), ("w", e, h), ("resid", F32, rows * h), ("out", F32, rows * h)];
            for mut rig in open(&sizes) {
                let (x, w, resid) =
                    (normal(1, rows * h, 1.0, F32), normal(2, h, 1.0, e), normal(3, rows * h, 1.0, F32));
                for (name, x) in [("x", &x), ("w", &w), ("resid", &resid)] {
                    rig.set(name, x);
                }
                for offset in [0.0, 1.0] {
                    rig.set("resid", &resid);
                    let norm = Norm { w: rig.buf("w"), eps: EPS, offset };
                    rig.dev.rms_norm_add(rig.buf("x"), norm, rig.buf("resid"), rig.buf("out"));
                    let want: Vec<f64> = norms(&x, &w, f64::from(offset))
                        .iter()
                        .zip(&resid)
                        .map(|(n, &r)| n + f64::from(r))
                        .collect();
                    let out = rig.get("out");
                    check_norm(&format!("{e:?} rows of {h}"), &out, &want, 1e-6);
                    rig.dev.rms_norm_add(rig.buf("x"), norm, rig.buf("resid"), rig.buf("resid"));
                    assert_eq!(bits(&rig.get("resid")), bits(&out), "{e:?} {h}: in place");
                }
                rig.dev.scale(rig.buf("x"), 0.3);
                let scaled: Vec<f32> = x.iter().map(|x| x * 0.3).collect();
                assert_eq!(bits(&rig.get("x")), bits(&scaled), "{h}: scaled");
                rig.dev.scale_by(rig.buf("x"), rig.buf("w").slice(1, 1));
                let scaled: Vec<f32> = scaled.iter().map(|x| x * w[1]).collect();
                assert_eq!(bits(&rig.get("x")), bits(&scaled), "{e:?} {h}: scaled by a number of the device");
                rig.check_guards();
            }
        }
    }
}

pub fn rms_norm_is_close_and_rows_are_their_own<D: Machine>(open: Open<D>) {
    for e in BOTH {
        for h in WIDTHS {
            // Enough rows for four to share a block.
            let rows = if h <= 64 { 1030 } else { 37 };
            let sizes = [("x", F32, rows * h), ("w", e, h), ("out", e, rows * h), ("again", e, rows * h)];
            for mut rig in open(&sizes) {
                let (x, w) = (normal(1, rows * h, 1.0, F32), normal(2, h, 1.0, e));
                rig.set("x", &x);
                rig.set("w", &w);
                let far = Norm { offset: 1.0, ..Norm::new(rig.buf("w"), EPS) };
                rig.dev.rms_norm(rig.buf("x"), far, rig.buf("out"));
                check_norm(
                    &format!("{e:?} rows of {h} with weights from 1"),
                    &rig.get("out"),
                    &norms(&x, &w, 1.0),
                    tolerance(e),
                );
                rig.dev.rms_norm(rig.buf("x"), Norm::new(rig.buf("w"), EPS), rig.buf("out"));
                let out = rig.get("out");
                check_norm(&format!("{e:?} rows of {h}"), &out, &norms(&x, &w, 0.0), tolerance(e));
                for (first, len) in [(0, 1), (1, 2), (3, rows - 3)] {
                    let part = |name| rig.buf(name).slice(first * h, len * h);
                    rig.dev.rms_norm(part("x"), Norm::new(rig.buf("w"), EPS), part("again"));
                }
                assert_eq!(bits(&rig.get("again")), bits(&out), "{e:?} rows of {h} in cuts");
                rig.check_guards();
            }
        }
    }
}

pub fn perturbed_norms_have_other_bits_somewhere<D: Machine>(open: Open<D>) {
    let (rows, h) = (64, 576);
    for rig in open(&[("x", F32, rows * h), ("w", F32, h), ("out", F32, rows * h)]) {
        rig.set("x", &normal(1, rows * h, 1.0, F32));
        rig.set("w", &vec![1.0; h]);
        let run = |on| {
            rig.dev.perturb_norms(on);
            rig.dev.rms_norm(rig.buf("x"), Norm::new(rig.buf("w"), EPS), rig.buf("out"));
            rig.get("out")
        };
        let (plain, perturbed) = (run(false), run(true));
        assert_ne!(bits(&plain), bits(&perturbed));
        check_norm("perturbed", &perturbed, &f64s(&plain), 1e-6);
    }
}

pub fn rms_norm_backward_is_close_and_repeats<D: Machine>(open: Open<D>) {
    for (e, g) in [(F32, F32), (Bf16, F32), (Bf16, Bf16)] {
        for h in WIDTHS {
            // More rows than chunks, where that is little work.
            let rows = if h <= 64 { 2600 } else { 37 };
            let sizes = [
                ("x", F32, rows * h),
                ("w", e, h),
                ("dy", g, rows * h),
                ("dx", F32, rows * h),
                ("rounded", e, rows * h),
                ("dw", e, h),
                ("rstd", F32, rows),
            ];
            for mut rig in open(&sizes) {
                let (x, dy) = (normal(1, rows * h, 1.0, F32), normal(3, rows * h, 1.0, g));
                let (w, dx, dw) = (normal(2, h, 1.0, e), normal(4, rows * h, 1.0, F32), normal(5, h, 1.0, e));
                let run = |rig: &mut Rig<D>, add: bool, rounded: bool, frozen: bool| {
                    for (name, x) in [("x", &x), ("w", &w), ("dy", &dy), ("dx", &dx), ("dw", &dw)] {
                        rig.set(name, x);
                    }
                    let b = |name: &str| rig.buf(name);
                    let rounded = rounded.then(|| b("rounded"));
                    let weight = (!frozen).then(|| b("dw"));
                    let to = NormGrads { dx: b("dx"), rounded, dw: weight, add, rstd: b("rstd") };
                    rig.dev.rms_norm_backward(b("x"), Norm::new(b("w"), EPS), b("dy"), to);
                    ["dx", "dw", "rstd"].map(|name| rig.get(name))
                };
                let what = format!("{e:?} {g:?} rows of {h}");
                let (first, second, written) = (
                    run(&mut rig, true, false, false),
                    run(&mut rig, true, true, false),
                    run(&mut rig, false, true, false),
                );
                for (add, rounded) in [(true, false), (false, true)] {
                    let frozen = run(&mut rig, add, rounded, true);
                    assert_eq!(bits(&first[0]), bits(&frozen[0]), "{what}: dx of a frozen weight");
                    assert_eq!(bits(&frozen[1]), bits(&dw), "{what}: nothing is written for a frozen weight");
                }
                assert_eq!(first.clone().map(|x| bits(&x)), second.map(|x| bits(&x)), "{what}: two runs");
                assert_eq!(bits(&first[0]), bits(&written[0]), "{what}: dx whether dw is added to");
                let want: Vec<f32> = first[0].iter().map(|&x| round(x, e)).collect();
                assert_eq!(bits(&rig.get("rounded")), bits(&want), "{what}: dx rounded");
                let (mut want_dx, mut want_dw) = (f64s(&dx), vec![0.0; h]);
                for row in 0..rows {
                    let at = row * h..(row + 1) * h;
                    let (x, dy) = (&x[at.clone()], f64s(&dy[at]));
                    let r = reciprocal_rms(x);
                    let xhat: Vec<f64> = x.iter().map(|&x| f64::from(x) * r).collect();
                    let mean = (0..h).map(|i| dy[i] * f64::from(w[i]) * xhat[i]).sum::<f64>() / h as f64;
                    for i in 0..h {
                        want_dx[row * h + i] += r * (f64::from(w[i]) * dy[i] - xhat[i] * mean);
                        want_dw[i] += dy[i] * xhat[i];
                    }
                }
                check_norm(&what, &first[0], &want_dx, 1e-6);
                // The CPU adds the rows of f32 in one chain.
                let chain = if rig.dev.kind().name == "cpu" { 2e-6 } else { 0.0 };
                let tolerance = tolerance(e).max(chain);
                check_norm(&what, &written[1], &want_dw, tolerance);
                let sums: Vec<f64> = want_dw.iter().zip(&dw).map(|(sum, &dw)| sum + f64::from(dw)).collect();
                check_norm(&what, &first[1], &sums, tolerance);
                rig.check_guards();
            }
        }
    }
}

/// A bent gate and its slope.
fn bent(how: Gate, g: f64) -> (f64, f64) {
    match how {
        Gate::Silu => {
            let sig = 1.0 / (1.0 + (-g).exp());
            (g * sig, sig * (1.0 + g * (1.0 - sig)))
        }
        Gate::GeluTanh => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            let t = (root * (g + 0.044_715 * g.powi(3))).tanh();
            let inner_slope = root * (1.0 + 3.0 * 0.044_715 * g * g);
            (0.5 * g * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * g * (1.0 - t * t) * inner_slope)
        }
        Gate::ClampedSilu => unreachable!("clamped gates are of experts, which have cases of their own"),
    }
}

pub fn gates_and_their_gradients_are_close_also_in_place<D: Machine>(open: Open<D>) {
    for e in BOTH {
        for f in [1000, 33] {
            let rows = 9;
            let sizes =
                [("x", e, rows * 2 * f), ("out", e, rows * f), ("d", e, rows * f), ("dx", e, rows * 2 * f)];
            for mut rig in open(&sizes) {
                let (x, d) = (normal(4, rows * 2 * f, 6.0, e), normal(5, rows * f, 1.0, e));
                for how in [Gate::Silu, Gate::GeluTanh] {
                    rig.set("x", &x);
                    rig.set("d", &d);
                    rig.dev.glu(how, rig.buf("x"), f, rig.buf("out"));
                    rig.dev.glu_backward(how, rig.buf("x"), f, rig.buf("d"), rig.buf("dx"), None);
                    let (mut out, mut dx) = (vec![], vec![0.0; rows * 2 * f]);
                    for row in 0..rows {
                        for i in 0..f {
                            let (g, u) = (f64::from(x[row * 2 * f + i]), f64::from(x[row * 2 * f + f + i]));
                            let ((bent, slope), d) = (bent(how, g), f64::from(d[row * f + i]));
                            out.push(bent * u);
                            dx[row * 2 * f + i] = d * u * slope;
                            dx[row * 2 * f + f + i] = d * bent;
                        }
                    }
                    check_norm(&format!("{how:?}"), &rig.get("out"), &out, tolerance(e));
                    let apart = rig.get("dx");
                    check_norm(&format!("{how:?} backward"), &apart, &dx, tolerance(e));
                    rig.dev.glu_backward(
                        how,
                        rig.buf("x"),
                        f,
                        rig.buf("d"),
                        rig.buf("x"),
                        Some(rig.buf("d")),
                    );
                    assert_eq!(bits(&rig.get("x")), bits(&apart), "{how:?} {e:?} {f}: in place");
                    assert_eq!(
                        bits(&rig.get("d")),
                        bits(&rig.get("out")),
                        "{how:?} {e:?} {f}: the product again"
                    );
                    rig.check_guards();
                }
            }
        }
    }
}

pub fn gates_of_a_product_are_those_of_both_operations<D: Machine>(open: Open<D>) {
    const ROWS: usize = 200;
    for (e, f, k) in [(Bf16, 96, 64), (Bf16, 1000, 192), (Bf16, 4864, 896), (F32, 40, 16)] {
        let sizes = [
            ("x", e, ROWS * k),
            ("w", e, 2 * f * k),
            ("gate_up", e, ROWS * 2 * f),
            ("want", e, ROWS * f),
            ("out", e, ROWS * f),
        ];
        for mut rig in open(&sizes) {
            rig.set("x", &normal(6, ROWS * k, 1.0, e));
            rig.set_matrix("w", 2 * f, k, e, &normal(7, 2 * f * k, 0.3, e));
            let w = rig.matrix("w", 2 * f, k, e);
            for how in [Gate::Silu, Gate::GeluTanh] {
                for m in [1, 7, 8, 63, 64, 65, 128, 200] {
                    let part = |name, width| rig.buf(name).slice(0, m * width);
                    let (x, gate_up) = (part("x", k), part("gate_up", 2 * f));
                    rig.dev.matmul(x, w, None, gate_up, false);
                    rig.dev.glu(how, gate_up, f, part("want", f));
                    rig.dev.gated(x, w, how, gate_up, part("out", f));
                    let [want, got] = ["want", "out"].map(|name| bits(&rig.get(name)[..m * f]));
                    assert!(want == got, "{how:?} {e:?}: {m} rows of 2 x {f} of {k}");
                }
            }
            rig.check_guards();
        }
    }
}

pub fn bent_gates_of_extreme_size_are_finite<D: Machine>(open: Open<D>) {
    for e in BOTH {
        let gates = [-1e30, -200.0, -104.0, -88.0, 0.0, -0.0, 88.0, 200.0, 1e30].map(|g| round(g, e));
        for rig in open(&[("x", e, 18), ("out", e, 9)]) {
            rig.dev.write_f32(rig.buf("x"), 0, &gates);
            rig.dev.write_f32(rig.buf("x"), 9, &[1.0; 9]);
            rig.dev.glu(Gate::GeluTanh, rig.buf("x"), 9, rig.buf("out"));
            for (x, g) in rig.get("out").into_iter().zip(gates) {
                assert!((x - g.max(0.0)).abs() <= 4e-3 * g.abs().min(1.0), "{e:?}: gelu({g}) = {x}");
            }
            rig.dev.glu(Gate::Silu, rig.buf("x"), 9, rig.buf("out"));
            for (x, g) in rig.get("out").into_iter().zip(gates) {
                let want = (f64::from(g) / (1.0 + (-f64::from(g)).exp())) as f32;
                assert!((x - want).abs() <= 4e-3 * want.abs() + 1e-36, "{e:?}: silu({g}) = {x}, not {want}");
            }
        }
    }
}

pub fn rows_are_gathered_and_added_back<D: Machine>(open: Open<D>) {
    for h in [576, 84, 33] {
        let (rows, picked) = (40, 130);
        let (x, src) = (normal(1, rows * h, 1.0, F32), normal(2, picked * h, 1.0, F32));
        let which: Vec<u32> = (0..picked as u32).map(|i| i * 7 % rows as u32).collect();
        let row = |i: usize| which[i] as usize * h..(which[i] as usize + 1) * h;
        let gathered: Vec<f32> = (0..picked).flat_map(|i| x[row(i)].to_vec()).collect();
        let mut added = x.clone();
        for (i, src) in src.chunks(h).enumerate() {
            added[row(i)].iter_mut().zip(src).for_each(|(to, x)| *to += x);
        }
        let sizes =
            [("x", F32, rows * h), ("rows", U32, picked), ("out", F32, picked * h), ("src", F32, picked * h)];
        for mut rig in open(&sizes) {
            rig.set("x", &x);
            rig.set("src", &src);
            rig.set_u32("rows", &which);
            rig.dev.gather_rows(rig.buf("x"), rig.buf("rows"), rig.buf("out"));
            assert_eq!(rig.get("out"), gathered);
            rig.dev.scatter_add_rows(rig.buf("src"), rig.buf("rows"), rig.buf("x"));
            assert_eq!(bits(&rig.get("x")), bits(&added), "rows of {h}, in order");
            rig.check_guards();
        }
    }
}

pub fn a_bias_gets_the_sum_of_its_column<D: Machine>(open: Open<D>) {
    for e in BOTH {
        for (rows, n) in [(1, 960), (700, 960), (40_000, 8), (37, 33)] {
            for mut rig in open(&[("dy", e, rows * n), ("grad", e, n)]) {
                let (dy, grad) = (normal(1, rows * n, 1.0, e), normal(2, n, 1.0, e));
                let mut results = vec![];
                for _ in 0..2 {
                    rig.set("dy", &dy);
                    rig.set("grad", &grad);
                    rig.dev.bias_backward(rig.buf("dy"), rig.buf("grad"), true);
                    results.push(rig.get("grad"));
                }
                assert_eq!(bits(&results[0]), bits(&results[1]));
                rig.dev.bias_backward(rig.buf("dy"), rig.buf("grad"), false);
                let written = rig.get("grad");
                rig.set("grad", &vec![0.0; n]);
                rig.dev.bias_backward(rig.buf("dy"), rig.buf("grad"), true);
                assert!(rig.get("grad") == written, "{e:?} [{rows}, {n}]: written or added to zeros");
                let mut want = f64s(&grad);
                for (i, &d) in dy.iter().enumerate() {
                    want[i % n] += f64::from(d);
                }
                check_norm(&format!("{e:?} [{rows}, {n}]"), &results[0], &want, tolerance(e).max(3e-6));
                rig.check_guards();
            }
        }
    }
}

pub fn casts_round_to_nearest_even_also_where_nothing_is_aligned<D: Machine>(open: Open<D>) {
    for e in BOTH {
        let n = 5003;
        for mut rig in open(&[("x", F32, n), ("out", e, n)]) {
            let mut x = normal(1, n, 1e3, F32);
            x[..6].copy_from_slice(&[0.0, -0.0, 1e-40, f32::INFINITY, 3.4e38, 1.0 + 1.0 / 256.0]);
            rig.set("x", &x);
            let want: Vec<f32> = x.iter().map(|&x| round(x, e)).collect();
            for first in [0, 3] {
                rig.dev.cast(rig.buf("x").slice(first, n - first), rig.buf("out").slice(first, n - first));
                assert_eq!(bits(&rig.get("out")[first..]), bits(&want[first..]), "{e:?} from {first}");
            }
            rig.check_guards();
        }
    }
}
