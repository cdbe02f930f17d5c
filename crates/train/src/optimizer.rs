//! Gradients and AdamW states: flat buffers in the order of the weights, one element-wise pass a step.

use crate::buckets::{buckets, fixed, outside, padding};
use crate::levels;
use crate::matrices::Matrices;
use crate::partial::{self, Partial};
use crate::share::{Share, shard_elements};
use crate::sums::Summing;
use plimsoll_algo::update::UpdateOptions;
use plimsoll_arch::ParamKind;
use plimsoll_base::{DType, Phase, PhaseSet, Result};
use plimsoll_device::{
    AdamW, AdamWBufs, CODE_BLOCK, Coded, Device, Layouts, OFFLOAD_SLOTS, OwnedRun, PIECES, Run,
};
use plimsoll_memory::{Buf, InPhase, Layout, Pool, Resident, Turn};
use plimsoll_model::{FlatTensors, Param, ParamTable, Place, SpreadTensors, passage_layout};
use serde::{Deserialize, Serialize};

/// Storage of optimizer states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerDType {
    /// f32 moments; with bf16 weights an f32 master copy.
    F32,
    /// bf16 moments and weights, updated by stochastic rounding; no master copy.
    Bf16,
    /// 8-bit moments with block scales, updated by stochastic rounding; no master copy.
    Int8,
}

/// Dtypes of everything stored for a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateDTypes {
    pub weights: DType,
    pub grads: DType,
    /// Order in which micro-batches' gradients are summed.
    pub summing: Summing,
    pub optimizer: OptimizerDType,
}

impl StateDTypes {
    /// Returns the dtypes of `Optimizer::states` in files: bf16 holds each 8-bit moment exactly.
    pub fn stored(self) -> Vec<DType> {
        let moment = if self.optimizer == OptimizerDType::F32 { DType::F32 } else { DType::Bf16 };
        let master = self.has_master().then_some(DType::F32);
        [moment, moment].into_iter().chain(master).collect()
    }

    /// Returns the bytes of both moments of a parameter, scales included.
    pub fn moment_bytes(self) -> f64 {
        let scales = if self.has_scales() { 2.0 * 4.0 / CODE_BLOCK as f64 } else { 0.0 };
        self.moments().map(|dtype| dtype.bytes() as f64).iter().sum::<f64>() + scales
    }

    /// Returns the dtypes of m and v.
    fn moments(self) -> [DType; 2] {
        match self.optimizer {
            OptimizerDType::F32 => [DType::F32; 2],
            OptimizerDType::Bf16 => [DType::Bf16; 2],
            OptimizerDType::Int8 => [DType::E4M3, DType::E5M3],
        }
    }

    /// True if moments are codes.
    fn has_scales(self) -> bool {
        self.optimizer == OptimizerDType::Int8
    }

    /// True if each micro-batch's gradient is computed apart and then added to the sum.
    pub fn is_chained(self, ranks: usize) -> bool {
        ranks > 1 || self.summing.partial.is_some() || self.summing.fold > 1
    }

    /// Returns the dtype of a micro-batch's gradient: on one rank that of the sum, to which it is added.
    pub fn partial_on(self, device: &'static Layouts, ranks: usize) -> DType {
        let own = if self.is_chained(ranks) { (device.partial)(self.grads) } else { self.grads };
        self.summing.partial.unwrap_or(own)
    }

    /// True if an f32 copy of the weights is kept.
    pub fn has_master(self) -> bool {
        self.weights == DType::Bf16 && self.optimizer == OptimizerDType::F32
    }
}

/// Maximum elements of a slot through which offloaded states pass: 16 MiB of f32, which the bus moves at full rate.
const SLOT_ELEMENTS_MAX: u64 = 4 << 20;
/// Minimum slots of a model's parameters, so that copies and updates of a small model overlap too.
const SLOTS_MIN: u64 = 16;

/// Maximum parts of `update_in_parts`: the first can be copied while seven eighths are still to be updated.
const UPDATE_PARTS: usize = 8;

