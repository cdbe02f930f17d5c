//! Speeds at SmolLM2-135M's shapes: `cargo test --release -p plimsoll-cpu --test it -- --ignored --nocapture bench`.

use crate::both::attention::{Pass, Piece, sequences, shape};
use crate::both::{Rig, blocks, numbers};
use plimsoll_arch::Gate;
use plimsoll_base::DType;
use plimsoll_base::Encoding::{Q4_0, Q4_1, Q4K, Q5_1, Q5K, Q6K, Q8_0};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::{Device, KV_BLOCK, Kv, Norm, NormGrads, RopeBackward, Rotation};
use plimsoll_memory::Resident;
use std::time::Instant;

/// Seconds of the fastest of several calls.
fn fastest(mut f: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    while begin.elapsed().as_secs_f64() < 0.5 {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn attention(isa: Isa, threads: usize, e: DType, what: &str, num: usize, len: usize, from: usize) {
    let (s, blocks) = (shape(9, 3, 64, e), len.div_ceil(KV_BLOCK));
    let pieces: Vec<Piece> = (0..num).map(|i| (i, from, len)).collect();
    let mut pass = Pass::new(s, &sequences(s, &vec![(None, 0, len); num]), len, &pieces);
    // Neighbours of a table are not neighbours in the cache.
    pass.tables = (0..num * blocks).map(|i| (1 + i % blocks * num + i / blocks) as u32).collect();
    let rig = Rig::new(isa, threads, &pass.buffers());
    pass.fill(&rig);
    rig.set("dout", &pass.dout());
    let t = fastest(|| pass.attend(&rig, Some(rig.buf("lse"))));
    let pairs = num as f64 * ((from + 1)..=len).map(|keys| keys as f64).sum::<f64>() * 9.0;
    let flops = pairs * 64.0 * 2.0 * 2.0;
    let bytes = num as f64 * len as f64 * 2.0 * 192.0 * e.bytes() as f64;
    println!(
        "{what} {} x{threads}: {:.1} us, {:.1} GFLOP/s, {:.1} GB/s of cache",
        isa.name(),
        t * 1e6,
        flops / t / 1e9,
        bytes / t / 1e9
    );
    if from == 0 {
        let t = fastest(|| pass.attend_backward(&rig));
        println!(
            "{what} {} x{threads} backward: {:.1} us, {:.1} GFLOP/s",
            isa.name(),
            t * 1e6,
            2.5 * flops / t / 1e9
        );
    }
}

#[test]
#[ignore = "measures"]
fn bench_attention() {
    for isa in crate::both::paths() {
        for (threads, e) in [(1, DType::Bf16), (1, DType::F32), (2, DType::Bf16)] {
            let name = |what: &str| format!("{what} {}", e.name());
            attention(isa, threads, e, &name("4 x 256"), 4, 256, 0);
            attention(isa, threads, e, &name("1 x 1024"), 1, 1024, 0);
            attention(isa, threads, e, &name("decode 32 at 128"), 32, 128, 127);
            attention(isa, threads, e, &name("decode 1 at 1024"), 1, 1024, 1023);
        }
    }
}

/// Prints nanoseconds per row and bytes per second of one operation.
fn report(what: &str, rows: usize, bytes: usize, f: impl FnMut()) {
    let t = fastest(f);
    println!(
        "{what}: {:.1} us, {:.1} ns a row, {:.1} GB/s",
        t * 1e6,
        t * 1e9 / rows as f64,
        bytes as f64 / t / 1e9
    );
}

#[test]
#[ignore = "measures"]
fn bench_rows() {
    let (rows, h, f, e) = (1024usize, 576usize, 1536usize, DType::Bf16);
    for threads in [1, 2] {
        for isa in crate::both::paths() {
            let rig = Rig::new(
                isa,
                threads,
                &[
                    ("x", DType::F32, rows * h),
                    ("dy", DType::F32, rows * h),
                    ("dx", DType::F32, rows * h),
                    ("w", e, h),
                    ("out", e, rows * h),
                    ("gate_up", e, rows * 2 * f),
                    ("act", e, rows * f),
                    ("dw", e, h),
                    ("rstd", DType::F32, rows),
                    ("qkv", e, rows * 960),
                    ("rope", DType::F32, rows * 64),
                    ("positions", DType::U32, rows),
                    ("keys", e, rows * 192),
                    ("values", e, rows * 192),
                    ("q", e, rows * h),
                    ("dkv", DType::F32, rows * 384),
                    ("bias", e, 960),
                    ("table", e, 49152 * h),
                ],
            );
            let name = format!("{} x{threads}", isa.name());
            let (dev, r) = rig.bufs();
            measure_rows(&name, dev, r, rows, h, f);
        }
    }
}

fn measure_rows(path: &str, dev: &CpuDevice, r: Resident<'_>, rows: usize, h: usize, f: usize) {
    for name in ["x", "dy", "w", "gate_up", "qkv", "rope", "dkv", "act"] {
        dev.write_f32(r.buf(name), 0, &numbers(1, r.buf(name).len()));
    }
    let ids: Vec<u32> = (0..rows as u32).collect();
    dev.write_u32(r.buf("positions"), 0, &ids);
    let name = |what: &str| format!("{what} {path}");
    let b = |n| r.buf(n);
    report(&name("rms_norm"), rows, rows * h * 6, || dev.rms_norm(b("x"), Norm::new(b("w"), 1e-5), b("out")));
    report(&name("rms_norm_backward"), rows, rows * h * 24, || {
        dev.rms_norm_backward(
            b("x"),
            Norm::new(b("w"), 1e-5),
            b("dy"),
            NormGrads { dx: b("dx"), rounded: None, dw: Some(b("dw")), add: true, rstd: b("rstd") },
        );
    });
    report(&name("swiglu"), rows, rows * f * 6, || dev.glu(Gate::Silu, b("gate_up"), f, b("act")));
    report(&name("swiglu_backward"), rows, rows * f * 10, || {
        dev.glu_backward(Gate::Silu, b("gate_up"), f, b("act"), b("gate_up"), None);
    });
    let kv = Kv { keys: b("keys"), values: b("values"), kv_heads: 3, head_dim: 64 };
    let batch = plimsoll_device::Batch {
        positions: b("positions"),
        slots: b("positions"),
        segments: b("positions"),
        tables: b("positions"),
        keys_max: usize::MAX,
    };
    report(&name("rope"), rows, rows * 960 * 4, || {
        dev.rope(b("qkv"), None, Rotation::new(b("rope")), batch, kv, b("q"))
    });
    let heads = plimsoll_device::Heads { heads: 9, kv_heads: 3, head_dim: 64 };
    report(&name("rope_backward"), rows, rows * 960 * 6, || {
        let (dq, dkv, rotation) = (b("dy"), b("dkv"), Rotation::new(b("rope")));
        dev.rope_backward(RopeBackward {
            dq,
            dkv,
            rotation,
            positions: b("positions"),
            heads,
            norms: None,
            dqkv: b("qkv"),
        });
    });
    report(&name("bias_backward"), rows, rows * 960 * 2, || dev.bias_backward(b("qkv"), b("bias"), true));
    report(&name("cast"), rows, rows * h * 6, || dev.cast(b("x"), b("out")));
    let table = plimsoll_device::Matrix::new(b("table"), 49152, h, plimsoll_device::MatrixLayout::Pairs);
    report(&name("embed"), rows, rows * h * 6, || dev.embed(table, b("positions"), b("x")));
    report(&name("embed_backward"), rows, rows * h * 8, || {
        dev.embed_backward(b("dy"), b("positions"), table)
    });
    let x = numbers(2, 8192 * h);
    report(&name("write_rows"), 8192, x.len() * 6, || dev.write_rows(table, 0, &x));
    let mut x = x;
    report(&name("read_rows"), 8192, x.len() * 6, || dev.read_rows(table, 0, &mut x));
}

#[test]
#[ignore = "measures"]
fn bench_adamw() {
    let n = 1 << 24;
    let how = plimsoll_device::AdamW {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 5,
        grad_scale: 1.0,
        seed: 1,
        first_element: 0,
    };
    for (w, g, m, master) in [
        (DType::F32, DType::F32, DType::F32, false),
        (DType::Bf16, DType::F32, DType::F32, true),
        (DType::Bf16, DType::Bf16, DType::Bf16, false),
    ] {
        for threads in [1, 2] {
            for isa in crate::both::paths() {
                let rig = Rig::new(
                    isa,
                    threads,
                    &[("w", w, n), ("g", g, n), ("m", m, n), ("v", m, n), ("master", DType::F32, n)],
                );
                let (dev, r) = rig.bufs();
                let bufs = plimsoll_device::AdamWBufs {
                    weights: r.buf("w"),
                    grad: r.buf("g"),
                    m: r.buf("m"),
                    v: r.buf("v"),
                    scales: None,
                    master: master.then(|| r.buf("master")),
                };
                let bytes = w.bytes() * if master { 1 } else { 2 }
                    + g.bytes()
                    + 4 * m.bytes()
                    + if master { 8 } else { 0 };
                let what =
                    format!("adamw w {} g {} m {} {} x{threads}", w.name(), g.name(), m.name(), isa.name());
                report(&what, n, n * bytes as usize, || dev.adamw(how, bufs));
                report(
                    &format!("sum_squares {} {} x{threads}", g.name(), isa.name()),
                    n,
                    n * g.bytes() as usize,
                    || {
                        dev.sum_squares(r.buf("g"));
                    },
                );
            }
        }
    }
}

/// Prints the time of a product of codes, and of the same product of widened weights.
#[test]
#[ignore = "measures"]
fn bench_codes() {
    const CASES: [blocks::Case; 7] = [
        (&[(Q4_1, 3072)], 576),
        (&[(Q4_0, 3072)], 576),
        (&[(Q5_1, 3072)], 576),
        (&[(Q8_0, 3072)], 576),
        (&[(Q4K, 2048)], 2048),
        (&[(Q5K, 2048)], 2048),
        (&[(Q6K, 2048)], 2048),
    ];
    let e = DType::Bf16;
    for isa in crate::both::paths() {
        for case in CASES {
            let ([(encoding, n)], k) = case else { panic!("one encoding") };
            let mut all = blocks::buffers(&plimsoll_cpu::LAYOUTS, case, e);
            let room = all.last().expect("the dense matrix").2;
            all.extend([("room", e, room), ("x", e, 256 * k), ("y", e, 256 * n)]);
            let rig = Rig::new(isa, 2, &all);
            let codes = blocks::fill(&rig, case);
            let (dense, room) = (rig.matrix("dense", *n, k, e), rig.matrix("room", *n, k, e));
            rig.dev.dequantize(codes, dense);
            for rows in [1, 4, 32, 256] {
                let (x, y) = (rig.buf("x").slice(0, rows * k), rig.buf("y").slice(0, rows * n));
                let full = fastest(|| rig.dev.matmul(x, dense, None, y, false));
                let coded = fastest(|| rig.dev.matmul_codes(x, codes, room, None, None, y));
                let each = |t: f64| t * 1e9 / (n * k) as f64;
                println!(
                    "{} {} [{n}, {k}] x{rows}: {:.3} ns a weight, {:.3} widened",
                    isa.name(),
                    encoding.name(),
                    each(coded),
                    each(full)
                );
            }
        }
    }
}
