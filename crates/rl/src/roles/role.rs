//! A role: a decoder with its head, its parameters and, if it is trained, its gradients and optimizer states.
//!
//! Actor, reference, critic and reward model differ only in the values of `RoleShape`. Pack, upload, layers, head,
//! read, loss, backward: `score` is that sequence up to the read, `gradients` all of it.

use super::phases::enter;
use super::weights::{
    Elsewhere, Loading, Weights, bind_weights, load_part, shard_region, spread, whole_source,
};
use crate::methods::buffers::StepBuffers;
use crate::ranks::{gather_f32, gather_f64, share_of};
use plimsoll_base::{Error, Result};
use plimsoll_device::Device;
use plimsoll_files::{Head, OpenModel};
use plimsoll_memory::{Buf, InPhase, Overlay, Resident};
use plimsoll_model::{
    Activations, Adapters, Decoder, Derivatives, ExpertUse, Merged, ParamTable, Params, Pass, PassIndex,
    backward, head, layers, load, rehearsal_sizes, rope, values,
};
use plimsoll_plan::{PassShape, RoleName, RoleShape, UpdateShape, WeightsAre};
use plimsoll_ranks::Group;
use plimsoll_train::{
    Optimizer, Packer, Sequence, Share, UpdateOptions, first_not_finite, gradient_not_finite,
};
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

/// A model of a run, such as the actor or the critic, bound to the arena.
pub struct Role<'a> {
    pub shape: RoleShape,
    pub table: ParamTable,
    /// Adapters with their parameter table. If a trained role has adapters, only they are trained.
    pub adapters: Option<(ParamTable, Adapters<'a>)>,
    /// The frozen weights, and copies of them with the adapters added, if products read such copies.
    pub(super) merged: Option<(Params<'a>, Merged<'a>)>,
    /// Gradients and optimizer states; none if the role is frozen.
    pub optimizer: Option<Optimizer<'a>>,
    /// Sum of squares of the frozen weights, and of frozen adapters; it identifies their model.
    pub sum_squares: Option<f64>,
    pub(super) weights: Weights<'a>,
}

/// Counters of an update over some sequences.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpdateStats {
    pub grad_norm: f64,
    pub micro_batches: u32,
    pub rows: u64,
    pub forward_s: f64,
    pub backward_s: f64,
    pub optimizer_s: f64,
    /// Expert load balance (MoE models only).
    pub experts: Option<ExpertUse>,
}

/// Why the loss of a micro-batch is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossFor {
    /// For its derivatives only: a rank needs those of its own micro-batch first.
    Derivatives,
    /// For its sums too, which every rank adds in the order of micro-batches.
    Sums,
}

/// Computes the loss of a micro-batch's tokens from the buffers, and writes the derivatives there.
pub type Loss<'x> = dyn FnMut(&mut StepBuffers, Range<usize>, LossFor) -> Result<()> + 'x;

/// A loss, and the sequences to compute it over.
pub struct LossOf<'x, 's> {
    pub sequences: &'x [Sequence<'s>],
    pub which: Range<usize>,
    pub inv_temperature: f32,
    /// Called for each micro-batch after its forward pass.
    pub loss: &'x mut Loss<'x>,
}

/// The device, memory and packer that all roles share for their passes.
pub struct Passes<'x, 'a> {
    pub dev: &'a dyn Device,
    /// The other ranks, if there are any.
    pub group: Option<&'a Group>,
    /// Memory that phases share.
    pub overlay: &'x mut Overlay<'a>,
    /// Cuts sequences into micro-batches.
    pub packer: &'x mut Packer,
    /// Rows of the rotary tables.
    pub positions: usize,
}

/// Head outputs of some sequences: log-probabilities, or values.
pub enum Scores<'x> {
    /// Outputs of one micro-batch, on the device.
    Here(&'x dyn Device, Buf<'x>),
    /// Outputs of one rank's sequences, on the host.
    Gathered(&'x [f32]),
}

