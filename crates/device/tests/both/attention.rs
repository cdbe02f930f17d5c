//! Attention over a paged cache, and its gradients over groups that share prefixes: shapes, sequences and passes.
#![allow(dead_code)] // Each binary uses its part.

pub mod checks;
pub mod reference;

use super::{Machine, Open, Rig, Sized, bend, normal};
use plimsoll_base::DType::{self, Bf16, F32, U32};
use plimsoll_device::{ALL_KEYS, AttentionBackward, Batch, KV_BLOCK, Kv, NO_PARENT, Scores, SinkBackward};
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
    /// The soft cap on scores.
    pub cap: Option<f32>,
    /// True if heads have sinks.
    pub sunk: bool,
    /// First columns of outputs that nothing reads, if values are the keys.
    pub latent: Option<usize>,
}

impl Shape {
    /// Sinks below the largest scores and above them.
    pub fn sinks(self) -> Option<Vec<f32>> {
        self.sunk.then(|| normal(98, self.a, 3.0, self.e))
    }

    /// First columns of outputs that nothing reads.
    pub fn unused(self) -> usize {
        self.latent.unwrap_or(0)
    }

    /// A score as `scores` says, and its slope.
    fn bend(self, x: f64) -> (f64, f64) {
        bend(self.cap, x)
    }
}

pub const fn shape(a: usize, k: usize, d: usize, e: DType) -> Shape {
    Shape { a, k, d, e, window: ALL_KEYS, cap: None, sunk: false, latent: None }
}

pub const fn windowed(window: usize, s: Shape) -> Shape {
    Shape { window, ..s }
}

pub const fn capped(cap: f32, s: Shape) -> Shape {
    Shape { cap: Some(cap), ..s }
}

pub const fn sunk(s: Shape) -> Shape {
    Shape { sunk: true, ..s }
}

/// Attention of `a` heads over latents of d elements, the first `unused` of which are no values.
pub const fn latent(a: usize, unused: usize, d: usize, e: DType) -> Shape {
    Shape { latent: Some(unused), ..shape(a, 1, d, e) }
}

/// Groups of 1, 2, 3, 6, 7, 8 and 20 heads, on a card on tensor cores; then shapes of its plain kernels, then windows,
/// then caps, then groups of 4 and 20 heads of 256, then wider heads, then latents.
pub const SHAPES: [Shape; 36] = [
    shape(2, 2, 64, Bf16),
    shape(4, 2, 128, Bf16),
    shape(9, 3, 64, Bf16),
    shape(6, 1, 128, Bf16),
    shape(14, 2, 64, Bf16),
    shape(8, 1, 128, Bf16),
    shape(20, 1, 64, Bf16),
    shape(7, 1, 16, Bf16),
    shape(26, 1, 32, Bf16),
    shape(9, 3, 64, F32),
    shape(4, 2, 48, F32),
    shape(2, 2, 16, F32),
    shape(3, 1, 48, F32),
    windowed(1, shape(9, 3, 64, Bf16)),
    windowed(40, shape(6, 1, 128, Bf16)),
    windowed(64, shape(4, 2, 32, Bf16)),
    windowed(512, shape(14, 2, 64, Bf16)),
    windowed(130, shape(2, 1, 256, Bf16)),
    windowed(37, shape(9, 3, 64, F32)),
    windowed(20, shape(14, 2, 64, F32)),
    windowed(530, shape(3, 1, 48, F32)),
    capped(1.5, shape(4, 2, 48, F32)),
    capped(1.5, shape(4, 2, 32, F32)),
    capped(50.0, windowed(130, shape(2, 1, 256, Bf16))),
    capped(50.0, windowed(40, shape(9, 3, 64, Bf16))),
    capped(2.0, shape(4, 2, 128, Bf16)),
    shape(8, 2, 256, Bf16),
    shape(20, 1, 256, Bf16),
    shape(3, 1, 304, Bf16),
    shape(2, 2, 304, F32),
    shape(2, 1, 576, Bf16),
    windowed(130, shape(2, 1, 576, F32)),
    latent(3, 16, 48, Bf16),
    latent(4, 64, 576, Bf16),
    latent(20, 64, 576, Bf16),
    latent(2, 64, 576, F32),
];

