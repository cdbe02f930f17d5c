//! Tests what the tests of the binary share.

#![allow(dead_code, reason = "each test binary uses only a part")]

pub mod cgroup;

use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder that goes with the test.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a temporary folder"))
    }

    /// One with a file in it.
    pub fn with(name: &str, content: &str) -> Folder {
        let folder = Folder::new();
        folder.write(name, content);
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn text_path(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_string()
    }

    /// Writes a file; its path.
    pub fn write(&self, name: &str, content: &str) -> String {
        std::fs::write(self.path(name), content).expect("a file in it");
        self.text_path(name)
    }
}

/// The binary with arguments, not yet started.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(args).env("RUST_BACKTRACE", "0");
    command
}

/// Runs the binary to its end.
pub fn plimsoll(args: &[&str]) -> Output {
    command(args).output().expect("the binary runs")
}

/// Bytes that must be UTF-8.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Exit code and stderr must be as said; stdout must be empty and nothing may panic.
pub fn check_refused(args: &[&str], code: i32, contains: &[&str]) {
    check_error(args, &plimsoll(args), code, contains);
}

/// Works as `check_refused`, for a run that is over: before the error there may be notes and progress.
pub fn check_error(args: &[&str], output: &Output, code: i32, contains: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    assert!(stderr.lines().any(|line| line.starts_with("error[")), "{args:?}: {stderr}");
    assert!(stderr.contains("\nhint: "), "{args:?} has no hint: {stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("error[internal]"), "{args:?}: {stderr}");
    assert!(!stderr.contains('\x1b'), "colour in a pipe: {stderr:?}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", text(&output.stdout));
    for part in contains {
        assert!(stderr.contains(part), "{args:?} lacks {part:?}: {stderr}");
    }
}

/// True where everything is tried, as by `.ci/full`; otherwise says what is left out.
pub fn is_full(left_out: &str) -> bool {
    let full = std::env::var("PLIMSOLL_FULL").is_ok_and(|value| value == "1");
    if !full {
        eprintln!("skipped: {left_out}; PLIMSOLL_FULL=1 tries them");
    }
    full
}

/// Returns the commit's number in its history, by which what is chosen in turn moves on, as `.ci/run` sets it; else 0.
pub fn turn() -> usize {
    std::env::var("PLIMSOLL_TURN").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns one of `n` cases, others with each commit, each with the number by which `in_turn` chooses its ways. All
/// of them where everything is tried.
pub fn every_nth<T>(n: usize, cases: impl IntoIterator<Item = T>) -> Vec<(usize, T)> {
    let (cases, turn) = (cases.into_iter().enumerate(), turn());
    if is_full(&format!("all but one of {n} cases, by PLIMSOLL_TURN={turn}")) {
        return cases.collect();
    }
    let mine: Vec<T> = cases.filter(|(index, _)| index % n == turn % n).map(|(_, case)| case).collect();
    assert!(!mine.is_empty(), "fewer than {n} cases");
    // A case that comes again meets the next way.
    mine.into_iter().enumerate().map(|(place, case)| (place + turn / n, case)).collect()
}

/// Returns the ways in which case `index` runs: the first, to which the others are compared, and one of them in turn,
/// so that every case and every way occurs. All of them where everything is tried.
pub fn in_turn<T>(index: usize, ways: &[T]) -> Vec<&T> {
    let (first, others) = ways.split_first().expect("a way");
    [vec![first], one_in_turn(index, others)].concat()
}

/// Works as `in_turn`, without the first.
pub fn one_in_turn<T>(index: usize, ways: &[T]) -> Vec<&T> {
    if is_full(&format!("case {index} in all but one of {} ways", ways.len())) {
        return ways.iter().collect();
    }
    vec![&ways[index % ways.len()]]
}

/// The interpreter for tests, if it has a module; otherwise says what is missing.
pub fn python_with(module: &str) -> Option<String> {
    let python = std::env::var("PLIMSOLL_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python).args(["-c", &format!("import {module}")]).output();
    let found = found.is_ok_and(|out| out.status.success());
    if !found {
        eprintln!(
            "skipped: `{python}` has no {module}; PLIMSOLL_TEST_PYTHON may name an interpreter that has it"
        );
    }
    found.then_some(python)
}
