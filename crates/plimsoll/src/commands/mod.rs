//! One file a command: its flags, and the call that does the work.

mod completions;
mod explain;
mod grade;
mod layers;
mod plan;

use clap::Subcommand;
use plimsoll_base::Result;
use std::process::ExitCode;

/// What can be asked.
#[derive(Subcommand)]
pub enum Command {
    /// Show where a run's memory goes, and whether it fits.
    Plan(plan::Args),
    /// Grade given responses with a verifier, a JSON object a line.
    Grade(grade::Args),
    /// Print the page of an error, or list them all.
    Explain(explain::Args),
    /// Print a completion script for a shell.
    Completions(completions::Args),
}

impl Command {
    /// Does it. `quiet` leaves out progress and notes.
    pub fn run(self, quiet: bool) -> Result<ExitCode> {
        match self {
            Command::Plan(args) => plan::run(&args, quiet),
            Command::Grade(args) => grade::run(&args, quiet),
            Command::Explain(args) => explain::run(&args),
            Command::Completions(args) => completions::run(&args),
        }
    }
}
