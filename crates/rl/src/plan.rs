//! The plan of a whole run: what `"auto"` becomes, whether it fits, and which changes would make it fit.

use crate::runfile::{
    Auto, ByteSize, ModelDtype, OnFull as RunOnFull, OptimizerDtype as RunOptimizer,
    Recompute as RunRecompute, RunFile,
};
use crate::session::{Facts, Session};
use crate::shape::{RunShape, Training};
use plimsoll_base::{Bytes, DType, Error, Phase, Result};
use plimsoll_device::DeviceKind;
use plimsoll_memory::host::Host;
use plimsoll_memory::{Limit, Limits, Plan, Pool};
use plimsoll_model::{Recompute, Target};
use plimsoll_rollout::{EngineLimits, OnFull};
use plimsoll_train::{OptimizerDType, PackLimits, StateDTypes};
use serde::Serialize;
use serde_json::{Value, json};

/// Micro-batches that `"auto"` chooses among: powers of two.
const MICRO_BATCH: std::ops::RangeInclusive<usize> = 256..=16_384;
/// Sequences in flight that `"auto"` never exceeds.
const SEQUENCES_MAX: usize = 512;
/// Prompt rows that a rollout pass takes beside the decode rows.
const PREFILL_ROWS: usize = 1024;

/// What the planner settled on; recorded in `plan.json`, because gradients depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Resolved {
    /// Token limit of a forward pass in training.
    pub micro_batch_tokens: usize,
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// Storage of optimizer states.
    pub optimizer_dtype: OptimizerDType,
    /// Storage of gradients.
    pub grad_dtype: DType,
    /// Sequences in flight.
    pub sequences_max: usize,
    /// KV blocks of a layer.
    pub kv_blocks: usize,
    /// Rows of a rollout pass.
    pub rollout_rows: usize,
    /// Longest prompt.
    pub prompt_tokens_max: usize,
    /// Threads.
    pub threads: usize,
}

impl Resolved {
    /// The run file with every `"auto"` that the planner settled.
    pub fn write_into(&self, run: &RunFile) -> RunFile {
        let mut run = run.clone();
        run.train.micro_batch_tokens = Auto::Value(self.micro_batch_tokens as u32);
        run.train.recompute = Auto::Value(match self.recompute {
            Recompute::None => RunRecompute::None,
            Recompute::Cheap => RunRecompute::Cheap,
            Recompute::Layer => RunRecompute::Layer,
        });
        run.train.optimizer_dtype = Auto::Value(match self.optimizer_dtype {
            OptimizerDType::F32 => RunOptimizer::F32,
            OptimizerDType::Bf16 => RunOptimizer::Bf16,
        });
        let bf16 = self.grad_dtype == DType::Bf16;
        run.train.grad_dtype = Auto::Value(if bf16 { ModelDtype::Bf16 } else { ModelDtype::F32 });
        run.rollout.sequences_max = Auto::Value(self.sequences_max as u32);
        run.rollout.kv_blocks = Auto::Value(self.kv_blocks as u32);
        run.run.threads = Auto::Value(self.threads as u32);
        run
    }
}

/// A change of the run file that makes it fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hint {
    /// What `--set` takes.
    pub set: String,
    /// What it does.
    pub why: String,
}

/// A plan with its verdict.
#[derive(Clone, Debug)]
pub struct PlanReport {
    /// All regions and limits.
    pub plan: Plan,
    /// The numbers behind them.
    pub shape: RunShape,
    /// What `"auto"` became.
    pub resolved: Resolved,
    /// True if every pool's peak is within its limit.
    pub fits: bool,
    /// Verified changes, when it does not fit.
    pub hints: Vec<Hint>,
}

/// Plans a run for this machine, or for the limits given.
///
/// Errors: those of opening the model and the data; a run that does not fit is a report, not an error.
pub fn plan_run(run: &RunFile, limits: Option<Limits>) -> Result<PlanReport> {
    let facts = Session::facts(run, true)?;
    check_micro_batch(run, &facts)?;
    plan_with(run, &facts, &limits.unwrap_or_default())
}

