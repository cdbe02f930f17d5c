//! Runs every target in a process of its own, and writes what came of it as a table.

use crate::session::{Options, Outcome};
use crate::targets::TARGETS;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

/// One row: the target's name, and its line or what ended it.
type Row = (&'static str, Result<String, String>);

/// Runs the targets, as many at a time as there are processors, and returns their rows in order.
pub fn all(options: &Options) -> Vec<Row> {
    let (next, rows) = (Mutex::new(TARGETS.iter()), Mutex::new(Vec::new()));
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(target) = next.lock().expect("no thread panics").next() {
                    let row = one(target.name, options);
                    eprintln!("{}: {}", target.name, row.as_ref().unwrap_or_else(|what| what));
                    rows.lock().expect("no thread panics").push((target.name, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().expect("no thread panics");
    rows.sort_by_key(|(name, _)| TARGETS.iter().position(|target| target.name == *name));
    rows
}

/// Runs a target in a process of its own. Returns its row of the table.
fn one(name: &str, options: &Options) -> Result<String, String> {
    let words = |err: std::io::Error| err.to_string();
    let folder = tempfile::tempdir().map_err(words)?;
    let at = folder.path().join("at");
    let output = Command::new(std::env::current_exe().map_err(words)?)
        .args(["--target", name, "--seconds", &options.seconds.to_string()])
        .args(["--seed", &options.seed.to_string(), "--from", &options.from.to_string()])
        .arg("--at")
        .arg(&at)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(words)?;
    let line = String::from_utf8_lossy(&output.stdout).trim().to_string();
    if output.status.success() {
        return Ok(line);
    }
    let number = std::fs::read_to_string(&at).unwrap_or_default();
    Err(format!("{} at input {number} of seed {}: {line}", output.status, options.seed))
}

/// The row of a target: inputs, accepted, kinds of errors, slowest, peak.
pub fn row(outcome: &Outcome) -> String {
    let (slowest, number) = outcome.slowest;
    format!(
        "{} | {} | {} | {:.2} s (input {number}) | {} MiB",
        outcome.inputs,
        outcome.accepted,
        outcome.refused.len(),
        slowest.as_secs_f64(),
        outcome.peak_bytes >> 20,
    )
}

/// Writes the table.
pub fn write(path: &Path, options: &Options, rows: &[Row]) -> std::io::Result<()> {
    let mut text = format!(
        "# Fuzzing\n\nEvery parser of files that other people wrote, {} s each with seed {}: `cargo xtask fuzz --seconds {} --seed {} --out \
         bench/results/fuzz.md`.\nAn input is one of the corpus in the repository, pieces of its language, or one piece within itself, \
         with some changes. It must be\naccepted or end in a named error, within a minute, the process below 512 MiB. `accepted` counts \
         inputs that were read,\n`errors` the different names of the others.\n\n| parser | inputs | accepted | errors | slowest | peak \
         of the process |\n|---|---|---|---|---|---|\n",
        options.seconds, options.seed, options.seconds, options.seed,
    );
    for ((name, row), target) in rows.iter().zip(&TARGETS) {
        let row = row.as_ref().map_or_else(|what| format!("**{what}** | | | |"), Clone::clone);
        let _ = writeln!(text, "| {name}: {} | {row} |", target.reads);
    }
    let faults = rows.iter().filter(|(_, row)| row.is_err()).count();
    let _ = writeln!(text, "\n{faults} of {} ended in a crash, a hang or a fault.", rows.len());
    std::fs::write(path, text)
}
