//! The command `bench`: rollout, training, whole step and exactness on work that peers can also do, as a share of this
//! machine's own peak.

mod adapters;
pub mod calibrate;
mod errors;
mod exactness;
mod hosts;
mod methods;
pub mod mismatch;
mod peak;
pub mod ranks;
mod save;
mod speculation;
mod step;
mod structured;

use plimsoll_arch::{Compute, LoraTargets, ModelSpec, Quantization};
use plimsoll_base::rng::{Stream, below, philox};
use plimsoll_base::{Error, Result};
use plimsoll_config::{
    Auto, Frozen, Lora, LoraSpec, ModelDtype, OptimizerDtype, Recompute, RunFile, RunSpec, Train, VerbFile,
};
use plimsoll_device::{Device, OpenOptions, Timed, Work};
use plimsoll_files::OpenModel;
use plimsoll_infer::bound::Sources;
use plimsoll_infer::codes::check_codes;
use plimsoll_infer::facts::verb_facts;
use plimsoll_infer::models::open_model;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::runner::{Runner, open};
use plimsoll_infer::sampler::sampling;
use plimsoll_memory::{Limits, Pool, host::Host};
use plimsoll_plan::{Facts, PlanReport, RoleName, plan_sampling, plan_with};
use plimsoll_rl::data::models::{check_codes_of_run, check_inputs};
use plimsoll_rl::flops::{forward_flops, update_passes};
use plimsoll_rl::roles::Trainer;
use plimsoll_rl::train::roofline;
use plimsoll_rollout::{NeverStop, Request};
use plimsoll_run::progress::Progress;
use plimsoll_train::Sequence;
use serde_json::{Value, from_value, json};
use std::time::Instant;

pub use adapters::{adapters, words as adapters_words};
pub use exactness::exactness;
pub use methods::{methods, words as methods_words};
pub use peak::peak;
pub use plimsoll_rollout::DrawnEnds;
pub use save::save;
pub use speculation::{SpeculationSize, speculation, words as speculation_words};
pub use step::{StepSize, whole_step};
pub use structured::{structured, words as structured_words};

#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Name of the model, as in a run file.
    pub model: String,
    /// Threads; 0 for the container's quota.
    pub threads: usize,
    /// Timed repeats, after one untimed run.
    pub repeats: usize,
    pub dtype: ModelDtype,
    /// Name of the device, as in a run file.
    pub device: String,
    pub recompute: Auto<Recompute>,
    /// Adapters to train on every linear layer that can have them; the weights are then frozen.
    pub lora: Option<Lora>,
    /// How `bench rollout` stores a model that is a GGUF file, without adapters.
    pub quantize: Auto<Frozen>,
    /// What products are computed with.
    pub compute: Compute,
    /// True to wait after every kernel and check its result.
    pub checked: bool,
    /// True to time every kernel separately.
    pub profile: bool,
    /// True if `bench exactness` has prompts with images.
    pub images: bool,
    /// The tokenizer of `bench structured`, a folder or a file, in place of the model's own.
    pub tokenizer: Option<String>,
}

impl BenchOptions {
    fn opening(&self) -> OpenOptions {
        OpenOptions { checked: self.checked, profile: self.profile }
    }
}

/// Seconds over which the peak is measured.
pub(crate) const PEAK_SECONDS: f64 = 0.3;
/// Bytes over which the bandwidth is measured: far beyond any cache.
pub(crate) const BANDWIDTH_BYTES: usize = 512 << 20;

/// Micro-batch of `bench step` in the host's memory: products reach their best rate here, and memory stays small.
const STEP_MICRO_BATCH: usize = 1024;

/// Sizes of a rollout.
#[derive(Debug, Clone, Copy)]
pub struct RolloutSize {
    pub sequences: usize,
    /// Sequences that share a prompt.
    pub group: usize,
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Tokens of a response.
    pub new: usize,
}

