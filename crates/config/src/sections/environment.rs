//! `[environment]`.

use crate::values::{Auto, ByteSize, Credit, Network, WorkerGpu};
use plimsoll_base::Bytes;
use plimsoll_textenv::{HTTP_AGENT, TOOLS};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An environment instead of prompts. A language model plays text environments, and its episodes are what is sampled
/// and trained; a small network (`model = "mlp:..."`) acts in native ones, by the keys at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// `text:NAME`, `python:FILE.py:CLASS`, `tools`, `gym:ID` of text, `openenv:URL`, or `http-agent`; for a small
    /// network a native environment such as
    /// `CartPole-v1`, `gym:ID` or `python:FILE.py:FUNCTION`.
    pub env: String,
    /// Most turns of the model in an episode; each is up to `rollout.max_new_tokens` tokens long.
    #[serde(default = "eight_turns")]
    pub turns_max: u32,
    /// Most tokens between two turns, the chat template's included; what the environment says beyond them is cut.
    #[serde(default = "turn_tokens")]
    pub turn_tokens_max: u32,
    /// Most tokens after an episode's prompt; as many as its turns can have if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub episode_tokens_max: Option<u32>,
    /// Which tokens a turn's reward is credited to.
    #[serde(default = "whole_episode")]
    pub credit: Credit,
    /// Functions that the model may call, each `python:FILE.py:FUNCTION`: those of `env = "tools"`, which `[[reward]]`
    /// grades, or next to the methods of a class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// A JSONL or Parquet file, or `hf:org/name/SUBSET/SPLIT`, whose column `data.prompt_column` opens an episode. Its
    /// columns are arguments of
    /// `reset`, for a class whose methods are tools, and columns of rewards for `env = "tools"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<String>,
    /// The rows of evaluation; those of `rows` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_rows: Option<String>,
    /// The key of an OpenEnv server's actions that takes the model's turn, if the server has no tools [message].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The key of its observations that is shown; their only text, else all of them, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observation: Option<String>,
    /// The program of `http-agent` and its arguments, of which `num_workers` are started; without it, agents are
    /// started by you.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The port on this machine at which agents find the model; 0 takes a free one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub port: u16,
    /// Most sequences of an agent's episode: one, and one more each time that it goes on from an earlier place.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub branches_max: u32,
    /// Which episodes there are; `seed` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The Python interpreter of `python:`, `gym:` and `text:python-tool`; `python3` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Worker processes; auto is one, and for a small network as many as cores.
    #[serde(default)]
    pub num_workers: Auto<u32>,
    /// Limit on the address space of one worker; on its memory for a small network [2 GiB].
    #[serde(default = "one_gib")]
    pub worker_memory: ByteSize,
    /// Whether a worker may reach a network.
    #[serde(default = "deny")]
    pub network: Network,
    /// Longest time for the answer to one turn, in milliseconds.
    #[serde(default = "one_minute")]
    pub step_timeout_ms: u64,
    /// Longest time to begin an episode, and for a worker to start, in milliseconds.
    #[serde(default = "five_minutes")]
    pub reset_timeout_ms: u64,
    /// Episodes of one rollout that may fail, one more stops the run; for a small network failures of one environment
    /// within ten minutes.
    #[serde(default = "five_restarts")]
    pub restarts_max: u32,
    /// What it is made with, under Gymnasium's names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env_options: BTreeMap<String, serde_json::Value>,
    /// Whether a worker of a small network's environments may open a GPU.
    #[serde(default, skip_serializing_if = "WorkerGpu::is_denied")]
    pub gpu: WorkerGpu,
    /// Environments that are stepped at once [8].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_envs: Option<u32>,
    /// Frames of all environments that a step collects and trains on [128 of each].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames_per_batch: Option<u32>,
    /// Frames of the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_frames: Option<u64>,
    /// Frames after which an episode is truncated, if the environment's own limit is not less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_frames_per_traj: Option<u32>,
    /// Whether the policy sees observations less their running mean, over their deviation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub normalise_observations: bool,
    /// Whether rewards are divided by the running deviation of discounted returns.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub normalise_rewards: bool,
}

fn is_zero(port: &u16) -> bool {
    *port == 0
}

defaults! {
    one: u32 = 1;
    eight_turns: u32 = 8;
    turn_tokens: u32 = 128;
    whole_episode: Credit = Credit::Episode;
    deny: Network = Network::Deny;
    one_gib: ByteSize = ByteSize(Bytes::mib(1024));
    one_minute: u64 = 60_000;
    five_minutes: u64 = 300_000;
    five_restarts: u32 = 5;
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

impl Environment {
    /// Keys of text environments, which a small network does not use.
    pub(crate) const OF_TEXT: [&str; 13] = [
        "command",
        "port",
        "branches_max",
        "turns_max",
        "turn_tokens_max",
        "episode_tokens_max",
        "credit",
        "seed",
        "tools",
        "rows",
        "eval_rows",
        "action",
        "observation",
    ];
    /// Keys of environments that run in workers, which native ones do not use.
    pub(crate) const OF_WORKERS: [&str; 8] = [
        "gpu",
        "python",
        "num_workers",
        "worker_memory",
        "network",
        "step_timeout_ms",
        "reset_timeout_ms",
        "restarts_max",
    ];
    /// Keys of environments for a small network, which a language model does not use.
    pub(crate) const OF_NATIVE: [&str; 8] = [
        "gpu",
        "env_options",
        "num_envs",
        "frames_per_batch",
        "total_frames",
        "max_frames_per_traj",
        "normalise_observations",
        "normalise_rewards",
    ];

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

    /// Returns the files of the rows that begin its episodes.
    pub fn row_files(&self) -> impl Iterator<Item = &str> {
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
