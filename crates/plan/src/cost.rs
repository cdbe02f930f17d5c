//! The cost model: predicted seconds of a step from counts of operations, bytes and passes, and this machine's rates.
//!
//! It ranks settings; it does not promise times. Every response is assumed to have its maximum length, for which memory
//! is planned. Evaluation, rewards and saving cost the same under every setting and are left out.
//!
//! Legend: P prompts, G samples each, S = P G sequences, C sequences in flight, M rows of a micro-batch.

use crate::hosts::Hosts;
use crate::lora::Lora;
use crate::role_name::RoleName;
use crate::shape::{RunShape, Training};
use plimsoll_arch::{CacheSpec, LayerEncodings, ModelSpec, Product, Quantization, products};
use plimsoll_base::DType;
use plimsoll_device::KV_BLOCK;
use plimsoll_devices::Rates;
use plimsoll_model::{ParamTable, Recompute};
use plimsoll_rollout::{EngineLimits, OnFull};
use serde::Serialize;

/// The work of a step according to the run file; the same under every setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Work {
    /// P, prompts.
    pub(crate) prompts: f64,
    /// G, samples per prompt.
    pub(crate) group: f64,
    /// Prompts under way beyond those of a step.
    pub(crate) carried: f64,
    pub(crate) prompt_tokens: f64,
    pub(crate) response_tokens: f64,
    /// True if a group's responses share their prompt during sampling.
    pub(crate) shares_prompts: bool,
    /// True if the responses are sampled.
    pub(crate) samples: bool,
    pub(crate) updates: f64,
    pub(crate) epochs: f64,
    /// (updates, epochs) of the critic.
    pub(crate) critic: (f64, f64),
    /// True if the planner chooses whether to merge adapters: only then are the costs of that choice counted.
    pub(crate) weighs_merge: bool,
    pub(crate) ranks: f64,
    pub(crate) hosts: Hosts,
}

/// Share of an update spent waiting for the slowest rank and small exchanges: 2 to 7 % on 2 to 8 H200
/// (`bench/results/h200_ranks.md`).
const WAITED: f64 = 0.03;
/// Share of the gradient exchange that is not hidden by the update that it overlaps, if it is the shorter of the two.
const SHOWN: f64 = 0.25;

/// f32 operations in whose time a CPU widens an element of a block. They are 0.35 ns on two threads with AVX-512, twice
/// what `bench_codes` of `crates/cpu/tests/it/bench.rs` measures with codes that lie in a cache.
const WIDENING_FLOPS: f64 = 80.0;

impl Work {
    /// Returns the work of one rank alone.
    pub(crate) fn of_one_rank(self) -> Work {
        Work { ranks: 1.0, hosts: Hosts::one(1), ..self }
    }

    pub(crate) fn of_evaluation(self, prompts: f64, samples: f64, response_tokens: f64) -> Work {
        Work { prompts, group: samples, carried: 0.0, response_tokens, samples: true, ..self }
    }

    /// Returns the sampling work of one rank: whole prompts.
    fn sampled_by_one(&self) -> Work {
        let [prompts, carried] = [self.prompts, self.carried].map(|of| (of / self.ranks).ceil());
        Work { prompts, carried, ..*self }
    }

    /// Returns the slowdown of sampling with unmerged adapters, apart from their arithmetic, which is counted.
    fn added(&self, shape: &RunShape) -> f64 {
        let is_added = self.weighs_merge && shape.lora.is_some_and(|lora| !lora.merge);
        if is_added { shape.row().added_adapters } else { 1.0 }
    }

    /// Returns the seconds of merging adapters after each update: computing B A, reading and writing the weights.
    fn merging(&self, shape: &RunShape, rates: &Rates) -> f64 {
        let Some(lora) = shape.lora.filter(|lora| self.weighs_merge && lora.merge) else { return 0.0 };
        let table = ParamTable::merged(&shape.spec, shape.target.kind, shape.weights, lora.shape);
        let (elements, rank) = (table.elements as f64, f64::from(lora.shape.rank));
        let computed = 2.0 * elements * rank / (rates.flops(shape.weights) * rates.update_share);
        let moved = 2.0 * elements * shape.weights.bytes() as f64 / rates.bandwidth;
        self.updates * computed.max(moved)
    }
}