/// Returns the elements of a slot: whole blocks of 8-bit moments.
fn slot_elements(table: &ParamTable) -> u64 {
    table.elements.div_ceil(SLOTS_MIN).min(SLOT_ELEMENTS_MAX).next_multiple_of(CODE_BLOCK as u64)
}

/// Gradients and states of one role, updated in `phase`. Gradients exist in that phase alone. States are resident, or
/// in the device's host memory as `offload.ROLE.adam_m` and so on, passing through slots in the phase.
///
/// One of several `ranks` has states for its shard alone. Its gradients are those of a micro-batch, two layers at a
/// time (`Partial`): in f32 on a CPU, on a card in the dtype of sums, to which each partial gradient is rounded.
/// `ROLE.shard` sums what the rank owns, `ROLE.folded` the micro-batches being folded. States pass through
/// `ROLE.passage` on their way to files. Arrivals on a card have their own regions (`landing_layout`).
///
/// Errors: `size-overflow`.
pub fn layout(
    role: &str,
    table: &ParamTable,
    dtypes: StateDTypes,
    pool: Pool,
    phase: Phase,
    is_offloaded: bool,
    ranks: usize,
) -> Result<Layout> {
    assert!(!dtypes.is_chained(ranks) || !is_offloaded, "a plan for several ranks offloads no states");
    let (all, [m, v]) = (shard_elements(table, ranks), dtypes.moments());
    let mut layout = Layout::new();
    let update = PhaseSet::of(&[phase]);
    let (grads, is_chained) = (dtypes.partial_on(table.device, ranks), dtypes.is_chained(ranks));
    if is_chained && table.find(ParamKind::Embed, 0).is_some() {
        layout.extend(partial::layout(role, table, pool, update, grads)?);
    } else {
        layout.arena(&format!("{role}.grads"), "train", pool, update, &[table.elements], grads)?;
    }
    if is_chained {
        layout.arena(&format!("{role}.shard"), "train", pool, update, &[all], dtypes.grads)?;
        if dtypes.summing.fold > 1 {
            layout.arena(&format!("{role}.folded"), "train", pool, update, &[all], dtypes.grads)?;
        }
        let summing = dtypes.summing;
        layout.extend(levels::layout(role, table, (pool, update), summing, ranks, dtypes.grads)?);
        layout.extend(passage_layout(role, table, pool, update)?);
    }
    let scales = dtypes.has_scales().then_some(DType::F32);
    let blocks = CODE_BLOCK as u64;
    for (name, of, dtype) in [
        ("master", 1, dtypes.has_master().then_some(DType::F32)),
        ("adam_m", 1, Some(m)),
        ("adam_v", 1, Some(v)),
        ("adam_m_scales", blocks, scales),
        ("adam_v_scales", blocks, scales),
    ] {
        let Some(dtype) = dtype else { continue };
        let (region, elements) = (format!("{role}.{name}"), all.div_ceil(of));
        if !is_offloaded {
            layout.arena(&region, "train", pool, PhaseSet::RESIDENT, &[elements], dtype)?;
            continue;
        }
        layout.offloaded(&format!("offload.{region}"), "train", &[elements], dtype)?;
        let shape = [OFFLOAD_SLOTS as u64, slot_elements(table) / of];
        layout.arena_in_turn(&region, "train", pool, update, Turn::Optimizer, &shape, dtype)?;
    }
    Ok(layout)
}

/// AdamW's states of a range of parameters.
#[derive(Clone, Copy, Debug)]
pub struct States<'a> {
    m: Buf<'a>,
    v: Buf<'a>,
    /// Scales of m and v, if they are codes.
    scales: Option<[Buf<'a>; 2]>,
    master: Option<Buf<'a>>,
}

