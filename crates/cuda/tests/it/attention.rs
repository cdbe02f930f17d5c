//! Attention on a card: against f64 and the CPU, and the same bits however rows are cut into calls, segments, chunks.

use crate::both::{bend, bits, normal, round};
use crate::rig::{Card, on_card_with, twin};
use plimsoll_base::DType::{self, Bf16, F32, U32};
use plimsoll_cuda::{attention_backward_scratch_bytes, attention_scratch_bytes};
use plimsoll_device::{
    ALL_KEYS, AttentionBackward, Backend, Batch, Device, KV_BLOCK, Kv, NO_PARENT, OpenOptions, Scores,
};
use plimsoll_memory::Buf;

/// Heads a, key-value heads k, head dimension d, dtype e.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub a: usize,
    pub k: usize,
    pub d: usize,
    pub e: DType,
    /// Keys that a row sees, at most.
    pub window: usize,
    /// What bends scores.
    pub cap: Option<f32>,
}

impl Shape {
    fn scores(self) -> Scores {
        Scores { window: self.window, cap: self.cap }
    }

    /// A score as `scores` says, and its slope.
    fn bend(self, x: f64) -> (f64, f64) {
        bend(self.cap, x)
    }
}

pub const fn shape(a: usize, k: usize, d: usize, e: DType) -> Shape {
    Shape { a, k, d, e, window: ALL_KEYS, cap: None }
}

const fn windowed(window: usize, s: Shape) -> Shape {
    Shape { window, ..s }
}

const fn capped(cap: f32, s: Shape) -> Shape {
    Shape { cap: Some(cap), ..s }
}

/// Groups of 1, 3, 6, 7, 8 and 20 heads on tensor cores, then shapes of the plain kernels, then windows, then caps,
/// then groups of 4 and 20 heads of 256.
const SHAPES: [Shape; 19] = [
    shape(2, 2, 64, Bf16),
    shape(9, 3, 64, Bf16),
    shape(6, 1, 128, Bf16),
    shape(14, 2, 64, Bf16),
    shape(8, 1, 128, Bf16),
    shape(20, 1, 64, Bf16),
    shape(7, 1, 16, Bf16),
    shape(9, 3, 64, F32),
    shape(4, 2, 48, F32),
    windowed(1, shape(9, 3, 64, Bf16)),
    windowed(40, shape(6, 1, 128, Bf16)),
    windowed(512, shape(14, 2, 64, Bf16)),
    windowed(130, shape(2, 1, 256, Bf16)),
    windowed(37, shape(9, 3, 64, F32)),
    capped(1.5, shape(4, 2, 48, F32)),
    capped(50.0, windowed(130, shape(2, 1, 256, Bf16))),
    capped(2.0, shape(4, 2, 128, Bf16)),
    shape(8, 2, 256, Bf16),
    shape(20, 1, 256, Bf16),
];

/// A sequence's queries, keys and values by position, and its block table. A child begins with `prefix` positions of a
/// parent, of which it shares the whole blocks.
#[derive(Clone)]
struct Sequence {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    table: Vec<u32>,
    parent: Option<usize>,
    prefix: usize,
    len: usize,
}

impl Sequence {
    fn new(s: Shape, seed: u64, len: usize, first_block: u32) -> Sequence {
        let Shape { a, k, d, e, .. } = s;
        // In descending order, so that no two neighbours of a table are neighbours in the cache.
        let table = (0..len.div_ceil(KV_BLOCK) as u32).rev().map(|b| first_block + b).collect();
        let of = |n: u64, width: usize, size: f32| normal(10 * seed + n, len * width, size, e);
        let (q, keys, values) = (of(0, a * d, 1.5), of(1, k * d, 0.8), of(2, k * d, 0.5));
        Sequence { q, k: keys, v: values, table, parent: None, prefix: 0, len }
    }
}

