//! Rotation of queries and keys, the norms before it and the writes to the cache; and their gradients, against f64.
#![allow(dead_code)] // Each binary uses its part.

use super::{Machine, Open, Rig, Sized, bits, check_close, check_norm, f64s, in_turn, normal, stored};
use plimsoll_arch::QkNorms;
use plimsoll_base::DType::{self, Bf16, F32, U32};
use plimsoll_device::{Batch, Heads, KV_BLOCK, Kv, QkNorm, QkNormBackward, RopeBackward, Rotation};

const ROWS: usize = 67;
const POSITIONS: usize = 90;
const BLOCKS: usize = 9;
const EPS: f32 = 1e-6;
/// On a card: head dimensions of the fast way, and of the plain one.
const DIMS: [usize; 10] = [16, 32, 64, 128, 512, 24, 48, 96, 304, 576];
/// Lists what the backward pass writes.
pub const GRADIENTS: [&str; 3] = ["dqkv", "dq_weight", "dk_weight"];

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub e: DType,
    pub heads: Heads,
    pub norms: Option<QkNorms>,
    /// Added to the norms' weights.
    pub offset: f32,
    pub rotated: bool,
    /// Elements that are rotated, if not all.
    pub width: Option<usize>,
    pub q_scale: f32,
    /// True if q has a further factor by its position.
    pub grows: bool,
}

pub fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for e in [F32, Bf16] {
        for head_dim in DIMS {
            let heads = Heads { heads: 6, kv_heads: 2, head_dim };
            let plain = Case {
                e,
                heads,
                norms: None,
                offset: 0.0,
                rotated: true,
                width: None,
                q_scale: 1.0,
                grows: false,
            };
            let with = |of: QkNorms| Case { norms: Some(of), ..plain };
            let (of_heads, of_rows) = (with(QkNorms::Heads), with(QkNorms::Rows));
            cases.extend([plain, of_heads, of_rows]);
            cases.push(Case { rotated: false, q_scale: 0.7, ..plain });
            cases.push(Case { offset: 1.0, q_scale: 1.3, ..of_heads });
            let part = Some(head_dim * 3 / 4);
            cases.push(Case { width: part, q_scale: 0.7, ..plain });
            cases.push(Case { width: part, q_scale: 1.3, ..of_heads });
            cases.push(Case { offset: 1.0, rotated: false, q_scale: 0.5, ..of_rows });
            cases.extend([plain, of_heads, of_rows].map(|case| Case { grows: true, q_scale: 1.3, ..case }));
            cases.push(Case { grows: true, width: part, ..plain });
        }
    }
    cases
}

/// The cases without norms.
pub fn plain() -> impl Iterator<Item = Case> {
    cases().into_iter().filter(|case| case.norms.is_none())
}

fn positions() -> Vec<u32> {
    (0..ROWS).map(|m| (m * 7 % POSITIONS) as u32).collect()
}

/// Slots from the cache's end backwards.
fn slots() -> Vec<u32> {
    (0..ROWS).map(|m| (BLOCKS * KV_BLOCK - 1 - m) as u32).collect()
}

fn angles(d: usize) -> Vec<f32> {
    let angle = |i: usize| (i / d) as f64 / 10f64.powf(2.0 * (i % d / 2) as f64 / d as f64);
    (0..POSITIONS * d)
        .map(|i| if i % 2 == 0 { angle(i).cos() as f32 } else { angle(i).sin() as f32 })
        .collect()
}

/// Factors on q by position: steps, as of a model whose queries grow.
fn q_factors() -> Vec<f32> {
    (0..POSITIONS).map(|position| 1.0 + 0.3 * (position / 8) as f32).collect()
}

impl Case {
    fn width(&self) -> usize {
        self.q_width() + 2 * self.kv_width()
    }
    fn turned(&self) -> usize {
        self.width.unwrap_or(self.heads.head_dim)
    }
    fn q_width(&self) -> usize {
        self.heads.heads * self.heads.head_dim
    }
    fn kv_width(&self) -> usize {
        self.heads.kv_heads * self.heads.head_dim
    }
    /// Weights of the norms of q and of k.
    fn norm_widths(&self) -> [usize; 2] {
        match self.norms {
            Some(QkNorms::Rows) => [self.q_width(), self.kv_width()],
            _ => [self.heads.head_dim; 2],
        }
    }

