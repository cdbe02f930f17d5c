//! Plans a run: the search, its report, and the smallest limits.

use crate::cost::{self, StepCost};
use crate::evaluations::Evaluations;
use crate::facts::Facts;
use crate::limits::{is_elsewhere, limits_of, limits_of_card};
use crate::planner::{Planner, Purpose};
use crate::report::{AutoReport, PlanReport, Resolved, Setting, SmallestLimits};
use crate::search::Candidate;
use crate::shape::RunShape;
use crate::work::work;
use crate::{devices, drafts, hints, tables};
use plimsoll_arch::ModelSpec;
use plimsoll_base::{DType, Error, Result};
use plimsoll_config::{Auto, Positions, RunSpec, SamplerSpec};
use plimsoll_device::FP8_UNIT;
use plimsoll_devices::{DeviceRow, Rates};
use plimsoll_memory::{Limits, Plan, Pool, host::Host};
use plimsoll_model::Fp8Table;
use plimsoll_reward::{RewardMemory, RewardSpec};
use plimsoll_train::OptimizerDType;

/// Page size: limits of containers are multiples of it.
const PAGE: u64 = 4096;

/// Returns the smallest limits under which a run fits.
///
/// Errors: `size-overflow`.
pub fn smallest_limits(run: &RunSpec, facts: &Facts) -> Result<SmallestLimits> {
    let (host, device) = with_planner(run, facts, &Limits::default(), Purpose::Train, |p| p.smallest(run))?;
    Ok(SmallestLimits { min_host_bytes: host.align_up(PAGE), min_device_bytes: device })
}

/// Requires that the longest sequence has positions in the model and fits in a micro-batch of a given size.
///
/// Errors: `positions-beyond-model`, `sequence-too-long`. Supervised runs are checked when they are packed.
pub fn check_lengths(run: &RunSpec, facts: &Facts) -> Result<()> {
    check_positions(run, facts)?;
    let (prompt, response) = (facts.prompt_tokens, run.response_tokens_max());
    match run.train().micro_batch_tokens {
        Auto::Value(limit) if run.samples() && (limit as usize) < prompt + response => {
            let words = match run.environment() {
                None => format!("rollout.max_new_tokens = {response}"),
                Some(_) => format!("an episode of {response}"),
            };
            let message =
                format!("a prompt of {prompt} tokens and {words} exceed train.micro_batch_tokens = {limit}");
            Err(Error::usage("sequence-too-long", message)
                .hint("set train.micro_batch_tokens = \"auto\"")
                .hint(format!(
                    "set train.micro_batch_tokens to at least {}, or {}",
                    prompt + response,
                    shorter(run)
                )))
        }
        _ => Ok(()),
    }
}

/// Requires that the model was trained for the longest sequence's positions, unless the run file extends them.
///
/// Errors: `positions-beyond-model`.
pub fn check_positions(run: &RunSpec, facts: &Facts) -> Result<()> {
    let (longest, known) = (longest_sequence(run, facts), facts.spec.max_positions as usize);
    if longest <= known || run.model_options.positions == Positions::Extend {
        return Ok(());
    }
    let message = format!("sequences of up to {longest} tokens, and the model has {known} positions");
    let (prompt, response) = (facts.prompt_tokens, longest - facts.prompt_tokens.min(longest));
    let what = if run.environment().is_some() { "episode after it" } else { "response" };
    Err(Error::usage("positions-beyond-model", message)
        .fact(format!("longest prompt {prompt}, longest {what} {response}"))
        .hint(format!("{}, or set data.prompt_tokens_max and data.overlong", shorter(run)))
        .hint("set model_options.positions = \"extend\" to go beyond what the model was trained for"))
}

/// Returns the keys that make what follows a prompt shorter.
fn shorter(run: &RunSpec) -> &'static str {
    match run.environment() {
        None => "lower rollout.max_new_tokens",
        Some(_) => {
            "set environment.episode_tokens_max, or lower environment.turns_max or environment.turn_tokens_max"
        }
    }
}

/// Returns the tokens of the longest sequence of the run. In a supervised run the longest prompt need not have the
/// longest completion, so the longer of the two counts.
pub fn longest_sequence(run: &RunSpec, facts: &Facts) -> usize {
    if run.samples() {
        facts.prompt_tokens + run.response_tokens_max()
    } else {
        facts.prompt_tokens.max(facts.completion_tokens)
    }
}

/// Plans a run with known facts. Limits absent in `given` come from the run file, then from this machine.
///
/// Errors: `size-overflow`.
pub fn plan_with(run: &RunSpec, facts: &Facts, given: &Limits) -> Result<PlanReport> {
    with_planner(run, facts, &limits_of_ranks(run, facts, given), Purpose::Train, |planner| {
        report(planner, run)
    })
}