/// Sequences of these lengths, or (parent, prefix, own length), with blocks of their own.
fn sequences(s: Shape, spec: &[(Option<usize>, usize, usize)]) -> Vec<Sequence> {
    let (mut all, mut next) = (Vec::<Sequence>::new(), 1);
    for (i, &(parent, prefix, own)) in spec.iter().enumerate() {
        let mut x = Sequence::new(s, 7 + i as u64, prefix + own, next);
        next += x.table.len() as u32;
        if let Some(parent) = parent {
            let (n, blocks) = (prefix * s.k * s.d, prefix / KV_BLOCK);
            x.k[..n].copy_from_slice(&all[parent].k[..n]);
            x.v[..n].copy_from_slice(&all[parent].v[..n]);
            x.table[..blocks].copy_from_slice(&all[parent].table[..blocks]);
        }
        all.push(Sequence { parent, prefix, ..x });
    }
    all
}

/// Segment: sequence, first position, end.
type Piece = (usize, usize, usize);

/// All own positions of every sequence.
fn whole(sequences: &[Sequence]) -> Vec<Piece> {
    sequences.iter().enumerate().map(|(i, s)| (i, s.prefix, s.len)).collect()
}

/// The arrays of a pass over pieces of sequences, of which `cached` positions are in the cache; other slots hold NaN.
struct Pass {
    s: Shape,
    rows: usize,
    keys_max: usize,
    q: Vec<f32>,
    /// [blocks, k, 16, d].
    keys: Vec<f32>,
    values: Vec<f32>,
    segments: Vec<u32>,
    tables: Vec<u32>,
}

impl Pass {
    fn new(s: Shape, sequences: &[Sequence], cached: impl Fn(usize) -> usize, pieces: &[Piece]) -> Pass {
        let Shape { a, k, d, .. } = s;
        let blocks = 1 + *sequences.iter().flat_map(|x| &x.table).max().unwrap() as usize;
        let (mut keys, mut values) =
            (vec![f32::NAN; blocks * k * d * KV_BLOCK], vec![f32::NAN; blocks * k * d * KV_BLOCK]);
        let (mut tables, mut starts) = (vec![], vec![]);
        for (i, x) in sequences.iter().enumerate() {
            for p in x.prefix / KV_BLOCK * KV_BLOCK..cached(i).min(x.len) {
                for head in 0..k {
                    let at = ((x.table[p / KV_BLOCK] as usize * k + head) * KV_BLOCK + p % KV_BLOCK) * d;
                    keys[at..at + d].copy_from_slice(&x.k[(p * k + head) * d..][..d]);
                    values[at..at + d].copy_from_slice(&x.v[(p * k + head) * d..][..d]);
                }
            }
            starts.push(tables.len() as u32);
            tables.extend(&x.table);
        }
        let (mut segments, mut q, mut rows) = (vec![], vec![], 0);
        let mut first_rows = vec![0; sequences.len()];
        for &(i, from, to) in pieces {
            first_rows[i] = rows;
            let parent = sequences[i].parent.map_or(NO_PARENT, |p| first_rows[p] as u32);
            segments.extend([rows as u32, (to - from) as u32, from as u32, starts[i], parent]);
            rows += to - from;
            q.extend(&sequences[i].q[from * a * d..to * a * d]);
        }
        let keys_max = pieces.iter().map(|p| p.2).max().unwrap();
        Pass { s, rows, keys_max, q, keys, values, segments, tables }
    }

    fn buffers(&self) -> Vec<(&'static str, DType, usize)> {
        let Shape { a, k, e, .. } = self.s;
        vec![
            ("q", e, self.q.len()),
            ("keys", e, self.keys.len()),
            ("values", e, self.values.len()),
            ("out", e, self.q.len()),
            ("dout", e, self.q.len()),
            ("lse", F32, self.rows * a),
            ("positions", U32, self.rows),
            ("segments", U32, self.segments.len()),
            ("tables", U32, self.tables.len()),
            ("dq", F32, self.q.len()),
            ("dkv", F32, self.rows * 2 * k * self.s.d),
        ]
    }

