//! `import STACK FILE`: makes a run file from another stack's configuration, and lists what it could not convert.

use crate::output;
use plimsoll_base::{Error, Result};
use plimsoll_stacks::import::{Stack, import};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = "\
FILE is read and never run:
  openrlhf  a shell script with `python3 -m openrlhf.cli.train_ppo_ray --flag value ...`
  verl      a shell script with `python3 -m verl.trainer.main_ppo key=value ...`
  trl       a shell script with `trl grpo --flag value ...`, YAML or JSON, or Python with `GRPOConfig(...)`
  orz       Python with a class of `key: type = value` lines

Comments at the end of the run file, and stderr, list what was changed, chosen or left out.

Examples:
  plimsoll import openrlhf train_ppo.sh
  plimsoll import trl grpo.yaml --output runs/mine.toml
  plimsoll plan runs/mine.toml")]
pub struct Args {
    /// The stack of the file.
    stack: Whose,
    /// The script or configuration.
    file: PathBuf,
    /// Write the run file here instead of to stdout; an existing file is never overwritten.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Whose {
    #[value(name = "openrlhf")]
    OpenRlhf,
    Verl,
    Trl,
    Orz,
}

/// Prints or writes the run file, and prints its remarks on stderr.
pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    let stack = match args.stack {
        Whose::OpenRlhf => Stack::OpenRlhf,
        Whose::Verl => Stack::Verl,
        Whose::Trl => Stack::Trl,
        Whose::Orz => Stack::Orz,
    };
    let imported = import(stack, &args.file)?;
    match &args.output {
        Some(path) => write_new(path, &imported.run_file)?,
        None => output::text(&imported.run_file)?,
    }
    imported.remarks.iter().for_each(|remark| output::note(quiet, &format!("note: {remark}")));
    Ok(ExitCode::SUCCESS)
}

fn write_new(path: &Path, text: &str) -> Result<()> {
    let failed = |err: std::io::Error| match err.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Error::usage("import-exists", format!("{} is there already", path.display()))
                .hint("choose another --output, or remove it")
        }
        _ => {
            Error::io("write-failed", path, &err).hint("give --output a name in a folder that can be written")
        }
    };
    let mut file = File::create_new(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}