/// Requires that the longest sequence that may be sampled fits in a micro-batch of a given size.
///
/// Errors: `sequence-too-long`. A supervised run is checked as it packs: its longest prompt need not have the longest
/// completion.
pub fn check_micro_batch(run: &RunFile, facts: &Facts) -> Result<()> {
    let (prompt, response) = (facts.prompt_tokens, run.rollout.max_new_tokens as usize);
    match run.train.micro_batch_tokens {
        Auto::Value(limit) if run.method.has_rollout() && (limit as usize) < prompt + response => {
            let message = format!(
                "a prompt of {prompt} tokens and rollout.max_new_tokens = {response} exceed train.micro_batch_tokens = {limit}"
            );
            Err(Error::usage("sequence-too-long", message)
                .hint("set train.micro_batch_tokens = \"auto\"")
                .hint(format!(
                    "set train.micro_batch_tokens to at least {}, or lower rollout.max_new_tokens",
                    prompt + response
                )))
        }
        _ => Ok(()),
    }
}

/// Plans a run whose facts are known. Limits that are absent in `given` are the run file's, then this machine's.
pub fn plan_with(run: &RunFile, facts: &Facts, given: &Limits) -> Result<PlanReport> {
    let limits = limits_of(run, given);
    let threads = run.run.threads.value().map_or_else(|| Host::this().threads(), |n| n.max(1) as usize);
    let planner = Planner { facts, threads, limits: &limits };
    let (shape, resolved) = planner.solve(run)?;
    let plan = Plan { layout: shape.layout()?, limits: limits.clone() };
    let fits = plan.fits();
    let hints = if fits { Vec::new() } else { planner.hints(run)? };
    Ok(PlanReport { plan, shape, resolved, fits, hints })
}

/// The limits of a run: given, from the run file, or read from this machine.
fn limits_of(run: &RunFile, given: &Limits) -> Limits {
    let mut limits = given.clone();
    let machine = limits.host.take().or_else(|| Host::this().memory_limit());
    limits.host = match (run.memory.host, machine) {
        (Auto::Value(ByteSize(bytes)), machine) if machine.as_ref().is_none_or(|m| bytes <= m.bytes) => {
            Some(Limit { bytes, source: "memory.host of the run file".into() })
        }
        (_, machine) => machine,
    };
    limits
}

struct Planner<'a> {
    facts: &'a Facts,
    threads: usize,
    limits: &'a Limits,
}

/// The knobs that the planner turns.
#[derive(Clone, Copy)]
struct Knobs {
    micro_batch_tokens: usize,
    recompute: Recompute,
    sequences: usize,
}

