//! The binary owns the command line, the output and the exit code. The other crates do the work.

mod card;
mod chart;
mod closing;
mod commands;
mod core_dumps;
mod errors;
mod init;
mod limits;
mod listening;
mod new_file;
mod output;
mod pages;
mod progress;
mod rank_rows;
mod ranks;
mod reproduce;
mod signals;
mod sparkline;
mod survey;
mod terminal;
mod watch;

use clap::{CommandFactory, Parser};
use std::process::ExitCode;

/// Reinforcement-learning post-training for language models: memory decided before the run, every failure named.
#[derive(Parser)]
#[command(name = "plimsoll", version, max_term_width = 100, after_help = FIRST_STEPS, propagate_version = true)]
pub struct Cli {
    /// No progress and no notes on stderr; errors still are.
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: commands::Command,
}

const FIRST_STEPS: &str = "\
First steps:
  plimsoll init  first               a run file, first.toml; without a name one for your own model
  plimsoll plan  first.toml          does it fit, and where do the bytes go
  plimsoll train first.toml          a minute on two CPU cores, nothing to download
  plimsoll explain --list            every error has a page

Exit codes: 0 done; 1 a named error; 2 usage or run file; 3 does not fit; 4 the trainer was killed;
5 another rank ended the run; 6 not reproduced; 130 and 143 after SIGINT and SIGTERM.";

fn main() -> ExitCode {
    core_dumps::refuse();
    let mut args = std::env::args_os().skip(1);
    // Before anything else is set up: this process becomes the keeper of other people's code.
    match args.next() {
        Some(verb) if verb == plimsoll_collect::ENV_WORKER => {
            return plimsoll_collect::become_env_worker(&args.collect::<Vec<_>>());
        }
        Some(verb) if verb == plimsoll_reward::KEEPER => {
            return plimsoll_reward::become_keeper(&args.collect::<Vec<_>>());
        }
        _ => std::env::current_exe().into_iter().for_each(plimsoll_reward::keep_with),
    }
    errors::install_panic_hook();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => return errors::usage(&err, &Cli::command()),
    };
    let quiet = cli.quiet;
    errors::guard(move || cli.command.run(quiet, Cli::command))
}
