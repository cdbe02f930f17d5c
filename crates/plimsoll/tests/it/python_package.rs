//! The Python package over this program: `crates/python/tests/test_package.py`, which needs the standard library
//! alone, and numpy for a function that estimates advantages.

use crate::common::python_with;
use std::process::Command;

#[test]
fn the_python_package_drives_runs() {
    let python = python_with("numpy").unwrap_or_else(|| "python3".into());
    let home = concat!(env!("CARGO_MANIFEST_DIR"), "/../python");
    let output = Command::new(&python)
        .arg(format!("{home}/tests/test_package.py"))
        .env("PYTHONPATH", format!("{home}/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PLIMSOLL_PROGRAM", env!("CARGO_BIN_EXE_plimsoll"))
        .output();
    match output {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(err) => eprintln!("skipped: `{python}`: {err}"),
    }
}
