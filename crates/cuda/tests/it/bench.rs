//! Speed of attention: `cargo test --release -p plimsoll-cuda --test it -- --ignored --nocapture bench_attention`.

use crate::both::attention::{Shape, latent, shape};
use crate::rig::{Card, on_card};
use plimsoll_base::DType::{Bf16, F32, U32};
use plimsoll_device::{AttentionBackward, Backend, Batch, Device, KV_BLOCK, Kv, NO_PARENT, Scores};
use std::time::Instant;

const MODELS: [(&str, Shape); 6] = [
    ("135M", shape(9, 3, 64, Bf16)),
    ("0.5B", shape(14, 2, 64, Bf16)),
    ("1.5B", shape(12, 2, 128, Bf16)),
    ("7B", shape(28, 4, 128, Bf16)),
    ("16 latents", latent(16, 64, 576, Bf16)),
    ("20 latents", latent(20, 64, 576, Bf16)),
];
/// Bytes of cache that calls go through in turn, so that the second-level cache does not hold them.
const COLD_BYTES: usize = 256 << 20;
/// Calls of a measurement.
const CALLS: usize = 24;

/// `num` sequences with `from` positions in the cache and rows up to `len`, of zeros.
struct Speed {
    gpu: Card,
    s: Shape,
    rows: usize,
    len: usize,
    layers: usize,
}

impl Speed {
    fn new(s: Shape, num: usize, from: usize, len: usize, gradients: bool) -> Option<Speed> {
        let (rows, blocks) = (num * (len - from), len.div_ceil(KV_BLOCK));
        let cache = num * blocks * s.k * s.d * KV_BLOCK;
        let layers = (COLD_BYTES / (cache * 4)).clamp(1, CALLS);
        let (q, back) = (rows * s.a * s.d, if gradients { rows * s.d } else { 0 });
        let gpu = on_card(&[
            ("q", Bf16, q),
            ("keys", Bf16, cache * layers),
            ("values", Bf16, cache * layers),
            ("out", Bf16, q),
            ("dout", Bf16, back * s.a),
            ("lse", F32, rows * s.a),
            ("positions", U32, rows),
            ("segments", U32, num * 5),
            ("tables", U32, num * blocks),
            ("dq", F32, back * s.a),
            ("dkv", F32, back * 2 * s.k),
        ])?;
        for name in ["q", "keys", "values", "dout"] {
            gpu.dev.zero(gpu.buf(name));
        }
        let segment = |i: usize| [i * (len - from), len - from, from, i * blocks].map(|x| x as u32);
        let segments = (0..num).flat_map(|i| segment(i).into_iter().chain([NO_PARENT]));
        gpu.set_u32("segments", &segments.collect::<Vec<_>>());
        let tables = (0..num).flat_map(|i| (0..blocks).map(move |b| (b * num + i) as u32));
        gpu.set_u32("tables", &tables.collect::<Vec<_>>());
        Some(Speed { gpu, s, rows, len, layers })
    }

    fn scores(&self) -> Scores<'static> {
        Scores { window: self.s.window, cap: self.s.cap, sinks: None, latent: self.s.latent, is_whole: false }
    }

    /// Microseconds of a call, replayed from a graph.
    fn time(&self, key: u64, backward: bool) -> f64 {
        let b = |name: &str| self.gpu.buf(name);
        let positions = b("positions");
        let (segments, tables) = (b("segments"), b("tables"));
        let batch = Batch { positions, slots: positions, segments, tables, keys_max: self.len };
        let per = b("keys").len() / self.layers;
        let mut calls = || {
            for call in 0..CALLS {
                let [keys, values] = ["keys", "values"].map(|n| b(n).slice(call % self.layers * per, per));
                let kv = Kv { keys, values, kv_heads: self.s.k, head_dim: self.s.d };
                if backward {
                    let (out, lse, dout) = (b("out"), b("lse"), b("dout"));
                    self.gpu.dev.attention_backward(AttentionBackward {
                        q: b("q"),
                        kv,
                        batch,
                        scores: self.scores(),
                        out,
                        lse,
                        dout,
                        dq: b("dq"),
                        dkv: b("dkv"),
                    });
                } else {
                    self.gpu.dev.attention(b("q"), kv, batch, self.scores(), b("out"), Some(b("lse")));
                }
            }
        };
        let pipeline = self.gpu.dev.pipeline().expect("a card that is not checked");
        let mut best = f64::INFINITY;
        for _ in 0..12 {
            self.gpu.dev.sync();
            let begin = Instant::now();
            pipeline.replay(key, &mut calls);
            self.gpu.dev.sync();
            best = best.min(begin.elapsed().as_secs_f64());
        }
        self.gpu.dev.check().unwrap();
        best / CALLS as f64 * 1e6
    }
}

#[test]
#[ignore = "measures; run it alone in a release build"]
fn bench_attention() {
    for (name, s) in MODELS {
        for num in [64, 256, 1024] {
            for len in [320, 2048] {
                let Some(speed) = Speed::new(s, num, len - 1, len, false) else { return };
                let us = speed.time(0, false);
                // Latents are read once.
                let copies = if s.latent.is_some() { 1 } else { 2 };
                let bytes = (num * len * s.k * s.d * 2 * copies) as f64;
                println!("{name} decode B = {num}, {len} keys: {us:.1} us, {:.2} TB/s", bytes / us / 1e6);
            }
        }
        for (num, len) in [(4, 1024), (16, 256)] {
            let Some(speed) = Speed::new(s, num, 0, len, true) else { return };
            let (forward, backward) = (speed.time(0, false), speed.time(1, true));
            // Two products of the lower half; five in the gradients, counted once.
            let flops = (speed.rows * len * s.a * s.d) as f64 * 2.0;
            println!(
                "{name} training {num} x {len}: forward {forward:.1} us, {:.0} TFLOP/s; backward {backward:.1} us, {:.0} TFLOP/s",
                flops / forward / 1e6,
                2.5 * flops / backward / 1e6
            );
        }
    }
}
