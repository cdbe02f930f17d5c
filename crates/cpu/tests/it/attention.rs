//! Attention: values, and the same bits however rows are cut into calls and segments.

use crate::both::{Rig, bend, bits, close, get, numbers, paths, stored};
use plimsoll_base::DType;
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::{ALL_KEYS, Batch, Device, KV_BLOCK, Kv, NO_PARENT, Scores};
use plimsoll_memory::{Buf, Resident};

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
    pub fn scores(self) -> Scores {
        Scores { window: self.window, cap: self.cap }
    }

    /// A score as `scores` says, and its slope.
    pub fn bend(self, x: f64) -> (f64, f64) {
        bend(self.cap, x)
    }
}

const SHAPES: [Shape; 13] = [
    Shape { a: 9, k: 3, d: 64, e: DType::Bf16, window: ALL_KEYS, cap: None },
    Shape { a: 9, k: 3, d: 64, e: DType::F32, window: ALL_KEYS, cap: None },
    Shape { a: 14, k: 2, d: 64, e: DType::Bf16, window: ALL_KEYS, cap: None },
    Shape { a: 4, k: 2, d: 128, e: DType::Bf16, window: ALL_KEYS, cap: None },
    Shape { a: 2, k: 2, d: 16, e: DType::F32, window: ALL_KEYS, cap: None },
    Shape { a: 3, k: 1, d: 48, e: DType::F32, window: ALL_KEYS, cap: None },
    Shape { a: 26, k: 1, d: 32, e: DType::Bf16, window: ALL_KEYS, cap: None },
    Shape { a: 9, k: 3, d: 64, e: DType::Bf16, window: 1, cap: None },
    Shape { a: 14, k: 2, d: 64, e: DType::F32, window: 20, cap: None },
    Shape { a: 4, k: 2, d: 32, e: DType::Bf16, window: 64, cap: None },
    Shape { a: 3, k: 1, d: 48, e: DType::F32, window: 530, cap: None },
    Shape { a: 4, k: 2, d: 32, e: DType::F32, window: ALL_KEYS, cap: Some(1.5) },
    Shape { a: 9, k: 3, d: 64, e: DType::Bf16, window: 40, cap: Some(50.0) },
];

/// A sequence's queries, keys and values by position, and its block table. Unused slots hold NaN.
#[derive(Clone)]
pub struct Sequence {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub table: Vec<u32>,
}

impl Sequence {
    pub fn new(shape: Shape, seed: u64, len: usize, table: Vec<u32>) -> Sequence {
        let Shape { a, k, d, e, .. } = shape;
        let of = |n: u64, width: usize, size: f32| {
            let x: Vec<f32> = numbers(seed * 10 + n, len * width).iter().map(|x| x * size).collect();
            stored(e, &x)
        };
        Sequence { q: of(0, a * d, 3.0), k: of(1, k * d, 1.5), v: of(2, k * d, 1.0), table }
    }
}

/// Writes positions `range` of a sequence into cache images in the documented layout.
pub fn fill_cache(
    shape: Shape,
    s: &Sequence,
    range: std::ops::Range<usize>,
    keys: &mut [f32],
    values: &mut [f32],
) {
    let Shape { k, d, .. } = shape;
    for p in range {
        let (block, slot) = (s.table[p / KV_BLOCK] as usize, p % KV_BLOCK);
        for head in 0..k {
            for i in 0..d {
                let at = (block * k + head) * d * KV_BLOCK;
                keys[at + i * KV_BLOCK + slot] = s.k[(p * k + head) * d + i];
                values[at + slot * d + i] = s.v[(p * k + head) * d + i];
            }
        }
    }
}

/// (out, lse) of one row in f64.
pub fn reference_row(shape: Shape, s: &Sequence, p: usize) -> (Vec<f64>, Vec<f64>) {
    let Shape { a, k, d, .. } = shape;
    let (mut out, mut lse) = (Vec::new(), Vec::new());
    for head in 0..a {
        let kv = head / (a / k);
        let q = &s.q[(p * a + head) * d..][..d];
        let row = |x: &[f32], j: usize| -> Vec<f64> {
            x[(j * k + kv) * d..][..d].iter().map(|&x| x.into()).collect()
        };
        let first = (p + 1).saturating_sub(shape.window);
        let scores: Vec<f64> = (first..=p)
            .map(|j| {
                let dot = row(&s.k, j).iter().zip(q).map(|(k, &q)| k * f64::from(q)).sum::<f64>();
                shape.bend(dot / (d as f64).sqrt()).0
            })
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        lse.push(max + sum.ln());
        let mut o = vec![0.0; d];
        for (j, score) in scores.iter().enumerate() {
            for (o, v) in o.iter_mut().zip(row(&s.v, first + j)) {
                *o += (score - max).exp() / sum * v;
            }
        }
        out.extend(o);
    }
    (out, lse)
}

