//! The engine that samples, with the device and the arena's two parts: what every model of a run or of a command is
//! bound to.

use crate::answer_images::SeesAnswers;
use crate::bound::{BoundModel, Sources};
use crate::image_table::ImageTable;
use crate::phases::enter;
use crate::served_images::ServedTower;
use crate::sight::TowerOf;
use crate::weights::Loading;
use plimsoll_base::Result;
use plimsoll_config::Rollout;
use plimsoll_device::{Device, Sampling};
use plimsoll_files::Head;
use plimsoll_memory::{Arena, InPhase, Overlay, Resident};
use plimsoll_model::{Activations, Decoder, Mode, SeenImages};
use plimsoll_plan::RunShape;
use plimsoll_rollout::{
    DrawnEnds, Engine, Live, Model, Recorded, Request, RolloutStats, Samples, SoFar, StopCondition,
};
use plimsoll_serve::ImageTower;
use std::sync::Arc;

/// One device, its arena, and the engine that samples with a bound model.
pub struct Sampler<'a> {
    pub dev: &'a dyn Device,
    pub shape: &'a RunShape,
    /// Responses of the last request. While they are read longer than that, the next one has other room.
    pub samples: Arc<Samples>,
    /// The regions that no phase takes.
    pub resident: Resident<'a>,
    /// The bytes that phases share.
    pub overlay: Overlay<'a>,
    /// How weights are read.
    pub loading: Loading,
    /// The images that prompts may name, in a plan with images.
    pub images: Option<ImageTable<'a>>,
    engine: Engine,
}

impl<'a> Sampler<'a> {
    /// Takes the arena. What a model's files do not hold is drawn from `seed`.
    pub fn new(dev: &'a dyn Device, arena: &'a mut Arena, shape: &'a RunShape, seed: u64) -> Sampler<'a> {
        let (resident, overlay) = arena.split();
        let limits = shape.engine;
        let mut engine = Engine::new(limits, shape.on_full);
        if shape.lora.is_some_and(|lora| lora.slots > 0) {
            engine.take_adapters();
        }
        Sampler {
            dev,
            shape,
            samples: Arc::new(Samples::with_turns(
                limits.samples,
                limits.new_tokens,
                shape.episodes.turns_max,
            )),
            resident,
            overlay,
            loading: Loading { seed, staging: shape.host.staging },
            images: None,
            engine,
        }
    }

    /// Takes the images that prompts may name, and binds the tower of a plan with images.
    ///
    /// Errors: those of reading the tower's weights.
    pub fn take_album(&mut self, sources: &Sources<'_>) -> Result<()> {
        if let Some(album) = sources.album.filter(|_| self.shape.sight.is_some()) {
            let of = (sources.model, album.clone(), TowerOf::Run);
            self.images = Some(ImageTable::bind(self.dev, self.resident, self.shape, of, self.loading)?);
            self.engine.take_images();
        }
        Ok(())
    }

    /// Runs every shape of sampling once, so that the device's libraries allocate what they need before the first
    /// request. Does nothing on a device whose operations allocate no memory.
    pub fn rehearse(
        &mut self,
        of: &BoundModel<'a>,
        samplings: &[Sampling],
        recorded: Recorded,
    ) -> Result<()> {
        if self.dev.card_memory().is_none() || self.shape.head != Head::Vocabulary {
            return Ok(());
        }
        let (phase, acts) = begin(self.dev, &mut self.overlay, self.shape);
        let mode = Mode::Rollout { truncates: self.shape.truncates };
        if let Some(images) = &mut self.images {
            images.rehearse(self.dev, &phase)?;
        }
        let sight = self.images.as_ref().map(|images| images.seen(&phase, mode));
        let decoder = &of.sampled(self.dev, &phase);
        self.engine.rehearse(Model { dev: self.dev, decoder, acts, sight }, samplings, recorded)
    }

    /// Ends responses at lengths of a distribution as well, for measuring.
    pub fn draw_ends(&mut self, ends: DrawnEnds) {
        self.engine.draw_ends(ends);
    }

    /// Drafts at most `depth` tokens of a response from now on, and forgets what it drafts from, for measuring.
    pub fn limit_drafts(&mut self, depth: usize) {
        self.engine.limit_drafts(depth);
    }

    /// Samples responses into `samples`: phase Rollout.
    ///
    /// Errors: those of sampling.
    pub fn rollout(
        &mut self,
        of: &BoundModel<'a>,
        request: &Request<'_>,
        stop: &mut dyn StopCondition,
    ) -> Result<RolloutStats> {
        self.rollout_from(of, request, &[], stop)
    }

    /// Samples as `rollout` does, from where each response has come to.
    ///
    /// Errors: those of sampling.
    pub fn rollout_from(
        &mut self,
        of: &BoundModel<'a>,
        request: &Request<'_>,
        begun: &[SoFar<'_>],
        stop: &mut dyn StopCondition,
    ) -> Result<RolloutStats> {
        let (phase, acts) = begin(self.dev, &mut self.overlay, self.shape);
        let decoder = of.sampled(self.dev, &phase);
        let (samples, model) = (
            Samples::to_write(&mut self.samples),
            Model { dev: self.dev, decoder: &decoder, acts, sight: None },
        );
        let Some(images) = &mut self.images else {
            return self.engine.run_from(model, request, begun, stop, samples);
        };
        images.hold_in(self.dev, &phase, request.prompts.iter().copied())?;
        let (album, listed) = (images.album.clone(), images.begin_answers()?);
        let seen = images.seen(&phase, Mode::Rollout { truncates: self.shape.truncates });
        let SeenImages { regions, vectors, d_vectors, .. } = seen;
        let sight = Some(SeenImages { spec: &album.sight, regions, vectors, d_vectors, images: &listed });
        let mut sees = SeesAnswers { stop, dev: self.dev, phase: &phase, images };
        self.engine.run_from(Model { sight, ..model }, request, begun, &mut sees, samples)
    }

    /// Calls `body` with the engine's live form: phase Rollout, until it returns.
    pub fn live<T>(&mut self, of: &BoundModel<'a>, body: impl FnOnce(Live<'_, 'a, '_>) -> T) -> T {
        self.live_of(of.decoder(), body)
    }

    /// Calls `body` as `live` does, and with the phase, whose other regions are those of passes that train in between.
    pub fn live_and_phase<T>(
        &mut self,
        of: &BoundModel<'a>,
        body: impl for<'x> FnOnce(Live<'x, 'a, 'x>, &'x InPhase<'x>, &'x BoundModel<'a>) -> T,
    ) -> T {
        let (phase, acts) = begin(self.dev, &mut self.overlay, self.shape);
        let model = Model { dev: self.dev, decoder: of.decoder(), acts, sight: None };
        body(Live::new(model, &mut self.engine, Samples::to_write(&mut self.samples)), &phase, of)
    }

