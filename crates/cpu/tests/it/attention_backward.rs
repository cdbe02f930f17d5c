//! Gradients of attention over packed groups: a root and children that share its prefix.

use crate::attention::{Sequence, Shape, batch, fill_cache, reference_row, scattered, write};
use crate::both::{Rig, bits, close, get, numbers, paths, stored};
use plimsoll_base::DType;
use plimsoll_cpu::Isa;
use plimsoll_device::{ALL_KEYS, AttentionBackward, Device, KV_BLOCK, Kv, NO_PARENT};

/// Sequences: a root has no parent; a child begins with `.1` positions of its parent.
type Members = Vec<(Option<(usize, usize)>, Sequence)>;

/// Two groups: a root alone, and a root with three children, one of which leaves its prefix early.
fn members(shape: Shape) -> Members {
    let mut next = 0;
    let mut table = |len: usize| {
        let first = next;
        next += len.div_ceil(KV_BLOCK) as u32;
        (first..next).rev().collect::<Vec<u32>>()
    };
    let mut all: Members = vec![];
    for len in [21, 40] {
        let t = table(len);
        all.push((None, Sequence::new(shape, 40 + len as u64, len, t)));
    }
    for (i, (prefix, own)) in [(40, 25), (33, 3), (40, 1)].into_iter().enumerate() {
        let t = table(prefix + own);
        let mut child = Sequence::new(shape, 60 + i as u64, prefix + own, t);
        let root = &all[1].1;
        let (q, kv) = (prefix * shape.a * shape.d, prefix * shape.k * shape.d);
        child.q[..q].copy_from_slice(&root.q[..q]);
        child.k[..kv].copy_from_slice(&root.k[..kv]);
        child.v[..kv].copy_from_slice(&root.v[..kv]);
        // Whole blocks are shared; the partial one is the child's copy.
        let whole = prefix / KV_BLOCK;
        child.table[..whole].copy_from_slice(&root.table[..whole]);
        all.push((Some((1, prefix)), child));
    }
    all
}

/// First own position, first row and number of rows of each member.
fn rows(shape: Shape, members: &Members) -> Vec<(usize, usize, usize)> {
    let mut first = 0;
    members
        .iter()
        .map(|(parent, s)| {
            let start = parent.map_or(0, |p| p.1);
            let n = s.q.len() / (shape.a * shape.d) - start;
            first += n;
            (start, first - n, n)
        })
        .collect()
}

struct Gradients {
    out: Vec<f32>,
    dq: Vec<f32>,
    dkv: Vec<f32>,
}

fn run(shape: Shape, isa: Isa, threads: usize, members: &Members, dout: &[f32]) -> Gradients {
    let Shape { a, k, d, e, .. } = shape;
    let places = rows(shape, members);
    let num_rows = places.iter().map(|p| p.2).sum::<usize>();
    let blocks = 1 + members.iter().flat_map(|m| &m.1.table).copied().max().expect("a block") as usize;
    let (mut keys, mut values) =
        (vec![f32::NAN; blocks * k * d * KV_BLOCK], vec![f32::NAN; blocks * k * d * KV_BLOCK]);
    let (mut segments, mut tables, mut q) = (vec![], vec![], vec![]);
    for ((parent, s), &(start, first, n)) in members.iter().zip(&places) {
        let copied = start / KV_BLOCK * KV_BLOCK;
        fill_cache(shape, s, copied..start + n, &mut keys, &mut values);
        let parent = parent.map_or(NO_PARENT, |p| places[p.0].1 as u32);
        segments.extend([first as u32, n as u32, start as u32, tables.len() as u32, parent]);
        tables.extend(&s.table);
        q.extend(&s.q[start * a * d..]);
    }
    let rig = Rig::new(
        isa,
        threads,
        &[
            ("q", e, q.len()),
            ("keys", e, keys.len()),
            ("values", e, values.len()),
            ("out", e, q.len()),
            ("dout", e, q.len()),
            ("lse", DType::F32, num_rows * a),
            ("positions", DType::U32, num_rows),
            ("segments", DType::U32, segments.len()),
            ("tables", DType::U32, tables.len()),
            ("dq", DType::F32, q.len()),
            ("dkv", DType::F32, num_rows * 2 * k * d),
        ],
    );
    let (dev, r) = rig.bufs();
    write(dev, r, &[("q", &q), ("keys", &keys), ("values", &values), ("dout", dout)]);
    dev.write_u32(r.buf("segments"), 0, &segments);
    dev.write_u32(r.buf("tables"), 0, &tables);
    let kv = Kv { keys: r.buf("keys"), values: r.buf("values"), kv_heads: k, head_dim: d };
    let (q, out, lse, dout, dq, dkv) =
        (r.buf("q"), r.buf("out"), r.buf("lse"), r.buf("dout"), r.buf("dq"), r.buf("dkv"));
    dev.attention(q, kv, batch(r), shape.scores(), out, Some(lse));
    dev.attention_backward(AttentionBackward {
        q,
        kv,
        batch: batch(r),
        scores: shape.scores(),
        out,
        lse,
        dout,
        dq,
        dkv,
    });
    Gradients { out: get(dev, out), dq: get(dev, dq), dkv: get(dev, dkv) }
}

