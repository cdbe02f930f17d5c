//! `cargo xtask truth`: builds the program, compares random runs with their plans and writes
//! `bench/results/plan_truth.*`; with `--device cuda`, `cards.toml`'s lines on this card, in `plan_truth_cuda.*`.

use crate::{cards, truth};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[derive(Debug, PartialEq)]
struct Options {
    runs: usize,
    seed: u64,
    on_card: bool,
    /// The program; a release build if absent.
    binary: Option<PathBuf>,
    /// Only the lines of a card that contain this.
    only: String,
    /// Folder for the results.
    out: Option<PathBuf>,
}

/// Runs the command; `None` if the arguments are not its own.
pub fn run(arguments: &[String], root: &Path) -> Option<ExitCode> {
    let options = options(arguments)?;
    let done = if options.on_card { make_on_card(&options, root) } else { make(&options, root) };
    Some(done.unwrap_or_else(|words| {
        eprintln!("truth: {words}");
        ExitCode::FAILURE
    }))
}

fn options(arguments: &[String]) -> Option<Options> {
    let (runs, seed, on_card, only) = (40, 1, false, String::new());
    let mut options = Options { runs, seed, on_card, binary: None, only, out: None };
    for pair in arguments.chunks(2) {
        match pair {
            [flag, value] if flag == "--runs" => options.runs = value.parse().ok().filter(|&n| n > 0)?,
            [flag, value] if flag == "--seed" => options.seed = value.parse().ok()?,
            [flag, value] if flag == "--device" && value == "cuda" => options.on_card = true,
            [flag, value] if flag == "--binary" => options.binary = Some(value.into()),
            [flag, value] if flag == "--only" => options.only = value.clone(),
            [flag, value] if flag == "--out" => options.out = Some(value.into()),
            _ => return None,
        }
    }
    Some(options)
}

/// Returns the program: the given one, or a release build.
fn program(options: &Options, root: &Path) -> Result<PathBuf, String> {
    if let Some(binary) = &options.binary {
        return binary.canonicalize().map_err(|err| format!("{}: {err}", binary.display()));
    }
    let mut cargo = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    cargo.args(["build", "--release", "--package", "plimsoll"]).current_dir(root);
    // `cargo run` sets these for this package; other packages' build scripts would see changes and all run again.
    let is_ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_ours)) {
        cargo.env_remove(name);
    }
    if !cargo.status().is_ok_and(|status| status.success()) {
        return Err("the release build ended with an error".into());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release/plimsoll"))
}

/// Returns the folder of results.
fn results(options: &Options, root: &Path) -> PathBuf {
    options.out.clone().unwrap_or_else(|| root.join("bench/results"))
}

/// Writes two files of results.
fn write(options: &Options, root: &Path, files: [(&str, String); 2]) -> Result<(), String> {
    let results = results(options, root);
    for (name, text) in files {
        std::fs::write(results.join(name), text).map_err(|err| format!("{name}: {err}"))?;
    }
    Ok(())
}

fn scratch() -> PathBuf {
    std::env::temp_dir().join(format!("plimsoll-truth-{}", std::process::id()))
}

/// Measures the lines of a card; keeps earlier results of lines not run now.
fn make_on_card(options: &Options, root: &Path) -> Result<ExitCode, String> {
    let (binary, folder) = (program(options, root)?, scratch());
    let mut rows = cards::earlier(
        &std::fs::read_to_string(results(options, root).join("plan_truth_cuda.json")).unwrap_or_default(),
    );
    cards::measure(&binary, &folder, &options.only, |line, row| {
        rows.insert(line, row);
        let json = serde_json::to_string_pretty(&rows).map_err(|err| err.to_string())? + "\n";
        write(options, root, [("plan_truth_cuda.json", json), ("plan_truth_cuda.md", cards::markdown(&rows))])
    })?;
    let _ = std::fs::remove_dir_all(&folder);
    let faults = cards::faults(&rows);
    eprintln!("truth: {} lines, {faults} not as planned", rows.len());
    Ok(if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Measures the plans of random runs; writes both result files.
fn make(options: &Options, root: &Path) -> Result<ExitCode, String> {
    let (binary, folder, (runs, seed)) = (program(options, root)?, scratch(), (options.runs, options.seed));
    let tell = |index: usize, run: &truth::Run| {
        println!("{:>3}  {:.3}  {}", index + 1, run.ratio(), run.what);
        run.faults().iter().for_each(|fault| println!("     {fault}"));
    };
    // A failed run's files are the evidence; they stay where the message says.
    let measured = truth::measure(&binary, &folder, runs, seed, tell)?;
    let _ = std::fs::remove_dir_all(&folder);
    let files = [
        ("plan_truth.json", truth::to_json(&measured, seed)),
        ("plan_truth.md", truth::markdown(&measured, seed)),
    ];
    write(options, root, files)?;
    let broken = measured.iter().filter(|run| !run.faults().is_empty()).count();
    eprintln!("truth: {runs} runs, {broken} not as planned; written to bench/results/plan_truth.md");
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
