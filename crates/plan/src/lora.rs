//! Adapters in the plan: of the trained model, of its critic, and of reward models.

use plimsoll_arch::{LoraShape, ModelSpec, Quantization, TowerSpec};
use plimsoll_config::{Auto, LoraSpec, RunSpec, TowerUse};

/// Adapters of a model whose weights are frozen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lora {
    pub shape: LoraShape,
    /// Factor on B (A x); it follows from `alpha`, `rslora` and the rank.
    pub scale: f32,
    pub alpha: f64,
    pub rslora: bool,
    /// True if a second copy of the weights has the adapters merged in.
    pub merge: bool,
    /// How the frozen weights are quantized, if at all.
    pub quantize: Option<Quantization>,
    /// The tower that has adapters too, after those of the text.
    pub tower: Option<TowerSpec>,
    /// Adapters side by side, of which each response has one or none; 0 for one that all have.
    pub slots: u32,
    /// The first of them, which are trained too, each with its own gradients and states.
    pub trained_slots: u32,
}

/// An adapter that a critic trains together with its head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CriticAdapter {
    pub lora: Lora,
    /// True if its base weights are the actor's own, which are frozen too.
    pub shares: bool,
}

impl CriticAdapter {
    /// Returns what the critic of a run trains, unless that is all of its weights. Its adapters are never merged:
    /// nothing is sampled from it, and a merged copy would be a second model.
    pub(crate) fn of(run: &RunSpec, model: &ModelSpec) -> Option<CriticAdapter> {
        let own = run.lora.as_ref().filter(|_| run.adapts_critic())?;
        Some(CriticAdapter { lora: lora(own, model, false), shares: run.critic_is_of_actor() })
    }
}

/// Returns the adapters of the model that a run trains, and of its tower if that is to have some.
pub(crate) fn trained(
    run: &RunSpec,
    (model, tower): (&ModelSpec, Option<TowerSpec>),
    merge: bool,
) -> Option<Lora> {
    let own = lora(run.lora.as_ref()?, model, merge);
    Some(Lora { tower: tower.filter(|_| run.model_options.tower == TowerUse::Adapters), ..own })
}

/// Returns the choices for merging adapters, from the most memory to the least.
pub(crate) fn merges(run: &RunSpec) -> Vec<bool> {
    let is_coded = run.lora.as_ref().is_some_and(|lora| lora.quantize.is_some());
    match run.merge() {
        Auto::Value(merge) => vec![merge],
        // Merged weights are a full copy, and not rounded.
        Auto::Auto if is_coded || run.computes_fp8() => vec![false],
        Auto::Auto => vec![true, false],
    }
}

/// Returns the plan's view of a run file's adapters of a model.
fn lora(spec: &LoraSpec, model: &ModelSpec, merge: bool) -> Lora {
    let LoraSpec { rank, targets, alpha, rslora, quantize, slots, trained_slots, .. } = *spec;
    let shape = LoraShape { rank, targets: targets.of_model(model) };
    let scale = spec.scale() as f32;
    Lora { shape, scale, alpha, rslora, merge, quantize, tower: None, slots, trained_slots }
}
