//! The learner: one set of weights, AdamW's states, and the updates of PPO over a rollout of an environment policy.
//!
//! It owns the assignment of rows to mini-batches and the terms of the gradient; the losses are in `algo`. It computes
//! the same as CleanRL's `ppo.py` with these settings: one optimizer over actor and critic, one gradient norm,
//! advantages whitened over the mini-batch.
//!
//! Legend: N frames of the rollout, M rows of a mini-batch, n observed numbers, A actor outputs, a action numbers.

use super::experience::Experience;
use plimsoll_algo::action::{ActionDist, Slopes};
use plimsoll_algo::advantage::{Whiten, whiten};
use plimsoll_algo::aggregation::{Aggregation, AggregationKind};
use plimsoll_algo::entropy::{EntropySums, entropy_bonus};
use plimsoll_algo::packed::Packed;
use plimsoll_algo::policy_loss::{PolicyBatch, PolicyLoss, PolicySums, policy_loss};
use plimsoll_algo::value_loss::{ValueBatch, ValueSums, value_loss};
use plimsoll_base::rng::{Stream, permutation};
use plimsoll_base::{DType, Phase, PhaseSet, Result};
use plimsoll_device::{AdamWBufs, Device};
use plimsoll_devices::{host, scratch_of_matrices};
use plimsoll_memory::{Buf, Layout, Overlay, Pool, Resident};
use plimsoll_model::mlp::{MlpHead, MlpParams, MlpPass, MlpSpec, backward, forward};
use plimsoll_model::{FlatTensors, ParamTable};
use plimsoll_run::ending::finite_loss;
use plimsoll_train::{Share, UpdateOptions, adamw, finite_weights, first_not_finite, gradient_not_finite};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnerOptions {
    pub policy: PolicyLoss,
    /// Largest change of a value; none never clips.
    pub value_clip: Option<f64>,
    pub value_coef: f64,
    pub entropy_coef: f64,
    pub whiten: Whiten,
    pub epochs: u32,
    pub mini_batch: usize,
    /// Key of the order of frames.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LearnReport {
    pub policy: PolicySums,
    pub value: ValueSums,
    pub entropy: EntropySums,
    pub updates: u32,
    /// Gradient norm of the last update.
    pub grad_norm: f64,
    /// Largest difference between a log-prob of the rollout and the trainer's before the first update.
    pub mismatch: f64,
}

/// Returns the arena of a learner whose mini-batches have `rows` rows.
///
/// Errors: `size-overflow`.
pub fn layout(spec: &MlpSpec, rows: usize, threads: usize) -> Result<Layout> {
    let table = spec.table(host().kind);
    let mut layout = Layout::new();
    for (what, owner) in [("weights", "model"), ("grads", "train"), ("adam_m", "train"), ("adam_v", "train")]
    {
        let shape = [table.elements];
        layout.arena(&format!("actor.{what}"), owner, Pool::Host, PhaseSet::RESIDENT, &shape, DType::F32)?;
    }
    layout.extend(scratch_of_matrices(&spec.matrices(), threads)?);
    layout.extend(spec.layout("mlp", host().kind, Pool::Host, PhaseSet::UPDATE, rows as u64, true)?);
    Ok(layout)
}

/// Host arrays of a mini-batch, allocated once.
#[derive(Debug)]
struct Mini {
    inputs: Vec<f32>,
    outputs: Vec<f32>,
    actions: Vec<f32>,
    kept: Vec<f64>,
    logprobs: Vec<f32>,
    old_logprobs: Vec<f32>,
    entropy: Vec<f32>,
    values: Vec<f32>,
    old_values: Vec<f32>,
    advantages: Vec<f32>,
    returns: Vec<f32>,
    mask: Vec<f32>,
    d_logprobs: Vec<f32>,
    d_entropy: Vec<f32>,
    d_outputs: Vec<f32>,
    d_values: Vec<f32>,
    d_log_std: Vec<f64>,
}

