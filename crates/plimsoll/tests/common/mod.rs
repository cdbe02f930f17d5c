//! Tests what the tests of the binary share.

#![allow(dead_code, reason = "each test binary uses only a part")]

mod cases;
pub mod cgroup;

#[allow(unused_imports, reason = "each test binary uses only a part")]
pub use cases::{every_nth, in_turn, is_full, one_in_turn, turn};
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
