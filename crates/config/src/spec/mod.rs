//! A run after validation: every value is settled but those of the type `Auto`, which are the planner's to choose. The
//! rest of the program works on it; run files are only read, merged and written. A run has what it samples with, and
//! what only its kind of training reads.

mod lora;
mod model_reward;
mod sampler;
mod trains;

pub use lora::LoraSpec;
pub use model_reward::ModelReward;
pub use sampler::SamplerSpec;
pub use trains::{FromLabels, FromPairs, FromSamples, TrainingSpec, Trains};

use crate::{Async, Critic, Distill, Environment, Objective, OwnTeacher, RunFile, Train, VerbFile};
use plimsoll_algo::labelled::Kto;
use plimsoll_algo::method::{LearnsFrom, Method, Needs};
use plimsoll_algo::preference::PreferenceLoss;
use plimsoll_algo::shaping::GroupShaping;
use plimsoll_reward::{EstimatorSpec, TeacherSpec};
use std::ops::{Deref, DerefMut};

/// The value of `critic.model` for a critic that begins as the actor does.
const CRITIC_OF_ACTOR: &str = "actor";

/// A run after validation. What it samples with is read as its own fields.
#[derive(Clone, Debug)]
pub struct RunSpec {
    pub sampler: SamplerSpec,
    pub trains: Trains,
}

impl Deref for RunSpec {
    type Target = SamplerSpec;

    fn deref(&self) -> &SamplerSpec {
        &self.sampler
    }
}

impl DerefMut for RunSpec {
    fn deref_mut(&mut self) -> &mut SamplerSpec {
        &mut self.sampler
    }
}

impl RunSpec {
    /// Settles a checked run file.
    pub fn new(run: &RunFile) -> RunSpec {
        RunSpec { sampler: SamplerSpec::of_run(run), trains: Trains::new(run) }
    }

    /// Settles what a command samples that trains nothing: it has no method, and no step.
    pub fn sampling(verb: &VerbFile) -> RunSpec {
        RunSpec { sampler: SamplerSpec::of_verb(verb), trains: Trains::Nothing }
    }

    /// Returns what the run has in common with all that train.
    ///
    /// Panics if the run trains nothing.
    pub fn training(&self) -> &TrainingSpec {
        self.trains.training().expect("a run that trains")
    }

    /// Returns the same to change.
    ///
    /// Panics if the run trains nothing.
    pub fn training_mut(&mut self) -> &mut TrainingSpec {
        self.trains.training_mut().expect("a run that trains")
    }

    /// Returns the section `[train]` of a run that trains.
    pub fn train(&self) -> &Train {
        &self.training().train
    }

    /// Returns the same to change.
    pub fn train_mut(&mut self) -> &mut Train {
        &mut self.training_mut().train
    }

    /// Returns the method of a run that trains.
    pub fn method(&self) -> Method {
        self.training().method
    }

    /// Returns what the method needs; none where nothing is trained.
    fn needs(&self) -> Option<Needs> {
        self.trains.training().map(|training| training.method.needs())
    }

    /// Returns the data of a step; none where nothing is trained.
    pub fn learns_from(&self) -> Option<LearnsFrom> {
        self.needs().map(|needs| needs.learns_from)
    }

    /// True if the trained model outputs a score and no tokens.
    pub fn trains_scores(&self) -> bool {
        self.needs().is_some_and(|needs| needs.scores)
    }

    /// True if a step has answers that were judged, in pairs or by labels.
    pub fn learns_from_judged(&self) -> bool {
        self.learns_from().is_some_and(LearnsFrom::is_judged)
    }

    /// Returns what is optimised; none where nothing is sampled for training.
    pub fn objective(&self) -> Option<Objective> {
        self.trains.samples().map(|of| of.objective)
    }

    /// Returns the loss of pairs.
    ///
    /// Panics if the run compares no pairs, or compares their scores.
    pub fn preference(&self) -> PreferenceLoss {
        let Trains::Pairs(of) = &self.trains else { panic!("a run of pairs") };
        of.preference.expect("a policy learns from the pairs")
    }

    /// Returns the loss of answers with labels.
    ///
    /// Panics if the run has none.
    pub fn kto(&self) -> Kto {
        let Trains::Labels(of) = &self.trains else { panic!("a run of labels") };
        of.kto
    }

    /// Returns the critic; none for methods without one.
    pub fn critic(&self) -> Option<&Critic> {
        self.trains.samples()?.critic.as_ref()
    }

    /// Returns the teacher and its weight; none for methods without one.
    pub fn distill(&self) -> Option<&Distill> {
        self.trains.samples()?.distill.as_ref()
    }

    /// Returns the function that estimates advantages; none for those by name.
    pub fn estimator(&self) -> Option<&EstimatorSpec> {
        self.trains.samples()?.estimator.as_ref()
    }