/// Runs `bench rollout`: distinct random prompts, no end before the limit.
///
/// Errors: `bad-usage` unless groups are whole; those of planning and of the rollout.
pub fn rollout(options: &BenchOptions, size: RolloutSize) -> Result<Value> {
    let RolloutSize { sequences, group, prompt, new } = size;
    if !sequences.is_multiple_of(group) {
        return Err(Error::usage("bad-usage", format!("{sequences} sequences are no groups of {group}"))
            .hint(format!("--sequences {} are", sequences.next_multiple_of(group))));
    }
    let mut run = bench_sampling(options, sequences / group, group, new);
    run.model_options.quantize = options.quantize;
    run.rollout.sequences_max = Auto::Value(sequences as u32);
    let bench = Bench::open_with(options, &mut run, prompt, plan_sampling)?;
    let (dev, mut arena) = open(&bench.report.shape, options.opening())?;
    let mut runner = Runner::new(&*dev, &mut arena, &bench.report.shape, Sources::one(&bench.model), 0)?;
    runner.rehearse(&[sampling(&run.rollout, 0)])?;
    let prompts = random_prompts(&bench.spec(), sequences / group, prompt);
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let (mut times, mut passes) = (Vec::new(), 0);
    for repeat in 0..=options.repeats {
        dev.take_profile();
        let request = Request {
            prompts: &prompts,
            group_size: group,
            max_new_tokens: new,
            sampling: sampling(&run.rollout, 0),
            eos: &[],
            first_sample_id: (repeat * sequences) as u64,
            numbers: &[],
        };
        let started = Instant::now();
        passes = runner.rollout(&request, &mut NeverStop)?.passes;
        times.push(started.elapsed().as_secs_f64());
    }
    let lengths = |count| std::iter::repeat_n(prompt, count);
    let responses = lengths(sequences).map(|p| (p, new));
    let flops = forward_flops(&bench.spec(), lengths(sequences / group), responses);
    let work = Progress {
        rollout_s: median(&times[1..]),
        flops,
        rollout_flops: flops,
        rollout_passes: passes,
        rollout_tokens: (sequences * new) as u64,
        ..Progress::default()
    };
    let mut result = bench.rates(&*dev, &times[1..], (sequences * new) as f64, &work);
    add(&mut result, json!({ "bench": "rollout", "unit": "generated tokens/s", "sequences": sequences }));
    add(&mut result, json!({ "samples": group, "prompt_tokens": prompt, "new_tokens": new }));
    Ok(result)
}

/// Runs `bench train`: forward and backward of `micro_batches` times `batch` sequences of `seq` tokens, every token
/// trained, then one AdamW.
///
/// Errors: those of planning and of the updates.
pub fn train(options: &BenchOptions, [batch, micro_batches, seq]: [usize; 3]) -> Result<Value> {
    let micro_batch = batch;
    let batch = micro_batch * micro_batches;
    let mut run = bench_run(options, batch, 1, seq);
    run.train_mut().micro_batch_tokens = Auto::Value((micro_batch * seq) as u32);
    let bench = Bench::open(options, &mut run, 1)?;
    check_inputs(&bench.spec(), &options.model, run.lora.is_some())?;
    let (dev, mut arena) = open(&bench.report.shape, options.opening())?;
    let mut trainer = Trainer::new(&*dev, &mut arena, &bench.report.shape, Sources::one(&bench.model), 0)?;
    trainer.rehearse(&[])?;
    // A sequence is a prompt of one token and a response: `seq` rows, each of which predicts a token.
    let tokens = random_prompts(&bench.spec(), batch, seq + 1);
    let sequences: Vec<Sequence<'_>> = tokens
        .iter()
        .enumerate()
        .map(|(group, ids)| Sequence { group, prompt: &ids[..1], response: &ids[1..] })
        .collect();
    let how = run.train().update_options(1, 0);
    let (mut times, mut parts) = (Vec::new(), Vec::new());
    for _ in 0..=options.repeats {
        dev.take_profile();
        let started = Instant::now();
        trainer.arrays.begin(sequences.iter().map(|s| s.response.len()));
        let weight = -1.0 / (batch * seq) as f32;
        let stats =
            trainer.update(RoleName::Actor, &sequences, 0..batch, 1.0, how, &mut |buffers, tokens| {
                buffers.d_logprobs[tokens].fill(weight);
                Ok(())
            })?;
        times.push(started.elapsed().as_secs_f64());
        parts.push(stats);
    }
    let prompts = std::iter::repeat_n(1, batch);
    let passes = update_passes(options.lora.is_some());
    let flops = passes * forward_flops(&bench.spec(), prompts.clone(), prompts.map(|p| (p, seq)));
    let work = Progress { update_s: median(&times[1..]), flops, updates: 1, ..Progress::default() };
    let mut result = bench.rates(&*dev, &times[1..], (batch * seq) as f64, &work);
    let last = parts.last().copied().unwrap_or_default();
    let parts =
        json!({ "forward": last.forward_s, "backward": last.backward_s, "optimizer": last.optimizer_s });
    add(&mut result, json!({ "bench": "train", "unit": "trained tokens/s", "sequences": batch }));
    add(&mut result, json!({ "sequence_tokens": seq, "seconds_of_last": parts }));
    add(&mut result, json!({ "micro_batches": last.micro_batches }));
    Ok(result)
}

