//! The settings of a run of an environment policy: the environment's spaces, the network's shape, every limit. The plan
//! and the run use the same.

use super::learner::LearnerOptions;
use super::network::{Network, StoredPolicy};
use super::normalise::Moments;
use crate::collecting::PythonSetup;
use plimsoll_base::{Error, Result};
use plimsoll_collect::{
    Extras, GroupOptions, PythonStepper, RowLayout, Stepper, native_bytes, native_steppers,
};
use plimsoll_config::{Environment as Section, MLP, Objective, RunSpec};
use plimsoll_device::Activation;
use plimsoll_env::native::{Options, Visitor, visit};
use plimsoll_env::{Environment, Slot, Spec};
use plimsoll_memory::{Layout, host::Host};
use plimsoll_worker::Stop;
use std::path::Path;

/// Failures of a native environment within ten minutes after which the run stops.
const RESTARTS_MAX: u32 = 5;
/// Widths that `mlp:` accepts.
const WIDTHS: std::ops::RangeInclusive<u32> = 1..=4096;

/// Everything that a run of an environment policy depends on.
#[derive(Debug)]
pub struct AgentSettings {
    pub env: Spec,
    pub options: Options,
    /// Python environments with a measured worker; none for native ones.
    pub python: Option<PythonSetup>,
    /// Frames after which an episode is truncated.
    pub episode_frames_max: u32,
    pub network: Network,
    /// The policy file that the weights are read from; none for new weights.
    pub file: Option<StoredPolicy>,
    /// Number of environments, E.
    pub num_envs: usize,
    /// T: frames of each environment in a batch.
    pub frames_each: usize,
    pub lanes: usize,
    pub threads: usize,
    /// Columns of a batch.
    pub rows: RowLayout,
    /// Initial moments of observations; none where they are not normalised.
    pub first_moments: Option<Moments>,
    pub normalise_rewards: bool,
    pub gamma: f64,
    pub lambda: f64,
    pub learner: LearnerOptions,
}

impl AgentSettings {
    /// Reads the run file, the environment's spaces and, if the model is a file, its shapes. For a Python environment
    /// one worker is started and measured; `stop` ends that wait.
    ///
    /// Errors: `unknown-environment`, `env-bad-option`, `env-space-unsupported`, `policy-space-mismatch`,
    /// `policy-shape-mismatch`, `bad-value`, `missing-key`; those of opening a file and of starting a worker.
    pub fn new(run: &RunSpec, stop: &Stop) -> Result<AgentSettings> {
        let section = run.environment().expect("an environment policy has an environment");
        let objective = run.objective().expect("it learns by a method that samples");
        let gae = objective.gae.expect("which has a critic");
        let options: Options = section.env_options.clone().into_iter().collect();
        let num_envs = section.num_envs.unwrap_or(1) as usize;
        let mut python = PythonSetup::of_run(section, num_envs as u32, stop)?;
        let env = match &python {
            Some(setup) => setup.measured.spec.clone(),
            None => visit(&section.env, &options, SpecOf)?,
        };
        let own = python.as_ref().map_or(env.episode_steps_max, |setup| setup.measured.episode_steps_max);
        let episode_frames_max = episode_frames_max(&env.id, own, section.max_frames_per_traj)?;
        if let Some(setup) = &mut python {
            setup.limit_episodes(episode_frames_max);
        }
        let (network, file) = network(&run.model, &env)?;
        let first_moments = first_moments(section, file.as_ref(), network.reader.width())?;
        let frames_each = section.frames_per_batch.unwrap_or(1) as usize / num_envs;
        let extras = Extras { logprobs: true, values: true };
        let (observation, action) = (Slot::of(&env.observation)?, Slot::of(&env.action)?);
        let rows = RowLayout::new(&observation, &action, frames_each, frames_each, extras)
            .ok_or_else(|| Error::new("size-overflow", "a batch of these frames overflows 63 bits"))?;
        let threads = run.run.threads.value().map_or_else(|| Host::this().threads(), |n| n.max(1) as usize);
        Ok(AgentSettings {
            episode_frames_max,
            lanes: match &python {
                Some(setup) => setup.measured.lanes(threads),
                None => threads.min(num_envs),
            },
            threads,
            learner: learner(run, &objective),
            first_moments,
            normalise_rewards: section.normalise_rewards,
            gamma: gae.gamma,
            lambda: gae.lambda,
            env,
            options,
            python,
            network,
            file,
            num_envs,
            frames_each,
            rows,
        })
    }

    /// Makes steppers of the first `num_envs` environments for `lanes` threads of a collector; Python environments run
    /// in separate workers.
    pub fn steppers(&self, num_envs: usize, lanes: usize) -> Result<Vec<Box<dyn Stepper>>> {
        match &self.python {
            Some(setup) => {
                let envs = setup.envs_of(num_envs as u32);
                let lanes = PythonStepper::start_lanes(envs, lanes, &setup.stop)?;
                Ok(lanes.into_iter().map(|lane| Box::new(lane) as Box<dyn Stepper>).collect())
            }
            None => {
                let group = GroupOptions {
                    episode_steps_max: Some(self.episode_frames_max),
                    restarts_max: RESTARTS_MAX,
                    ..GroupOptions::default()
                };
                native_steppers(&self.env.id, &self.options, num_envs as u32, lanes, group)
            }
        }
    }

    /// Makes a stepper of `num_envs` environments for a single thread that also has other work.
    pub fn stepper(&self, num_envs: usize) -> Result<Box<dyn Stepper>> {
        match &self.python {
            Some(setup) => {
                let envs = setup.envs_of(num_envs as u32);
                Ok(Box::new(PythonStepper::start(envs, &setup.stop)?))
            }
            None => Ok(self.steppers(num_envs, 1)?.pop().expect("one thread has one stepper")),
        }
    }