/// Predicted seconds of a step, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepCost {
    pub rollout_s: f64,
    /// Log-probabilities of the reference and the teacher, and scores of a reward model.
    pub score_s: f64,
    /// The critic: values, forward, backward and optimizer.
    pub critic_s: f64,
    /// The actor: forward, backward and optimizer.
    pub update_s: f64,
}

impl StepCost {
    pub(crate) fn total_s(&self) -> f64 {
        self.rollout_s + self.score_s + self.critic_s + self.update_s
    }
}

pub(crate) fn sampling_s(work: &Work, shape: &RunShape, rates: &Rates) -> f64 {
    let model = Model::of_actor(shape);
    rollout(&work.sampled_by_one(), &model, &shape.engine, rates) * work.added(shape)
}

pub(crate) fn predict(work: &Work, shape: &RunShape, rates: &Rates) -> StepCost {
    let (own, model) = (shape.encodings.get(RoleName::Actor), Model::of_actor(shape));
    let mut cost = StepCost::default();
    if work.samples {
        cost.rollout_s = sampling_s(work, shape, rates);
    }
    if let Some(training) = &shape.training {
        let cut = Cut::greedy(work, training.pack.micro_batch_tokens);
        if training.reference {
            let reference = Model::of_frozen(shape);
            let reference = reference.as_ref().unwrap_or(&model);
            cost.score_s = score(work, reference, training.offload.reference, &cut, rates);
        }
        if training.policy_lag > 0 {
            // Only the first step of a rollout scores with the reference; later ones score again with resident weights.
            let lag = training.policy_lag as f64;
            let actor = score(work, &model, false, &cut, rates);
            cost.score_s += actor * lag / (1.0 + lag);
        }
        for spec in training.teacher.iter().flat_map(|teacher| teacher.models.values()) {
            cost.score_s += score(work, &Model::new(spec, shape.weights), false, &cut, rates);
        }
        if let Some(teacher) = training.teacher.as_ref().filter(|teacher| teacher.lists > 0) {
            // Lists are one more product of the teacher's head.
            let spec = teacher.model().unwrap_or(&shape.spec);
            let flops =
                head_rows(work) / work.ranks / work.epochs * Model::new(spec, shape.weights).head_flops;
            cost.score_s += flops / (rates.flops(model.dtype) * rates.update_share);
        }
        if let Some(spec) = &training.critic {
            let lora = training.critic_adapter.map(|critic| critic.lora);
            let encodings = shape.encodings.get(RoleName::Critic).or(own);
            let model = Model::new(spec, shape.weights).with(spec, lora, encodings);
            cost.critic_s = critic(work, model, training, rates);
        }
        cost.update_s = update(work, &model, training, &Cut::of_update(work, training), rates);
        if let Some((teacher, rows)) =
            training.teacher.as_ref().and_then(|teacher| Some((teacher, teacher.rows?)))
        {
            // The student's head once more, and the teacher's for its sums, for the divergence and for the gradient.
            let spec = teacher.models.get(rows.of).unwrap_or(&shape.spec);
            let teacher = Model::new(spec, shape.weights).head_flops;
            let flops = head_rows(work) / work.ranks * (model.head_flops + 3.0 * teacher);
            cost.update_s += flops / (rates.flops(model.dtype) * rates.update_share);
        }
        cost.update_s += work.merging(shape, rates);
        cost.update_s += orthogonalizing(work, &shape.spec, training, rates);
    }
    if let Some(scoring) = &shape.scoring {
        let cut = Cut::greedy(work, scoring.pack.micro_batch_tokens);
        let each = scoring.models.rewards().map(|(name, spec)| {
            let (lora, encodings) = (scoring.adapters.get(name).copied(), shape.encodings.get(name));
            let model = Model::new(spec, shape.weights).with(spec, lora, encodings);
            let model = Model { head_flops: 0.0, ..model };
            score(work, &model, false, &cut, rates)
        });
        cost.score_s += each.sum::<f64>();
    }
    cost
}