/// Shapes whose heads have sinks: of a card's kernels on tensor cores with windows and without, and of its plain ones.
pub const SUNK: [Shape; 7] = [
    sunk(shape(9, 3, 64, Bf16)),
    sunk(windowed(40, shape(16, 2, 64, Bf16))),
    sunk(windowed(530, shape(20, 1, 64, Bf16))),
    sunk(windowed(37, shape(9, 3, 64, F32))),
    sunk(windowed(530, shape(3, 1, 48, F32))),
    sunk(shape(26, 1, 32, F32)),
    sunk(shape(2, 1, 128, Bf16)),
];

/// A sequence: its parent, the positions that it begins with of it, and how many it has besides.
pub type Spec = (Option<usize>, usize, usize);

/// A root alone, and a root with three children, one of which leaves its prefix early.
pub const FAMILY: [Spec; 5] =
    [(None, 0, 21), (None, 0, 40), (Some(1), 40, 25), (Some(1), 33, 3), (Some(1), 40, 1)];

/// A sequence's queries, keys and values by position, and its block table. A child begins with `prefix` positions of a
/// parent, of which it shares the whole blocks.
#[derive(Clone)]
pub struct Sequence {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub table: Vec<u32>,
    pub parent: Option<usize>,
    pub prefix: usize,
    pub len: usize,
}

impl Sequence {
    pub fn new(s: Shape, seed: u64, len: usize, first_block: u32) -> Sequence {
        let Shape { a, k, d, e, .. } = s;
        // In descending order, so that no two neighbours of a table are neighbours in the cache.
        let table = (0..len.div_ceil(KV_BLOCK) as u32).rev().map(|b| first_block + b).collect();
        let of = |n: u64, width: usize, size: f32| normal(10 * seed + n, len * width, size, e);
        let (q, keys) = (of(0, a * d, 1.5), of(1, k * d, 0.8));
        let values = if s.latent.is_some() { keys.clone() } else { of(2, k * d, 0.5) };
        Sequence { q, k: keys, v: values, table, parent: None, prefix: 0, len }
    }
}