/// Gradients in f64 of the sum of dout out, for given outputs: (dq, dkv) in the operation's layout.
fn reference(shape: Shape, members: &Members, dout: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let Shape { a, k, d, .. } = shape;
    let places = rows(shape, members);
    let num_rows = places.iter().map(|p| p.2).sum::<usize>();
    let (mut dq, mut dkv) = (vec![0.0; num_rows * a * d], vec![0.0; num_rows * 2 * k * d]);
    for ((parent, s), &(start, first, n)) in members.iter().zip(&places) {
        for p in start..start + n {
            let row = first + p - start;
            let (out, lse) = reference_row(shape, s, p);
            for head in 0..a {
                let kv = head / (a / k);
                let at = (row * a + head) * d;
                let g = |i: usize| f64::from(dout[at + i]);
                let delta: f64 = (0..d).map(|i| g(i) * out[head * d + i]).sum();
                for j in 0..=p {
                    let (q, key) = (&s.q[(p * a + head) * d..][..d], &s.k[(j * k + kv) * d..][..d]);
                    let value = &s.v[(j * k + kv) * d..][..d];
                    let score: f64 = q.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                    let scale = 1.0 / (d as f64).sqrt();
                    let (score, slope) = shape.bend(score * scale);
                    let weight = (score - lse[head]).exp();
                    let dweight: f64 = (0..d).map(|i| g(i) * f64::from(value[i])).sum();
                    let dscore = weight * (dweight - delta) * scale * slope;
                    let owner = match parent {
                        Some((parent, prefix)) if j < *prefix => places[*parent].1 + j,
                        _ => first + j - start,
                    };
                    let to = owner * 2 * k * d + kv * d;
                    for i in 0..d {
                        dq[at + i] += dscore * f64::from(key[i]);
                        dkv[to + i] += dscore * f64::from(q[i]);
                        dkv[to + k * d + i] += weight * g(i);
                    }
                }
            }
        }
    }
    (dq, dkv)
}

const SHAPES: [Shape; 6] = [
    Shape { a: 9, k: 3, d: 64, e: DType::F32, window: ALL_KEYS, cap: None },
    Shape { a: 4, k: 2, d: 48, e: DType::F32, window: ALL_KEYS, cap: None },
    Shape { a: 7, k: 1, d: 16, e: DType::Bf16, window: ALL_KEYS, cap: None },
    Shape { a: 2, k: 2, d: 128, e: DType::Bf16, window: ALL_KEYS, cap: None },
    Shape { a: 4, k: 2, d: 48, e: DType::F32, window: ALL_KEYS, cap: Some(1.5) },
    Shape { a: 2, k: 1, d: 32, e: DType::Bf16, window: ALL_KEYS, cap: Some(4.0) },
];

fn output_gradients(shape: Shape, members: &Members) -> Vec<f32> {
    let n = rows(shape, members).iter().map(|p| p.2).sum::<usize>();
    stored(shape.e, &numbers(123, n * shape.a * shape.d))
}