/// Returns a benchmark's model and the facts of its plan. Leaves adapters to the layers that can have them.
pub(crate) fn facts(
    options: &BenchOptions,
    run: &mut RunSpec,
    prompt_tokens: usize,
) -> Result<(OpenModel, Facts)> {
    let model = open_model(&options.model, &run.model_options)?;
    if let Some(lora) = &mut run.lora {
        lora.targets = LoraTargets::built_for(&model.spec);
    }
    check_codes_of_run(run, &model)?;
    let blocks = run.keeps_blocks().then_some(Quantization::Gguf);
    check_codes("bad-value", "model_options.quantize", blocks, &model)?;
    let mut facts = verb_facts(run, &model, prompt_tokens, 0);
    facts.host.rows_kept = 0;
    Ok((model, facts))
}

struct Bench {
    model: OpenModel,
    report: PlanReport,
}

impl Bench {
    fn open(options: &BenchOptions, run: &mut RunSpec, prompt_tokens: usize) -> Result<Bench> {
        Bench::open_with(options, run, prompt_tokens, |run, facts| plan_with(run, facts, &Limits::default()))
    }

    fn open_with(
        options: &BenchOptions,
        run: &mut RunSpec,
        prompt_tokens: usize,
        plan: impl FnOnce(&RunSpec, &Facts) -> Result<PlanReport>,
    ) -> Result<Bench> {
        let (model, facts) = facts(options, run, prompt_tokens)?;
        let report = plan(run, &facts)?;
        report.refuse()?;
        Ok(Bench { model, report })
    }

    fn spec(&self) -> ModelSpec {
        self.model.spec
    }

    /// Adds the device's own memory, planned and used, where it has one.
    fn add_device_memory(&self, result: &mut Value, dev: &dyn Device) {
        let Some(memory) = dev.card_memory() else { return };
        add_profile(result, dev);
        let (planned, arena) = (self.report.plan.peak(Pool::Device).peak, self.report.plan.arena_bytes());
        add(result, json!({ "device_planned_bytes": planned, "device_used_bytes": memory.ours() }));
        add(result, json!({ "device_arena_bytes": arena, "device_free_bytes": memory.free }));
        add(result, json!({ "device_others_bytes": memory.others }));
    }