/// Sequences with blocks of their own.
pub fn sequences(s: Shape, specs: &[Spec]) -> Vec<Sequence> {
    let (mut all, mut next) = (Vec::<Sequence>::new(), 1);
    for (i, &(parent, prefix, own)) in specs.iter().enumerate() {
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
pub type Piece = (usize, usize, usize);

/// The arrays of a pass over pieces of sequences, of which `cached` positions are in the cache; other slots hold NaN.
pub struct Pass {
    pub s: Shape,
    pub rows: usize,
    pub keys_max: usize,
    pub q: Vec<f32>,
    /// [blocks, k, 16, d].
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
    pub segments: Vec<u32>,
    pub tables: Vec<u32>,
}

impl Pass {
    pub fn new(s: Shape, sequences: &[Sequence], cached: usize, pieces: &[Piece]) -> Pass {
        let Shape { a, k, d, .. } = s;
        let blocks = 1 + *sequences.iter().flat_map(|x| &x.table).max().unwrap() as usize;
        let (mut keys, mut values) =
            (vec![f32::NAN; blocks * k * d * KV_BLOCK], vec![f32::NAN; blocks * k * d * KV_BLOCK]);
        let (mut tables, mut starts) = (vec![], vec![]);
        for x in sequences {
            for p in x.prefix / KV_BLOCK * KV_BLOCK..cached.min(x.len) {
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

    /// A pass over all own positions of every sequence.
    pub fn whole(s: Shape, sequences: &[Sequence]) -> Pass {
        let pieces: Vec<Piece> = sequences.iter().enumerate().map(|(i, x)| (i, x.prefix, x.len)).collect();
        Pass::new(s, sequences, usize::MAX, &pieces)
    }

    pub fn buffers(&self) -> Vec<Sized<'static>> {
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
            ("sinks", e, a),
            ("d_sinks", F32, a),
        ]
    }

    /// The gradients of outputs that checks take.
    pub fn dout(&self) -> Vec<f32> {
        let mut dout = normal(99, self.q.len(), 0.5, self.s.e);
        dout.chunks_mut(self.s.d).for_each(|of_head| of_head[..self.s.unused()].fill(0.0));
        dout
    }

    /// Writes the inputs; outputs are poisoned.
    pub fn fill<D: Machine>(&self, rig: &Rig<D>) {
        rig.set("q", &self.q);
        rig.set_keys("keys", self.s.d, &self.keys);
        rig.set("values", &self.values);
        rig.set_u32("segments", &self.segments);
        rig.set_u32("tables", &self.tables);
        rig.set("sinks", &self.s.sinks().unwrap_or(vec![f32::NAN; self.s.a]));
    }

    fn scores<D: Machine>(&self, rig: &Rig<D>) -> Scores<'static> {
        let sinks = self.s.sunk.then(|| rig.buf("sinks"));
        Scores { window: self.s.window, cap: self.s.cap, sinks, latent: self.s.latent, is_whole: false }
    }

    fn batch<D: Machine>(&self, rig: &Rig<D>) -> Batch<'static> {
        let (positions, segments, tables) = (rig.buf("positions"), rig.buf("segments"), rig.buf("tables"));
        Batch { positions, slots: positions, segments, tables, keys_max: self.keys_max }
    }

    fn kv<D: Machine>(&self, rig: &Rig<D>) -> Kv<'static> {
        Kv { keys: rig.buf("keys"), values: rig.buf("values"), kv_heads: self.s.k, head_dim: self.s.d }
    }

    pub fn attend<D: Machine>(&self, rig: &Rig<D>, lse: Option<Buf<'static>>) {
        let (kv, batch) = (self.kv(rig), self.batch(rig));
        rig.dev.attention(rig.buf("q"), kv, batch, self.scores(rig), rig.buf("out"), lse);
    }

    pub fn attend_backward<D: Machine>(&self, rig: &Rig<D>) {
        rig.dev.attention_backward(AttentionBackward {
            q: rig.buf("q"),
            kv: self.kv(rig),
            batch: self.batch(rig),
            scores: self.scores(rig),
            out: rig.buf("out"),
            lse: rig.buf("lse"),
            dout: rig.buf("dout"),
            dq: rig.buf("dq"),
            dkv: rig.buf("dkv"),
        });
    }

    /// Returns the gradients of sinks, added to `before` if given, for the outputs and gradients that the rig has.
    pub fn sink_backward<D: Machine>(&self, rig: &mut Rig<D>, before: Option<&[f32]>) -> Vec<f32> {
        before.iter().for_each(|before| rig.set("d_sinks", before));
        rig.dev.sink_backward(SinkBackward {
            sinks: rig.buf("sinks"),
            out: rig.buf("out"),
            lse: rig.buf("lse"),
            dout: rig.buf("dout"),
            grad: rig.buf("d_sinks"),
            add: before.is_some(),
        });
        rig.check_guards();
        rig.get("d_sinks")
    }

    /// Returns (out, lse) of a rig of the pass's buffers.
    pub fn forward<D: Machine>(&self, rig: &mut Rig<D>) -> [Vec<f32>; 2] {
        self.fill(rig);
        self.attend(rig, Some(rig.buf("lse")));
        rig.check_guards();
        ["out", "lse"].map(|name| rig.get(name))
    }

    /// Returns (out, dq, dkv) for the outputs of the forward pass.
    pub fn backward<D: Machine>(&self, rig: &mut Rig<D>, dout: &[f32]) -> [Vec<f32>; 3] {
        self.fill(rig);
        rig.set("dout", dout);
        self.attend(rig, Some(rig.buf("lse")));
        self.attend_backward(rig);
        rig.check_guards();
        ["out", "dq", "dkv"].map(|name| rig.get(name))
    }

    /// `forward` of each of a device's rigs.
    pub fn each<D: Machine>(&self, open: Open<D>) -> Vec<[Vec<f32>; 2]> {
        open(&self.buffers()).iter_mut().map(|rig| self.forward(rig)).collect()
    }
}
