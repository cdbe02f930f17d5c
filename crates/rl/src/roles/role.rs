//! A role: a decoder with its head, its parameters and, if it is trained, its gradients and optimizer states.
//!
//! Actor, reference, critic and reward model differ only in the values of `RoleShape`. Pack, upload, layers, head,
//! read, loss, backward: `score` is that sequence up to the read, `gradients` all of it.

use super::kept::{HostRows, read_stored};
use super::listed::HostLists;
use crate::methods::buffers::StepBuffers;
use crate::ranks::{gather_f32, gather_f64, share_of};
use plimsoll_algo::divergence::Divergence;
use plimsoll_base::{Error, Result};
use plimsoll_device::{Aside, Device};
use plimsoll_files::{Head, OpenModel};
use plimsoll_infer::bound::{BoundModel, HeadRows};
use plimsoll_infer::phases::enter;
use plimsoll_infer::weights::{Loading, load_part, shard_region};
use plimsoll_memory::{Buf, InPhase, Overlay, Resident};
use plimsoll_model::{
    Activations, Derivatives, ExpertUse, Pass, PassIndex, backward, layers, load, rehearsal_sizes,
};
use plimsoll_plan::{PassShape, RoleName, RoleShape, UpdateShape};
use plimsoll_ranks::Group;
use plimsoll_train::{
    MuonBufs, Optimizer, Packer, Sequence, UpdateOptions, first_not_finite, gradient_not_finite,
};
use std::ops::{Deref, Range};
use std::time::Instant;

/// A model with a purpose: bound to the arena, and trained or frozen.
pub struct Role<'a> {
    pub(super) model: BoundModel<'a>,
    /// Gradients and states; none if it is frozen.
    pub optimizer: Option<Optimizer<'a>>,
}

impl<'a> Deref for Role<'a> {
    type Target = BoundModel<'a>;

    fn deref(&self) -> &BoundModel<'a> {
        &self.model
    }
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
    /// By the clock of a card that exchanges with other ranks next to its work: the seconds of that exchange.
    pub exchange_s: Option<f64>,
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
    /// The other role whose head an update compares its rows with; none if that is the role itself.
    pub teacher: Option<&'x Role<'a>>,
    /// True if ranks exchange the rows that a scoring pass keeps.
    pub keeps: bool,
}

/// Head outputs of some sequences: log-probabilities, or values.
pub enum Scores<'x> {
    /// Outputs of one micro-batch, on the device.
    Here(&'x dyn Device, HeadRows<'x>),
    /// Outputs of one rank's sequences, on the host.
    Gathered(&'x [f32], &'x HostLists, &'x HostRows),
}

impl Scores<'_> {
    /// Copies the numbers to the host; `out` has one entry per head row.
    pub fn read(&self, out: &mut [f32]) {
        match self {
            Scores::Here(dev, rows) => dev.read_f32(rows.numbers, 0, out),
            Scores::Gathered(numbers, ..) => out.copy_from_slice(numbers),
        }
    }

    /// Copies the lists of a pass that has them to the host, [R, K] each.
    pub(crate) fn read_lists(&self, ids: &mut [u32], logprobs: &mut [f32]) {
        match self {
            Scores::Here(dev, rows) => {
                let listed = rows.listed.expect("the plan lists tokens in a teacher's passes");
                dev.read_u32(listed.ids, 0, ids);
                dev.read_f32(listed.logprobs, 0, logprobs);
            }
            Scores::Gathered(_, lists, _) => lists.read(ids, logprobs),
        }
    }

    /// Copies what the head read to the host as it is stored, [R, t] e, of a pass that keeps it.
    pub(crate) fn read_kept(&self, to: &mut [u8]) {
        match self {
            Scores::Here(dev, rows) => {
                read_stored(*dev, rows.kept.expect("the plan keeps a teacher's rows"), to);
            }
            Scores::Gathered(_, _, rows) => rows.read(to),
        }
    }
}