/// Work per row, which depends on the model's shape.
struct Model {
    layers: f64,
    width: f64,
    vocab: f64,
    layer_flops: f64,
    context_flops: f64,
    head_flops: f64,
    /// Trained parameters.
    parameters: f64,
    /// True if all parameters are trained.
    learns: bool,
    weight_bytes: f64,
    /// Operations of a pass on a CPU that widen blocks.
    widening_flops: f64,
    /// Bytes of experts' weights, and the share of them that a row reads.
    experts: (f64, f64),
    /// The caches of its layers.
    caches: Vec<CacheSpec>,
    /// Bytes per row that `cheap` recomputes: norms and the SwiGLU product of each layer.
    cheap_bytes: f64,
    /// Bytes per row of the inputs of all layers.
    input_bytes: f64,
    dtype: DType,
}

impl Model {
    fn new(spec: &ModelSpec, dtype: DType) -> Model {
        let (layers, element) = (f64::from(spec.layers.len()), dtype.bytes() as f64);
        Model {
            layers,
            width: f64::from(spec.hidden),
            vocab: f64::from(spec.vocab),
            layer_flops: spec.layer_flops(0) as f64,
            context_flops: (spec.layer_flops(1) - spec.layer_flops(0)) as f64,
            head_flops: spec.head_flops() as f64,
            parameters: spec.parameters() as f64,
            learns: true,
            weight_bytes: spec.parameters() as f64 * element,
            widening_flops: 0.0,
            experts: spec.each_layer().find_map(|layer| layer.experts()).map_or((0.0, 0.0), |experts| {
                let share = f64::from(experts.chosen) / f64::from(experts.count);
                let idle = (spec.parameters() - spec.active_parameters()) as f64 * element;
                (if share < 1.0 { idle / (1.0 - share) } else { 0.0 }, share)
            }),
            caches: spec.caches(usize::MAX),
            // Models with experts recompute the products of all layers at every level.
            cheap_bytes: element
                * (spec.layers.iter())
                    .map(|layer| layer.dense().filter(|_| !spec.has_experts()).map_or(0, |dense| dense.width))
                    .map(|width| 2.0 * f64::from(spec.hidden) + f64::from(width))
                    .sum::<f64>(),
            input_bytes: layers * f64::from(spec.hidden) * DType::F32.bytes() as f64,
            dtype,
        }
    }

    /// Returns the model that a run samples from.
    fn of_actor(shape: &RunShape) -> Model {
        if let Some(frozen) = Model::of_frozen(shape).filter(|_| shape.training.is_none()) {
            return frozen;
        }
        let encodings = shape.encodings.get(RoleName::Actor);
        Model::new(&shape.spec, shape.weights).with(&shape.spec, shape.lora, encodings)
    }

    /// Returns the run's own model in the blocks of its file; none if it is in full, or has adapters.
    fn of_frozen(shape: &RunShape) -> Option<Model> {
        shape.own_quantize()?;
        let (spec, model) = (&shape.spec, Model::new(&shape.spec, shape.weights));
        let of = |product: Product| {
            u64::from(product.n) * u64::from(product.k) * u64::from(product.experts.unwrap_or(1))
        };
        let elements =
            (0..spec.layers.len()).flat_map(|layer| products(spec, layer)).map(of).sum::<u64>() as f64;
        let (codes, full) =
            (shape.encodings.get(RoleName::Actor)?.bytes(spec) as f64, elements * model.dtype.bytes() as f64);
        Some(if shape.row().has_own_memory() {
            // Whole matrices are widened to memory, and read from there.
            Model { weight_bytes: model.weight_bytes + full + codes, ..model }
        } else {
            // A task widens the panels that it multiplies, which stay in caches.
            Model {
                weight_bytes: model.weight_bytes - full + codes,
                widening_flops: elements * WIDENING_FLOPS,
                ..model
            }
        })
    }

    /// Returns the model with frozen weights, possibly in the `encodings` of its file, and these adapters.
    fn with(self, spec: &ModelSpec, lora: Option<Lora>, encodings: Option<&LayerEncodings>) -> Model {
        let Some(lora) = lora else { return self };
        let parameters = lora.shape.parameters(spec) as f64;
        let added = if lora.merge { 0.0 } else { 2.0 * lora.shape.active_parameters(spec) as f64 };
        let mut model = Model { layer_flops: self.layer_flops + added, parameters, learns: false, ..self };
        if let Some(how) = lora.quantize {
            // Codes are read; their dequantized values are written and read.
            let codes = match (how, encodings) {
                (Quantization::Gguf, Some(encodings)) => encodings.bytes(spec) as f64 / self.parameters,
                _ => 4.5 / 8.0,
            };
            model.weight_bytes += self.parameters * (self.dtype.bytes() as f64 + codes);
        }
        model
    }

