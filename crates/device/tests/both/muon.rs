//! Muon's operations besides its products, against f64 and to the bit.

use super::{Machine, Open, bits, check_norm, normal, round};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_device::{Arrange, Descent, Momentum};

const BOTH: [DType; 2] = [F32, Bf16];
/// Numbers of elements: whole vectors, and none.
const LENGTHS: [usize; 4] = [4096, 31, 1, 70_001];

pub fn momentum_is_mixed_twice_with_nesterov<D: Machine>(open: Open<D>) {
    for e in BOTH {
        for n in LENGTHS {
            for mut rig in open(&[("grad", e, n), ("m", F32, n)]) {
                let (grad, m) = (normal(1, n, 1.0, e), normal(2, n, 0.5, F32));
                for nesterov in [false, true] {
                    rig.set("grad", &grad);
                    rig.set("m", &m);
                    let how = Momentum { rest: 0.05, nesterov, grad_scale: 0.25 };
                    rig.dev.momentum(how, rig.buf("grad"), rig.buf("m"));
                    let mix = |g: f64, m: f64| m + f64::from(0.05f32) * (g - m);
                    let once: Vec<f64> =
                        grad.iter().zip(&m).map(|(&g, &m)| mix(0.25 * f64::from(g), f64::from(m))).collect();
                    check_norm(&format!("{e:?} {n} momentum"), &rig.get("m"), &once, 1e-6);
                    let twice = grad.iter().zip(&once).map(|(&g, &m)| mix(0.25 * f64::from(g), m));
                    let want: Vec<f64> = if nesterov { twice.collect() } else { once };
                    let tolerance = if e == Bf16 { 4e-3 } else { 1e-6 };
                    check_norm(&format!("{e:?} {n} {nesterov}"), &rig.get("grad"), &want, tolerance);
                }
                rig.check_guards();
            }
        }
    }
}

pub fn a_step_keeps_the_f32_copy_and_rounds_it_once<D: Machine>(open: Open<D>) {
    for e in BOTH {
        for n in LENGTHS {
            for mut rig in open(&[("d", F32, n), ("w", e, n), ("master", F32, n)]) {
                let (d, old) = (normal(1, n, 1.0, F32), normal(2, n, 1.0, F32));
                rig.set("d", &d);
                rig.set("w", &old);
                rig.set("master", &old);
                let master = (e == Bf16).then(|| rig.buf("master"));
                let how = Descent { keep: 0.875, rate: 0.01 };
                rig.dev.descend(how, rig.buf("d"), rig.buf("w"), master);
                let rate = f64::from(0.01f32);
                let want: Vec<f64> =
                    old.iter().zip(&d).map(|(&w, &d)| f64::from(w) * 0.875 - rate * f64::from(d)).collect();
                let exact = rig.get(if e == Bf16 { "master" } else { "w" });
                check_norm(&format!("{e:?} {n}"), &exact, &want, 1e-6);
                let stored: Vec<f32> = exact.iter().map(|&x| round(x, e)).collect();
                assert_eq!(bits(&rig.get("w")), bits(&stored), "{e:?} {n}: rounded once");
                rig.check_guards();
            }
        }
    }
}

/// Rows are taken from weights and put back, as they are and turned; other rows stay.
pub fn parts_of_matrices_are_taken_turned_and_put_back<D: Machine>(open: Open<D>) {
    for weights in BOTH {
        for (n, k, first, rows) in [(48, 32, 16, 16), (40, 24, 9, 13), (33, 7, 0, 33), (64, 130, 32, 20)] {
            let of = D::KIND;
            let stored = plimsoll_device::matrix_elements(of, n as u64, k as u64, weights) as usize;
            let single = plimsoll_device::matrix_elements(of, rows as u64, k as u64, F32) as usize;
            let sizes =
                [("w", weights, stored), ("to", F32, stored), ("x", F32, rows * k), ("p", F32, single)];
            for mut rig in open(&sizes) {
                let x = normal(1, n * k, 1.0, weights);
                rig.set_matrix("w", n, k, weights, &x);
                let part = &x[first * k..(first + rows) * k];
                let flipped: Vec<f32> = (0..rows * k).map(|i| part[i % rows * k + i / rows]).collect();
                for turned in [false, true] {
                    let (a, b) = if turned { (k, rows) } else { (rows, k) };
                    let taken = rig.rows("x", a, b);
                    let what = Arrange { from: first, to: 0, rows: a, turned };
                    rig.dev.arrange(rig.matrix("w", n, k, weights), taken, what);
                    let want = if turned { &flipped[..] } else { part };
                    assert_eq!(bits(&rig.get("x")), bits(want), "[{n}, {k}] {weights:?} {turned}: taken");

                    rig.set_matrix("to", n, k, weights, &vec![3.0; n * k]);
                    let what = Arrange { from: 0, to: first, rows, turned };
                    rig.dev.arrange(taken, rig.matrix("to", n, k, weights), what);
                    let (put, is_padded) = rig.get_matrix("to", n, k, weights);
                    let mut all = vec![3.0; n * k];
                    all[first * k..(first + rows) * k].copy_from_slice(part);
                    assert!(bits(&put) == bits(&all) && is_padded, "[{n}, {k}] {weights:?} {turned}: put");

                    let panels = rig.matrix("p", rows, k, F32);
                    rig.set("p", &vec![0.0; single]);
                    rig.dev.arrange(taken, panels, Arrange::whole(rows, turned));
                    assert_eq!(bits(&rig.get_matrix("p", rows, k, F32).0), bits(part), "[{n}, {k}] {turned}");
                }
                rig.check_guards();
            }
        }
    }
}