    pub fn buffers(&self) -> Vec<Sized<'static>> {
        let cache = BLOCKS * KV_BLOCK * self.kv_width();
        let (d, [of_q, of_k]) = (self.heads.head_dim, self.norm_widths());
        vec![
            ("qkv", self.e, ROWS * self.width()),
            ("q_norm", self.e, of_q),
            ("k_norm", self.e, of_k),
            ("rope", F32, POSITIONS * d),
            ("q_factors", F32, POSITIONS),
            ("positions", U32, ROWS),
            ("slots", U32, ROWS),
            ("segments", U32, 5),
            ("tables", U32, 1),
            ("q", self.e, ROWS * self.q_width()),
            ("keys", self.e, cache),
            ("values", self.e, cache),
            ("copies", U32, 9),
            ("dq", F32, ROWS * self.q_width()),
            ("dkv", F32, ROWS * 2 * self.kv_width()),
            ("dqkv", self.e, ROWS * self.width()),
            ("dq_weight", F32, of_q),
            ("dk_weight", F32, of_k),
        ]
    }

    pub fn inputs(self) -> Inputs {
        let ([of_q, of_k], [q, kv]) = (self.norm_widths(), [self.q_width(), self.kv_width()]);
        Inputs {
            case: self,
            qkv: normal(1, ROWS * self.width(), 1.0, self.e),
            weights: [normal(2, of_q, 1.0, self.e), normal(3, of_k, 1.0, self.e)],
            grads: [normal(4, ROWS * q, 1.0, F32), normal(5, ROWS * 2 * kv, 1.0, F32)],
            angles: angles(self.turned()),
        }
    }

    fn norm<D: Machine>(&self, rig: &Rig<D>) -> Option<QkNorm<'static>> {
        let (q, k, offset) = (rig.buf("q_norm"), rig.buf("k_norm"), self.offset);
        self.norms.map(|of| QkNorm { q, k, eps: EPS, offset, of })
    }

    fn rotation<D: Machine>(&self, rig: &Rig<D>) -> Rotation<'static> {
        let angles = rig.buf("rope").slice(0, POSITIONS * self.turned());
        let q_factors = self.grows.then_some(rig.buf("q_factors"));
        Rotation {
            angles: self.rotated.then_some(angles),
            width: self.width,
            q_scale: self.q_scale,
            q_factors,
            axes: None,
        }
    }

    fn kv<D: Machine>(&self, rig: &Rig<D>) -> Kv<'static> {
        let Heads { kv_heads, head_dim, .. } = self.heads;
        Kv { keys: rig.buf("keys"), values: rig.buf("values"), kv_heads, head_dim }
    }

    /// Runs rows first..first + len of the batch.
    fn forward_rows<D: Machine>(&self, rig: &Rig<D>, first: usize, len: usize) {
        let batch = Batch {
            positions: rig.buf("positions").slice(first, len),
            slots: rig.buf("slots").slice(first, len),
            segments: rig.buf("segments"),
            tables: rig.buf("tables"),
            keys_max: POSITIONS,
        };
        let rows = |name, width| rig.buf(name).slice(first * width, len * width);
        let (qkv, q) = (rows("qkv", self.width()), rows("q", self.q_width()));
        rig.dev.rope(qkv, self.norm(rig), self.rotation(rig), batch, self.kv(rig), q);
    }

    /// Runs all rows.
    pub fn forward<D: Machine>(&self, rig: &Rig<D>) {
        self.forward_rows(rig, 0, ROWS);
    }
}

/// Holds what a case's buffers begin with.
pub struct Inputs {
    case: Case,
    qkv: Vec<f32>,
    weights: [Vec<f32>; 2],
    /// The gradients of q, and of k and v.
    grads: [Vec<f32>; 2],
    angles: Vec<f32>,
}

impl Inputs {
    pub fn fill<D: Machine>(&self, rig: &Rig<D>) {
        let ([w_q, w_k], [dq, dkv]) = (&self.weights, &self.grads);
        for (name, x) in [("qkv", &self.qkv), ("q_norm", w_q), ("k_norm", w_k), ("dq", dq), ("dkv", dkv)] {
            rig.set(name, x);
        }
        let rest = rig.buf("rope").len() - self.angles.len();
        rig.set("rope", &[&self.angles[..], &vec![0.0; rest]].concat());
        rig.set("q_factors", &q_factors());
        rig.set_u32("positions", &positions());
        rig.set_u32("slots", &slots());
    }