    /// Returns the bytes of weights that a pass of `rows` rows reads, if routers choose evenly.
    fn read_bytes(&self, rows: f64) -> f64 {
        let (bytes, share) = self.experts;
        self.weight_bytes - bytes * (1.0 - share).powf(rows)
    }

    /// Returns the bytes that a row with `context` keys reads from caches with blocks.
    fn kv_bytes(&self, context: f64) -> f64 {
        let read = self.caches.iter().map(|of| of.read_elements(context));
        read.sum::<f64>() * self.dtype.bytes() as f64
    }

    /// Returns the bytes of other caches that a decode row moves: it reads and writes them.
    fn state_bytes(&self) -> f64 {
        let states = self.caches.iter().filter(|of| !of.cache.has_blocks());
        2.0 * states.map(|of| of.elements).sum::<u64>() as f64 * DType::F32.bytes() as f64
    }

    /// Returns the seconds of an update over `rows` rows outside its products; 0 if products hide them.
    fn outside_products(&self, rows: f64, rates: &Rates) -> f64 {
        let Some(card) = rates.card else { return 0.0 };
        rows * self.layers * self.width * card.activation_widths * self.dtype.bytes() as f64 / rates.bandwidth
    }

    /// Returns the seconds of a pass of the engine; `heads`: rows whose next token is drawn.
    fn pass_s(&self, rates: &Rates, rows: f64, heads: f64, context: f64) -> f64 {
        let rate = rates.flops(self.dtype) * rates.rollout_share * rows / (rows + rates.half_rows);
        let computed = (rows * self.row(context) + heads * self.head_flops) / rate + self.widening_s(rates);
        let (read, states) =
            (self.read_bytes(rows), rows * self.kv_bytes(context) + heads * self.state_bytes());
        rates.pass_s
            + match rates.card {
                None => computed.max((read + states) / rates.bandwidth),
                Some(card) => {
                    let bandwidth = rates.bandwidth * card.read_share;
                    let logits = heads * self.vocab * card.logit_bytes;
                    norm(card.overlap, computed, read / bandwidth)
                        + (states + logits) / bandwidth
                        + self.layers * card.layer_s
                }
            }
    }

    /// Returns the seconds in which a pass on a CPU widens blocks.
    fn widening_s(&self, rates: &Rates) -> f64 {
        self.widening_flops / rates.flops(DType::F32)
    }

    /// Returns the operations of all layers for a row with `context` keys.
    fn row(&self, context: f64) -> f64 {
        self.layer_flops + context * self.context_flops
    }
}

/// Ticks in a row in which equally many responses draw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stretch {
    pub(crate) ticks: f64,
    /// Responses that draw.
    pub(crate) rows: f64,
    /// Mean of their response tokens so far, in the middle of the stretch.
    pub(crate) tokens: f64,
}

/// Returns the seconds of drawing in stretches.
pub(crate) fn stretches_s(work: &Work, shape: &RunShape, rates: &Rates, stretches: &[Stretch]) -> f64 {
    let model = Model::of_actor(shape);
    let engine = &shape.engine;
    let blocks = engine.layer_blocks(&shape.spec) as f64;
    let tick = |stretch: &Stretch| {
        let context = work.prompt_tokens + stretch.tokens;
        // Sequences that begin freely are as many as the blocks hold of their length by then.
        let places = match shape.on_full {
            OnFull::Preempt => (blocks * KV_BLOCK as f64 / context).min(engine.sequences as f64),
            OnFull::WorstCase => in_flight(&work.sampled_by_one(), engine),
        };
        let rows = (stretch.rows / work.ranks).max(1.0);
        let at_once = rows.min(places.max(1.0));
        stretch.ticks * rows / at_once * model.pass_s(rates, at_once, at_once, context)
    };
    stretches.iter().map(tick).sum::<f64>() * work.added(shape)
}

