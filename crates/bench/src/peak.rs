//! `bench peak`: measures the peak rates of this machine, of which other benchmarks report a share.

use super::{BANDWIDTH_BYTES, BenchOptions, PEAK_SECONDS, add, finish, spread, threads};
use plimsoll_arch::ModelSpec;
use plimsoll_base::rng::{Stream, philox, unit_f32};
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::{Device, Matrix, MatrixLayout, ScratchLimits};
use plimsoll_devices::{DeviceRow, Opening, open};
use plimsoll_memory::{Layout, Limits};
use plimsoll_plan::devices;
use serde_json::{Value, json};
use std::time::Instant;

/// Rows, columns and depth of the product that measures a card.
const PRODUCT: u64 = 8192;
/// Elements of the copy: far beyond any cache.
const COPY: u64 = 256 << 20;

/// Runs `bench peak`: products and copies on a card; arithmetic in registers and memory reads on all threads of a CPU.
pub fn peak(options: &BenchOptions) -> Result<Value> {
    let run = super::bench_run(options, 1, 1, 1);
    let row = devices::row_of(&run, &Limits::default());
    let once = |_| (row.peak)(threads(options), PEAK_SECONDS, BANDWIDTH_BYTES);
    let peaks: Vec<[f64; 2]> = (0..options.repeats).filter_map(once).collect();
    if peaks.is_empty() {
        return of_card(options, row);
    }
    let [gflops, bandwidth] = [0, 1].map(|of| peaks.iter().map(|peak| peak[of]).collect::<Vec<_>>());
    Ok(finish(result(&gflops, &bandwidth, 1.0), &(row.probe)()?.name, threads(options)))
}

fn of_card(options: &BenchOptions, row: &DeviceRow) -> Result<Value> {
    let mut layout = Layout::new();
    let mut region = |name: &str, shape: &[u64], dtype| {
        layout.arena(name, "bench", row.pool, PhaseSet::RESIDENT, shape, dtype)
    };
    for name in ["x", "w", "y"] {
        region(name, &[PRODUCT, PRODUCT], DType::Bf16)?;
    }
    region("from", &[COPY], DType::F32)?;
    region("to", &[COPY], DType::F32)?;
    // The scratch has the products' workspace for any model.
    let spec = ModelSpec::preset("smollm2-135m").expect("a preset");
    let nothing = ScratchLimits {
        weights: DType::Bf16,
        threads: 1,
        trains: false,
        rank_max: None,
        decode_rows: 1,
        keys_max: 1,
        update: None,
        adapters: None,
        ranks: 1,
        tower: None,
    };
    layout.extend((row.scratch)(&spec, &nothing)?);
    let (dev, mut arena) = open(&layout, &Opening::alone(row.kind, 1, options.opening()))?;
    let (resident, _) = arena.split();
    let buf = |name: &str| resident.buf(name);
    dev.zero(buf("from"));
    // Zeros would need less power, and so run at a higher clock than real data.
    let values: Vec<f32> = (0..1u64 << 20).map(|i| number(i) - 0.5).collect();
    for (name, start) in
        ["x", "w"].iter().flat_map(|name| (0..PRODUCT * PRODUCT).step_by(1 << 20).map(move |s| (name, s)))
    {
        dev.write_f32(buf(name), start as usize, &values);
    }
    let n = PRODUCT as usize;
    let w = Matrix::new(buf("w"), n, n, MatrixLayout::Rows);
    let product = || dev.matmul(buf("x"), w, None, buf("y"), false);
    let copy = || dev.cast(buf("from"), buf("to"));
    let flops = 2.0 * (PRODUCT as f64).powi(3) * 1e-9;
    let gflops: Vec<f64> = (0..options.repeats).map(|_| flops / seconds(&*dev, &product)).collect();
    let moved = 8.0 * COPY as f64 * 1e-9;
    let bandwidth: Vec<f64> = (0..options.repeats).map(|_| moved / seconds(&*dev, &copy)).collect();
    dev.check()?;
    let most = gflops.iter().copied().fold(0.0, f64::max);
    let share = most / (dev.peak_flops(0.0) * 1e-9);
    Ok(finish(result(&gflops, &bandwidth, share), &dev.machine_type(), dev.threads()))
}

/// Returns a number in [0, 1) for each place.
fn number(i: u64) -> f32 {
    unit_f32(philox(0, Stream::Weights, 0, i)[0])
}

/// Returns the seconds of one operation, averaged over `PEAK_SECONDS`, after a few untimed ones.
fn seconds(dev: &dyn Device, operation: &dyn Fn()) -> f64 {
    const WARM_UP: u32 = 5;
    let timed = |times: u32| {
        let started = Instant::now();
        (0..times).for_each(|_| operation());
        dev.sync();
        started.elapsed().as_secs_f64() / f64::from(times)
    };
    let about = timed(WARM_UP);
    timed(((PEAK_SECONDS / about) as u32).clamp(1, 10_000))
}

fn result(gflops: &[f64], bandwidth: &[f64], share: f64) -> Value {
    let mut result = spread(gflops);
    add(&mut result, json!({ "bench": "peak", "unit": "GFLOP/s" }));
    add(&mut result, json!({ "bandwidth_gb_per_s": spread(bandwidth), "share_of_peak": share }));
    result
}
