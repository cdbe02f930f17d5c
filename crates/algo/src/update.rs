//! The numbers of one optimizer update.

/// The options of one update by AdamW, or by Muon and AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateOptions {
    /// Learning rate of this step.
    pub lr: f32,
    /// Decay rates of the moments.
    pub betas: (f32, f32),
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Largest gradient norm; larger gradients are scaled down to it; 0 for no limit.
    pub grad_clip: f32,
    /// Key of stochastic rounding.
    pub seed: u64,
    /// Muon's options, if it updates the matrices of layers; the rest is AdamW's in any case.
    pub muon: Option<MuonOptions>,
}

impl UpdateOptions {
    /// Returns what gradients of a norm are multiplied by.
    pub fn grad_scale(&self, grad_norm: f64) -> f32 {
        let clip = f64::from(self.grad_clip);
        if clip > 0.0 && grad_norm > clip { (clip / grad_norm) as f32 } else { 1.0 }
    }
}

plimsoll_base::names!(
    /// The optimizers.
    #[derive(Default)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    OptimizerName {
        /// AdamW for all weights.
        #[default]
        AdamW = "adamw",
        /// Muon for the matrices of layers, AdamW for embeddings, heads, norms and biases.
        Muon = "muon",
    }
);

impl OptimizerName {
    /// True if it is AdamW.
    pub fn is_adamw(&self) -> bool {
        *self == OptimizerName::AdamW
    }
}

/// The options of one update by Muon.
///
/// Source: Keller Jordan's muon.py; arXiv 2502.16982; `torch.optim.Muon`, which rounds to bf16 within the iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonOptions {
    /// Learning rate of this step, before `rate` adjusts it to a matrix.
    pub lr: f64,
    /// Decay rate of the momentum.
    pub momentum: f64,
    /// Whether the gradient is mixed with the new momentum once more.
    pub nesterov: bool,
    /// Newton-Schulz iterations.
    pub iterations: u32,
    /// a, b, c of an iteration: X <- a X + b (X X^T) X + c (X X^T)^2 X.
    pub coefficients: [f64; 3],
    /// Decoupled weight decay, of the rate that is not adjusted.
    pub weight_decay: f64,
    /// How the rate depends on a matrix.
    pub rate: MuonRate,
}

impl Default for MuonOptions {
    /// Returns the settings of `torch.optim.Muon`, but for a rate and a decay of 0 and the adjustment of the rate.
    fn default() -> MuonOptions {
        MuonOptions {
            lr: 0.0,
            momentum: 0.95,
            nesterov: true,
            iterations: 5,
            coefficients: [3.4445, -4.775, 2.0315],
            weight_decay: 0.0,
            rate: MuonRate::default(),
        }
    }
}

/// Smallest norm that a matrix is divided by.
pub const MUON_EPSILON: f64 = 1e-7;

plimsoll_base::names!(
    /// How Muon's learning rate depends on the shape of a matrix.
    #[derive(Default)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    MuonRate {
        /// 0.2 sqrt(max(rows, columns)): steps of the size of AdamW's, whose learning rate fits.
        #[default]
        MatchRmsAdamw = "match_rms_adamw",
        /// sqrt(max(1, rows / columns)).
        Original = "original",
    }
);

impl MuonRate {
    /// Returns the factor of the rate for a matrix [rows, cols].
    pub fn factor(self, rows: usize, cols: usize) -> f64 {
        let [rows, cols] = [rows as f64, cols as f64];
        match self {
            MuonRate::MatchRmsAdamw => 0.2 * rows.max(cols).sqrt(),
            MuonRate::Original => (rows / cols).max(1.0).sqrt(),
        }
    }
}