/// Returns the seconds of passes over `rows` rows of prompts, or of prompts and responses that go on.
pub(crate) fn keys_s(work: &Work, shape: &RunShape, rates: &Rates, rows: f64) -> f64 {
    let (model, engine) = (Model::of_actor(shape), &shape.engine);
    prefill_s(&model, engine, rates, rows / work.ranks, work.prompt_tokens) * work.added(shape)
}

/// Returns the seconds of passes that compute the keys of `rows` rows of sequences of `tokens` tokens.
fn prefill_s(model: &Model, engine: &EngineLimits, rates: &Rates, rows: f64, tokens: f64) -> f64 {
    let passes = (rows / engine.rows as f64).ceil();
    if passes == 0.0 {
        return 0.0;
    }
    passes * model.pass_s(rates, rows / passes, 0.0, tokens / 2.0)
}

/// Returns the seconds of sampling: the prompts once, then one pass per token for each wave of sequences in flight.
fn rollout(work: &Work, model: &Model, engine: &EngineLimits, rates: &Rates) -> f64 {
    let in_flight = in_flight(work, engine);
    let prefill = prefill_s(model, engine, rates, work.prompts * work.prompt_tokens, work.prompt_tokens);
    let sequences = work.prompts * work.group;
    let context = work.prompt_tokens + work.response_tokens / 2.0;
    let pass = |rows: f64| model.pass_s(rates, rows, rows, context);
    // Carried sequences take the places of those that end, so that no wave ends.
    let (waves, rest) = if work.carried > 0.0 {
        (sequences / in_flight, 0.0)
    } else {
        let waves = (sequences / in_flight).floor();
        (waves, sequences - waves * in_flight)
    };
    let last = if rest > 0.0 { pass(rest) } else { 0.0 };
    prefill + work.response_tokens * (waves * pass(in_flight) + last)
}

/// Returns the seconds of a pass that decodes some rows, with `context` keys each.
pub(crate) fn of_passes(
    spec: &ModelSpec,
    weights: DType,
    rates: &Rates,
    context: f64,
) -> impl Fn(f64) -> f64 {
    let model = Model::new(spec, weights);
    move |rows| model.pass_s(rates, rows, rows, context)
}

/// Returns the p-norm of two times that partly overlap.
fn norm(p: f64, a: f64, b: f64) -> f64 {
    (a.powf(p) + b.powf(p)).powf(1.0 / p)
}

/// Returns C: the engine's sequences, as many as its blocks hold.
fn in_flight(work: &Work, engine: &EngineLimits) -> f64 {
    let group = if work.shares_prompts { work.group as usize } else { 1 };
    let held = |n: usize| engine.holds(n, group);
    // The largest number that the blocks hold; one sequence always runs.
    let (mut least, mut most) =
        (1, engine.sequences.min(((work.prompts + work.carried) * work.group) as usize).max(1));
    while least < most {
        let middle = (least + most).div_ceil(2);
        (least, most) = if held(middle) { (middle, most) } else { (least, middle - 1) };
    }
    least as f64
}

/// How the sequences of a step are split into micro-batches.
struct Cut {
    /// Rows of all micro-batches; if a group is split, its prompt is computed again.
    rows: f64,
    micro_batches: f64,
}

impl Cut {
    /// Returns one rank's mean share. How evenly micro-batches are dealt depends on the lengths, which are unknown.
    fn of_one(&self, work: &Work) -> Cut {
        Cut {
            rows: self.rows / work.ranks,
            micro_batches: (self.micro_batches / work.ranks).max(work.updates),
        }
    }

    /// Returns as few micro-batches as possible.
    fn greedy(work: &Work, micro_batch_tokens: usize) -> Cut {
        Cut::of(work, micro_batch_tokens, |fewest, _| fewest)
    }

    fn of_update(work: &Work, training: &Training) -> Cut {
        Cut::of(work, training.pack.micro_batch_tokens, |fewest, rows| training.cut.number(fewest, rows))
    }

