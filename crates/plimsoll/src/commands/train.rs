//! `train RUN`: runs the training under a supervisor.

use super::layers::{Sets, flag};
use crate::{closing, output, progress::Progress, ranks, signals, terminal};
use plimsoll_base::{Error, Result};
use plimsoll_config::TrainedKind;
use plimsoll_ranks::{Found, Group, Place};
use plimsoll_rl::script::Script;
use plimsoll_run::callback::Callback;
use plimsoll_run::events::{Observer, Silent};
use plimsoll_run::{resume::Start, several, supervise};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = "\
SIGINT and SIGTERM end the run after its step, with a checkpoint (exit codes 130 and 143); a second one ends it at once.
The run is two processes: the trainer, and a supervisor of a few megabytes that reports why the trainer died, if it does
(exit code 4). With --ranks N it is N of these pairs, which this command starts and which end together; with --hosts H each host starts
its part of them.

Examples:
  plimsoll train runs/first.toml
  plimsoll train runs/first.toml --set train.steps=20 --set run.dir=/tmp/first
  plimsoll train runs/first.toml --resume                  go on after a kill or a stop, bit for bit
  plimsoll train runs/first.toml --resume=previous-good    pass over a damaged checkpoint
  plimsoll train runs/first.toml --resume --set train.steps=200
  PLIMSOLL_TOKEN=... plimsoll train runs/first.toml --ranks 4 --hosts 2 --host-rank 1 --join 10.0.0.1")]
pub struct Args {
    /// The run file.
    run: PathBuf,
    /// Wait after every GPU kernel, check indices and values, and name what is wrong.
    #[arg(long)]
    checked: bool,
    #[command(flatten)]
    sets: Sets,
    /// Continue where an earlier process of this run ended; `previous-good` skips a damaged checkpoint.
    #[arg(long, value_name = "HOW", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "newest")]
    resume: Option<Resume>,
    /// With --resume: let the planner choose again; the run continues, but not with the same bits.
    #[arg(long, requires = "resume")]
    replan: bool,
    /// Replace the run that is in the run directory. Files that no run writes are never removed.
    #[arg(long, conflicts_with = "resume")]
    overwrite: bool,
    /// Print the summary as one JSON object on stdout.
    #[arg(long)]
    json: bool,
    /// Train in this process; if it is killed, nothing reports why.
    #[arg(long)]
    no_supervisor: bool,
    /// Send each event as a JSON line to the program that listens at this Unix socket, and wait after each step for its
    /// line: {"do": "go"}, {"do": "save"} or {"do": "stop"}.
    #[arg(long, value_name = "SOCKET")]
    callback: Option<PathBuf>,
    /// How long that line may take; then the run is saved and ends.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, requires = "callback", value_parser = clap::value_parser!(u32).range(1..=604_800))]
    callback_seconds: u32,
    /// Let the program that listens at this Unix socket make each step: `plimsoll.Session` of the Python package.
    #[arg(long, value_name = "SOCKET", conflicts_with = "callback")]
    script: Option<PathBuf>,
    #[command(flatten)]
    part: ranks::Part,
    /// With several ranks: how long each waits for the others.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    join_seconds: u32,
    /// With several ranks: how long they wait for one of them, within a step and at the end, before the run ends.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=604_800))]
    wait_seconds: u32,
}

