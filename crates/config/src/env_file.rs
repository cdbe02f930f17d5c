//! `env.toml`, the file of `plimsoll collect`: its table of types, and its checks. It is read like a run file, with the
//! same error messages.

use super::limits::{bad_value, contradiction, in_range};
use super::provenance::{FileKind, Provenance, Source};
use super::read::{provenance_of, read_text};
use super::schema::{all_keys, schema_properties};
use super::values::{Auto, ByteSize, Network, WorkerGpu};
use super::{aliases, de, layers, tree};
use plimsoll_base::{Bytes, Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The kind of file, for messages about its keys.
const ENV_FILE: FileKind = FileKind { name: "an environment file", keys: || all_keys(&env_json_schema()) };
/// Largest number of environments, and of frames in a batch; a larger one is a typing error.
const ENVS_MAX: u32 = 1 << 20;
const FRAMES_MAX: u64 = 1 << 31;
/// The values of a key that counts something.
const COUNT: &str = "a whole number of at least 1";
/// Largest number of batches in memory at a time.
const BATCHES_MAX: u32 = 1024;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvFile {
    /// A native environment such as `CartPole-v1`, `gym:ID` or `python:file.py:make`.
    pub env: String,
    /// Named arguments of its maker, as of Gymnasium's `make`.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub env_options: serde_json::Map<String, serde_json::Value>,
    /// Environments, in all workers together.
    pub num_envs: u32,
    /// Worker processes of Python environments; as many as cores.
    #[serde(default)]
    pub num_workers: Auto<u32>,
    /// Every random number follows from it.
    #[serde(default)]
    pub seed: u64,
    /// Threads that step native environments; the container's CPU quota.
    #[serde(default)]
    pub threads: Auto<u32>,
    /// Frames of a batch, of all environments together; a multiple of `num_envs`.
    pub frames_per_batch: u64,
    /// Frames in all, after which it ends; without it, it runs until it is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_frames: Option<u64>,
    /// When a batch ends.
    #[serde(default)]
    pub mode: CollectMode,
    /// The share of a batch's frames that ends it, in mode `semi-sync`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptive_threshold: Option<f64>,
    /// Frames whose policy is older by more versions are not delivered, in mode `async`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_lag_max: Option<u64>,
    /// Batches in memory.
    #[serde(default = "two")]
    pub batches_in_flight: u32,
    /// Final observations of a batch; enough for any batch where observations are small.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_rows_max: Option<u64>,
    /// Whole episodes that are handed out at a time, instead of frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub episodes_per_batch: Option<u32>,
    /// Longest episode that waits to be whole; longer ones are truncated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub episode_frames_max: Option<u32>,
    /// Frames after which an episode is truncated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_frames_per_traj: Option<u32>,
    /// The first frames, of all environments together, are drawn at random.
    #[serde(default)]
    pub init_random_frames: u64,
    /// Every batch begins with new episodes; those of the one before are truncated.
    #[serde(default)]
    pub reset_each_batch: bool,
    /// Whether actions are drawn from the policy's distribution or are its mode.
    #[serde(default)]
    pub explore: Explore,
    /// How often Python environments are seeded; each seeding costs about 11 us.
    #[serde(default)]
    pub reseed: Reseed,
    /// The interpreter of Python environments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Whether workers may open a GPU.
    #[serde(default)]
    pub gpu: WorkerGpu,
    /// Whether workers may reach a network.
    #[serde(default = "deny")]
    pub network: Network,
    /// Memory of one worker; 2 GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_memory: Option<ByteSize>,
    /// A step that takes longer has failed.
    #[serde(default = "step_timeout_ms")]
    pub step_timeout_ms: u32,
    /// A reset that takes longer has failed.
    #[serde(default = "reset_timeout_ms")]
    pub reset_timeout_ms: u32,
    /// Failures of an environment within ten minutes before the run stops.
    #[serde(default = "restarts_max")]
    pub restarts_max: u32,
    /// The share of workers below which the run stops.
    #[serde(default = "half")]
    pub workers_alive_min: f64,
    /// The fate of an episode whose environment failed.
    #[serde(default)]
    pub on_abort: AbortedEpisode,
    /// The policy that chooses actions.
    #[serde(default)]
    pub policy: PolicySection,
    /// A ring of the last frames, for learners that sample from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplaySection>,
    /// Where frames go.
    #[serde(default)]
    pub run: CollectRun,
}

/// When a batch ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CollectMode {
    /// When every environment gave its frames.
    #[default]
    Sync,
    /// When a share of the frames is in.
    SemiSync,
    /// Rows in the order in which they are full.
    Async,
}

