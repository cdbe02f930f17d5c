//! The search for `"auto"`: the settings that a run file leaves open, the fastest that fits, the runner-up, and the
//! smallest.
//!
//! A setting is a point on axes; the choices of an axis are ordered from the most memory to the least. All points are
//! predicted first, which costs nothing, then laid out in order of predicted time until one fits. A point that takes
//! at least as much on every axis as one that did not fit is never laid out. A new knob is one more axis.

use super::cost::{StepCost, predict};
use super::report::Resolved;
use crate::facts::Facts;
use crate::facts::HostFacts;
use crate::lora::{CriticAdapter, lora, merges};
use crate::role_name::RoleName;
use crate::shape::{Offload, RunShape, Scoring, Training};
use crate::work::{check_sizes, response_tokens, work};
use plimsoll_base::{Bytes, DType, Error, Result};
use plimsoll_config::{
    Auto, ByteSize, GradientWire, LearnsFrom, Offload as RunOffload, OnFull as RunOnFull,
    OptimizerDtype as RunOptimizer, Recompute as RunRecompute, RunSpec,
};
use plimsoll_device::Held;
use plimsoll_devices::{DeviceRow, Rates};
use plimsoll_files::Head;
use plimsoll_memory::{Limits, Plan, Pool};
use plimsoll_model::{Recompute, STAGING_BYTES_MIN, Target};
use plimsoll_reward::RewardMemory;
use plimsoll_rollout::OnFull;
use plimsoll_train::{Cut, Heads, OptimizerDType, PackLimits, Packing, StateDTypes, Summing};

/// Micro-batches that `"auto"` chooses from: powers of two.
const MICRO_BATCH: std::ops::RangeInclusive<usize> = 256..=16_384;
/// Largest number of sequences in flight that `"auto"` chooses.
const SEQUENCES_MAX: usize = 512;
/// Staging buffers that `"auto"` chooses from.
const STAGING_MIB: [u64; 4] = [64, 16, 4, 1];
/// Predictions within this factor are equal: the model is no more exact.
const EQUAL: f64 = 1.01;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Steps with updates.
    Train,
    /// Responses only: a command that does not train.
    Sample,
}

#[derive(Clone, Copy)]
pub(crate) struct Planner<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) row: &'static DeviceRow,
    pub(crate) threads: usize,
    pub(crate) limits: &'a Limits,
    pub(crate) rates: &'a Rates,
    /// Rates of one of several ranks, which share the host's cores.
    pub(crate) of_rank: &'a Rates,
    pub(crate) purpose: Purpose,
    pub(crate) rewards: RewardMemory,
    /// Memory of a card's driver and libraries, with adapters apart and merged, and the origin of the numbers.
    pub(crate) held: ([Held; 2], &'a str),
}

/// A setting and everything that follows from it.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) shape: RunShape,
    pub(crate) resolved: Resolved,
    pub(crate) cost: StepCost,
    rank: Rank,
}

/// What ranks a setting. Only this is kept of all settings; those that are tried are built again.
#[derive(Clone, Copy, Debug)]
struct Rank {
    seconds: f64,
    point: Point,
}

impl Rank {
    /// True if it computes the same result as the fastest one and is predicted to be as fast.
    fn is_as_fast(self, fastest: Rank) -> bool {
        self.point[PRECISION] == fastest.point[PRECISION] && self.seconds <= EQUAL * fastest.seconds
    }
}

/// The fastest setting that fits and the runner-up; if none fits, the smallest.
pub(crate) struct Solution {
    pub(crate) chosen: Candidate,
    pub(crate) runner_up: Option<(Candidate, Plan)>,
    pub(crate) plan: Plan,
    pub(crate) fits: bool,
}

/// The index of a setting on each axis: precision, recompute, micro-batch, sequences, staging, offload, merge.
type Point = [usize; 7];
/// The axis that changes the result: a later choice is taken only if no earlier one fits.
const PRECISION: usize = 0;
/// The axis whose last choice moves bytes to another pool, on a card.
const RECOMPUTE: usize = 1;
/// The axis without effect on a step.
const STAGING: usize = 4;
/// The axis that moves bytes between pools: its choices are ordered from the most device memory to the least.
const OFFLOAD: usize = 5;

/// The choices of every knob, each from the most memory to the least; a single one if the run file sets it.
struct Axes {
    precision: Vec<(OptimizerDType, DType)>,
    recompute: Vec<Recompute>,
    micro_batch_tokens: Vec<usize>,
    sequences: Vec<usize>,
    staging: Vec<Bytes>,
    offload: Vec<Offload>,
    merge: Vec<bool>,
}