    fn batch(&self, buf: &dyn Fn(&str) -> Buf<'static>) -> Batch<'static> {
        let positions = buf("positions");
        let (segments, tables) = (buf("segments"), buf("tables"));
        Batch { positions, slots: positions, segments, tables, keys_max: self.keys_max }
    }

    fn kv(&self, buf: &dyn Fn(&str) -> Buf<'static>) -> Kv<'static> {
        Kv { keys: buf("keys"), values: buf("values"), kv_heads: self.s.k, head_dim: self.s.d }
    }

    /// A card with the inputs; outputs are poisoned.
    fn gpu(&self, options: OpenOptions) -> Option<Card> {
        let gpu = on_card_with(&self.buffers(), options)?;
        for (name, x) in [("q", &self.q), ("keys", &self.keys), ("values", &self.values)] {
            gpu.set(name, x);
        }
        gpu.set_u32("segments", &self.segments);
        gpu.set_u32("tables", &self.tables);
        Some(gpu)
    }

    /// (out, lse).
    fn forward(&self) -> Option<(Vec<f32>, Vec<f32>)> {
        let mut gpu = self.gpu(OpenOptions::default())?;
        let b = |name: &str| gpu.buf(name);
        gpu.dev.attention(b("q"), self.kv(&b), self.batch(&b), self.s.scores(), b("out"), Some(b("lse")));
        let got = (gpu.get("out"), gpu.get("lse"));
        gpu.check_guards();
        Some(got)
    }

    /// (dq, dkv) for the outputs of the forward pass.
    fn backward(&self, dout: &[f32]) -> Option<(Vec<f32>, Vec<f32>)> {
        let mut gpu = self.gpu(OpenOptions::default())?;
        gpu.set("dout", dout);
        let b = |name: &str| gpu.buf(name);
        let (kv, batch) = (self.kv(&b), self.batch(&b));
        gpu.dev.attention(b("q"), kv, batch, self.s.scores(), b("out"), Some(b("lse")));
        let (out, lse, dout) = (b("out"), b("lse"), b("dout"));
        gpu.dev.attention_backward(AttentionBackward {
            q: b("q"),
            kv,
            batch,
            scores: self.s.scores(),
            out,
            lse,
            dout,
            dq: b("dq"),
            dkv: b("dkv"),
        });
        let got = (gpu.get("dq"), gpu.get("dkv"));
        gpu.check_guards();
        Some(got)
    }

    /// The same on the CPU, whose keys are [blocks, k, d, 16]: (out, dq, dkv).
    fn on_cpu(&self, dout: &[f32]) -> [Vec<f32>; 3] {
        let d = self.s.d;
        let size = d * KV_BLOCK;
        let turned = |i: usize| self.keys[i / size * size + i % size % KV_BLOCK * d + i % size / KV_BLOCK];
        let keys: Vec<f32> = (0..self.keys.len()).map(turned).collect();
        let cpu = twin(&self.buffers());
        for (name, x) in [("q", &self.q[..]), ("keys", &keys), ("values", &self.values), ("dout", dout)] {
            cpu.set(name, x);
        }
        cpu.set_u32("segments", &self.segments);
        cpu.set_u32("tables", &self.tables);
        let b = |name: &str| cpu.buf(name);
        let (kv, batch) = (self.kv(&b), self.batch(&b));
        cpu.dev.attention(b("q"), kv, batch, self.s.scores(), b("out"), Some(b("lse")));
        let (out, lse, dout) = (b("out"), b("lse"), b("dout"));
        cpu.dev.attention_backward(AttentionBackward {
            q: b("q"),
            kv,
            batch,
            scores: self.s.scores(),
            out,
            lse,
            dout,
            dq: b("dq"),
            dkv: b("dkv"),
        });
        [cpu.get("out"), cpu.get("dq"), cpu.get("dkv")]
    }
}

/// Weights, output and log-sum-exp of one row and head, in f64.
fn reference_row(s: Shape, x: &Sequence, p: usize, head: usize) -> (Vec<f64>, Vec<f64>, f64) {
    let Shape { a, k, d, .. } = s;
    let kv = head / (a / k);
    let q = &x.q[(p * a + head) * d..][..d];
    let row = |x: &'_ [f32], j: usize| x[(j * k + kv) * d..][..d].to_vec();
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    let first = (p + 1).saturating_sub(s.window);
    let scores: Vec<f64> = (first..=p).map(|j| s.bend(dot(q, &row(&x.k, j)) / (d as f64).sqrt()).0).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
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

#[track_caller]
fn close(what: &str, ours: &[f32], reference: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), reference.len(), "{what}: lengths");
    for (i, (&x, &r)) in ours.iter().zip(reference).enumerate() {
        let error = (f64::from(x) - r).abs();
        assert!(
            error <= tolerance,
            "{what}[{i}]: {x:e} against {r:e}, error {error:.2e}, allowed {tolerance:.1e}"
        );
    }
}

/// Of outputs: values are below 2.5. bf16 rounds weights (2^-9 each, adding up as random errors do) and the result once
/// more, by at most 2^-9 of it. f32: exponentials by the instruction, good to 2^-22.
fn out_tolerance(e: DType) -> f64 {
    if e == Bf16 { 1e-2 } else { 1e-5 }
}

#[test]
fn rows_are_close_to_the_f64_reference() {
    for s in SHAPES {
        let x = sequences(s, &[(None, 0, 1100)]);
        let pass = Pass::new(s, &x, |_| 1100, &[(0, 0, 1100)]);
        let Some((out, lse)) = pass.forward() else { return };
        for p in (0..1100).step_by(53).chain([511, 512, 1023, 1024, 1099]) {
            for head in [0, s.a - 1] {
                let (_, o, l) = reference_row(s, &x[0], p, head);
                let place = p * s.a + head;
                close(&format!("{s:?} out {p}"), &out[place * s.d..][..s.d], &o, out_tolerance(s.e));
                close(&format!("{s:?} lse {p}"), &lse[place..][..1], &[l], 2e-5);
            }
        }
    }
}

/// Compares rows of a pass with those of another, bit by bit.
#[track_caller]
fn same(
    what: &str,
    s: Shape,
    all: &(Vec<f32>, Vec<f32>),
    row: usize,
    part: &(Vec<f32>, Vec<f32>),
    at: usize,
    n: usize,
) {
    let width = s.a * s.d;
    assert_eq!(
        bits(&all.0[row * width..][..n * width]),
        bits(&part.0[at * width..][..n * width]),
        "{what} {s:?}"
    );
    assert_eq!(
        bits(&all.1[row * s.a..][..n * s.a]),
        bits(&part.1[at * s.a..][..n * s.a]),
        "{what} lse {s:?}"
    );
}

#[test]
fn bits_of_a_row_do_not_depend_on_calls_segments_chunks_or_unused_slots() {
    for s in SHAPES {
        let lens = [1100, 45, 1, 16, 33, 64, 65];
        let x = sequences(s, &lens.map(|len| (None, 0, len)));
        let Some(train) = Pass::new(s, &x, |_| usize::MAX, &whole(&x)).forward() else { return };
        assert!(train.0.iter().chain(&train.1).all(|x| x.is_finite()), "{s:?}: NaN of unused slots");
        let first_row = |i: usize| lens[..i].iter().sum::<usize>();
        // Prefill from anywhere, in other company.
        for cut in [1, 15, 16, 40, 63, 64, 100, 500, 511, 512, 513, 1023, 1024, 1099] {
            let pieces = [(4, 3, 30), (0, cut, 1100), (1, 0, 45)];
            let got = Pass::new(s, &x, |_| usize::MAX, &pieces).forward().unwrap();
            same("prefill", s, &train, first_row(4) + 3, &got, 0, 27);
            same("prefill", s, &train, cut, &got, 27, 1100 - cut);
            same("prefill", s, &train, first_row(1), &got, 27 + 1100 - cut, 45);
        }
        // Decode, later slots unwritten: chunks in blocks of their own, also where a bound promises more of them.
        for p in
            (500..530).step_by(3).chain([0, 1, 15, 16, 31, 63, 64, 511, 512, 513, 1022, 1023, 1024, 1025])
        {
            let pieces: Vec<Piece> = (0..7).filter(|&i| p < lens[i]).map(|i| (i, p, p + 1)).collect();
            let mut pass = Pass::new(s, &x, |_| p + 1, &pieces);
            for keys_max in [p + 1, (p + 1).next_multiple_of(512), 4096] {
                pass.keys_max = keys_max;
                let got = pass.forward().unwrap();
                for (at, &(i, ..)) in pieces.iter().enumerate() {
                    same(&format!("decode {p} of {keys_max}"), s, &train, first_row(i) + p, &got, at, 1);
                }
            }
        }
        // Decode of enough segments that a block takes all chunks.
        let pieces: Vec<Piece> = (0..1090).map(|p| (0, p, p + 1)).collect();
        let got = Pass::new(s, &x, |_| usize::MAX, &pieces).forward().unwrap();
        same("decode of many", s, &train, 0, &got, 0, 1090);
    }
}

/// A root alone; a root with three children, one of which leaves its prefix early; a long root, which is cut into
/// pieces; and one whose children are, with a segment of another group between them.
const FAMILIES: [(Option<usize>, usize, usize); 12] = [
    (None, 0, 21),
    (None, 0, 40),
    (Some(1), 40, 25),
    (Some(1), 33, 3),
    (Some(1), 40, 1),
    (None, 0, 600),
    (None, 0, 70),
    (Some(6), 70, 300),
    (Some(1), 16, 30),
    (Some(6), 65, 150),
    (Some(6), 3, 10),
    (Some(6), 70, 200),
];

/// Gradients in f64 of the sum of dout out: (dq, dkv) in the operation's layout.
fn reference_gradients(s: Shape, x: &[Sequence], dout: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let Shape { a, k, d, .. } = s;
    let first_rows: Vec<usize> =
        (0..x.len()).map(|i| x[..i].iter().map(|s| s.len - s.prefix).sum()).collect();
    let rows: usize = x.iter().map(|s| s.len - s.prefix).sum();
    let (mut dq, mut dkv) = (vec![0.0; rows * a * d], vec![0.0; rows * 2 * k * d]);
    for (x, &first) in x.iter().zip(&first_rows) {
        for p in x.prefix..x.len {
            for head in 0..a {
                let (weights, out, _) = reference_row(s, x, p, head);
                let (kv, at) = (head / (a / k), ((first + p - x.prefix) * a + head) * d);
                let g = |i: usize| f64::from(dout[at + i]);
                let delta: f64 = (0..d).map(|i| g(i) * out[i]).sum();
                for (j, weight) in weights.into_iter().enumerate() {
                    let [key, value] = [&x.k, &x.v].map(|x| &x[(j * k + kv) * d..][..d]);
                    let dweight: f64 = (0..d).map(|i| g(i) * f64::from(value[i])).sum();
                    let query = &x.q[(p * a + head) * d..][..d];
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
                        dkv[to + i] += dscore * f64::from(x.q[(p * a + head) * d + i]);
                        dkv[to + k * d + i] += weight * g(i);
                    }
                }
            }
        }
    }
    (dq, dkv)
}

