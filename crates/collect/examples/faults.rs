//! The table of failures of Python environments: `faults [PYTHON] > bench/results/faults.md`. Each failure is caused
//! once among eight environments in two workers, with real processes; what is said, what is lost and how long it takes
//! is measured. `bench/peers/torchrl_faults.py` causes the same failures under TorchRL.

use plimsoll_base::Result;
use plimsoll_collect::{Ask, PythonEnvs, PythonStepper, Request, Stepper};
use plimsoll_env::flags;
use plimsoll_worker::Stop;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const ENVS: u32 = 8;
const STEPS: usize = 12;
/// The limit on a step here, so that a table is made within a minute; 60 s where nothing is said.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
const DIES: &str = "the run ends: `At least one process failed: worker 3 (exit code -9)`, 0.6 to 1.4 s";
const RAISES: &str = "the run ends: `exit code 1`; the exception is in that worker's stderr alone";
const HANGS: &str = "never noticed (40 s watched)";
const NOT_MEASURED: &str = "not measured";

/// Failure, how `envs.py` calls it and where it happens, and TorchRL's answer to the same.
const FAULTS: [(&str, &str, &str, &str); 16] = [
    ("kill -9 in a step", "kill", "step", DIES),
    ("kill -9 in a reset", "kill", "reset", DIES),
    ("the environment calls `exit(0)`", "exit", "step", NOT_MEASURED),
    ("exception in a step", "raise", "step", RAISES),
    ("exception in a reset", "raise", "reset", RAISES),
    ("endless sleep", "sleep", "step", HANGS),
    ("hangs in C and holds the GIL", "hold_gil", "step", HANGS),
    ("SIGSTOP", "stop", "step", HANGS),
    ("leak to the budget of 300 MiB", "leak", "step", NOT_MEASURED),
    ("observation of a wrong shape", "shape", "step", NOT_MEASURED),
    ("observation of a wrong dtype", "dtype", "step", NOT_MEASURED),
    ("NaN in the observation", "nan", "step", NOT_MEASURED),
    ("reward NaN", "reward_nan", "step", NOT_MEASURED),
    ("closes the worker's socket", "close_socket", "step", NOT_MEASURED),
    ("prints 100 kB to standard output", "print", "step", NOT_MEASURED),
    ("leaves a grandchild and dies", "grandchild", "step", NOT_MEASURED),
];

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let first = args.next();
    if first.as_deref() == Some("env-worker") {
        let arguments: Vec<_> = std::env::args_os().skip(2).collect();
        return plimsoll_collect::become_env_worker(&arguments);
    }
    match table(first.as_deref()) {
        Ok(table) => print!("{table}"),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn table(python: Option<&str>) -> Result<String> {
    let mut table = format!(
        "# Failures of Python environments\n\nMade by `cargo run --release -p plimsoll-collect --example faults -- PYTHON > bench/results/faults.md`: \
        {ENVS} environments in 2 workers, one failure each, `step_timeout_ms = {}`, pause before a restart as always (0.1 s at first). \
        The run goes on in every row. Frames lost are steps that were in flight; frames of completed steps are kept.\n\n\
        TorchRL's column was measured with TorchRL 0.14.1, torch 2.15.0, Gymnasium 1.4.0, four workers (MultiSync and MultiAsync), on a quiet machine of two cores; \
        `bench/peers/torchrl_faults.py` causes the same failures.\n\n\
        | failure | what the user sees | frames lost | seconds to recover | TorchRL |\n|---|---|---|---|---|\n",
        STEP_TIMEOUT.as_millis()
    );
    for (name, fault, place, torchrl) in FAULTS {
        let (said, lost, seconds) = one(python, fault, place)?;
        table += &format!("| {name} | {said} | {lost} | {seconds:.2} | {torchrl} |\n");
    }
    Ok(table)
}

/// One failure: what was said, frames lost, and the longest time that an answer took.
fn one(python: Option<&str>, fault: &str, place: &str) -> Result<(String, usize, f64)> {
    let folder = std::env::temp_dir().join(format!("plimsoll-faults-{}-{fault}-{place}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder can be made");
    let ended = run(python, json!({ "folder": folder, "fault": fault, "where": place }), &folder);
    // What is left of it is a marker of no use.
    let _ = std::fs::remove_dir_all(&folder);
    ended
}

fn run(python: Option<&str>, options: Value, folder: &Path) -> Result<(String, usize, f64)> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/envs.py");
    let mut envs = PythonEnvs::new(&format!("python:{file}:Faulty"), ENVS, 2);
    envs.python = python.map(str::to_string);
    envs.kwargs = options.as_object().cloned().unwrap_or_default();
    envs.step_timeout = STEP_TIMEOUT;
    envs.worker_memory = plimsoll_base::Bytes::mib(300);
    let mut stepper = PythonStepper::start(envs, &Stop::default())?;
    let (mut lost, mut longest, mut said) = (0, 0.0f64, Vec::new());
    for step in 0..STEPS {
        let since = Instant::now();
        let asks = [if step == 0 { Ask::Reset } else { Ask::Step }; ENVS as usize];
        let groups = stepper.groups().to_vec();
        for (group, range) in groups.iter().enumerate() {
            let k = range.len();
            stepper
                .submit(group, Request { asks: &asks[..k], actions: &vec![0; 8 * k], seeds: &vec![7; k] })?;
        }
        for _ in &groups {
            let group = stepper.wait(&Stop::default())?.expect("nobody stops it");
            lost += stepper.results(group).flags.iter().filter(|&&flags| flags & flags::ABORTED != 0).count();
        }
        longest = longest.max(since.elapsed().as_secs_f64());
        let faults = stepper.take_faults();
        said.extend(
            faults
                .iter()
                .map(|fault| format!("`{}`: {}", fault.error.slug, plain(&fault.error.message, folder))),
        );
    }
    Ok((if said.is_empty() { "nothing".into() } else { said.join("; ") }, lost, longest))
}

/// A message without what differs from run to run and what breaks a table.
fn plain(message: &str, folder: &Path) -> String {
    message.replace(&folder.display().to_string(), "FOLDER").replace('|', "/").replace('\n', " ")
}