/// One choice of every knob.
struct Knobs {
    precision: (OptimizerDType, DType),
    recompute: Recompute,
    micro_batch_tokens: usize,
    sequences: usize,
    staging: Bytes,
    offload: Offload,
    merge: bool,
}

impl Axes {
    fn lengths(&self) -> Point {
        let Axes { precision, recompute, micro_batch_tokens, sequences, staging, offload, merge } = self;
        let (batch, staging) = (micro_batch_tokens.len(), staging.len());
        [precision.len(), recompute.len(), batch, sequences.len(), staging, offload.len(), merge.len()]
    }

    fn at(&self, point: Point) -> Knobs {
        Knobs {
            precision: self.precision[point[0]],
            recompute: self.recompute[point[1]],
            micro_batch_tokens: self.micro_batch_tokens[point[2]],
            sequences: self.sequences[point[3]],
            staging: self.staging[point[STAGING]],
            offload: self.offload[point[OFFLOAD]],
            merge: self.merge[point[6]],
        }
    }

    /// Returns all points in the order of their indices: the first takes the most memory.
    fn points(&self) -> impl Iterator<Item = Point> {
        let lengths = self.lengths();
        let count: usize = lengths.iter().product();
        (0..count).map(move |mut n| {
            let mut point = [0; 7];
            for axis in (0..lengths.len()).rev() {
                point[axis] = n % lengths[axis];
                n /= lengths[axis];
            }
            point
        })
    }

    /// True if layer inputs are offloaded to another pool.
    fn moves_inputs(&self, point: Point) -> bool {
        self.recompute[point[RECOMPUTE]] == Recompute::Offload
    }

    /// True if `point` takes at least the memory of `other` on every axis, in every pool.
    fn takes_at_least(&self, point: Point, other: Point) -> bool {
        point[OFFLOAD] == other[OFFLOAD]
            && self.moves_inputs(point) == self.moves_inputs(other)
            && point.iter().zip(other).all(|(&at, other)| at <= other)
    }

    /// Returns the point that takes the least memory.
    fn smallest(&self) -> Point {
        self.lengths().map(|length| length - 1)
    }
}

