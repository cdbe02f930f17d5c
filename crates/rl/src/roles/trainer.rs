//! The trainer: the roles of a run over one arena, the engine that samples, and the step's arrays.

use super::phases::enter;
use super::role::{Loss, LossOf, Passes, Role, Scores, UpdateStats};
use super::weights::Loading;
use crate::methods::buffers::StepBuffers;
use plimsoll_base::{Phase, Result};
use plimsoll_device::{Device, Sampling};
use plimsoll_files::{Head, OpenModel};
use plimsoll_memory::{Arena, Buf, Overlay, ReadLease, Resident};
use plimsoll_model::{Activations, AdaptersFrom, Mode, ParamTable};
use plimsoll_plan::{PerRole, RoleName, RunShape};
use plimsoll_ranks::Group;
use plimsoll_rollout::{Engine, Lengths, Live, Model, Request, RolloutStats, Samples, StopCondition};
use plimsoll_train::{Packer, Sequence, UpdateOptions};
use std::ops::Range;
use std::path::Path;

/// The models that roles are read from.
#[derive(Clone, Copy)]
pub struct Sources<'m> {
    /// The run's model: the actor and its reference, or the reward model that is trained.
    pub model: &'m OpenModel,
    /// The models of roles that start from another one.
    pub others: PerRole<&'m OpenModel>,
}

impl<'m> Sources<'m> {
    pub fn one(model: &'m OpenModel) -> Sources<'m> {
        Sources { model, others: PerRole::none() }
    }

    fn of(&self, role: RoleName) -> &'m OpenModel {
        self.others.get(role).copied().unwrap_or(self.model)
    }
}