/// Trains in a child process and returns its exit code.
pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    if supervise::is_supervised() {
        return train(args, quiet);
    }
    // A run file that is refused is refused once, before any rank waits for others.
    let load = || args.sets.load(&args.run, true);
    match ranks::found(&args.part)? {
        Found::One if args.no_supervisor => return train(args, quiet),
        Found::One => {}
        Found::Start(starts) => {
            return load().and_then(|_| ranks::start(&starts, quiet)).map(ExitCode::from);
        }
        Found::Rank(_) if args.no_supervisor => {
            return Err(Error::usage(
                "bad-usage",
                "--no-supervisor with several ranks: their supervisors are how they find one another",
            )
            .hint("leave out --no-supervisor"));
        }
        Found::Rank(launch) => {
            let times = ranks::Times { join: args.join_seconds, wait: args.wait_seconds };
            return ranks::join(&launch, &load()?, times).map(ExitCode::from);
        }
    }
    let (forward, child_ended) = signals::pipes()?;
    let forward: Vec<_> = forward.iter().map(signals::Pipe::as_signal).collect();
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    // A warning, which `--quiet` leaves in.
    let mut say = |words: &str| output::note(false, words);
    supervise::supervise(&words, &terminal::for_child(), &forward, child_ended.as_signal(), &mut say)
        .map(ExitCode::from)
}

/// Connects to the script that makes the steps, if there is one.
fn script(args: &Args) -> Result<Option<Script>> {
    args.script.as_deref().map(Script::connect).transpose()
}

/// Printed at once after a first signal.
const STOPPING: &str =
    "stopping: this step is finished and saved, then the run ends; ctrl-c again ends it at once";

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Resume {
    Newest,
    PreviousGood,
}

fn train(args: &Args, quiet: bool) -> Result<ExitCode> {
    // Every rank gets the signal; one says so.
    let is_first = Place::of_environment().ok().flatten().is_none_or(|place| place.rank == 0);
    let signal = signals::install((is_first && !quiet).then_some(STOPPING))?;
    let mut loaded =
        args.sets.and(flag("run.checked", args.checked.then_some(true))).load(&args.run, quiet)?;
    let words = plimsoll_rl::data::epochs::resolve(&mut loaded.run)?;
    // Every rank counts; one says so.
    if let Some(words) = words.filter(|_| is_first) {
        output::note(quiet, &words);
    }
    let start = match args.resume {
        None => Start::New { overwrite: args.overwrite },
        Some(how) => Start::Resume { previous_good: how == Resume::PreviousGood, replan: args.replan },
    };
    let joined = several::join(&mut loaded, &start)?;
    let group = joined.as_ref().map_or(Group::alone(), |joined| &joined.group);
    if let Some(note) = joined.as_ref().and_then(|joined| joined.note.as_deref()) {
        output::note(quiet, note);
    }
    if let Some(joined) = joined.as_ref().filter(|joined| joined.group.rank() > 0) {
        let made = plimsoll_rl::train::train(&loaded, start, group, (&mut Silent, &signal), script(args)?);
        return made.map(|_| ExitCode::SUCCESS).map_err(|error| joined.of_the_run(error));
    }
    let mut progress = Progress::new(quiet);
    let made = |observer: &mut dyn Observer| match loaded.run.trains() {
        TrainedKind::Policy if args.script.is_some() => {
            Err(Error::usage("script-unsupported", "policies in environments: a script cannot lead this run")
                .hint("plimsoll.collect of the Python package steps environments for learners of your own"))
        }
        TrainedKind::Policy => plimsoll_agent::run::train(&loaded, start, observer, &signal),
        TrainedKind::LanguageModel => {
            plimsoll_rl::train::train(&loaded, start, group, (observer, &signal), script(args)?)
        }
    };
    let summary = match &args.callback {
        None => made(&mut progress)?,
        Some(path) => {
            let timeout = Duration::from_secs(args.callback_seconds.into());
            let mut callback = Callback::connect(path, timeout, &mut progress)?;
            let summary = made(&mut callback);
            callback.ended(summary)?
        }
    };
    // Charts for a terminal would be noise in a file.
    let columns = terminal::stdout_columns().filter(|_| !args.json);
    let closing = match (columns, progress.dir()) {
        (Some(columns), Some(dir)) => closing::words(dir, &summary, columns)?,
        _ => progress.closing(),
    };
    // The live line is removed before the summary is printed.
    drop(progress);
    if args.json {
        output::note(quiet, closing.trim_end());
        output::json(&summary)?;
    } else {
        output::text(&closing)?
    }
    Ok(ExitCode::SUCCESS)
}
