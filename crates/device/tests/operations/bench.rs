//! Speeds at the shapes of SmolLM2-135M: `cargo test --release -p plimsoll-device --test operations -- --ignored --nocapture bench`.

use crate::attention::{Sequence, Shape, batch, fill_cache, write};
use crate::fixture::{Rig, numbers};
use plimsoll_base::DType;
use plimsoll_device::cpu::Isa;
use plimsoll_device::{Device, KV_BLOCK, Kv, NO_PARENT};
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
    let shape = Shape { a: 9, k: 3, d: 64, e };
    let blocks = len.div_ceil(KV_BLOCK);
    let cache = num * blocks * shape.k * shape.d * KV_BLOCK;
    let (mut keys, mut values) = (vec![0.0; cache], vec![0.0; cache]);
    let (mut q, mut segments, mut tables) = (vec![], vec![], vec![]);
    for i in 0..num {
        let table: Vec<u32> = (0..blocks).map(|b| (b * num + i) as u32).collect();
        let s = Sequence::new(shape, i as u64, len, table.clone());
        fill_cache(shape, &s, 0..len, &mut keys, &mut values);
        segments.extend([
            (i * (len - from)) as u32,
            (len - from) as u32,
            from as u32,
            tables.len() as u32,
            NO_PARENT,
        ]);
        tables.extend(table);
        q.extend(&s.q[from * 9 * 64..]);
    }
    let rows = num * (len - from);
    let mut rig = Rig::new(
        isa,
        threads,
        &[
            ("q", e, q.len()),
            ("keys", e, cache),
            ("values", e, cache),
            ("out", e, q.len()),
            ("dout", e, q.len()),
            ("lse", DType::F32, rows * 9),
            ("positions", DType::U32, rows),
            ("segments", DType::U32, segments.len()),
            ("tables", DType::U32, tables.len()),
            ("dq", DType::F32, q.len()),
            ("dkv", DType::F32, rows * 2 * 3 * 64),
        ],
    );
    let (dev, r) = rig.bufs();
    let dout = numbers(77, q.len());
    write(dev, r, &[("q", &q), ("keys", &keys), ("values", &values), ("dout", &dout)]);
    dev.write_u32(r.buf("segments"), 0, &segments);
    dev.write_u32(r.buf("tables"), 0, &tables);
    let kv = Kv { keys: r.buf("keys"), values: r.buf("values"), kv_heads: 3, head_dim: 64 };
    let t = fastest(|| dev.attention(r.buf("q"), kv, batch(r), r.buf("out"), Some(r.buf("lse"))));
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
        let (dq, dkv) = (r.buf("dq"), r.buf("dkv"));
        let t = fastest(|| {
            dev.attention_backward(
                r.buf("q"),
                kv,
                batch(r),
                r.buf("out"),
                r.buf("lse"),
                r.buf("dout"),
                dq,
                dkv,
            );
        });
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
    for isa in crate::fixture::paths() {
        for (threads, e) in [(1, DType::Bf16), (1, DType::F32), (2, DType::Bf16)] {
            let name = |what: &str| format!("{what} {}", e.name());
            attention(isa, threads, e, &name("4 x 256"), 4, 256, 0);
            attention(isa, threads, e, &name("1 x 1024"), 1, 1024, 0);
            attention(isa, threads, e, &name("decode 32 at 128"), 32, 128, 127);
            attention(isa, threads, e, &name("decode 1 at 1024"), 1, 1024, 1023);
        }
    }
}
