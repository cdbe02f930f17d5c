//! Linear attention in f64, as plain as it can be: each row's state is kept, and gradients go back row by row.
#![allow(clippy::needless_range_loop)] // Indices run over several arrays, as in the formulas.

use plimsoll_device::{CONV_TAPS, DeltaHeads, STATE_CHUNK, edges};

#[derive(Clone, Debug)]
pub struct Piece {
    pub first: usize,
    pub rows: usize,
    /// The segment that it goes on from.
    pub parent: Option<usize>,
    /// [H, dk, dv]: what it begins with, without a parent.
    pub start: Vec<f64>,
}

/// Holds what the rule gives, and its gradients.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    /// [M, H dv].
    pub out: Vec<f64>,
    /// [M, H dv]: r.
    pub rest: Vec<f64>,
    /// [H, dk, dv] of each edge of each segment, one after the other.
    pub edges: Vec<f64>,
    /// [M, C].
    pub d_qkv: Vec<f64>,
    /// [M, 2, H].
    pub d_gates: Vec<f64>,
    /// [M, H dv]: of beta r.
    pub d_rest: Vec<f64>,
    /// Gradients of `edges`.
    pub d_edges: Vec<f64>,
}

/// The numbers of one row and head.
struct Row<'x> {
    q: &'x [f64],
    k: &'x [f64],
    v: &'x [f64],
    a: f64,
    beta: f64,
}

fn row<'x>(heads: &DeltaHeads, qkv: &'x [f64], gates: &[f64], m: usize, h: usize) -> Row<'x> {
    let &DeltaHeads { key_heads, value_heads, key_dim, value_dim } = heads;
    let of = &qkv[m * heads.conv_width()..][..heads.conv_width()];
    let key = h / (value_heads / key_heads) * key_dim;
    Row {
        q: &of[key..][..key_dim],
        k: &of[heads.key_width() + key..][..key_dim],
        v: &of[2 * heads.key_width() + h * value_dim..][..value_dim],
        a: gates[m * 2 * value_heads + h].exp(),
        beta: gates[(m * 2 + 1) * value_heads + h],
    }
}

/// S^T x.
fn across(state: &[f64], x: &[f64], dv: usize) -> Vec<f64> {
    let mut sum = vec![0.0; dv];
    for (row, x) in state.chunks(dv).zip(x) {
        sum.iter_mut().zip(row).for_each(|(sum, s)| *sum += s * x);
    }
    sum
}

/// S y.
fn along(state: &[f64], y: &[f64]) -> Vec<f64> {
    state.chunks(y.len()).map(|row| dot(row, y)).collect()
}

/// S += factor x y^T.
fn add_outer(state: &mut [f64], factor: f64, x: &[f64], y: &[f64]) {
    for (row, x) in state.chunks_mut(y.len()).zip(x) {
        row.iter_mut().zip(y).for_each(|(s, y)| *s += factor * x * y);
    }
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], x: &[f64]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += x);
}

/// The rule and, of the gradient of its output, its gradients.
pub fn rule(heads: &DeltaHeads, pieces: &[Piece], qkv: &[f64], gates: &[f64], dout: &[f64]) -> Rule {
    let (m, width, state) = (qkv.len() / heads.conv_width(), heads.value_width(), heads.state());
    let mut firsts = vec![0];
    pieces.iter().for_each(|piece| firsts.push(firsts.last().unwrap() + edges(piece.rows)));
    let places = firsts.last().unwrap() * state;
    let mut all = Rule {
        out: vec![0.0; m * width],
        rest: vec![0.0; m * width],
        edges: vec![0.0; places],
        d_qkv: vec![0.0; qkv.len()],
        d_gates: vec![0.0; gates.len()],
        d_rest: vec![0.0; m * width],
        d_edges: vec![0.0; places],
    };
    for h in 0..heads.value_heads {
        of_head(heads, (pieces, &firsts), (qkv, gates, dout), h, &mut all);
    }
    all
}

