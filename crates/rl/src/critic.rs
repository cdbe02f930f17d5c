//! The critic on its device: its weights, gradients and states beside the actor's, and its passes, which have a phase of
//! their own over the bytes that the actor's update takes. What its values are for is `values.rs`.

use crate::buffers::StepBuffers;
use crate::trainer::{Trainer, UpdateStats, enter, gradient_not_finite, rehearse_passes};
use crate::value_passes::ValuePasses;
use plimsoll_base::{ModelSpec, Phase, Result};
use plimsoll_files::OpenModel;
use plimsoll_memory::Buf;
use plimsoll_model::{
    Activations, Decoder, FlatTensors, Mode, ParamTable, Params, backward_values, layers, load, restore,
    rope, values,
};
use plimsoll_run::checkpoint::{CRITIC, CRITIC_OPTIMIZER};
use plimsoll_train::{Optimizer, Packing, Sequence, UpdateOptions};
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

/// A critic, bound to the arena: a decoder's body with one linear map to a number.
pub struct Critic<'a> {
    /// The body; its head is the map.
    pub decoder: Decoder<'a>,
    /// Its parameters.
    pub table: ParamTable,
    /// Its gradients and states.
    pub optimizer: Optimizer<'a>,
}

impl<'a> Trainer<'a> {
    /// Binds the critic that the run's shape has, and reads its body from `model`; its head is drawn from `seed`. Does
    /// nothing where there is none.
    ///
    /// Errors: those of reading weights.
    pub fn bind_critic(&mut self, model: &OpenModel, seed: u64) -> Result<()> {
        let (Some(table), Some(spec)) =
            (self.shape.critic_table(), self.shape.training.and_then(|t| t.critic))
        else {
            return Ok(());
        };
        let (dev, resident, dtype) = (self.dev, self.resident, self.shape.weights);
        let rope_table = self.rope_of("critic", &spec);
        let params = Params::bind(&spec, &table, dtype, resident.buf("critic.weights"));
        load(dev, model, &table, &params, seed, self.shape.host.staging)?;
        let optimizer = Optimizer::new(dev, &spec, &table, &params, resident, "critic");
        let decoder = Decoder { spec, dtype, params, rope: rope_table };
        self.roles.critic = Some(Critic { decoder, table, optimizer });
        Ok(())
    }

