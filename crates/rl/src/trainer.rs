//! The parts of a step over one arena: roll out, score, update. It owns the engine, the packer and the per-token
//! arrays; what they are used for is `step.rs`.

use crate::buffers::StepBuffers;
use crate::critic::Critic;
use plimsoll_base::{Error, Phase, Result};
use plimsoll_device::{Device, Sampling};
use plimsoll_files::{Head, OpenModel};
use plimsoll_memory::{Arena, Buf, InPhase, Overlay, ReadLease, Resident};
use plimsoll_model::{
    Activations, Decoder, FlatTensors, Mode, Param, ParamTable, Params, Pass, PassIndex, PassLimits, Scorer,
    Streamed, backward, backward_values, head, layers, load, rehearsal_sizes, restore, rope, values,
};
use plimsoll_plan::{RunShape, Training};
use plimsoll_rollout::{Engine, Request, RolloutStats, Samples, StopCondition};
use plimsoll_train::{Optimizer, Packer, Sequence, UpdateOptions};
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

/// The models of a run, bound to the arena.
pub struct Roles<'a> {
    /// What is trained and sampled from: one set of weights. A reward model under training stands here too, with the map
    /// to its score as its head.
    pub actor: Decoder<'a>,
    /// What it may not move too far from.
    pub reference: Option<Reference<'a>>,
    /// The actor's gradients and states.
    pub optimizer: Option<Optimizer<'a>>,
    /// What the advantages of `ppo` are measured against, once `bind_critic` has bound it.
    pub critic: Option<Critic<'a>>,
    /// What scores responses, once `bind_reward` has bound it.
    pub reward: Option<Decoder<'a>>,
}

/// The reference model, by where its weights are.
#[allow(clippy::large_enum_variant)] // One a run.
pub enum Reference<'a> {
    /// In the arena.
    Resident(Decoder<'a>),
    /// In the device's host memory: the flat buffer.
    Offloaded(Buf<'a>),
}

impl<'a> Reference<'a> {
    /// In the phase Score.
    fn scorer<'p>(
        &'p self,
        dev: &dyn Device,
        actor: &Decoder<'p>,
        table: &'p ParamTable,
        phase: &InPhase<'p>,
    ) -> Scorer<'p>
    where
        'a: 'p,
    {
        match self {
            Reference::Resident(decoder) => Scorer::Resident(decoder),
            Reference::Offloaded(weights) => {
                let rope = actor.rope;
                Scorer::Streamed(Streamed::begin(dev, actor.spec, table, *weights, rope, phase, "reference"))
            }
        }
    }
}

/// One device, its arena's overlay, and everything that a step needs.
pub struct Trainer<'a> {
    /// The device.
    pub dev: &'a dyn Device,
    /// The models.
    pub roles: Roles<'a>,
    /// The run's shape.
    pub shape: &'a RunShape,
    /// The parameter table.
    pub table: ParamTable,
    /// Responses of the last request.
    pub samples: Samples,
    /// Responses that a rollout kept, where they outlive its requests.
    pub kept: Option<Samples>,
    /// Per-token arrays of the step.
    pub buffers: StepBuffers,
    /// Sum of squares of the reference model's weights: another reference has another.
    pub reference_sum: Option<f64>,
    pub(crate) resident: Resident<'a>,
    pub(crate) overlay: Overlay<'a>,
    engine: Engine,
    pub(crate) packer: Option<Packer>,
}

/// What an update over some sequences did.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpdateStats {
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Forward and backward passes.
    pub micro_batches: u32,
    /// Rows that went through them.
    pub rows: u64,
    /// Seconds of forward passes, heads included.
    pub forward_s: f64,
    /// Seconds of backward passes.
    pub backward_s: f64,
    /// Seconds of gradient norm and optimizer.
    pub optimizer_s: f64,
}

