//! The purpose of a phase's passes, and what they keep.

use plimsoll_base::Phase;
use serde::{Deserialize, Serialize};

/// The activations of a layer that the update keeps for its backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    None,
    /// Norms, the SwiGLU product and the residual after attention are recomputed.
    Cheap,
    /// Only each layer's input is kept.
    Layer,
    /// Only each layer's input is kept, in the device's host memory.
    Offload,
}

impl Recompute {
    /// True if the backward pass recomputes whole layers.
    pub fn is_of_layers(self) -> bool {
        matches!(self, Recompute::Layer | Recompute::Offload)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Sampling: keys and values of all layers are kept.
    Rollout {
        /// True if top-k, top-p or min-p truncate the vocabulary.
        truncates: bool,
    },
    /// A reward model's scores of whole sequences, forward only. Models of one shape share a number and regions.
    Reward(u8),
    /// Log-probabilities only, of a model of the actor's shape.
    Score,
    /// Log-probabilities only, of a teacher's model of any shape. Models of one shape share a number and regions.
    Teacher(u8),
    /// A critic: forward to values, and backward.
    Critic(Recompute),
    /// Forward and backward.
    Update(Recompute),
    /// Forward and backward of a model whose head outputs a score.
    UpdateScore(Recompute),
}

impl Mode {
    /// Returns the phase in which the pass runs.
    pub fn phase(self) -> Phase {
        match self {
            Mode::Rollout { .. } => Phase::Rollout,
            Mode::Reward(_) => Phase::Reward,
            Mode::Score | Mode::Teacher(_) => Phase::Score,
            Mode::Critic(_) => Phase::Critic,
            Mode::Update(_) | Mode::UpdateScore(_) => Phase::Update,
        }
    }

    /// Returns the prefix of the regions' names: the phase, and a number if the phase has passes of several shapes.
    pub(crate) fn prefix(self) -> String {
        match self {
            Mode::Reward(set @ 1..) => format!("{}{}", self.phase().name(), set + 1),
            Mode::Teacher(0) => "teacher".to_string(),
            Mode::Teacher(set) => format!("teacher{}", set + 1),
            _ => self.phase().name().to_string(),
        }
    }

    /// Returns what a mode with a backward pass keeps.
    pub(crate) fn recompute(self) -> Option<Recompute> {
        match self {
            Mode::Critic(r) | Mode::Update(r) | Mode::UpdateScore(r) => Some(r),
            Mode::Rollout { .. } | Mode::Reward(_) | Mode::Score | Mode::Teacher(_) => None,
        }
    }

    /// True if the head has one output instead of one per token of the vocabulary.
    pub(super) fn has_values(self) -> bool {
        matches!(self, Mode::Reward(_) | Mode::Critic(_) | Mode::UpdateScore(_))
    }
}