/// Segment: sequence, positions.
pub type Piece = (usize, std::ops::Range<usize>);

/// Runs attention once over pieces of sequences; returns (out, lse) of the rows in order.
fn run(
    shape: Shape,
    isa: Isa,
    threads: usize,
    sequences: &[Sequence],
    cached: &[usize],
    pieces: &[Piece],
) -> (Vec<f32>, Vec<f32>) {
    let Shape { a, k, d, e, .. } = shape;
    let rows: usize = pieces.iter().map(|p| p.1.len()).sum();
    let blocks = 1 + sequences.iter().flat_map(|s| &s.table).copied().max().expect("a block") as usize;
    let (mut keys, mut values) =
        (vec![f32::NAN; blocks * k * d * KV_BLOCK], vec![f32::NAN; blocks * k * d * KV_BLOCK]);
    for (s, &len) in sequences.iter().zip(cached) {
        fill_cache(shape, s, 0..len, &mut keys, &mut values);
    }
    let (mut segments, mut tables, mut starts, mut q) = (vec![], vec![], vec![], vec![]);
    for s in sequences {
        starts.push(tables.len() as u32);
        tables.extend(&s.table);
    }
    let mut row = 0;
    for (s, range) in pieces {
        segments.extend([row, range.len() as u32, range.start as u32, starts[*s], NO_PARENT]);
        row += range.len() as u32;
        q.extend(&sequences[*s].q[range.start * a * d..range.end * a * d]);
    }
    let u32s = |n: usize| (DType::U32, n);
    let rig = Rig::new(
        isa,
        threads,
        &[
            ("q", e, q.len()),
            ("keys", e, keys.len()),
            ("values", e, values.len()),
            ("out", e, q.len()),
            ("lse", DType::F32, rows * a),
            ("positions", u32s(rows).0, rows),
            ("segments", DType::U32, segments.len()),
            ("tables", DType::U32, tables.len()),
        ],
    );
    let (dev, r) = rig.bufs();
    write(dev, r, &[("q", &q), ("keys", &keys), ("values", &values)]);
    dev.write_u32(r.buf("segments"), 0, &segments);
    dev.write_u32(r.buf("tables"), 0, &tables);
    let kv = Kv { keys: r.buf("keys"), values: r.buf("values"), kv_heads: k, head_dim: d };
    dev.attention(r.buf("q"), kv, batch(r), shape.scores(), r.buf("out"), Some(r.buf("lse")));
    (get(dev, r.buf("out")), get(dev, r.buf("lse")))
}

pub fn write(dev: &CpuDevice, r: Resident<'_>, what: &[(&str, &[f32])]) {
    for (name, x) in what {
        dev.write_f32(r.buf(name), 0, x);
    }
}

