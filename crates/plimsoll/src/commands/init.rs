//! `init [NAME]`: writes a run file to begin with.

use crate::init::{columns::Columns, embedded, needs, own};
use crate::{new_file, output};
use plimsoll_base::Result;
use plimsoll_config::{is_env_file, load_text};
use serde_json::{Value, json};
use std::iter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The flags of `init`.
#[derive(clap::Args)]
#[command(after_help = "\
A file that is there already is never overwritten. Nothing is fetched.

Examples:
  plimsoll init first                                   the run that learns to add, as first.toml
  plimsoll init --model hf:Qwen/Qwen2.5-0.5B-Instruct --data train.jsonl --reward math
  plimsoll init --data sums.jsonl --reward python:my_reward.py:f --output runs/mine.toml
  plimsoll init --list")]
pub struct Args {
    /// One of the run files that `--list` names; without a name a commented one for your own model, data and reward.
    #[arg(conflicts_with_all = ["list", "model", "data", "reward"])]
    name: Option<String>,
    /// List the run files that NAME may be, with one sentence each.
    #[arg(long, conflicts_with_all = ["model", "data", "reward", "output"])]
    list: bool,
    /// Your model: a directory, a .gguf file, hf:org/name, pypi:package or builtin:nano.
    #[arg(long, value_name = "MODEL", default_value = "hf:Qwen/Qwen2.5-0.5B-Instruct")]
    model: String,
    /// Your prompts: a JSONL or Parquet file, or builtin:TASK.
    #[arg(long, value_name = "DATA", default_value = "train.jsonl")]
    data: String,
    /// What scores a response: math, gsm8k, exact, python:FILE.py:FUNCTION, ... May be repeated.
    #[arg(long, value_name = "KIND", default_value = "math")]
    reward: Vec<String>,
    /// Write the run file here [default: NAME.toml, or run.toml].
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// With --list: print one JSON object.
    #[arg(long, requires = "list")]
    json: bool,
}

pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    if args.list {
        list(args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = args.name.as_deref().unwrap_or("run");
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.toml")));
    let text = match &args.name {
        Some(name) => embedded::text(name, &path)?,
        None => own_text(args, &path)?,
    };
    new_file::write(&path, &text)?;
    next_steps(&path, text, quiet);
    Ok(ExitCode::SUCCESS)
}

/// Returns the run file for the flags, checked as `plan` and `train` check it.
fn own_text(args: &Args, path: &Path) -> Result<String> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let output = path.display().to_string();
    let own = own::RunFileOptions {
        model: &args.model,
        data: &args.data,
        rewards: &args.reward,
        output: &output,
        name: &name,
        columns: Columns::of(&args.data),
    };
    let text = own::text(&own);
    plimsoll_files::Source::parse(&args.model, None)?;
    load_text(text.clone(), path, &[], iter::empty()).map(|_| text)
}

/// Prints the file written, the files it names that do not exist, and the next commands.
fn next_steps(path: &Path, text: String, quiet: bool) {
    let shown = path.display();
    output::note(quiet, &format!("{shown} is written"));
    let verb = if is_env_file(path) { "collect" } else { "train" };
    let loaded = load_text(text, path, &[], iter::empty());
    for (key, missing) in loaded.iter().flat_map(needs::missing) {
        output::note(quiet, &format!("note: `{key}` is {missing}, which is not here yet"));
    }
    output::note(quiet, &format!("next: plimsoll plan {shown}"));
    output::note(quiet, &format!("      plimsoll {verb} {shown}"));
}

fn list(as_json: bool) -> Result<()> {
    if as_json {
        let row = |(name, text): &(&str, &str)| json!({ "name": name, "summary": embedded::summary(text) });
        return output::json(&json!({ "runs": embedded::RUNS.iter().map(row).collect::<Vec<Value>>() }));
    }
    let width = embedded::RUNS.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, text): &(&str, &str)| format!("{name:width$}  {}\n", embedded::summary(text));
    output::text(&embedded::RUNS.iter().map(line).collect::<String>())
}
