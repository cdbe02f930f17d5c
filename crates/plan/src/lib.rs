//! The plan of a whole run: what `"auto"` becomes, whether it fits, and which changes would make it fit.

mod cost;
pub mod devices;
mod disk;
mod facts;
pub mod grid;
mod hints;
pub mod measured;
pub mod rates;
pub mod render;
mod roles;
mod search;
mod shape;
mod step_arrays;
pub mod svg;

pub use cost::StepCost;
pub use disk::{bytes_on_disk, checkpoint_bytes};
pub use facts::{
    DiskFacts, Facts, HostFacts, SAMPLES_KEPT, disk_facts, environments_image_bytes, image_bytes,
    line_bytes_max, rows_kept, samples_kept, staging_bytes, tokenizer_bytes,
};
pub use hints::Hint;
pub use render::{pool_lines, pools_json, region_lines};
pub use roles::{PassShape, RoleName, RoleShape, UpdateShape};
pub use shape::{
    LOAD_LINE_KINDS, Offload, RunShape, Training, kernel_bytes, kernel_row, process_rows, process_rows_of,
    training_rows,
};
pub use step_arrays::{StepArrays, step_bytes};

use plimsoll_base::{Bytes, DType, Error, Result};
use plimsoll_config::{Auto, ByteSize, RunFile};
use plimsoll_cuda::Held;
use plimsoll_device::DeviceKind;
use plimsoll_memory::host::Host;
use plimsoll_memory::{Limit, Limits, Plan, Pool};
use plimsoll_model::Recompute;
use plimsoll_reward::{RewardMemory, RewardSpec};
use plimsoll_train::OptimizerDType;
use rates::Rates;
use search::{Candidate, Planner, Purpose};
use serde::Serialize;
use std::path::Path;

/// A page: limits of containers are multiples of it.
const PAGE: u64 = 4096;
/// How the source of a limit ends that the run file sets.
const OF_RUN_FILE: &str = "of the run file";

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
    /// The most that the buffers between files and weights take.
    pub staging: Bytes,
    /// What lies in the device's host memory.
    pub offload: Offload,
}

/// A setting that the planner weighed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// The knobs.
    #[serde(flatten)]
    pub resolved: Resolved,
    /// Predicted seconds of a step.
    pub predicted: StepCost,
    /// Their sum.
    pub predicted_step_s: f64,
    /// Peak of the host pool.
    pub host_peak_bytes: Bytes,
}

/// What `"auto"` became, and what it would have become next.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AutoReport {
    /// The fastest setting that fits; the smallest where none does.
    pub chosen: Setting,
    /// The next one that fits, if the run file leaves a choice.
    pub runner_up: Option<Setting>,
    /// Where the predictions' rates come from.
    pub rates: String,
    /// What was given up to fit, where that changes what is computed.
    pub gave_up: Option<String>,
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
    /// How it was chosen.
    pub auto: AutoReport,
    /// True if every pool's peak is within its limit.
    pub fits: bool,
    /// Verified changes, when it does not fit.
    pub hints: Vec<Hint>,
    /// Where the rows of what a card's driver and libraries hold are from; empty on the CPU.
    pub held_source: String,
}

/// The smallest limits under which a run fits, every `"auto"` at its smallest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SmallestLimits {
    /// Host memory of all processes of the run and of the kernel for them, in whole pages.
    pub min_host_bytes: Bytes,
    /// Device memory; 0 on the CPU.
    pub min_device_bytes: Bytes,
}

/// Returns the smallest limits under which a run fits.
///
/// Errors: `size-overflow`.
pub fn smallest_limits(run: &RunFile, facts: &Facts) -> Result<SmallestLimits> {
    let (host, device) = with_planner(run, facts, &Limits::default(), Purpose::Train, |p| p.smallest(run))?;
    Ok(SmallestLimits { min_host_bytes: host.align_up(PAGE), min_device_bytes: device })
}

