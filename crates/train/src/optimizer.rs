//! Gradients and AdamW states: flat buffers in the order of the weights, one element-wise pass a step.

use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::{AdamW, AdamWBufs, Device};
use plimsoll_memory::{Buf, Layout, Pool, Resident};
use plimsoll_model::{ParamTable, Params};
use serde::{Deserialize, Serialize};

/// How optimizer states are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerDType {
    /// f32 moments; with bf16 weights an f32 master copy.
    F32,
    /// bf16 moments and weights, updated by stochastic rounding; no master copy.
    Bf16,
}

/// Storage of everything that one parameter has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateDTypes {
    /// Weights and activations.
    pub weights: DType,
    /// Gradients.
    pub grads: DType,
    /// AdamW's moments.
    pub optimizer: OptimizerDType,
}

impl StateDTypes {
    /// Dtypes of the states in the order of `Optimizer::states`.
    pub fn states(self) -> Vec<DType> {
        let master = self.has_master().then_some(DType::F32);
        [self.moments(), self.moments()].into_iter().chain(master).collect()
    }

    fn moments(self) -> DType {
        match self.optimizer {
            OptimizerDType::F32 => DType::F32,
            OptimizerDType::Bf16 => DType::Bf16,
        }
    }

    /// True if an f32 copy of the weights is kept.
    pub fn has_master(self) -> bool {
        self.weights == DType::Bf16 && self.optimizer == OptimizerDType::F32
    }
}

/// Gradients and states of one role, resident.
///
/// Errors: `size-overflow`.
pub fn layout(role: &str, table: &ParamTable, dtypes: StateDTypes, pool: Pool) -> Result<Layout> {
    let mut layout = Layout::new();
    let mut add = |what: &str, dtype: DType| {
        layout.arena(&format!("{role}.{what}"), "train", pool, PhaseSet::RESIDENT, &[table.elements], dtype)
    };
    add("grads", dtypes.grads)?;
    if dtypes.has_master() {
        add("master", DType::F32)?;
    }
    add("adam_m", dtypes.moments())?;
    add("adam_v", dtypes.moments())?;
    Ok(layout)
}

/// Gradients and AdamW states of one role.
#[derive(Clone, Debug)]
pub struct Optimizer<'a> {
    /// Gradients, in the shape of the parameters.
    pub grads: Params<'a>,
    m: Buf<'a>,
    v: Buf<'a>,
    master: Option<Buf<'a>>,
    /// Updates made.
    pub step: u64,
}

/// What an update is made with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateOptions {
    /// Learning rate of this step.
    pub lr: f32,
    /// Decay rates of the moments.
    pub betas: (f32, f32),
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Gradients of a larger norm are scaled down to it; 0 for never.
    pub grad_clip: f32,
    /// Key of stochastic rounding.
    pub seed: u64,
}

impl<'a> Optimizer<'a> {
    /// Resolves the regions of `layout`, zeroes them, and copies the weights into the master copy.
    pub fn new<D: Device + ?Sized>(
        dev: &D,
        spec: &plimsoll_base::ModelSpec,
        table: &ParamTable,
        weights: &Params<'a>,
        resident: Resident<'a>,
        role: &str,
    ) -> Optimizer<'a> {
        let buf = |what: &str| resident.buf(&format!("{role}.{what}"));
        let grads = Params::bind(spec, table, weights.all.dtype(), buf("grads"));
        let master = resident.get(&format!("{role}.master"));
        let optimizer = Optimizer { grads, m: buf("adam_m"), v: buf("adam_v"), master, step: 0 };
        for state in [optimizer.grads.all, optimizer.m, optimizer.v] {
            dev.zero(state);
        }
        if let Some(master) = master {
            copy_elements(dev, weights.all, master);
        }
        optimizer
    }

    /// What must be kept to go on: each state with its name, m and v first.
    pub fn states(&self) -> Vec<(&'static str, Buf<'a>)> {
        let master = self.master.map(|master| ("master", master));
        [("adam_m", self.m), ("adam_v", self.v)].into_iter().chain(master).collect()
    }

    /// Sets gradients to zero: the start of a step.
    pub fn zero_grads<D: Device + ?Sized>(&self, dev: &D) {
        dev.zero(self.grads.all);
    }

    /// Global norm of the gradients; NaN or infinite if any of them is.
    pub fn grad_norm<D: Device + ?Sized>(&self, dev: &D) -> f64 {
        dev.sum_squares(self.grads.all).sqrt()
    }

    /// Runs the optimizer's operations once on zero gradients with a rate of zero: no weight and no state moves.
    pub fn rehearse<D: Device + ?Sized>(&self, dev: &D, weights: &Params<'_>) {
        self.zero_grads(dev);
        self.grad_norm(dev);
        let still = UpdateOptions { lr: 0.0, betas: (0.9, 0.95), weight_decay: 0.0, grad_clip: 0.0, seed: 0 };
        self.apply(dev, weights, still, 1.0, 1);
    }

    /// One AdamW step with gradients scaled to `grad_clip` where `grad_norm` exceeds it.
    pub fn update<D: Device + ?Sized>(
        &mut self,
        dev: &D,
        weights: &Params<'_>,
        how: UpdateOptions,
        grad_norm: f64,
    ) {
        self.step += 1;
        let clip = f64::from(how.grad_clip);
        let grad_scale = if clip > 0.0 && grad_norm > clip { (clip / grad_norm) as f32 } else { 1.0 };
        self.apply(dev, weights, how, grad_scale, self.step);
    }

    fn apply<D: Device + ?Sized>(
        &self,
        dev: &D,
        weights: &Params<'_>,
        how: UpdateOptions,
        grad_scale: f32,
        step: u64,
    ) {
        let adamw = AdamW {
            lr: how.lr,
            beta1: how.betas.0,
            beta2: how.betas.1,
            eps: 1e-8,
            weight_decay: how.weight_decay,
            step,
            grad_scale,
            seed: how.seed,
            first_element: 0,
        };
        let bufs = AdamWBufs {
            weights: weights.all,
            grad: self.grads.all,
            m: self.m,
            v: self.v,
            master: self.master,
        };
        dev.adamw(adamw, bufs);
    }
}

/// dst = src, element by element, through a small host buffer: a start-up cost only.
fn copy_elements<D: Device + ?Sized>(dev: &D, src: Buf<'_>, dst: Buf<'_>) {
    let mut values = vec![0f32; 1 << 16];
    for start in (0..src.len()).step_by(values.len()) {
        let n = values.len().min(src.len() - start);
        dev.read_f32(src, start, &mut values[..n]);
        dev.write_f32(dst, start, &values[..n]);
    }
}