impl<'a> States<'a> {
    fn bind(get: impl Fn(&str) -> Option<Buf<'a>>) -> Option<States<'a>> {
        let scales = get("adam_m_scales").zip(get("adam_v_scales")).map(|(m, v)| [m, v]);
        Some(States { m: get("adam_m")?, v: get("adam_v")?, scales, master: get("master") })
    }

    /// Returns `len` elements from `start`, a multiple of `CODE_BLOCK`.
    fn slice(self, start: usize, len: usize) -> States<'a> {
        let of = |scales: Buf<'a>| scales.slice(start / CODE_BLOCK, len.div_ceil(CODE_BLOCK));
        States {
            m: self.m.slice(start, len),
            v: self.v.slice(start, len),
            scales: self.scales.map(|scales| scales.map(of)),
            master: self.master.map(|master| master.slice(start, len)),
        }
    }

    fn bufs(self) -> impl Iterator<Item = Buf<'a>> {
        [self.m, self.v].into_iter().chain(self.scales.into_iter().flatten()).chain(self.master)
    }
}

/// AdamW's states of one role, and how its gradients are summed.
#[derive(Clone, Debug)]
pub struct Optimizer<'a> {
    states: States<'a>,
    share: Share,
    /// Elements that each rank owns, by rank.
    owned: Vec<RankRuns>,
    buckets: Vec<Run>,
    padding: Vec<Run>,
    /// Elements that no step changes.
    fixed: Vec<Run>,
    /// True if the weights too are the shard's alone.
    pub(crate) weights_are_shard: bool,
    /// The matrices that Muon updates, if any.
    pub(crate) matrices: Option<Matrices>,
    pub step: u64,
}

/// Elements that a rank owns.
#[derive(Clone, Debug)]
struct RankRuns {
    all: Vec<OwnedRun>,
    /// Owned elements of the embedding, by their places in it.
    of_embed: Vec<OwnedRun>,
}

impl RankRuns {
    fn new(table: &ParamTable, share: Share) -> RankRuns {
        let all = share.owned(table);
        let of_embed = owned_of(&all, table.find(ParamKind::Embed, 0));
        RankRuns { all, of_embed }
    }
}