impl Planner<'_> {
    /// Returns the fastest setting that fits and the runner-up; the smallest if none fits.
    ///
    /// Predictions within `EQUAL` of the fastest count as equally fast; of these, the one with the least memory wins.
    pub(crate) fn solve(&self, run: &RunSpec) -> Result<Solution> {
        check_sizes(run, self.facts)?;
        let axes = self.axes(run);
        let ranks = self.facts.share.ranks;
        if self.is_chained(run) && run.memory.offloads(RunOffload::Optimizer) {
            let (why, instead) = match ranks {
                1 => {
                    let (key, instead) = match run.train.gradient_wire {
                        GradientWire::Bf16 => (
                            "train.gradient_wire = \"bf16\"".to_string(),
                            "set train.gradient_wire = \"f32\"",
                        ),
                        GradientWire::F32 => {
                            (format!("train.fold = {}", run.train.fold), "set train.fold = 1")
                        }
                    };
                    (format!("{key}: states lie where their sums are"), instead)
                }
                ranks => (format!("{ranks} ranks: each has its part of the states alone"), "plan one rank"),
            };
            return Err(Error::usage("ranks-method", format!("memory.offload = [\"optimizer\"] with {why}"))
                .hint(format!("set memory.offload = [] or [\"reference\"], or {instead}")));
        }
        // If the smallest does not fit, no other is tried.
        let (chosen, plan) = self.least(run, &axes)?;
        if !plan.fits() {
            return Ok(Solution { chosen, plan, runner_up: None, fits: false });
        }
        let mut too_large: Vec<Point> = Vec::new();
        let mut found: Vec<(Candidate, Plan)> = Vec::new();
        for rank in self.ranked(run, &axes)? {
            if let Some(fastest) = found.first().map(|(candidate, _)| candidate.rank) {
                if !rank.is_as_fast(fastest) && found.len() >= 2 {
                    break;
                }
                if rank.point[STAGING] != fastest.point[STAGING] {
                    continue;
                }
                // What fits in place stays there, even if the prediction shows no difference.
                let moves_more = rank.point[OFFLOAD] > fastest.point[OFFLOAD]
                    || axes.moves_inputs(rank.point) && !axes.moves_inputs(fastest.point);
                if rank.is_as_fast(fastest) && moves_more {
                    continue;
                }
            }
            if too_large.iter().any(|&failed| axes.takes_at_least(rank.point, failed)) {
                continue;
            }
            let candidate = self.candidate(run, &axes, rank.point)?;
            let plan = self.plan(&candidate.shape)?;
            match plan.fits() {
                true => found.push((candidate, plan)),
                false => too_large.push(rank.point),
            }
        }
        Ok(choose(found).unwrap_or(Solution { chosen, plan, runner_up: None, fits: true }))
    }

    /// Returns the predicted time of the fastest setting, whatever the limits.
    pub(crate) fn fastest_s(&self, run: &RunSpec) -> Result<f64> {
        Ok(self.ranked(run, &self.axes(run))?.first().map_or(0.0, |first| first.seconds))
    }

    /// Returns the least host and device memory under which the run fits unchanged.
    pub(crate) fn smallest(&self, run: &RunSpec) -> Result<(Bytes, Bytes)> {
        check_sizes(run, self.facts)?;
        let (_, plan) = self.least(run, &self.axes(run))?;
        let host = plan.peak(Pool::Host).peak + plan.peak(Pool::Pinned).peak;
        Ok((host, plan.peak(Pool::Device).peak))
    }

    /// Returns the setting that exceeds the limits least, then takes the least memory: offloading uses bytes elsewhere.
    fn least(&self, run: &RunSpec, axes: &Axes) -> Result<(Candidate, Plan)> {
        let mut least: Option<((u64, u64), Candidate, Plan)> = None;
        let smallest = axes.smallest();
        let first = if self.is_chained(run) { 0 } else { smallest[OFFLOAD] };
        let last = smallest[RECOMPUTE];
        let levels = last - usize::from(axes.moves_inputs(smallest) && last > 0)..=last;
        let points = (first..axes.offload.len()).flat_map(|index| levels.clone().map(move |l| (index, l)));
        for (index, level) in points {
            let mut point = smallest;
            (point[OFFLOAD], point[RECOMPUTE]) = (index, level);
            let candidate = self.candidate(run, axes, point)?;
            let plan = self.plan(&candidate.shape)?;
            let excess = Pool::ALL.map(|pool| plan.excess(pool).0).iter().sum();
            let bytes = (excess, memory(&plan));
            if least.as_ref().is_none_or(|(least, ..)| bytes < *least) {
                least = Some((bytes, candidate, plan));
            }
        }
        let (_, candidate, plan) = least.expect("an axis has a choice");
        Ok((candidate, plan))
    }

    /// Returns every setting with its prediction, by precision, then ZeRO stage, then time, then the most memory first.
    fn ranked(&self, run: &RunSpec, axes: &Axes) -> Result<Vec<Rank>> {
        let of = |point| Ok(self.candidate(run, axes, point)?.rank);
        let mut all: Vec<Rank> = axes.points().map(of).collect::<Result<_>>()?;
        all.sort_by(|a, b| {
            let precision = a.point[PRECISION].cmp(&b.point[PRECISION]);
            let stage = |rank: &Rank| axes.offload[rank.point[OFFLOAD]].weights;
            precision
                .then(stage(a).cmp(&stage(b)))
                .then(a.seconds.total_cmp(&b.seconds))
                .then(a.point.cmp(&b.point))
        });
        Ok(all)
    }

    fn plan(&self, shape: &RunShape) -> Result<Plan> {
        let plan = Plan { layout: shape.layout()?, limits: self.limits.clone() };
        plan.check_sum()?;
        Ok(plan)
    }

    fn candidate(&self, run: &RunSpec, axes: &Axes, point: Point) -> Result<Candidate> {
        let (shape, resolved) = self.shape(run, &axes.at(point));
        let work = work(run, self.facts);
        let cost = predict(&work, &shape, self.of_rank);
        // Ranks choose as one rank would: each then computes the same bits.
        let alone = if work.ranks > 1.0 { predict(&work.of_one_rank(), &shape, self.rates) } else { cost };
        let rank = Rank { seconds: alone.total_s(), point };
        Ok(Candidate { shape, resolved, cost, rank })
    }

    fn axes(&self, run: &RunSpec) -> Axes {
        Axes {
            precision: match run.adapts_all() {
                true => vec![(OptimizerDType::F32, DType::F32)],
                false => precisions(run),
            },
            recompute: match run.train.recompute {
                Auto::Value(level) => vec![recompute(level)],
                // Without its own memory, offloading layer inputs would not free any.
                Auto::Auto if !self.row.has_own_memory() => {
                    vec![Recompute::None, Recompute::Cheap, Recompute::Layer]
                }
                Auto::Auto => vec![Recompute::None, Recompute::Cheap, Recompute::Layer, Recompute::Offload],
            },
            micro_batch_tokens: self.micro_batches(run),
            sequences: self.sequences(run),
            staging: match run.memory.staging {
                Auto::Value(ByteSize(bytes)) => vec![bytes],
                Auto::Auto => STAGING_MIB.map(Bytes::mib).to_vec(),
            },
            offload: self.offloads(run),
            merge: merges(run),
        }
    }

    /// Returns what several ranks may shard: the reference, and at stage 3 the weights that they train.
    fn spreads(&self, run: &RunSpec, reference: bool) -> Vec<Offload> {
        let of = |reference: bool, weights: bool| Offload { optimizer: false, reference, weights };
        let stage_2 = match &run.memory.offload {
            Auto::Value(list) => vec![of(reference && list.contains(&RunOffload::Reference), false)],
            Auto::Auto if reference => vec![of(false, false), of(true, false)],
            Auto::Auto => vec![of(false, false)],
        };
        let stage_3 = of(reference, true);
        match run.run.zero_stage {
            _ if run.lora.is_some() => stage_2,
            Auto::Value(3) => vec![stage_3],
            Auto::Value(_) => stage_2,
            Auto::Auto => [stage_2, vec![stage_3]].concat(),
        }
    }

    fn summing(&self, run: &RunSpec) -> Summing {
        let fold = run.train.fold as usize;
        Summing { partial: partial_of(run), fold, near: self.facts.hosts.folds(fold) }
    }

    /// Returns whether each micro-batch's gradient is formed by itself; states then stay with the sums.
    fn is_chained(&self, run: &RunSpec) -> bool {
        self.facts.share.ranks > 1 || partial_of(run).is_some() || run.train.fold > 1
    }

    /// Returns what `"auto"` may offload to host memory: nothing if that is the device's own.
    fn offloads(&self, run: &RunSpec) -> Vec<Offload> {
        let of = |optimizer: bool, reference: bool| Offload { optimizer, reference, weights: false };
        // States of adapters are small and stay, and their reference is the model itself.
        let is_whole = run.lora.is_none();
        let (states, reference) = (!run.adapts_all(), run.reference && is_whole);
        if self.facts.share.ranks > 1 {
            return self.spreads(run, reference);
        }
        let mut offloads = match &run.memory.offload {
            Auto::Value(list) => {
                let lies = |what| list.contains(&what);
                vec![of(states && lies(RunOffload::Optimizer), reference && lies(RunOffload::Reference))]
            }
            Auto::Auto if !self.row.has_own_memory() || run.lora.is_some() => vec![of(false, false)],
            Auto::Auto if reference => {
                vec![of(false, false), of(false, true), of(true, false), of(true, true)]
            }
            Auto::Auto => vec![of(false, false), of(true, false)],
        };
        offloads.retain(|offload| !offload.optimizer || !self.is_chained(run));
        offloads
    }

    fn micro_batches(&self, run: &RunSpec) -> Vec<usize> {
        let Auto::Auto = run.train.micro_batch_tokens else {
            return vec![run.train.micro_batch_tokens.or(1) as usize];
        };
        // Both halves of a pair are in one micro-batch.
        let responses = if run.needs.learns_from == LearnsFrom::Pairs { 2 } else { 1 };
        let longest = self.facts.prompt_tokens + responses * response_tokens(run, self.facts);
        let useful = self.step_rows(run).next_power_of_two().max(*MICRO_BATCH.start());
        let least = longest.next_power_of_two().max(*MICRO_BATCH.start());
        let most = useful.min(*MICRO_BATCH.end()).max(least);
        std::iter::successors(Some(most), |&n| (n / 2 >= least).then_some(n / 2)).collect()
    }

    fn sequences(&self, run: &RunSpec) -> Vec<usize> {
        match run.rollout.sequences_max {
            Auto::Value(n) => vec![n.max(1) as usize],
            Auto::Auto => {
                let most = self.samples(run).min(SEQUENCES_MAX);
                std::iter::successors(Some(most), |&n| (n > 1).then_some(n / 2)).collect()
            }
        }
    }

    /// Returns the samples of one engine request: of a rollout, or of a slice of an evaluation.
    pub(crate) fn samples(&self, run: &RunSpec) -> usize {
        if run.needs.scores {
            return 1; // Nothing is sampled.
        }
        let rollout = run.prompts_per_rollout() as usize * run.rollout.group_size as usize;
        let step = if run.samples() { rollout } else { 0 };
        // The samples of one prompt stay together.
        let samples = run.eval.samples.max(1) as usize;
        let eval = self.facts.eval_prompts.saturating_mul(samples).min(samples.max(256));
        step.max(eval).max(1).saturating_mul(run.branches_max())
    }

    /// Returns the rows of a step's forward passes.
    fn step_rows(&self, run: &RunSpec) -> usize {
        let prompts = run.rollout.prompts_per_step as usize;
        prompts * self.facts.prompt_tokens
            + run.sequences_per_step() as usize * response_tokens(run, self.facts)
    }

    fn target(&self) -> Target {
        Target { kind: self.row.kind, pool: self.row.pool, threads: self.threads }
    }

    fn training(&self, run: &RunSpec, weights: DType, knobs: &Knobs) -> Training {
        let (optimizer, grads) = knobs.precision;
        let sequences = run.sequences_per_step() as usize * run.branches_max();
        // Each agent request has its own prompt.
        let prompts = if run.plays_agents() { sequences } else { run.rollout.prompts_per_step as usize };
        let reference = run.reference;
        // A command has no steps: it scores as many at once as it samples at once.
        let packed = match self.purpose {
            Purpose::Train => (prompts, sequences),
            Purpose::Sample => (self.samples(run), self.samples(run)),
        };
        let segments = PackLimits::segments_of(knobs.micro_batch_tokens, packed.0, packed.1);
        Training {
            dtypes: StateDTypes { weights, grads, summing: self.summing(run), optimizer },
            pack: PackLimits {
                micro_batch_tokens: knobs.micro_batch_tokens,
                prompt_tokens: self.facts.prompt_tokens,
                // A pair of any shape fits: its three segments, and the slots lost at the ends of its blocks.
                segments: if run.needs.learns_from == LearnsFrom::Pairs { segments.max(5) } else { segments },
                caches: self.pass_caches(),
            },
            packing: Packing {
                heads: if run.needs.scores { Heads::End } else { Heads::Tokens },
                whole_groups: run.needs.learns_from == LearnsFrom::Pairs,
            },
            share: self.facts.share,
            hosts: self.facts.hosts,
            exchange: run.run.exchange,
            cut: match run.train.cut_multiple {
                Auto::Auto => Cut::auto(self.row.cut_rows),
                Auto::Value(multiple) => Cut::multiple(multiple as usize),
            },
            recompute: knobs.recompute,
            reference,
            critic: self.facts.models.get(RoleName::Critic).copied(),
            critic_adapter: CriticAdapter::of(run),
            teacher: self.facts.models.get(RoleName::Teacher).copied(),
            teacher_quantize: run.distill.as_ref().and_then(|distill| distill.quantize),
            offload: knobs.offload,
            sequences,
            response_tokens: response_tokens(run, self.facts),
            policy_lag: if run.samples() { run.rollout.policy_lag as usize } else { 0 },
            holds_samples: run.holds_samples(),
            corrects: run.objective.is_some_and(|objective| objective.correction.is_some()),
            balance_coef: run.balance_coef,
            trackers: run.track.memory(),
        }
    }

    /// Returns the sampling settings that passes are recorded for: the clients', or the rollout's and the evaluation's.
    fn ways_of_sampling(&self, run: &RunSpec) -> usize {
        let has_clients = self.facts.host.clients > Bytes(0);
        1 + usize::from(has_clients || run.eval.temperature != run.rollout.temperature)
    }

    fn shape(&self, run: &RunSpec, knobs: &Knobs) -> (RunShape, Resolved) {
        let weights = run.model_options.dtype.dtype();
        let engine = self.engine(run, knobs.sequences);
        let training = self.training(run, weights, knobs);
        let staging = self.facts.host.staging.min(knobs.staging).max(Bytes(STAGING_BYTES_MIN));
        let resolved = Resolved {
            micro_batch_tokens: knobs.micro_batch_tokens,
            recompute: knobs.recompute,
            optimizer_dtype: training.dtypes.optimizer,
            grad_dtype: training.dtypes.grads,
            sequences_max: knobs.sequences,
            kv_blocks: engine.layer_blocks(&self.facts.spec),
            rollout_rows: engine.rows,
            prompt_tokens_max: engine.prompt_tokens,
            threads: self.threads,
            staging: knobs.staging,
            offload: knobs.offload,
            merge: run.merge().is_auto().then_some(knobs.merge),
        };
        let shape = RunShape {
            spec: self.facts.spec,
            head: if run.needs.scores { Head::Score } else { Head::Vocabulary },
            weights,
            lora: run.lora.as_ref().map(|of| lora(of, knobs.merge)),
            encodings: self.facts.encodings,
            target: self.target(),
            engine,
            on_full: on_full(run.rollout.on_full),
            truncates: run.rollout.top_k > 0 || run.rollout.top_p < 1.0 || run.rollout.min_p > 0.0,
            positions: engine.prompt_tokens + engine.new_tokens.max(training.response_tokens),
            training: (self.purpose == Purpose::Train).then_some(training),
            scoring: self.facts.models.rewards().next().map(|_| Scoring {
                pack: training.pack,
                models: self.facts.models.with(RoleName::Critic, None).with(RoleName::Teacher, None),
                adapters: self.facts.adapters,
            }),
            rewards: self.rewards,
            episodes: crate::facts::episode_memory(run),
            host: HostFacts { staging, ..self.facts.host },
            held: self.held.0[usize::from(knobs.merge)],
            are_own: self.facts.are_own(run, knobs.merge),
            recorded: engine.recorded_sizes().len() * self.ways_of_sampling(run),
        };
        (shape, resolved)
    }
}