impl Planner<'_> {
    /// The largest micro-batch with the least recompute, then the most sequences, that fit; else the smallest of all.
    fn solve(&self, run: &RunFile) -> Result<(RunShape, Resolved)> {
        let sequences = self.sequence_choices(run);
        let fewest = *sequences.last().expect("at least one choice");
        let mut chosen = None;
        let updates = self.update_choices(run);
        for &(recompute, micro_batch_tokens) in &updates {
            let knobs = Knobs { micro_batch_tokens, recompute, sequences: fewest };
            if self.fits(run, knobs)? {
                chosen = Some(knobs);
                break;
            }
        }
        let Some(mut knobs) = chosen else {
            let &(recompute, micro_batch_tokens) = updates.last().expect("at least one choice");
            return self.shape(run, Knobs { micro_batch_tokens, recompute, sequences: fewest });
        };
        for &count in &sequences {
            if self.fits(run, Knobs { sequences: count, ..knobs })? {
                knobs.sequences = count;
                break;
            }
        }
        self.shape(run, knobs)
    }

    fn fits(&self, run: &RunFile, knobs: Knobs) -> Result<bool> {
        let (shape, _) = self.shape(run, knobs)?;
        Ok(Plan { layout: shape.layout()?, limits: self.limits.clone() }.fits())
    }

    /// (recompute, micro-batch) from the fastest to the smallest.
    fn update_choices(&self, run: &RunFile) -> Vec<(Recompute, usize)> {
        let longest = self.facts.prompt_tokens + self.response_tokens(run);
        let useful = self.step_rows(run).next_power_of_two().max(*MICRO_BATCH.start());
        let least = longest.next_power_of_two().max(*MICRO_BATCH.start());
        let sizes: Vec<usize> = match run.train.micro_batch_tokens {
            Auto::Value(n) => vec![n as usize],
            Auto::Auto => {
                let most = useful.min(*MICRO_BATCH.end()).max(least);
                std::iter::successors(Some(most), |&n| (n / 2 >= least).then_some(n / 2)).collect()
            }
        };
        let levels: Vec<Recompute> = match run.train.recompute {
            Auto::Value(level) => vec![recompute(level)],
            Auto::Auto => vec![Recompute::None, Recompute::Cheap, Recompute::Layer],
        };
        levels.iter().flat_map(|&level| sizes.iter().map(move |&size| (level, size))).collect()
    }

    fn sequence_choices(&self, run: &RunFile) -> Vec<usize> {
        match run.rollout.sequences_max {
            Auto::Value(n) => vec![n.max(1) as usize],
            Auto::Auto => {
                let most = self.samples(run).min(SEQUENCES_MAX);
                std::iter::successors(Some(most), |&n| (n > 1).then_some(n / 2)).collect()
            }
        }
    }

    /// Samples of one engine request: a step's, or a slice of an evaluation.
    fn samples(&self, run: &RunFile) -> usize {
        let step = if run.method.has_rollout() { run.sequences_per_step() as usize } else { 0 };
        // The samples of one prompt go together.
        let samples = run.eval.samples.max(1) as usize;
        let eval = self.facts.eval_prompts.saturating_mul(samples).min(samples.max(256));
        step.max(eval).max(1)
    }

    fn response_tokens(&self, run: &RunFile) -> usize {
        if run.method.has_rollout() {
            run.rollout.max_new_tokens as usize
        } else {
            self.facts.completion_tokens.max(1)
        }
    }

    /// Rows of a step's forward passes.
    fn step_rows(&self, run: &RunFile) -> usize {
        let prompts = run.rollout.prompts_per_step as usize;
        prompts * self.facts.prompt_tokens + run.sequences_per_step() as usize * self.response_tokens(run)
    }

    fn shape(&self, run: &RunFile, knobs: Knobs) -> Result<(RunShape, Resolved)> {
        let weights = run.model_options.dtype.dtype();
        let (prompt_tokens, new_tokens) = (self.facts.prompt_tokens, run.rollout.max_new_tokens as usize);
        let group = if run.method.has_rollout() { run.rollout.group_size as usize } else { 1 };
        let enough = EngineLimits::blocks_for(knobs.sequences, group, prompt_tokens, new_tokens);
        let one = (prompt_tokens + new_tokens).div_ceil(plimsoll_device::KV_BLOCK) + 1;
        let kv_blocks = run.rollout.kv_blocks.value().map_or(enough, |n| n as usize).max(one);
        let prefill = (knobs.sequences * prompt_tokens).next_power_of_two().min(PREFILL_ROWS);
        let engine = EngineLimits {
            sequences: knobs.sequences,
            rows: prefill.max(knobs.sequences),
            blocks: kv_blocks,
            samples: self.samples(run),
            prompt_tokens,
            new_tokens,
        };
        let dtypes = state_dtypes(run, weights);
        let sequences = run.sequences_per_step() as usize;
        let prompts = run.rollout.prompts_per_step as usize;
        let pack = PackLimits {
            micro_batch_tokens: knobs.micro_batch_tokens,
            prompt_tokens,
            segments: PackLimits::segments_of(knobs.micro_batch_tokens, prompts, sequences),
        };
        let training = Training {
            dtypes,
            pack,
            recompute: knobs.recompute,
            reference: run.loss.kl_coef != 0.0 && run.method.has_rollout(),
            sequences,
            response_tokens: self.response_tokens(run),
        };
        let target = Target { kind: DeviceKind::Cpu, pool: Pool::Host, threads: self.threads };
        let shape = RunShape {
            spec: self.facts.spec,
            weights,
            target,
            engine,
            on_full: on_full(run.rollout.on_full),
            truncates: run.rollout.top_k > 0 || run.rollout.top_p < 1.0 || run.rollout.min_p > 0.0,
            positions: prompt_tokens + new_tokens.max(self.response_tokens(run)),
            training: Some(training),
            host: self.facts.host,
        };
        let resolved = Resolved {
            micro_batch_tokens: knobs.micro_batch_tokens,
            recompute: knobs.recompute,
            optimizer_dtype: dtypes.optimizer,
            grad_dtype: dtypes.grads,
            sequences_max: knobs.sequences,
            kv_blocks,
            rollout_rows: engine.rows,
            prompt_tokens_max: prompt_tokens,
            threads: self.threads,
        };
        Ok((shape, resolved))
    }

    /// Changes that make the run fit, each planned again; the smallest limit last.
    fn hints(&self, run: &RunFile) -> Result<Vec<Hint>> {
        let mut hints = Vec::new();
        let changes = changes(run);
        for (hint, change) in &changes {
            let mut changed = run.clone();
            change(&mut changed);
            if self.fits_after(&changed)? {
                hints.push(hint.clone());
            }
        }
        if hints.is_empty() {
            hints.extend(self.pair_hint(run, &changes)?);
        }
        hints.extend(self.smallest_limit(run)?);
        Ok(hints)
    }

    fn fits_after(&self, changed: &RunFile) -> Result<bool> {
        let facts = Facts { host: self.host_after(changed), ..*self.facts };
        let planner = Planner { facts: &facts, ..*self };
        let (shape, _) = planner.solve(changed)?;
        Ok(Plan { layout: shape.layout()?, limits: self.limits.clone() }.fits())
    }

    fn host_after(&self, changed: &RunFile) -> crate::shape::HostFacts {
        let staging = Bytes(self.facts.host.staging.0.min(changed.memory.staging.0.0));
        crate::shape::HostFacts { staging, ..self.facts.host }
    }

    /// The first two changes that are enough together, when none alone is.
    fn pair_hint(&self, run: &RunFile, changes: &[(Hint, Change)]) -> Result<Option<Hint>> {
        for (i, (a, change_a)) in changes.iter().enumerate() {
            for (b, change_b) in &changes[i + 1..] {
                let mut changed = run.clone();
                change_a(&mut changed);
                change_b(&mut changed);
                if self.fits_after(&changed)? {
                    let set = format!("{} --set {}", a.set, b.set);
                    return Ok(Some(Hint { set, why: format!("{}; {}", a.why, b.why) }));
                }
            }
        }
        Ok(None)
    }

    /// The least host limit under which the run fits as it is written.
    fn smallest_limit(&self, run: &RunFile) -> Result<Option<Hint>> {
        let sequences = *self.sequence_choices(run).last().expect("at least one choice");
        let mut least = Bytes(u64::MAX);
        for (recompute, micro_batch_tokens) in self.update_choices(run) {
            let (shape, _) = self.shape(run, Knobs { micro_batch_tokens, recompute, sequences })?;
            let plan = Plan { layout: shape.layout()?, limits: Limits::default() };
            least = least.min(plan.peak(Pool::Host).peak);
        }
        let mib = least.0.div_ceil(Bytes::MIB);
        let set = format!("memory.host={mib}MiB");
        Ok(Some(Hint { set, why: format!("the smallest host memory in which this run fits is {mib} MiB") }))
    }
}