/// Returns the (f32, f64) numbers in a row of `Mini`.
fn mini_width(spec: &MlpSpec) -> (usize, usize) {
    let (n, outputs, dims) = (spec.inputs as usize, spec.head.outputs() as usize, spec.head.action_dims());
    (n + 2 * outputs + dims + 11, 2 * outputs)
}

impl Mini {
    fn new(spec: &MlpSpec, rows: usize) -> Mini {
        let (n, outputs, dims) =
            (spec.inputs as usize, spec.head.outputs() as usize, spec.head.action_dims());
        let zeros = |each: usize| vec![0.0f32; rows * each];
        Mini {
            inputs: zeros(n),
            outputs: zeros(outputs),
            actions: zeros(dims),
            kept: vec![0.0; rows * 2 * outputs],
            logprobs: zeros(1),
            old_logprobs: zeros(1),
            entropy: zeros(1),
            values: zeros(1),
            old_values: zeros(1),
            advantages: zeros(1),
            returns: zeros(1),
            mask: vec![1.0; rows],
            d_logprobs: zeros(1),
            d_entropy: zeros(1),
            d_outputs: zeros(outputs),
            d_values: zeros(1),
            d_log_std: vec![0.0; outputs],
        }
    }

    fn gather(&mut self, from: &Experience, which: &[u32]) {
        let n = from.num_frames();
        let (width, dims) = (from.inputs.len() / n, from.actions.len() / n);
        for (row, &i) in which.iter().enumerate() {
            let i = i as usize;
            self.inputs[row * width..][..width].copy_from_slice(&from.inputs[i * width..][..width]);
            self.actions[row * dims..][..dims].copy_from_slice(&from.actions[i * dims..][..dims]);
            self.old_logprobs[row] = from.logprobs[i];
            self.old_values[row] = from.values[i];
            self.advantages[row] = from.advantages[i];
            self.returns[row] = from.returns[i];
        }
    }
}

/// Weights, gradients and states of one actor-critic.
pub struct Learner<'a> {
    pub dev: &'a dyn Device,
    pub spec: &'a MlpSpec,
    pub table: ParamTable,
    pub params: MlpParams<'a>,
    pub updates: u64,
    grads: MlpParams<'a>,
    m: Buf<'a>,
    v: Buf<'a>,
    overlay: Overlay<'a>,
    mini: Mini,
}

