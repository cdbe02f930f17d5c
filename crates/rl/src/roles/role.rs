//! A role: a decoder with its head, its parameters and, if it is trained, its gradients and optimizer states.
//!
//! Actor, reference, critic and reward model differ only in the values of `RoleShape`. Pack, upload, layers, head,
//! read, loss, backward: `score` is that sequence up to the read, `gradients` all of it.

use super::kept::read_stored;
use super::tower::TrainedTower;
use crate::arrays::TokenArrays;
use crate::ranks::{gather, share_of};
use plimsoll_algo::divergence::Divergence;
use plimsoll_base::{Error, Result};
use plimsoll_device::{Aside, Device};
use plimsoll_files::{Head, OpenModel};
use plimsoll_infer::bound::{BoundModel, HeadRows};
use plimsoll_infer::form::TextForm;
use plimsoll_infer::image_table::ImageTable;
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

/// Computes the loss of a micro-batch's tokens from the buffers, and writes the derivatives there. Called once for each
/// micro-batch, of several ranks on each for all of them; a rank's own comes first (`InOrder`).
pub type Loss<'x> = dyn FnMut(&mut TokenArrays, Range<usize>) -> Result<()> + 'x;

/// A loss, and the sequences to compute it over.
pub struct LossOf<'x, 's> {
    pub sequences: &'x [Sequence<'s>],
    pub which: Range<usize>,
    pub inv_temperature: f32,
    /// True if the gradients are added to those of the passes before, with no other phase in between.
    pub goes_on: bool,
    /// Called for each micro-batch after its forward pass.
    pub loss: &'x mut Loss<'x>,
}

/// The device, memory and packer that all roles share for their passes.
pub struct Passes<'x, 'a> {
    pub dev: &'a dyn Device,
    /// All ranks.
    pub group: &'a Group,
    /// Memory that phases share.
    pub overlay: &'x mut Overlay<'a>,
    /// Cuts sequences into micro-batches.
    pub packer: &'x mut Packer,
    /// The images that prompts may name, in a plan with images.
    pub images: Option<&'x mut ImageTable<'a>>,
    /// The tower over images, if it learns with the role.
    pub tower: Option<&'x mut TrainedTower<'a>>,
    /// Rows of the rotary tables.
    pub positions: usize,
    /// The other role whose head an update compares its rows with; none if that is the role itself.
    pub teacher: Option<&'x Role<'a>>,
    /// What responses were held to.
    pub form: Option<&'x TextForm>,
}

/// The device, ranks and packer of an update's passes, whose phase has begun.
pub(super) struct GradientPasses<'x, 'a> {
    pub dev: &'x dyn Device,
    pub group: &'x Group,
    pub packer: &'x mut Packer,
    /// The images of the update's prompts, in a plan with images.
    pub images: Option<&'x ImageTable<'a>>,
    /// The other role whose head the update compares its rows with.
    pub teacher: Option<&'x Role<'a>>,
    pub form: Option<&'x TextForm>,
}

/// Holds the images of an update's sequences, and begins its phase.
///
/// Errors: those of reading images.
pub(super) fn enter_update<'p>(
    dev: &dyn Device,
    overlay: &'p mut Overlay<'_>,
    images: Option<&mut ImageTable<'_>>,
    role: &Role<'_>,
    of: &LossOf<'_, '_>,
) -> Result<InPhase<'p>> {
    if let Some(images) = images {
        let sequences = of.sequences[of.which.clone()].iter();
        images.hold(dev, overlay, sequences.flat_map(|s| [s.prompt, s.response]))?;
    }
    let phase = role.update_shape().pass.mode.phase();
    // What the phase holds stays: a checked device would fill it.
    Ok(if of.goes_on { overlay.enter(phase) } else { enter(dev, overlay, phase) })
}

/// Head outputs of a micro-batch, on the device: log-probabilities, or values.
pub struct Scores<'x> {
    dev: &'x dyn Device,
    rows: HeadRows<'x>,
}