impl<'a> Optimizer<'a> {
    /// Resolves the states of `layout`, zeroes them, and copies the weights into the master copy. `weights`: all, or,
    /// with several ranks, this one's shard.
    pub fn new(
        dev: &dyn Device,
        table: &ParamTable,
        weights: Buf<'a>,
        resident: Resident<'a>,
        role: &str,
        share: Share,
    ) -> Optimizer<'a> {
        let weights_are_shard = (weights.len() as u64) < table.elements;
        let get = |what: &str| {
            let offloaded = || resident.get(&format!("offload.{role}.{what}"));
            resident.get(&format!("{role}.{what}")).or_else(offloaded)
        };
        let states = States::bind(get).expect("the layout has an optimizer's states");
        states.bufs().for_each(|state| dev.zero(state));
        let owned = (0..share.ranks).map(|rank| RankRuns::new(table, Share { rank, ..share }));
        let owned: Vec<RankRuns> = owned.collect();
        if let Some(master) = states.master {
            for OwnedRun { run, at } in &owned[share.rank].all {
                let len = run.elements as usize;
                let from = if weights_are_shard { *at } else { run.start };
                copy_elements(dev, weights.slice(from as usize, len), master.slice(*at as usize, len));
            }
        }
        let (buckets, padding, fixed) = (buckets(table), padding(table), fixed(table));
        Optimizer {
            states,
            share,
            owned,
            buckets,
            padding,
            fixed,
            weights_are_shard,
            matrices: None,
            step: 0,
        }
    }

    /// Leaves the matrices of layers to Muon. `weights`: their dtype. States are f32 and in the arena.
    pub fn with_muon(self, table: &ParamTable, weights: DType) -> Optimizer<'a> {
        let matrices = Some(Matrices::of(table, weights, self.owned()));
        Optimizer { matrices, ..self }
    }

    /// Returns the first moments, which are Muon's momentum of its matrices.
    pub(crate) fn momentum(&self) -> Buf<'a> {
        self.states.m
    }

    /// Returns the slots through which offloaded states pass; `None` if states are resident.
    pub fn slots<'p>(&self, phase: &InPhase<'p>, role: &str) -> Option<States<'p>> {
        self.states.m.is_offloaded().then(|| {
            States::bind(|what| phase.get(&format!("{role}.{what}"))).expect("offloaded states have slots")
        })
    }

    /// Returns the states that a checkpoint needs, by name, m and v first.
    pub fn states(&self) -> Vec<FlatTensors<'a>> {
        let States { m, v, scales, master } = self.states;
        let [m_scales, v_scales] = scales.map_or([None; 2], |scales| scales.map(Some));
        let moments = [
            FlatTensors { prefix: "adam_m.", buf: m, scales: m_scales, stored: None },
            FlatTensors { prefix: "adam_v.", buf: v, scales: v_scales, stored: None },
        ];
        let master = master.map(|buf| FlatTensors { prefix: "master.", buf, scales: None, stored: None });
        moments.into_iter().chain(master).collect()
    }

    /// Index of the f32 copy of the weights in `states`, if there is one.
    pub const MASTER: usize = 2;

    /// Returns the f32 copy of the weights, if there is one.
    pub fn master(&self) -> Option<Buf<'a>> {
        self.states.master
    }

    /// Prepares gradients for a first backward pass, which writes all but their padding.
    pub fn begin_gradients(&self, dev: &dyn Device, grads: Partial<'_>) {
        let padding = self.padding.iter().filter(|run| !grads.is_repeated(run.start));
        padding.for_each(|run| dev.zero(grads.place(run.start, run.elements)));
    }

    /// Prepares a layer's slot for its backward pass, if layers that differ share it. `layer`: its elements.
    pub fn begin_layer(&self, dev: &dyn Device, grads: Partial<'_>, layer: Run) {
        if grads.layers_differ() {
            let padding =
                self.padding.iter().filter(|run| run.start >= layer.start && run.end() <= layer.end());
            padding.for_each(|run| dev.zero(grads.place(run.start, run.elements)));
        }
    }

    /// Returns the states as files hold them, each with where its elements are: those that this rank owns, or, with
    /// `all`, also those of the others in their arenas.
    pub fn spread_states(&self, table: &ParamTable, all: bool) -> Vec<SpreadTensors<'a>> {
        let of =
            |rank: usize| (Share { rank, ..self.share }).owned(table).into_iter().map(move |own| (rank, own));
        let mut owned: Vec<(usize, OwnedRun)> =
            if all { (0..self.share.ranks).flat_map(of).collect() } else { of(self.share.rank).collect() };
        owned.sort_unstable_by_key(|(_, owned)| owned.run.start);
        let spread = |state: FlatTensors<'a>| {
            let places = owned.iter().map(|&(rank, OwnedRun { run, at })| {
                let there = |buf: Buf<'a>| if rank == self.share.rank { buf } else { buf.of_rank(rank) };
                let (at, len) = (at as usize, run.elements as usize);
                let place = match state.scales {
                    None => Place::Numbers(there(state.buf).slice(at, len)),
                    Some(scales) => {
                        Place::Codes(Coded { codes: there(state.buf), scales: there(scales) }.slice(at, len))
                    }
                };
                (run, place)
            });
            SpreadTensors { prefix: state.prefix, dtype: state.dtype(), places: places.collect() }
        };
        self.states().into_iter().map(spread).collect()
    }

    /// Returns the global norm of the gradients; NaN or infinite if any of them is.
    pub fn grad_norm(&self, dev: &dyn Device, grads: Buf<'_>) -> f64 {
        let mut sum = 0.0;
        let mut pieces = self.buckets.iter().flat_map(|bucket| bucket.pieces());
        dev.squares_of(grads, &mut pieces, &mut |piece| sum += piece);
        sum.sqrt()
    }

    /// Appends the sums of squares of this rank's pieces, bucket by bucket. `sum`: its `owned` elements.
    pub fn squares(&self, dev: &dyn Device, sum: Buf<'_>, out: &mut Vec<f64>) {
        let mut at = 0;
        let mut pieces = self.buckets.iter().flat_map(|bucket| bucket.pieces().enumerate());
        let mut own = pieces.by_ref().filter(|(piece, _)| self.share.has(*piece)).map(|(_, run)| {
            at += run.elements;
            Run { start: at - run.elements, ..run }
        });
        dev.squares_of(sum, &mut own, &mut |piece| out.push(piece));
    }

    /// Returns the norm from every rank's `squares`, added in the order of pieces, so that ranks change no bit.
    pub fn norm_of(&self, squares: &[Vec<f64>]) -> f64 {
        let mut each: Vec<_> = squares.iter().map(|squares| squares.iter()).collect();
        let ranks = each.len();
        let owner = |piece: usize| piece * ranks / PIECES;
        let pieces = self.buckets.iter().flat_map(|_| 0..PIECES);
        let sum = pieces.fold(0.0, |sum, piece| sum + each[owner(piece)].next().expect("a sum a piece"));
        sum.sqrt()
    }

    /// Returns the elements that this rank owns.
    pub fn owned(&self) -> &[OwnedRun] {
        self.owned_by(self.share.rank)
    }

    /// Returns this rank among the ranks that share the states.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Returns the elements that a rank owns.
    pub(crate) fn owned_by(&self, rank: usize) -> &[OwnedRun] {
        &self.owned[rank].all
    }

    /// Returns the elements of the embedding that a rank owns, by their places in it.
    pub(crate) fn owned_of_embed(&self, rank: usize) -> &[OwnedRun] {
        &self.owned[rank].of_embed
    }

    /// Runs the operations once with zero gradients (`grads`, of the shard) at rate zero: weights and states stay.
    pub fn rehearse(&self, dev: &dyn Device, weights: Buf<'_>, grads: Buf<'_>, slots: Option<States<'_>>) {
        dev.zero(grads);
        match self.share {
            Share::WHOLE => _ = self.grad_norm(dev, grads),
            _ => self.squares(dev, grads, &mut Vec::new()),
        }
        let still = UpdateOptions {
            lr: 0.0,
            betas: (0.9, 0.95),
            epsilon: 1e-8,
            weight_decay: 0.0,
            grad_clip: 0.0,
            seed: 0,
            muon: None,
        };
        self.apply(dev, weights, grads, slots, adamw(still, 1.0, 1));
    }

    /// Makes one AdamW step for the rank's elements, with gradients scaled to `grad_clip` where `grad_norm` exceeds it.
    /// `slots` are those of `self.slots` and change no bit.
    pub fn update(
        &mut self,
        dev: &dyn Device,
        weights: Buf<'_>,
        grads: Buf<'_>,
        slots: Option<States<'_>>,
        how: UpdateOptions,
        grad_norm: f64,
    ) {
        let how = self.next_step(how, grad_norm);
        self.apply(dev, weights, grads, slots, how);
    }

    /// Makes the step of `update`, with the same bits, part by part of the flat buffer, for states in the arena. Calls
    /// `done` after each, on every rank for the same parts.
    pub fn update_in_parts(
        &mut self,
        dev: &dyn Device,
        weights: Buf<'_>,
        grads: Buf<'_>,
        how: UpdateOptions,
        grad_norm: f64,
        done: &mut dyn FnMut(Run),
    ) {
        let how = self.next_step(how, grad_norm);
        let of_part = self.buckets.len().div_ceil(UPDATE_PARTS).max(1);
        for part in self.buckets.chunks(of_part) {
            let (start, end) = (part[0].start, part[part.len() - 1].end());
            let within = Run { start, elements: end - start };
            self.apply_within(dev, weights, grads, how, within);
            done(within);
        }
    }

    /// Counts a step and returns its numbers.
    fn next_step(&mut self, how: UpdateOptions, grad_norm: f64) -> AdamW {
        self.step += 1;
        adamw(how, how.grad_scale(grad_norm), self.step)
    }

    /// Updates the rank's elements in `within` that are AdamW's; its states are in the arena.
    fn apply_within(&self, dev: &dyn Device, weights: Buf<'_>, grads: Buf<'_>, how: AdamW, within: Run) {
        let owned = self.matrices.as_ref().map_or(self.owned(), |matrices| &matrices.rest);
        for OwnedRun { run: owned, at } in owned.iter().filter_map(|owned| owned.inside(within)) {
            for run in outside(&self.fixed, owned) {
                let (at, len) = ((at + run.start - owned.start) as usize, run.elements as usize);
                let how = AdamW { first_element: run.start, ..how };
                let (states, grads) = (self.states.slice(at, len), grads.slice(at, len));
                let from = if self.weights_are_shard { at } else { run.start as usize };
                dev.adamw(how, bufs(weights.slice(from, len), grads, states));
            }
        }
    }

    fn apply(
        &self,
        dev: &dyn Device,
        weights: Buf<'_>,
        grads: Buf<'_>,
        slots: Option<States<'_>>,
        how: AdamW,
    ) {
        let Some(slots) = slots else {
            let whole = Run { start: 0, elements: self.buckets.last().map_or(0, Run::end) };
            return self.apply_within(dev, weights, grads, how, whole);
        };
        let chunk = slots.m.len() / OFFLOAD_SLOTS;
        let starts = (0..weights.len()).step_by(chunk);
        let host = |start: usize| self.states.slice(start, chunk.min(weights.len() - start));
        let slot = |start: usize| {
            let index = start / chunk % OFFLOAD_SLOTS;
            (index, slots.slice(index * chunk, chunk.min(weights.len() - start)))
        };
        let bring = |start: usize| {
            let (index, states) = slot(start);
            dev.offload_in(index, &mut host(start).bufs().zip(states.bufs()));
        };
        // While one slot is updated, the next comes in and the one before goes out.
        let ahead = OFFLOAD_SLOTS - 1;
        dev.offload_begin();
        starts.clone().take(ahead).for_each(bring);
        for start in starts.clone() {
            let (index, states) = slot(start);
            dev.offload_wait(index);
            let all = Run { start: start as u64, elements: states.m.len() as u64 };
            for run in outside(&self.fixed, all) {
                let (from, len) = (run.start as usize, run.elements as usize);
                let how = AdamW { first_element: run.start, ..how };
                let states = states.slice(from - start, len);
                dev.adamw(how, bufs(weights.slice(from, len), grads.slice(from, len), states));
            }
            dev.offload_out(index, &mut states.bufs().zip(host(start).bufs()));
            let next = start + ahead * chunk;
            if next < weights.len() {
                bring(next);
            }
        }
    }
}