    /// Splits a step; `number` gives the micro-batches of an update from the fewest that its rows need, and its rows.
    fn of(work: &Work, micro_batch_tokens: usize, number: impl Fn(usize, usize) -> usize) -> Cut {
        let most = micro_batch_tokens as f64;
        // The last token of a response has no row.
        let response = work.response_tokens - 1.0;
        let rows = work.prompts * (work.prompt_tokens + work.group * response);
        let per_update = rows * work.epochs / work.updates;
        // At a cut, the rows of half a response stay empty on average and the group's prompt is repeated.
        let useful = (most - work.prompt_tokens - response / 2.0).max(1.0);
        let fewest = if per_update <= most { 1.0 } else { (per_update / useful).ceil() };
        let micro_batches = work.updates * number(fewest as usize, per_update as usize) as f64;
        let again = if work.group > 1.0 { work.prompt_tokens * (micro_batches - work.updates) } else { 0.0 };
        Cut { rows: rows * work.epochs + again, micro_batches }
    }
}

fn mean_context(work: &Work) -> f64 {
    (work.prompt_tokens + work.response_tokens) / 2.0
}

fn head_rows(work: &Work) -> f64 {
    work.prompts * work.group * work.response_tokens * work.epochs
}

/// Returns the seconds of forward passes over all sequences; `is_offloaded`: the weights come from host memory.
fn score(work: &Work, model: &Model, is_offloaded: bool, cut: &Cut, rates: &Rates) -> f64 {
    // The reference scores once, whatever the number of epochs.
    let Cut { rows, micro_batches } = cut.of_one(work);
    let heads = head_rows(work) / work.ranks;
    let flops = (rows * model.row(mean_context(work)) + heads * model.head_flops) / work.epochs;
    let passes = micro_batches / work.epochs;
    let computed = flops / (rates.flops(model.dtype) * rates.update_share)
        + model.outside_products(rows / work.epochs, rates) / 3.0
        + passes * (model.weight_bytes / rates.bandwidth + model.widening_s(rates) + rates.pass_s);
    // Layers are loaded while others are computed: the slower of the two counts.
    let moved = if is_offloaded { passes * model.weight_bytes / rates.bus() } else { 0.0 };
    computed.max(moved)
}

/// Returns the seconds of the value pass and of the critic's updates. Its head is a single column.
fn critic(work: &Work, model: Model, training: &Training, rates: &Rates) -> f64 {
    let (updates, epochs) = work.critic;
    let (work, model) = (Work { updates, epochs, ..*work }, Model { head_flops: 0.0, ..model });
    let cut = Cut::greedy(&work, training.pack.micro_batch_tokens);
    score(&work, &model, false, &cut, rates)
        + update(&work, &model, training, &Cut::of_update(&work, training), rates)
}

fn update(work: &Work, model: &Model, training: &Training, cut: &Cut, rates: &Rates) -> f64 {
    // Forward, and a backward of twice its work; `layer` runs the layers forward once more. Logits are never kept, so
    // the head's backward always recomputes them.
    let again = if training.recompute.is_of_layers() { 1.0 } else { 0.0 };
    // Frozen weights have no gradients.
    let passes = if model.learns { 3.0 } else { 2.0 };
    let Cut { rows, micro_batches } = cut.of_one(work);
    let heads = head_rows(work) / work.ranks;
    let flops =
        rows * model.row(mean_context(work)) * (passes + again) + heads * model.head_flops * (passes + 1.0);
    let grads = model.parameters * training.dtypes.grads.bytes() as f64;
    let summing = training.dtypes.summing;
    let sent = summing.partial.unwrap_or(training.dtypes.grads).bytes() as f64 * model.parameters;
    let far = if summing.near.is_some() { grads / summing.fold as f64 } else { sent };
    // A micro-batch reads the weights in both directions, and reads and writes the gradients.
    let micro_batch = (2.0 * model.weight_bytes + 2.0 * grads) / rates.bandwidth + rates.micro_batch_s;
    let recomputed = match training.recompute {
        Recompute::None => 0.0,
        Recompute::Cheap | Recompute::Layer | Recompute::Offload => {
            rows * 2.0 * model.cheap_bytes / rates.bandwidth
        }
    };
    // At stage 3 every micro-batch reads the weights twice from their owners, next to its own work; a quarter shows.
    let gathered = if training.offload.weights { 0.5 * model.weight_bytes / rates.link() } else { 0.0 };
    // Offloaded states are loaded while others are stored. A card's arithmetic is negligible; a CPU copies first.
    let moved = if training.offload.optimizer { state_bytes(model, training) / rates.bus() } else { 0.0 };
    let optimizer = work.updates * (moved + optimizer_bytes(model, training) / rates.bandwidth) / work.ranks;
    // Layer inputs are offloaded and prefetched while others are computed; a quarter of the time shows.
    let inputs = match training.recompute {
        Recompute::Offload => 2.0 * rows * model.input_bytes / rates.bus(),
        _ => 0.0,
    };
    let alone = (flops / (rates.flops(model.dtype) * rates.update_share)).max(0.75 * inputs)
        + 0.25 * inputs
        + model.outside_products(rows, rates)
        + micro_batches * (micro_batch + gathered)
        + recomputed
        + optimizer;
    alone + exchanged(work, model, ([sent, far], micro_batches), alone, rates)
}