    /// Adds the process's memory, the peak rates of the device, the share of its arithmetic that `work` reaches, and
    /// how near each phase comes to the lower of its two limits. A CPU's rates are measured, the bandwidth over as many
    /// bytes as the weights have, which a cache may hold; a card's are its table's.
    fn add_limits(&self, result: &mut Value, dev: &dyn Device, work: &Progress) {
        // First: what measures the bandwidth takes memory.
        add(
            result,
            json!({ "peak_bytes": Host::this().rss().peak, "planned_bytes": self.report.host_peak() }),
        );
        let (mut roofline, flops) = (roofline(&self.report, dev), dev.peak_flops(PEAK_SECONDS));
        let measure = plimsoll_devices::of(dev.kind()).peak;
        let bytes = (roofline.weight_bytes as usize).clamp(1 << 12, BANDWIDTH_BYTES);
        if let Some([_, bandwidth]) = measure(dev.threads(), 0.0, bytes) {
            roofline.bandwidth = bandwidth * 1e9;
        }
        let work = Progress { step_s: work.step_s.max(work.rollout_s + work.update_s), ..work.clone() };
        result["share_of_peak"] = json!(work.flops / work.step_s / flops);
        result["flops"] = json!(work.flops);
        result["limits"] = roofline.of(&work, flops);
        result["peak"] = json!({ "flops": flops, "bandwidth": roofline.bandwidth });
    }

    fn rates(&self, dev: &dyn Device, seconds: &[f64], tokens: f64, work: &Progress) -> Value {
        let rates: Vec<f64> = seconds.iter().map(|s| tokens / s).collect();
        let mut result = spread(&rates);
        self.add_limits(&mut result, dev, work);
        self.add_device_memory(&mut result, dev);
        finish(result, &dev.machine_type(), dev.threads())
    }
}

pub(crate) fn threads(options: &BenchOptions) -> usize {
    if options.threads > 0 { options.threads } else { Host::this().threads() }
}

/// Returns the run of a benchmark: states in the weights' dtype, as peers keep them.
pub(crate) fn bench_run(options: &BenchOptions, prompts: usize, group: usize, new: usize) -> RunSpec {
    RunSpec::new(&run_file(options, prompts, group, new))
}

/// Returns what a benchmark samples that trains nothing.
fn bench_sampling(options: &BenchOptions, prompts: usize, group: usize, new: usize) -> RunSpec {
    let mut run = RunSpec::sampling(&sampled(options, prompts, group, new));
    run.lora = options.lora.as_ref().map(LoraSpec::new);
    run
}

/// Returns the sections of a benchmark that need no training.
fn sampled(options: &BenchOptions, prompts: usize, group: usize, new: usize) -> VerbFile {
    let mut verb = VerbFile::of(&options.model);
    verb.run.device = from_value(json!(options.device)).expect("a device or auto");
    verb.run.checked = options.checked;
    verb.model_options.dtype = options.dtype;
    verb.model_options.compute = Auto::Value(options.compute);
    verb.run.threads = Auto::Value(threads(options) as u32);
    verb.rollout.prompts_per_step = prompts as u32;
    verb.rollout.group_size = group as u32;
    verb.rollout.max_new_tokens = new as u32;
    // There is no evaluation: passes are recorded for one way of sampling.
    verb.eval.temperature = verb.rollout.temperature;
    verb
}

pub(crate) fn run_file(options: &BenchOptions, prompts: usize, group: usize, new: usize) -> RunFile {
    let mut train = Train::new(1, 1e-6);
    train.optimizer_dtype = Auto::Value(match (options.dtype, &options.lora) {
        (ModelDtype::Bf16, None) => OptimizerDtype::Bf16,
        // Those of adapters always are.
        (ModelDtype::Bf16, Some(_)) | (ModelDtype::F32, _) => OptimizerDtype::F32,
    });
    train.recompute = options.recompute;
    let method = if group > 1 { plimsoll_config::Method::Grpo } else { plimsoll_config::Method::Reinforce };
    let VerbFile { model, model_options, rollout, eval, run, .. } = sampled(options, prompts, group, new);
    let lora = options.lora.clone();
    RunFile { model_options, rollout, eval, run, lora, ..RunFile::of(method, &model, train) }
}

/// Returns distinct prompts of random tokens.
fn random_prompts(spec: &ModelSpec, count: usize, tokens: usize) -> Vec<Vec<u32>> {
    let token = |i: usize, t: usize| {
        let r = philox(0, Stream::Bench, i as u64, t as u64);
        below(r[0], r[1], u64::from(spec.vocab)) as u32
    };
    (0..count).map(|i| (0..tokens).map(|t| token(i, t)).collect()).collect()
}

