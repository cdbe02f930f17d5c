//! Runs every target in processes of their own, one for each seed, and writes what came of it as a table.

use crate::session::{Options, Outcome};
use crate::targets::TARGETS;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

/// The outcome of a target's inputs, as its processes print it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    pub inputs: u64,
    pub accepted: u64,
    /// Names of the errors.
    pub errors: BTreeSet<String>,
    pub slowest: Slowest,
    pub peak_bytes: u64,
    /// The causes that ended a process before its time.
    pub faults: Vec<String>,
}

/// The input that took the longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Slowest {
    pub seconds: f64,
    pub seed: u64,
    pub input: u64,
}

impl Row {
    pub fn of(outcome: &Outcome, seed: u64) -> Row {
        let fault =
            outcome.fault.as_ref().map(|(number, what)| format!("input {number} of seed {seed}: {what}"));
        Row {
            inputs: outcome.inputs,
            accepted: outcome.accepted,
            errors: outcome.refused.keys().map(|slug| slug.to_string()).collect(),
            slowest: Slowest { seconds: outcome.slowest.0.as_secs_f64(), seed, input: outcome.slowest.1 },
            peak_bytes: outcome.peak_bytes,
            faults: fault.into_iter().collect(),
        }
    }

    fn add(&mut self, other: Row) {
        self.inputs += other.inputs;
        self.accepted += other.accepted;
        self.errors.extend(other.errors);
        if other.slowest > self.slowest {
            self.slowest = other.slowest;
        }
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
        self.faults.extend(other.faults);
    }

    /// The row of the table.
    pub fn words(&self) -> String {
        format!(
            "{} | {} | {} | {:.2} s (seed {}, input {}) | {} MiB",
            self.inputs,
            self.accepted,
            self.errors.len(),
            self.slowest.seconds,
            self.slowest.seed,
            self.slowest.input,
            self.peak_bytes >> 20,
        )
    }
}

/// Runs each target once for each of `seeds`, `jobs` processes at a time. Returns the targets' rows in order.
pub fn all(options: &Options, seeds: u64, jobs: usize) -> Vec<Row> {
    let runs = (0..seeds).flat_map(|seed| (0..TARGETS.len()).map(move |target| (target, seed)));
    let (next, rows) = (Mutex::new(runs), Mutex::new(vec![Row::default(); TARGETS.len()]));
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let Some((target, seed)) = next.lock().expect("no thread panics").next() else { return };
                    let seed = options.seed + seed;
                    let row = one(TARGETS[target].name, &Options { seed, ..options.clone() });
                    eprintln!("{} (seed {seed}): {} {:?}", TARGETS[target].name, row.words(), row.faults);
                    rows.lock().expect("no thread panics")[target].add(row);
                }
            });
        }
    });
    rows.into_inner().expect("no thread panics")
}

/// Runs a target in a process of its own.
fn one(name: &str, options: &Options) -> Row {
    let faulty = |what: String| Row { faults: vec![what], ..Row::default() };
    let ran = tempfile::tempdir().and_then(|folder| {
        let at = folder.path().join("at");
        let output = Command::new(std::env::current_exe()?)
            .args(["--target", name, "--seconds", &options.seconds.to_string()])
            .args(["--seed", &options.seed.to_string(), "--from", &options.from.to_string()])
            .arg("--at")
            .arg(&at)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        Ok((output, std::fs::read_to_string(&at).unwrap_or_default()))
    });
    match ran {
        Ok((output, number)) => serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
            faulty(format!("input {number} of seed {}: {}", options.seed, output.status))
        }),
        Err(err) => faulty(err.to_string()),
    }
}

pub fn write(path: &Path, options: &Options, seeds: u64, rows: &[Row]) -> std::io::Result<()> {
    let Options { seconds, seed, .. } = options;
    let mut text = format!(
        "# Fuzzing\n\nEvery parser of files that other people wrote, {} s each: {seconds} s for each seed from {seed} to {}.\n\n\
         ```text\ncargo xtask fuzz --seconds {seconds} --seed {seed} --seeds {seeds} --out bench/results/fuzz.md\n```\n\n\
         An input is one of the corpus in the repository, pieces of its language, or one piece within itself, with some changes. \
         It must be\naccepted or end in a named error, within a minute, the process below 512 MiB; a verdict within a second, below 64 MiB. `accepted` counts inputs that \
         were read,\n`errors` the different names of the others. A verifier accepts what it gives a score.\n\n\
         | parser | inputs | accepted | errors | slowest | peak of the process |\n|---|---|---|---|---|---|\n",
        seconds * seeds,
        seed + seeds - 1,
    );
    for (row, target) in rows.iter().zip(&TARGETS) {
        let _ = writeln!(text, "| {}: {} | {} |", target.name, target.reads, row.words());
    }
    let faults: Vec<&String> = rows.iter().flat_map(|row| &row.faults).collect();
    let _ = writeln!(text, "\n{} crashes, hangs or other faults.", faults.len());
    faults.iter().for_each(|fault| text += &format!("- {fault}\n"));
    std::fs::write(path, text)
}
