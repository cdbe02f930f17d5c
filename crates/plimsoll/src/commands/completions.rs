//! `completions SHELL`: prints a shell's completion script.

use crate::output;
use clap_complete::Shell;
use plimsoll_base::Result;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  plimsoll completions bash > ~/.local/share/bash-completion/completions/plimsoll"
)]
pub struct Args {
    /// The shell to complete in.
    shell: Shell,
}

pub fn run(args: &Args, mut cli: clap::Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli, "plimsoll", &mut script);
    output::data(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