/// Returns the extra seconds of ranks, compared with one rank's share alone: each micro-batch's partial gradients go to
/// their owners during the backward pass, and new weights come back. Between hosts nothing overlaps. `grads`: bytes per
/// micro-batch, within a host and between hosts.
fn exchanged(
    work: &Work,
    model: &Model,
    (grads, micro_batches): ([f64; 2], f64),
    alone: f64,
    rates: &Rates,
) -> f64 {
    let sent = work.hosts.receive_s(grads.map(|bytes| bytes * micro_batches), rates.link());
    let weights = model.parameters * model.dtype.bytes() as f64;
    let weights = work.hosts.receive_s([weights; 2], rates.link());
    let waited = if work.ranks > 1.0 { WAITED * alone } else { 0.0 };
    // Ranks synchronize after each layer of each micro-batch, and around it.
    let meetings = work.hosts.barriers_s(micro_batches * (model.layers + 4.0));
    let shown = if work.hosts.count > 1 { sent } else { (SHOWN * sent).max(sent - alone) };
    shown + work.updates * weights + waited + meetings
}

/// Returns the seconds of Muon's iterations, whose products are f32. Each rank computes all of them.
fn orthogonalizing(work: &Work, spec: &ModelSpec, training: &Training, rates: &Rates) -> f64 {
    let Some(iterations) = training.muon else { return 0.0 };
    let of = |product: Product| {
        let (n, k) = (f64::from(product.n), f64::from(product.k));
        let (s, l) = (n.min(k), n.max(k));
        f64::from(product.experts.unwrap_or(1)) * (4.0 * s * s * l + 2.0 * s * s * s)
    };
    let flops: f64 = (0..spec.layers.len()).flat_map(|layer| products(spec, layer)).map(of).sum();
    work.updates * f64::from(iterations) * flops / rates.flops(DType::F32)
}

fn state_bytes(model: &Model, training: &Training) -> f64 {
    let master = if training.dtypes.has_master() { 4.0 } else { 0.0 };
    model.parameters * (training.dtypes.moment_bytes() + master)
}

/// Returns the bytes that one update moves outside micro-batches: gradients zeroed, normed, read; states read, written.
fn optimizer_bytes(model: &Model, training: &Training) -> f64 {
    let dtypes = training.dtypes;
    let master = if dtypes.has_master() { 8.0 } else { model.dtype.bytes() as f64 };
    let per_parameter =
        3.0 * dtypes.grads.bytes() as f64 + 2.0 * dtypes.moment_bytes() + master + model.dtype.bytes() as f64;
    model.parameters * per_parameter
}

/// Returns the bytes that one update of the actor moves at least, apart from its weights' reads: gradients written and
/// read once, states read and written, new weights written. Muon has one moment of a matrix: neither is counted.
pub fn least_optimizer_bytes(shape: &RunShape) -> f64 {
    let Some(training) = &shape.training else { return 0.0 };
    let model = Model::of_actor(shape);
    let twice = if training.muon.is_some() { 2.0 * training.dtypes.moment_bytes() } else { 0.0 };
    let uncounted = training.dtypes.grads.bytes() as f64 + twice;
    optimizer_bytes(&model, training) - uncounted * model.parameters
}

#[cfg(test)]
#[path = "cost_tests.rs"]
mod tests;
