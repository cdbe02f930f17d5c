//! Causes failures of Python environments: `faults PYTHON FAULT:WHERE[:always]...` prints a JSON object for each.
//!
//! Each failure happens in one of eight environments in two workers, under the collector that `plimsoll collect` runs.
//! The program measures the message, the lost frames and the time until all environments answer again.
//! `bench/faults.py` makes the table, and causes the same failures under TorchRL.

use plimsoll_base::{Bytes, Error, Result};
use plimsoll_collect::{
    Collector, Extras, Mode, OnAbort, PythonEnvs, PythonStepper, Random, RowLayout, Settings, Stepper,
};
use plimsoll_env::Slot;
use plimsoll_worker::Stop;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const ENVS: u32 = 8;
const WORKERS: u32 = 2;
/// Batches hold one frame of each environment, so that the longest batch is the one with the failure.
const BATCHES: usize = 12;
/// Limit on batches with an environment that always fails, which ends the run earlier.
const BATCHES_MAX: usize = 1000;
/// The limit on a step here, so that a table is made within a minute; 60 s by default.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
const WORKER_MEMORY_MIB: u64 = 300;
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/");
const USAGE: &str = "usage: faults PYTHON FAULT:WHERE[:always]...";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((verb, _)) if verb == "env-worker" => {
            let arguments: Vec<_> = std::env::args_os().skip(2).collect();
            plimsoll_collect::become_env_worker(&arguments)
        }
        Some((python, failures)) if !failures.is_empty() => print_all(python, failures),
        _ => refused(USAGE),
    }
}

fn print_all(python: &str, failures: &[String]) -> ExitCode {
    for words in failures {
        let parts: Vec<&str> = words.split(':').collect();
        let (fault, place, always) = match parts[..] {
            [fault, place] => (fault, place, false),
            [fault, place, "always"] => (fault, place, true),
            _ => return refused(&format!("`{words}` is no failure; {USAGE}")),
        };
        println!("{}", cause(python, fault, place, always));
    }
    ExitCode::SUCCESS
}

fn refused(words: &str) -> ExitCode {
    eprintln!("{words}");
    ExitCode::from(2)
}

/// Holds what is measured of one failure.
#[derive(Default)]
struct Seen {
    started: bool,
    said: Vec<Value>,
    frames_lost: u64,
    /// The longest batch; of a run that ended, the time until it did.
    seconds: f64,
}

/// Causes one failure and says what came of it.
fn cause(python: &str, fault: &str, place: &str, always: bool) -> Value {
    let name = format!("plimsoll-faults-{}-{fault}-{place}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
    let mut envs = PythonEnvs::new(&format!("python:{FOLDER}envs.py:Faulty"), ENVS, WORKERS);
    envs.python = Some(python.to_string());
    let options = json!({ "folder": folder, "fault": fault, "where": place, "always": always });
    envs.kwargs = options.as_object().cloned().unwrap_or_default();
    envs.step_timeout = STEP_TIMEOUT;
    envs.worker_memory = Bytes::mib(WORKER_MEMORY_MIB);
    let mut seen = Seen::default();
    let since = Instant::now();
    let ended = collect(envs, if always { BATCHES_MAX } else { BATCHES }, &folder, &mut seen).err();
    if ended.is_some() {
        seen.seconds = since.elapsed().as_secs_f64();
    }
    let grandchild = std::fs::read_to_string(folder.join("grandchild")).ok();
    // What is left of it is a marker of no use.
    let _ = std::fs::remove_dir_all(&folder);
    json!({
        "fault": fault,
        "where": place,
        "always": always,
        "started": seen.started,
        "said": seen.said,
        "ended": ended.map(|error| words(&error, &folder)),
        "frames_lost": seen.frames_lost,
        "seconds": seen.seconds,
        "grandchild_lives": grandchild.map(|pid| lives(&pid)),
        "num_envs": ENVS,
        "num_workers": WORKERS,
        "step_timeout_ms": STEP_TIMEOUT.as_millis() as u64,
        "worker_memory_mib": WORKER_MEMORY_MIB,
    })
}

/// Collects batches of one frame of each environment, by a thread for each worker.
fn collect(envs: PythonEnvs, batches: usize, folder: &Path, seen: &mut Seen) -> Result<()> {
    let lanes = PythonStepper::start_lanes(envs, WORKERS as usize, &Stop::default())?;
    let spec = lanes[0].spec();
    let (observation, action) = (Slot::of(&spec.observation)?, Slot::of(&spec.action)?);
    let layout = RowLayout::new(&observation, &action, 1, 1, Extras::default()).expect("a small row");
    let settings = Settings {
        run_seed: 0,
        mode: Mode::Sync,
        batches_in_flight: 2,
        on_abort: OnAbort::Keep,
        random_steps: 0,
        reset_each_batch: false,
    };
    let steppers = lanes.into_iter().map(|lane| Box::new(lane) as Box<dyn Stepper>).collect();
    let mut policy = || Box::new(Random { run_seed: 0 }) as _;
    let mut collector = Collector::start(&settings, layout, steppers, &mut policy)?;
    seen.started = true;
    let mut ended = Ok(());
    for _ in 0..batches {
        let since = Instant::now();
        ended = collector.next().map(|batch| drop(batch.expect("it is not stopped")));
        seen.seconds = seen.seconds.max(since.elapsed().as_secs_f64());
        seen.said.extend(collector.take_faults().iter().map(|fault| words(&fault.error, folder)));
        if ended.is_err() {
            break;
        }
    }
    seen.frames_lost = collector.stats().counters.frames_aborted;
    ended
}

/// Returns slug and message, without parts that differ from run to run.
fn words(error: &Error, folder: &Path) -> Value {
    let message = error.message.replace(&folder.display().to_string(), "FOLDER").replace(FOLDER, "");
    json!({ "slug": error.slug, "message": message })
}

/// True if a process lives and is not a zombie.
fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}
