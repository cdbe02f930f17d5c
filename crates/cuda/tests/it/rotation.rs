//! Rotation, head norms and the cache against f64 and the CPU.

use crate::both::{bits, check_norm, get, normal, round};
use crate::rig::{on_card, twin};
use plimsoll_arch::QkNorms;
use plimsoll_base::DType;
use plimsoll_base::DType::{Bf16, F32, U32};
use plimsoll_device::{Batch, Device, Heads, KV_BLOCK, Kv, QkNorm, QkNormBackward, RopeBackward, Rotation};
use plimsoll_memory::Buf;

const ROWS: usize = 67;
const POSITIONS: usize = 90;
const BLOCKS: usize = 9;
const EPS: f32 = 1e-6;
/// Head dimensions of the fast way, and of the plain one.
const DIMS: [usize; 6] = [16, 32, 64, 128, 24, 96];

#[derive(Clone, Copy, Debug)]
struct Case {
    e: DType,
    heads: Heads,
    norms: Option<QkNorms>,
    /// Added to the norms' weights.
    offset: f32,
    rotated: bool,
    /// Elements that are rotated, if not all.
    width: Option<usize>,
    q_scale: f32,
}

impl Case {
    fn width(&self) -> usize {
        (self.heads.heads + 2 * self.heads.kv_heads) * self.heads.head_dim
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
    fn buffers(&self) -> Vec<(&'static str, DType, usize)> {
        let cache = BLOCKS * KV_BLOCK * self.kv_width();
        let (d, [of_q, of_k]) = (self.heads.head_dim, self.norm_widths());
        vec![
            ("qkv", self.e, ROWS * self.width()),
            ("q_norm", self.e, of_q),
            ("k_norm", self.e, of_k),
            ("rope", F32, POSITIONS * d),
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
}

fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for e in [F32, Bf16] {
        for head_dim in DIMS {
            let heads = Heads { heads: 6, kv_heads: 2, head_dim };
            let plain = Case { e, heads, norms: None, offset: 0.0, rotated: true, width: None, q_scale: 1.0 };
            let with = |of: QkNorms| Case { norms: Some(of), ..plain };
            let (of_heads, of_rows) = (with(QkNorms::Heads), with(QkNorms::Rows));
            cases.extend([plain, of_heads, of_rows]);
            cases.push(Case { rotated: false, q_scale: 0.7, ..plain });
            cases.push(Case { offset: 1.0, q_scale: 1.3, ..of_heads });
            let part = Some(head_dim * 3 / 4);
            cases.push(Case { width: part, q_scale: 0.7, ..plain });
            cases.push(Case { width: part, q_scale: 1.3, ..of_heads });
            cases.push(Case { offset: 1.0, rotated: false, q_scale: 0.5, ..of_rows });
        }
    }
    cases
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

fn fill(case: &Case, set: &dyn Fn(&str, &[f32]), set_u32: &dyn Fn(&str, &[u32])) {
    let d = case.heads.head_dim;
    set("qkv", &normal(1, ROWS * case.width(), 1.0, case.e));
    let [of_q, of_k] = case.norm_widths();
    set("q_norm", &normal(2, of_q, 1.0, case.e));
    set("k_norm", &normal(3, of_k, 1.0, case.e));
    set("rope", &[angles(case.turned()), vec![0.0; POSITIONS * (d - case.turned())]].concat());
    set("dq", &normal(4, ROWS * case.q_width(), 1.0, F32));
    set("dkv", &normal(5, ROWS * 2 * case.kv_width(), 1.0, F32));
    set("dq_weight", &vec![0.25; of_q]);
    set("dk_weight", &vec![0.25; of_k]);
    set_u32("positions", &positions());
    set_u32("slots", &slots());
}

fn qk_norm(case: &Case, buf: &dyn Fn(&str) -> Buf<'static>) -> Option<QkNorm<'static>> {
    let offset = case.offset;
    case.norms.map(|of| QkNorm { q: buf("q_norm"), k: buf("k_norm"), eps: EPS, offset, of })
}

fn rotation(case: &Case, buf: &dyn Fn(&str) -> Buf<'static>) -> Rotation<'static> {
    let angles = buf("rope").slice(0, POSITIONS * case.turned());
    Rotation { angles: case.rotated.then_some(angles), width: case.width, q_scale: case.q_scale }
}

fn kv(case: &Case, buf: &dyn Fn(&str) -> Buf<'static>) -> Kv<'static> {
    let Heads { kv_heads, head_dim, .. } = case.heads;
    Kv { keys: buf("keys"), values: buf("values"), kv_heads, head_dim }
}

/// Rows first..first + len of the batch.
fn forward(case: &Case, dev: &dyn Device, buf: &dyn Fn(&str) -> Buf<'static>, first: usize, len: usize) {
    let batch = Batch {
        positions: buf("positions").slice(first, len),
        slots: buf("slots").slice(first, len),
        segments: buf("segments"),
        tables: buf("tables"),
        keys_max: POSITIONS,
    };
    let rows = |name, width| buf(name).slice(first * width, len * width);
    let (qkv, q) = (rows("qkv", case.width()), rows("q", case.q_width()));
    dev.rope(qkv, qk_norm(case, buf), rotation(case, buf), batch, kv(case, buf), q);
}

fn backward(case: &Case, dev: &dyn Device, buf: &dyn Fn(&str) -> Buf<'static>) {
    let norms = qk_norm(case, buf).map(|norm| QkNormBackward {
        norm,
        qkv: buf("qkv"),
        dq_weight: Some(buf("dq_weight")),
        dk_weight: Some(buf("dk_weight")),
    });
    let positions = buf("positions");
    let (dq, dkv, dqkv) = (buf("dq"), buf("dkv"), buf("dqkv"));
    let args =
        RopeBackward { dq, dkv, rotation: rotation(case, buf), positions, heads: case.heads, norms, dqkv };
    let frozen = norms.map(|n| QkNormBackward { dq_weight: None, dk_weight: None, ..n });
    let before = ["dq_weight", "dk_weight"].map(|name| get(dev, buf(name)));
    dev.rope_backward(RopeBackward { norms: frozen, ..args });
    let alone = get(dev, dqkv);
    assert_eq!(["dq_weight", "dk_weight"].map(|name| get(dev, buf(name))), before, "frozen weights");
    dev.rope_backward(args);
    assert_eq!(bits(&get(dev, dqkv)), bits(&alone), "dqkv with frozen weights");
}

/// [rows, k, d] of a cache of the card: [blocks][k][16][d].
fn cached(cache: &[f32], case: &Case) -> Vec<f32> {
    let Heads { kv_heads: k, head_dim: d, .. } = case.heads;
    let mut out = vec![];
    for slot in slots() {
        let (block, lane) = (slot as usize / KV_BLOCK, slot as usize % KV_BLOCK);
        for head in 0..k {
            out.extend_from_slice(&cache[((block * k + head) * KV_BLOCK + lane) * d..][..d]);
        }
    }
    out
}

/// q and k of all rows in f64, each [rows, heads, d].
fn reference(case: &Case) -> (Vec<f64>, Vec<f64>) {
    let Heads { heads: a, kv_heads: k, head_dim: d } = case.heads;
    let qkv = normal(1, ROWS * case.width(), 1.0, case.e);
    let [of_q, of_k] = case.norm_widths();
    let weights = [normal(2, of_q, 1.0, case.e), normal(3, of_k, 1.0, case.e)];
    let turned = case.turned();
    let (angles, positions) = (angles(turned), positions());
    let (mut q, mut keys) = (vec![], vec![]);
    for m in 0..ROWS {
        for head in 0..a + k {
            let x: Vec<f64> = qkv[m * case.width() + head * d..][..d].iter().map(|&x| f64::from(x)).collect();
            let is_k = head >= a;
            let (over, w) = match case.norms {
                Some(QkNorms::Rows) => {
                    let (first, heads) = if is_k { (a, k) } else { (0, a) };
                    let row = &qkv[m * case.width() + first * d..][..heads * d];
                    (row.to_vec(), &weights[usize::from(is_k)][(head - first) * d..][..d])
                }
                _ => (qkv[m * case.width() + head * d..][..d].to_vec(), &weights[usize::from(is_k)][..d]),
            };
            let mean = over.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / over.len() as f64;
            let r = 1.0 / (mean + f64::from(EPS)).sqrt();
            let x: Vec<f64> = match case.norms {
                Some(_) => x.iter().zip(w).map(|(x, &w)| x * r * f64::from(w + case.offset)).collect(),
                None => x,
            };
            let table = match case.rotated {
                true => angles[positions[m] as usize * turned..][..turned].to_vec(),
                false => [1.0, 0.0].repeat(turned / 2),
            };
            let scale = if is_k { 1.0 } else { f64::from(case.q_scale) };
            let out = if head < a { &mut q } else { &mut keys };
            let half = turned / 2;
            for i in 0..turned {
                let (cos, sin) = (f64::from(table[i % half * 2]), f64::from(table[i % half * 2 + 1]));
                let across = if i < half { -x[i + half] } else { x[i - half] };
                out.push((x[i] * cos + across * sin) * scale);
            }
            out.extend(x[turned..].iter().map(|x| x * scale));
        }
    }
    (q, keys)
}

#[test]
fn rope_is_close_and_rows_are_their_own() {
    for case in cases() {
        let Some(mut gpu) = on_card(&case.buffers()) else { return };
        fill(&case, &|name, x| gpu.set(name, x), &|name, x| gpu.set_u32(name, x));
        forward(&case, &gpu.dev, &|name| gpu.buf(name), 0, ROWS);
        let (q, keys, values) = (gpu.get("q"), gpu.get("keys"), gpu.get("values"));
        let what = format!("{case:?}");
        let (want_q, want_keys) = reference(&case);
        // Some roundings of f32; of bf16 one of 2^-9 at most.
        let tolerance = if case.e == F32 { 5e-7 } else { 3e-3 };
        check_norm(&what, &q, &want_q, tolerance);
        check_norm(&what, &cached(&keys, &case), &want_keys, tolerance);
        let qkv = normal(1, ROWS * case.width(), 1.0, case.e);
        let v: Vec<f32> = qkv
            .chunks(case.width())
            .flat_map(|row| &row[case.q_width() + case.kv_width()..])
            .copied()
            .collect();
        assert_eq!(cached(&values, &case), v, "{what}: values");
        gpu.check_guards();
        for (first, len) in [(0, 1), (1, 5), (6, ROWS - 6)] {
            forward(&case, &gpu.dev, &|name| gpu.buf(name), first, len);
        }
        for (name, whole) in [("q", q), ("keys", keys), ("values", values)] {
            assert_eq!(bits(&gpu.get(name)), bits(&whole), "{what}: {name} in cuts");
        }
    }
}

#[test]
fn copies_of_cache_blocks_take_the_first_slots() {
    for case in cases().into_iter().filter(|case| case.norms.is_none()) {
        let Some(gpu) = on_card(&case.buffers()) else { return };
        let Heads { kv_heads: k, head_dim: d, .. } = case.heads;
        let before = [6, 7].map(|seed| normal(seed, BLOCKS * KV_BLOCK * k * d, 1.0, case.e));
        gpu.set("keys", &before[0]);
        gpu.set("values", &before[1]);
        gpu.set_u32("copies", &[0, 5, 16, 3, 4, 7, 2, 2, 16]);
        gpu.dev.copy_kv(kv(&case, &|name| gpu.buf(name)), gpu.buf("copies"));
        for (name, before) in ["keys", "values"].into_iter().zip(before) {
            let mut want = before.clone();
            for (src, dst, n) in [(0, 5, 16), (3, 4, 7)] {
                for head in 0..k {
                    let at = |block: usize| (block * k + head) * KV_BLOCK * d;
                    want[at(dst)..][..n * d].copy_from_slice(&before[at(src)..][..n * d]);
                }
            }
            assert_eq!(gpu.get(name), want, "{name} {:?} {d}", case.e);
        }
    }
}

#[test]
fn rope_backward_agrees_with_the_cpu_and_repeats() {
    for case in cases() {
        let Some(mut gpu) = on_card(&case.buffers()) else { return };
        let cpu = twin(&case.buffers());
        let wide = |name: &str| cpu.get(name).iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let what = format!("{case:?}");
        fill(&case, &|name, x| cpu.set(name, x), &|name, x| cpu.set_u32(name, x));
        backward(&case, &cpu.dev, &|name| cpu.buf(name));
        let mut results = vec![];
        for _ in 0..2 {
            fill(&case, &|name, x| gpu.set(name, x), &|name, x| gpu.set_u32(name, x));
            backward(&case, &gpu.dev, &|name| gpu.buf(name));
            results.push(["dqkv", "dq_weight", "dk_weight"].map(|name| gpu.get(name)));
        }
        assert_eq!(results[0], results[1], "{what}: two runs");
        // Two roundings to bf16 of numbers that differ in the last bits of f32: at most one unit apart.
        check_norm(&what, &results[0][0], &wide("dqkv"), if case.e == F32 { 1e-6 } else { 1e-3 });
        check_norm(&what, &results[0][1], &wide("dq_weight"), 2e-6);
        check_norm(&what, &results[0][2], &wide("dk_weight"), 2e-6);
        gpu.check_guards();
    }
}

#[test]
fn without_norms_the_bits_are_the_cpus() {
    for case in cases().into_iter().filter(|case| case.norms.is_none()) {
        let Some(gpu) = on_card(&case.buffers()) else { return };
        let cpu = twin(&case.buffers());
        fill(&case, &|name, x| gpu.set(name, x), &|name, x| gpu.set_u32(name, x));
        fill(&case, &|name, x| cpu.set(name, x), &|name, x| cpu.set_u32(name, x));
        forward(&case, &gpu.dev, &|name| gpu.buf(name), 0, ROWS);
        forward(&case, &cpu.dev, &|name| cpu.buf(name), 0, ROWS);
        assert_eq!(bits(&gpu.get("q")), bits(&cpu.get("q")), "{:?} {}", case.e, case.heads.head_dim);
        assert!(gpu.get("q").iter().all(|&x| x == round(x, case.e)));
    }
}
