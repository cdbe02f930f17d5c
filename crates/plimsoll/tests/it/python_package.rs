//! The Python package over this program: `crates/python/tests/test_package.py`, which needs the standard library
//! alone, and numpy for a function that estimates advantages; and `test_session.py`, which needs numpy.

use crate::common::python_with;
use std::process::Command;

#[test]
fn the_python_package_drives_runs() {
    let python = python_with("numpy").unwrap_or_else(|| "python3".into());
    passes(&python, "test_package.py");
}

#[test]
fn a_script_makes_the_steps_of_a_run() {
    match python_with("numpy") {
        Some(python) => passes(&python, "test_session.py"),
        None => eprintln!("skipped: no Python with numpy"),
    }
}

/// Runs a file of the package's tests.
fn passes(python: &str, file: &str) {
    let home = concat!(env!("CARGO_MANIFEST_DIR"), "/../python");
    let output = Command::new(python)
        .arg(format!("{home}/tests/{file}"))
        .env("PYTHONPATH", format!("{home}/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PLIMSOLL_PROGRAM", env!("CARGO_BIN_EXE_plimsoll"))
        .output();
    match output {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(err) => eprintln!("skipped: `{python}`: {err}"),
    }
}
