//! The harness of train's tests with an engine in the same arena.

#![allow(dead_code)] // Each test file uses its part.

#[path = "../../../train/tests/common/mod.rs"]
pub mod harness;

#[path = "../../../plimsoll/tests/common/cases.rs"]
pub mod cases;

use harness::{Harness, Setup};
use plimsoll_arch::{Attention, DeltaSpec, Family, FileShape, LayerSet, LayersWith, ModelSpec, Window};
use plimsoll_base::{Phase, Result};
use plimsoll_device::Sampling;
use plimsoll_memory::Layout;
use plimsoll_model::{Activations, Mode, adapters_layout, fp8_layout};
use plimsoll_rollout::{
    DraftLimits, DraftSource, Engine, EngineLimits, Live, Model, NeverStop, OnFull, PassCosts, Request,
    RolloutStats, Samples, StopCondition, layout,
};
use plimsoll_train::Sequence;

/// A harness whose arena has an engine's regions too.
pub struct World {
    pub harness: Harness,
    pub limits: EngineLimits,
    pub truncates: bool,
}

impl World {
    pub fn new(setup: Setup, limits: EngineLimits) -> World {
        World::truncating(setup, limits, false)
    }

    pub fn truncating(setup: Setup, limits: EngineLimits, truncates: bool) -> World {
        World::with(setup, limits, truncates, Layout::new())
    }

    /// With more regions in the arena.
    pub fn with(setup: Setup, limits: EngineLimits, truncates: bool, more: Layout) -> World {
        let spec = setup.open().spec;
        let mut extra = layout(&spec, setup.dtype, setup.target(), &limits, truncates).unwrap();
        if let Some((lora, _)) = setup.lora {
            let (mode, pass) = (Mode::Rollout { truncates }, limits.pass());
            let (dtype, target, merge) = (setup.dtype, setup.target(), setup.merge);
            extra.extend(adapters_layout(&spec, dtype, target, mode, pass, lora, merge).unwrap());
        }
        if setup.fp8 {
            let (mode, pass) = (Mode::Rollout { truncates }, limits.pass());
            extra.extend(fp8_layout(&spec, setup.dtype, setup.target(), mode, pass).unwrap());
        }
        extra.extend(more);
        let mut harness = Harness::new(setup, extra);
        if limits.ahead {
            harness.run_ahead();
        }
        World { harness, limits, truncates }
    }

    /// Runs one request on a new engine.
    pub fn sample(&mut self, on_full: OnFull, request: &Request<'_>) -> Result<(Samples, RolloutStats)> {
        let mut engine = Engine::new(self.limits, on_full);
        let mut out = Samples::with_capacity(self.limits.samples, self.limits.new_tokens);
        let stats = self.sample_with(&mut engine, request, &mut out)?;
        Ok((out, stats))
    }

    pub fn sample_with(
        &mut self,
        engine: &mut Engine,
        request: &Request<'_>,
        out: &mut Samples,
    ) -> Result<RolloutStats> {
        self.sample_until(engine, request, &mut NeverStop, out)
    }

    pub fn sample_until(
        &mut self,
        engine: &mut Engine,
        request: &Request<'_>,
        stop: &mut dyn StopCondition,
        out: &mut Samples,
    ) -> Result<RolloutStats> {
        let mut parts = self.harness.parts();
        let phase = parts.overlay.enter(Phase::Rollout);
        let acts = Activations::bind(&phase, Mode::Rollout { truncates: self.truncates }, self.limits.pass());
        engine.run(parts.dev, &parts.decoder, acts, request, stop, out)
    }
}

impl World {
    /// Runs `body` with the engine's live form.
    pub fn live<T>(&mut self, on_full: OnFull, body: impl FnOnce(Live<'_, '_, '_>) -> T) -> T {
        let mut engine = Engine::new(self.limits, on_full);
        let mut out = Samples::with_capacity(self.limits.samples, self.limits.new_tokens);
        self.live_with(&mut engine, &mut out, body)
    }

    pub fn live_with<T>(
        &mut self,
        engine: &mut Engine,
        out: &mut Samples,
        body: impl FnOnce(Live<'_, '_, '_>) -> T,
    ) -> T {
        let mut parts = self.harness.parts();
        let phase = parts.overlay.enter(Phase::Rollout);
        let acts = Activations::bind(&phase, Mode::Rollout { truncates: self.truncates }, self.limits.pass());
        let model = Model { dev: parts.dev, decoder: &parts.decoder, acts, sight: None };
        body(Live::new(model, engine, out))
    }
}

/// Drafts of up to four tokens, in passes whose rows cost nothing.
pub const DRAFTS: DraftLimits =
    DraftLimits { source: DraftSource::Suffix, depth: 4, rows: 40, texts: 64, costs: [PassCosts::FLAT; 2] };

/// Linear attention in all layers but the last.
#[allow(dead_code)] // Each binary uses its part.
pub fn with_states() -> ModelSpec {
    let nano = ModelSpec::preset("nano").unwrap().file_shape();
    let shape = FileShape {
        family: Family::Qwen35,
        qk_norms: Family::Qwen35.architecture().qk_norms,
        attention: Attention { gated: true, ..nano.attention },
        delta: Some(LayersWith {
            layers: LayerSet::all_but_every(nano.layers, nano.layers),
            each: DeltaSpec { key_heads: 2, value_heads: 4, key_dim: 16, value_dim: 32 },
        }),
        ..nano
    };
    shape.spec()
}

/// Keys of the windows of `with_windows`.
pub const KEYS: u32 = 9;

/// The preset `nano` with windows in all layers but every second.
pub fn with_windows() -> ModelSpec {
    let nano = ModelSpec::preset("nano").unwrap().file_shape();
    let window = Window { keys: KEYS, layers: LayerSet::all_but_every(2, nano.layers), rope_theta: None };
    FileShape { attention: Attention { window: Some(window), ..nano.attention }, ..nano }.spec()
}

/// Draws at a temperature from the whole vocabulary.
pub fn sampling(temperature: f32, seed: u64) -> Sampling {
    Sampling { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed }
}

/// The responses as the packer takes them.
pub fn sequences<'a>(prompts: &[&'a [u32]], samples: &'a Samples, group_size: usize) -> Vec<Sequence<'a>> {
    let one =
        |s| Sequence { group: s / group_size, prompt: prompts[s / group_size], response: samples.ids(s) };
    (0..samples.len()).map(one).collect()
}