/// Plans a run without searching for changes that would make it fit.
///
/// Errors: `size-overflow`.
pub(crate) fn plan_without_hints(run: &RunSpec, facts: &Facts, given: &Limits) -> Result<PlanReport> {
    with_planner(run, facts, &limits_of_ranks(run, facts, given), Purpose::Train, |planner| {
        bare(planner, run)
    })
}

/// Returns the limits of each rank on the machine that the facts name.
pub(crate) fn limits_of_ranks(run: &RunSpec, facts: &Facts, given: &Limits) -> Limits {
    let mut given = given.clone();
    if let Some(card) = &facts.card {
        given.device = given.device.or(limits_of_card(card).device);
    }
    limits_of(run, &given).of_each(facts.hosts.near)
}

/// Plans a command that samples but does not train.
///
/// Errors: `size-overflow`.
pub fn plan_sampling(run: &RunSpec, facts: &Facts) -> Result<PlanReport> {
    let limits = limits_of(run, &Limits::default());
    with_planner(run, facts, &limits, Purpose::Sample, |planner| report(planner, run))
}

/// Predicts the seconds of a step of `shape` at given rates.
pub fn predict_step(run: &RunSpec, facts: &Facts, shape: &RunShape, rates: &Rates) -> StepCost {
    cost::predict(&work(run, facts), shape, rates)
}

/// Threads of a run on a card of another machine, unless the run file has them: as many as large hosts have processors.
/// They take 0.3 MiB each, and no time of a card depends on them.
const THREADS_ELSEWHERE: usize = 256;

pub(crate) fn with_planner<T>(
    run: &RunSpec,
    facts: &Facts,
    limits: &Limits,
    purpose: Purpose,
    work: impl FnOnce(&Planner) -> Result<T>,
) -> Result<T> {
    let cores = Host::this().threads();
    let row = devices::row_of(run, limits);
    check_keys(facts, row)?;
    check_fp8(facts, row, run)?;
    drafts::check(run, facts)?;
    // How many processors stand next to a card of another machine, this one does not know.
    let auto = if row.has_own_memory() && is_elsewhere(limits) { THREADS_ELSEWHERE } else { cores };
    let threads = run.run.threads.value().map_or(auto, |n| n.max(1) as usize);
    if !row.has_own_memory() {
        // Its rates are those of an instruction path, which the environment may name wrongly.
        (row.probe)()?;
    }
    // Threads that wait for a core add nothing. Another machine has as many cores as its run file has threads.
    let at_work = if is_elsewhere(limits) { threads } else { threads.min(cores) };
    let rates = match facts.card.filter(|_| row.has_own_memory()) {
        Some(card) => card.rates(),
        None => (row.rates)(at_work),
    };
    // Ranks on one host share its cores, unless the run file gives each its own.
    let own_threads = run.run.threads.is_auto() && !row.has_own_memory() && facts.hosts.near > 1;
    let of_rank = own_threads.then(|| (row.rates)((at_work / facts.hosts.near).max(1)));
    let of_rank = of_rank.as_ref().unwrap_or(&rates);
    let (held, source) = facts.held(row, run);
    let (rewards, held) = (reward_memory(run), (held, source.as_str()));
    tables::keeping(|| {
        work(&Planner { facts, row, threads, limits, rates: &rates, of_rank, purpose, rewards, held })
    })
}

pub(crate) fn report(planner: &Planner, run: &RunSpec) -> Result<PlanReport> {
    let report = bare(planner, run)?;
    let hints = if report.fits { Vec::new() } else { hints::of(planner, run)? };
    Ok(PlanReport { hints, ..report })
}

/// Requires that the device has attention over keys as wide as those of every model, that all ranks train a tower that
/// learns, and that images of tools are seen by one rank.
///
/// Errors: `model-unsupported`, `images-not-built`.
fn check_keys(facts: &Facts, row: &DeviceRow) -> Result<()> {
    let some_sample = facts.trainers.ranks < facts.hosts.ranks;
    if facts.sight.as_ref().is_some_and(|sight| sight.trains) && some_sample {
        let message = "ranks that only sample get no weights of a tower that is trained";
        return Err(Error::usage("images-not-built", message)
            .hint("set model_options.tower = \"frozen\", or remove async.rollout_ranks"));
    }
    if facts.sight.as_ref().is_some_and(|sight| sight.answers > 0) && facts.hosts.ranks > 1 {
        return Err(Error::usage(
            "images-not-built",
            "images that tools return are seen on one rank, and there are more",
        )
        .hint("set environment.images_max = 0, or run.ranks = 1"));
    }
    let all = std::iter::once(&facts.spec).chain(facts.models.values());
    let mut widths = all.flat_map(ModelSpec::attentions).map(|attention| attention.head_dim);
    let Some(width) = widths.find(|width| !(row.takes_head_dim)(*width as usize)) else { return Ok(()) };
    let message = format!(
        "attention over keys of {width} elements is not built for run.device = \"{}\"",
        row.kind.name
    );
    Err(Error::usage("model-unsupported", message)
        .fact("heads, or latents of keys and values, are as wide")
        .hint("set run.device = \"cpu\""))
}