/// How a policy takes an action from its distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Explore {
    /// Draws from it.
    #[default]
    Sample,
    /// Takes its most likely action.
    Mode,
}

/// How often Python environments are seeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reseed {
    /// At every reset.
    #[default]
    Episode,
    /// At the first one.
    Once,
}

/// The fate of an episode whose environment failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AbortedEpisode {
    /// Its frames stay, the last of them cut.
    #[default]
    Keep,
    /// Its frames of the batch are taken back.
    Drop,
}

/// The policy that chooses actions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySection {
    pub kind: PolicyKind,
    /// A safetensors file of an actor-critic, or a folder with `model.safetensors` in it, such as a checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The function between the layers; that of `policy.json` next to the weights, else tanh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation: Option<PolicyActivation>,
}

/// The function between the layers of a small network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyActivation {
    /// tanh x.
    Tanh,
    /// max(x, 0).
    Relu,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// Uniform over the action space.
    #[default]
    Random,
    /// A small actor-critic from a file, on the CPU.
    Mlp,
}

/// A ring of the last frames.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaySection {
    /// Frames that it holds, of all environments together; a multiple of `num_envs`.
    pub capacity: u64,
}

/// Where frames go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CollectRun {
    /// The directory of the files; without it nothing is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Batches of one file.
    pub batches_per_file: u32,
    /// The format of the files.
    pub format: FramesFormat,
}

impl Default for CollectRun {
    fn default() -> CollectRun {
        CollectRun { dir: None, batches_per_file: 16, format: FramesFormat::Safetensors }
    }
}

/// The formats of files of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FramesFormat {
    /// A tensor a column, as batches are in memory.
    #[default]
    Safetensors,
    /// A row a frame.
    Parquet,
}

fn deny() -> Network {
    Network::Deny
}

fn two() -> u32 {
    2
}

fn step_timeout_ms() -> u32 {
    60_000
}

fn reset_timeout_ms() -> u32 {
    300_000
}

fn restarts_max() -> u32 {
    5
}

fn half() -> f64 {
    0.5
}

/// An environment file with all its layers, checked.
#[derive(Clone, Debug)]
pub struct LoadedEnv {
    pub env: EnvFile,
    /// The origin of each value.
    pub provenance: Provenance,
    /// Messages for the user, one line each, for stderr.
    pub notes: Vec<String>,
}

/// True if the file at `path` has `env` at its top level and no method: an environment file, not a run file.
pub fn is_env_file(path: &Path) -> bool {
    let Ok(text) = read_text(path) else { return false };
    let source = Source { path: String::new(), text, ..Source::default() };
    tree::parse_file(&source).is_ok_and(|root| root.get("env").is_some() && root.get("method").is_none())
}

/// Reads the environment file at `path`, then the environment variables, then `sets`.
///
/// Errors, all with exit code 2: those of a run file, and `frames-not-whole`.
pub fn load_env(
    path: &Path,
    sets: &[String],
    env: impl Iterator<Item = (String, String)>,
) -> Result<LoadedEnv> {
    let source = Source { path: path.display().to_string(), text: read_text(path)?, kind: &ENV_FILE };
    let mut seen = aliases::Seen::default();
    let mut root = tree::parse_file(&source)?;
    rename(&mut root, &source)?;
    // Other variables may be meant for `train`; only known keys are read.
    let keys = schema_properties(&env_json_schema());
    layers::add_environment(&mut root, env, |top| keys.iter().any(|key| key == top), &source, &mut seen)?;
    layers::add_sets(&mut root, sets, &source, &mut seen)?;
    let env: EnvFile = de::read(&root, &source)?;
    let provenance = provenance_of(&root, source);
    check(&env, &provenance)?;
    Ok(LoadedEnv { env, provenance, notes: seen.notes })
}

