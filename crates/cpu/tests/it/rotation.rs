//! RoPE with and without head norms: values, the cache's layout, gradients.

use crate::both::{Rig, bits, close, get, numbers, paths, stored};
use plimsoll_arch::QkNorms;
use plimsoll_base::DType;
use plimsoll_cpu::Isa;
use plimsoll_device::{Batch, Device, Heads, KV_BLOCK, Kv, QkNorm, QkNormBackward, RopeBackward, Rotation};

const HEADS: Heads = Heads { heads: 4, kv_heads: 2, head_dim: 48 };
const ROWS: usize = 50;
const WIDTH: usize = 8 * 48;
const EPS: f32 = 1e-6;

fn positions() -> Vec<u32> {
    (0..ROWS as u32).map(|m| (m * 3) % 64).collect()
}

/// Slots in blocks 1 and above, each used once.
fn slots() -> Vec<u32> {
    (0..ROWS as u32).map(|m| KV_BLOCK as u32 + (m * 7) % 64).collect()
}

/// [64, d/2, 2]
fn table() -> Vec<f32> {
    let angle = |i: usize| {
        let (position, pair) = (i / 24, i % 24);
        position as f64 * 100f64.powf(-(pair as f64) / 24.0)
    };
    (0..64 * 24).flat_map(|i| [angle(i).cos() as f32, angle(i).sin() as f32]).collect()
}

/// One head in f64: norm, then rotation.
fn reference_head(x: &[f64], weights: Option<&[f64]>, table: &[f32]) -> Vec<f64> {
    let d = x.len();
    let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / d as f64 + f64::from(EPS)).sqrt();
    let y: Vec<f64> = match weights {
        Some(w) => x.iter().zip(w).map(|(x, w)| x * scale * w).collect(),
        None => x.to_vec(),
    };
    let angle = |i: usize| (f64::from(table[2 * i]), f64::from(table[2 * i + 1]));
    let mut out = vec![0.0; d];
    for i in 0..d / 2 {
        let (c, s) = angle(i);
        out[i] = y[i] * c - y[i + d / 2] * s;
        out[i + d / 2] = y[i + d / 2] * c + y[i] * s;
    }
    out
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x.into()).collect()
}

