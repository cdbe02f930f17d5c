//! `cargo xtask fuzz`: one target in this process, or all of them, each in a process of its own.

use fuzz::session::{self, Options};
use fuzz::{report, targets};
use rustix::process::{Resource, Rlimit};
use std::path::PathBuf;
use std::process::ExitCode;

struct Words {
    options: Options,
    seeds: u64,
    jobs: usize,
    target: Option<String>,
    out: Option<PathBuf>,
}

const USAGE: &str = "usage: fuzz [--seconds N] [--seed S] [--seeds COUNT] [--jobs N] [--from N] [--target NAME] [--show] [--out FILE]";

fn main() -> ExitCode {
    let Some(Words { options, seeds, jobs, target, out }) = words() else {
        let names: Vec<&str> = targets::TARGETS.iter().map(|target| target.name).collect();
        eprintln!("{USAGE}\ntargets: {}", names.join(", "));
        return ExitCode::from(2);
    };
    let Some(name) = target else {
        let rows = report::all(&options, seeds, jobs);
        if let Some(Err(err)) = out.map(|path| report::write(&path, &options, seeds, &rows)) {
            eprintln!("{err}");
            return ExitCode::FAILURE;
        }
        let is_sound = rows.iter().all(|row| row.faults.is_empty());
        return if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    };
    let Some(target) = targets::TARGETS.iter().find(|target| target.name == name) else {
        eprintln!("no target {name}");
        return ExitCode::from(2);
    };
    let most = Some(session::ADDRESS_BYTES_MAX);
    let limit = Rlimit { current: most, maximum: most };
    if let Err(err) = rustix::process::setrlimit(Resource::As, limit) {
        eprintln!("the address space cannot be limited: {err}");
        return ExitCode::FAILURE;
    }
    let row = report::Row::of(&session::run(target, &options), options.seed);
    println!("{}", serde_json::to_string(&row).expect("a row has a JSON text"));
    if row.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn words() -> Option<Words> {
    let options = Options { seconds: 60, inputs_max: u64::MAX, seed: 1, from: 0, show: false, at: None };
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut words = Words { options, seeds: 1, jobs, target: None, out: None };
    let mut flags = std::env::args().skip(1);
    while let Some(flag) = flags.next() {
        match flag.as_str() {
            "--seconds" => words.options.seconds = flags.next()?.parse().ok()?,
            "--seed" => words.options.seed = flags.next()?.parse().ok()?,
            "--seeds" => words.seeds = flags.next()?.parse().ok()?,
            "--jobs" => words.jobs = flags.next()?.parse().ok()?,
            "--from" => words.options.from = flags.next()?.parse().ok()?,
            "--at" => words.options.at = Some(flags.next()?.into()),
            "--show" => words.options.show = true,
            "--target" => words.target = Some(flags.next()?),
            "--out" => words.out = Some(flags.next()?.into()),
            _ => return None,
        }
    }
    Some(words)
}
