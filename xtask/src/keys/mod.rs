//! `cargo xtask keys`: finds run file keys without an effect.
//!
//! The program lists its keys; for each, `table.toml` names a small run and a value that must change the plan, the bits
//! or the output, or end the run. A key without a row and a row without its effect are findings. Accepting, checking
//! and echoing a value is no effect. It knows the program only from outside.

mod effect;
mod play;
mod table;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use play::{Outcome, Player};
use table::{Row, Table};

/// Usage, shown when the command line is wrong.
pub const USAGE: &str = "cargo xtask keys [--binary PATH] [--only KEY[,KEY]] [--base NAME] [--quick]";

/// Concurrent runs; each takes one thread.
const JOBS: usize = 2;

#[derive(Default)]
struct Options {
    binary: Option<PathBuf>,
    /// Prefixes of keys; all if empty.
    only: Vec<String>,
    base: Option<String>,
    /// One row per key instead of one per trainer that reads it.
    quick: bool,
}

/// Runs the command; `None` if the arguments are not its own.
pub fn run(arguments: &[String], root: &Path) -> Option<ExitCode> {
    let options = options(arguments)?;
    let folder = std::env::temp_dir().join(format!("plimsoll-keys-{}", std::process::id()));
    let found = findings(&options, root, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    Some(match found {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(err) => {
            eprintln!("keys: {err}");
            ExitCode::from(2)
        }
    })
}

fn options(arguments: &[String]) -> Option<Options> {
    let mut options = Options::default();
    let (quick, arguments): (Vec<_>, Vec<_>) =
        arguments.iter().cloned().partition(|argument| argument == "--quick");
    options.quick = !quick.is_empty();
    for pair in arguments.chunks(2) {
        match pair {
            [flag, path] if flag == "--binary" => options.binary = Some(path.into()),
            [flag, keys] if flag == "--only" => options.only = keys.split(',').map(str::to_string).collect(),
            [flag, base] if flag == "--base" => options.base = Some(base.clone()),
            _ => return None,
        }
    }
    Some(options)
}

/// Prints a line for each row and returns the number of findings.
fn findings(options: &Options, root: &Path, folder: &Path) -> Result<usize, String> {
    let started = Instant::now();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let binary = options.binary.clone().unwrap_or_else(|| target.join("debug/plimsoll"));
    let binary = binary.canonicalize().map_err(|err| format!("{}: {err}", binary.display()))?;
    let table = Table::read()?;
    let keys = keys(&binary)?;
    let (without_row, without_key) = table.strangers(&keys);
    let mut lines: Vec<String> = Vec::new();
    lines.extend(
        without_row.iter().map(|key| format!("{key}: no row tries it: add one to xtask/src/keys/table.toml")),
    );
    lines.extend(
        without_key.iter().map(|key| format!("{key}: a row tries it, and the program does not have it")),
    );
    let is_chosen = |row: &&Row| {
        (options.only.is_empty() || options.only.iter().any(|start| row.key.starts_with(start.as_str())))
            && options.base.as_ref().is_none_or(|base| *base == row.base)
    };
    table.untried.iter().for_each(|(key, why)| println!("{key:<36} not tried: {why}"));
    let mut seen = BTreeSet::new();
    let is_first = |row: &&Row| !options.quick || seen.insert(row.key.clone());
    let rows: Vec<&Row> = table.rows.iter().filter(is_chosen).filter(is_first).collect();
    let player = Player::new(&table, &binary, root, folder)?;
    lines.extend(play_all(&player, &rows));
    lines.iter().for_each(|line| println!("finding: {line}"));
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("keys: {} keys, {} rows in {seconds:.0} s, {} findings", keys.len(), rows.len(), lines.len());
    Ok(lines.len())
}

/// Plays rows, `JOBS` at a time; returns their findings.
fn play_all(player: &Player, rows: &[&Row]) -> Vec<String> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..JOBS {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(line) = line(row, player.try_row(row)) {
                        eprintln!("finding: {line}");
                        found.lock().expect("no thread panics with it").push(line);
                    }
                }
            });
        }
    });
    found.into_inner().expect("the threads have ended")
}

/// Prints the result of a row; returns its finding.
fn line(row: &Row, outcome: Result<Outcome, String>) -> Option<String> {
    let head = format!("{:<36} {:<14} {}", row.key, row.base, row.seen.name());
    match outcome {
        Ok(Outcome::Effect(what)) => println!("{head}: {what}"),
        Ok(Outcome::Skipped(why)) => println!("{head}: skipped: {why}"),
        Ok(Outcome::Nothing(instead)) => {
            let (key, value, seen) = (&row.key, &row.value, row.seen.name());
            return Some(format!("{key} = {value} has no effect on {seen} in {}: {instead}", row.base));
        }
        Err(why) => return Some(format!("{} could not be tried in {}: {why}", row.key, row.base)),
    }
    None
}

/// Asks the program for its keys.
fn keys(binary: &Path) -> Result<Vec<String>, String> {
    let asked = Command::new(binary).args(["explain", "--keys"]).output();
    let output = asked.map_err(|err| format!("{}: {err}", binary.display()))?;
    let keys: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_string).collect();
    if output.status.success() && !keys.is_empty() {
        Ok(keys)
    } else {
        Err(format!("{} names no keys: it is older than this check", binary.display()))
    }
}