    /// Fills the buffers and returns what is in `GRADIENTS` then, after a check of frozen weights.
    pub fn backward<D: Machine>(&self, rig: &Rig<D>) -> [Vec<f32>; 3] {
        self.fill(rig);
        let (case, b) = (&self.case, |name: &str| rig.buf(name));
        GRADIENTS[1..].iter().for_each(|name| rig.set(name, &vec![0.25; b(name).len()]));
        let norms = case.norm(rig).map(|norm| QkNormBackward {
            norm,
            qkv: b("qkv"),
            dq_weight: Some(b("dq_weight")),
            dk_weight: Some(b("dk_weight")),
        });
        let (dq, dkv, dqkv, positions) = (b("dq"), b("dkv"), b("dqkv"), b("positions"));
        let (rotation, heads) = (case.rotation(rig), case.heads);
        let args = RopeBackward { dq, dkv, rotation, positions, heads, norms, dqkv };
        let frozen = norms.map(|n| QkNormBackward { dq_weight: None, dk_weight: None, ..n });
        let [_, before @ ..] = GRADIENTS.map(|name| rig.get(name));
        rig.dev.rope_backward(RopeBackward { norms: frozen, ..args });
        let [alone, after @ ..] = GRADIENTS.map(|name| rig.get(name));
        assert_eq!(after, before, "{case:?}: frozen weights");
        rig.dev.rope_backward(args);
        let all = GRADIENTS.map(|name| rig.get(name));
        assert_eq!(bits(&all[0]), bits(&alone), "{case:?}: dqkv with frozen weights");
        all
    }

    /// The heads of q (`kind` 0) or k (1) of a row, for f64.
    fn part(&self, kind: usize, row: usize) -> Part {
        let case = &self.case;
        let (turned, position) = (case.turned(), positions()[row] as usize);
        let turn = if case.rotated {
            f64s(&self.angles[position * turned..][..turned])
        } else {
            [1.0, 0.0].repeat(turned / 2)
        };
        let weight = |&w: &f32| f64::from(w + case.offset);
        let weights = case.norms.map(|_| self.weights[kind].iter().map(weight).collect());
        let factor = if case.grows { f64::from(q_factors()[position]) } else { 1.0 };
        let scale = [factor * f64::from(case.q_scale), 1.0][kind];
        Part { d: case.heads.head_dim, weights, turn, scale }
    }

    /// q and k of all rows in f64, each [rows, heads, d]; and what `backward` returns.
    fn reference(&self) -> ([Vec<f64>; 2], [Vec<f64>; 3]) {
        let (mut out, mut dqkv) = ([vec![], vec![]], vec![]);
        let [mut dq_weight, mut dk_weight] = self.case.norm_widths().map(|of| vec![0.25; of]);
        let (q, kv, [dq, dkv]) = (self.case.q_width(), self.case.kv_width(), &self.grads);
        for (row, x) in self.qkv.chunks(self.case.width()).enumerate() {
            let (d_k, d_v) = dkv[row * 2 * kv..][..2 * kv].split_at(kv);
            let of_q = (&x[..q], &dq[row * q..][..q], &mut dq_weight);
            for (kind, (x, d, dw)) in [of_q, (&x[q..q + kv], d_k, &mut dk_weight)].into_iter().enumerate() {
                let (part, x) = (self.part(kind, row), f64s(x));
                out[kind].extend(part.forward(&x));
                let (dx, sums) = part.backward(&x, &f64s(d));
                dqkv.extend(dx);
                dw.iter_mut().zip(sums).for_each(|(to, x)| *to += x);
            }
            dqkv.extend(f64s(d_v));
        }
        (out, [dqkv, dq_weight, dk_weight])
    }
}

/// Heads of a row, all of q or all of k: the norm's weights, if there is one, and cosines and sines of pairs.
struct Part {
    d: usize,
    weights: Option<Vec<f64>>,
    turn: Vec<f64>,
    scale: f64,
}

impl Part {
    /// Rotates and scales heads, or does the transpose of it.
    fn turn(&self, x: &mut [f64], sign: f64) {
        let half = self.turn.len() / 2;
        for head in x.chunks_mut(self.d) {
            for i in 0..half {
                let (a, b, cos, sin) =
                    (head[i], head[i + half], self.turn[2 * i], sign * self.turn[2 * i + 1]);
                (head[i], head[i + half]) = (a * cos - b * sin, b * cos + a * sin);
            }
            head.iter_mut().for_each(|x| *x *= self.scale);
        }
    }