impl Scores<'_> {
    /// Copies the numbers to the host; `out` has one entry per head row.
    pub fn read(&self, out: &mut [f32]) {
        self.dev.read_f32(self.rows.numbers, 0, out);
    }

    /// Copies the lists of a pass that has them to the host, [R, K] each.
    pub(crate) fn read_lists(&self, ids: &mut [u32], logprobs: &mut [f32]) {
        let listed = self.rows.listed.expect("the plan lists tokens in a teacher's passes");
        self.dev.read_u32(listed.ids, 0, ids);
        self.dev.read_f32(listed.logprobs, 0, logprobs);
    }

    /// Copies what the head read to the host as it is stored, [R, t] e, of a pass that keeps it.
    pub(crate) fn read_kept(&self, to: &mut [u8]) {
        read_stored(self.dev, self.rows.kept.expect("the plan keeps a teacher's rows"), to);
    }
}

/// Returns the sequences that each rank scores, by rank. Neighbours of a group stay together, so that its prompt is
/// computed once.
fn scored_by(group: &Group, sequences: &[Sequence<'_>]) -> Vec<Range<usize>> {
    let edge = |rank: usize| {
        let start = share_of(rank, group.ranks(), sequences.len()).start;
        let is_first = |at: &usize| *at == 0 || sequences[*at].group != sequences[at - 1].group;
        (start..sequences.len()).find(is_first).unwrap_or(sequences.len())
    };
    (0..group.ranks()).map(|rank| edge(rank)..edge(rank + 1)).collect()
}

impl<'a> Role<'a> {
    /// Binds the role's regions, as `BoundModel::bind`, and what it learns with.
    ///
    /// Errors: those of reading.
    pub fn bind(
        dev: &dyn Device,
        resident: Resident<'a>,
        overlay: &mut Overlay<'_>,
        shape: RoleShape,
        first: Option<&Role<'a>>,
        model: &OpenModel,
        how: Loading,
    ) -> Result<Role<'a>> {
        let first = first.map(|first| &first.model);
        let model = BoundModel::bind(dev, resident, overlay, shape, first, model, how)?;
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

    /// Runs forward passes over this rank's part of the sequences. `each` gets the sequences of a micro-batch and their
    /// scores. Returns the part of each rank, by rank, whose scores are to be shared.
    pub fn score(
        &self,
        with: Passes<'_, 'a>,
        sequences: &[Sequence<'_>],
        inv_temperature: f32,
        each: &mut dyn FnMut(Range<usize>, Scores<'_>),
    ) -> Result<Vec<Range<usize>>> {
        let Passes { dev, overlay, packer, images, group, form, .. } = with;
        let parts = scored_by(group, sequences);
        let own = parts[group.rank()].clone();
        let each = &mut |which: Range<usize>, rows: HeadRows<'_>| {
            each(own.start + which.start..own.start + which.end, Scores { dev, rows });
        };
        self.model.score(
            dev,
            overlay,
            (packer, images, form),
            &sequences[own.clone()],
            inv_temperature,
            each,
        )?;
        Ok(parts)
    }

    /// Computes the gradients of `of`, and applies them: their norm, and one step of the optimizer.
    ///
    /// Errors: those of `gradients`; `gradient-not-finite`; the weights are then unchanged.
    pub fn update(
        &mut self,
        with: Passes<'_, 'a>,
        buffers: &mut TokenArrays,
        of: LossOf<'_, '_>,
        how: UpdateOptions,
    ) -> Result<UpdateStats> {
        let Passes { dev, group, overlay, packer, mut images, tower, teacher, form, .. } = with;
        let phase = enter_update(dev, overlay, images.as_deref_mut(), self, &of)?;
        let learns = tower.is_some() || self.adapts_tower();
        if let Some(images) = images.as_ref().filter(|_| learns) {
            images.begin_gradients(dev, &phase);
        }
        let with = GradientPasses { dev, group, packer, images: images.as_deref(), teacher, form };
        let (sum, stats) = self.gradients(with, &phase, buffers, of)?;
        if let Some(images) = images.as_deref_mut() {
            self.add_tower(dev, &phase, images, sum)?;
        }
        let of_tower = match (&tower, images.as_deref_mut()) {
            (Some(tower), Some(images)) => tower.gradients(dev, &phase, images)?,
            _ => 0.0,
        };
        let stats = self.apply(dev, &phase, (sum, of_tower), stats, how, group)?;
        if let Some(tower) = tower {
            tower.apply(dev, &phase, how, stats.grad_norm);
        }
        if let Some(images) = images.filter(|_| learns) {
            images.forget();
        }
        Ok(stats)
    }

    /// True if each micro-batch's gradients are formed by themselves and then added, as several ranks do.
    pub(super) fn is_chained(&self, group: &Group) -> bool {
        !group.is_alone() || self.update_shape().dtypes.is_chained(1)
    }

    /// Applies the gradients that `gradients` has added up in this phase: their norm, and one step of the optimizer.
    ///
    /// Errors: `gradient-not-finite`; the weights are then unchanged.
    pub(super) fn apply_sum(
        &mut self,
        with: Passes<'_, 'a>,
        stats: UpdateStats,
        how: UpdateOptions,
    ) -> Result<UpdateStats> {
        let Passes { dev, group, overlay, .. } = with;
        let phase = overlay.enter(self.update_shape().pass.mode.phase());
        let sum = if self.is_chained(group) {
            phase.buf(&shard_region(&self.shape))
        } else {
            self.bind_gradients(&phase).all()
        };
        self.apply(dev, &phase, (sum, 0.0), stats, how, group)
    }

    fn apply(
        &mut self,
        dev: &dyn Device,
        phase: &InPhase<'_>,
        (grads, of_tower): (Buf<'_>, f64),
        mut stats: UpdateStats,
        how: UpdateOptions,
        group: &Group,
    ) -> Result<UpdateStats> {
        let started = Instant::now();
        let mut squares = Vec::new();
        self.trained().squares(dev, grads, &mut squares);
        stats.grad_norm = self.trained().norm_of(&gather(group, &squares)?);
        if of_tower > 0.0 {
            stats.grad_norm = stats.grad_norm.hypot(of_tower);
        }
        if !stats.grad_norm.is_finite() {
            return Err(self.gradient_not_finite(dev, grads, group));
        }
        self.step_matrices(dev, phase, grads, how, stats.grad_norm, group)?;
        let is_chained = self.is_chained(group);
        if is_chained {
            self.update_together(dev, group, grads, how, stats.grad_norm)?;
        } else {
            // The passes are over, so the slots may reuse their memory.
            let slots = self.trained().slots(phase, self.shape.name.name());
            let (_, learned) = self.learned();
            let optimizer = self.optimizer.as_mut().expect("a trained role has an optimizer");
            optimizer.update(dev, learned, grads, slots, how, stats.grad_norm);
            dev.sync();
        }
        self.refresh(dev);
        dev.check()?;
        stats.optimizer_s = started.elapsed().as_secs_f64();
        stats.exchange_s = dev.aside().filter(|_| is_chained).map(Aside::seconds);
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
        group: &Group,
    ) -> Result<()> {
        let Some(bufs) = MuonBufs::bind(phase, self.shape.name.name()) else { return Ok(()) };
        self.trained().add_momentum(dev, grads, how, grad_norm);
        dev.sync();
        group.barrier()?;
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
        let of_whole = self.teacher_head(dev, &phase, teacher, &*from, Some(Divergence::Reverse), 1.0);
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
    fn gradient_not_finite(&self, dev: &dyn Device, grads: Buf<'_>, group: &Group) -> Error {
        let (table, _) = self.learned();
        let own = first_not_finite(dev, table, self.trained().owned(), grads);
        let all = match gather(group, &[own.map_or(f64::INFINITY, |index| index as f64)]) {
            Ok(all) => all,
            Err(error) => return error,
        };
        let first = all.into_iter().flatten().fold(f64::INFINITY, f64::min);
        let broken = first.is_finite().then_some(first as usize);
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