/// Returns prompts of many lengths, some of them multiples of a block.
fn random_prompts_of(options: &BenchOptions, round: u64, count: usize) -> Result<Vec<Vec<u32>>> {
    let model = open_model(&options.model, &Default::default())?;
    let lengths = (0..count as u64).map(|i| match i {
        0 => 1,
        1 => 16,
        2 => 32,
        _ => 2 + philox(round, Stream::Bench, i, 7)[0] as usize % 60,
    });
    let prompts = random_prompts(&model.spec, count * (round as usize + 1), 64);
    let chosen = &prompts[count * round as usize..];
    Ok(chosen.iter().zip(lengths).map(|(p, n)| p[..n].to_vec()).collect())
}

/// Adds the last repeat's kernels where the device records them: name, launches, seconds, and the bytes and operations
/// that they are at least; then the seconds that these take at the card's bandwidth, or at the rate of its products.
fn add_profile(result: &mut Value, dev: &dyn Device) {
    let profile = dev.take_profile();
    if profile.is_empty() {
        return;
    }
    let (bandwidth, rate) = (plimsoll_devices::bandwidth_here(), dev.peak_flops(PEAK_SECONDS));
    let limit = |work: Work| (work.bytes as f64 / bandwidth).max(work.flops as f64 / rate);
    let rows = profile.iter().map(|Timed { kernel, launches, seconds, work }| {
        json!([kernel, launches, seconds, work.bytes, work.flops, limit(*work) / seconds])
    });
    result["profile"] = rows.collect();
    result["profile_seconds"] = json!(profile.iter().map(|timed| timed.seconds).sum::<f64>());
    result["profile_limit_seconds"] = json!(profile.iter().map(|timed| limit(timed.work)).sum::<f64>());
    result["bandwidth"] = json!(bandwidth);
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    if n % 2 == 1 { sorted[n / 2] } else { 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]) }
}

fn spread(values: &[f64]) -> Value {
    json!({
        "median": median(values), "min": values.iter().copied().fold(f64::INFINITY, f64::min),
        "max": values.iter().copied().fold(0.0, f64::max), "repeats": values.len(),
    })
}

/// Adds the members of an object to a result, in their order.
fn add(result: &mut Value, members: Value) {
    if let (Value::Object(result), Value::Object(members)) = (result, members) {
        result.extend(members);
    }
}

fn finish(mut result: Value, machine: &str, threads: usize) -> Value {
    result["machine"] = json!(machine);
    result["threads"] = json!(threads);
    if result.get("peak_bytes").is_none() {
        result["peak_bytes"] = json!(Host::this().rss().peak);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_number_or_between_the_two() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 3.0, 2.0])), (2.0, 2.5));
        let found = spread(&[2.0, 8.0, 4.0]);
        assert_eq!(found, json!({ "median": 4.0, "min": 2.0, "max": 8.0, "repeats": 3 }));
        let mut result = json!({ "bench": "x", "peak_bytes": 7 });
        add(&mut result, json!({ "unit": "s" }));
        let result = finish(result, "avx2", 2);
        assert_eq!(
            result,
            json!({ "bench": "x", "peak_bytes": 7, "unit": "s", "machine": "avx2", "threads": 2 })
        );
    }

    #[test]
    fn prompts_are_the_same_in_each_run_and_within_the_vocabulary() {
        let spec = ModelSpec::preset("nano").expect("a preset");
        let prompts = random_prompts(&spec, 3, 40);
        assert_eq!(prompts, random_prompts(&spec, 3, 40));
        // Fewer prompts are the first of these.
        assert_eq!(prompts[..2], random_prompts(&spec, 2, 40));
        assert!(prompts[0] != prompts[1] && prompts.iter().flatten().all(|token| *token < spec.vocab));
    }
}
