//! `bench speculation`: sampling with drafts of several depths against none, in tokens a second and bit by bit.

use crate::{Bench, BenchOptions, bench_sampling, finish, median, random_prompts, sampled};
use plimsoll_base::{Error, Result, read_small_text};

use plimsoll_config::{Auto, Speculate};
use plimsoll_device::Sampling;
use plimsoll_infer::bound::Sources;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::runner::{Runner, open, open_verb};
use plimsoll_infer::sampler::sampling;
use plimsoll_plan::plan_sampling;
use plimsoll_rollout::{Drafted, NeverStop, Request};
use plimsoll_text::Prompt;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::Instant;

/// What `bench speculation` samples.
#[derive(Clone, Debug)]
pub struct SpeculationSize {
    /// Sequences that run together.
    pub sequences: usize,
    /// Sequences that share a prompt.
    pub group: usize,
    /// Tokens of a response, which has no end before.
    pub new: usize,
    /// Requests one after the other, each with prompts of its own: later ones draft from earlier ones.
    pub requests: usize,
    pub temperature: f64,
    /// Most drafts of a sequence, each measured against 0.
    pub depths: Vec<usize>,
    pub source: Speculate,
    /// A JSONL file with a column `prompt`; random tokens without one.
    pub prompts: Option<PathBuf>,
}

/// Bytes of a file of prompts at most.
const PROMPTS_BYTES: u64 = 1 << 28;

/// What was drawn of all requests: ids, and bits of log-probabilities.
type Drawn = Vec<(Vec<u32>, Vec<u32>)>;

/// Runs `bench speculation`.
///
/// Errors: `bad-usage`; those of planning and of the rollout.
pub fn speculation(options: &BenchOptions, size: &SpeculationSize) -> Result<Value> {
    let SpeculationSize { sequences, group, new, .. } = *size;
    if !sequences.is_multiple_of(group) {
        return Err(Error::usage("bad-usage", format!("{sequences} sequences are no groups of {group}"))
            .hint(format!("--sequences {} are", sequences.next_multiple_of(group))));
    }
    let prompts = prompts_of(options, size)?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(1);
    let mut run = bench_sampling(options, sequences / group, group, new);
    run.rollout.sequences_max = Auto::Value(sequences as u32);
    run.rollout.temperature = size.temperature;
    run.rollout.speculate = size.source;
    run.rollout.speculate_depth = size.depths.iter().copied().max().unwrap_or(1) as u32;
    run.rollout.speculate_texts = Auto::Value((sequences * size.requests) as u32);
    let bench = Bench::open_with(options, &mut run, longest, plan_sampling)?;
    let (dev, mut arena) = open(&bench.report.shape, options.opening())?;
    let mut runner = Runner::new(&*dev, &mut arena, &bench.report.shape, Sources::one(&bench.model), 0)?;
    let how = sampling(&run.rollout, 0);
    runner.rehearse(&[how])?;
    let depths: Vec<usize> = [0].into_iter().chain(size.depths.iter().copied()).collect();
    let mut seconds = vec![Vec::new(); depths.len()];
    let mut counts = vec![(0, Drafted::default()); depths.len()];
    let (mut expected, mut differing) = (None, 0);
    for repeat in 0..=options.repeats {
        for (at, &depth) in depths.iter().enumerate() {
            runner.sampler.limit_drafts(depth);
            let (took, drawn, passes, drafted) = draw(&mut runner, &prompts, size, how)?;
            seconds[at].extend((repeat > 0).then_some(took));
            counts[at] = (passes, drafted);
            let expected = expected.get_or_insert_with(|| drawn.clone());
            differing += expected.iter().zip(&drawn).filter(|(one, other)| one != other).count();
        }
    }
    let tokens = (size.requests * sequences * new) as f64;
    let row = |at: usize| {
        let (passes, Drafted { drafts, accepted, sequences, .. }) = counts[at];
        let times: Vec<f64> = seconds[0].iter().zip(&seconds[at]).map(|(off, on)| off / on).collect();
        json!({
            "depth": depths[at], "tokens_per_s": tokens / median(&seconds[at]), "times_off": median(&times),
            "times_off_least": times.iter().copied().fold(f64::MAX, f64::min),
            "times_off_most": times.iter().copied().fold(0.0, f64::max),
            "passes": passes, "drafts": drafts, "accepted": accepted,
            "acceptance": accepted as f64 / drafts.max(1) as f64,
            "tokens_a_pass": 1.0 + accepted as f64 / sequences.max(1) as f64,
        })
    };
    let rows: Vec<Value> = (0..depths.len()).map(row).collect();
    let result = json!({
        "bench": "speculation", "model": options.model, "source": size.source, "sequences": sequences,
        "group": group, "new_tokens": new, "requests": size.requests, "temperature": size.temperature,
        "repeats": options.repeats, "tokens_compared": (options.repeats + 1) * (depths.len() - 1) * tokens as usize,
        "responses_that_differ": differing, "equal": differing == 0, "rows": rows,
    });
    Ok(finish(result, &dev.machine_type(), dev.threads()))
}