#[test]
fn gradients_are_close_to_the_f64_reference_and_the_same_bits_each_time() {
    for s in [1, 2, 6, 8, 9, 10, 12, 13, 17].map(|i| SHAPES[i]) {
        let x = sequences(s, &FAMILIES);
        let pass = Pass::new(s, &x, |_| usize::MAX, &whole(&x));
        let dout = normal(99, pass.q.len(), 0.5, s.e);
        let Some((dq, dkv)) = pass.backward(&dout) else { return };
        let (want_dq, want_dkv) = reference_gradients(s, &x, &dout);
        // bf16: delta is of the rounded output, and P and dS are rounded, errors of 2^-9 of terms of order 1 that add
        // up as random ones over the rows and heads that look at a key. f32: sums of up to 1,000 terms.
        let [q, kv] = if s.e == Bf16 { [1e-2, 4e-2] } else { [1e-5, 1e-4] };
        close(&format!("{s:?} dq"), &dq, &want_dq, q);
        close(&format!("{s:?} dkv"), &dkv, &want_dkv, kv);
        let again = pass.backward(&dout).unwrap();
        assert_eq!([bits(&dq), bits(&dkv)], [bits(&again.0), bits(&again.1)], "{s:?}");
    }
}

#[test]
fn the_cpu_agrees() {
    for s in [1, 4, 7, 10, 12, 17].map(|i| SHAPES[i]) {
        let x = sequences(s, &FAMILIES[..5]);
        let pass = Pass::new(s, &x, |_| usize::MAX, &whole(&x));
        let dout = normal(99, pass.q.len(), 0.5, s.e);
        let Some((out, _)) = pass.forward() else { return };
        let (dq, dkv) = pass.backward(&dout).unwrap();
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let cpu = pass.on_cpu(&dout).map(|x| wide(&x));
        let gradients = if s.e == Bf16 { 4e-2 } else { 1e-4 };
        close(&format!("{s:?} out"), &out, &cpu[0], 2.0 * out_tolerance(s.e));
        close(&format!("{s:?} dq"), &dq, &cpu[1], gradients);
        close(&format!("{s:?} dkv"), &dkv, &cpu[2], gradients);
    }
}