type Change = fn(&mut RunFile);

/// Single changes of a run file that save memory, the cheapest in speed first.
fn changes(run: &RunFile) -> Vec<(Hint, Change)> {
    let mut all: Vec<(bool, &str, &str, Change)> = vec![
        (
            !run.train.micro_batch_tokens.is_auto(),
            "train.micro_batch_tokens=auto",
            "the planner takes the largest micro-batch that fits",
            |r| r.train.micro_batch_tokens = Auto::Auto,
        ),
        (
            !run.rollout.sequences_max.is_auto() || !run.rollout.kv_blocks.is_auto(),
            "rollout.sequences_max=auto --set rollout.kv_blocks=auto",
            "the planner takes the most sequences that fit",
            |r| {
                r.rollout.sequences_max = Auto::Auto;
                r.rollout.kv_blocks = Auto::Auto;
            },
        ),
        (
            !run.train.recompute.is_auto() && run.train.recompute != Auto::Value(RunRecompute::Layer),
            "train.recompute=layer",
            "only each layer's input is kept for the backward pass",
            |r| r.train.recompute = Auto::Value(RunRecompute::Layer),
        ),
        (
            run.memory.staging.0 > Bytes(STAGING_SMALL),
            "memory.staging=1MiB",
            "weights are read and written through smaller buffers",
            |r| r.memory.staging = ByteSize(Bytes(STAGING_SMALL)),
        ),
    ];
    all.push((
        run.model_options.dtype == ModelDtype::F32,
        "model_options.dtype=bf16",
        "weights and activations in bf16",
        |r| r.model_options.dtype = ModelDtype::Bf16,
    ));
    all.push((
        run.train.optimizer_dtype != Auto::Value(RunOptimizer::Bf16)
            && run.model_options.dtype == ModelDtype::Bf16,
        "train.optimizer_dtype=bf16",
        "states in bf16 with stochastic rounding, no f32 master copy: 8 bytes a parameter instead of 18",
        |r| r.train.optimizer_dtype = Auto::Value(RunOptimizer::Bf16),
    ));
    all.push((run.loss.kl_coef != 0.0, "loss.kl_coef=0", "no reference model is loaded", |r| {
        r.loss.kl_coef = 0.0
    }));
    all.into_iter()
        .filter(|(applies, ..)| *applies)
        .map(|(_, set, why, change)| (Hint { set: set.into(), why: why.into() }, change))
        .collect()
}

