//! What a run file of an environment policy comes to: the environment's spaces, the network's shape, every limit. The
//! plan and the run read the same.

use super::learner::LearnerOptions;
use super::spaces::{ActionWriter, ObservationReader};
use crate::runfile::{MLP, RunFile, Whiten};
use plimsoll_algo::policy_loss::PolicyLoss;
use plimsoll_base::{Error, Result};
use plimsoll_collect::{Extras, RowLayout};
use plimsoll_device::Activation;
use plimsoll_env::native::{Options, Visitor, visit};
use plimsoll_env::{Environment, Slot, Spec};
use plimsoll_memory::host::Host;
use plimsoll_model::mlp::{MlpSpec, PolicyFile};
use std::path::Path;

/// Widths that `mlp:` takes.
const WIDTHS: std::ops::RangeInclusive<u32> = 1..=4096;

/// Everything that a run of an environment policy follows from.
#[derive(Debug)]
pub struct AgentSettings {
    /// What the environments are.
    pub env: Spec,
    /// Options that they are made with.
    pub options: Options,
    /// After so many frames an episode is truncated.
    pub episode_frames_max: u32,
    /// The network.
    pub spec: MlpSpec,
    /// The file that its weights come from; none for new ones.
    pub file: Option<PolicyFile>,
    /// E.
    pub num_envs: usize,
    /// T: frames of each in a batch.
    pub frames_each: usize,
    /// Threads of the collector.
    pub lanes: usize,
    /// Threads of the learner.
    pub threads: usize,
    /// Observations, as slots and as rows.
    pub reader: ObservationReader,
    /// Actions, as slots and as rows.
    pub writer: ActionWriter,
    /// Columns of a batch.
    pub rows: RowLayout,
    /// Whether observations are normalised.
    pub normalise_observations: bool,
    /// Whether rewards are.
    pub normalise_rewards: bool,
    /// Discount.
    pub gamma: f64,
    /// GAE's lambda.
    pub lambda: f64,
    /// What a batch is trained with.
    pub learner: LearnerOptions,
}

impl AgentSettings {
    /// Reads the run file, the environment's spaces and, if the model is a file, its shapes.
    ///
    /// Errors: `unknown-environment`, `env-bad-option`, `env-space-unsupported`, `policy-space-mismatch`,
    /// `policy-shape-mismatch`, `bad-value`, `not-built`; those of opening a file.
    pub fn new(run: &RunFile) -> Result<AgentSettings> {
        let section = run.environment.as_ref().expect("an environment policy has an environment");
        let options: Options = section.env_options.clone().into_iter().collect();
        check_native(&section.env)?;
        let env = visit(&section.env, &options, SpecOf)?;
        let (observation, action) = (Slot::of(&env.observation)?, Slot::of(&env.action)?);
        let (reader, writer) = (ObservationReader::of(&observation)?, ActionWriter::of(&action)?);
        let (hidden, activation, file) = network(&run.model)?;
        let inputs = reader.width() as u32;
        let spec = MlpSpec { inputs, hidden, activation, head: writer.head().clone() };
        if let Some(file) = &file {
            file.check(&spec, &spec.table(plimsoll_device::DeviceKind::Cpu))?;
        }
        let num_envs = section.num_envs.unwrap_or(1) as usize;
        let frames_each = section.frames_per_batch.unwrap_or(1) as usize / num_envs;
        let extras = Extras { logprobs: true, values: true };
        let rows = RowLayout::new(&observation, &action, frames_each, frames_each, extras)
            .ok_or_else(|| Error::new("size-overflow", "a batch of these frames overflows 63 bits"))?;
        let threads = run.run.threads.value().map_or_else(|| Host::this().threads(), |n| n.max(1) as usize);
        Ok(AgentSettings {
            episode_frames_max: episode_frames_max(&env, section.max_frames_per_traj)?,
            lanes: threads.min(num_envs),
            threads,
            learner: learner(run),
            normalise_observations: section.normalise_observations,
            normalise_rewards: section.normalise_rewards,
            gamma: run.loss.gamma,
            lambda: run.loss.lambda,
            env,
            options,
            spec,
            file,
            num_envs,
            frames_each,
            reader,
            writer,
            rows,
        })
    }

    /// N: frames of a batch.
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

/// Environments of Python are for `collect`.
fn check_native(env: &str) -> Result<()> {
    match ["gym:", "python:"].iter().find(|kind| env.starts_with(**kind)) {
        None => Ok(()),
        Some(_) => Err(Error::usage(
            "not-built",
            format!("environment.env = \"{env}\": training in it is not built yet"),
        )
        .hint("built are native environments, such as CartPole-v1")),
    }
}

/// The limit of an episode, which every run has: what a checkpoint keeps of an episode is bounded by it.
fn episode_frames_max(env: &Spec, asked: Option<u32>) -> Result<u32> {
    [env.episode_steps_max, asked].into_iter().flatten().min().ok_or_else(|| {
        let message = format!("{} has no limit on the frames of an episode", env.id);
        Error::usage("missing-key", message).hint("set environment.max_frames_per_traj, for example to 1000")
    })
}

/// `mlp:64x64`, `mlp:64x64,relu`, or `mlp:PATH` of a policy file.
fn network(model: &str) -> Result<(Vec<u32>, Activation, Option<PolicyFile>)> {
    let words = model.strip_prefix(MLP).unwrap_or(model);
    let (shape, activation) = match words.rsplit_once(',') {
        None => (words, Activation::Tanh),
        Some((shape, "tanh")) => (shape, Activation::Tanh),
        Some((shape, "relu")) => (shape, Activation::Relu),
        Some((_, other)) => return Err(bad_model(model, &format!("there is no activation `{other}`"))),
    };
    let widths: Option<Vec<u32>> = shape.split('x').map(|width| width.parse().ok()).collect();
    match widths {
        Some(widths) if widths.iter().all(|width| WIDTHS.contains(width)) => Ok((widths, activation, None)),
        Some(_) => Err(bad_model(model, &format!("a width is from {} to {}", WIDTHS.start(), WIDTHS.end()))),
        None if Path::new(shape).exists() => {
            let file = PolicyFile::open(Path::new(shape))?;
            Ok((file.hidden()?, activation, Some(file)))
        }
        None => Err(bad_model(model, &format!("`{shape}` is neither widths nor a file"))),
    }
}

fn bad_model(model: &str, why: &str) -> Error {
    Error::usage("bad-value", format!("model = \"{model}\": {why}"))
        .hint("set model = \"mlp:64x64\", \"mlp:64x64,relu\", or \"mlp:\" and the path of a policy file")
}

fn learner(run: &RunFile) -> LearnerOptions {
    let critic = run.critic.clone().unwrap_or_default();
    LearnerOptions {
        policy: PolicyLoss::Ppo {
            clip_low: run.loss.clip_low.unwrap_or(0.2),
            clip_high: run.loss.clip_high.unwrap_or(0.2),
            dual_clip: run.loss.dual_clip,
        },
        value_clip: critic.value_clip.filter(|&clip| clip > 0.0),
        value_coef: critic.value_coef.unwrap_or(0.5),
        entropy_coef: run.loss.entropy_coef,
        whiten: run.loss.whiten.map_or(plimsoll_algo::advantage::Whiten::Full, Whiten::kind),
        epochs: run.train.epochs_per_rollout,
        mini_batch: run.train.mini_batch.unwrap_or(1) as usize,
        adam_epsilon: run.train.adam_epsilon as f32,
        seed: run.seed,
    }
}