#[test]
fn rows_of_no_segment_have_no_gradients() {
    for s in [SHAPES[1], SHAPES[7], SHAPES[17]] {
        let x = sequences(s, &[(None, 0, 20), (None, 0, 90)]);
        let mut pass = Pass::new(s, &x, |_| usize::MAX, &whole(&x));
        pass.segments.truncate(5);
        let dout = normal(99, pass.q.len(), 0.5, s.e);
        let Some((dq, dkv)) = pass.backward(&dout) else { return };
        assert!(dq[20 * s.a * s.d..].iter().chain(&dkv[20 * 2 * s.k * s.d..]).all(|&x| x == 0.0), "{s:?}");
        assert!(dq[..20 * s.a * s.d].iter().any(|&x| x != 0.0), "{s:?}");
    }
}

#[test]
fn a_bad_entry_of_a_block_table_is_named_by_a_checked_build() {
    let all = [1, 7, 17].map(|i| [(SHAPES[i], vec![(0, 0, 90)]), (SHAPES[i], vec![(0, 89, 90)])]);
    for (s, pieces) in all.into_iter().flatten() {
        let x = sequences(s, &[(None, 0, 90)]);
        let mut pass = Pass::new(s, &x, |_| 90, &pieces);
        pass.tables[3] = 1_000_000;
        for backward in [false, true] {
            let Some(gpu) = pass.gpu(OpenOptions { checked: true, profile: false }) else { return };
            let b = |name: &str| gpu.buf(name);
            let (kv, batch, out) = (pass.kv(&b), pass.batch(&b), b("out"));
            if backward {
                let (lse, dout) = (b("lse"), b("dout"));
                for x in [out, lse, dout] {
                    gpu.dev.zero(x);
                }
                gpu.dev.attention_backward(AttentionBackward {
                    q: b("q"),
                    kv,
                    batch,
                    scores: pass.s.scores(),
                    out,
                    lse,
                    dout,
                    dq: b("dq"),
                    dkv: b("dkv"),
                });
            } else {
                gpu.dev.attention(b("q"), kv, batch, pass.s.scores(), out, None);
            }
            let error = gpu.dev.check().unwrap_err();
            assert_eq!(error.slug, "cuda-bad-index", "{s:?}: {error}");
            assert!(error.message.contains("cache block 1000000"), "{error}");
        }
    }
}

