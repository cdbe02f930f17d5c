//! Gradients and AdamW states: flat buffers in the order of the weights, one element-wise pass a step.

use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::{AdamW, AdamWBufs, CODE_BLOCK, Device};
use plimsoll_memory::{Buf, Layout, Pool, Resident};
use plimsoll_model::{FlatTensors, ParamTable, Params};
use serde::{Deserialize, Serialize};

/// How optimizer states are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerDType {
    /// f32 moments; with bf16 weights an f32 master copy.
    F32,
    /// bf16 moments and weights, updated by stochastic rounding; no master copy.
    Bf16,
    /// 8-bit moments with a scale a block, updated by stochastic rounding; no master copy.
    Int8,
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
    /// Dtypes of the states in the order of `Optimizer::states`, as files hold them: bf16 holds each 8-bit moment exactly.
    pub fn stored(self) -> Vec<DType> {
        let moment = if self.optimizer == OptimizerDType::F32 { DType::F32 } else { DType::Bf16 };
        let master = self.has_master().then_some(DType::F32);
        [moment, moment].into_iter().chain(master).collect()
    }

    /// Bytes of both moments of a parameter, scales among them.
    pub fn moment_bytes(self) -> f64 {
        let scales = if self.has_scales() { 2.0 * 4.0 / CODE_BLOCK as f64 } else { 0.0 };
        self.moments().map(|dtype| dtype.bytes() as f64).iter().sum::<f64>() + scales
    }

    /// Of m and v.
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
    let mut add = |what: &str, elements: u64, dtype: DType| {
        layout.arena(&format!("{role}.{what}"), "train", pool, PhaseSet::RESIDENT, &[elements], dtype)
    };
    let (all, [m, v]) = (table.elements, dtypes.moments());
    add("grads", all, dtypes.grads)?;
    if dtypes.has_master() {
        add("master", all, DType::F32)?;
    }
    add("adam_m", all, m)?;
    add("adam_v", all, v)?;
    if dtypes.has_scales() {
        for scales in ["adam_m_scales", "adam_v_scales"] {
            add(scales, all.div_ceil(CODE_BLOCK as u64), DType::F32)?;
        }
    }
    Ok(layout)
}

/// Gradients and AdamW states of one role.
#[derive(Clone, Debug)]
pub struct Optimizer<'a> {
    /// Gradients, in the shape of the parameters.
    pub grads: Params<'a>,
    m: Buf<'a>,
    v: Buf<'a>,
    /// Of m and v, where they are codes.
    scales: Option<[Buf<'a>; 2]>,
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
        let has_scales = resident.get(&format!("{role}.adam_m_scales")).is_some();
        let scales = has_scales.then(|| ["adam_m_scales", "adam_v_scales"].map(buf));
        let optimizer = Optimizer { grads, m: buf("adam_m"), v: buf("adam_v"), scales, master, step: 0 };
        for state in
            [optimizer.grads.all, optimizer.m, optimizer.v].into_iter().chain(scales.into_iter().flatten())
        {
            dev.zero(state);
        }
        if let Some(master) = master {
            copy_elements(dev, weights.all, master);
        }
        optimizer
    }

    /// What must be kept to go on: each state under its name, m and v first.
    pub fn states(&self) -> Vec<FlatTensors<'a>> {
        let [m_scales, v_scales] = self.scales.map_or([None; 2], |scales| scales.map(Some));
        let master = self.master.map(|buf| FlatTensors { prefix: "master.", buf, scales: None });
        let moments = [
            FlatTensors { prefix: "adam_m.", buf: self.m, scales: m_scales },
            FlatTensors { prefix: "adam_v.", buf: self.v, scales: v_scales },
        ];
        moments.into_iter().chain(master).collect()
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
            scales: self.scales,
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