/// The number of the edge after some rows of a segment, if there is one.
fn edge(done: usize, rows: usize) -> Option<usize> {
    (done == rows || done.is_multiple_of(STATE_CHUNK)).then(|| done.div_ceil(STATE_CHUNK))
}

fn of_head(
    heads: &DeltaHeads,
    (pieces, firsts): (&[Piece], &[usize]),
    (qkv, gates, dout): (&[f64], &[f64], &[f64]),
    h: usize,
    all: &mut Rule,
) {
    let (dk, dv) = (heads.key_dim, heads.value_dim);
    let (size, width) = (dk * dv, heads.value_width());
    let place = |index: usize, edge: usize| (firsts[index] + edge) * heads.state() + h * size;
    // The state before and after each row.
    let mut states: Vec<Vec<Vec<f64>>> = vec![];
    for (index, piece) in pieces.iter().enumerate() {
        let begin = match piece.parent {
            Some(parent) => states[parent].last().unwrap().clone(),
            None => piece.start[h * size..][..size].to_vec(),
        };
        let mut own = vec![begin];
        for t in 0..piece.rows {
            let (m, old) = (piece.first + t, own.last().unwrap());
            let Row { q, k, v, a, beta } = row(heads, qkv, gates, m, h);
            let mut new: Vec<f64> = old.iter().map(|s| a * s).collect();
            let read = across(&new, k, dv);
            let rest: Vec<f64> = v.iter().zip(&read).map(|(v, p)| v - p).collect();
            add_outer(&mut new, beta, k, &rest);
            all.out[m * width + h * dv..][..dv].copy_from_slice(&across(&new, q, dv));
            all.rest[m * width + h * dv..][..dv].copy_from_slice(&rest);
            own.push(new);
        }
        for done in 0..=piece.rows {
            if let Some(edge) = edge(done, piece.rows) {
                all.edges[place(index, edge)..][..size].copy_from_slice(&own[done]);
            }
        }
        states.push(own);
    }
    let mut ends = vec![vec![0.0; size]; pieces.len()];
    for (index, piece) in pieces.iter().enumerate().rev() {
        let mut d = ends[index].clone();
        let keep = |all: &mut Rule, done: usize, d: &[f64]| {
            if let Some(edge) = edge(done, piece.rows) {
                all.d_edges[place(index, edge)..][..size].copy_from_slice(d);
            }
        };
        keep(all, piece.rows, &d);
        for t in (0..piece.rows).rev() {
            back(heads, (qkv, gates, dout), (piece.first + t, h), &states[index][t..t + 2], &mut d, all);
            keep(all, t, &d);
        }
        if let Some(parent) = piece.parent {
            add(&mut ends[parent], &d);
        }
    }
}

/// One row of the gradient: `d`, that of the state after it, becomes that of the state before it.
fn back(
    heads: &DeltaHeads,
    (qkv, gates, dout): (&[f64], &[f64], &[f64]),
    (m, h): (usize, usize),
    states: &[Vec<f64>],
    d: &mut [f64],
    all: &mut Rule,
) {
    let (dv, width) = (heads.value_dim, heads.value_width());
    let Row { q, k, a, beta, .. } = row(heads, qkv, gates, m, h);
    let here = m * width + h * dv;
    let (dout, rest) = (&dout[here..][..dv], all.rest[here..][..dv].to_vec());
    add_outer(d, 1.0, q, dout);
    let dq = along(&states[1], dout);
    let du = across(d, k, dv);
    let mut dk: Vec<f64> = along(d, &rest).iter().map(|x| beta * x).collect();
    let dr: Vec<f64> = du.iter().map(|x| beta * x).collect();
    add(&mut dk, &along(&states[0], &dr).iter().map(|x| -a * x).collect::<Vec<f64>>());
    add_outer(d, -1.0, k, &dr);
    let heads_width = heads.value_heads;
    all.d_gates[m * 2 * heads_width + h] = a * dot(d, &states[0]);
    all.d_gates[(m * 2 + 1) * heads_width + h] = dot(&du, &rest);
    all.d_rest[here..][..dv].copy_from_slice(&du);
    let key = h / (heads.value_heads / heads.key_heads) * heads.key_dim;
    let to = &mut all.d_qkv[m * heads.conv_width()..][..heads.conv_width()];
    add(&mut to[key..][..heads.key_dim], &dq);
    add(&mut to[heads.key_width() + key..][..heads.key_dim], &dk);
    add(&mut to[2 * heads.key_width() + h * dv..][..dv], &dr);
    d.iter_mut().for_each(|d| *d *= a);
}

