//! `[environment]`.

use crate::key::{COUNT, FREELY, Fact, Key, NATIVE, NOT_ZERO, Player, REQUIRED, TEXT, WORKERS, also, within};
use crate::values::{Auto, ByteSize, Credit, Network, WorkerGpu};
use plimsoll_base::Bytes;
use plimsoll_textenv::{HARBOR, HTTP_AGENT, TOOLS};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Number of environments, and of frames in a batch; a larger one is a typing error.
const FRAMES: Fact = within(1.0, (1 << 24) as f64);

/// Default of `environment.container_memory`.
const CONTAINER_MEMORY: ByteSize = ByteSize(Bytes::mib(2048));

section! {
    /// An environment instead of prompts. A language model plays text environments, and its episodes are what is
    /// sampled and trained; a small network (`model = "mlp:..."`) acts in native ones, by the keys at the end.
    Environment "environment" {
        /// `text:NAME`, `python:FILE.py:CLASS`, `tools`, `harbor`, `gym:ID` of text, `openenv:URL`, `http-agent`; for a
        /// small network a native environment such as `CartPole-v1`, `gym:ID` or `python:FILE.py:FUNCTION`.
        env: String = String::new() => [REQUIRED],
        /// Most turns of the model in an episode; each is up to `rollout.max_new_tokens` tokens long.
        turns_max: u32 = 8 => [TEXT, COUNT],
        /// Most tokens between two turns, the chat template's included; what the environment says beyond them is cut.
        turn_tokens_max: u32 = 128 => [TEXT, COUNT],
        /// Most tokens after an episode's prompt; as many as its turns can have if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        episode_tokens_max: Option<u32> = None => [TEXT],
        /// Most images that the tools of an episode return, each of up to 2 MiB as a file and `data.image_pixels_max`
        /// pixels after it is resized; 0 ends an episode whose tool returns one.
        #[serde(skip_serializing_if = "is_none")]
        images_max: u32 = 0 => [TEXT],
        /// Which tokens a turn's reward is credited to.
        credit: Credit = Credit::Episode => [TEXT],
        /// Functions that the model may call, each `python:FILE.py:FUNCTION`, and servers of the Model Context Protocol
        /// with such, each `mcp:COMMAND` or `mcp:http://HOST:PORT/PATH`: those of `env = "tools"`, which `[[reward]]`
        /// grades, or next to the methods of a class.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tools: Vec<String> = Vec::new() => [TEXT],
        /// A JSONL or Parquet file, or `hf:org/name/SUBSET/SPLIT`, whose column `data.prompt_column` opens an episode.
        /// Its columns are arguments of `reset`, for a class whose methods are tools, and columns of rewards for `env =
        /// "tools"`. With `env = "harbor"` a folder of tasks, or of one.
        #[serde(skip_serializing_if = "Option::is_none")]
        rows: Option<String> = None => [TEXT],
        /// The rows of evaluation; those of `rows` if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        eval_rows: Option<String> = None => [TEXT],
        /// The program that runs the containers of `env = "harbor"`, with words of its own; `docker` or `podman` if
        /// absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        engine: Option<String> = None => [TEXT, FREELY],
        /// Limit on the memory of a container, of which a plan has one for each episode of a step.
        #[serde(skip_serializing_if = "is_default_memory")]
        container_memory: ByteSize = CONTAINER_MEMORY => [TEXT, NOT_ZERO],
        /// The key of an OpenEnv server's actions that takes the model's turn, if the server has no tools [message].
        #[serde(skip_serializing_if = "Option::is_none")]
        action: Option<String> = None => [TEXT],
        /// The key of its observations that is shown; their only text, else all of them, if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        observation: Option<String> = None => [TEXT],
        /// The program of `http-agent` and its arguments, of which `num_workers` are started; without it, agents are
        /// started by you.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        command: Vec<String> = Vec::new() => [TEXT],
        /// The port on this machine at which agents find the model; 0 takes a free one.
        #[serde(skip_serializing_if = "is_zero")]
        port: u16 = 0 => [TEXT],
        /// Most sequences of an agent's episode: one, and one more each time that it goes on from an earlier place.
        #[serde(skip_serializing_if = "is_one")]
        branches_max: u32 = 1 => [TEXT],
        /// Which episodes there are; `seed` if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        seed: Option<u64> = None => [TEXT],
        /// The Python interpreter of `python:`, `gym:` and `text:python-tool`; if absent that of the virtual
        /// environment in which `plimsoll` lies, or of `$VIRTUAL_ENV`, else `python3`.
        #[serde(skip_serializing_if = "Option::is_none")]
        python: Option<String> = None => [WORKERS],
        /// Worker processes; auto is one, and for a small network as many as cores.
        num_workers: Auto<u32> = Auto::Auto => [WORKERS, COUNT, FREELY],
        /// Limit on the address space of one worker; on its memory for a small network [2 GiB].
        worker_memory: ByteSize = ByteSize(Bytes::mib(1024)) => [WORKERS, NOT_ZERO, FREELY],
        /// Whether a worker may reach a network.
        network: Network = Network::Deny => [WORKERS, FREELY],
        /// Longest time for the answer to one turn, in milliseconds.
        step_timeout_ms: u64 = 60_000 => [WORKERS, NOT_ZERO, FREELY],
        /// Longest time to begin an episode, and for a worker to start, in milliseconds.
        reset_timeout_ms: u64 = 300_000 => [WORKERS, NOT_ZERO, FREELY],
        /// With `async.partial_rollouts`: an episode in Python may be played again, because `reset` and `step` depend
        /// on nothing but the seed and the turns, and change nothing outside the environment; one of an agent after a
        /// resume, because it asks the same where it gets the same answers.
        replay: bool = false => [TEXT],
        /// Episodes of one rollout that may fail, one more stops the run; for a small network failures of one
        /// environment within ten minutes.
        restarts_max: u32 = 5 => [WORKERS],
        /// What it is made with, under Gymnasium's names.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        env_options: BTreeMap<String, serde_json::Value> = BTreeMap::new() => [NATIVE],
        /// Whether a worker of a small network's environments may open a GPU.
        #[serde(skip_serializing_if = "WorkerGpu::is_denied")]
        gpu: WorkerGpu = WorkerGpu::Deny => [WORKERS, NATIVE],
        /// Environments that are stepped at once [8].
        #[serde(skip_serializing_if = "Option::is_none")]
        num_envs: Option<u32> = None => [NATIVE, FRAMES],
        /// Frames of all environments that a step collects and trains on [128 of each].
        #[serde(skip_serializing_if = "Option::is_none")]
        frames_per_batch: Option<u32> = None => [NATIVE, FRAMES],
        /// Frames of the whole run.
        #[serde(skip_serializing_if = "Option::is_none")]
        total_frames: Option<u64> = None => [NATIVE, FREELY, also(&["total_timesteps"])],
        /// Frames after which an episode is truncated, if the environment's own limit is not less.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_frames_per_traj: Option<u32> = None => [NATIVE, FRAMES],
        /// Whether the policy sees observations less their running mean, over their deviation.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        normalise_observations: bool = false => [NATIVE],
        /// Whether rewards are divided by the running deviation of discounted returns.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        normalise_rewards: bool = false => [NATIVE],
    }
}

