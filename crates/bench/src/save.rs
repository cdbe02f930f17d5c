//! `bench save`: a checkpoint of a model with all its states, compared with `dd` with fsync of the same bytes, and the
//! anonymous memory that it adds to the process, compared with the staging buffer.

use super::{Bench, BenchOptions, add, bench_run, finish, median, run_file, spread};
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_files::{check_output_folder, output_error};
use plimsoll_infer::bound::Sources;
use plimsoll_infer::runner::open;
use plimsoll_memory::host::Host;
use plimsoll_rl::roles::Trainer;
use plimsoll_rl::save::prepare;
use plimsoll_rl::supply::FreshSupply;
use plimsoll_run::checkpoint::{Manifest, Retention, RunState, Store};
use plimsoll_run::lead::{Savers, Saving};
use plimsoll_run::progress::Progress;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval between readings of anonymous memory during a save.
const SAMPLE: Duration = Duration::from_millis(1);

/// Saves into `dir`, which is checked before the model is opened; removes what it wrote.
///
/// Errors: `output-unwritable`, `disk-full`, `write-failed`; `io-error` where `dd` cannot run.
pub fn save(options: &BenchOptions, dir: &Path) -> Result<Value> {
    check_output_folder(dir)?;
    let mut run = bench_run(options, 1, 1, 8);
    let bench = Bench::open(options, &mut run, 8)?;
    let (dev, mut arena) = open(&bench.report.shape, options.opening())?;
    let trainer = Trainer::new(&*dev, &mut arena, &bench.report.shape, Sources::one(&bench.model), 0)?;
    let place = dir.join(format!(".plimsoll-bench-save-{}", std::process::id()));
    let unwritable = |err: std::io::Error| output_error(&place, &err);
    std::fs::create_dir_all(place.join("checkpoints")).map_err(unwritable)?;
    let measured = measure(options, &bench, &trainer, &place);
    std::fs::remove_dir_all(&place).map_err(unwritable)?;
    let Measured { times, dd, bytes, growth } = measured?;
    let mut result = spread(&times);
    let (seconds, staging) = (median(&times), bench.report.shape.host.staging);
    add(&mut result, json!({ "bench": "save", "unit": "s", "bytes": bytes }));
    add(&mut result, json!({ "gb_per_s": bytes as f64 / seconds / 1e9, "dd": spread(&dd) }));
    add(&mut result, json!({ "times_dd": seconds / median(&dd), "anonymous_growth_bytes": growth }));
    add(&mut result, json!({ "staging_bytes": staging, "peak_bytes": Host::this().rss().peak }));
    Ok(finish(result, &dev.machine_type(), dev.threads()))
}

struct Measured {
    times: Vec<f64>,
    dd: Vec<f64>,
    bytes: u64,
    growth: u64,
}

/// Saves and runs `dd` in turns, so that both see the disk in the same state.
fn measure(options: &BenchOptions, bench: &Bench, trainer: &Trainer<'_>, place: &Path) -> Result<Measured> {
    let store = Store::of_run(place);
    let run_file = run_file(options, 1, 1, 8).to_toml();
    let state = RunState::blank(Progress::default());
    let retention = Retention { keep: 1, ..Retention::default() };
    let mut found = Measured { times: Vec::new(), dd: Vec::new(), bytes: 0, growth: 0 };
    for step in 0..=options.repeats as u32 {
        let before = Host::this().rss().anon;
        let started = Instant::now();
        let everything = Some((&state, run_file.as_str()));
        let saving = Saving { step, store: store.clone(), retention, everything, savers: Savers::All };
        let (path, peak) =
            with_peak_anon(|| prepare(trainer, &bench.model, &FreshSupply::default(), saving)?.run());
        let seconds = started.elapsed().as_secs_f64();
        found.bytes = Manifest::read(&path?)?.bytes();
        let dd = dd(&place.join("dd"), found.bytes)?;
        // The first of each only warms up the disk.
        if step > 0 {
            found.times.push(seconds);
            found.dd.push(dd);
        }
        found.growth = found.growth.max(peak.0.saturating_sub(before.0));
    }
    Ok(found)
}

/// Returns the result of `work`, and the highest anonymous memory during it.
fn with_peak_anon<T>(work: impl FnOnce() -> T) -> (T, Bytes) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peak = Bytes(0);
            while !over.load(Ordering::Relaxed) {
                peak = peak.max(Host::this().rss().anon);
                std::thread::sleep(SAMPLE);
            }
            peak
        });
        let result = work();
        over.store(true, Ordering::Relaxed);
        (result, watcher.join().expect("it only reads"))
    })
}

fn dd(to: &Path, bytes: u64) -> Result<f64> {
    let blocks = bytes.div_ceil(1 << 20);
    let started = Instant::now();
    let status = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "conv=fsync"])
        .args([format!("of={}", to.display()), format!("count={blocks}")])
        .stderr(Stdio::null())
        .status();
    let seconds = started.elapsed().as_secs_f64();
    let _ = std::fs::remove_file(to);
    match status {
        Ok(status) if status.success() => Ok(seconds),
        Ok(status) => {
            Err(Error::new("io-error", format!("dd of {blocks} MiB to {}: {status}", to.display()))
                .hint("make room for twice the checkpoint"))
        }
        Err(err) => Err(Error::new("io-error", format!("dd: {err}")).hint("install coreutils")),
    }
}