/// The weights of `delta_inputs`.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'w> {
    pub conv: &'w [f64],
    pub decay: &'w [f64],
    pub bias: &'w [f64],
}

/// Gradients of `delta_inputs`.
#[derive(Clone, Debug)]
pub struct InputGradients {
    /// [M, C + H dv + 2 H]; that of z is 0.
    pub dx: Vec<f64>,
    pub conv: Vec<f64>,
    pub decay: Vec<f64>,
    pub bias: Vec<f64>,
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The row that is `back` rows before row i of a segment, if its sequence has it.
fn before(pieces: &[Piece], piece: &Piece, i: usize, back: usize) -> Option<usize> {
    if i >= back {
        return Some(piece.first + i - back);
    }
    let parent = &pieces[piece.parent?];
    Some(parent.first + (parent.rows + i).checked_sub(back)?)
}

/// Returns what the convolution gives for each row and channel.
fn convolved(heads: &DeltaHeads, pieces: &[Piece], x: &[f64], conv: &[f64]) -> Vec<f64> {
    let (c, width) = (heads.conv_width(), heads.input_width());
    let mut out = vec![0.0; x.len() / width * c];
    for piece in pieces {
        for (i, tap) in (0..piece.rows).flat_map(|i| (0..CONV_TAPS).map(move |tap| (i, tap))) {
            let Some(from) = before(pieces, piece, i, CONV_TAPS - 1 - tap) else { continue };
            for channel in 0..c {
                out[(piece.first + i) * c + channel] +=
                    conv[channel * CONV_TAPS + tap] * x[from * width + channel];
            }
        }
    }
    out
}

/// Heads of q, k and v: the first channel, the width, and the factor after the norm of q and k.
fn units(heads: &DeltaHeads) -> Vec<(usize, usize, Option<f64>)> {
    let &DeltaHeads { key_heads, value_heads, key_dim, value_dim } = heads;
    let scale = |i: usize| if i < key_heads { (key_dim as f64).powf(-0.5) } else { 1.0 };
    let keys = (0..2 * key_heads).map(|i| (i * key_dim, key_dim, Some(scale(i))));
    let values = (0..value_heads).map(|i| (2 * heads.key_width() + i * value_dim, value_dim, None));
    keys.chain(values).collect()
}

/// q, k and v, then g and beta.
pub fn inputs(heads: &DeltaHeads, pieces: &[Piece], x: &[f64], weights: Weights<'_>) -> (Vec<f64>, Vec<f64>) {
    let (c, width, h) = (heads.conv_width(), heads.input_width(), heads.value_heads);
    let mut qkv = convolved(heads, pieces, x, weights.conv);
    for row in qkv.chunks_mut(c) {
        row.iter_mut().for_each(|c| *c *= sigmoid(*c));
        for (first, len, scale) in units(heads) {
            let unit = &mut row[first..first + len];
            let factor = scale.map_or(1.0, |scale| scale / (dot(unit, unit) + 1e-6).sqrt());
            unit.iter_mut().for_each(|x| *x *= factor);
        }
    }
    let gates = x.chunks(width).flat_map(|row| {
        let (b, a) = row[c + heads.value_width()..].split_at(h);
        let g = a.iter().enumerate().map(|(i, a)| -weights.decay[i].exp() * softplus(a + weights.bias[i]));
        g.chain(b.iter().map(|&b| sigmoid(b))).collect::<Vec<f64>>()
    });
    (qkv, gates.collect())
}

/// The gradient of `inputs`.
pub fn inputs_backward(
    heads: &DeltaHeads,
    pieces: &[Piece],
    x: &[f64],
    weights: Weights<'_>,
    (d_qkv, d_gates): (&[f64], &[f64]),
) -> InputGradients {
    let (c, width, h) = (heads.conv_width(), heads.input_width(), heads.value_heads);
    let mut to = InputGradients {
        dx: vec![0.0; x.len()],
        conv: vec![0.0; weights.conv.len()],
        decay: vec![0.0; h],
        bias: vec![0.0; h],
    };
    let mut d = convolved(heads, pieces, x, weights.conv);
    for (row, dy) in d.chunks_mut(c).zip(d_qkv.chunks(c)) {
        for (first, len, scale) in units(heads) {
            let (row, dy) = (&mut row[first..first + len], &dy[first..first + len]);
            let bent: Vec<f64> = row.iter().map(|c| c * sigmoid(*c)).collect();
            let inverse = 1.0 / (dot(&bent, &bent) + 1e-6).sqrt();
            let inner = dot(&bent, dy);
            for i in 0..len {
                let sig = sigmoid(row[i]);
                let ds = scale
                    .map_or(dy[i], |scale| scale * (inverse * dy[i] - inverse.powi(3) * bent[i] * inner));
                row[i] = ds * sig * (1.0 + row[i] * (1.0 - sig));
            }
        }
    }
    for piece in pieces {
        for (i, tap) in (0..piece.rows).flat_map(|i| (0..CONV_TAPS).map(move |tap| (i, tap))) {
            let Some(from) = before(pieces, piece, i, CONV_TAPS - 1 - tap) else { continue };
            for channel in 0..c {
                let d = d[(piece.first + i) * c + channel];
                to.dx[from * width + channel] += weights.conv[channel * CONV_TAPS + tap] * d;
                to.conv[channel * CONV_TAPS + tap] += d * x[from * width + channel];
            }
        }
    }
    for (m, row) in x.chunks(width).enumerate() {
        let first = c + heads.value_width();
        for i in 0..h {
            let (b, a) = (sigmoid(row[first + i]), row[first + h + i] + weights.bias[i]);
            let (dg, rate) = (d_gates[m * 2 * h + i], -weights.decay[i].exp());
            to.dx[m * width + first + i] = d_gates[(m * 2 + 1) * h + i] * b * (1.0 - b);
            let da = dg * rate * sigmoid(a);
            to.dx[m * width + first + h + i] = da;
            to.bias[i] += da;
            to.decay[i] += dg * rate * softplus(a);
        }
    }
    to
}

/// y of `norm_gated`; then, of the gradient of y, those of o, z and w.
pub fn norm(heads: &DeltaHeads, eps: f64, o: &[f64], z: &[f64], w: &[f64], dy: &[f64]) -> [Vec<f64>; 4] {
    let dv = heads.value_dim;
    let [mut y, mut d_o, mut dz, mut dw] = [vec![], vec![], vec![], vec![0.0; dv]];
    for ((o, z), dy) in o.chunks(dv).zip(z.chunks(dv)).zip(dy.chunks(dv)) {
        let r = 1.0 / (dot(o, o) / dv as f64 + eps).sqrt();
        let inner: Vec<f64> = (0..dv).map(|i| dy[i] * w[i] * z[i] * sigmoid(z[i])).collect();
        let mean = dot(&inner, o) * r / dv as f64;
        for i in 0..dv {
            let sig = sigmoid(z[i]);
            y.push(w[i] * o[i] * r * z[i] * sig);
            dw[i] += dy[i] * o[i] * r * z[i] * sig;
            dz.push(dy[i] * w[i] * o[i] * r * sig * (1.0 + z[i] * (1.0 - sig)));
            d_o.push(r * (inner[i] - o[i] * r * mean));
        }
    }
    [y, d_o, dz, dw]
}