/// Requires that the longest sequence that may be sampled fits in a micro-batch of a given size.
///
/// Errors: `sequence-too-long`. A supervised run is checked as it packs: its longest prompt need not have the longest
/// completion.
pub fn check_micro_batch(run: &RunFile, facts: &Facts) -> Result<()> {
    let (prompt, response) = (facts.prompt_tokens, run.response_tokens_max());
    match run.train.micro_batch_tokens {
        Auto::Value(limit) if run.method.has_rollout() && (limit as usize) < prompt + response => {
            let words = match run.environment {
                None => format!("rollout.max_new_tokens = {response}"),
                Some(_) => format!("an episode of {response}"),
            };
            let message =
                format!("a prompt of {prompt} tokens and {words} exceed train.micro_batch_tokens = {limit}");
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
///
/// Errors: `size-overflow`.
pub fn plan_with(run: &RunFile, facts: &Facts, given: &Limits) -> Result<PlanReport> {
    let limits = limits_of(run, given);
    with_planner(run, facts, &limits, Purpose::Train, |planner| report(planner, run))
}

/// Plans a verb that samples and does not train.
///
/// Errors: `size-overflow`.
pub fn plan_sampling(run: &RunFile, facts: &Facts) -> Result<PlanReport> {
    let limits = limits_of(run, &Limits::default());
    with_planner(run, facts, &limits, Purpose::Sample, |planner| report(planner, run))
}

/// Predicted seconds of a step of `shape` with given rates.
pub fn predict_step(run: &RunFile, facts: &Facts, shape: &RunShape, rates: &Rates) -> StepCost {
    cost::predict(&search::work(run, facts), shape, rates)
}

fn with_planner<T>(
    run: &RunFile,
    facts: &Facts,
    limits: &Limits,
    purpose: Purpose,
    work: impl FnOnce(&Planner) -> Result<T>,
) -> Result<T> {
    let threads = run.run.threads.value().map_or_else(|| Host::this().threads(), |n| n.max(1) as usize);
    let kind = devices::kind_of(run, limits);
    let rates = match kind {
        DeviceKind::Cpu => Rates::of_this_machine(threads),
        DeviceKind::Cuda => Rates::of_a_card(),
    };
    let (held, source) = match kind {
        DeviceKind::Cpu => Default::default(),
        DeviceKind::Cuda => Held::known(),
    };
    let (rewards, held) = (reward_memory(run), (held, source.as_str()));
    work(&Planner { facts, kind, threads, limits, rates: &rates, purpose, rewards, held })
}

fn report(planner: &Planner, run: &RunFile) -> Result<PlanReport> {
    let solution = planner.solve(run)?;
    let hints = if solution.fits { Vec::new() } else { hints::of(planner, run)? };
    let runner_up = solution.runner_up.map(|(candidate, plan)| setting(&candidate, &plan));
    let auto = AutoReport {
        chosen: setting(&solution.chosen, &solution.plan),
        runner_up,
        rates: planner.rates.source.clone(),
        gave_up: gave_up(run, &solution.chosen.resolved, solution.fits),
    };
    let Candidate { shape, resolved, .. } = solution.chosen;
    let held_source = planner.held.1.to_string();
    Ok(PlanReport { plan: solution.plan, shape, resolved, auto, fits: solution.fits, hints, held_source })
}

fn setting(candidate: &Candidate, plan: &Plan) -> Setting {
    Setting {
        resolved: candidate.resolved,
        predicted: candidate.cost,
        predicted_step_s: candidate.cost.total_s(),
        host_peak_bytes: plan.peak(Pool::Host).peak,
    }
}

/// The words for a choice that rounds more than it would with more memory.
fn gave_up(run: &RunFile, resolved: &Resolved, fits: bool) -> Option<String> {
    let f32_weights = run.model_options.dtype.dtype() == DType::F32;
    if !fits || f32_weights {
        return None;
    }
    let states = match resolved.optimizer_dtype {
        OptimizerDType::F32 => None,
        OptimizerDType::Bf16 => {
            Some("optimizer_dtype is bf16 with stochastic rounding, because f32 states do not fit")
        }
        OptimizerDType::Int8 => {
            Some("optimizer_dtype is int8 with stochastic rounding, because bf16 states do not fit")
        }
    };
    if let Some(words) = states.filter(|_| run.train.optimizer_dtype.is_auto()) {
        return Some(words.into());
    }
    let f32_states = resolved.optimizer_dtype == OptimizerDType::F32;
    (f32_states && run.train.grad_dtype.is_auto() && resolved.grad_dtype == DType::Bf16)
        .then(|| "grad_dtype is bf16, because f32 gradients do not fit".into())
}

/// The limits of this machine for a run in `dir`. What earlier processes of the run have saved there is the run's own, and
/// counts as room.
pub fn machine_limits(dir: &Path) -> Limits {
    let mut limits = Host::this().limits(dir);
    let own = bytes_on_disk(dir);
    if let Some(disk) = limits.disk.as_mut().filter(|_| own > Bytes(0)) {
        disk.bytes = Bytes(disk.bytes.0.saturating_add(own.0));
        disk.source += &format!(", and {own} of the run's own");
    }
    limits
}

/// The limits of a run: given, from the run file, or read from this machine.
pub fn limits_of(run: &RunFile, given: &Limits) -> Limits {
    let mut limits = given.clone();
    let here = machine_limits(Path::new(run.run.dir.as_deref().unwrap_or("runs/out")));
    let machine = limits.host.take().or(here.host);
    (limits.disk, limits.shm) = (limits.disk.or(here.disk), limits.shm.or(here.shm));
    limits.host = match (run.memory.host, machine) {
        (Auto::Value(ByteSize(bytes)), machine) if machine.as_ref().is_none_or(|m| bytes <= m.bytes) => {
            Some(Limit { bytes, source: format!("memory.host {OF_RUN_FILE}") })
        }
        (_, machine) => machine,
    };
    if devices::kind_of(run, &limits) == DeviceKind::Cuda {
        let card = limits.device.take().or_else(devices::device_limit);
        limits.device = match (run.memory.device, card) {
            (Auto::Value(ByteSize(bytes)), card) if card.as_ref().is_none_or(|c| bytes <= c.bytes) => {
                Some(Limit { bytes, source: format!("memory.device {OF_RUN_FILE}") })
            }
            (_, card) => card,
        };
    }
    limits
}

/// What the rewards take of the host, at most: processes of other people's code, threads, requests and replies.
fn reward_memory(run: &RunFile) -> RewardMemory {
    let specs = plimsoll_config::reward_specs(&run.reward, &run.data.answer_column);
    specs.iter().map(RewardSpec::memory).fold(RewardMemory::default(), RewardMemory::with)
}

/// Reads `host=60GiB,device=139GiB` of `plan --limit`.
///
/// Errors: `bad-limit`.
pub fn parse_limits(text: &str) -> Result<Limits> {
    let mut limits = Limits::default();
    for part in text.split(',') {
        let bad = |why: &str| {
            Error::usage("bad-limit", format!("`{part}` {why}")).hint("write --limit host=8GiB,disk=100GiB")
        };
        let (pool, bytes) = part.split_once('=').ok_or_else(|| bad("is not a limit"))?;
        let limit = match pool.trim() {
            "host" => &mut limits.host,
            "disk" => &mut limits.disk,
            "shm" => &mut limits.shm,
            "device" => &mut limits.device,
            _ => return Err(bad("is not a limit")),
        };
        let before = limit.replace(Limit { bytes: Bytes::parse(bytes)?, source: "--limit".into() });
        if before.is_some() {
            return Err(bad("limits a pool for the second time"));
        }
    }
    Ok(limits)
}