impl<'a> Role<'a> {
    /// Binds the role's regions, as `BoundModel::bind`, and what it learns with.
    ///
    /// Errors: those of reading.
    pub fn bind(
        dev: &dyn Device,
        (resident, overlay): (Resident<'a>, &mut Overlay<'_>),
        shape: RoleShape,
        first: Option<&Role<'a>>,
        model: &OpenModel,
        how: Loading,
    ) -> Result<Role<'a>> {
        let first = first.map(|first| &first.model);
        let model = BoundModel::bind(dev, (resident, overlay), shape, first, model, how)?;
        let optimizer = shape.update.map(|of| {
            let (table, learned) = model.learned();
            // Adapters are written later; what is copied until then is written, too.
            if model.adapters.is_some() {
                dev.zero(learned);
            }
            let optimizer = Optimizer::new(dev, table, learned, resident, shape.name.name(), of.share);
            if of.muon { optimizer.with_muon(table, learned.dtype()) } else { optimizer }
        });
        Ok(Role { model, optimizer })
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
        let Passes { dev, overlay, packer, keeps, .. } = with;
        let Some(group) = with.group else {
            let each = &mut |which, rows: HeadRows<'_>| each(which, Scores::Here(dev, rows));
            return self.model.score((dev, overlay), packer, sequences, inv_temperature, each);
        };
        // Neighbours of a group stay together, so that its prompt is computed once.
        let edge = |rank: usize| {
            let start = share_of(rank, group.ranks(), sequences.len()).start;
            let is_first = |at: &usize| *at == 0 || sequences[*at].group != sequences[at - 1].group;
            (start..sequences.len()).find(is_first).unwrap_or(sequences.len())
        };
        let per_row = self.shape.score.map_or(0, |pass| pass.limits.listed);
        let (mut lists, mut kept) = (HostLists::default(), HostRows::default());
        let (mut numbers, own) = (Vec::new(), edge(group.rank())..edge(group.rank() + 1));
        self.model.score((dev, overlay), packer, &sequences[own], inv_temperature, &mut |_, rows| {
            let start = numbers.len();
            numbers.resize(start + rows.count, 0.0);
            dev.read_f32(rows.numbers, 0, &mut numbers[start..]);
            lists.add(dev, rows.listed);
            kept.add(dev, rows.kept.filter(|_| keeps));
        })?;
        let (all, lists) = (gather_f32(group, &numbers)?, lists.gather(group, per_row)?);
        let kept = if keeps { kept.gather(group)? } else { vec![kept; all.len()] };
        for (rank, numbers) in all.iter().enumerate() {
            let which = edge(rank)..edge(rank + 1);
            if !which.is_empty() {
                each(which, Scores::Gathered(numbers, &lists[rank], &kept[rank]));
            }
        }
        Ok(())
    }

    /// Computes the gradients of `of`, and applies them: their norm, and one step of the optimizer.
    ///
    /// Errors: those of `gradients`; `gradient-not-finite`; the weights are then unchanged.
    pub fn update(
        &mut self,
        with: Passes<'_, '_>,
        buffers: &mut StepBuffers,
        of: LossOf<'_, '_>,
        how: UpdateOptions,
    ) -> Result<UpdateStats> {
        let Passes { dev, group, overlay, packer, teacher, .. } = with;
        let phase = enter(dev, overlay, self.update_shape().pass.mode.phase());
        // Gradients that are formed one by one are added as by several ranks, here by one.
        let alone = match group.is_none() && self.update_shape().dtypes.is_chained(1) {
            true => Some(Group::alone()?),
            false => None,
        };
        let group = group.or(alone.as_ref());
        let (sum, stats) = self.gradients((dev, teacher), &phase, packer, buffers, of, group)?;
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
        self.step_matrices(dev, phase, grads, how, stats.grad_norm, group)?;
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
        stats.exchange_s = group.and(dev.aside()).map(Aside::seconds);
        Ok(stats)
    }

    /// Makes Muon's step of matrices, if it has one: all ranks read what each has added to its momentum.
    ///
    /// Errors: `rank-lost`.
    fn step_matrices(
        &self,
        dev: &dyn Device,
        phase: &InPhase<'_>,
        grads: Buf<'_>,
        how: UpdateOptions,
        grad_norm: f64,
        group: Option<&Group>,
    ) -> Result<()> {
        let Some(bufs) = MuonBufs::bind(phase, self.shape.name.name()) else { return Ok(()) };
        self.trained().add_momentum(dev, grads, how, grad_norm);
        if let Some(group) = group {
            dev.sync();
            group.barrier()?;
        }
        self.trained().step_matrices(dev, self.learned().1, grads, bufs, how);
        Ok(())
    }

    /// Runs every shape of its passes once. Weights and states stay unchanged.
    pub fn rehearse(&self, with: Passes<'_, '_>) -> Result<()> {
        let Passes { dev, overlay, positions, teacher, .. } = with;
        let update = self.shape.update.map(|update| update.pass);
        if let Some(pass) = self.shape.score.filter(|score| update.is_none_or(|u| u.mode != score.mode)) {
            let phase = enter(dev, overlay, pass.mode.phase());
            let from = self.layers(dev, &phase);
            let decoder = &*from.decoder().over(pass.vocab);
            rehearse_passes(dev, &phase, pass, positions, &mut |pass, _| {
                layers(dev, &*from, pass);
                self.head(dev, decoder, pass, 1.0);
                self.rehearse_lists(dev, decoder, pass);
            })?;
        }
        let Some(pass) = update else { return Ok(()) };
        let phase = enter(dev, overlay, pass.mode.phase());
        let (optimizer, grads) = (self.trained(), self.bind_gradients(&phase));
        let from = self.layers(dev, &phase);
        let of_whole = self.teacher_head((dev, &phase), teacher, &*from, Some(Divergence::Reverse), 1.0);
        rehearse_passes(dev, &phase, pass, positions, &mut |pass, heads| {
            let pass = &pass.with_teacher(of_whole);
            layers(dev, &*from, pass);
            self.head(dev, from.decoder(), pass, 1.0);
            self.rehearse_lists(dev, from.decoder(), pass);
            self.rehearse_whole(dev, from.decoder(), pass, heads);
            let lists = pass.listed().map_or(0, |listed| listed.ids.len());
            let diverges = if lists > 0 || of_whole.is_some() { heads } else { 0 };
            if lists > 0 {
                pass.set_divergence(dev, &vec![0.0; lists], &vec![0.0; heads]);
            }
            // Not zeros: algorithms are compared by the gradients that they compute from these.
            let (ones, zeros) = (vec![1.0; heads], vec![0.0; heads]);
            backward(
                dev,
                &*from,
                grads.to(),
                false,
                pass,
                self.derivatives(1.0, [&ones, &zeros, &zeros[..diverges]]),
            );
        })?;
        let slots = optimizer.slots(&phase, self.shape.name.name());
        let sum = phase.get(&shard_region(&self.shape)).unwrap_or(grads.all());
        optimizer.rehearse(dev, self.learned().1, sum, slots);
        if let Some(bufs) = MuonBufs::bind(&phase, self.shape.name.name()) {
            optimizer.rehearse_matrices(dev, bufs);
        }
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
        if let Some((_, share, part)) = self.in_parts() {
            load_part(dev, overlay, &self.shape, &self.table, (share, part), model, how)?;
        } else {
            load(dev, model, &self.table, &self.decoder().params, how.seed, how.staging)?;
        }
        self.load_adapters(dev, overlay, how.adapters(self.shape.name, model), how.staging)
    }

    pub(super) fn update_shape(&self) -> UpdateShape {
        self.shape.update.expect("only trained roles are updated")
    }

    pub(super) fn trained(&self) -> &Optimizer<'a> {
        self.optimizer.as_ref().expect("a trained role has an optimizer")
    }

    pub(super) fn derivatives<'d>(
        &self,
        inv_temperature: f32,
        [d_head, d_entropy, divergence]: [&'d [f32]; 3],
    ) -> Derivatives<'d> {
        match self.shape.head {
            Head::Vocabulary => {
                Derivatives::Vocabulary { inv_temperature, logprobs: d_head, entropy: d_entropy, divergence }
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
