//! `train RUN`: the run itself, watched.

use super::layers::Sets;
use crate::progress::Progress;
use crate::{output, signals};
use plimsoll_base::Result;
use std::path::PathBuf;
use std::process::ExitCode;

/// The flags of `train`.
#[derive(clap::Args)]
#[command(after_help = "\
SIGINT and SIGTERM end the run after its step, with a checkpoint (exit codes 130 and 143); a second one ends it at once.

Examples:
  plimsoll train runs/first.toml
  plimsoll train runs/first.toml --set train.steps=20 --set run.dir=/tmp/first")]
pub struct Args {
    /// The run file.
    run: PathBuf,
    #[command(flatten)]
    sets: Sets,
    /// The summary as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Trains, and says what it came to.
pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    let signal = signals::install()?;
    let loaded = args.sets.load(&args.run, quiet)?;
    let mut progress = Progress::new(quiet);
    let summary = plimsoll_rl::train::train(&loaded, &mut progress, &signal)?;
    let closing = progress.closing();
    // The live line goes before the last words come.
    drop(progress);
    match args.json {
        true => {
            output::note(quiet, closing.trim_end());
            output::json(&summary)?;
        }
        false => output::text(&closing)?,
    }
    Ok(ExitCode::SUCCESS)
}
