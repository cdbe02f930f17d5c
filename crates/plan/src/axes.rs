//! The axes of the search: every knob that a run file may leave open is one row, with its type and its choices from the
//! most memory to the least; a single choice if the run file sets it.

use crate::facts::TenantPasses;
use crate::lora::merges;
use crate::planner::Planner;
use crate::shape::Offload;
use crate::work::response_tokens;
use plimsoll_base::{Bytes, DType};
use plimsoll_config::{
    Auto, ByteSize, LearnsFrom, Offload as RunOffload, OptimizerDtype as RunOptimizer,
    Recompute as RunRecompute, RunSpec, TrainingSpec,
};
use plimsoll_model::Recompute;
use plimsoll_train::OptimizerDType;

/// Micro-batches that `"auto"` chooses from: powers of two.
const MICRO_BATCH: std::ops::RangeInclusive<usize> = 256..=16_384;
/// Largest number of sequences in flight that `"auto"` chooses.
const SEQUENCES_MAX: usize = 512;
/// Staging buffers that `"auto"` chooses from.
const STAGING_MIB: [u64; 4] = [64, 16, 4, 1];

macro_rules! knobs {
    ($($(#[$doc:meta])* $knob:ident $axis:ident: $type:ty = $choices:expr,)+) => {
        /// The knobs, in the order of their indices in a `Point`.
        #[derive(Clone, Copy)]
        pub(crate) enum Axis { $($(#[$doc])* $axis,)+ }

        /// The index of a setting on each axis.
        pub(crate) type Point = [usize; [$(stringify!($axis)),+].len()];

        /// The choices of every knob.
        pub(crate) struct Axes { $(pub $knob: Vec<$type>,)+ }

        /// One choice of every knob.
        pub(crate) struct Knobs { $(pub $knob: $type,)+ }

        impl Axes {
            pub fn of(planner: &Planner<'_>, run: &RunSpec) -> Axes {
                Axes { $($knob: $choices(planner, run),)+ }
            }

            pub fn at(&self, point: Point) -> Knobs {
                Knobs { $($knob: self.$knob[point[Axis::$axis as usize]],)+ }
            }

            fn lengths(&self) -> Point {
                [$(self.$knob.len(),)+]
            }
        }
    };
}

knobs! {
    /// States and gradients. It changes the result: a later choice is taken only if no earlier one fits.
    precision Precision: (OptimizerDType, DType) = precisions,
    /// The last choice of a card moves bytes to another pool.
    recompute Recompute: Recompute = recomputes,
    micro_batch_tokens MicroBatch: usize = micro_batches,
    sequences Sequences: usize = sequences,
    /// It has no effect on a step.
    staging Staging: Bytes = stagings,
    /// It moves bytes between pools: from the most device memory to the least.
    offload Offload: Offload = offloads,
    merge Merge: bool = |_: &Planner<'_>, run: &RunSpec| merges(run),
}

impl Knobs {
    /// True if products read weights that have the adapters in them: not of weights that ranks share out.
    pub fn merges(&self) -> bool {
        self.merge && !self.offload.weights
    }
}

impl Axis {
    /// Returns the index of a setting on it.
    pub fn of(self, point: Point) -> usize {
        point[self as usize]
    }
}

impl Axes {
    /// Returns all points in the order of their indices: the first takes the most memory.
    pub fn points(&self) -> impl Iterator<Item = Point> {
        let lengths = self.lengths();
        let count: usize = lengths.iter().product();
        (0..count).map(move |mut n| {
            let mut point: Point = Default::default();
            for axis in (0..lengths.len()).rev() {
                point[axis] = n % lengths[axis];
                n /= lengths[axis];
            }
            point
        })
    }

    /// True if layer inputs are offloaded to another pool.
    pub fn moves_inputs(&self, point: Point) -> bool {
        self.recompute[Axis::Recompute.of(point)] == Recompute::Offload
    }

    /// True if `point` takes at least the memory of `other` on every axis, in every pool.
    pub fn takes_at_least(&self, point: Point, other: Point) -> bool {
        Axis::Offload.of(point) == Axis::Offload.of(other)
            && self.moves_inputs(point) == self.moves_inputs(other)
            && point.iter().zip(other).all(|(&at, other)| at <= other)
    }

    /// Returns the point that takes the least memory.
    pub fn smallest(&self) -> Point {
        self.lengths().map(|length| length - 1)
    }
}

/// Returns dtypes of states and gradients, the most exact first: others change the result, so they are a last resort.
fn precisions(_: &Planner<'_>, run: &RunSpec) -> Vec<(OptimizerDType, DType)> {
    if run.adapts_all() {
        return vec![(OptimizerDType::F32, DType::F32)];
    }
    let weights = run.model_options.dtype.dtype();
    let Some(TrainingSpec { train, .. }) = run.trains.training() else {
        return vec![(OptimizerDType::F32, DType::F32)];
    };
    let optimizers = match train.optimizer_dtype {
        _ if !train.optimizer.is_adamw() => vec![OptimizerDType::F32],
        Auto::Value(RunOptimizer::Bf16) => vec![OptimizerDType::Bf16],
        Auto::Value(RunOptimizer::Int8) => vec![OptimizerDType::Int8],
        Auto::Auto if weights == DType::Bf16 => {
            vec![OptimizerDType::F32, OptimizerDType::Bf16, OptimizerDType::Int8]
        }
        _ => vec![OptimizerDType::F32],
    };
    let grads = |optimizer: OptimizerDType| match (train.grad_dtype, optimizer) {
        (Auto::Value(dtype), _) => vec![dtype.dtype()],
        (Auto::Auto, OptimizerDType::Bf16 | OptimizerDType::Int8) => vec![weights],
        (Auto::Auto, OptimizerDType::F32) if weights == DType::Bf16 => vec![DType::F32, DType::Bf16],
        (Auto::Auto, OptimizerDType::F32) => vec![DType::F32],
    };
    optimizers.into_iter().flat_map(|o| grads(o).into_iter().map(move |g| (o, g))).collect()
}

fn recomputes(planner: &Planner<'_>, run: &RunSpec) -> Vec<Recompute> {
    let mut all = vec![Recompute::None, Recompute::Cheap, Recompute::Layer, Recompute::Offload];
    let Some(TrainingSpec { train, .. }) = run.trains.training() else {
        // Tenants' passes keep all in the arena, next to the cache that is sampled from.
        all.truncate(if planner.facts.tenants.is_some() { 3 } else { 1 });
        return all;
    };
    match train.recompute {
        Auto::Value(RunRecompute::None) => all.truncate(1),
        Auto::Value(RunRecompute::Cheap) => all = vec![Recompute::Cheap],
        Auto::Value(RunRecompute::Layer) => all = vec![Recompute::Layer],
        Auto::Value(RunRecompute::Offload) => all = vec![Recompute::Offload],
        // Without its own memory, offloading layer inputs would not free any.
        Auto::Auto if !planner.row.has_own_memory() => all.truncate(3),
        Auto::Auto => {}
    }
    all
}

fn stagings(_: &Planner<'_>, run: &RunSpec) -> Vec<Bytes> {
    match run.memory.staging {
        Auto::Value(ByteSize(bytes)) => vec![bytes],
        Auto::Auto => STAGING_MIB.map(Bytes::mib).to_vec(),
    }
}

/// Returns what several ranks may shard: the reference, and at stage 3 the weights that they train.
fn spreads(run: &RunSpec, reference: bool) -> Vec<Offload> {
    let of = |reference: bool, weights: bool| Offload { optimizer: false, reference, weights };
    let stage_2 = match &run.memory.offload {
        Auto::Value(list) => vec![of(reference && list.contains(&RunOffload::Reference), false)],
        Auto::Auto if reference => vec![of(false, false), of(true, false)],
        Auto::Auto => vec![of(false, false)],
    };
    let stage_3 = of(reference, true);
    // Codes, rounded weights, and those with their adapters in them are whole on every rank.
    let is_whole = run.computes_fp8()
        || run.lora.as_ref().is_some_and(|of| of.quantize.is_some() || of.merge == Auto::Value(true));
    match run.run.zero_stage {
        _ if is_whole => stage_2,
        Auto::Value(3) => vec![stage_3],
        Auto::Value(_) => stage_2,
        Auto::Auto => [stage_2, vec![stage_3]].concat(),
    }
}

/// Returns what `"auto"` may offload to host memory: nothing if that is the device's own.
fn offloads(planner: &Planner<'_>, run: &RunSpec) -> Vec<Offload> {
    let of = |optimizer: bool, reference: bool| Offload { optimizer, reference, weights: false };
    let Some(TrainingSpec { train, .. }) = run.trains.training() else { return vec![of(false, false)] };
    // States of adapters are small and stay, and their reference is the model itself.
    let (states, reference) = (!run.adapts_all(), run.moves_reference());
    if planner.facts.share.ranks > 1 {
        return spreads(run, reference);
    }
    let mut offloads = match &run.memory.offload {
        Auto::Value(list) => {
            let lies = |what| list.contains(&what);
            vec![of(states && lies(RunOffload::Optimizer), reference && lies(RunOffload::Reference))]
        }
        Auto::Auto if !planner.row.has_own_memory() || run.lora.is_some() => vec![of(false, false)],
        Auto::Auto if reference => {
            vec![of(false, false), of(false, true), of(true, false), of(true, true)]
        }
        Auto::Auto => vec![of(false, false), of(true, false)],
    };
    let stays = planner.is_chained(run) || !train.optimizer.is_adamw();
    offloads.retain(|offload| !(offload.optimizer && stays));
    offloads
}

fn micro_batches(planner: &Planner<'_>, run: &RunSpec) -> Vec<usize> {
    let given = run.trains.training().and_then(|training| training.train.micro_batch_tokens.value());
    if let Some(tokens) = given {
        return vec![tokens as usize];
    }
    if let Some(TenantPasses { tokens, .. }) = planner.facts.tenants {
        return vec![tokens];
    }
    // Both halves of a pair are in one micro-batch.
    let responses = if run.learns_from() == Some(LearnsFrom::Pairs) { 2 } else { 1 };
    let longest = planner.facts.prompt_tokens + responses * response_tokens(run, planner.facts);
    let useful = planner.step_rows(run).next_power_of_two().max(*MICRO_BATCH.start());
    let least = longest.next_power_of_two().max(*MICRO_BATCH.start());
    let most = useful.min(*MICRO_BATCH.end()).max(least);
    std::iter::successors(Some(most), |&n| (n / 2 >= least).then_some(n / 2)).collect()
}

fn sequences(planner: &Planner<'_>, run: &RunSpec) -> Vec<usize> {
    match run.rollout.sequences_max {
        Auto::Value(n) => vec![n.max(1) as usize],
        Auto::Auto => {
            let most = planner.samples(run).min(SEQUENCES_MAX);
            std::iter::successors(Some(most), |&n| (n > 1).then_some(n / 2)).collect()
        }
    }
}