fn is_zero(port: &u16) -> bool {
    *port == 0
}

fn is_default_memory(memory: &ByteSize) -> bool {
    *memory == CONTAINER_MEMORY
}

fn is_none(images: &u32) -> bool {
    *images == 0
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

impl Environment {
    /// Returns the names of the keys of one kind of environment.
    pub(crate) fn keys_of(player: Player) -> impl Iterator<Item = &'static str> {
        let is_of =
            move |key: &&Key| key.facts.iter().any(|fact| matches!(fact, Fact::Of(of) if *of == player));
        Environment::KEYS.iter().filter(is_of).map(|key| key.parts().1)
    }

    /// True if programs that own their loop play the episodes.
    pub fn plays_agents(&self) -> bool {
        self.env == HTTP_AGENT
    }

    /// True if it gives no reward itself: those of the run grade its episodes.
    pub fn is_graded(&self) -> bool {
        self.env == TOOLS
    }

    /// Returns the files of code that it loads, each once.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let places = std::iter::once(&self.env).chain(&self.tools);
        let code = places.filter_map(|place| Some(place.strip_prefix("python:")?.rsplit_once(':')?.0));
        let code: std::collections::BTreeSet<&str> = code.collect();
        code.into_iter()
    }

    /// True if its episodes are tasks in containers.
    pub fn plays_tasks(&self) -> bool {
        self.env == HARBOR
    }

    /// Returns the files of the rows that begin its episodes: none where tasks do.
    pub fn row_files(&self) -> impl Iterator<Item = &str> {
        self.rows_named().filter(|_| !self.plays_tasks())
    }

    /// Returns the folders of tasks that are its episodes.
    pub fn task_folders(&self) -> impl Iterator<Item = &str> {
        self.rows_named().filter(|_| self.plays_tasks())
    }

    fn rows_named(&self) -> impl Iterator<Item = &str> {
        [&self.rows, &self.eval_rows].into_iter().flatten().map(String::as_str)
    }

    /// Returns the most tokens after the prompt of an episode whose turns have up to `max_new_tokens`.
    pub(crate) fn episode_tokens(&self, max_new_tokens: u32) -> u32 {
        let turns = self.turns_max.max(1);
        let whole = turns
            .saturating_mul(max_new_tokens)
            .saturating_add((turns - 1).saturating_mul(self.turn_tokens_max));
        self.episode_tokens_max.map_or(whole, |most| most.min(whole))
    }
}

/// True if environments of this name run in worker processes.
pub fn is_python_env(env: &str) -> bool {
    ["gym:", "python:"].iter().any(|prefix| env.starts_with(prefix))
}
