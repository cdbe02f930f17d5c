//! The trainer: a sampler with the roles of a run and the step's arrays.

use super::role::{GradientPasses, Loss, LossOf, Passes, Role, Scores, UpdateStats, enter_update};
use super::tower::TrainedTower;
use crate::arrays::TokenArrays;
use crate::ranks::{share, share_in_pieces};
use crate::supply::apart::ApartRanks;
use plimsoll_base::Result;
use plimsoll_device::{Device, Sampling};
use plimsoll_files::OpenModel;
use plimsoll_infer::bound::Sources;
use plimsoll_infer::form::TextForm;
use plimsoll_infer::image_table::ImageTable;
use plimsoll_infer::sampler::Sampler;
use plimsoll_infer::sight::TowerOf;
use plimsoll_memory::{Arena, Buf};
use plimsoll_model::{AdaptersFrom, ParamTable};
use plimsoll_plan::{KEPT_PIECE_BYTES, RoleName, RunShape};
use plimsoll_ranks::Group;
use plimsoll_rollout::{Lengths, Live, Recorded, Request, RolloutStats, SoFar, StopCondition};
use plimsoll_train::{Packer, Sequence, UpdateOptions};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A sampler with the roles of a run, and everything else that a step needs.
pub struct Trainer<'a> {
    pub sampler: Sampler<'a>,
    pub arrays: TokenArrays,
    /// The first is the one that is sampled from or trained.
    pub(crate) roles: Vec<Role<'a>>,
    packer: Option<Packer>,
    /// The images as a teacher's own tower sees them.
    teacher_images: Option<ImageTable<'a>>,
    /// The tower over images, where it learns with the first role.
    pub(crate) tower: Option<TrainedTower<'a>>,
    /// What a reference sees by next to a tower that learns.
    reference_images: Option<ImageTable<'a>>,
    /// The ranks that make its passes together.
    pub group: &'a Group,
    /// All ranks and this one's place, where ranks only sample or only train.
    pub apart: Option<ApartRanks<'a>>,
    /// Response lengths on all ranks, from which prompts are dealt to ranks.
    pub(crate) lengths: Lengths,
    /// What responses are held to.
    pub form: Option<Arc<TextForm>>,
}