impl Scores<'_> {
    /// Copies the numbers to the host; `out` has one entry per head row.
    pub fn read(&self, out: &mut [f32]) {
        match self {
            Scores::Here(dev, buf) => dev.read_f32(*buf, 0, out),
            Scores::Gathered(numbers) => out.copy_from_slice(numbers),
        }
    }
}

impl<'a> Role<'a> {
    /// Binds the role's regions and reads its weights from `model`. `first` is the run's first role, whose rotary table
    /// serves the others where their shapes allow it; none for the first role itself.
    pub fn bind(
        dev: &dyn Device,
        (resident, overlay): (Resident<'a>, &mut Overlay<'_>),
        shape: RoleShape,
        first: Option<&Role<'a>>,
        model: &OpenModel,
        how: Loading,
    ) -> Result<Role<'a>> {
        let (name, table) = (shape.name.name(), Rc::unwrap_or_clone(shape.table()));
        let own_rope = resident.get(&format!("{name}.rope"));
        let rope = match first {
            None => resident.buf("rope.table"),
            Some(first) => own_rope.unwrap_or(first.rope()),
        };
        if first.is_none() || own_rope.is_some() {
            rope::fill(dev, &shape.spec, rope);
        }
        if let Some(all) = resident.get(&format!("offload.{name}.weights")) {
            // An offloaded role is a copy of the first role before its first step.
            let of = first.expect("the first role is never offloaded").decoder().params.all;
            dev.offload_begin();
            dev.offload_out(0, &mut std::iter::once((of, all)));
            dev.sync();
            let source = whole_source(&table, all);
            let weights = Elsewhere { source, rope, part: None, sum_squares: dev.sum_squares(of) };
            return Ok(Role::frozen(shape, table, weights.sum_squares, Weights::Streamed(weights)));
        }
        if let WeightsAre::Spread(share) = shape.weights_are {
            let of = (shape, table, share);
            return Role::bind_spread(dev, (resident, overlay), of, rope, first, model, how);
        }
        let (owner, all) = match (shape.weights_are, first) {
            (WeightsAre::FirstRoles, Some(first)) => (first.shape.name, first.decoder().params.all),
            _ => (shape.name, resident.buf(&format!("{name}.weights"))),
        };
        let params = bind_weights(&shape, &table, resident, owner, all);
        if owner == shape.name {
            load(dev, model, &table, &params, how.seed, how.staging)?;
        }
        let adapters = shape.lora.zip(shape.adapters()).map(|(lora, table)| {
            let table = Rc::unwrap_or_clone(table);
            let all = resident.buf(&format!("{name}.adapters"));
            let of = Adapters::bind(&shape.spec, &table, shape.weights, lora.shape, lora.scale, all);
            (table, of)
        });
        let frozen = params.clone();
        let merged = shape.merged().map(|table| {
            let all = resident.buf(&format!("{name}.merged"));
            (frozen.clone(), Merged::bind(&shape.spec, &table, shape.weights, all))
        });
        let params = match (&adapters, &merged) {
            (Some((_, adapters)), Some((_, merged))) => params.with_merged(adapters, merged),
            (adapters, _) => params.with_adapters(adapters.as_ref().map(|(_, adapters)| adapters)),
        };
        let trained = adapters.as_ref().map_or((&table, all), |(table, adapters)| (table, adapters.all));
        let of = |of: UpdateShape| Optimizer::new(dev, trained.0, trained.1, resident, name, of.share);
        let optimizer = shape.update.map(of);
        let is_frozen = adapters.is_some() || (first.is_some() && optimizer.is_none());
        let sum_squares = is_frozen.then(|| frozen.sum_squares(dev));
        let decoder = Decoder { spec: shape.spec, dtype: shape.weights, params, rope };
        let weights = Weights::Resident(decoder);
        Ok(Role { shape, table, adapters, merged, optimizer, sum_squares, weights })
    }

    /// Binds a role whose weights are spread over the ranks.
    fn bind_spread(
        dev: &dyn Device,
        (resident, overlay): (Resident<'a>, &mut Overlay<'_>),
        (shape, table, share): (RoleShape, ParamTable, Share),
        rope: Buf<'a>,
        first: Option<&Role<'a>>,
        model: &OpenModel,
        how: Loading,
    ) -> Result<Role<'a>> {
        let name = shape.name.name();
        let part = resident.buf(&format!("{name}.weights"));
        let sum_squares = match first.filter(|_| shape.whole_in().is_none()) {
            Some(first) => first.copy_part(dev, share, part),
            None => load_part(dev, overlay, &shape, &table, (share, part), model, how)?,
        };
        let source = spread(&table, share, part);
        let weights = Elsewhere { source, rope, part: Some((share, part)), sum_squares };
        let mut role = Role::frozen(shape, table, sum_squares, Weights::Streamed(weights));
        let of = |of: UpdateShape| Optimizer::new(dev, &role.table, part, resident, name, of.share);
        role.optimizer = shape.update.map(of);
        role.sum_squares = role.sum_squares.filter(|_| role.optimizer.is_none());
        Ok(role)
    }

    fn frozen(shape: RoleShape, table: ParamTable, sum_squares: f64, weights: Weights<'a>) -> Role<'a> {
        let (adapters, merged, optimizer) = (None, None, None);
        Role { shape, table, adapters, merged, optimizer, sum_squares: Some(sum_squares), weights }
    }

    pub fn updates(&self) -> u64 {
        self.optimizer.as_ref().map_or(0, |optimizer| optimizer.step)
    }

    /// Runs forward passes over all sequences. `each` gets the sequences of a micro-batch and the head's numbers: the
    /// log-probabilities of their response tokens, or their values.
    pub fn score(
        &self,
        with: Passes<'_, '_>,
        sequences: &[Sequence<'_>],
        inv_temperature: f32,
        each: &mut dyn FnMut(Range<usize>, Scores<'_>),
    ) -> Result<()> {
        let Some(group) = with.group else {
            return self
                .score_here(with, sequences, inv_temperature, &mut |which, scores, _| each(which, scores));
        };
        // Neighbours of a group stay together, so that its prompt is computed once.
        let edge = |rank: usize| {
            let start = share_of(rank, group.ranks(), sequences.len()).start;
            let is_first = |at: &usize| *at == 0 || sequences[*at].group != sequences[at - 1].group;
            (start..sequences.len()).find(is_first).unwrap_or(sequences.len())
        };
        let (mut numbers, own) = (Vec::new(), edge(group.rank())..edge(group.rank() + 1));
        self.score_here(with, &sequences[own], inv_temperature, &mut |_, scores, heads| {
            let start = numbers.len();
            numbers.resize(start + heads, 0.0);
            scores.read(&mut numbers[start..]);
        })?;
        for (rank, numbers) in gather_f32(group, &numbers)?.iter().enumerate() {
            let which = edge(rank)..edge(rank + 1);
            if !which.is_empty() {
                each(which, Scores::Gathered(numbers));
            }
        }
        Ok(())
    }

    /// Scores sequences on this rank; `each` also gets the number of head rows.
    fn score_here(
        &self,
        with: Passes<'_, '_>,
        sequences: &[Sequence<'_>],
        inv_temperature: f32,
        each: &mut dyn FnMut(Range<usize>, Scores<'_>, usize),
    ) -> Result<()> {
        let pass = self.shape.score.expect("the plan has a scoring pass for each role that scores");
        let Passes { dev, overlay, packer, .. } = with;
        let phase = enter(dev, overlay, pass.mode.phase());
        let acts = Activations::bind(&phase, pass.mode, pass.limits);
        let from = self.layers(dev, &phase);
        let mut first = 0;
        while first < sequences.len() {
            let batch = packer.pack_as(pass.packing, sequences, first)?;
            let pass = Pass::upload(dev, acts, batch.index);
            layers(dev, &*from, &pass);
            let buf = self.head(dev, from.decoder(), &pass, inv_temperature);
            first = batch.sequences.end;
            each(batch.sequences, Scores::Here(dev, buf), batch.head.len());
            dev.check()?;
        }
        Ok(())
    }

    /// Computes the gradients of `of` and their norm, and makes one optimizer step.
    ///
    /// Errors: those of `gradients`; `gradient-not-finite`; the weights are then unchanged.
    pub fn update(
        &mut self,
        with: Passes<'_, '_>,
        buffers: &mut StepBuffers,
        of: LossOf<'_, '_>,
        how: UpdateOptions,
    ) -> Result<UpdateStats> {
        let Passes { dev, group, overlay, packer, .. } = with;
        let phase = enter(dev, overlay, self.update_shape().pass.mode.phase());
        // Gradients that are formed one by one are added as by several ranks, here by one.
        let alone = match group.is_none() && self.update_shape().dtypes.is_chained(1) {
            true => Some(Group::alone()?),
            false => None,
        };
        let group = group.or(alone.as_ref());
        let (sum, stats) = self.gradients(dev, &phase, packer, buffers, of, group)?;
        self.apply(dev, &phase, sum, stats, how, group)
    }

    fn apply(
        &mut self,
        dev: &dyn Device,
        phase: &InPhase<'_>,
        grads: Buf<'_>,
        mut stats: UpdateStats,
        how: UpdateOptions,
        group: Option<&Group>,
    ) -> Result<UpdateStats> {
        let started = Instant::now();
        stats.grad_norm = match group {
            None => self.trained().grad_norm(dev, grads),
            Some(group) => {
                let mut squares = Vec::new();
                self.trained().squares(dev, grads, &mut squares);
                self.trained().norm_of(&gather_f64(group, &squares)?)
            }
        };
        if !stats.grad_norm.is_finite() {
            return Err(self.gradient_not_finite(dev, grads, group));
        }
        if let Some(group) = group {
            self.update_together(dev, group, grads, how, stats.grad_norm)?;
        } else {
            // The passes are over, so the slots may reuse their memory.
            let slots = self.trained().slots(phase, self.shape.name.name());
            let (_, learned) = self.learned();
            let optimizer = self.optimizer.as_mut().expect("a trained role has an optimizer");
            optimizer.update(dev, learned, grads, slots, how, stats.grad_norm);
            dev.sync();
        }
        self.merge(dev);
        dev.check()?;
        stats.optimizer_s = started.elapsed().as_secs_f64();
        Ok(stats)
    }

    /// Runs every shape of its passes once. Weights and states stay unchanged.
    pub fn rehearse(&self, with: Passes<'_, '_>) -> Result<()> {
        let Passes { dev, overlay, positions, .. } = with;
        let update = self.shape.update.map(|update| update.pass);
        if let Some(pass) = self.shape.score.filter(|score| update.is_none_or(|u| u.mode != score.mode)) {
            let phase = enter(dev, overlay, pass.mode.phase());
            let from = self.layers(dev, &phase);
            rehearse_passes(dev, &phase, pass, positions, &mut |pass, _| {
                layers(dev, &*from, pass);
                self.head(dev, from.decoder(), pass, 1.0);
            })?;
        }
        let Some(pass) = update else { return Ok(()) };
        let phase = enter(dev, overlay, pass.mode.phase());
        let (optimizer, grads) = (self.trained(), self.bind_gradients(&phase));
        let from = self.layers(dev, &phase);
        rehearse_passes(dev, &phase, pass, positions, &mut |pass, heads| {
            layers(dev, &*from, pass);
            self.head(dev, from.decoder(), pass, 1.0);
            // Not zeros: algorithms are compared by the gradients that they compute from these.
            let (ones, zeros) = (vec![1.0; heads], vec![0.0; heads]);
            backward(dev, &*from, grads.to(), false, pass, self.derivatives(1.0, [&ones, &zeros]));
        })?;
        let slots = optimizer.slots(&phase, self.shape.name.name());
        let sum = phase.get(&shard_region(&self.shape)).unwrap_or(grads.all());
        optimizer.rehearse(dev, self.learned().1, sum, slots);
        dev.sync();
        dev.check()
    }

    /// Reads the initial weights again.
    pub fn reload(
        &self,
        dev: &dyn Device,
        overlay: &mut Overlay<'_>,
        model: &OpenModel,
        how: Loading,
    ) -> Result<()> {
        if let Some((share, part)) = self.part() {
            return load_part(dev, overlay, &self.shape, &self.table, (share, part), model, how).map(|_| ());
        }
        load(dev, model, &self.table, &self.decoder().params, how.seed, how.staging)?;
        self.load_adapters(dev, overlay, how.adapters(self.shape.name, model), how.staging)
    }

    pub(super) fn update_shape(&self) -> UpdateShape {
        self.shape.update.expect("only trained roles are updated")
    }

    pub(super) fn trained(&self) -> &Optimizer<'a> {
        self.optimizer.as_ref().expect("a trained role has an optimizer")
    }

    /// Runs the head after the layers and returns its numbers: [R] f32.
    pub(super) fn head<'p>(
        &self,
        dev: &dyn Device,
        decoder: &Decoder<'_>,
        pass: &Pass<'p>,
        inv_temperature: f32,
    ) -> Buf<'p> {
        match self.shape.head {
            Head::Vocabulary => {
                head(dev, decoder, pass, inv_temperature);
                pass.head_out().logprobs
            }
            Head::Score => {
                values(dev, decoder, pass);
                pass.values()
            }
        }
    }

    pub(super) fn derivatives<'d>(
        &self,
        inv_temperature: f32,
        [d_head, d_entropy]: [&'d [f32]; 2],
    ) -> Derivatives<'d> {
        match self.shape.head {
            Head::Vocabulary => {
                Derivatives::Vocabulary { inv_temperature, logprobs: d_head, entropy: d_entropy }
            }
            Head::Score => Derivatives::Values(d_head),
        }
    }

    /// Returns the error that names the first tensor whose gradient is not finite, the same on all ranks.
    fn gradient_not_finite(&self, dev: &dyn Device, grads: Buf<'_>, group: Option<&Group>) -> Error {
        let (table, _) = self.learned();
        let mut broken = first_not_finite(dev, table, self.trained().owned(), grads);
        if let Some(group) = group {
            let own = broken.map_or(f64::INFINITY, |index| index as f64);
            let all = match gather_f64(group, &[own]) {
                Ok(all) => all,
                Err(error) => return error,
            };
            let first = all.into_iter().flatten().fold(f64::INFINITY, f64::min);
            broken = first.is_finite().then_some(first as usize);
        }
        let error = gradient_not_finite(table, broken);
        match self.shape.name {
            RoleName::Critic => error.fact("it is the critic's").hint("lower critic.learning_rate"),
            _ => error,
        }
    }
}

/// Runs a pass of every size for which products choose another algorithm; `run` gets each size and its head rows.
fn rehearse_passes(
    dev: &dyn Device,
    phase: &InPhase<'_>,
    shape: PassShape,
    positions: usize,
    run: &mut dyn FnMut(&Pass<'_>, usize),
) -> Result<()> {
    let (limits, acts) = (shape.limits, Activations::bind(phase, shape.mode, shape.limits));
    let mut index = PassIndex::with_capacity(&limits);
    for rows in rehearsal_sizes(&limits, positions) {
        let heads = rows.min(limits.head_rows);
        index.rehearse(&limits, rows, positions, heads);
        run(&Pass::upload(dev, acts, &index), heads);
    }
    dev.sync();
    dev.check()
}