fn regions(e: DType) -> [(&'static str, DType, usize); 10] {
    let d = HEADS.head_dim;
    let cache = 5 * 2 * d * KV_BLOCK;
    [
        ("qkv", e, ROWS * WIDTH),
        ("wq", e, d),
        ("wk", e, d),
        ("rope", DType::F32, 64 * d),
        ("positions", DType::U32, ROWS),
        ("slots", DType::U32, ROWS),
        ("q", e, ROWS * 4 * d),
        ("keys", e, cache),
        ("values", e, cache),
        ("copies", DType::U32, 3),
    ]
}

#[test]
fn heads_are_normalised_rotated_and_written_to_their_slots() {
    for isa in paths() {
        for e in [DType::F32, DType::Bf16] {
            for norms in [false, true] {
                let d = HEADS.head_dim;
                let (x, wq, wk) = (
                    stored(e, &numbers(1, ROWS * WIDTH)),
                    stored(e, &numbers(2, d)),
                    stored(e, &numbers(3, d)),
                );
                let rig = Rig::new(isa, 2, &regions(e));
                let (dev, r) = rig.bufs();
                for (name, x) in [("qkv", &x), ("wq", &wq), ("wk", &wk), ("rope", &table())] {
                    dev.write_f32(r.buf(name), 0, x);
                }
                dev.write_u32(r.buf("positions"), 0, &positions());
                dev.write_u32(r.buf("slots"), 0, &slots());
                let batch = Batch {
                    positions: r.buf("positions"),
                    slots: r.buf("slots"),
                    segments: r.buf("slots"),
                    tables: r.buf("slots"),
                    keys_max: usize::MAX,
                };
                let kv = Kv { keys: r.buf("keys"), values: r.buf("values"), kv_heads: 2, head_dim: d };
                let norm = norms.then(|| QkNorm {
                    q: r.buf("wq"),
                    k: r.buf("wk"),
                    eps: EPS,
                    offset: 0.0,
                    of: QkNorms::Heads,
                });
                dev.rope(r.buf("qkv"), norm, Rotation::new(r.buf("rope")), batch, kv, r.buf("q"));
                let (q, keys, values) =
                    (get(dev, r.buf("q")), get(dev, r.buf("keys")), get(dev, r.buf("values")));
                let tolerance = 1e-6 + if e == DType::Bf16 { 4.0 / 256.0 } else { 0.0 };
                for m in 0..ROWS {
                    let angles = &table()[positions()[m] as usize * d..][..d];
                    for head in 0..6 {
                        let w = wide(if head < 4 { &wq } else { &wk });
                        let reference = reference_head(
                            &wide(&x[m * WIDTH + head * d..][..d]),
                            norms.then_some(&w[..]),
                            angles,
                        );
                        if head < 4 {
                            close("q", &q[(m * 4 + head) * d..][..d], &reference, tolerance);
                            continue;
                        }
                        let (block, slot) = (slots()[m] as usize / KV_BLOCK, slots()[m] as usize % KV_BLOCK);
                        let at = (block * 2 + head - 4) * d * KV_BLOCK;
                        let key: Vec<f32> = (0..d).map(|i| keys[at + i * KV_BLOCK + slot]).collect();
                        close("key", &key, &reference, tolerance);
                        assert_eq!(
                            values[at + slot * d..][..d],
                            x[m * WIDTH + (head + 2) * d..][..d],
                            "value"
                        );
                    }
                }
                copies_take_slots(dev, kv, r.buf("copies"), (&keys, &values));
            }
        }
    }
}

fn copies_take_slots(
    dev: &plimsoll_cpu::CpuDevice,
    kv: Kv<'_>,
    copies: plimsoll_memory::Buf<'_>,
    before: (&[f32], &[f32]),
) {
    let d = kv.head_dim;
    dev.write_u32(copies, 0, &[2, 0, 5]);
    dev.copy_kv(kv, copies);
    let (keys, values) = (get(dev, kv.keys), get(dev, kv.values));
    for head in 0..2 {
        for slot in 0..KV_BLOCK {
            for i in 0..d {
                let from = if slot < 5 { 2 } else { 0 };
                let at = |block: usize| (block * 2 + head) * d * KV_BLOCK;
                assert_eq!(
                    keys[at(0) + i * KV_BLOCK + slot],
                    before.0[at(from) + i * KV_BLOCK + slot],
                    "key {slot}"
                );
                assert_eq!(values[at(0) + slot * d + i], before.1[at(from) + slot * d + i], "value {slot}");
            }
        }
    }
    assert_eq!(keys[2 * d * KV_BLOCK..], before.0[2 * d * KV_BLOCK..], "other blocks");
}

/// dqkv and the weights' gradients.
fn gradients(
    isa: Isa,
    threads: usize,
    e: DType,
    norms: bool,
    x: &[f32],
    w: (&[f32], &[f32]),
    d_in: (&[f32], &[f32]),
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let d = HEADS.head_dim;
    let rig = Rig::new(
        isa,
        threads,
        &[
            ("qkv", e, x.len()),
            ("wq", e, d),
            ("wk", e, d),
            ("rope", DType::F32, 64 * d),
            ("positions", DType::U32, ROWS),
            ("dq", DType::F32, ROWS * 4 * d),
            ("dkv", DType::F32, ROWS * 4 * d),
            ("dqkv", e, x.len()),
            ("dwq", DType::F32, d),
            ("dwk", DType::F32, d),
        ],
    );
    let (dev, r) = rig.bufs();
    for (name, x) in
        [("qkv", x), ("wq", w.0), ("wk", w.1), ("rope", &table()), ("dq", d_in.0), ("dkv", d_in.1)]
    {
        dev.write_f32(r.buf(name), 0, x);
    }
    dev.zero(r.buf("dwq"));
    dev.zero(r.buf("dwk"));
    dev.write_u32(r.buf("positions"), 0, &positions());
    let norm = QkNorm { q: r.buf("wq"), k: r.buf("wk"), eps: EPS, offset: 0.0, of: QkNorms::Heads };
    let norm = norms.then(|| QkNormBackward {
        norm,
        qkv: r.buf("qkv"),
        dq_weight: Some(r.buf("dwq")),
        dk_weight: Some(r.buf("dwk")),
    });
    let (dq, dkv, rope, dqkv) = (r.buf("dq"), r.buf("dkv"), r.buf("rope"), r.buf("dqkv"));
    let positions = r.buf("positions");
    let args =
        RopeBackward { dq, dkv, rotation: Rotation::new(rope), positions, heads: HEADS, norms: norm, dqkv };
    let frozen = norm.map(|n| QkNormBackward { dq_weight: None, dk_weight: None, ..n });
    dev.rope_backward(RopeBackward { norms: frozen, ..args });
    let alone = get(dev, dqkv);
    assert!(
        get(dev, r.buf("dwq")).iter().chain(&get(dev, r.buf("dwk"))).all(|&x| x == 0.0),
        "frozen weights"
    );
    dev.rope_backward(args);
    assert_eq!(bits(&get(dev, dqkv)), bits(&alone), "dqkv with frozen weights");
    (get(dev, r.buf("dqkv")), get(dev, r.buf("dwq")), get(dev, r.buf("dwk")))
}

#[test]
fn gradients_are_slopes() {
    let d = HEADS.head_dim;
    let (x, wq, wk) = (numbers(1, ROWS * WIDTH), numbers(2, d), numbers(3, d));
    let (dq, dkv) = (numbers(4, ROWS * 4 * d), numbers(5, ROWS * 4 * d));
    for isa in paths() {
        for norms in [false, true] {
            let ours = gradients(isa, 2, DType::F32, norms, &x, (&wq, &wk), (&dq, &dkv));
            let (mut dx, mut dw) = (vec![0.0; x.len()], [vec![0.0; d], vec![0.0; d]]);
            for m in 0..ROWS {
                let angles = &table()[positions()[m] as usize * d..][..d];
                for head in 0..6 {
                    let kind = usize::from(head >= 4);
                    let g = if head < 4 {
                        &dq[(m * 4 + head) * d..][..d]
                    } else {
                        &dkv[(m * 4 + head - 4) * d..][..d]
                    };
                    let (x0, w0) = (wide(&x[m * WIDTH + head * d..][..d]), wide([&wq, &wk][kind]));
                    let loss = |x: &[f64], w: &[f64]| -> f64 {
                        reference_head(x, norms.then_some(w), angles)
                            .iter()
                            .zip(g)
                            .map(|(y, &g)| y * f64::from(g))
                            .sum()
                    };
                    for i in 0..d {
                        let (mut a, mut b) = (x0.clone(), w0.clone());
                        for (sign, step) in [(1.0, 1e-4), (-1.0, -1e-4)] {
                            a[i] = x0[i] + step;
                            dx[m * WIDTH + head * d + i] += sign * loss(&a, &w0) / 2e-4;
                            b[i] = w0[i] + step;
                            dw[kind][i] += sign * loss(&x0, &b) / 2e-4;
                        }
                    }
                }
                for i in 0..2 * d {
                    dx[m * WIDTH + 6 * d + i] = f64::from(dkv[(m * 4 + 2) * d + i]);
                }
            }
            // Differences of step 1e-4: 1e-8 times third derivatives of up to 1e2 near small norms; f32 sums 1e-6.
            close("dqkv", &ours.0, &dx, 1e-5);
            close("dq_weight", &ours.1, &dw[0], 5e-5);
            close("dk_weight", &ours.2, &dw[1], 5e-5);
            let one = gradients(isa, 1, DType::F32, norms, &x, (&wq, &wk), (&dq, &dkv));
            assert_eq!((bits(&one.0), bits(&one.1)), (bits(&ours.0), bits(&ours.1)), "{isa:?}: threads");
            let rounded = gradients(isa, 2, DType::Bf16, false, &x, (&wq, &wk), (&dq, &dkv));
            let exact = gradients(isa, 2, DType::F32, false, &x, (&wq, &wk), (&dq, &dkv));
            assert_eq!(rounded.0, stored(DType::Bf16, &exact.0), "{isa:?}: one rounding");
        }
    }
}

#[test]
fn part_of_a_head_is_rotated_and_the_rest_passes() {
    let (d, width) = (HEADS.head_dim, 36);
    let x = numbers(1, ROWS * WIDTH);
    // Angles of a head of 36 elements: the first of the table's rows are those of its positions.
    let angles: Vec<f32> = table()[..64 * width].to_vec();
    for isa in paths() {
        let rig = Rig::new(
            isa,
            2,
            &[
                regions(DType::F32).as_slice(),
                &[("dkv", DType::F32, ROWS * 4 * d), ("dqkv", DType::F32, ROWS * WIDTH)],
            ]
            .concat(),
        );
        let (dev, r) = rig.bufs();
        dev.write_f32(r.buf("qkv"), 0, &x);
        dev.write_f32(r.buf("rope"), 0, &angles);
        dev.write_u32(r.buf("positions"), 0, &positions());
        dev.write_u32(r.buf("slots"), 0, &slots());
        let batch = Batch {
            positions: r.buf("positions"),
            slots: r.buf("slots"),
            segments: r.buf("slots"),
            tables: r.buf("slots"),
            keys_max: usize::MAX,
        };
        let kv = Kv { keys: r.buf("keys"), values: r.buf("values"), kv_heads: 2, head_dim: d };
        let angles_buf = r.buf("rope").slice(0, 64 * width);
        let rotation = Rotation { angles: Some(angles_buf), width: Some(width), q_scale: 1.0 };
        dev.rope(r.buf("qkv"), None, rotation, batch, kv, r.buf("q"));
        let (q, keys) = (get(dev, r.buf("q")), get(dev, r.buf("keys")));
        let mut dkv = vec![0.0; ROWS * 4 * d];
        for m in 0..ROWS {
            let turn = &angles[positions()[m] as usize * width..][..width];
            for head in 0..6 {
                let x = &x[m * WIDTH + head * d..][..d];
                let mut reference = reference_head(&wide(&x[..width]), None, turn);
                reference.extend(wide(&x[width..]));
                if head < 4 {
                    close("q", &q[(m * 4 + head) * d..][..d], &reference, 1e-6);
                    continue;
                }
                let (block, slot) = (slots()[m] as usize / KV_BLOCK, slots()[m] as usize % KV_BLOCK);
                let at = (block * 2 + head - 4) * d * KV_BLOCK;
                let key: Vec<f32> = (0..d).map(|i| keys[at + i * KV_BLOCK + slot]).collect();
                close("key", &key, &reference, 1e-6);
                assert_eq!(key[width..], x[width..], "the rest is not touched");
                dkv[(m * 4 + head - 4) * d..][..d].copy_from_slice(&key);
            }
        }
        // A rotation's transpose is its inverse.
        dev.write_f32(r.buf("dkv"), 0, &dkv);
        let (dq, dkv, positions, dqkv) = (r.buf("q"), r.buf("dkv"), r.buf("positions"), r.buf("dqkv"));
        dev.rope_backward(RopeBackward { dq, dkv, rotation, positions, heads: HEADS, norms: None, dqkv });
        let back = get(dev, dqkv);
        for m in 0..ROWS {
            close("back", &back[m * WIDTH..][..6 * d], &wide(&x[m * WIDTH..][..6 * d]), 2e-6);
        }
    }
}
