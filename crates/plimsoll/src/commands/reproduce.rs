//! `reproduce NAME`: fetches what a published number needs, trains, evaluates, and says whether it is reproduced.

use super::layers::Sets;
use crate::output;
use crate::reproduce::book::Book;
use crate::reproduce::record::{FolderState, keep};
use crate::reproduce::{data, list, stages, verdict};
use plimsoll_base::{Error, Result};
use plimsoll_devices::Card;
use std::path::{Path, PathBuf, absolute};
use std::process::ExitCode;

/// The exit code of a run that ended, with another number than the published one.
const NOT_REPRODUCED: u8 = 6;
const STATE: &str = "state.json";

#[derive(clap::Args)]
#[command(after_help = "\
Everything happens in one folder, runs/out/reproduce/NAME unless --out says otherwise: the run files are copied there, and the
stages run there. A second call goes on where the first one ended. Nothing is fetched that the files do not name.
Exit code: 0 if it is reproduced, 6 if the number is another one, 3 if a stage does not fit; others as of train.

Examples:
  plimsoll reproduce --list --card h100
  plimsoll reproduce arithmetic
  plimsoll reproduce verl-gsm8k-ppo --out /data/verl
  plimsoll reproduce mine.toml --set seed=1")]
pub struct Args {
    /// One that --list names, or FILE.toml of your own.
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// List them: claim, what they take on a card by `plan`, and what they came to.
    #[arg(long, conflicts_with_all = ["name", "out", "sets", "record"])]
    list: bool,
    /// With --list: the card, as in `plan --card`.
    #[arg(long, value_name = "CARD", default_value = "h100", requires = "list")]
    card: String,
    /// With --list: a table in Markdown.
    #[arg(long, requires = "list", conflicts_with = "json")]
    markdown: bool,
    /// The folder in which it happens [default: runs/out/reproduce/NAME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    sets: Sets,
    /// Put the result into a list of results, as JSON.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Print one JSON object in place of the verdict.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    let Some(name) = args.name.as_deref() else { return print_list(args) };
    let book = Book::open(name)?;
    let out = args.out.clone().unwrap_or_else(|| Path::new("runs/out/reproduce").join(&book.name));
    let unwritable =
        |err: std::io::Error| Error::io("write-failed", &out, &err).hint("give --out another folder");
    let record = args.record.as_deref().map(absolute).transpose().map_err(unwritable)?;
    let state_file = absolute(out.join(STATE)).map_err(unwritable)?;
    let mut state = FolderState::read(&state_file)?;
    // Before anything is written: the folder may be that of another reproduction.
    state.keep_files(book.hashes()?)?;
    std::fs::create_dir_all(&out).map_err(unwritable)?;
    book.write(&out)?;
    // Paths in run files are from here on those of the copies.
    std::env::set_current_dir(&out).map_err(unwritable)?;

    let what = &book.what;
    let note = |words: &str| output::note(quiet, words);
    note(&format!("{}: {}", book.name, what.title));
    note(&format!("published: {}", what.source));
    let loaded = stages::load(what, &args.sets, quiet)?;
    state.differs.extend(stages::differences(what, &loaded)?);
    let evaluated = verdict::evaluation(what, loaded.last().expect("a reproduction has a stage"))?;
    let runs: Vec<_> = loaded.iter().map(|loaded| loaded.run.clone()).collect();
    let named = data::names(&runs, evaluated.as_ref().map(|verb| &verb.verb));
    data::fetch(what, &named, &mut state, &note)?;
    for (stage, report) in what.stage.iter().zip(stages::plan(what, &loaded, None)?) {
        report.refuse().map_err(|error| error.fact(format!("of {}, which was to run here", stage.run)))?;
        note(&format!("{}: {}", stage.run, stages::words(&report)));
    }
    state.write(&state_file)?;
    if let Some(code) = stages::train(&loaded, &args.sets, &mut state, &state_file, quiet)? {
        note(&format!("`plimsoll reproduce {name}` goes on from there"));
        return Ok(ExitCode::from(code));
    }
    let result = verdict::result(&book.name, what, &loaded, &state)?;
    let as_json = serde_json::to_value(&result).expect("numbers and texts have a JSON form");
    plimsoll_files::write_atomic(Path::new("result.json"), as_json.to_string().as_bytes())?;
    record.map_or(Ok(()), |path| keep(&path, &result))?;
    output::either(args.json, &as_json, |_| verdict::words(&what.claim, &result))?;
    Ok(if result.reproduced { ExitCode::SUCCESS } else { ExitCode::from(NOT_REPRODUCED) })
}

fn print_list(args: &Args) -> Result<ExitCode> {
    let rows = list::rows(&Card::parse(&args.card)?)?;
    if args.markdown {
        output::text(&list::markdown(&rows, &args.card))?
    } else {
        output::either(args.json, &list::json(&rows), |_| list::table(&rows, &args.card))?
    }
    Ok(ExitCode::SUCCESS)
}