    fn reciprocal(x: &[f64]) -> f64 {
        1.0 / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + f64::from(EPS)).sqrt()
    }

    fn forward(&self, x: &[f64]) -> Vec<f64> {
        let mut out = x.to_vec();
        if let Some(w) = &self.weights {
            for x in out.chunks_mut(w.len()) {
                let r = Part::reciprocal(x);
                x.iter_mut().zip(w).for_each(|(x, w)| *x *= r * w);
            }
        }
        self.turn(&mut out, 1.0);
        out
    }

    /// The gradients of x and of the weights.
    fn backward(&self, x: &[f64], d: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let mut dx = d.to_vec();
        self.turn(&mut dx, -1.0);
        let Some(w) = &self.weights else { return (dx, vec![]) };
        let mut dw = vec![0.0; w.len()];
        for (dx, x) in dx.chunks_mut(w.len()).zip(x.chunks(w.len())) {
            let r = Part::reciprocal(x);
            let mean = (0..w.len()).map(|i| dx[i] * w[i] * x[i] * r).sum::<f64>() / w.len() as f64;
            for i in 0..w.len() {
                dw[i] += dx[i] * x[i] * r;
                dx[i] = r * (w[i] * dx[i] - x[i] * r * mean);
            }
        }
        (dx, dw)
    }
}

/// Panics unless f64's gradients are central differences.
pub fn check_reference() {
    for case in cases().iter().filter(|case| case.e == F32 && [16, 48].contains(&case.heads.head_dim)) {
        let inputs = case.inputs();
        for kind in [0, 1] {
            let (mut part, n) = (inputs.part(kind, 5), [case.q_width(), case.kv_width()][kind]);
            let [mut x, d] = [11, 12].map(|seed| f64s(&normal(seed, n, 1.0, F32)));
            let (dx, dw) = part.backward(&x, &d);
            let loss =
                |part: &Part, x: &[f64]| -> f64 { part.forward(x).iter().zip(&d).map(|(y, d)| y * d).sum() };
            // Of step 1e-4: 1e-8 times third derivatives of up to 1e2 near small norms.
            let is_slope = |at: [f64; 2], want: f64| {
                let slope = (at[0] - at[1]) / 2e-4;
                assert!((slope - want).abs() < 1e-6 * want.abs().max(1.0), "{case:?}: {slope}, not {want}");
            };
            for i in 0..n {
                let old = x[i];
                let at = [1e-4, -1e-4].map(|step| {
                    x[i] = old + step;
                    loss(&part, &x)
                });
                x[i] = old;
                is_slope(at, dx[i]);
            }
            for (i, &want) in dw.iter().enumerate() {
                let at = [1e-4, -2e-4].map(|step| {
                    part.weights.as_mut().expect("a norm")[i] += step;
                    loss(&part, &x)
                });
                part.weights.as_mut().expect("a norm")[i] += 1e-4;
                is_slope(at, want);
            }
        }
    }
}

/// [rows, k, d] of a cache [blocks, k, 16, d].
fn cached(cache: &[f32], case: &Case) -> Vec<f32> {
    let Heads { kv_heads: k, head_dim: d, .. } = case.heads;
    let head =
        |slot: usize, head| &cache[((slot / KV_BLOCK * k + head) * KV_BLOCK + slot % KV_BLOCK) * d..][..d];
    slots().iter().flat_map(|&slot| (0..k).flat_map(move |h| head(slot as usize, h))).copied().collect()
}

/// Panics unless each element is within the tolerance of what its head's largest is, and of bf16 half a unit more.
fn check_heads(what: &str, got: &[f32], want: &[f64], case: &Case, tolerance: f64) {
    let d = case.heads.head_dim;
    let largest = |head: &[f64]| head.iter().fold(1.0, |largest, x| x.abs().max(largest));
    let scale: Vec<f64> = want.chunks(d).flat_map(|head| vec![largest(head); head.len()]).collect();
    let rounding = if case.e == Bf16 { 4.0 / 256.0 } else { 0.0 };
    check_close(got, want, &scale, tolerance + rounding, what);
}

