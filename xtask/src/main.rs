//! Checks of the repository: `cargo xtask tidy`, which changes no file; of plans, `truth`, which writes
//! `bench/results/plan_truth.*`, on a card `plan_truth_cuda.*`; of the binary under faults, `soak`; of parsers and
//! verifiers under hostile input, `fuzz`; of two binaries against each other, `same-bits`; of every run file key for an
//! effect, `keys`; of the tests under load and in other orders, `shake`. `index` writes the lists of error pages and of
//! what imports leave out, `pages` the docs' numbers and pictures, `book` builds them, `dist` packs a release, and
//! `notes` prints its notes. `cycles` and `rooms` print what two of tidy's checks measure, `touched` the number of
//! product files that commits touched, which a hook writes into their messages, and `dependencies` checks licences and
//! sources of crates. `ci-times` keeps how long each step of CI took, in `bench/results/ci.*`.

mod book;
mod cards;
mod cases;
mod ci;
mod comments;
mod cycles;
mod dependencies;
mod devices;
mod dist;
mod edges;
mod english;
mod finding;
mod git;
mod keys;
mod length;
mod manifest;
mod names;
mod opens;
mod rooms;
mod same_bits;
mod shake;
mod shows;
mod slugs;
mod soak;
mod soak_command;
mod source;
mod tidy;
mod touched;
mod tree;
mod truth;
mod truth_command;
mod unsafety;
mod words;

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};
use tree::Tree;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => with_tree("tidy", |tree| Ok(run_tidy(tree))),
        ["cycles"] => print(|tree| cycles::report(tree, None)),
        ["cycles", name] => print(|tree| cycles::report(tree, Some(name))),
        ["rooms"] => print_rooms(None),
        ["rooms", commit] => print_rooms(Some(commit)),
        ["dependencies"] => dependencies::run(repository_root()).unwrap_or_else(|err| {
            eprintln!("dependencies: {err}");
            ExitCode::from(2)
        }),
        ["touched", ..] => touched::run(&arguments[1..], repository_root()).unwrap_or_else(usage),
        ["ci-times", ..] => ci::run(&arguments[1..], repository_root()).unwrap_or_else(usage),
        ["index"] => with_tree("index", |tree| {
            book::index::write(tree, repository_root()).map(|()| cargo(&LOSSES, &[]))
        }),
        ["book"] => book::build::run(repository_root()),
        ["pages"] => cargo(&PAGES, &[]),
        ["pages", "--release"] => cargo(&PAGES_RELEASE, &[]),
        ["kernels", "--check"] => cargo(&KERNELS, &["--nocapture".into()]),
        ["dist", ..] => dist::run(&arguments[1..], repository_root()).unwrap_or_else(usage),
        ["notes", version] => dist::notes::run(version, repository_root()),
        ["truth", ..] => truth_command::run(&arguments[1..], repository_root()).unwrap_or_else(usage),
        ["same-bits", ..] => same_bits::run(&arguments[1..], repository_root()).unwrap_or_else(usage),
        ["keys", ..] => keys::run(&arguments[1..], repository_root()).unwrap_or_else(usage),
        ["fuzz", ..] => cargo(&FUZZ, &arguments[1..]),
        ["shake", ..] => shake::run(&arguments[1..], repository_root()).unwrap_or_else(usage),
        ["soak", ..] => soak_command::run(&arguments[1..], repository_root()).unwrap_or_else(usage),
        _ => usage(),
    }
}

/// Reads the repository for command `name`; exit code 2 if that fails.
fn with_tree(name: &str, work: impl Fn(&Tree) -> io::Result<ExitCode>) -> ExitCode {
    Tree::read(repository_root()).and_then(|tree| work(&tree)).unwrap_or_else(|err| {
        eprintln!("{name}: {err}");
        ExitCode::from(2)
    })
}

fn run_tidy(tree: &Tree) -> ExitCode {
    let findings = tidy::check(tree);
    findings.iter().for_each(|finding| println!("{finding}"));
    eprintln!("tidy: {} files, {} findings", tree.files.len(), findings.len());
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints a report on the repository.
fn print(report: impl Fn(&Tree) -> String) -> ExitCode {
    with_tree("xtask", |tree| {
        print!("{}", report(tree));
        Ok(ExitCode::SUCCESS)
    })
}

/// Prints the size of crates, next to that of a commit.
fn print_rooms(commit: Option<&str>) -> ExitCode {
    with_tree("rooms", |tree| {
        let landing = rooms::landing(repository_root(), commit)?;
        print!("{}", rooms::report(tree, landing.as_ref()));
        Ok(ExitCode::SUCCESS)
    })
}

/// Runs cargo at the root of the repository.
fn cargo(words: &[&str], arguments: &[String]) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(words).args(arguments).env("PLIMSOLL_NVRTC", "1").current_dir(repository_root());
    if command.status().is_ok_and(|status| status.success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes the page of what imports leave out.
const LOSSES: [&str; 9] =
    ["test", "-q", "-p", "plimsoll-stacks", "--test", "it", "the_page_is_written", "--", "--ignored"];
/// Compiles every kernel for every architecture; requires NVRTC.
const KERNELS: [&str; 7] = ["test", "-p", "plimsoll-cuda", "--test", "it", "kernels::", "--"];
/// Runs every parser on mutated files and every verifier on mutated texts, with overflow checks.
const FUZZ: [&str; 5] = ["run", "-q", "-p", "fuzz", "--"];

/// Writes numbers and pictures of the docs.
const PAGES: [&str; 9] =
    ["test", "-p", "plimsoll", "--test", "it", "pages_are_written", "--", "--ignored", "--nocapture"];
/// Writes them with a release build, whose rates and binary size are those that users see.
const PAGES_RELEASE: [&str; 10] = [
    "test",
    "--release",
    "-p",
    "plimsoll",
    "--test",
    "it",
    "pages_are_written",
    "--",
    "--ignored",
    "--nocapture",
];

fn usage() -> ExitCode {
    eprintln!(
        "usage: cargo xtask tidy | cycles [CRATE] | rooms [COMMIT] | dependencies | touched [COMMITS] | touched --check [RANGE] | touched --write FILE | index | pages [--release] | book | kernels --check | truth [--runs N] [--seed S] | truth --device cuda [--binary PATH] [--only WORDS] [--out DIR]"
    );
    eprintln!(
        "       cargo xtask fuzz [--seconds N] [--seed S] [--seeds COUNT] [--jobs N] [--from N] [--target NAME] [--show] [--out FILE]"
    );
    eprintln!(
        "       cargo xtask soak [--kills N] [--steps N] [--seed N] [--binary PATH] [--folder PATH] [--no-faults] | soak --ranks N [--device cpu|cuda] [--hit RANK] [--rounds N] [--hosts H] [--minutes N]"
    );
    eprintln!("       {}", ci::USAGE);
    eprintln!("       {} | notes VERSION", dist::USAGE);
    eprintln!("       {}", same_bits::USAGE);
    eprintln!("       {}", keys::USAGE);
    eprintln!("       {}", shake::USAGE);
    ExitCode::from(2)
}

/// Returns the repository that this was built in, or the working directory if it is missing, as on card machines.
fn repository_root() -> &'static Path {
    let built_in =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace");
    if built_in.is_dir() { built_in } else { Path::new(".") }
}
