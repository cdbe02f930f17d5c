//! Models that respond to prompts and score responses, without a method.

use crate::bound::{BoundModel, Sources};
use crate::grading::GradedRequest;
use crate::models::open_model;
use crate::responder::{Graded, Responder};
use crate::sampler::Sampler;
use crate::side_adapters::SideAdapters;
use crate::text::{TextModel, text_model};
use plimsoll_base::Result;
use plimsoll_config::VerbFile;
use plimsoll_device::{Device, OpenOptions, Sampling};
use plimsoll_devices::BoxedDevice;
use plimsoll_files::OpenModel;
use plimsoll_memory::{Arena, InPhase};
use plimsoll_plan::{RoleName, RunShape, devices};
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::{Live, Recorded, Request, RolloutStats, StopCondition};
use plimsoll_serve::ImageTower;
use plimsoll_train::{Packer, Sequence};

/// The models of a command: the first is sampled from, the others score.
pub struct Runner<'a> {
    pub sampler: Sampler<'a>,
    models: Vec<BoundModel<'a>>,
    packer: Option<Packer>,
}

/// Opens the device of a shape, for one rank.
///
/// Errors: those of `plimsoll_devices::open`.
pub fn open(shape: &RunShape, options: OpenOptions) -> Result<(BoxedDevice, Arena)> {
    plimsoll_devices::open(&shape.layout()?, &devices::opening(shape, options))
}

/// Opens what a command names: its model and the text of that, on a machine where its device works.
///
/// Errors: those of the device's driver and of opening.
pub fn open_verb(verb: &VerbFile) -> Result<(OpenModel, TextModel)> {
    devices::check(verb.run.device.value().map(|device| device.name()))?;
    let mut model = open_model(&verb.model, &verb.model_options)?;
    let text = text_model(&model, &verb.data)?;
    model.eos_token_ids.clone_from(&text.ends);
    let text = text.held(&verb.rollout, &model)?;
    Ok((model, text))
}

impl<'a> Runner<'a> {
    /// Binds the models to the arena and reads their weights; what their files do not hold is drawn from `seed`.
    ///
    /// Errors: those of reading.
    pub fn new(
        dev: &'a dyn Device,
        arena: &'a mut Arena,
        shape: &'a RunShape,
        sources: Sources<'_>,
        seed: u64,
    ) -> Result<Runner<'a>> {
        let mut sampler = Sampler::new(dev, arena, shape, seed);
        let mut models: Vec<BoundModel<'a>> = Vec::new();
        for role in shape.roles() {
            let (loading, source) = (sampler.loading, sources.of(role.name));
            let (resident, overlay) = (sampler.resident, &mut sampler.overlay);
            let model = BoundModel::bind(dev, resident, overlay, role, models.first(), source, loading)?;
            model.load_adapters(dev, loading.adapters(role.name, source), loading.staging)?;
            models.push(model);
        }
        sampler.take_album(&sources)?;
        let sequences = shape.step_arrays().sequences;
        let packer = shape.packs().map(|pass| Packer::new(pass, sequences));
        Ok(Runner { sampler, models, packer })
    }

    /// Reads adapters into the slots of the model that is sampled.
    ///
    /// Errors: those of `SideAdapters::load`.
    pub fn load_slots(&self, adapters: &SideAdapters) -> Result<()> {
        adapters.load(self.sampler.dev, &self.models[0], self.sampler.loading.staging)
    }

    /// Runs every shape of sampling once, as `Sampler::rehearse`.
    pub fn rehearse(&mut self, samplings: &[Sampling]) -> Result<()> {
        self.sampler.rehearse(&self.models[0], samplings, Recorded::Whole)
    }

    /// Runs every shape of the live form once, as `Sampler::rehearse`.
    pub fn rehearse_live(&mut self, samplings: &[Sampling]) -> Result<()> {
        self.sampler.rehearse(&self.models[0], samplings, Recorded::Layers)
    }

    /// Calls `body` with the engine's live form, as `Sampler::live`.
    pub fn live<T>(&mut self, body: impl FnOnce(Live<'_, 'a, '_>) -> T) -> T {
        self.sampler.live(&self.models[0], body)
    }

    /// Calls `body` as `Sampler::live_and_phase` does, and with the model.
    pub fn live_and_phase<T>(
        &mut self,
        body: impl for<'x> FnOnce(Live<'x, 'a, 'x>, &'x InPhase<'x>, &'x BoundModel<'a>) -> T,
    ) -> T {
        let Runner { sampler, models, .. } = self;
        sampler.live_and_phase(&models[0], body)
    }

    /// Calls `body` with the engine's live form of the model with one slot's adapter in all rows, with a factor.
    pub fn live_of_slot<T>(
        &mut self,
        (slot, scale): (usize, f32),
        body: impl FnOnce(Live<'_, 'a, '_>) -> T,
    ) -> T {
        let decoder = self.models[0].of_slot(slot, scale);
        self.sampler.live_of(&decoder, body)
    }

    /// Returns the model that is sampled.
    pub fn model(&self) -> &BoundModel<'a> {
        &self.models[0]
    }

    /// Calls `body` as `Sampler::live_of_images` does, in a plan with images.
    pub fn live_of_images<T>(&mut self, body: impl FnOnce(Live<'_, 'a, '_>, &mut dyn ImageTower) -> T) -> T {
        self.sampler.live_of_images(&self.models[0], body)
    }
}

impl<'a> Responder<'a> for Runner<'a> {
    fn respond(
        &mut self,
        rewards: &mut Rewards,
        of: &GradedRequest<'_>,
    ) -> Result<(Vec<String>, Vec<Scored>)> {
        let graded = Graded::sample(self, rewards, of, of.items.iter(), &of.request, &mut || {})?;
        Ok((graded.texts, graded.scored))
    }

    fn sampler(&mut self) -> &mut Sampler<'a> {
        &mut self.sampler
    }

    fn rollout(&mut self, request: &Request<'_>, stop: &mut dyn StopCondition) -> Result<RolloutStats> {
        self.sampler.rollout(&self.models[0], request, stop)
    }

    fn reward_scores(&mut self, role: RoleName, sequences: &[Sequence<'_>]) -> Result<Vec<f32>> {
        let Runner { sampler, models, packer } = self;
        let model = models.iter().find(|model| model.shape.name == role).expect("a reward model of the plan");
        let packer = packer.as_mut().expect("the plan of what scores packs");
        let (mut out, dev) = (vec![0f32; sequences.len()], sampler.dev);
        model.score(
            dev,
            &mut sampler.overlay,
            (packer, None, None),
            sequences,
            1.0,
            &mut |which, rows| dev.read_f32(rows.numbers, 0, &mut out[which]),
        )?;
        Ok(out)
    }
}
