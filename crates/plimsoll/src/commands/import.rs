//! `import STACK FILE`: makes a run file from another stack's script or configuration, and lists what it left out.

use crate::{new_file, output};
use clap::builder::PossibleValuesParser;
use plimsoll_base::Result;
use plimsoll_stacks::{STACKS, Wishes, find, import};
use std::path::PathBuf;
use std::process::ExitCode;

/// The flags of `import`.
#[derive(clap::Args)]
#[command(after_help = after_help())]
pub struct Args {
    /// Whose file it is.
    #[arg(value_parser = PossibleValuesParser::new(importable().map(|(name, _)| name)))]
    stack: String,
    /// The script or configuration.
    file: PathBuf,
    /// Write the run file here instead of on stdout; a file that is there already is never overwritten.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Which of the stack's trainers FILE is for, where it does not say: sft, dpo, ...
    #[arg(long, value_name = "NAME")]
    trainer: Option<String>,
    /// Which command counts, from 1, of a script with several in the text at its top.
    #[arg(long, value_name = "N")]
    command: Option<usize>,
    /// Import the rest of a job that needs what is not built: weights in 8 bits, experts, ...
    #[arg(long)]
    force: bool,
    /// List each option of the stack's engine that is left out, which are one count otherwise.
    #[arg(long)]
    all: bool,
}

/// Returns the name of each importable stack, with a description of its file.
fn importable() -> impl Iterator<Item = (&'static str, &'static str)> {
    STACKS.iter().filter_map(|stack| Some((stack.name, stack.imported_file()?)))
}

fn after_help() -> String {
    let files: String = importable().map(|(name, file)| format!("  {name:<8}  {file}\n")).collect();
    format!(
        "\
FILE is read and never run:
{files}
Comments at the end of the run file, and stderr, list keys that only you can fill in, and what was changed, left out or chosen.
Options of the stack's engine, its cards and its logger are one count there; --all lists them.
A job that needs what is not built here, such as weights in 8 bits, is refused. Keys and passwords are never repeated.

Examples:
  plimsoll import openrlhf train_ppo.sh
  plimsoll import trl grpo.yaml --output runs/mine.toml
  plimsoll import trl notebook.ipynb
  plimsoll import trl --trainer sft config.yaml
  plimsoll plan runs/mine.toml"
    )
}

pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    let stack = find(&args.stack).expect("clap takes names of stacks only");
    let wishes =
        Wishes { force: args.force, trainer: args.trainer.clone(), all: args.all, command: args.command };
    let imported = import(stack, &args.file, &wishes)?;
    match &args.output {
        Some(path) => new_file::write(path, &imported.run_file)?,
        None => output::data(&imported.run_file)?,
    }
    imported.remarks.iter().for_each(|remark| output::note(quiet, &format!("note: {remark}")));
    Ok(ExitCode::SUCCESS)
}