    /// Returns the number of environments in the largest group that a policy acts on.
    pub(crate) fn group_envs(&self) -> usize {
        match &self.python {
            Some(setup) => setup.measured.group_envs_max(self.num_envs as u32) as usize,
            None => self.num_envs.div_ceil(self.lanes),
        }
    }

    /// Returns the bytes of `num_envs` environments in this process, and their workers' plan rows under `name`.
    ///
    /// Errors: `env-space-unsupported`; those of making the environment.
    pub fn environment_bytes(&self, name: &str, num_envs: usize) -> Result<(u64, Layout)> {
        match &self.python {
            Some(setup) => Ok((0, setup.measured.layout(name, num_envs as u32)?)),
            None => {
                let observation = self.rows.observation.bytes;
                let bytes = native_bytes(&self.env.id, &self.options, num_envs as u64, observation)?;
                Ok((bytes, Layout::new()))
            }
        }
    }

    pub(crate) fn normalises_observations(&self) -> bool {
        self.first_moments.is_some()
    }

    /// Returns N, the frames of a batch.
    pub fn frames(&self) -> usize {
        self.num_envs * self.frames_each
    }
}

struct SpecOf;

impl Visitor for SpecOf {
    type Output = Spec;

    fn visit<E: Environment + 'static>(self, make: impl Fn() -> E + Send + 'static) -> Spec {
        make().spec()
    }
}

/// Returns the frame limit of an episode, which every run has: it bounds what a checkpoint keeps of an episode.
fn episode_frames_max(id: &str, own: Option<u32>, asked: Option<u32>) -> Result<u32> {
    [own, asked].into_iter().flatten().min().ok_or_else(|| {
        let message = format!("{id} has no limit on the frames of an episode");
        Error::usage("missing-key", message).hint("set environment.max_frames_per_traj, for example to 1000")
    })
}

/// Returns the initial moments: those that a stored policy was trained with, or empty ones.
fn first_moments(section: &Section, file: Option<&StoredPolicy>, width: usize) -> Result<Option<Moments>> {
    let moments = file.and_then(|file| file.moments.clone());
    match (section.normalise_observations, moments) {
        (true, moments) => Ok(Some(moments.unwrap_or_else(|| Moments::new(width)))),
        (false, None) => Ok(None),
        (false, Some(_)) => {
            let message = "the policy of `model` sees normalised observations, and environment.normalise_observations is false";
            Err(Error::usage("contradictory-keys", message)
                .hint("set environment.normalise_observations = true"))
        }
    }
}

/// Reads `mlp:64x64`, `mlp:64x64,relu`, or `mlp:PATH` of a policy file.
fn network(model: &str, env: &Spec) -> Result<(Network, Option<StoredPolicy>)> {
    let words = model.strip_prefix(MLP).unwrap_or(model);
    let (shape, said) = match words.rsplit_once(',') {
        None => (words, None),
        Some((shape, "tanh")) => (shape, Some(Activation::Tanh)),
        Some((shape, "relu")) => (shape, Some(Activation::Relu)),
        Some((_, other)) => return Err(bad_model(model, &format!("there is no activation `{other}`"))),
    };
    let widths: Option<Vec<u32>> = shape.split('x').map(|width| width.parse().ok()).collect();
    match widths {
        Some(widths) if widths.iter().all(|width| WIDTHS.contains(width)) => {
            Ok((Network::of(env, widths, said.unwrap_or(Activation::Tanh))?, None))
        }
        Some(_) => Err(bad_model(model, &format!("a width is from {} to {}", WIDTHS.start(), WIDTHS.end()))),
        None if Path::new(shape).exists() => {
            let file = StoredPolicy::open(Path::new(shape))?;
            let activation = common_activation(said, file.activation).ok_or_else(|| {
                bad_model(model, "the policy.json next to the weights names another activation")
            })?;
            let network = Network::of(env, file.file.hidden()?, activation)?;
            file.check(&network)?;
            file.file.require_critic()?;
            Ok((network, Some(file)))
        }
        None => Err(bad_model(model, &format!("`{shape}` is neither widths nor a file"))),
    }
}

/// Returns the activation that was asked for, else the stored policy's, else tanh; `None` if the first two differ.
pub(crate) fn common_activation(asked: Option<Activation>, stored: Option<Activation>) -> Option<Activation> {
    match (asked, stored) {
        (Some(asked), Some(stored)) if asked != stored => None,
        (asked, stored) => Some(asked.or(stored).unwrap_or(Activation::Tanh)),
    }
}

fn bad_model(model: &str, why: &str) -> Error {
    Error::usage("bad-value", format!("model = \"{model}\": {why}"))
        .hint("set model = \"mlp:64x64\", \"mlp:64x64,relu\", or \"mlp:\" and the path of a policy file")
}

fn learner(run: &RunSpec, objective: &Objective) -> LearnerOptions {
    let critic = run.critic().cloned().unwrap_or_default();
    LearnerOptions {
        policy: objective.loss,
        value_clip: critic.value_clip.filter(|&clip| clip > 0.0),
        value_coef: critic.value_coef.unwrap_or(0.5),
        entropy_coef: objective.entropy_coef,
        whiten: objective.whiten,
        epochs: run.train().epochs_per_rollout,
        mini_batch: run.train().mini_batch.unwrap_or(1) as usize,
        seed: run.seed,
    }
}
