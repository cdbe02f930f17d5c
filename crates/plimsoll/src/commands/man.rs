//! `man DIR`: writes a manual page for each command, for packages.

use plimsoll_base::{Error, Result};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = "Example:\n  plimsoll man ~/.local/share/man/man1")]
pub struct Args {
    /// A folder; pages of the same names are replaced.
    dir: PathBuf,
}

pub fn run(args: &Args, cli: clap::Command) -> Result<ExitCode> {
    let failed = |err: std::io::Error| {
        Error::io("write-failed", &args.dir, &err).hint("give a folder that can be written")
    };
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    clap_mangen::generate_to(cli, &args.dir).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