/// One device, its arena's overlay, and everything that a step needs.
pub struct Trainer<'a> {
    pub dev: &'a dyn Device,
    pub shape: &'a RunShape,
    /// Responses of the last request.
    pub samples: Samples,
    /// Responses that a rollout kept, if they outlive its requests.
    pub kept: Option<Samples>,
    pub buffers: StepBuffers,
    /// The first role is sampled from or trained.
    roles: Vec<Role<'a>>,
    resident: Resident<'a>,
    overlay: Overlay<'a>,
    engine: Engine,
    packer: Option<Packer>,
    loading: Loading,
    /// The other ranks, if there are any.
    pub group: Option<&'a Group>,
    /// Response lengths on all ranks, from which prompts are dealt to ranks.
    pub(crate) lengths: Lengths,
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
        let (resident, mut overlay) = arena.split();
        let loading = Loading { seed, staging: shape.host.staging };
        let mut roles: Vec<Role<'a>> = Vec::new();
        for role in shape.roles() {
            let places = (resident, &mut overlay);
            let mut role = Role::bind(dev, places, role, roles.first(), sources.of(role.name), loading)?;
            let from = loading.adapters(role.shape.name, sources.of(role.shape.name));
            role.load_adapters(dev, &mut overlay, from, loading.staging)?;
            role.identify_adapters(dev);
            roles.push(role);
        }
        let (sequences, tokens, arrays) = shape.step_arrays();
        let kept = shape.training.filter(|t| t.holds_samples);
        let (engine, turns_max) = (shape.engine, shape.episodes.turns_max);
        Ok(Trainer {
            dev,
            shape,
            samples: Samples::with_turns(engine.samples, engine.new_tokens, turns_max),
            kept: kept.map(|t| Samples::with_capacity(t.held_sequences(), tokens)),
            buffers: StepBuffers::with_capacity(sequences, tokens, arrays),
            roles,
            resident,
            overlay,
            engine: Engine::new(engine, shape.on_full),
            packer: shape.packs().map(|pass| Packer::new(pass, sequences)),
            loading,
            group: None,
            lengths: Lengths::default(),
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
        if self.dev.card_memory().is_none() {
            return Ok(());
        }
        if self.shape.head == Head::Vocabulary {
            let phase = enter(self.dev, &mut self.overlay, Phase::Rollout);
            let mode = Mode::Rollout { truncates: self.shape.truncates };
            let acts = Activations::bind(&phase, mode, self.shape.engine.pass());
            let decoder = self.roles[0].sampled(self.dev, &phase);
            self.engine.rehearse(self.dev, &decoder, acts, samplings)?;
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
        self.overlay.take_back();
        // Other ranks may still read this rank's part.
        self.meet()?;
        self.roles[0].reload(self.dev, &mut self.overlay, model, self.loading)?;
        self.meet()
    }

    /// Waits for all ranks, if they have parts of weights.
    fn meet(&self) -> Result<()> {
        self.group.filter(|_| self.roles[0].is_spread()).map_or(Ok(()), Group::barrier)
    }

    /// Fills the first role's adapters, if any, with random numbers: new adapters add nothing, so measure nothing.
    pub fn randomise_adapters(&mut self, seed: u64) -> Result<()> {
        let from = AdaptersFrom::Random(seed);
        self.roles[0].load_adapters(self.dev, &mut self.overlay, from, self.loading.staging)
    }

    /// Reads every trained role's weights and states from a checkpoint, bit for bit. `updates`: the updates of a role.
    ///
    /// Errors: `checkpoint-damaged`; those of reading.
    pub fn restore(&mut self, checkpoint: &Path, updates: impl Fn(RoleName) -> u64) -> Result<()> {
        self.overlay.take_back();
        for role in self.roles.iter_mut().filter(|role| role.optimizer.is_some()) {
            let (updates, staging) = (updates(role.shape.name), self.loading.staging);
            role.restore(self.dev, &mut self.overlay, checkpoint, updates, staging)?;
        }
        self.meet()
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
        self.dev.begin_phase(phase, self.overlay.bytes());
        let phase = self.overlay.enter_leased(phase);
        body(self.dev, role, role.passage(&phase))
    }

    /// Calls `body` with a role's trained parameters in one buffer, gathered if ranks have parts of it.
    pub fn with_gathered<T>(
        &mut self,
        name: RoleName,
        body: impl FnOnce(&dyn Device, &ParamTable, Buf<'_>) -> T,
    ) -> T {
        let Trainer { dev, roles, overlay, .. } = self;
        let role = roles.iter().find(|role| role.shape.name == name).expect("a role of the run");
        role.with_gathered(*dev, overlay, |dev, all| body(dev, role.learned().0, all))
    }

    /// Leases weights and states for reading during Rollout and Score; the next update waits for it.
    pub fn lease(&self) -> ReadLease<'a> {
        self.resident.lease()
    }

    /// Returns the number of the first role's optimizer updates, which is the policy version.
    pub fn updates(&self) -> u64 {
        self.roles[0].updates()
    }

    pub(crate) fn all_updates(&self) -> u64 {
        self.roles.iter().map(Role::updates).sum()
    }

    /// Samples responses into `samples`: phase Rollout.
    pub fn rollout(&mut self, request: &Request<'_>, stop: &mut dyn StopCondition) -> Result<RolloutStats> {
        let phase = enter(self.dev, &mut self.overlay, Phase::Rollout);
        let mode = Mode::Rollout { truncates: self.shape.truncates };
        let acts = Activations::bind(&phase, mode, self.shape.engine.pass());
        let decoder = self.roles[0].sampled(self.dev, &phase);
        self.engine.run(self.dev, &decoder, acts, request, stop, &mut self.samples)
    }

    /// Calls `body` with the live engine, which takes requests while it runs; phase Rollout until `body` returns.
    pub fn live<T>(&mut self, body: impl FnOnce(Live<'_, 'a, '_>) -> T) -> T {
        let phase = enter(self.dev, &mut self.overlay, Phase::Rollout);
        let mode = Mode::Rollout { truncates: self.shape.truncates };
        let acts = Activations::bind(&phase, mode, self.shape.engine.pass());
        let model = Model { dev: self.dev, decoder: self.roles[0].decoder(), acts };
        body(Live::new(model, &mut self.engine, &mut self.samples))
    }

    /// Moves the step's responses out of the trainer; `put_samples` puts them back.
    pub(crate) fn take_samples(&mut self) -> Samples {
        let samples = self.kept.as_mut().unwrap_or(&mut self.samples);
        std::mem::replace(samples, Samples::with_capacity(0, 1))
    }

    pub(crate) fn put_samples(&mut self, samples: Samples) {
        *self.kept.as_mut().unwrap_or(&mut self.samples) = samples;
    }

    pub(crate) fn step_samples(&self) -> &Samples {
        self.kept.as_ref().unwrap_or(&self.samples)
    }

    /// Scores all sequences with a role. `each` gets the sequences of a micro-batch and their scores.
    pub fn score(
        &mut self,
        role: RoleName,
        sequences: &[Sequence<'_>],
        inv_temperature: f32,
        each: &mut dyn FnMut(&mut StepBuffers, Range<usize>, Scores<'_>),
    ) -> Result<()> {
        let (role, with, buffers) = self.parts_of(role);
        role.score(with, sequences, inv_temperature, &mut |which, scores| each(buffers, which, scores))
    }

    /// Computes log-probabilities under the reference into `buffers.ref_logprobs`. Does nothing without a reference.
    pub(crate) fn score_reference(&mut self, sequences: &[Sequence<'_>], inv_temperature: f32) -> Result<()> {
        if self.role(RoleName::Reference).is_none() {
            return Ok(());
        }
        self.score(RoleName::Reference, sequences, inv_temperature, &mut |buffers, which, scores| {
            let tokens = buffers.tokens(&which);
            scores.read(&mut buffers.ref_logprobs[tokens]);
        })
    }

    /// Computes log-probabilities under the teacher into `buffers.teacher_logprobs`. Does nothing without a teacher.
    pub(crate) fn score_teacher(&mut self, sequences: &[Sequence<'_>], inv_temperature: f32) -> Result<()> {
        if self.role(RoleName::Teacher).is_none() {
            return Ok(());
        }
        self.score(RoleName::Teacher, sequences, inv_temperature, &mut |buffers, which, scores| {
            let tokens = buffers.tokens(&which);
            scores.read(&mut buffers.teacher_logprobs[tokens]);
        })
    }

    /// Computes log-probabilities under the current actor into `buffers.old_logprobs`.
    pub(crate) fn score_actor(&mut self, sequences: &[Sequence<'_>], inv_temperature: f32) -> Result<()> {
        self.score(RoleName::Actor, sequences, inv_temperature, &mut |buffers, which, scores| {
            let tokens = buffers.tokens(&which);
            scores.read(&mut buffers.old_logprobs[tokens]);
        })
    }

    /// Computes the value before each response token into `buffers.critic.old_values`. Does nothing without a critic.
    pub(crate) fn score_values(&mut self, sequences: &[Sequence<'_>]) -> Result<()> {
        if self.role(RoleName::Critic).is_none() {
            return Ok(());
        }
        self.score(RoleName::Critic, sequences, 1.0, &mut |buffers, which, scores| {
            let tokens = buffers.tokens(&which);
            scores.read(&mut buffers.critic.old_values[tokens]);
        })
    }

    /// Returns a reward model's score of each sequence, read at its last token.
    pub(crate) fn reward_scores(&mut self, role: RoleName, sequences: &[Sequence<'_>]) -> Result<Vec<f32>> {
        let mut out = vec![0f32; sequences.len()];
        self.score(role, sequences, 1.0, &mut |_, which, scores| scores.read(&mut out[which]))?;
        Ok(out)
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
        role.update(with, buffers, LossOf { sequences, which, inv_temperature, loss }, how)
    }

    /// Runs forward, loss and backward over some sequences, and drops the gradients.
    pub fn gradients(
        &mut self,
        role: RoleName,
        sequences: &[Sequence<'_>],
        which: Range<usize>,
        inv_temperature: f32,
        loss: &mut Loss<'_>,
    ) -> Result<UpdateStats> {
        let (role, Passes { dev, overlay, packer, .. }, buffers) = self.parts_of(role);
        let phase = enter(dev, overlay, role.update_shape().pass.mode.phase());
        let of = LossOf { sequences, which, inv_temperature, loss };
        role.gradients(dev, &phase, packer, buffers, of, None).map(|(_, stats)| stats)
    }

    fn parts_of(&mut self, name: RoleName) -> (&mut Role<'a>, Passes<'_, 'a>, &mut StepBuffers) {
        let index = self.roles.iter().position(|role| role.shape.name == name);
        self.parts(index.expect("the run's method asks only for roles that its plan has"))
    }

    fn parts(&mut self, index: usize) -> (&mut Role<'a>, Passes<'_, 'a>, &mut StepBuffers) {
        let Trainer { dev, shape, roles, overlay, packer, buffers, group, .. } = self;
        let packer = packer.as_mut().expect("what has passes over whole sequences packs");
        (
            &mut roles[index],
            Passes { dev: *dev, group: *group, overlay, packer, positions: shape.positions },
            buffers,
        )
    }
}

/// Returns the sampling of a run file's `[rollout]`.
pub fn sampling(rollout: &plimsoll_config::RolloutSpec, seed: u64) -> Sampling {
    Sampling {
        temperature: rollout.temperature as f32,
        top_k: rollout.top_k,
        top_p: rollout.top_p as f32,
        min_p: rollout.min_p as f32,
        seed,
    }
}