/// Draws all requests, one after the other. Returns the seconds, what was drawn, and the counts.
fn draw(
    runner: &mut Runner<'_>,
    prompts: &[Vec<u32>],
    size: &SpeculationSize,
    how: Sampling,
) -> Result<(f64, Drawn, u64, Drafted)> {
    let (mut took, mut drawn, mut passes, mut drafted) = (0.0, Drawn::new(), 0, Drafted::default());
    for (number, prompts) in prompts.chunks(size.sequences / size.group).enumerate() {
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let request = Request {
            prompts: &prompts,
            group_size: size.group,
            max_new_tokens: size.new,
            sampling: how,
            eos: &[],
            first_sample_id: (number * size.sequences) as u64,
            numbers: &[],
        };
        let begun = Instant::now();
        let stats = runner.rollout(&request, &mut NeverStop)?;
        took += begun.elapsed().as_secs_f64();
        passes += stats.passes;
        drafted.add(&stats.drafted);
        let samples = &runner.sampler.samples;
        let bits = |s| samples.logprobs(s).iter().map(|logprob: &f32| logprob.to_bits()).collect();
        drawn.extend((0..samples.len()).map(|s| (samples.ids(s).to_vec(), bits(s))));
    }
    Ok((took, drawn, passes, drafted))
}

/// Returns the prompts of all requests.
fn prompts_of(options: &BenchOptions, size: &SpeculationSize) -> Result<Vec<Vec<u32>>> {
    let count = size.requests * size.sequences / size.group;
    let (model, text) = open_verb(&sampled(options, 1, 1, size.new))?;
    let Some(path) = &size.prompts else { return Ok(random_prompts(&model.spec, count, 64)) };
    let bad = |what: String| Error::usage("bad-usage", format!("--prompts {}: {what}", path.display()));
    let lines = read_small_text(path, PROMPTS_BYTES).map_err(|err| bad(err.to_string()))?;
    let rows: Vec<&str> = lines.lines().filter(|line| !line.trim().is_empty()).take(count).collect();
    if rows.len() < count {
        return Err(bad(format!("{} rows, and {count} prompts are needed", rows.len())));
    }
    let prompt = |(row, line): (usize, &&str)| {
        let row = row + 1;
        let columns: Value = serde_json::from_str(line).map_err(|err| bad(format!("row {row}: {err}")))?;
        let words =
            columns["prompt"].as_str().ok_or_else(|| bad(format!("row {row}: no text in `prompt`")))?;
        text.rows().prompt(&Prompt::Text(words.to_string()), &Map::new())
    };
    rows.iter().enumerate().map(prompt).collect()
}

/// Returns the result in words.
pub fn words(found: &Value) -> String {
    let number = |of: &Value, key: &str| of[key].as_f64().unwrap_or(f64::NAN);
    let mut text = format!(
        "{} sequences, {} tokens each, at temperature {}: {} of the responses differ\n",
        found["sequences"], found["new_tokens"], found["temperature"], found["responses_that_differ"]
    );
    for row in found["rows"].as_array().into_iter().flatten() {
        text += &format!(
            "  depth {:>2}: {:.0} tokens/s, {:.2} times as many as without ({:.2} to {:.2}); {} passes, {} of {} drafts right, {:.2} tokens of a sequence in a pass that has drafts\n",
            row["depth"],
            number(row, "tokens_per_s"),
            number(row, "times_off"),
            number(row, "times_off_least"),
            number(row, "times_off_most"),
            row["passes"],
            row["accepted"],
            row["drafts"],
            number(row, "tokens_a_pass"),
        );
    }
    text
}