pub fn rope_is_close_and_rows_are_their_own<D: Machine>(open: Open<D>) {
    for case in cases() {
        let (what, d, inputs) = (format!("{case:?}"), case.heads.head_dim, case.inputs());
        let ([want_q, want_keys], _) = inputs.reference();
        let rows = |first: usize| {
            inputs.qkv.chunks(case.width()).flat_map(move |row| row[first..].iter().take(case.kv_width()))
        };
        for mut rig in open(&case.buffers()) {
            inputs.fill(&rig);
            case.forward(&rig);
            let (q, keys, values) =
                (rig.get("q"), cached(&rig.get_keys("keys", d), &case), rig.get("values"));
            for (got, want) in [(&q, &want_q), (&keys, &want_keys)] {
                // Some roundings of f32; of bf16 one of 2^-9 at most.
                check_norm(&what, got, want, if case.e == F32 { 5e-7 } else { 3e-3 });
                check_heads(&what, got, want, &case, 1e-6);
            }
            if case.norms.is_none() {
                let is_rest = |i: usize| !case.rotated || i % d >= case.turned();
                let mut pairs = keys.iter().zip(rows(case.q_width())).enumerate();
                assert!(pairs.all(|(i, (got, x))| !is_rest(i) || got == x), "{what}: what is not rotated");
            }
            assert!(
                cached(&values, &case).iter().eq(rows(case.q_width() + case.kv_width())),
                "{what}: values"
            );
            rig.check_guards();
            let whole = ["q", "keys", "values"].map(|name| (name, bits(&rig.get(name))));
            for (first, len) in [(0, 1), (1, 5), (6, ROWS - 6)] {
                case.forward_rows(&rig, first, len);
            }
            for (name, whole) in whole {
                assert_eq!(bits(&rig.get(name)), whole, "{what}: {name} in cuts");
            }
        }
    }
}

pub fn copies_of_cache_blocks_take_the_first_slots<D: Machine>(open: Open<D>) {
    for case in plain() {
        let Heads { kv_heads: k, head_dim: d, .. } = case.heads;
        let before = [6, 7].map(|seed| normal(seed, BLOCKS * KV_BLOCK * k * d, 1.0, case.e));
        for rig in open(&case.buffers()) {
            rig.set_keys("keys", d, &before[0]);
            rig.set("values", &before[1]);
            rig.set_u32("copies", &[0, 5, 16, 3, 4, 7, 2, 2, 16]);
            rig.dev.copy_kv(case.kv(&rig), rig.buf("copies"));
            for (got, before) in [rig.get_keys("keys", d), rig.get("values")].iter().zip(&before) {
                let mut want = before.clone();
                for (src, dst, n) in [(0, 5, 16), (3, 4, 7)] {
                    for head in 0..k {
                        let at = |block: usize| (block * k + head) * KV_BLOCK * d;
                        want[at(dst)..][..n * d].copy_from_slice(&before[at(src)..][..n * d]);
                    }
                }
                assert_eq!(*got, want, "{:?} {d}", case.e);
            }
        }
    }
}

pub fn rope_backward_is_close_and_repeats<D: Machine>(open: Open<D>) {
    for case in in_turn(cases()) {
        let (what, inputs) = (format!("{case:?}"), case.inputs());
        let (_, want) = inputs.reference();
        for mut rig in open(&case.buffers()) {
            let got = inputs.backward(&rig);
            assert_eq!(got, inputs.backward(&rig), "{what}: two runs");
            check_norm(&what, &got[0], &want[0], if case.e == F32 { 2e-6 } else { 3e-3 });
            check_heads(&what, &got[0], &want[0], &case, 1e-5);
            for (got, want) in got[1..].iter().zip(&want[1..]) {
                check_norm(&what, got, want, 3e-6);
            }
            rig.check_guards();
        }
    }
}

pub fn gradients_of_bf16_without_norms_are_rounded_once<D: Machine>(open: Open<D>) {
    for case in plain().filter(|case| case.e == F32) {
        let [exact, rounded] = [case, Case { e: Bf16, ..case }].map(Case::inputs);
        for (one, other) in open(&case.buffers()).iter().zip(open(&rounded.case.buffers())) {
            assert_eq!(rounded.backward(&other)[0], stored(Bf16, &exact.backward(one)[0]), "{case:?}");
        }
    }
}