    /// The rotary table of another role: its own where the actor's does not serve.
    pub(crate) fn rope_of(&self, role: &str, spec: &ModelSpec) -> Buf<'a> {
        match self.resident.get(&format!("{role}.rope")) {
            None => self.roles.actor.rope,
            Some(own) => {
                rope::fill(self.dev, spec, own);
                own
            }
        }
    }

    /// The critic's part of `rehearse`.
    pub(crate) fn rehearse_critic(&mut self) -> Result<()> {
        let (Some(critic), Some(training)) = (&self.roles.critic, self.shape.training) else { return Ok(()) };
        let (dev, decoder) = (self.dev, &critic.decoder);
        let phase = enter(dev, &mut self.overlay, Phase::Critic);
        let acts = Activations::bind(&phase, Mode::Critic(training.recompute), self.shape.pass());
        rehearse_passes(dev, acts, self.shape, self.shape.pass(), &mut |pass, heads| {
            layers(dev, decoder, pass);
            values(dev, decoder, pass);
            // As with the actor: algorithms are compared by what they make of these gradients.
            backward_values(dev, decoder, &critic.optimizer.grads, false, pass, &vec![1.0; heads]);
        })?;
        critic.optimizer.rehearse(dev, &decoder.params, critic.optimizer.slots(&phase, "critic"));
        dev.sync();
        dev.check()
    }

    /// The value of the state before each response token into `buffers.critic.old_values`: phase Critic. Does nothing
    /// without a critic.
    ///
    /// Errors: those of the device.
    pub fn score_values(&mut self, sequences: &[Sequence<'_>]) -> Result<()> {
        let (Some(critic), Some(training)) = (&self.roles.critic, self.shape.training) else { return Ok(()) };
        let phase = enter(self.dev, &mut self.overlay, Phase::Critic);
        let acts = Activations::bind(&phase, Mode::Critic(training.recompute), self.shape.pass());
        let packer = self.packer.as_mut().expect("a training run packs");
        let (dev, decoder, buffers) = (self.dev, &critic.decoder, &mut self.buffers);
        let mut passes = ValuePasses { dev, decoder, acts, packer, packing: Packing::default() };
        passes.score(sequences, &mut |batch, values| {
            let tokens = buffers.tokens(&batch);
            dev.read_f32(values, 0, &mut buffers.critic.old_values[tokens]);
        })
    }

    /// Forward, loss and backward of the critic over some sequences, then one step of its optimizer: phase Critic.
    ///
    /// `loss` sees each micro-batch after its forward pass: it fills `buffers.critic.d_values` for its tokens.
    /// Errors: `loss-not-finite`, `gradient-not-finite`; the weights are then as they were.
    pub fn update_critic(
        &mut self,
        sequences: &[Sequence<'_>],
        which: Range<usize>,
        how: UpdateOptions,
        loss: &mut dyn FnMut(&mut StepBuffers, Range<usize>) -> Result<()>,
    ) -> Result<UpdateStats> {
        let mut stats = self.critic_gradients(sequences, which, loss)?;
        let started = Instant::now();
        let critic = self.roles.critic.as_mut().expect("a critic is updated");
        stats.grad_norm = critic.optimizer.grad_norm(self.dev);
        if !stats.grad_norm.is_finite() {
            let error = gradient_not_finite(self.dev, &critic.table, &critic.optimizer.grads);
            return Err(error.fact("it is the critic's").hint("lower critic.learning_rate"));
        }
        let phase = enter(self.dev, &mut self.overlay, Phase::Critic);
        let slots = critic.optimizer.slots(&phase, "critic");
        critic.optimizer.update(self.dev, &critic.decoder.params, slots, how, stats.grad_norm);
        self.dev.sync();
        self.dev.check()?;
        stats.optimizer_s = started.elapsed().as_secs_f64();
        Ok(stats)
    }

    /// The part of `update_critic` before the optimizer: gradients of `which` sequences, from zero.
    fn critic_gradients(
        &mut self,
        sequences: &[Sequence<'_>],
        which: Range<usize>,
        loss: &mut dyn FnMut(&mut StepBuffers, Range<usize>) -> Result<()>,
    ) -> Result<UpdateStats> {
        let training = self.shape.training.expect("a training run");
        let phase = enter(self.dev, &mut self.overlay, Phase::Critic);
        let acts = Activations::bind(&phase, Mode::Critic(training.recompute), self.shape.pass());
        let critic = self.roles.critic.as_ref().expect("a critic is updated");
        let packer = self.packer.as_mut().expect("a training run packs");
        let packing = Packing::default();
        let mut passes = ValuePasses { dev: self.dev, decoder: &critic.decoder, acts, packer, packing };
        passes.gradients(&critic.optimizer.grads, &mut self.buffers, sequences, which, loss)
    }

    /// The critic's weights and states from a checkpoint, bit for bit, after `updates` updates. Does nothing without one.
    ///
    /// Errors: `checkpoint-damaged`; those of reading.
    pub fn restore_critic(&mut self, checkpoint: &Path, updates: u64) -> Result<()> {
        self.overlay.take_back();
        let (dev, staging) = (self.dev, self.shape.host.staging);
        let Some(Critic { decoder, table, optimizer }) = &mut self.roles.critic else { return Ok(()) };
        let layout = decoder.params.embed.layout;
        let weights = [FlatTensors::weights(decoder.params.all)];
        restore(dev, table, layout, &weights, None, &checkpoint.join(CRITIC), staging)?;
        // Each update's gradients begin at zero, so their buffer is free here.
        let (states, through) = (optimizer.states(), Some(optimizer.grads.all));
        restore(dev, table, layout, &states, through, &checkpoint.join(CRITIC_OPTIMIZER), staging)?;
        optimizer.step = updates;
        Ok(())
    }

    /// Updates of the critic so far.
    pub fn critic_updates(&self) -> u64 {
        self.roles.critic.as_ref().map_or(0, |critic| critic.optimizer.step)
    }
}
