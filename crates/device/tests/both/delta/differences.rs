//! The gradients of the f64 reference against differences of what it gives.

use super::reference::{Piece, Weights, dot, inputs, inputs_backward, norm, rule};
use crate::both::{f64s, numbers};
use plimsoll_device::{CONV_TAPS, DeltaHeads, edges};

/// Heads of sizes that no device takes: the reference has no tiles.
const HEADS: DeltaHeads = DeltaHeads { key_heads: 2, value_heads: 4, key_dim: 3, value_dim: 2 };

fn some(seed: u64, len: usize) -> Vec<f64> {
    f64s(&numbers(seed, len))
}

/// A parent with a state to start from and two children, and a sequence of its own that has two chunks.
fn pieces() -> Vec<Piece> {
    let piece = |first, rows, parent, seed| {
        let start = if seed > 0 { some(seed, HEADS.state()) } else { vec![0.0; HEADS.state()] };
        Piece { first, rows, parent, start }
    };
    vec![piece(0, 2, None, 50), piece(2, 3, Some(0), 0), piece(5, 1, Some(0), 0), piece(6, 66, None, 0)]
}

const ROWS: usize = 72;

/// Panics unless each derivative is a central difference of `loss`, whose error is some step^2 = 1e-10 of third
/// derivatives, and of rounding 1e-16 / step = 1e-11 of the loss.
fn check(what: &str, x: &[f64], gradient: &[f64], loss: impl Fn(&[f64]) -> f64) {
    assert_eq!(x.len(), gradient.len(), "{what}");
    let mut x = x.to_vec();
    for i in 0..x.len() {
        let was = x[i];
        let [more, less] = [1e-5, -1e-5].map(|step| {
            x[i] = was + step;
            loss(&x)
        });
        x[i] = was;
        let want = (more - less) / 2e-5;
        let off = (gradient[i] - want).abs();
        assert!(off < 1e-7 * (1.0 + want.abs()), "{what}: element {i} is {}, wanted {want}", gradient[i]);
    }
}

pub fn check_rule() {
    let pieces = pieces();
    let qkv: Vec<f64> = some(1, ROWS * HEADS.conv_width()).iter().map(|x| x / 1.8).collect();
    let gates: Vec<f64> = some(2, ROWS * 2 * HEADS.value_heads)
        .iter()
        .enumerate()
        .map(|(i, x)| if (i / HEADS.value_heads).is_multiple_of(2) { x - 1.0 } else { x.abs() })
        .collect();
    let dout = some(3, ROWS * HEADS.value_width());
    let loss = |pieces: &[Piece], qkv: &[f64], gates: &[f64]| {
        dot(&rule(&HEADS, pieces, qkv, gates, &dout).out, &dout)
    };
    let all = rule(&HEADS, &pieces, &qkv, &gates, &dout);
    check("q, k and v", &qkv, &all.d_qkv, |qkv| loss(&pieces, qkv, &gates));
    check("gates", &gates, &all.d_gates, |gates| loss(&pieces, &qkv, gates));
    check("the start", &pieces[0].start, &all.d_edges[..HEADS.state()], |start| {
        let mut pieces = pieces.clone();
        pieces[0].start = start.to_vec();
        loss(&pieces, &qkv, &gates)
    });
    // The rows after an edge are a sequence that starts with its state.
    let second = (0..3).map(|index| edges(pieces[index].rows)).sum::<usize>() + 1;
    let start = all.edges[second * HEADS.state()..][..HEADS.state()].to_vec();
    check("a state", &start, &all.d_edges[second * HEADS.state()..][..HEADS.state()], |start| {
        let piece = Piece { first: 6 + 64, rows: 2, parent: None, start: start.to_vec() };
        let only = rule(&HEADS, &[piece], &qkv, &gates, &dout).out;
        let first = (6 + 64) * HEADS.value_width();
        dot(&only[first..], &dout[first..])
    });
}

pub fn check_inputs() {
    let (pieces, width) = (pieces(), HEADS.input_width());
    let x = some(4, ROWS * width);
    let (conv, decay, bias) =
        (some(5, HEADS.conv_width() * CONV_TAPS), some(6, HEADS.value_heads), some(7, HEADS.value_heads));
    let (d_qkv, d_gates) = (some(8, ROWS * HEADS.conv_width()), some(9, ROWS * 2 * HEADS.value_heads));
    let loss = |x: &[f64], weights: Weights<'_>| {
        let (qkv, gates) = inputs(&HEADS, &pieces, x, weights);
        dot(&qkv, &d_qkv) + dot(&gates, &d_gates)
    };
    let weights = Weights { conv: &conv, decay: &decay, bias: &bias };
    let all = inputs_backward(&HEADS, &pieces, &x, weights, (&d_qkv, &d_gates));
    check("x", &x, &all.dx, |x| loss(x, weights));
    check("taps", &conv, &all.conv, |conv| loss(&x, Weights { conv, ..weights }));
    check("decay", &decay, &all.decay, |decay| loss(&x, Weights { decay, ..weights }));
    check("bias", &bias, &all.bias, |bias| loss(&x, Weights { bias, ..weights }));
}

pub fn check_norm() {
    let rows = 3 * HEADS.value_width();
    let (o, z, w, dy) = (some(10, rows), some(11, rows), some(12, HEADS.value_dim), some(13, rows));
    let loss = |o: &[f64], z: &[f64], w: &[f64]| dot(&norm(&HEADS, 1e-3, o, z, w, &dy)[0], &dy);
    let [_, d_o, dz, dw] = norm(&HEADS, 1e-3, &o, &z, &w, &dy);
    check("o", &o, &d_o, |o| loss(o, &z, &w));
    check("z", &z, &dz, |z| loss(&o, z, &w));
    check("w", &w, &dw, |w| loss(&o, &z, w));
}