impl<'a> Trainer<'a> {
    /// Binds the models to the arena and reads their weights.
    ///
    /// Errors: those of reading weights.
    pub fn new(
        dev: &'a dyn Device,
        arena: &'a mut Arena,
        shape: &'a RunShape,
        model: &OpenModel,
        seed: u64,
    ) -> Result<Trainer<'a>> {
        let table = shape.table();
        let (resident, overlay) = arena.split();
        let rope_table = resident.buf("rope.table");
        rope::fill(dev, &shape.spec, rope_table);
        let staging = shape.host.staging;
        let role = |name: &str| -> Result<Decoder<'a>> {
            let buf = resident.buf(&format!("{name}.weights"));
            let params = Params::bind(&shape.spec, &table, shape.weights, buf);
            load(dev, model, &table, &params, seed, staging)?;
            Ok(Decoder { spec: shape.spec, dtype: shape.weights, params, rope: rope_table })
        };
        let actor = role(shape.role())?;
        // The reference is what the actor is before its first step.
        let reference_sum = has_reference(shape).then(|| dev.sum_squares(actor.params.all));
        let reference = match resident.get("offload.reference.weights") {
            Some(weights) => {
                dev.offload_begin();
                dev.offload_out(0, &mut std::iter::once((actor.params.all, weights)));
                dev.sync();
                Some(Reference::Offloaded(weights))
            }
            None if has_reference(shape) => Some(Reference::Resident(role("reference")?)),
            None => None,
        };
        let optimizer = optimizer(dev, shape, &table, &actor, resident);
        let (sequences, tokens, arrays) = shape.step_arrays();
        let kept = shape.training.filter(|t| t.holds_samples);
        Ok(Trainer {
            dev,
            roles: Roles { actor, reference, optimizer, critic: None, reward: None },
            shape,
            table,
            samples: Samples::with_turns(
                shape.engine.samples,
                shape.engine.new_tokens,
                shape.episodes.turns_max,
            ),
            kept: kept.map(|t| Samples::with_capacity(t.held_sequences(), tokens)),
            buffers: StepBuffers::with_capacity(sequences, tokens, arrays),
            reference_sum,
            resident,
            overlay,
            engine: Engine::new(shape.engine, shape.on_full),
            packer: shape.training.map(|_| Packer::new(shape.pass())),
        })
    }

    /// Runs every shape of every phase once, so that what the device's libraries take for it is taken before the first
    /// step. Weights and states stay as they are. Does nothing where operations take nothing.
    ///
    /// Errors: those of the device.
    pub fn rehearse(&mut self, samplings: &[Sampling]) -> Result<()> {
        if self.dev.card_memory().is_none() {
            return Ok(());
        }
        if self.shape.head == Head::Vocabulary {
            let phase = enter(self.dev, &mut self.overlay, Phase::Rollout);
            let mode = Mode::Rollout { truncates: self.shape.truncates };
            let acts = Activations::bind(&phase, mode, self.shape.engine.pass());
            self.engine.rehearse(self.dev, &self.roles.actor, acts, samplings)?;
        }
        let Some(training) = self.shape.training else { return Ok(()) };
        if training.scores() {
            let phase = enter(self.dev, &mut self.overlay, Phase::Score);
            let acts = Activations::bind(&phase, Mode::Score, self.shape.pass());
            let scorer = match &self.roles.reference {
                Some(reference) => reference.scorer(self.dev, &self.roles.actor, &self.table, &phase),
                None => Scorer::Resident(&self.roles.actor),
            };
            rehearse_passes(self.dev, acts, self.shape, self.shape.pass(), &mut |pass, _| {
                scorer.layers(self.dev, pass);
                head(self.dev, scorer.decoder(), pass, 1.0);
            })?;
        }
        self.rehearse_reward()?;
        self.rehearse_critic()?;
        let phase = enter(self.dev, &mut self.overlay, Phase::Update);
        let acts = Activations::bind(&phase, self.shape.update_mode(), self.shape.pass());
        let (dev, actor, gives) = (self.dev, &self.roles.actor, self.shape.head);
        let optimizer = self.roles.optimizer.as_ref().expect("a training run has an optimizer");
        rehearse_passes(dev, acts, self.shape, self.shape.pass(), &mut |pass, heads| {
            layers(dev, actor, pass);
            // Not zeros: algorithms are compared by what they make of these gradients.
            let (ones, zeros) = (vec![1.0; heads], vec![0.0; heads]);
            match gives {
                Head::Vocabulary => {
                    head(dev, actor, pass, 1.0);
                    backward(dev, actor, &optimizer.grads, false, pass, 1.0, &ones, &zeros);
                }
                Head::Score => {
                    values(dev, actor, pass);
                    backward_values(dev, actor, &optimizer.grads, false, pass, &ones);
                }
            }
        })?;
        optimizer.rehearse(dev, &actor.params, optimizer.slots(&phase, self.shape.role()));
        dev.sync();
        dev.check()
    }

    /// Reads the actor's weights again from where they came.
    ///
    /// Errors: those of reading weights.
    pub fn reload(&mut self, model: &OpenModel, seed: u64) -> Result<()> {
        self.overlay.take_back();
        load(self.dev, model, &self.table, &self.roles.actor.params, seed, self.shape.host.staging)
    }

    /// Weights and optimizer states from a checkpoint, bit for bit, after `updates` updates.
    ///
    /// Errors: `checkpoint-damaged`; those of reading.
    pub fn restore(&mut self, checkpoint: &Path, updates: u64) -> Result<()> {
        self.overlay.take_back();
        let (params, staging) = (&self.roles.actor.params, self.shape.host.staging);
        let layout = params.embed.layout;
        let read = |sets: &[FlatTensors<'_>], through, file: &str| {
            restore(self.dev, &self.table, layout, sets, through, &checkpoint.join(file), staging)
        };
        read(&[FlatTensors::weights(params.all)], None, plimsoll_run::checkpoint::WEIGHTS)?;
        let Some(optimizer) = &mut self.roles.optimizer else { return Ok(()) };
        // Each step's gradients begin at zero, so their buffer is free here.
        read(&optimizer.states(), Some(optimizer.grads.all), plimsoll_run::checkpoint::OPTIMIZER)?;
        optimizer.step = updates;
        Ok(())
    }

    /// The right to read weights and states beside Rollout and Score; the next update waits for it.
    pub fn lease(&self) -> ReadLease<'a> {
        self.resident.lease()
    }

    /// Optimizer updates so far.
    pub fn updates(&self) -> u64 {
        self.roles.optimizer.as_ref().map_or(0, |optimizer| optimizer.step)
    }

    /// Samples responses into `samples`: phase Rollout.
    pub fn rollout(&mut self, request: &Request<'_>, stop: &mut dyn StopCondition) -> Result<RolloutStats> {
        let phase = enter(self.dev, &mut self.overlay, Phase::Rollout);
        let mode = Mode::Rollout { truncates: self.shape.truncates };
        let acts = Activations::bind(&phase, mode, self.shape.engine.pass());
        self.engine.run(self.dev, &self.roles.actor, acts, request, stop, &mut self.samples)
    }

    /// Where the step's responses are, for as long as it reads them; `put_samples` gives them back.
    pub(crate) fn take_samples(&mut self) -> Samples {
        let samples = self.kept.as_mut().unwrap_or(&mut self.samples);
        std::mem::replace(samples, Samples::with_capacity(0, 1))
    }

    /// The other half of `take_samples`.
    pub(crate) fn put_samples(&mut self, samples: Samples) {
        *self.kept.as_mut().unwrap_or(&mut self.samples) = samples;
    }

    /// The responses of the last rollout.
    pub fn step_samples(&self) -> &Samples {
        self.kept.as_ref().unwrap_or(&self.samples)
    }

    /// Log-probabilities of all sequences under the reference into `buffers.ref_logprobs`: phase Score.
    pub fn score_reference(&mut self, sequences: &[Sequence<'_>], inv_temperature: f32) -> Result<()> {
        let Some(reference) = &self.roles.reference else { return Ok(()) };
        let phase = enter(self.dev, &mut self.overlay, Phase::Score);
        let acts = Activations::bind(&phase, Mode::Score, self.shape.pass());
        let scorer = reference.scorer(self.dev, &self.roles.actor, &self.table, &phase);
        let packer = self.packer.as_mut().expect("a training run packs");
        score(self.dev, scorer, acts, packer, sequences, inv_temperature, |which, logprobs| {
            let tokens = self.buffers.tokens(&which);
            self.dev.read_f32(logprobs, 0, &mut self.buffers.ref_logprobs[tokens]);
        })
    }

    /// Log-probabilities of all sequences under the actor as it is into `buffers.old_logprobs`: phase Score.
    pub fn score_actor(&mut self, sequences: &[Sequence<'_>], inv_temperature: f32) -> Result<()> {
        let phase = enter(self.dev, &mut self.overlay, Phase::Score);
        let acts = Activations::bind(&phase, Mode::Score, self.shape.pass());
        let scorer = Scorer::Resident(&self.roles.actor);
        let packer = self.packer.as_mut().expect("a training run packs");
        score(self.dev, scorer, acts, packer, sequences, inv_temperature, |which, logprobs| {
            let tokens = self.buffers.tokens(&which);
            self.dev.read_f32(logprobs, 0, &mut self.buffers.old_logprobs[tokens]);
        })
    }

    /// Forward, loss and backward over some sequences, then one optimizer step: phase Update.
    ///
    /// `loss` sees each micro-batch after its forward pass: it fills the derivatives in `buffers` for its tokens.
    /// Errors: `loss-not-finite`, `gradient-not-finite`; the weights are then as they were.
    pub fn update(
        &mut self,
        sequences: &[Sequence<'_>],
        which: Range<usize>,
        inv_temperature: f32,
        how: UpdateOptions,
        loss: &mut dyn FnMut(&mut StepBuffers, Range<usize>) -> Result<()>,
    ) -> Result<UpdateStats> {
        let stats = self.gradients(sequences, which, inv_temperature, loss)?;
        self.apply(stats, how)
    }

    /// The part of `update` behind the gradients: their norm, and one step of the optimizer.
    ///
    /// Errors: `gradient-not-finite`; the weights are then as they were.
    pub(crate) fn apply(&mut self, mut stats: UpdateStats, how: UpdateOptions) -> Result<UpdateStats> {
        let started = Instant::now();
        let optimizer = self.roles.optimizer.as_mut().expect("a training run has an optimizer");
        stats.grad_norm = optimizer.grad_norm(self.dev);
        if !stats.grad_norm.is_finite() {
            return Err(gradient_not_finite(self.dev, &self.table, &optimizer.grads));
        }
        // Nothing of the passes is needed any more: what they shared may be gone.
        let phase = enter(self.dev, &mut self.overlay, Phase::Update);
        let slots = optimizer.slots(&phase, self.shape.role());
        optimizer.update(self.dev, &self.roles.actor.params, slots, how, stats.grad_norm);
        self.dev.sync();
        self.dev.check()?;
        stats.optimizer_s = started.elapsed().as_secs_f64();
        Ok(stats)
    }

    /// The part of `update` before the optimizer: gradients of `which` sequences, from zero.
    pub fn gradients(
        &mut self,
        sequences: &[Sequence<'_>],
        which: Range<usize>,
        inv_temperature: f32,
        loss: &mut dyn FnMut(&mut StepBuffers, Range<usize>) -> Result<()>,
    ) -> Result<UpdateStats> {
        let Training { recompute, packing, .. } = self.shape.training.expect("a training run");
        let phase = enter(self.dev, &mut self.overlay, Phase::Update);
        let acts = Activations::bind(&phase, Mode::Update(recompute), self.shape.pass());
        let optimizer = self.roles.optimizer.as_ref().expect("a training run has an optimizer");
        let packer = self.packer.as_mut().expect("a training run packs");
        let mut stats = UpdateStats::default();
        if which.is_empty() {
            optimizer.zero_grads(self.dev);
        }
        let mut first = which.start;
        while first < which.end {
            let started = Instant::now();
            let batch = packer.pack_as(packing, &sequences[..which.end], first)?;
            let pass = Pass::upload(self.dev, acts, batch.index);
            layers(self.dev, &self.roles.actor, &pass);
            head(self.dev, &self.roles.actor, &pass, inv_temperature);
            let tokens = self.buffers.tokens(&batch.sequences);
            self.dev.read_f32(pass.head_out().logprobs, 0, &mut self.buffers.logprobs[tokens.clone()]);
            self.dev.read_f32(pass.head_out().entropy, 0, &mut self.buffers.entropy[tokens.clone()]);
            self.dev.check()?;
            self.buffers.set_micro(&batch.sequences);
            loss(&mut self.buffers, tokens.clone())?;
            stats.forward_s += started.elapsed().as_secs_f64();
            let started = Instant::now();
            let (d_logprobs, d_entropy) =
                (&self.buffers.d_logprobs[tokens.clone()], &self.buffers.d_entropy[tokens]);
            backward(
                self.dev,
                &self.roles.actor,
                &optimizer.grads,
                stats.micro_batches > 0,
                &pass,
                inv_temperature,
                d_logprobs,
                d_entropy,
            );
            stats.backward_s += started.elapsed().as_secs_f64();
            stats.micro_batches += 1;
            stats.rows += batch.index.ids.len() as u64;
            first = batch.sequences.end;
        }
        Ok(stats)
    }
}

/// Forward passes over all sequences; `read` is given the sequences of each and where their log-probs are.
fn score(
    dev: &dyn Device,
    scorer: Scorer<'_>,
    acts: Activations<'_>,
    packer: &mut Packer,
    sequences: &[Sequence<'_>],
    inv_temperature: f32,
    mut read: impl FnMut(Range<usize>, Buf<'_>),
) -> Result<()> {
    let mut first = 0;
    while first < sequences.len() {
        let batch = packer.pack(sequences, first)?;
        let pass = Pass::upload(dev, acts, batch.index);
        scorer.layers(dev, &pass);
        head(dev, scorer.decoder(), &pass, inv_temperature);
        first = batch.sequences.end;
        read(batch.sequences, pass.head_out().logprobs);
    }
    Ok(())
}

/// The sampling of a run file's `[rollout]`.
pub fn sampling(rollout: &plimsoll_config::Rollout, seed: u64) -> Sampling {
    Sampling {
        temperature: rollout.temperature as f32,
        top_k: rollout.top_k,
        top_p: rollout.top_p as f32,
        min_p: rollout.min_p as f32,
        seed,
    }
}

/// Begins a phase, and tells the device so.
pub(crate) fn enter<'p>(dev: &dyn Device, overlay: &'p mut Overlay<'_>, phase: Phase) -> InPhase<'p> {
    dev.begin_phase(phase, overlay.bytes());
    overlay.enter(phase)
}

/// Training passes of every size that products tell apart; `run` is given each and its head rows.
pub(crate) fn rehearse_passes(
    dev: &dyn Device,
    acts: Activations<'_>,
    shape: &RunShape,
    limits: PassLimits,
    run: &mut dyn FnMut(&Pass<'_>, usize),
) -> Result<()> {
    let mut index = PassIndex::with_capacity(&limits);
    for rows in rehearsal_sizes(&limits, shape.positions) {
        let heads = rows.min(limits.head_rows);
        let block = limits.blocks as u32 - 1;
        index.rehearse(&limits, rows, shape.positions, heads, block);
        run(&Pass::upload(dev, acts, &index), heads);
    }
    dev.sync();
    dev.check()
}

fn has_reference(shape: &RunShape) -> bool {
    shape.training.is_some_and(|t| t.reference)
}

fn optimizer<'a>(
    dev: &dyn Device,
    shape: &RunShape,
    table: &ParamTable,
    actor: &Decoder<'a>,
    resident: Resident<'a>,
) -> Option<Optimizer<'a>> {
    shape.training.map(|_| Optimizer::new(dev, &shape.spec, table, &actor.params, resident, shape.role()))
}

/// Names the first tensor whose gradient is not finite.
pub(crate) fn gradient_not_finite(dev: &dyn Device, table: &ParamTable, grads: &Params<'_>) -> Error {
    let broken =
        |p: &&Param| !dev.sum_squares(grads.all.slice(p.offset as usize, p.elements as usize)).is_finite();
    let name = table.params.iter().find(broken).map_or("their sum", |p| p.parts[0].name.as_str());
    Error::new("gradient-not-finite", format!("the gradient of `{name}` is not finite"))
        .hint("lower train.learning_rate, or set train.grad_clip")
}
