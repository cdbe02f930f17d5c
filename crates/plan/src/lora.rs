//! Adapters as the plan sees them: of the model that is trained, of its critic, and of reward models that score.

use plimsoll_arch::{LoraShape, Quantization};
use plimsoll_config::{Auto, LoraSpec, RunSpec};

/// Adapters of a model whose weights are frozen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lora {
    pub shape: LoraShape,
    /// What B (A x) is multiplied by: it follows from the two below.
    pub scale: f32,
    pub alpha: f64,
    pub rslora: bool,
    /// True if a second copy of the weights has them in it.
    pub merge: bool,
    /// How the frozen weights are stored, if not in full.
    pub quantize: Option<Quantization>,
}

/// An adapter that a critic learns, with its head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CriticAdapter {
    pub lora: Lora,
    /// True if the weights below it are the actor's own, which are frozen too.
    pub shares: bool,
}

impl CriticAdapter {
    /// Returns what the critic of a run learns, if not all its weights. Its products read adapters as they are: nothing is sampled
    /// from it, and a copy with them in it would be a second model.
    pub(crate) fn of(run: &RunSpec) -> Option<CriticAdapter> {
        let own = run.lora.as_ref().filter(|_| run.adapts_critic())?;
        Some(CriticAdapter { lora: lora(own, false), shares: run.critic_is_of_actor() })
    }
}

/// Returns whether adapters are merged, from the most memory to the least.
pub(crate) fn merges(run: &RunSpec) -> Vec<bool> {
    let is_coded = run.lora.as_ref().is_some_and(|lora| lora.quantize.is_some());
    match run.merge() {
        Auto::Value(merge) => vec![merge],
        // Merged weights are a copy in full.
        Auto::Auto if is_coded => vec![false],
        Auto::Auto => vec![true, false],
    }
}

/// Returns the adapters of a run file as the plan sees them.
pub(crate) fn lora(spec: &LoraSpec, merge: bool) -> Lora {
    let LoraSpec { rank, targets, alpha, rslora, quantize, .. } = *spec;
    let shape = LoraShape { rank, targets };
    Lora { shape, scale: spec.scale() as f32, alpha, rslora, merge, quantize }
}