    /// Calls `body` as `live` does, with another decoder over the model's regions.
    pub fn live_of<T>(&mut self, decoder: &Decoder<'a>, body: impl FnOnce(Live<'_, 'a, '_>) -> T) -> T {
        let (_phase, acts) = begin(self.dev, &mut self.overlay, self.shape);
        let model = Model { dev: self.dev, decoder, acts, sight: None };
        body(Live::new(model, &mut self.engine, Samples::to_write(&mut self.samples)))
    }

    /// Calls `body` with the engine's live form for prompts with images, and the tower that sees them. Numbers of
    /// vectors are their places in the table.
    pub fn live_of_images<T>(
        &mut self,
        of: &BoundModel<'a>,
        body: impl FnOnce(Live<'_, 'a, '_>, &mut dyn ImageTower) -> T,
    ) -> T {
        let images = self.images.as_mut().expect("a plan with images");
        let (phase, acts) = begin(self.dev, &mut self.overlay, self.shape);
        let whole = images.whole();
        let seen = images.seen(&phase, Mode::Rollout { truncates: self.shape.truncates });
        let (spec, regions, vectors) =
            (&self.shape.sight.as_ref().expect("a plan with images").spec, seen.regions, seen.vectors);
        let sight = Some(SeenImages { spec, regions, vectors, d_vectors: None, images: &whole });
        let model = Model { dev: self.dev, decoder: of.decoder(), acts, sight };
        let live = Live::new(model, &mut self.engine, Samples::to_write(&mut self.samples));
        body(live, &mut ServedTower { dev: self.dev, phase: &phase, images })
    }
}

/// Begins the phase in which responses are drawn, and resolves its activations.
fn begin<'p>(
    dev: &dyn Device,
    overlay: &'p mut Overlay<'_>,
    shape: &RunShape,
) -> (InPhase<'p>, Activations<'p>) {
    let phase = enter(dev, overlay, shape.rollout_phase());
    let acts = Activations::bind(&phase, Mode::Rollout { truncates: shape.truncates }, shape.engine.pass());
    (phase, acts)
}

/// Returns the sampling of a run file's `[rollout]`.
pub fn sampling(rollout: &Rollout, seed: u64) -> Sampling {
    Sampling {
        temperature: rollout.temperature as f32,
        top_k: rollout.top_k,
        top_p: rollout.top_p as f32,
        min_p: rollout.min_p as f32,
        seed,
    }
}