impl<'a> Trainer<'a> {
    /// Binds the roles to the arena and reads their weights; what a model's files do not hold is drawn from `seed`.
    pub fn new(
        dev: &'a dyn Device,
        arena: &'a mut Arena,
        shape: &'a RunShape,
        sources: Sources<'_>,
        seed: u64,
    ) -> Result<Trainer<'a>> {
        let mut sampler = Sampler::new(dev, arena, shape, seed);
        let Sampler { resident, overlay, loading, .. } = &mut sampler;
        let (resident, loading) = (*resident, *loading);
        let mut roles: Vec<Role<'a>> = Vec::new();
        for role in shape.roles() {
            let source = sources.of(role.name);
            let mut role = Role::bind(dev, resident, overlay, role, roles.first(), source, loading)?;
            let from = loading.adapters(role.shape.name, source);
            role.load_adapters(dev, overlay, from, loading.staging)?;
            role.identify_adapters(dev);
            roles.push(role);
        }
        sampler.take_album(&sources)?;
        let teacher_images = match sources.album.filter(|_| shape.sight.is_some_and(|s| s.teacher.is_some()))
        {
            Some(album) => {
                let of = (sources.of(RoleName::TEACHER), album.clone(), TowerOf::Teacher);
                Some(ImageTable::bind(dev, sampler.resident, shape, of, sampler.loading)?)
            }
            None => None,
        };
        let tower = TrainedTower::bind(dev, sampler.resident, shape, sampler.images.as_ref());
        let reference_images = match sources.album {
            Some(album) => {
                let of = (sources.model, album.clone());
                ImageTable::bind_reference(dev, sampler.resident, shape, of, sampler.loading)?
            }
            None => None,
        };
        let planned = shape.step_arrays();
        Ok(Trainer {
            sampler,
            arrays: TokenArrays::bind(&planned),
            roles,
            packer: shape.packs().map(|pass| Packer::new(pass, planned.sequences)),
            teacher_images,
            tower,
            reference_images,
            group: Group::alone(),
            apart: None,
            lengths: Lengths::default(),
            form: None,
        })
    }

    /// Returns the first role, which is sampled from or trained.
    pub fn first(&self) -> &Role<'a> {
        &self.roles[0]
    }

    pub fn role(&self, name: RoleName) -> Option<&Role<'a>> {
        self.roles.iter().find(|role| role.shape.name == name)
    }

    pub fn trained(&self) -> impl Iterator<Item = &Role<'a>> {
        self.roles.iter().filter(|role| role.optimizer.is_some())
    }

    /// Runs every shape of every phase once, so that the device's libraries allocate what they need before the first
    /// step. Weights and states stay unchanged. Does nothing on a device whose operations allocate no memory.
    pub fn rehearse(&mut self, samplings: &[Sampling]) -> Result<()> {
        if self.sampler.dev.card_memory().is_none() {
            return Ok(());
        }
        self.sampler.rehearse(&self.roles[0], samplings, Recorded::Whole)?;
        if let Some(images) = &mut self.teacher_images {
            images.rehearse_apart(self.sampler.dev, &mut self.sampler.overlay)?;
        }
        if self.packer.is_some() {
            for index in (0..self.roles.len()).rev() {
                let (role, with, _) = self.parts(index);
                role.rehearse(with)?;
            }
        }
        Ok(())
    }

    /// Reads the first role's initial weights again.
    pub fn reload(&mut self, model: &OpenModel) -> Result<()> {
        self.sampler.overlay.take_back();
        // Others may still read what this rank has a part of.
        self.meet()?;
        let Sampler { dev, overlay, loading, .. } = &mut self.sampler;
        self.roles[0].reload(*dev, overlay, model, *loading)?;
        self.meet()
    }

    /// Waits for all ranks, if they have parts of weights.
    fn meet(&self) -> Result<()> {
        match self.roles[0].in_parts() {
            Some(_) => self.group.barrier(),
            None => Ok(()),
        }
    }

    /// Fills the first role's adapters, if any, with random numbers: new adapters add nothing, so measure nothing.
    pub fn randomise_adapters(&mut self, seed: u64) -> Result<()> {
        let from = AdaptersFrom::Random(seed);
        let Sampler { dev, overlay, loading, .. } = &mut self.sampler;
        self.roles[0].load_adapters(*dev, overlay, from, loading.staging)
    }

    /// Reads every trained role's weights and states from a checkpoint, bit for bit. `updates`: the updates of a role,
    /// `of_tower` those of a tower that is trained.
    ///
    /// Errors: `checkpoint-damaged`; those of reading.
    pub fn restore(
        &mut self,
        checkpoint: &Path,
        updates: impl Fn(RoleName) -> u64,
        of_tower: u64,
    ) -> Result<()> {
        let Sampler { dev, overlay, loading, images, .. } = &mut self.sampler;
        overlay.take_back();
        for role in self.roles.iter_mut().filter(|role| role.optimizer.is_some()) {
            let updates = updates(role.shape.name);
            role.restore(*dev, overlay, checkpoint, updates, loading.staging)?;
        }
        if let Some(tower) = &mut self.tower {
            tower.restore(*dev, overlay, (checkpoint, of_tower), loading.staging)?;
        }
        images.iter_mut().for_each(ImageTable::forget);
        self.meet()
    }

    /// Returns the seconds in which images were decoded and seen since the last call; none without images.
    pub(crate) fn take_image_seconds(&mut self) -> Option<f64> {
        let tables =
            self.sampler.images.iter_mut().chain(&mut self.reference_images).chain(&mut self.teacher_images);
        tables.map(ImageTable::take_seconds).reduce(|one, other| one + other)
    }

    /// Calls `body` with a role and the buffer through which its parts pass to files, between two updates.
    pub(crate) fn with_passage<T>(
        &mut self,
        name: RoleName,
        body: impl FnOnce(&dyn Device, &Role<'a>, Buf<'_>) -> T,
    ) -> T {
        let role = self.roles.iter().find(|role| role.shape.name == name).expect("a role of the run");
        // No lease to wait for: only the caller reads resident regions now.
        let phase = role.update_shape().pass.mode.phase();
        let Sampler { dev, overlay, .. } = &mut self.sampler;
        dev.begin_phase(phase, overlay.bytes());
        let phase = overlay.enter_leased(phase);
        body(*dev, role, role.passage(&phase))
    }

    /// Calls `body` with a role's trained parameters in one buffer, gathered if ranks have parts of it.
    pub fn with_gathered<T>(
        &mut self,
        name: RoleName,
        body: impl FnOnce(&dyn Device, &ParamTable, Buf<'_>) -> T,
    ) -> T {
        let Trainer { sampler: Sampler { dev, overlay, .. }, roles, .. } = self;
        let role = roles.iter().find(|role| role.shape.name == name).expect("a role of the run");
        role.with_gathered(*dev, overlay, |dev, all| body(dev, role.learned().0, all))
    }

    pub(crate) fn all_updates(&self) -> u64 {
        self.roles.iter().map(Role::updates).sum()
    }

    /// Sets how many updates the weights of each trained role have seen, which another rank has made.
    pub(crate) fn set_updates(&mut self, updates: &[u64]) {
        let optimizers = self.roles.iter_mut().filter_map(|role| role.optimizer.as_mut());
        optimizers.zip(updates).for_each(|(optimizer, updates)| optimizer.step = *updates);
    }

    /// Calls `body` with the engine's live form, as `Sampler::live`.
    pub fn live<T>(&mut self, body: impl FnOnce(Live<'_, 'a, '_>) -> T) -> T {
        self.sampler.live(&self.roles[0], body)
    }

    /// Samples with the first role from where each response has come to, as `Sampler::rollout_from`.
    ///
    /// Errors: those of sampling.
    pub(crate) fn rollout_from(
        &mut self,
        request: &Request<'_>,
        begun: &[SoFar<'_>],
        stop: &mut dyn StopCondition,
    ) -> Result<RolloutStats> {
        self.sampler.rollout_from(&self.roles[0], request, begun, stop)
    }

    /// Scores sequences with a role: each rank its part, and all have the numbers of all. Those of the sequences
    /// `which` go to `out[at(which)]`.
    ///
    /// Errors: `rank-lost`, `ranks-exchange`; those of the device.
    pub fn score(
        &mut self,
        role: RoleName,
        sequences: &[Sequence<'_>],
        inv_temperature: f32,
        out: &mut [f32],
        at: impl Fn(&Range<usize>) -> Range<usize>,
    ) -> Result<()> {
        let (role, with, _) = self.parts_of(role);
        score(role, with, sequences, inv_temperature, out, at)
    }

    /// Scores the step's sequences with a role, into an array over its tokens.
    ///
    /// Errors: as `score`.
    pub(crate) fn score_tokens(
        &mut self,
        role: RoleName,
        sequences: &[Sequence<'_>],
        inv_temperature: f32,
        out: &mut [f32],
    ) -> Result<()> {
        let (role, with, arrays) = self.parts_of(role);
        score(role, with, sequences, inv_temperature, out, |which| arrays.tokens(which))
    }

    /// Scores the step's sequences with a role into an array that every step has. Does nothing without the role.
    ///
    /// Errors: as `score`.
    pub fn score_into(
        &mut self,
        role: RoleName,
        sequences: &[Sequence<'_>],
        inv_temperature: f32,
        array: fn(&mut TokenArrays) -> &mut Vec<f32>,
    ) -> Result<()> {
        if self.role(role).is_none() {
            return Ok(());
        }
        let mut out = std::mem::take(array(&mut self.arrays));
        let scored = self.score_tokens(role, sequences, inv_temperature, &mut out);
        *array(&mut self.arrays) = out;
        scored
    }

    /// Scores the step's sequences with a teacher: the log-probabilities of their tokens, [N], and, if the student
    /// learns a divergence, the lists of the most likely ones or the rows that the teacher's head read.
    ///
    /// Errors: as `score`.
    pub(crate) fn score_teacher(
        &mut self,
        role: RoleName,
        sequences: &[Sequence<'_>],
        inv_temperature: f32,
        logprobs: &mut [f32],
    ) -> Result<()> {
        let (role, with, arrays) = self.parts_of(role);
        let group = with.group;
        let parts = role.score(with, sequences, inv_temperature, &mut |which, scores| {
            let tokens = arrays.tokens(&which);
            scores.read(&mut logprobs[tokens.clone()]);
            let Some(of) = &mut arrays.divergence else { return };
            if of.row_bytes() > 0 {
                let rows = of.rows_of(&tokens);
                scores.read_kept(&mut of.rows[rows]);
            }
            if of.per_token() > 0 {
                let lists = of.lists_of(&tokens);
                scores.read_lists(&mut of.ids[lists.clone()], &mut of.teacher[lists]);
            }
        })?;
        let parts: Vec<_> = parts.iter().map(|which| arrays.tokens(which)).collect();
        share(group, logprobs, &parts)?;
        let Some(of) = &mut arrays.divergence else { return Ok(()) };
        if of.row_bytes() > 0 {
            let rows: Vec<_> = parts.iter().map(|tokens| of.rows_of(tokens)).collect();
            share_in_pieces(group, &mut of.rows, &rows, KEPT_PIECE_BYTES)?;
        }
        if of.per_token() > 0 {
            let lists: Vec<_> = parts.iter().map(|tokens| of.lists_of(tokens)).collect();
            share(group, &mut of.ids, &lists)?;
            share(group, &mut of.teacher, &lists)?;
        }
        Ok(())
    }

    /// Runs forward, loss and backward over some sequences, then one step of the role's optimizer.
    ///
    /// `loss` is called for each micro-batch after its forward pass, and writes its derivatives into `buffers`.
    /// Errors: `loss-not-finite`, `gradient-not-finite`; the weights are then unchanged.
    pub fn update(
        &mut self,
        role: RoleName,
        sequences: &[Sequence<'_>],
        which: Range<usize>,
        inv_temperature: f32,
        how: UpdateOptions,
        loss: &mut Loss<'_>,
    ) -> Result<UpdateStats> {
        let (role, with, buffers) = self.parts_of(role);
        let of = LossOf { sequences, which, inv_temperature, goes_on: false, loss };
        role.update(with, buffers, of, how)
    }

    /// Applies the gradients that `gradients` has added up since the last update. No other phase may have begun.
    ///
    /// Errors: `gradient-not-finite`; the weights are then unchanged.
    pub(crate) fn apply(
        &mut self,
        role: RoleName,
        stats: UpdateStats,
        how: UpdateOptions,
    ) -> Result<UpdateStats> {
        let (role, with, _) = self.parts_of(role);
        role.apply_sum(with, stats, how)
    }

    /// True if gradients of several calls may be added up: not where each micro-batch's are formed by themselves.
    pub(crate) fn adds_up(&self, role: RoleName) -> bool {
        self.role(role).is_some_and(|role| !role.is_chained(self.group))
    }

    /// Runs forward, loss and backward over some sequences, and leaves the gradients where `apply` finds them until
    /// another phase begins.
    pub fn gradients(
        &mut self,
        role: RoleName,
        sequences: &[Sequence<'_>],
        which: Range<usize>,
        inv_temperature: f32,
        loss: &mut Loss<'_>,
    ) -> Result<UpdateStats> {
        self.add_gradients(role, sequences, which, (inv_temperature, false), loss)
    }

    /// Computes gradients as `gradients` does. If `goes_on`, they are added to those since the last update.
    pub(crate) fn add_gradients(
        &mut self,
        role: RoleName,
        sequences: &[Sequence<'_>],
        which: Range<usize>,
        (inv_temperature, goes_on): (f32, bool),
        loss: &mut Loss<'_>,
    ) -> Result<UpdateStats> {
        let (role, with, buffers) = self.parts_of(role);
        let of = LossOf { sequences, which, inv_temperature, goes_on, loss };
        let Passes { dev, group, overlay, packer, mut images, teacher, form, .. } = with;
        let phase = enter_update(dev, overlay, images.as_deref_mut(), role, &of)?;
        let with = GradientPasses { dev, group, packer, images: images.as_deref(), teacher, form };
        role.gradients(with, &phase, buffers, of).map(|(_, stats)| stats)
    }

    fn parts_of(&mut self, name: RoleName) -> (&mut Role<'a>, Passes<'_, 'a>, &mut TokenArrays) {
        let index = self.roles.iter().position(|role| role.shape.name == name);
        self.parts(index.expect("the run's method asks only for roles that its plan has"))
    }

    fn parts(&mut self, index: usize) -> (&mut Role<'a>, Passes<'_, 'a>, &mut TokenArrays) {
        let Trainer {
            sampler,
            roles,
            packer,
            tower,
            reference_images,
            teacher_images,
            arrays,
            group,
            form,
            ..
        } = self;
        let Sampler { dev, shape, overlay, images, .. } = sampler;
        let packer = packer.as_mut().expect("what has passes over whole sequences packs");
        let (before, rest) = roles.split_at_mut(index);
        let (role, after) = rest.split_first_mut().expect("an index of a role");
        let teacher = before.iter().chain(&*after).find(|other| other.keeps_rows());
        let positions = shape.positions;
        let images = match role.shape.name {
            RoleName::Teacher(_) => teacher_images.as_mut(),
            // A critic reads the vectors of the policy's tower, and gives that no gradients.
            RoleName::Reference if reference_images.is_some() => reference_images.as_mut(),
            _ => images.as_mut(),
        };
        let tower = tower.as_mut().filter(|_| index == 0);
        let form = form.as_deref();
        (role, Passes { dev: *dev, group, overlay, packer, images, tower, positions, teacher, form }, arrays)
    }
}

/// Scores sequences with a role, as `Trainer::score`.
fn score<'a>(
    role: &Role<'a>,
    with: Passes<'_, 'a>,
    sequences: &[Sequence<'_>],
    inv_temperature: f32,
    out: &mut [f32],
    at: impl Fn(&Range<usize>) -> Range<usize>,
) -> Result<()> {
    let group = with.group;
    let read = &mut |which, scores: Scores<'_>| scores.read(&mut out[at(&which)]);
    let parts = role.score(with, sequences, inv_temperature, read)?;
    share(group, out, &parts.iter().map(at).collect::<Vec<_>>())
}
