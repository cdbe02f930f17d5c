//! The gated products of a shared expert against f64, and their gradients.
#![allow(dead_code)] // Each binary uses its part.

use super::experts::{Case, tolerance};
use super::{Machine, Rig, bits, check_close, check_norm, normal};
use plimsoll_arch::Gate;
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_device::GluSharedBackward;

/// Panics unless the gated products of a shared expert and their gradients are those of f64, and a row's bits its own.
pub fn check_shared<D: Machine>(case: &Case, rig: &mut Rig<D>, e: DType, how: &str) {
    let &Case { m, f, .. } = case;
    let what = |of: &str| format!("{of} of a shared expert of {case:?}, {}, {how}", e.name());
    let part = |name: &str, len: usize| rig.buf(name).slice(0, len);
    let (x, out, dout) = (part("gate_up", m * 2 * f), part("product", m * f), part("d_product", m * f));
    let (logits, d_logits) = (part("logits", m), part("d_logits_e", m));
    let (gate_up, d) = (normal(21, m * 2 * f, 1.0, e), normal(22, m * f, 1.0, e));
    let mut of_rows = normal(23, m, 2.0, F32);
    // Nothing and all of it, as far as f32 shows.
    of_rows.iter_mut().zip([-40.0, 40.0]).for_each(|(logit, far)| *logit = far);
    let read = |buf: plimsoll_memory::Buf<'_>| {
        let mut values = vec![0.0; buf.len()];
        rig.dev.read_f32(buf, 0, &mut values);
        values
    };
    rig.dev.write_f32(x, 0, &gate_up);
    rig.dev.write_f32(logits, 0, &of_rows);
    rig.dev.glu_shared(Gate::Silu, x, f, logits, out);
    let product = read(out);
    let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
    let of = |i: usize| (gate_up[i / f * 2 * f + i % f], f64::from(gate_up[i / f * 2 * f + f + i % f]));
    let whole = |i: usize| f64::from(of(i).0) * sigmoid(of(i).0) * of(i).1;
    let want: Vec<f64> = (0..m * f).map(|i| sigmoid(of_rows[i / f]) * whole(i)).collect();
    check_norm(&what("the product"), &product, &want, tolerance(e));
    // The last row alone.
    let last = m - 1;
    rig.dev.write_f32(x, 0, &gate_up[last * 2 * f..]);
    rig.dev.write_f32(logits, 0, &of_rows[last..]);
    let alone = out.slice(0, f);
    rig.dev.glu_shared(Gate::Silu, x.slice(0, 2 * f), f, logits.slice(0, 1), alone);
    assert_eq!(bits(&read(alone)), bits(&product[last * f..]), "{}", what("a row alone"));
    rig.dev.write_f32(x, 0, &gate_up);
    rig.dev.write_f32(logits, 0, &of_rows);
    rig.dev.write_f32(dout, 0, &d);
    let args = GluSharedBackward { how: Gate::Silu, gate_up: x, f, logits, dout, d_logits };
    rig.dev.glu_shared_backward(args);
    assert_eq!(bits(&read(dout)), bits(&product), "{}", what("the product again"));
    let slope = |row: usize| sigmoid(of_rows[row]) * sigmoid(-of_rows[row]);
    let sum = |row: usize, term: &dyn Fn(f64) -> f64| -> f64 {
        slope(row) * (row * f..(row + 1) * f).map(|i| term(f64::from(d[i]) * whole(i))).sum::<f64>()
    };
    let want: Vec<f64> = (0..m).map(|row| sum(row, &|term| term)).collect();
    let size: Vec<f64> = (0..m).map(|row| sum(row, &f64::abs)).collect();
    check_close(&read(d_logits), &want, &size, if e == Bf16 { 5e-3 } else { 1e-5 }, &what("d logits"));
    let want: Vec<f64> = (0..m * 2 * f)
        .map(|i| {
            let at = i / (2 * f) * f + i % f;
            let ((g, u), d) = (of(at), sigmoid(of_rows[at / f]) * f64::from(d[at]));
            let sig = sigmoid(g);
            if i % (2 * f) < f {
                d * u * sig * (1.0 + f64::from(g) * (1.0 - sig))
            } else {
                d * f64::from(g) * sig
            }
        })
        .collect();
    check_norm(&what("d gate and up"), &read(x), &want, tolerance(e));
    rig.check_guards();
}