/// Names of TorchRL's collectors, and ours.
const ALIASES: [(&str, &str); 3] = [
    ("trajs_per_batch", "episodes_per_batch"),
    ("reset_at_each_iter", "reset_each_batch"),
    ("num_threads", "threads"),
];

fn rename(root: &mut tree::Table, source: &Source) -> Result<()> {
    for (alias, key) in ALIASES {
        let Some(node) = root.remove(alias) else { continue };
        if root.get(key).is_some() {
            let message = format!("`{alias}` is another name of `{key}`, which is set too");
            return Err(source
                .error("duplicate-key", &node.origin, &message)
                .hint(format!("keep `{key}` alone")));
        }
        root.insert(key, node);
    }
    Ok(())
}

/// Returns the JSON Schema of environment files, made from the table of types.
pub(crate) fn env_json_schema() -> serde_json::Value {
    schemars::schema_for!(EnvFile).to_value()
}

impl EnvFile {
    /// Returns T, the frames of one environment in a batch.
    pub fn frames_per_env(&self) -> u64 {
        self.frames_per_batch / u64::from(self.num_envs)
    }

    /// True if Python workers step the environments.
    pub fn is_python(&self) -> bool {
        ["gym:", "python:"].iter().any(|prefix| self.env.starts_with(prefix))
    }

    /// Returns the frames after which an episode is truncated, whatever the environment's own limit.
    pub fn episode_steps_max(&self) -> Option<u32> {
        let limits = [self.max_frames_per_traj, self.episodes_per_batch.and(self.episode_frames_max)];
        limits.into_iter().flatten().min()
    }
}

fn check(env: &EnvFile, at: &Provenance) -> Result<()> {
    in_range(env.num_envs.into(), 1.0, ENVS_MAX.into(), at, "num_envs")?;
    in_range(env.frames_per_batch as f64, 1.0, FRAMES_MAX as f64, at, "frames_per_batch")?;
    in_range(env.batches_in_flight.into(), 1.0, BATCHES_MAX.into(), at, "batches_in_flight")?;
    whole_frames("frames_per_batch", env.frames_per_batch, env.num_envs, at)?;
    for (key, value) in [
        ("num_workers", env.num_workers.value()),
        ("threads", env.threads.value()),
        ("episodes_per_batch", env.episodes_per_batch),
        ("episode_frames_max", env.episode_frames_max),
        ("max_frames_per_traj", env.max_frames_per_traj),
        ("step_timeout_ms", Some(env.step_timeout_ms)),
        ("reset_timeout_ms", Some(env.reset_timeout_ms)),
        ("run.batches_per_file", Some(env.run.batches_per_file)),
    ] {
        if value == Some(0) {
            return Err(bad_value(at, key, 0, COUNT));
        }
    }
    for (key, value) in [("total_frames", env.total_frames), ("final_rows_max", env.final_rows_max)] {
        if value == Some(0) {
            return Err(bad_value(at, key, 0, COUNT));
        }
    }
    in_range(env.workers_alive_min, 0.0, 1.0, at, "workers_alive_min")?;
    if env.worker_memory.is_some_and(|limit| limit.0 == Bytes(0)) {
        return Err(bad_value(at, "worker_memory", 0, "bytes above 0, such as \"512MiB\""));
    }
    if let Some(replay) = env.replay {
        in_range(replay.capacity as f64, 1.0, FRAMES_MAX as f64, at, "replay.capacity")?;
        whole_frames("replay.capacity", replay.capacity, env.num_envs, at)?;
    }
    policy(env, at)?;
    modes(env, at)?;
    without_effect(env, at)
}

/// Keys of Python environments, without effect on native ones.
const OF_PYTHON: [&str; 9] = [
    "num_workers",
    "python",
    "gpu",
    "network",
    "worker_memory",
    "step_timeout_ms",
    "reset_timeout_ms",
    "workers_alive_min",
    "reseed",
];

