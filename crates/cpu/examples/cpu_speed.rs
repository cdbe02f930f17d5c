//! Speed of the CPU's products and head for the shapes of SmolLM2-135M: GFLOP/s and share of the measured peak.
//!
//! `cargo run --release -p plimsoll-cpu --example cpu_speed [threads] [filter]`; the best of several runs counts,
//! because other processes may share the cores.

#[path = "../../device/tests/both/rig.rs"]
mod rig;

use plimsoll_base::DType::{self, Bf16, F32, U32};
use plimsoll_cpu::layouts::{head_tile_elements, pack_elements};
use plimsoll_cpu::{Isa, peak};
use plimsoll_device::{Device, HEAD_TILE, HeadBackward, HeadOut, Logits, Sample, Sampling};
use rig::{Rig, matrix_len};
use std::time::Instant;

/// (name, N, K).
const SHAPES: [(&str, usize, usize); 4] =
    [("qkv", 960, 576), ("o", 576, 576), ("gate_up", 3072, 576), ("down", 576, 1536)];
const VOCAB: usize = 49152;
const HIDDEN: usize = 576;

/// Seconds that the threads of this process have run: what other processes took away does not count.
fn busy_seconds() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux lists a process's threads");
    let nanoseconds = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    tasks.filter_map(|task| nanoseconds(task.ok()?)).sum::<f64>() * 1e-9
}

struct Report {
    isa: Isa,
    threads: usize,
    peak: f64,
    filter: String,
}

