//! `doctor` finds what would end a run on this machine, `doctor RUN_DIR` the state of a Plimsoll run, `doctor --log`
//! what ended the run that wrote some logs, `doctor --run` where another framework's run would fail, `doctor --ranks`
//! problems between the hosts of a run. `plimsoll-doctor` makes the findings; the pages explain them.

use super::layers::Sets;
use super::{doctor_dir, doctor_ranks, doctor_run, doctor_stacks};
use crate::{output, pages};
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_device::{CardInfo, HandOver as HandedOver};
use plimsoll_devices::{card, hand_over as hand_card_over, take as take_card};
use plimsoll_doctor::log::self_test::Confusion;
use plimsoll_doctor::log::{Diagnosis, Evidence, Input, Limits, diagnose};
use plimsoll_doctor::machine::{Card, Check, GpuFacts, HandOver, Machine, State, WorkerFacts};
use plimsoll_reward::Offered;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = "\
Exit code: 0 if nothing was found, 1 if something was, or if a planned run would not fit. For logs, 0 only if no line looks
like a failure and a log ends as that of a run that went well: a kill leaves no line.

Examples:
  plimsoll doctor                              this machine, before a run
  plimsoll doctor runs/out/first               a run of this program: its state, its ranks, what ended it
  plimsoll doctor --log train.log dmesg.txt    the first cause in logs of this or another framework
  plimsoll doctor --log /tmp/ray/session_latest
  kubectl logs trainer-0 | plimsoll doctor --log -
  plimsoll doctor --run openrlhf train.sh --gpus 8 --gpu-memory 80GiB --host-memory 500GB
  plimsoll doctor --run verl run.sh --set data.max_response_length=8192 --json
  PLIMSOLL_TOKEN=... plimsoll doctor runs/first.toml --ranks 4 --hosts 2 --host-rank 1 --join 10.0.0.1
                                               what lies between hosts, before a run, as `train` is started
  plimsoll explain cuda-oom-logits             the page of what was named

--run reads FILE and never runs it, as `plimsoll import` does; torchrl takes the script that makes the collector. What a
file does not say of its machine is taken from the flags, else from this machine. docs/stacks.md explains each number.")]
pub struct Args {
    /// The directory of a run that `plimsoll train` made, live or ended.
    #[arg(value_name = "RUN_DIR", conflicts_with_all = ["log", "dir", "self_test", "run"])]
    run_dir: Option<PathBuf>,
    /// Logs, also gzipped, or folders of them (a Ray session); `-` is standard input.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    log: Vec<PathBuf>,
    /// The most text that is read from logs, after unpacking; of a larger file, its beginning and its end [default:
    /// 16GiB].
    #[arg(long, value_name = "BYTES", requires = "log")]
    bytes_max: Option<String>,
    /// How long a pipe may pause, all in all, before what has come is judged [default: 120].
    #[arg(long, value_name = "SECONDS", requires = "log")]
    seconds_max: Option<u64>,
    /// Where a run would write; its file system is checked.
    #[arg(long, value_name = "DIR", default_value = ".", conflicts_with = "log")]
    dir: PathBuf,
    /// Classify the built-in examples of every class and show the table.
    #[arg(long, conflicts_with_all = ["log", "dir"])]
    self_test: bool,
    #[command(flatten)]
    plan: doctor_run::Flags,
    #[command(flatten)]
    ranks: doctor_ranks::RankFlags,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    if args.ranks.is_meant() {
        let sets = Sets { sets: args.plan.set.clone() };
        let run = args.run_dir.as_deref().map(|path| (path, sets));
        return doctor_ranks::run(&args.ranks, run, &args.dir, args.json, quiet);
    }
    if args.self_test {
        return self_test(args.json);
    }
    if let Some(dir) = &args.run_dir {
        return doctor_dir::run(dir, args.json);
    }
    if !args.plan.run.is_empty() {
        return doctor_run::run(&args.plan, args.json);
    }
    if args.log.is_empty() { machine(&args.dir, args.json) } else { logs(args) }
}

fn exit(found: bool) -> ExitCode {
    ExitCode::from(u8::from(found))
}

fn logs(args: &Args) -> Result<ExitCode> {
    let input =
        |path: &PathBuf| if path.as_os_str() == "-" { Input::Stdin } else { Input::Path(path.clone()) };
    let usual = Limits::default();
    let bytes = args.bytes_max.as_deref().map(Bytes::parse).transpose()?;
    let limits = Limits {
        bytes: bytes.map_or(usual.bytes, |bytes| bytes.0),
        pauses: args.seconds_max.map_or(usual.pauses, Duration::from_secs),
    };
    let mut diagnosis = diagnose(args.log.iter().map(input).collect(), limits)?;
    let page = diagnosis.slug.as_deref().and_then(pages::page);
    let remedies = page.map(|page| doctor_stacks::remedies(page, &diagnosis)).unwrap_or_default();
    let first_steps = std::mem::take(&mut diagnosis.first_steps);
    diagnosis.first_steps = doctor_stacks::that_help(first_steps, &diagnosis);
    output::either(args.json, &diagnosis.to_json(&remedies), |_| in_words(&diagnosis, page, &remedies))?;
    Ok(exit(!diagnosis.finished))
}

/// Advice if no line says how a run ended.
const LOOK_ELSEWHERE: &str = "\
if the run died, it left no line that the doctor knows, as a kill does: give the logs of all ranks, of the launcher and of
the kernel (`dmesg -T`)";

