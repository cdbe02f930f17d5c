//! `cargo xtask truth`: builds the program, holds random runs against their plans, writes `bench/results/plan_truth.*`.

use crate::truth;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Runs it with the arguments after its name; none if they are not its own.
pub fn run(arguments: &[String], root: &Path) -> Option<ExitCode> {
    options(arguments).map(|(runs, seed)| make(runs, seed, root))
}

/// Runs and seed of `truth`.
fn options(arguments: &[String]) -> Option<(usize, u64)> {
    let (mut runs, mut seed) = (40, 1);
    for pair in arguments.chunks(2) {
        match pair {
            [flag, value] if flag == "--runs" => runs = value.parse().ok().filter(|&n| n > 0)?,
            [flag, value] if flag == "--seed" => seed = value.parse().ok()?,
            _ => return None,
        }
    }
    Some((runs, seed))
}

/// Builds the program and measures its plans; writes both result files.
fn make(runs: usize, seed: u64, root: &Path) -> ExitCode {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--release", "--package", "plimsoll"]).current_dir(root);
    // What `cargo run` says of this package is not meant for the build scripts of others: they would all run again.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            cargo.env_remove(name);
        }
    }
    let built = cargo.status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("truth: the release build ended with an error");
        return ExitCode::FAILURE;
    }
    let folder = std::env::temp_dir().join(format!("plimsoll-truth-{}", std::process::id()));
    let tell = |index: usize, run: &truth::Run| {
        println!("{:>3}  {:.3}  {}", index + 1, run.ratio(), run.what);
        run.faults().iter().for_each(|fault| println!("     {fault}"));
    };
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let measured = truth::measure(&target.join("release/plimsoll"), &folder, runs, seed, tell);
    // What a broken run left is the evidence; it stays where the message says.
    let measured = match measured {
        Ok(measured) => measured,
        Err(words) => {
            eprintln!("truth: {words}");
            return ExitCode::FAILURE;
        }
    };
    let _ = std::fs::remove_dir_all(&folder);
    let results = root.join("bench/results");
    for (name, text) in [
        ("plan_truth.json", truth::to_json(&measured, seed)),
        ("plan_truth.md", truth::markdown(&measured, seed)),
    ] {
        if let Err(err) = std::fs::write(results.join(name), text) {
            eprintln!("truth: {name}: {err}");
            return ExitCode::FAILURE;
        }
    }
    let broken = measured.iter().filter(|run| !run.faults().is_empty()).count();
    eprintln!("truth: {runs} runs, {broken} not as planned; written to bench/results/plan_truth.md");
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