#[test]
fn scratch_grows_with_chunks_up_to_a_bound_on_rows() {
    assert_eq!(attention_scratch_bytes(64, 9, 3, 64, 512), 0);
    assert_eq!(attention_scratch_bytes(64, 9, 3, 64, 513), 64 * 9 * 2 * 66 * 4);
    assert_eq!(attention_scratch_bytes(10_000, 9, 3, 64, 4096), attention_scratch_bytes(341, 9, 3, 64, 4096));
    // Delta, and results of pieces: 12,288 rows, or as many as the pass has where it has more; few where it has few.
    for (rows, parts) in [(64, 512), (4096, 12288), (65536, 65536)] {
        let bytes = attention_backward_scratch_bytes(rows, 8, 9, 3, 64);
        let least = (rows * 9 + parts * 2 * 3 * 64) * 4;
        assert!((least..least + rows * 4 + (64 << 10)).contains(&bytes), "{rows}: {bytes}");
    }
}

#[test]
fn values_are_stored_as_the_dtype_holds_them() {
    // The references above are of the stored numbers.
    for s in SHAPES {
        let x = Sequence::new(s, 1, 3, 0);
        assert!(x.q.iter().chain(&x.k).chain(&x.v).all(|&x| round(x, s.e) == x), "{s:?}");
    }
}
