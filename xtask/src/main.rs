//! Checks of the repository itself: `cargo xtask tidy`, which never changes a file, and `cargo xtask truth`, which writes
//! `bench/results/plan_truth.*`; of the binary under faults: `cargo xtask soak`; and of the verifiers under hostile text:
//! `cargo xtask fuzz-grade`; of two binaries against each other: `cargo xtask same-bits`. `cargo xtask index` writes the list
//! of error pages, `cargo xtask book` builds the docs. `cargo xtask cycles`, `rooms` and `english` print what three of
//! tidy's checks measure.

mod book;
mod cycles;
mod edges;
mod english;
mod finding;
mod length;
mod manifest;
mod rooms;
mod same_bits;
mod slugs;
mod soak;
mod soak_command;
mod source;
mod tidy;
mod tree;
mod truth;
mod truth_command;
mod unsafety;
mod words;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => run_tidy(),
        ["cycles"] => print(|tree| cycles::report(tree, None)),
        ["cycles", name] => print(|tree| cycles::report(tree, Some(name))),
        ["rooms"] => print(rooms::report),
        ["english"] => print(english::report),
        ["index"] => write_index(),
        ["book"] => book::build::run(repository_root()),
        ["kernels", "--check"] => check_kernels(),
        ["truth", ..] => truth_command::run(&arguments[1..], repository_root()).unwrap_or_else(usage),
        ["same-bits", ..] => same_bits::run(&arguments[1..], repository_root()).unwrap_or_else(usage),
        ["fuzz-grade", ..] => fuzz_grade(&arguments[1..]),
        ["soak", ..] => soak_command::run(&arguments[1..], repository_root()).unwrap_or_else(usage),
        _ => usage(),
    }
}

/// Writes the list of error pages and the table of contents.
fn write_index() -> ExitCode {
    let root = repository_root();
    match tree::Tree::read(root).and_then(|tree| book::index::write(&tree, root)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("index: {err}");
            ExitCode::from(2)
        }
    }
}

fn run_tidy() -> ExitCode {
    let tree = match tree::Tree::read(repository_root()) {
        Ok(tree) => tree,
        Err(err) => {
            eprintln!("tidy: {err}");
            return ExitCode::from(2);
        }
    };
    let findings = tidy::check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    eprintln!("tidy: {} files, {} findings", tree.files.len(), findings.len());
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what `report` says of the repository.
fn print(report: impl Fn(&tree::Tree) -> String) -> ExitCode {
    match tree::Tree::read(repository_root()) {
        Ok(tree) => {
            print!("{}", report(&tree));
            ExitCode::SUCCESS
        }
        Err(err) => {
            eprintln!("xtask: {err}");
            ExitCode::from(2)
        }
    }
}

/// Compiles every kernel for every architecture; NVRTC must be there.
fn check_kernels() -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = std::process::Command::new(cargo)
        .args(["test", "-p", "plimsoll-cuda", "--test", "it", "kernels::", "--", "--nocapture"])
        .env("PLIMSOLL_NVRTC", "1")
        .current_dir(repository_root())
        .status();
    if status.is_ok_and(|status| status.success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Grades mutated and random texts with every verifier, with overflow checks on.
fn fuzz_grade(arguments: &[String]) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = std::process::Command::new(cargo)
        .args(["run", "-q", "-p", "plimsoll-reward", "--example", "fuzz_grade", "--"])
        .args(arguments)
        .current_dir(repository_root())
        .status();
    if status.is_ok_and(|status| status.success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: cargo xtask tidy | cycles [CRATE] | rooms | english | index | book | kernels --check | truth [--runs N] [--seed S]"
    );
    eprintln!("       cargo xtask fuzz-grade [--seconds N] [--seed S] [--from N] [--show]");
    eprintln!(
        "       cargo xtask soak [--kills N] [--steps N] [--seed N] [--binary PATH] [--folder PATH] [--no-faults]"
    );
    eprintln!("       {}", same_bits::USAGE);
    ExitCode::from(2)
}

/// The workspace, which is the folder above this package.
fn repository_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace")
}