const STAGING_SMALL: u64 = 1 << 20;

fn state_dtypes(run: &RunFile, weights: DType) -> StateDTypes {
    let optimizer = match run.train.optimizer_dtype {
        Auto::Value(RunOptimizer::Bf16) => OptimizerDType::Bf16,
        _ => OptimizerDType::F32,
    };
    let grads = match run.train.grad_dtype {
        Auto::Value(dtype) => dtype.dtype(),
        Auto::Auto if optimizer == OptimizerDType::Bf16 => weights,
        Auto::Auto => DType::F32,
    };
    StateDTypes { weights, grads, optimizer }
}

fn recompute(level: RunRecompute) -> Recompute {
    match level {
        RunRecompute::None => Recompute::None,
        RunRecompute::Cheap => Recompute::Cheap,
        RunRecompute::Layer => Recompute::Layer,
    }
}

fn on_full(how: RunOnFull) -> OnFull {
    match how {
        RunOnFull::WorstCase => OnFull::WorstCase,
        RunOnFull::Preempt => OnFull::Preempt,
    }
}

impl PlanReport {
    /// The refusal, when the run does not fit: exit code 3.
    pub fn refuse(&self) -> Result<()> {
        self.plan.refusal().map_err(|error| {
            self.hints.iter().fold(error, |e, h| e.hint(format!("--set {}: {}", h.set, h.why)))
        })
    }

    /// Planned peak of the process: arena and everything else on the host.
    pub fn host_peak(&self) -> Bytes {
        self.plan.peak(Pool::Host).peak
    }