    /// Returns the environment, if there is one.
    pub fn environment(&self) -> Option<&Environment> {
        self.trains.samples()?.environment.as_ref()
    }

    /// Returns the same to change.
    pub fn environment_mut(&mut self) -> Option<&mut Environment> {
        self.trains.samples_mut()?.environment.as_mut()
    }

    /// Returns how old samples may be when they are trained; none where none are.
    pub fn asynchrony(&self) -> Option<&Async> {
        self.trains.samples().map(|of| &of.asynchrony)
    }

    /// True if the weights that the run began with are kept next to the trained ones.
    pub fn has_reference(&self) -> bool {
        self.trains.training().is_some_and(|training| training.reference)
    }

    /// Returns the coefficient of the loss of balance of the actor's experts.
    pub fn balance_coef(&self) -> f64 {
        self.trains.training().map_or(0.0, |training| training.balance_coef)
    }

    /// True if there are weights of a reference that can lie elsewhere and pass through the device in parts: those in
    /// blocks stay, and rounded ones.
    pub fn moves_reference(&self) -> bool {
        self.has_reference() && self.lora.is_none() && !self.keeps_blocks() && !self.computes_fp8()
    }

    /// True if responses are sampled: by a method that learns from them, or by a command.
    pub fn samples(&self) -> bool {
        matches!(self.trains, Trains::Samples(_) | Trains::Nothing)
    }

    /// True if samples are compared with greedy answers, which are then drawn too.
    pub fn samples_greedily(&self) -> bool {
        self.objective().is_some_and(|objective| objective.shaping.group == GroupShaping::Greedy)
    }

    /// True if samples are scored at half the temperature too: for the weights of a baseline of each token.
    pub fn scores_sharply(&self) -> bool {
        self.objective().is_some_and(|objective| objective.shaping.group == GroupShaping::OptimalToken)
    }

    /// Returns which weights of the run are the teacher's; none without a teacher, or with another model.
    pub fn own_teacher(&self) -> Option<OwnTeacher> {
        self.distill().and_then(Distill::own_teacher)
    }

    /// Returns the name of a teacher that is another model, with weights in this run.
    pub fn teacher(&self) -> Option<&str> {
        self.distill().and_then(|distill| distill.teacher_models().next())
    }

    /// True if the teacher may have other tokens than the student.
    pub fn aligns_text(&self) -> bool {
        self.distill().is_some_and(Distill::aligns_text)
    }

    /// Returns how a teacher on a server is asked; none if the teacher is none.
    pub fn teacher_server(&self) -> Option<TeacherSpec> {
        self.distill().and_then(Distill::teacher_server)
    }

    /// Returns the sequences of a step: prompts times samples, both halves of pairs, or examples.
    pub fn sequences_per_step(&self) -> u64 {
        let from = self.learns_from().unwrap_or(LearnsFrom::Samples);
        sequences_per_step(from, self.rollout.prompts_per_step, self.rollout.group_size)
    }

    /// Returns the most tokens of a response: those of one turn, or of an episode after its prompt.
    pub fn response_tokens_max(&self) -> usize {
        let one = self.rollout.max_new_tokens;
        self.environment().map_or(one, |environment| environment.episode_tokens(one)) as usize
    }

    /// True if programs that own their loop play the episodes.
    pub fn plays_agents(&self) -> bool {
        self.environment().is_some_and(Environment::plays_agents)
    }

    /// Returns the most sequences of a sample: more than one only of agents.
    pub fn branches_max(&self) -> usize {
        self.environment().map_or(1, |environment| environment.branches_max.max(1) as usize)
    }

    pub fn turns_max(&self) -> usize {
        self.environment().map_or(1, |environment| environment.turns_max.max(1) as usize)
    }

    /// True if the critic learns an adapter, and none of the weights below it.
    pub fn adapts_critic(&self) -> bool {
        self.critic().is_some() && self.lora.as_ref().is_some_and(|lora| lora.of_critic)
    }

    /// True if nothing but adapters is trained, with their heads.
    pub fn adapts_all(&self) -> bool {
        self.lora.is_some() && (self.critic().is_none() || self.adapts_critic())
    }

    /// True if the critic begins with the actor's own model.
    pub fn critic_is_of_actor(&self) -> bool {
        let starts = |critic: &Critic| critic.model == CRITIC_OF_ACTOR || critic.model == self.model;
        self.critic().is_some_and(starts)
    }
}

/// Returns the sequences of a step over `prompts` prompts, examples or pairs.
pub(crate) fn sequences_per_step(from: LearnsFrom, prompts: u32, group: u32) -> u64 {
    let each = match from {
        LearnsFrom::Samples => group,
        LearnsFrom::Pairs | LearnsFrom::Labels => 2,
        LearnsFrom::Completions => 1,
    };
    u64::from(prompts) * u64::from(each)
}
