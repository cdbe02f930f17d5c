//! Attention and its gradients in f64.

use super::{Pass, Sequence, Shape, sequences, shape};
use plimsoll_base::DType::F32;

/// Weights, output and log-sum-exp of one row and head.
pub fn row(s: Shape, x: &Sequence, p: usize, head: usize) -> (Vec<f64>, Vec<f64>, f64) {
    let Shape { a, k, d, .. } = s;
    let kv = head / (a / k);
    let q = &x.q[(p * a + head) * d..][..d];
    let row = |x: &'_ [f32], j: usize| x[(j * k + kv) * d..][..d].to_vec();
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    let first = (p + 1).saturating_sub(s.window);
    let scores: Vec<f64> = (first..=p).map(|j| s.bend(dot(q, &row(&x.k, j)) / (d as f64).sqrt()).0).collect();
    let sink = s.sinks().map(|sinks| f64::from(sinks[head]));
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().copied().chain(sink).map(|s| (s - max).exp()).sum();
    // Of keys before the window too, for the gradients.
    let seen = scores.iter().map(|s| (s - max).exp() / sum);
    let weights: Vec<f64> = std::iter::repeat_n(0.0, first).chain(seen).collect();
    let mut out = vec![0.0; d];
    for (j, w) in weights.iter().enumerate() {
        for (o, v) in out.iter_mut().zip(row(&x.v, j)) {
            *o += w * f64::from(v);
        }
    }
    (weights, out, max + sum.ln())
}

/// Gradients of the sum of dout out: (dq, dkv) in the operation's layout.
pub fn gradients(s: Shape, x: &[Sequence], dout: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let Shape { a, k, d, .. } = s;
    let first_rows: Vec<usize> =
        (0..x.len()).map(|i| x[..i].iter().map(|s| s.len - s.prefix).sum()).collect();
    let rows: usize = x.iter().map(|s| s.len - s.prefix).sum();
    let (mut dq, mut dkv) = (vec![0.0; rows * a * d], vec![0.0; rows * 2 * k * d]);
    for (x, &first) in x.iter().zip(&first_rows) {
        for (p, head) in (x.prefix..x.len).flat_map(|p| (0..a).map(move |head| (p, head))) {
            let (weights, out, _) = row(s, x, p, head);
            let (kv, at) = (head / (a / k), ((first + p - x.prefix) * a + head) * d);
            let g = |i: usize| f64::from(dout[at + i]);
            let delta: f64 = (0..d).map(|i| g(i) * out[i]).sum();
            let query = &x.q[(p * a + head) * d..][..d];
            for (j, weight) in weights.into_iter().enumerate() {
                let [key, value] = [&x.k, &x.v].map(|x| &x[(j * k + kv) * d..][..d]);
                let dweight: f64 = (0..d).map(|i| g(i) * f64::from(value[i])).sum();
                let dot = query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>();
                let scale = 1.0 / (d as f64).sqrt();
                let dscore = weight * (dweight - delta) * scale * s.bend(dot * scale).1;
                let owner = match x.parent {
                    Some(parent) if j < x.prefix => first_rows[parent] + j,
                    _ => first + j - x.prefix,
                };
                let to = owner * 2 * k * d + kv * d;
                for i in 0..d {
                    dq[at + i] += dscore * f64::from(key[i]);
                    dkv[to + i] += dscore * f64::from(query[i]);
                    dkv[to + k * d + i] += weight * g(i);
                }
            }
        }
    }
    (dq, dkv)
}

/// Returns the gradients of sinks, over whole sequences, and the sums of sizes of their terms.
pub fn sink_gradients(s: Shape, x: &[Sequence], dout: &[f32]) -> [Vec<f64>; 2] {
    let (sinks, mut of_row) = (s.sinks().expect("sinks"), 0);
    let mut sums = [vec![0.0; s.a], vec![0.0; s.a]];
    for x in x {
        for p in x.prefix..x.len {
            for (head, sink) in sinks.iter().enumerate() {
                let (_, out, lse) = row(s, x, p, head);
                let g = &dout[(of_row * s.a + head) * s.d..][..s.d];
                let delta: f64 = out.iter().zip(g).map(|(o, &g)| o * f64::from(g)).sum();
                let term = (f64::from(*sink) - lse).exp() * delta;
                (sums[0][head], sums[1][head]) = (sums[0][head] - term, sums[1][head] + term.abs());
            }
            of_row += 1;
        }
    }
    sums
}

/// Panics unless some of the gradients are slopes of the loss.
pub fn check() {
    const LEN: usize = 20;
    let s = shape(4, 2, 16, F32);
    let mut x = sequences(s, &[(None, 0, LEN)]);
    let dout = Pass::whole(s, &x).dout();
    let (dq, dkv) = gradients(s, &x, &dout);
    let loss = |x: &Sequence| -> f64 {
        let out = (0..LEN * s.a).flat_map(|i| row(s, x, i / s.a, i % s.a).1);
        out.zip(&dout).map(|(o, &g)| o * f64::from(g)).sum()
    };
    let step = 2.0f32.powi(-10); // exact in the inputs; errors of order step^2 = 1e-6 times third derivatives
    for i in (0..LEN * 32).step_by(37) {
        let (m, column) = (i / 32, i % 32);
        let ours = [dq[m * 64 + column], dkv[m * 64 + column], dkv[m * 64 + 32 + column]];
        for (what, ours) in ours.into_iter().enumerate() {
            let mut slope = 0.0;
            for sign in [1.0, -1.0] {
                let of = |x: &mut Sequence, value: Option<f32>| {
                    let x = match what {
                        0 => &mut x.q[m * 64 + column],
                        1 => &mut x.k[i],
                        _ => &mut x.v[i],
                    };
                    std::mem::replace(x, value.unwrap_or(*x + sign * step))
                };
                let old = of(&mut x[0], None);
                let exact = f64::from(old + sign * step) - f64::from(old);
                slope += loss(&x[0]) / (2.0 * exact.abs()) * f64::from(sign);
                of(&mut x[0], Some(old));
            }
            assert!((slope - ours).abs() < 1e-4, "{what} row {m} column {column}: {slope}, gradient {ours}");
        }
    }
}