/// Requires that a model whose products are to be rounded has some, at most one adapter, and a device that can.
///
/// Errors: `fp8-unsupported`, `not-built`.
fn check_fp8(facts: &Facts, row: &DeviceRow, run: &RunSpec) -> Result<()> {
    if !run.computes_fp8() {
        return Ok(());
    }
    if run.lora.as_ref().is_some_and(|lora| lora.slots > 0) {
        let message = "adapters side by side on products that are rounded to eight bits are not built yet";
        return Err(Error::usage("not-built", message)
            .hint("set model_options.compute = \"full\": with its adapters it is then another policy"));
    }
    (row.takes_fp8)(run.model_options.dtype.dtype())?;
    if Fp8Table::new(&facts.spec, row.kind, run.model_options.dtype.dtype()).is_empty() {
        let message = format!("no product of this model has inputs and outputs in whole units of {FP8_UNIT}");
        return Err(Error::usage("fp8-unsupported", message)
            .fact("products of experts and of linear attention's gates are not rounded")
            .hint("remove model_options.compute"));
    }
    Ok(())
}

/// Returns the plan without changes that would make the run fit.
pub(crate) fn bare(planner: &Planner, run: &RunSpec) -> Result<PlanReport> {
    let solution = planner.solve(run)?;
    let runner_up = solution.runner_up.map(|(candidate, plan)| setting(&candidate, &plan));
    let auto = AutoReport {
        chosen: setting(&solution.chosen, &solution.plan),
        runner_up,
        rates: planner.rates.source.clone(),
        gave_up: gave_up(run, &solution.chosen.resolved, solution.fits),
    };
    let Candidate { shape, resolved, .. } = solution.chosen;
    let evaluations = match planner.purpose {
        Purpose::Train => Evaluations::of(run, planner.facts, &shape, planner.of_rank),
        Purpose::Sample => Evaluations::default(),
    };
    let held_source = planner.held.1.to_string();
    let steps = if planner.purpose == Purpose::Train { run.train().steps } else { 0 };
    Ok(PlanReport {
        plan: solution.plan,
        shape,
        resolved,
        auto,
        fits: solution.fits,
        hints: Vec::new(),
        steps,
        evaluations,
        assumed: Vec::new(),
        not_checked: Vec::new(),
        unread: Vec::new(),
        misspelt: Vec::new(),
        warnings: threads_without_cores(planner.threads, planner.limits).into_iter().collect(),
        held_source,
    })
}

/// Returns the warning for more threads than cores, unless the limits are those of another machine.
pub fn threads_without_cores(threads: usize, limits: &Limits) -> Option<String> {
    let cores = Host::this().threads();
    (threads > cores && !is_elsewhere(limits)).then(|| {
        format!("run.threads = {threads}, and this machine has {cores} cores: threads wait for one another")
    })
}

fn setting(candidate: &Candidate, plan: &Plan) -> Setting {
    Setting {
        resolved: candidate.resolved,
        predicted: candidate.cost,
        predicted_step_s: candidate.cost.total_s(),
        host_peak_bytes: plan.peak(Pool::Host).peak,
    }
}

/// Returns the note for a choice that rounds more than it would with more memory.
fn gave_up(run: &RunSpec, resolved: &Resolved, fits: bool) -> Option<String> {
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
    let train = &run.trains.training()?.train;
    if let Some(words) = states.filter(|_| train.optimizer_dtype.is_auto()) {
        return Some(words.into());
    }
    let f32_states = resolved.optimizer_dtype == OptimizerDType::F32;
    (f32_states && train.grad_dtype.is_auto() && resolved.grad_dtype == DType::Bf16)
        .then(|| "grad_dtype is bf16, because f32 gradients do not fit".into())
}

/// Returns the largest host memory of the rewards: worker processes, threads, requests and replies.
fn reward_memory(run: &SamplerSpec) -> RewardMemory {
    run.rewards.iter().map(RewardSpec::memory).fold(RewardMemory::default(), RewardMemory::with)
}
