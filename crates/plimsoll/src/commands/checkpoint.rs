//! `checkpoint list|verify|export|push`: lists and verifies the checkpoints of a run, exports one as a plain model folder or a GGUF
//! file, and uploads one to a hub.

use super::checkpoint_push;
use crate::output;
use crate::terminal::{self, LiveLine};
use plimsoll_base::{Bytes, Error, Quantization, Result};
use plimsoll_files::adapter_quantization;
use plimsoll_run::checkpoint::gguf::{Exported, export_gguf};
use plimsoll_run::checkpoint::merge::{Merged, export_merged};
use plimsoll_run::checkpoint::verbs::{self, Listed};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Damaged files that an error names after the first.
const FILES_NAMED: usize = 15;

#[derive(clap::Args)]
#[command(after_help = "\
DIR is a run directory or one of its checkpoints/step-N.

Examples:
  plimsoll checkpoint list runs/out/first
  plimsoll checkpoint verify runs/out/first --json
  plimsoll checkpoint verify runs/out/first/checkpoints/step-000040
  plimsoll checkpoint export runs/out/first --to models/mine
  plimsoll checkpoint export runs/out/first-lora --to models/mine --merge
  plimsoll checkpoint export runs/out/first --format gguf --output models/mine.gguf
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
    /// Copy the newest checkpoint as a Hugging Face folder or a GGUF file, without the optimizer's states.
    Export {
        /// A run directory or a checkpoint.
        dir: PathBuf,
        /// A new folder, or with --format gguf a new file whose name ends in .gguf.
        #[arg(long, visible_alias = "output", value_name = "PATH")]
        to: PathBuf,
        /// What is written: a Hugging Face folder, or one GGUF file for llama.cpp.
        #[arg(long, value_enum, default_value_t = Format::Folder)]
        format: Format,
        /// Add an adapter to its base model: a model without adapters. DIR may be a folder of peft's too.
        #[arg(long)]
        merge: bool,
    },
    /// Upload the newest checkpoint to a repository of the Hugging Face hub, with a model card.
    Push(checkpoint_push::Args),
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Folder,
    Gguf,
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
        Verb::Export { dir, to, merge, format } => export(args.json, quiet, dir, to, *merge, *format)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn export(as_json: bool, quiet: bool, dir: &Path, to: &Path, merge: bool, format: Format) -> Result<()> {
    let live = terminal::live_line(quiet);
    let mut progress = |done: Bytes, all: Bytes| {
        if let Some(live) = &live {
            live.show(&format!("{done} of {all} written to {}", to.display()));
        }
    };
    match (format, merge) {
        (Format::Folder, false) => {
            let from = verbs::export(dir, to)?;
            if let Some(how) = adapter_quantization(to)? {
                let words = format!(
                    "note: this adapter belongs to weights in {how}: peft and vLLM add it to weights in full, which gives \
                     other tokens; --merge writes a model for them"
                );
                output::note(quiet, &words);
            }
            let found = json!({ "from": from.path, "to": to, "step": from.step });
            output::either(as_json, &found, |_| format!("{} from {}\n", to.display(), from.path.display()))
        }
        (Format::Folder, true) => {
            let merged = export_merged(dir, to, &mut progress);
            live.iter().for_each(LiveLine::finish);
            let merged = merged?;
            let found = json!({ "from": merged.from, "to": to, "merged": merged });
            output::either(as_json, &found, |_| merged_text(&merged, to))
        }
        (Format::Gguf, _) => {
            let found = export_gguf(dir, to, merge, &mut progress);
            live.iter().for_each(LiveLine::finish);
            let found = found?;
            let Exported { from, bytes, sha256, merged } = &found;
            let words = match merged {
                Some(merged) => merged_text(merged, to),
                None => format!("{} from {}\n", to.display(), from.display()),
            };
            let value = json!({ "from": from, "to": to, "bytes": bytes, "sha256": sha256, "merged": merged });
            output::either(as_json, &value, |_| format!("{words}{}, SHA-256 {sha256}\n", Bytes(*bytes)))
        }
    }
}

fn merged_text(merged: &Merged, to: &Path) -> String {
    let Merged { from, base, tensors, elements, undone, rounding_max, change_max, quantize, left_out } =
        merged;
    let left_out = match left_out {
        0 => String::new(),
        n => format!(
            "left out: `mtp.*` ({n} tensors), which predicts further tokens from layers that have changed\n"
        ),
    };
    let codes = match quantize {
        None => "",
        Some(Quantization::Nf4) => ", whose linear layers are what nf4 makes of them",
        Some(Quantization::Gguf) => ", whose linear layers are what its blocks stand for",
    };
    let share = 100.0 * *undone as f64 / (*elements).max(1) as f64;
    format!(
        "{} from {} and {base}{codes}\n{tensors} tensors changed; largest change {change_max:.2e}, largest rounding error \
         {rounding_max:.2e}; {share:.1} % of their elements are the base's again after rounding\n{left_out}",
        to.display(),
        from.display()
    )
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