#[test]
fn gradients_are_close_to_the_f64_reference() {
    for isa in paths() {
        for shape in SHAPES {
            let members = members(shape);
            let dout = output_gradients(shape, &members);
            let ours = run(shape, isa, 2, &members, &dout);
            let (dq, dkv) = reference(shape, &members, &dout);
            // f32: sums of up to 90 x 9 terms below 2 with errors of 1e-6 each, added up as random ones.
            // bf16: delta is computed from the rounded output, an error of 2^-9 |out| |dout| sqrt(d) = 0.01 in a
            // score's gradient of scale 1/sqrt(d), times weights that add up to at most the rows that look at a key.
            let tolerance = if shape.e == DType::Bf16 { 2e-2 } else { 1e-4 };
            close(&format!("{isa:?} {shape:?} dq"), &ours.dq, &dq, tolerance);
            close(&format!("{isa:?} {shape:?} dkv"), &ours.dkv, &dkv, tolerance);
        }
    }
}

#[test]
fn the_reference_is_the_slope_of_the_loss() {
    let shape = Shape { a: 4, k: 2, d: 16, e: DType::F32, window: ALL_KEYS, cap: None };
    let mut members = vec![(None, Sequence::new(shape, 3, 20, vec![0, 1]))];
    let dout = output_gradients(shape, &members);
    let (dq, dkv) = reference(shape, &members, &dout);
    let loss = |members: &Members| -> f64 {
        let out: Vec<f64> = (0..20).flat_map(|p| reference_row(shape, &members[0].1, p).0).collect();
        out.iter().zip(&dout).map(|(o, &g)| o * f64::from(g)).sum()
    };
    let step = 2.0f32.powi(-10); // exact in the inputs; errors of order step^2 = 1e-6 times third derivatives
    for i in (0..20 * 32).step_by(37) {
        let (row, column) = (i / 32, i % 32);
        for what in 0..3 {
            let mut slope = 0.0;
            for sign in [1.0, -1.0] {
                let s = &mut members[0].1;
                let x = [&mut s.q[row * 64 + column], &mut s.k[i], &mut s.v[i]]
                    .into_iter()
                    .nth(what)
                    .expect("three");
                let old = *x;
                *x = old + sign * step;
                let exact = f64::from(*x) - f64::from(old);
                slope += loss(&members) / (2.0 * exact.abs()) * f64::from(sign);
                let s = &mut members[0].1;
                *[&mut s.q[row * 64 + column], &mut s.k[i], &mut s.v[i]]
                    .into_iter()
                    .nth(what)
                    .expect("three") = old;
            }
            let ours = [dq[row * 64 + column], dkv[row * 64 + column], dkv[row * 64 + 32 + column]][what];
            assert!(
                (slope - ours).abs() < 1e-4,
                "{what} row {row} column {column}: slope {slope}, gradient {ours}"
            );
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads_and_shared_prefixes_give_whole_sequences_rows() {
    for isa in paths() {
        for shape in SHAPES {
            let members = members(shape);
            let dout = output_gradients(shape, &members);
            let one = run(shape, isa, 1, &members, &dout);
            let two = run(shape, isa, 2, &members, &dout);
            assert_eq!(bits(&one.dq), bits(&two.dq), "{isa:?} {shape:?} dq");
            assert_eq!(bits(&one.dkv), bits(&two.dkv), "{isa:?} {shape:?} dkv");
            // Each child as a sequence of its own, with its own copy of the prefix.
            let width = shape.a * shape.d;
            for (i, &(start, first, n)) in rows(shape, &members).iter().enumerate() {
                let mut alone = members[i].1.clone();
                alone.table = scattered(0, alone.table.len());
                let alone: Members = vec![(None, alone)];
                let whole = run(shape, isa, 2, &alone, &stored(shape.e, &numbers(9, (start + n) * width)));
                let own = &whole.out[start * width..];
                assert_eq!(
                    bits(own),
                    bits(&one.out[first * width..][..n * width]),
                    "{isa:?} {shape:?} member {i}"
                );
            }
        }
    }
}
