//! Low-rank adapters of a run.

use crate::{Auto, CriticLearns, Lora};
use plimsoll_arch::{LoraShape, LoraTargets, Quantization};
use std::path::PathBuf;

/// Low-rank adapters: y = W x + scale B (A x) in every target.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraSpec {
    pub rank: u32,
    pub alpha: f64,
    /// True if the scale falls with the root of the rank.
    pub rslora: bool,
    pub targets: LoraTargets,
    /// How the frozen weights are stored, if not in full.
    pub quantize: Option<Quantization>,
    /// The folder of a peft adapter to start from.
    pub adapter: Option<PathBuf>,
    /// True if a critic learns an adapter of its own, and no other weights than its head.
    pub of_critic: bool,
    /// Whether rollout and update read weights that have adapters in them.
    pub merge: Auto<bool>,
    /// Adapters side by side, of which each response has one or none; 0 for the model's own.
    pub slots: u32,
    /// The first of them, which are trained too.
    pub trained_slots: u32,
}

impl LoraSpec {
    /// Returns what a run does with the section.
    pub fn new(lora: &Lora) -> LoraSpec {
        LoraSpec {
            rank: lora.rank,
            alpha: lora.alpha(),
            rslora: lora.rslora,
            targets: lora.targets,
            quantize: lora.quantize,
            adapter: lora.adapter.as_ref().map(PathBuf::from),
            of_critic: lora.critic == CriticLearns::Adapter,
            merge: lora.merge,
            slots: 0,
            trained_slots: 0,
        }
    }

    /// Returns the factor of B (A x): alpha / rank, or with `rslora` alpha / sqrt(rank).
    pub fn scale(&self) -> f64 {
        let rank = f64::from(self.rank);
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    pub fn shape(&self) -> LoraShape {
        LoraShape { rank: self.rank, targets: self.targets }
    }
}