impl<'a> Learner<'a> {
    /// Binds the regions of `layout`; weights and states are zero.
    pub fn new(
        dev: &'a dyn Device,
        spec: &'a MlpSpec,
        (resident, overlay): (Resident<'a>, Overlay<'a>),
        rows: usize,
    ) -> Learner<'a> {
        let table = spec.table(host().kind);
        let [params, grads] =
            ["weights", "grads"].map(|what| MlpParams::bind(&table, resident.buf(&format!("actor.{what}"))));
        let [m, v] = ["adam_m", "adam_v"].map(|what| resident.buf(&format!("actor.{what}")));
        [params.all, grads.all, m, v].into_iter().for_each(|buf| dev.zero(buf));
        let mini = Mini::new(spec, rows);
        Learner { dev, spec, table, params, updates: 0, grads, m, v, overlay, mini }
    }

    pub fn host_bytes(spec: &MlpSpec, rows: usize, frames: usize) -> u64 {
        let (singles, doubles) = mini_width(spec);
        // Plus the order of the frames.
        (rows * (4 * singles + 8 * doubles) + 8 * spec.head.outputs() as usize + 4 * frames) as u64
    }

    /// Returns the states that a checkpoint keeps besides the weights.
    pub fn states(&self) -> Vec<FlatTensors<'a>> {
        let of = |prefix, buf| FlatTensors { prefix, buf, scales: None, stored: None };
        vec![of("adam_m.", self.m), of("adam_v.", self.v)]
    }

    /// Copies the flat weights in their memory order.
    pub fn weights(&self, into: &mut [f32]) {
        self.dev.read_f32(self.params.all, 0, into);
    }

    /// Computes values of rows `[B, n]`, for any B.
    pub fn values(&mut self, inputs: &[f32], values: &mut [f32]) {
        let (n, rows) = (self.spec.inputs as usize, self.mini.mask.len());
        let phase = self.overlay.enter(Phase::Update);
        let pass = MlpPass::bind("mlp", |name| phase.get(name));
        for (inputs, values) in inputs.chunks(rows * n).zip(values.chunks_mut(rows)) {
            self.dev.write_f32(pass.input, 0, inputs);
            forward(self.dev, &self.params, self.spec.activation, &pass, values.len());
            self.dev.read_f32(pass.values(values.len()), 0, values);
        }
    }

    /// Makes all updates from one rollout; `step` is counted from 1.
    ///
    /// Errors: `loss-not-finite`, `gradient-not-finite`; the weights are then those before the update that failed.
    pub fn learn(
        &mut self,
        how: &LearnerOptions,
        optimizer: UpdateOptions,
        experience: &Experience,
        step: u32,
    ) -> Result<LearnReport> {
        let mut report = LearnReport::default();
        let n = experience.num_frames();
        for epoch in 0..how.epochs {
            let pass = u64::from(step - 1) * u64::from(how.epochs) + u64::from(epoch);
            for which in permutation(how.seed, Stream::Data, pass, n).chunks(how.mini_batch) {
                self.mini.gather(experience, which);
                self.update(how, optimizer, which.len(), step, &mut report)?;
            }
        }
        Ok(report)
    }

    fn update(
        &mut self,
        how: &LearnerOptions,
        optimizer: UpdateOptions,
        rows: usize,
        step: u32,
        report: &mut LearnReport,
    ) -> Result<()> {
        let Learner { dev, spec, mini, .. } = self;
        let (outputs, n) = (spec.head.outputs() as usize, spec.inputs as usize);
        let phase = self.overlay.enter(Phase::Update);
        let pass = MlpPass::bind("mlp", |name| phase.get(name));
        dev.write_f32(pass.input, 0, &mini.inputs[..rows * n]);
        forward(*dev, &self.params, spec.activation, &pass, rows);
        dev.read_f32(pass.outputs(rows, outputs), 0, &mut mini.outputs[..rows * outputs]);
        dev.read_f32(pass.values(rows), 0, &mut mini.values[..rows]);
        let log_std = log_std(*dev, &self.params);
        losses(&dist(&spec.head, &log_std), how, mini, rows, step, report)?;
        dev.write_f32(pass.d_outputs(rows, outputs), 0, &mini.d_outputs[..rows * outputs]);
        dev.write_f32(pass.d_values(rows), 0, &mini.d_values[..rows]);
        backward(*dev, &self.params, spec.activation, &self.grads, &pass, rows);
        if let Some(grad) = self.grads.log_std {
            let d_log_std = mini.d_log_std[..grad.len()].iter().map(|&d| d as f32);
            dev.write_f32(grad, 0, &d_log_std.collect::<Vec<f32>>());
        }
        report.grad_norm = dev.sum_squares(self.grads.all).sqrt();
        if !report.grad_norm.is_finite() {
            let all = Share::WHOLE.owned(&self.table);
            let broken = first_not_finite(self.dev, &self.table, &all, self.grads.all);
            return Err(gradient_not_finite(&self.table, broken));
        }
        self.apply(optimizer, report.grad_norm);
        report.updates += 1;
        Ok(())
    }

    fn apply(&mut self, optimizer: UpdateOptions, grad_norm: f64) {
        self.updates += 1;
        let (weights, grad) = (self.params.all, self.grads.all);
        let bufs = AdamWBufs { weights, grad, m: self.m, v: self.v, scales: None, master: None };
        self.dev.adamw(adamw(optimizer, optimizer.grad_scale(grad_norm), self.updates), bufs);
    }

    /// Requires that every weight is finite.
    ///
    /// Errors: `model-weight-not-finite` names the tensor.
    pub fn prove(&self) -> Result<()> {
        finite_weights(self.dev, &self.table, self.params.all)
    }
}