/// Returns the elements of a parameter that are in `owned`, by their places in it.
fn owned_of(owned: &[OwnedRun], param: Option<&Param>) -> Vec<OwnedRun> {
    let Some(param) = param else { return Vec::new() };
    let whole = Run { start: param.offset, elements: param.elements };
    let within = owned.iter().filter_map(|owned| owned.inside(whole));
    within
        .map(|OwnedRun { run, at }| OwnedRun { run: Run { start: run.start - param.offset, ..run }, at })
        .collect()
}

fn bufs<'b>(weights: Buf<'b>, grad: Buf<'b>, states: States<'b>) -> AdamWBufs<'b> {
    let States { m, v, scales, master } = states;
    AdamWBufs { weights, grad, m, v, scales, master }
}

/// Returns the AdamW numbers of step `step`, for all parameters.
pub fn adamw(how: UpdateOptions, grad_scale: f32, step: u64) -> AdamW {
    AdamW {
        lr: how.lr,
        beta1: how.betas.0,
        beta2: how.betas.1,
        eps: how.epsilon,
        weight_decay: how.weight_decay,
        step,
        grad_scale,
        seed: how.seed,
        first_element: 0,
    }
}

/// Copies elements through a small host buffer, converting dtypes: a start-up cost only.
fn copy_elements(dev: &dyn Device, src: Buf<'_>, dst: Buf<'_>) {
    let mut values = vec![0f32; 1 << 16];
    for start in (0..src.len()).step_by(values.len()) {
        let n = values.len().min(src.len() - start);
        dev.read_f32(src, start, &mut values[..n]);
        dev.write_f32(dst, start, &values[..n]);
    }
}