    /// The object that `plan --json` prints.
    pub fn to_json(&self) -> Value {
        let mut pools = serde_json::Map::new();
        for pool in Pool::ALL {
            let peak = self.plan.peak(pool);
            let phases: serde_json::Map<_, _> = Phase::ALL
                .iter()
                .map(|&p| (p.name().to_string(), json!(self.plan.in_phase(pool, p))))
                .collect();
            let entry = json!({
                "limit_bytes": self.plan.limits.of(pool).map(|l| l.bytes),
                "limit_source": self.plan.limits.of(pool).map(|l| l.source.clone()),
                "peak_bytes": peak.peak,
                "peak_phase": peak.phase.name(),
                "resident_bytes": peak.resident,
                "phase_bytes": phases,
            });
            pools.insert(pool.name().to_string(), entry);
        }
        json!({
            "fits": self.fits,
            "pools": pools,
            "arena_bytes": self.plan.arena_bytes(),
            "regions": self.plan.layout.regions,
            "resolved": self.resolved,
            "hints": self.hints,
        })
    }

    /// The table that `plan` prints.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut line = |s: String| {
            text.push_str(&s);
            text.push('\n');
        };
        line(format!("{:<24} {:>10}  {:<16} {:<6} {}", "region", "bytes", "phases", "dtype", "shape"));
        for r in &self.plan.layout.regions {
            let shape: Vec<String> = r.shape.iter().map(u64::to_string).collect();
            let phases = r.phases.names().join(" ");
            let bytes = r.bytes.to_string();
            line(format!(
                "{:<24} {:>10}  {:<16} {:<6} [{}]",
                r.name,
                bytes,
                phases,
                r.dtype.name(),
                shape.join(", ")
            ));
        }
        line(String::new());
        for pool in Pool::ALL {
            let peak = self.plan.peak(pool);
            if peak.peak == Bytes(0) {
                continue;
            }
            let limit = self.plan.limits.of(pool);
            let limit = limit.map_or("not limited".into(), |l| format!("limit {} ({})", l.bytes, l.source));
            let phases: Vec<String> =
                Phase::ALL.iter().map(|&p| format!("{} {}", p.name(), self.plan.in_phase(pool, p))).collect();
            line(format!(
                "{}: peak {} in {}, resident {}; {limit}",
                pool.name(),
                peak.peak,
                peak.phase.name(),
                peak.resident
            ));
            line(format!("  {}", phases.join(", ")));
        }
        line(format!("arena: {} ({} bytes)", self.plan.arena_bytes(), self.plan.arena_bytes().0));
        line(format!(
            "chosen: micro_batch_tokens {}, recompute {:?}, sequences_max {}, kv_blocks {}, threads {}",
            self.resolved.micro_batch_tokens,
            self.resolved.recompute,
            self.resolved.sequences_max,
            self.resolved.kv_blocks,
            self.resolved.threads
        ));
        line(if self.fits { "verdict: fits".into() } else { "verdict: does not fit".into() });
        text
    }
}

/// Reads `host=60GiB,device=139GiB` of `plan --limit`.
///
/// Errors: `bad-limit`; `not-built` for a device limit.
pub fn parse_limits(text: &str) -> Result<Limits> {
    let mut limits = Limits::default();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (pool, bytes) = part.split_once('=').ok_or_else(|| bad_limit(part))?;
        let limit = Some(Limit { bytes: Bytes::parse(bytes)?, source: "--limit".into() });
        match pool.trim() {
            "host" => limits.host = limit,
            "disk" => limits.disk = limit,
            "shm" => limits.shm = limit,
            "device" => {
                return Err(Error::usage(
                    "not-built",
                    "a plan for device memory needs the CUDA engine, which is not built yet",
                )
                .hint("plan with --limit host=... for the CPU"));
            }
            _ => return Err(bad_limit(part)),
        }
    }
    Ok(limits)
}

fn bad_limit(part: &str) -> Error {
    Error::usage("bad-limit", format!("`{part}` is not a limit")).hint("write --limit host=8GiB,disk=100GiB")
}