/// Returns the logarithms of the standard deviations; empty for discrete actions.
pub fn log_std(dev: &dyn Device, params: &MlpParams<'_>) -> Vec<f32> {
    let mut log_std = vec![0.0; params.log_std.map_or(0, Buf::len)];
    if let Some(buf) = params.log_std {
        dev.read_f32(buf, 0, &mut log_std);
    }
    log_std
}

pub fn dist<'d>(head: &'d MlpHead, log_std: &'d [f32]) -> ActionDist<'d> {
    match head {
        MlpHead::Categorical(sizes) => ActionDist::Categorical { sizes },
        MlpHead::Gaussian(_) => ActionDist::Gaussian { log_std },
    }
}

/// Computes the losses of a mini-batch, and their gradients with respect to outputs, values and deviations.
fn losses(
    dist: &ActionDist<'_>,
    how: &LearnerOptions,
    mini: &mut Mini,
    rows: usize,
    step: u32,
    report: &mut LearnReport,
) -> Result<()> {
    let (outputs, dims) = (mini.outputs.len() / mini.mask.len(), mini.actions.len() / mini.mask.len());
    let kept = dist.kept();
    for row in 0..rows {
        let (of, action) = (&mini.outputs[row * outputs..][..outputs], &mini.actions[row * dims..][..dims]);
        let scored = dist.score(of, action, &mut mini.kept[row * kept..][..kept]);
        (mini.logprobs[row], mini.entropy[row]) = (scored.logp, scored.entropy);
    }
    if report.updates == 0 {
        let pairs = mini.logprobs[..rows].iter().zip(&mini.old_logprobs[..rows]);
        report.mismatch = pairs.map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        // No weight has changed since the rollout, so the ratio is exactly 1 for every frame.
        assert!(report.mismatch == 0.0, "a log-probability differs by {}", report.mismatch);
    }
    let offsets = [0, rows];
    let packed = Packed { mask: &mini.mask[..rows], seq_offsets: &offsets };
    whiten(how.whiten, packed.mask, &mut mini.advantages[..rows]);
    let mean = Aggregation::of_batch(AggregationKind::TokenMean, packed, 1.0);
    let batch = PolicyBatch {
        packed,
        logp: &mini.logprobs[..rows],
        old_logp: &mini.old_logprobs[..rows],
        advantages: &mini.advantages[..rows],
        weights: None,
    };
    let policy = policy_loss(&how.policy, &batch, &mean, &mut mini.d_logprobs[..rows]);
    let bonus =
        entropy_bonus(how.entropy_coef, packed, &mini.entropy[..rows], &mean, &mut mini.d_entropy[..rows]);
    let batch = ValueBatch {
        packed,
        values: &mini.values[..rows],
        old_values: &mini.old_values[..rows],
        returns: &mini.returns[..rows],
    };
    let value = value_loss(how.value_clip, &batch, &mean, &mut mini.d_values[..rows]);
    let loss = policy.loss + bonus.loss + how.value_coef * value.loss;
    finite_loss(step, loss)?;
    mini.d_values[..rows].iter_mut().for_each(|d| *d *= how.value_coef as f32);
    mini.d_log_std.fill(0.0);
    for row in 0..rows {
        let slopes = Slopes { logp: mini.d_logprobs[row], entropy: mini.d_entropy[row] };
        let (action, kept) = (&mini.actions[row * dims..][..dims], &mini.kept[row * kept..][..kept]);
        dist.gradient(
            action,
            kept,
            slopes,
            &mut mini.d_outputs[row * outputs..][..outputs],
            &mut mini.d_log_std,
        );
    }
    report.policy.merge(policy);
    report.entropy.merge(bonus);
    report.value.merge(value);
    Ok(())
}