/// Refuses keys that are set and have no effect.
fn without_effect(env: &EnvFile, at: &Provenance) -> Result<()> {
    let refuse = |key: &str, why: &str, hint: &str| {
        if at.origins.contains_key(key) {
            Err(contradiction(at, key, &format!("`{key}` is set, but {why}")).hint(hint))
        } else {
            Ok(())
        }
    };
    if !env.is_python() && !env.env.starts_with("text:") {
        let why = format!("`{}` is stepped by threads of this process, not by workers", env.env);
        for key in OF_PYTHON {
            refuse(key, &why, &format!("remove {key}, or set env = \"gym:{}\"", env.env))?;
        }
    }
    if env.episodes_per_batch.is_none() {
        let why = "it bounds episodes that wait to be whole, and `episodes_per_batch` is not set";
        refuse(
            "episode_frames_max",
            why,
            "set episodes_per_batch, or max_frames_per_traj to truncate episodes",
        )?;
    }
    if env.run.dir.is_none() {
        for key in ["run.batches_per_file", "run.format"] {
            refuse(
                key,
                "nothing is written, for run.dir is not set",
                &format!("set run.dir, or remove {key}"),
            )?;
        }
    }
    Ok(())
}

fn policy(env: &EnvFile, at: &Provenance) -> Result<()> {
    let PolicySection { kind, path, activation } = &env.policy;
    if *kind == PolicyKind::Mlp && path.is_none() {
        return Err(de::missing_key(&at.source, &super::Origin::Default, "policy.path"));
    }
    let of_mlp = [
        ("policy.path", path.is_some()),
        ("policy.activation", activation.is_some()),
        ("explore", env.explore == Explore::Mode),
    ];
    match of_mlp.into_iter().find(|(_, is_set)| *is_set && *kind == PolicyKind::Random) {
        Some((key, _)) => {
            let message = format!("`{key}` is set, and the policy is \"random\", which does not use it");
            Err(contradiction(at, key, &message)
                .hint(format!("set policy.kind = \"mlp\", or remove `{key}`")))
        }
        None => Ok(()),
    }
}

fn modes(env: &EnvFile, at: &Provenance) -> Result<()> {
    let needs = |key: &str, mode: &str| {
        contradiction(at, key, &format!("`{key}` is of mode \"{mode}\""))
            .hint(format!("set mode = \"{mode}\", or remove `{key}`"))
    };
    match (env.mode, env.preemptive_threshold) {
        (CollectMode::SemiSync, None) => {
            return Err(de::missing_key(&at.source, &super::Origin::Default, "preemptive_threshold"));
        }
        (CollectMode::SemiSync, Some(share)) if !(share > 0.0 && share <= 1.0) => {
            return Err(bad_value(at, "preemptive_threshold", share, "a number above 0 and up to 1"));
        }
        (CollectMode::Sync | CollectMode::Async, Some(_)) => {
            return Err(needs("preemptive_threshold", "semi-sync"));
        }
        _ => {}
    }
    if env.policy_lag_max.is_some() && env.mode != CollectMode::Async {
        return Err(needs("policy_lag_max", "async"));
    }
    if env.reset_each_batch && env.mode == CollectMode::Async {
        return Err(needs("reset_each_batch", "sync"));
    }
    if env.episodes_per_batch.is_some() && env.episode_frames_max.is_none() {
        return Err(de::missing_key(&at.source, &super::Origin::Default, "episode_frames_max")
            .fact("whole episodes wait in memory, which must be planned"));
    }
    Ok(())
}

/// Requires that `frames` is a multiple of the number of environments.
fn whole_frames(key: &str, frames: u64, num_envs: u32, at: &Provenance) -> Result<()> {
    let envs = u64::from(num_envs);
    if frames.is_multiple_of(envs) {
        return Ok(());
    }
    let message =
        format!("`{key}` is {frames}, which is not a multiple of `num_envs` = {num_envs}: {} frames each", {
            (frames as f64 / envs as f64 * 1000.0).round() / 1000.0
        });
    let below = frames / envs * envs;
    let hint = match below {
        0 => format!("set {key} = {envs}"),
        below => format!("set {key} = {below} or {}", below + envs),
    };
    let error: Error = at.error("frames-not-whole", key, &message);
    Err(error.hint(hint))
}

impl WorkerGpu {
    pub(crate) fn is_denied(&self) -> bool {
        *self == WorkerGpu::Deny
    }
}
