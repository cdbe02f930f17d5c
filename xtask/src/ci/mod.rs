//! `cargo xtask ci-times`: adds how long each step of a script of `.ci` took to `bench/results/ci.json`, and writes
//! `bench/results/ci.md` from it. `--age` says how old the last full run is.

mod log;
mod machine;
mod page;
pub mod record;

use crate::git;
use chrono::{DateTime, NaiveDate};
use record::{Kind, Run};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

pub const USAGE: &str = "cargo xtask ci-times LOG [--kind run|full] [--commit C] [--machine TEXT] [--date YYYY-MM-DD] | ci-times --age";

/// The facts of a run besides its log; what is empty follows from this machine and its checkout.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    log: PathBuf,
    kind: Kind,
    commit: String,
    machine: String,
    date: String,
}

/// Runs the command; `None` if the arguments are not its own.
pub fn run(arguments: &[String], root: &Path) -> Option<ExitCode> {
    let done = match arguments {
        [only] if only == "--age" => record::read(root).map(|runs| println!("{}", record::age(&runs, root))),
        _ => {
            let options = options(arguments)?;
            add(options, root)
        }
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("ci-times: {what}");
            ExitCode::from(2)
        }
    })
}

fn options(arguments: &[String]) -> Option<Options> {
    let (mut log, mut kind) = (None, Kind::Run);
    let [mut commit, mut machine, mut date] = [const { String::new() }; 3];
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--kind" => {
                kind = match words.next()?.as_str() {
                    "run" => Kind::Run,
                    "full" => Kind::Full,
                    _ => return None,
                }
            }
            "--commit" => commit = words.next()?.clone(),
            "--machine" => machine = words.next()?.clone(),
            "--date" => {
                date = words.next()?.clone();
                NaiveDate::parse_from_str(&date, "%Y-%m-%d").ok()?;
            }
            flag if flag.starts_with("--") || log.is_some() => return None,
            path => log = Some(path.into()),
        }
    }
    Some(Options { log: log?, kind, commit, machine, date })
}

/// Adds a run to the record, and writes the page.
fn add(options: Options, root: &Path) -> io::Result<()> {
    let Options { log, kind, mut commit, mut machine, mut date } = options;
    let in_log = |what: String| io::Error::other(format!("{} {what}", log.display()));
    // A log may hold bytes of any program.
    let bytes = fs::read(&log).map_err(|err| in_log(format!("cannot be read: {err}")))?;
    let table = log::read(&String::from_utf8_lossy(&bytes)).map_err(in_log)?;
    if commit.is_empty() {
        commit = git::output(root, ["rev-parse", "--short", "HEAD"])?.trim().to_string();
    }
    if machine.is_empty() {
        machine = machine::describe();
    }
    if date.is_empty() {
        date = today();
    }
    let mut runs = record::read(root)?;
    let log::Table { steps, total_seconds, ended_early } = table;
    eprintln!("ci-times: {date} at {commit}: {} steps, {total_seconds} s", steps.len());
    runs.push(Run { kind, date, commit, machine, steps, total_seconds, ended_early });
    fs::write(root.join(record::PATH), record::text(&runs))?;
    fs::write(root.join(page::PATH), page::page(&runs))
}

/// Returns today's date in UTC.
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = DateTime::from_timestamp(seconds as i64, 0).unwrap_or_default();
    now.format("%Y-%m-%d").to_string()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use record::Step;

    /// A whole run of these steps.
    pub fn run(kind: Kind, commit: &str, steps: &[(&str, u64)]) -> Run {
        let step = |(step, seconds): &(&str, u64)| Step { step: step.to_string(), seconds: *seconds };
        Run {
            kind,
            date: "2026-11-28".into(),
            commit: commit.into(),
            machine: "m".into(),
            steps: steps.iter().map(step).collect(),
            total_seconds: steps.iter().map(|(_, seconds)| seconds).sum(),
            ended_early: false,
        }
    }

    #[test]
    fn flags_are_read_and_others_refused() {
        let read = |words: &str| options(&words.split(' ').map(str::to_string).collect::<Vec<_>>());
        let found =
            read("a.log --kind full --commit c1 --machine m --date 2026-11-28").expect("flags of its own");
        let expect = Options {
            log: "a.log".into(),
            kind: Kind::Full,
            commit: "c1".into(),
            machine: "m".into(),
            date: "2026-11-28".into(),
        };
        assert_eq!(found, expect);
        assert_eq!(read("a.log").map(|options| options.kind), Some(Kind::Run));
        for bad in
            ["--kind full", "a.log b.log", "a.log --kind half", "a.log --date 28.11.2026", "a.log --age"]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_run_is_added_and_its_page_written() {
        let folder = std::env::temp_dir().join(format!("plimsoll-ci-{}", std::process::id()));
        fs::create_dir_all(folder.join("bench/results")).expect("the folder can be made");
        let log = folder.join("log");
        let options = |commit: &str| Options {
            log: log.clone(),
            kind: Kind::Run,
            commit: commit.into(),
            machine: String::new(),
            date: String::new(),
        };
        fs::write(&log, b"\xff\n== format\n").expect("the log can be written");
        let refused = add(options("a1"), &folder).expect_err("the log is cut").to_string();
        assert_eq!(
            refused,
            format!(
                "{} is cut: 1 steps began, and the table of how long they took is missing",
                log.display()
            )
        );
        assert!(!folder.join(record::PATH).exists());
        fs::write(&log, b"\xff\n    3 s  format\n    3 s  in all\n").expect("the log can be written");
        add(options("a1"), &folder).expect("the run is added");
        add(options("b2"), &folder).expect("the run is added");
        let runs = record::read(&folder).expect("a record");
        assert_eq!(runs.iter().map(|run| run.commit.as_str()).collect::<Vec<_>>(), ["a1", "b2"]);
        assert_eq!(runs[1].machine, machine::describe());
        assert_eq!(fs::read_to_string(folder.join(page::PATH)).expect("a page"), page::page(&runs));
        fs::remove_dir_all(&folder).expect("the folder can be removed");
    }
}