/// Returns the sum of the peaks of all pools.
fn memory(plan: &Plan) -> u64 {
    Pool::ALL.map(|pool| plan.peak(pool).peak.0).iter().sum()
}

/// Chooses among settings that fit, the fastest first: the one with the least memory of those that are equally fast,
/// and the first of the others as runner-up.
fn choose(found: Vec<(Candidate, Plan)>) -> Option<Solution> {
    let (first, _) = found.first()?;
    let fastest = first.rank;
    let equal = found.iter().take_while(|(candidate, _)| candidate.rank.is_as_fast(fastest));
    let best = equal.enumerate().min_by_key(|(_, (_, plan))| memory(plan)).map_or(0, |(index, _)| index);
    let mut found = found;
    let (chosen, plan) = found.remove(best);
    Some(Solution { chosen, plan, runner_up: found.into_iter().next(), fits: true })
}

/// Returns dtypes of states and gradients, the most exact first: others change the result, so they are a last resort.
fn precisions(run: &RunSpec) -> Vec<(OptimizerDType, DType)> {
    let weights = run.model_options.dtype.dtype();
    let optimizers = match run.train.optimizer_dtype {
        Auto::Value(RunOptimizer::Bf16) => vec![OptimizerDType::Bf16],
        Auto::Value(RunOptimizer::Int8) => vec![OptimizerDType::Int8],
        Auto::Auto if weights == DType::Bf16 => {
            vec![OptimizerDType::F32, OptimizerDType::Bf16, OptimizerDType::Int8]
        }
        _ => vec![OptimizerDType::F32],
    };
    let grads = |optimizer: OptimizerDType| match (run.train.grad_dtype, optimizer) {
        (Auto::Value(dtype), _) => vec![dtype.dtype()],
        (Auto::Auto, OptimizerDType::Bf16 | OptimizerDType::Int8) => vec![weights],
        (Auto::Auto, OptimizerDType::F32) if weights == DType::Bf16 => vec![DType::F32, DType::Bf16],
        (Auto::Auto, OptimizerDType::F32) => vec![DType::F32],
    };
    optimizers.into_iter().flat_map(|o| grads(o).into_iter().map(move |g| (o, g))).collect()
}

fn recompute(level: RunRecompute) -> Recompute {
    match level {
        RunRecompute::None => Recompute::None,
        RunRecompute::Cheap => Recompute::Cheap,
        RunRecompute::Layer => Recompute::Layer,
        RunRecompute::Offload => Recompute::Offload,
    }
}

fn on_full(how: RunOnFull) -> OnFull {
    match how {
        RunOnFull::WorstCase => OnFull::WorstCase,
        RunOnFull::Preempt => OnFull::Preempt,
    }
}

/// Returns the dtype to which the run file rounds each micro-batch's gradient.
fn partial_of(run: &RunSpec) -> Option<DType> {
    (run.train.gradient_wire == GradientWire::Bf16).then_some(DType::Bf16)
}