fn in_words(diagnosis: &Diagnosis, page: Option<&str>, remedies: &[String]) -> String {
    let mut text = String::new();
    let mut section = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
            // Writing to a `String` cannot fail.
            let _ = write!(text, "\n{title}\n{lines}");
        }
    };
    let line = |at: &Evidence| format!("{}:{}: {}", at.file, at.line, at.text);
    section("seen", diagnosis.evidence.iter().map(line).collect());
    section("because", diagnosis.reasons.clone());
    let follows = diagnosis.follows.iter().map(|follow| format!("{}  {}", follow.slug, line(&follow.at)));
    section("follows", follows.collect());
    section("unproven", diagnosis.unproven.clone());
    let steps = diagnosis.first_steps.iter().chain(remedies).enumerate();
    section("do", steps.map(|(index, step)| format!("{}. {step}", index + 1)).collect());
    section("not read", diagnosis.not_read.clone());
    let read = format!("{} in {} files read", Bytes(diagnosis.bytes_read), diagnosis.files_read);
    let verdict = match (&diagnosis.slug, page) {
        (Some(slug), Some(page)) => format!("first cause: {slug}\n{}", pages::summary(page)),
        (Some(_), None) => {
            "first cause: unknown; the first line that looks like a fault is below".to_string()
        }
        (None, _) if diagnosis.finished => {
            "no line looks like a failure, and the log ends as that of a run that went well".to_string()
        }
        (None, _) => {
            format!("no line looks like a failure, and none like the end of a run\n{LOOK_ELSEWHERE}")
        }
    };
    format!("{verdict}\n{text}\n{read}\n")
}

fn machine(dir: &Path, as_json: bool) -> Result<ExitCode> {
    let mut checks = Machine::this(dir.to_path_buf(), gpu_facts(), worker_facts()).checks();
    // Problems first; within a state in the order of the checks.
    checks.sort_by_key(|check| std::cmp::Reverse(check.state));
    let has_problem = checks.iter().any(|check| check.state == State::Problem);
    let object = |check: &Check| {
        let page = pages::page(check.slug).unwrap_or_default();
        check.to_json(&pages::why(page), &pages::remedies(page))
    };
    let objects: Vec<Value> = checks.iter().map(object).collect();
    let found = json!({ "problem": has_problem, "checks": objects });
    output::either(as_json, &found, |_| checks.iter().map(pages::check_row).collect())?;
    Ok(exit(has_problem))
}

/// Asks the kernel which means of limiting workers it offers.
fn worker_facts() -> WorkerFacts {
    let Offered { filters, answers, landlock, groups, mounts } = plimsoll_reward::offered();
    WorkerFacts { filters, answers, landlock, groups, mounts }
}

/// Asks the driver about the cards and probes the first.
fn gpu_facts() -> GpuFacts {
    match (card().probe)() {
        Ok(probe) => {
            let (mut driver, mut libraries_missing) = (probe.driver, Vec::new());
            match (card().libraries)() {
                Ok(versions) => driver += &format!(", {versions}"),
                Err(error) => libraries_missing.push(format!("{}: {}", error.slug, error.message)),
            }
            let shown = |CardInfo { name, total, free, .. }: CardInfo| Card { name, total, free };
            GpuFacts {
                cards: (card().cards)().into_iter().map(shown).collect(),
                driver: Some(driver),
                libraries_missing,
                hand_over: hand_over(),
                ..GpuFacts::default()
            }
        }
        Err(error) => {
            GpuFacts { missing: Some(format!("{}: {}", error.slug, error.message)), ..GpuFacts::default() }
        }
    }
}

/// Hands card memory to a child process, which takes about a second to start.
fn hand_over() -> HandOver {
    match hand_card_over(take_in_another_process) {
        Ok(HandedOver { plain, mapped }) => HandOver::Tried { plain, mapped },
        Err(why) => HandOver::NotTried(why),
    }
}

fn take_in_another_process(line: &str) -> std::result::Result<HandedOver, String> {
    let not_started = |err: io::Error| format!("a second process: {err}");
    let program = std::env::current_exe().map_err(not_started)?;
    let mut child = Command::new(program)
        .args([TAKE, line])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(not_started)?;
    let until = Instant::now() + TAKE_TIME;
    while child.try_wait().map_err(not_started)?.is_none() {
        if Instant::now() >= until {
            // `wait` reaps it in any case.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("a second process did not open the card within {} s", TAKE_TIME.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let answer = child.wait_with_output().map_err(not_started)?;
    let said: Value = serde_json::from_slice(&answer.stdout)
        .map_err(|_| format!("a second process did not open the card: it ended with {}", answer.status))?;
    let way = |key: &str| said[key].as_str().map_or(Ok(()), |why| Err(why.to_string()));
    Ok(HandedOver { plain: way("plain"), mapped: way("mapped") })
}

/// The command of the child process, which opens the card's memory and prints the result as JSON.
pub const TAKE: &str = "take-card-memory";
const TAKE_TIME: Duration = Duration::from_secs(10);

/// Runs that command. `line` comes from the offering process.
pub fn take(line: &str) -> Result<ExitCode> {
    let taken = take_card(line)?;
    output::json(&json!({ "plain": taken.plain.err(), "mapped": taken.mapped.err() }))?;
    Ok(ExitCode::SUCCESS)
}

fn self_test(as_json: bool) -> Result<ExitCode> {
    let confusion = Confusion::run()?;
    let cell = |((expected, named), count): (&(String, String), &u64)| json!({ "expected": expected, "named": named, "count": count });
    let cells: Vec<Value> = confusion.cells.iter().map(cell).collect();
    let found = json!({ "cells": cells, "wrong": confusion.wrong.len() });
    output::either(as_json, &found, |_| confusion.table())?;
    if confusion.wrong.is_empty() {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Error::new("internal", "an embedded example is not named as expected"))
    }
}