impl Report {
    /// Times `f` and prints a line for `flops` operations.
    fn line(&self, what: &str, flops: f64, mut f: impl FnMut()) {
        if !what.contains(&self.filter) {
            return;
        }
        f();
        let (begin, mut best, mut rounds) = (Instant::now(), f64::MAX, 0);
        let busy = busy_seconds();
        while rounds < 5 || (begin.elapsed().as_secs_f64() < 0.5 && rounds < 2000) {
            let start = Instant::now();
            f();
            best = best.min(start.elapsed().as_secs_f64());
            rounds += 1;
        }
        let speed = flops / best * 1e-9;
        let busy = (busy_seconds() - busy) / self.threads as f64;
        let of_busy = flops * f64::from(rounds) / busy * 1e-9;
        let share = |speed: f64| 100.0 * speed / self.peak;
        println!(
            "{what:32} {:10.1} us {speed:8.1} GFLOP/s {:5.1} %; of processor time {:5.1} %",
            best * 1e6,
            share(speed),
            share(of_busy)
        );
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let filter = args.next().unwrap_or_default();
    let isa = Isa::chosen().expect("a path of this machine");
    let pool = plimsoll_cpu::Pool::new(threads);
    let peak = peak::measure_flops(&pool, isa, 1.0);
    println!(
        "{} on {threads} threads: peak {peak:.0} GFLOP/s, {:.1} GB/s",
        isa.name(),
        peak::measure_bandwidth(&pool, 1 << 29)
    );
    for e in [Bf16, F32] {
        let peak = match isa {
            // Tiles are of bf16: products of f32 are those of vectors.
            Isa::Amx if e == F32 => peak::measure_flops(&pool, Isa::Avx512Bf16, 1.0),
            Isa::Avx512Bf16 if e == F32 => peak / 2.0,
            _ => peak,
        };
        let report = Report { isa, threads, peak, filter: filter.clone() };
        products(&report, e);
        head(&report, e);
    }
}

/// Normal numbers of a size that gives logits of about 2, over and over.
fn fill(b: &Rig, name: &str) {
    let numbers = rig::normal(1, 4099, 0.3, F32);
    let len = b.buf(name).len();
    for start in (0..len).step_by(numbers.len()) {
        b.dev.write_f32(b.buf(name), start, &numbers[..numbers.len().min(len - start)]);
    }
}

fn products(report: &Report, e: DType) {
    for (name, n, k) in SHAPES {
        for m in [1, 8, 32, 256, 1024] {
            let b = Rig::new(
                report.isa,
                report.threads,
                &[
                    ("x", e, m * k),
                    ("w", e, matrix_len(n, k, e)),
                    ("y", e, m * n),
                    ("grad", F32, matrix_len(n, k, e)),
                    ("pack", e, pack_elements(m as u64, n as u64, k as u64, e) as usize),
                    ("scratch", e, report.threads * n.next_multiple_of(2) * 48),
                ],
            );
            for name in ["x", "w", "y"] {
                fill(&b, name);
            }
            let flops = 2.0 * (m * n * k) as f64;
            let (x, y, w) = (b.buf("x"), b.buf("y"), b.matrix("w", n, k, e));
            let label = |op: &str| format!("{} {op} {name} M={m}", e.name());
            report.line(&label("forward"), flops, || b.dev.matmul(x, w, None, y, false));
            if m == 1024 {
                let (grad, pack) = (b.matrix("grad", n, k, e), b.buf("pack"));
                report.line(&label("dw"), flops, || b.dev.matmul_dw(y, x, grad, true, pack));
                report.line(&label("dx"), flops, || b.dev.matmul_dx(y, w, x, false));
            }
        }
    }
}

fn head(report: &Report, e: DType) {
    for m in [1, 8, 32, 256, 1024] {
        let tile = head_tile_elements(report.threads, m, VOCAB, true) as usize;
        let b = Rig::new(
            report.isa,
            report.threads,
            &[
                ("x", e, m * HIDDEN),
                ("w", e, matrix_len(VOCAB, HIDDEN, e)),
                ("targets", U32, m),
                ("keys", U32, 3 * m),
                ("tile", F32, tile),
                ("logprobs", F32, m),
                ("lse", F32, m),
                ("entropy", F32, m),
                ("dlogprobs", F32, m),
                ("dtile", e, m * HEAD_TILE),
                ("pack", e, pack_elements(m as u64, HEAD_TILE as u64, HIDDEN as u64, e) as usize),
                ("dx", F32, m * HIDDEN),
                ("grad", F32, matrix_len(VOCAB, HIDDEN, e)),
                ("scratch", e, report.threads * HEAD_TILE * 48),
            ],
        );
        for name in ["targets", "keys", "grad"] {
            b.dev.zero(b.buf(name));
        }
        for name in ["x", "w", "dlogprobs"] {
            fill(&b, name);
        }
        let flops = 2.0 * (m * VOCAB * HIDDEN) as f64;
        let (x, w, targets, tile) =
            (b.buf("x"), b.matrix("w", VOCAB, HIDDEN, e), b.buf("targets"), b.buf("tile"));
        let out = HeadOut { logprobs: b.buf("logprobs"), lse: b.buf("lse"), entropy: b.buf("entropy") };
        let label = |op: &str| format!("{} {op} M={m}", e.name());
        report.line(&label("head"), flops, || b.dev.head(x, w, targets, Logits::times(1.0), tile, out));
        let how = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1 };
        let drawn = |how| {
            let (keys, tokens, logits) = (b.buf("keys"), targets, Logits::times(1.0));
            b.dev.sample(Sample { x, w, keys, how, logits, tile, tokens, out })
        };
        report.line(&label("sample"), flops, || drawn(how));
        if m == 32 {
            let how = Sampling { top_k: 50, top_p: 0.9, ..how };
            report.line(&label("sample truncated"), flops, || drawn(how));
        }
        if m == 1024 {
            let (d, grad) = (b.buf("dlogprobs"), b.matrix("grad", VOCAB, HIDDEN, e));
            report.line(&label("head backward"), 3.0 * flops, || {
                b.dev.head_backward(HeadBackward {
                    x,
                    w,
                    targets,
                    logits: Logits::times(1.0),
                    head_out: out,
                    listed: None,
                    whole: None,
                    dlogprobs: d,
                    dentropy: d,
                    tile,
                    dtile: b.buf("dtile"),
                    pack: b.buf("pack"),
                    dx: b.buf("dx"),
                    grad: Some(grad),
                    add: true,
                });
            });
        }
    }
}