/// Attention reads no positions and slots but their number.
pub fn batch(r: Resident<'_>) -> Batch<'_> {
    let positions: Buf<'_> = r.buf("positions");
    Batch {
        positions,
        slots: positions,
        segments: r.buf("segments"),
        tables: r.buf("tables"),
        keys_max: usize::MAX,
    }
}

/// Blocks in a scattered order.
pub fn scattered(first: u32, num_blocks: usize) -> Vec<u32> {
    let n = num_blocks as u32;
    (0..n).map(|i| first + (i * 7 + 3) % n).collect()
}

fn blocks_of(len: usize) -> usize {
    // A count prime to 7, so that `scattered` is a permutation.
    (len.div_ceil(KV_BLOCK)..).find(|n| n % 7 != 0).expect("some count")
}

#[test]
fn rows_are_close_to_the_f64_reference() {
    for isa in paths() {
        for shape in SHAPES {
            let len = if isa == Isa::Scalar { 70 } else { 150 };
            let s = Sequence::new(shape, 5, len, scattered(1, blocks_of(len)));
            let (out, lse) = run(shape, isa, 2, std::slice::from_ref(&s), &[len], &[(0, 0..len)]);
            for p in (0..len).step_by(13) {
                let (o, l) = reference_row(shape, &s, p);
                // |scores| up to about 8 with errors of d/2 ulp: 64 * 6e-8 * 8 / 2 = 1.5e-5 relative in a weight;
                // |values| <= 1. bf16 rounds the result once more: 2^-9 of at most 1.
                let tolerance = if shape.e == DType::Bf16 { 2e-3 + 2e-5 } else { 2e-5 };
                close(
                    &format!("{isa:?} {shape:?} out {p}"),
                    &out[p * shape.a * shape.d..][..shape.a * shape.d],
                    &o,
                    tolerance,
                );
                close(&format!("{isa:?} {shape:?} lse {p}"), &lse[p * shape.a..][..shape.a], &l, 2e-5);
            }
        }
    }
}

#[test]
fn chunks_beyond_the_first_are_merged() {
    for isa in paths() {
        // Windows that begin in the first chunk, in the second, at its edge, and in the row's own.
        for window in [ALL_KEYS, 900, 511, 512, 513, 9] {
            let shape = Shape { a: 3, k: 1, d: 32, e: DType::F32, window, cap: None };
            let len = 1100;
            let s = Sequence::new(shape, 6, len, scattered(0, blocks_of(len)));
            let rows = 1010..1040;
            let (out, lse) = run(shape, isa, 2, std::slice::from_ref(&s), &[len], &[(0, rows.clone())]);
            for (i, p) in rows.enumerate() {
                let (o, l) = reference_row(shape, &s, p);
                close(&format!("{isa:?} {window} out {p}"), &out[i * 96..][..96], &o, 2e-5);
                close(&format!("{isa:?} {window} lse {p}"), &lse[i * 3..][..3], &l, 2e-5);
            }
        }
    }
}

#[test]
fn bits_of_a_row_do_not_depend_on_calls_segments_threads_or_unused_slots() {
    for isa in paths() {
        for shape in SHAPES {
            let long = if isa == Isa::Scalar { 83 } else { 560 };
            let lens = [long, 45, 1, 16, 33];
            let mut sequences = vec![];
            let mut first = 0;
            for (i, &len) in lens.iter().enumerate() {
                sequences.push(Sequence::new(shape, 20 + i as u64, len, scattered(first, blocks_of(len))));
                first += blocks_of(len) as u32;
            }
            // Training: all sequences whole in one call.
            let whole: Vec<Piece> = lens.iter().enumerate().map(|(i, &len)| (i, 0..len)).collect();
            let train = run(shape, isa, 1, &sequences, &lens, &whole);
            assert!(train.0.iter().all(|x| x.is_finite()), "{isa:?} {shape:?}: NaN of unused slots");
            assert_eq!(train, run(shape, isa, 2, &sequences, &lens, &whole), "{isa:?} {shape:?}: threads");
            let first_row = |i: usize| lens[..i].iter().sum::<usize>();
            let same = |what: &str, piece: &Piece, at: usize, got: &(Vec<f32>, Vec<f32>)| {
                let (w, row) = (shape.a * shape.d, first_row(piece.0) + piece.1.start);
                let n = piece.1.len();
                assert_eq!(
                    bits(&train.0[row * w..][..n * w]),
                    bits(&got.0[at * w..][..n * w]),
                    "{what} {isa:?} {shape:?} {piece:?}"
                );
                assert_eq!(
                    bits(&train.1[row * shape.a..][..n * shape.a]),
                    bits(&got.1[at * shape.a..][..n * shape.a]),
                    "{what} lse"
                );
            };
            // Prefill from the middle, with nothing after it in the cache.
            for cut in [1, 15, 16, 17, 40, 44] {
                let piece = (1, cut..45);
                same(
                    "prefill",
                    &piece,
                    0,
                    &run(shape, isa, 2, &sequences, &lens, std::slice::from_ref(&piece)),
                );
            }
            // Decode: one row of each sequence that is long enough, later slots unwritten.
            for p in [0, 1, 14, 15, 16, 31, 32] {
                let pieces: Vec<Piece> = (0..5).filter(|&i| p < lens[i]).map(|i| (i, p..p + 1)).collect();
                let cached: Vec<usize> = lens.iter().map(|&len| len.min(p + 1)).collect();
                let got = run(shape, isa, 2, &sequences, &cached, &pieces);
                for (at, piece) in pieces.iter().enumerate() {
                    same("decode", piece, at, &got);
                }
            }
            let piece = (0, long - 1..long);
            same("decode", &piece, 0, &run(shape, isa, 1, &sequences, &lens, std::slice::from_ref(&piece)));
        }
    }
}

#[test]
fn a_later_value_that_is_not_finite_does_not_reach_earlier_rows() {
    for isa in paths() {
        let shape = SHAPES[0];
        let mut s = Sequence::new(shape, 9, 40, scattered(0, 3));
        let (good, _) = run(shape, isa, 1, std::slice::from_ref(&s), &[40], &[(0, 0..40)]);
        let width = shape.k * shape.d;
        s.v[21 * width..22 * width].fill(f32::NAN);
        s.k[21 * width..22 * width].fill(f32::INFINITY);
        let (bad, _) = run(shape, isa, 1, std::slice::from_ref(&s), &[40], &[(0, 0..40)]);
        let row = shape.a * shape.d;
        assert_eq!(bits(&good[..21 * row]), bits(&bad[..21 * row]), "{isa:?}");
        assert!(bad[21 * row..22 * row].iter().all(|x| x.is_nan()), "{isa:?}");
    }
}
