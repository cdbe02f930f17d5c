//! The output gates of attention: heads times the sigmoids of their gates, and q, k and v past the gates.
#![allow(dead_code)] // Each binary uses its part.

use super::{Machine, Rig, Sized, bits, check_close, normal};
use plimsoll_base::DType::{self, Bf16};
use plimsoll_device::{GateHeadsBackward, Heads};

/// Rows, and heads.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub m: usize,
    pub heads: Heads,
}

const fn case(m: usize, heads: usize, kv_heads: usize, head_dim: usize) -> Case {
    Case { m, heads: Heads { heads, kv_heads, head_dim } }
}

/// One row and many, heads of their own keys and of shared ones, and the heads of Qwen3.5.
pub const CASES: &[Case] = &[case(1, 1, 1, 16), case(7, 4, 2, 48), case(70, 6, 1, 64), case(33, 8, 2, 256)];

impl Case {
    /// a d, (a + 2 k) d and 2 (a + k) d.
    fn widths(&self) -> [usize; 3] {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        [heads, heads + 2 * kv_heads, 2 * (heads + kv_heads)].map(|count| count * head_dim)
    }

    pub fn buffers(&self, e: DType) -> Vec<Sized<'static>> {
        let [q, qkv, x] = self.widths().map(|width| width * self.m);
        vec![
            ("x", e, x),
            ("qkv", e, qkv),
            ("attn", e, q),
            ("out", e, q),
            ("d", e, q),
            ("dx", e, x),
            ("again", e, q),
        ]
    }

    /// The place in a row of `x` of an element of q, k or v; and of the gate of one of q.
    fn place(&self, of: usize) -> usize {
        let (d, [q, ..]) = (self.heads.head_dim, self.widths());
        if of < q { of / d * 2 * d + of % d } else { of + q }
    }
}

/// Panics unless gates do what f64 says, and everything else is moved as it is.
pub fn check<D: Machine>(case: &Case, rig: &mut Rig<D>, e: DType, how: &str) {
    let ([q, qkv, width], m, heads) = (case.widths(), case.m, case.heads);
    let what = |of: &str| format!("{of} of {case:?}, {}, {how}", e.name());
    let mut x = normal(1, m * width, 2.0, e);
    // Gates that are 0 and 1 in f32.
    (x[heads.head_dim], x[heads.head_dim + 1]) = (-120.0, 60.0);
    let (attn, d) = (normal(2, m * q, 1.0, e), normal(3, m * q, 1.0, e));
    for (name, x) in [("x", &x), ("attn", &attn), ("d", &d)] {
        rig.set(name, x);
    }
    let b = |name| rig.buf(name);
    rig.dev.split_gates(b("x"), heads, b("qkv"));
    let at = |i: usize| i / qkv * width + case.place(i % qkv);
    let want: Vec<f32> = (0..m * qkv).map(|i| x[at(i)]).collect();
    assert_eq!(bits(&rig.get("qkv")), bits(&want), "{}", what("q, k and v"));
    rig.dev.gate_heads(b("x"), heads, b("attn"), b("out"));
    let sigmoid =
        |i: usize| 1.0 / (1.0 + (-f64::from(x[i / q * width + case.place(i % q) + heads.head_dim])).exp());
    let product = |i: usize, by: f64| f64::from(attn[i]) * by;
    let want: Vec<f64> = (0..m * q).map(|i| product(i, sigmoid(i))).collect();
    // Half a unit of what is rounded once; in f32 some units of the exponential and the quotient.
    let tolerance = if e == Bf16 { 4e-3 } else { 1e-6 };
    let sizes = |want: &[f64]| want.iter().map(|x| x.abs() + 1e-30).collect::<Vec<f64>>();
    check_close(&rig.get("out"), &want, &sizes(&want), tolerance, &what("gated heads"));
    for again in [None, Some(b("again"))] {
        rig.set("d", &d);
        rig.set("dx", &vec![7.0; m * width]);
        let args =
            GateHeadsBackward { heads, x: b("x"), attn: b("attn"), d: b("d"), dx: b("dx"), out: again };
        rig.dev.gate_heads_backward(args);
        let want: Vec<f64> = (0..m * q).map(|i| f64::from(d[i]) * sigmoid(i)).collect();
        check_close(&rig.get("d"), &want, &sizes(&want), tolerance, &what("d attention"));
        let dx = rig.get("dx");
        let of_gate = |i: usize| dx[i / q * width + case.place(i % q) + heads.head_dim];
        let got: Vec<f32> = (0..m * q).map(of_gate).collect();
        let slope = |i: usize| sigmoid(i) * (1.0 - sigmoid(i));
        let want: Vec<f64> = (0..m * q).map(|i| f64::from(d[i]) * product(i, slope(i))).collect();
        // 1 - sigmoid cancels near 1: it is good to half a unit of 1.
        let sizes: Vec<f64> =
            (0..m * q).map(|i| (f64::from(d[i]) * product(i, 1.0)).abs() * 0.25 + 1e-30).collect();
        check_close(&got, &want, &sizes, tolerance, &what("d gates"));
        assert!((0..m * qkv).all(|i| dx[at(i)] == 7.0), "{}", what("nothing but gates is written"));
    }
    assert_eq!(bits(&rig.get("again")), bits(&rig.get("out")), "{}", what("gated heads again"));
    let before = rig.get("dx");
    let d_qkv = normal(4, m * qkv, 1.0, e);
    rig.set("qkv", &d_qkv);
    rig.dev.join_gates(b("qkv"), heads, b("dx"));
    let mut want = before;
    (0..m * qkv).for_each(|i| want[at(i)] = d_qkv[i]);
    assert_eq!(bits(&rig.get("dx")), bits(&want), "{}", what("the gradient of q, k and v"));
    // A row's bits are its own.
    let (out, row) = (rig.get("out"), m / 2);
    rig.dev.write_f32(b("x"), 0, &x[row * width..][..width]);
    rig.dev.write_f32(b("attn"), 0, &attn[row * q..][..q]);
    rig.dev.gate_heads(b("x").slice(0, width), heads, b("attn").slice(0, q), b("out").slice(0, q));
    assert_eq!(bits(&rig.get("out")[..q]), bits(&out[row * q..][..q]), "{}", what("a row alone"));
    rig.check_guards();
}
