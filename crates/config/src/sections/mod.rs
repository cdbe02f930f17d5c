//! The table of types: every key of a run file, its type and its default. Messages, the JSON Schema and the resolved
//! `run.toml` all come from here; keys are named nowhere else.

mod distill;
mod environment;
mod lora;
mod loss;
mod reward;
mod track;

use super::{data_sets::DataSets, values::*};
use plimsoll_algo::method::Method;
use plimsoll_base::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use distill::Distill;
pub use environment::{Environment, is_python_env};
pub use lora::Lora;
pub use loss::{Critic, Loss};
pub use reward::Reward;
pub use track::Track;

/// Prefix of the name of a small actor-critic.
pub const MLP: &str = "mlp:";
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
    /// The teacher of `distill`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distill: Option<Distill>,
    /// Low-rank adapters instead of every weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
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
    /// Trackers of experiments.
    #[serde(default)]
    pub track: Track,
    /// An environment instead of `[data]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
}

/// The sections of a run file that need no training, for `generate` and `eval`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerbFile {
    #[serde(default)]
    pub seed: u64,
    pub model: String,
    #[serde(default)]
    pub model_options: ModelOptions,
    #[serde(default)]
    pub data: Data,
    #[serde(default)]
    pub rollout: Rollout,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reward: Vec<Reward>,
    #[serde(default)]
    pub memory: Memory,
    #[serde(default)]
    pub eval: Eval,
    #[serde(default)]
    pub run: Run,
}

section! {
    /// How the model is read.
    ModelOptions {
        /// Storage of the weights; arithmetic is f32.
        dtype: ModelDtype = ModelDtype::Bf16,
        /// A `tokenizer.json` or a directory with one; `bytes` is one token a byte, the default of `random:`.
        #[serde(skip_serializing_if = "Option::is_none")]
        tokenizer: Option<String> = None,
        /// A branch, tag or commit of `hf:`, or a version of `pypi:`.
        #[serde(skip_serializing_if = "Option::is_none")]
        revision: Option<String> = None,
        /// What to do with sequences that are longer than the model's positions.
        #[serde(skip_serializing_if = "Positions::is_error")]
        positions: Positions = Positions::Error,
    }
}

section! {
    /// Prompts, and what to evaluate on.
    Data {
        /// A JSONL or Parquet file, a data set of the hub (`hf:org/name/SUBSET/SPLIT`) or `builtin:TASK`, or a list of
        /// them with weights.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompts: Option<DataSets> = None,
        /// A JSONL or Parquet file, a data set of the hub or `builtin:TASK`, or a list of them; `none` is no
        /// evaluation. If absent, the test sets of the built-in tasks among `prompts`.
        #[serde(skip_serializing_if = "Option::is_none")]
        eval: Option<DataSets> = None,
        /// The column with the prompt: a string or chat messages.
        prompt_column: String = "prompt".into(),
        /// The column with the answer; `a.b` is the entry `b` of the column `a`.
        answer_column: String = "ground_truth".into(),
        /// The column with the share of right answers that some model gave, from 0 to 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        pass_rate_column: Option<String> = None,
        /// Rows of `prompts` below it are left out.
        #[serde(skip_serializing_if = "Option::is_none")]
        pass_rate_min: Option<f64> = None,
        /// Rows of `prompts` above it are left out.
        #[serde(skip_serializing_if = "Option::is_none")]
        pass_rate_max: Option<f64> = None,
        /// The order of each pass over the data, by pass rate.
        curriculum: Curriculum = Curriculum::None,
        /// Put before every prompt as a system message.
        #[serde(skip_serializing_if = "Option::is_none")]
        system_prompt: Option<String> = None,
        /// A Jinja template, or the path of a file with one, instead of the tokenizer's; `none` takes strings as they
        /// are. With a template a string is one user message, unless it already contains the template's own marks.
        #[serde(skip_serializing_if = "Option::is_none")]
        chat_template: Option<String> = None,
        /// Variables of the template by name, such as `enable_thinking = false`: what other stacks call
        /// `chat_template_kwargs`.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        template_args: BTreeMap<String, serde_json::Value> = BTreeMap::new(),
        /// What `sft` learns of a row with `messages`: the last turn, or every turn of the assistant.
        #[serde(skip_serializing_if = "TrainOn::is_last")]
        train_on: TrainOn = TrainOn::Last,
        /// Longest prompt in tokens; the longest in the data if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt_tokens_max: Option<u32> = None,
        /// What to do with a longer one.
        overlong: Overlong = Overlong::Error,
        /// Whether each pass over the data has its own order; with a curriculum, among rows of one pass rate.
        shuffle: bool = true,
    }
}

section! {
    /// How responses are sampled.
    Rollout {
        /// Prompts a step; for `sft`, examples a step; for `dpo` and `reward_model`, pairs a step.
        prompts_per_step: u32 = 32,
        /// Samples a prompt.
        group_size: u32 = 8,
        /// Longest response in tokens.
        max_new_tokens: u32 = 256,
        /// 0 is greedy.
        temperature: f64 = 1.0,
        /// Only the k likeliest tokens; 0 is all.
        top_k: u32 = 0,
        /// Only the likeliest tokens that make up this probability.
        top_p: f64 = 1.0,
        /// Only tokens with at least this share of the likeliest one's probability.
        min_p: f64 = 0.0,
        /// Strings that end a response.
        stop: Vec<String> = Vec::new(),
        /// Whether the stop string stays in the response.
        keep_stop: bool = false,
        /// Sequences in flight.
        sequences_max: Auto<u32> = Auto::Auto,
        /// Blocks of the KV cache.
        kv_blocks: Auto<u32> = Auto::Auto,
        /// Tokens in one block.
        block_size: u32 = 16,
        /// What to do when the KV cache is full.
        on_full: OnFull = OnFull::WorstCase,
        /// Further steps that one rollout serves: their samples are older than the weights that they train.
        policy_lag: u32 = 0,
    }
}

/// The optimizer and its batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Train {
    /// Steps of the run; of an environment policy they follow from `environment.total_frames`, with `epochs` from the
    /// data.
    #[serde(default)]
    pub steps: u32,
    /// Passes over the data, instead of `steps`: as many steps as they take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    /// Sequences of one optimizer update, of an environment policy frames; all of the step if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mini_batch: Option<u32>,
    /// Token limit of one forward pass.
    #[serde(default)]
    pub micro_batch_tokens: Auto<u32>,
    /// The number of micro-batches of an update is a multiple of it, so that ranks share them evenly; "auto": of 8, or
    /// of 4 or 2 where less work is to be done. The order of sums, and with it the bits, depends on it, but not on the
    /// number of ranks.
    #[serde(default)]
    pub cut_multiple: Auto<u32>,
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
    /// What each micro-batch's gradient is rounded to before it is added, on one rank as on many: in bf16 ranks send
    /// each other half the bytes.
    #[serde(default)]
    pub gradient_wire: GradientWire,
    /// Consecutive micro-batches whose gradients are added to each other first, on one rank as on many; their sums are
    /// added in order. If it divides the ranks of each of several hosts, those take one sum of another host in place of
    /// its gradients.
    #[serde(default = "one_fold")]
    pub fold: u32,
    /// Storage of optimizer states.
    #[serde(default)]
    pub optimizer_dtype: Auto<OptimizerDtype>,
    /// What the backward pass computes again.
    #[serde(default)]
    pub recompute: Auto<Recompute>,
    /// Steps in a row that teach nothing (no score, no advantage, no gradient, an exploded loss) after which the run
    /// ends; 0 is never.
    #[serde(default = "dead_steps")]
    pub dead_steps_max: u32,
}

defaults! {
    dead_steps: u32 = 50;
    one: f64 = 1.0;
    one_fold: u32 = 1;
    one_epoch: u32 = 1;
    constant: Schedule = Schedule::Constant;
    betas: [f64; 2] = [0.9, 0.95];
    adam_epsilon: f64 = 1e-8;
}

impl Train {
    /// Returns `steps` steps at `learning_rate`, everything else at its default.
    pub fn new(steps: u32, learning_rate: f64) -> Train {
        Train {
            steps,
            epochs: None,
            mini_batch: None,
            micro_batch_tokens: Auto::Auto,
            cut_multiple: Auto::Auto,
            epochs_per_rollout: 1,
            learning_rate,
            schedule: Schedule::Constant,
            warmup_steps: 0,
            betas: betas(),
            adam_epsilon: adam_epsilon(),
            weight_decay: 0.0,
            grad_clip: 1.0,
            grad_dtype: Auto::Auto,
            gradient_wire: GradientWire::default(),
            fold: one_fold(),
            optimizer_dtype: Auto::Auto,
            recompute: Auto::Auto,
            dead_steps_max: dead_steps(),
        }
    }
}

section! {
    /// Limits.
    Memory {
        /// Host memory of the run; auto is the container's limit less what others use.
        host: Auto<ByteSize> = Auto::Auto,
        /// Device memory of the run.
        device: Auto<ByteSize> = Auto::Auto,
        /// What lives in pinned host memory and passes through the device in parts; auto is nothing as long as it fits
        /// so.
        offload: Auto<Vec<Offload>> = Auto::Value(Vec::new()),
        /// The buffer through which files are read and written.
        staging: Auto<ByteSize> = Auto::Value(ByteSize(Bytes::mib(64))),
        /// End the run with an error, after a checkpoint, at the first reading above its row of the plan; else that is
        /// a warning.
        strict: bool = false,
    }
}

impl Memory {
    /// True if the run file puts it into host memory.
    pub fn offloads(&self, what: Offload) -> bool {
        matches!(&self.offload, Auto::Value(list) if list.contains(&what))
    }
}

section! {
    /// Evaluation during the run; before and after it there is always one.
    Eval {
        /// Steps between two evaluations; none in between if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        every: Option<u32> = None,
        /// Samples a prompt.
        samples: u32 = 1,
        /// 0 is greedy.
        temperature: f64 = 0.0,
        /// What decides which checkpoint is the best: `reward`, the mean weighted reward, or `pass_at_K`, the mean over
        /// the sets; `SET/reward` and `SET/pass_at_K` are those of one set.
        metric: String = "reward".into(),
        /// Most prompts, from the first; all if absent. In environments, episodes.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompts_max: Option<u32> = None,
    }
}

section! {
    /// What is saved, and when; after the last step there is always one.
    Checkpoint {
        /// Steps between two checkpoints; only the last one if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        every: Option<u32> = None,
        /// How many are kept.
        keep: u32 = 2,
        /// How many bytes of them are kept; the newest and the best are kept in any case.
        #[serde(skip_serializing_if = "Option::is_none")]
        keep_bytes: Option<ByteSize> = None,
        /// Seconds that the run may wait for a checkpoint before it warns.
        stall_seconds_max: f64 = 60.0,
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
    /// What several ranks share out: 2 gradients and optimizer states, 3 the weights too; auto is 3 where 2 does not
    /// fit. No bit depends on it.
    pub zero_stage: Auto<u32>,
    /// How cards of different hosts exchange; auto is NCCL where it is there. No bit depends on it.
    pub exchange: Auto<Exchange>,
    /// Wait after every kernel of a GPU, check indices and values, and name what is wrong.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub checked: bool,
}

/// What a run trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trains {
    LanguageModel,
    /// A small network that acts in environments.
    Policy,
}

impl RunFile {
    /// Returns the run file as TOML, with every default written out.
    pub fn to_toml(&self) -> String {
        let form = "every value of a run file has a form in TOML";
        let mut table = toml::Table::try_from(self).expect(form);
        if let (Trains::Policy, Some(toml::Value::Table(section))) =
            (self.trains(), table.get_mut("environment"))
        {
            let has_workers = section.get("env").and_then(|env| env.as_str()).is_some_and(is_python_env);
            let is_other = |key: &str| {
                Environment::OF_TEXT.contains(&key)
                    || (!has_workers && Environment::OF_WORKERS.contains(&key))
            };
            section.retain(|key, _| !is_other(key));
        }
        toml::to_string(&table).expect(form)
    }

    /// Returns `steps` steps of a method at their defaults, with everything else left to the planner.
    pub fn of(method: Method, model: &str, train: Train) -> RunFile {
        RunFile {
            method,
            seed: 0,
            model: model.into(),
            model_options: Default::default(),
            data: Default::default(),
            rollout: Default::default(),
            reward: Vec::new(),
            loss: Default::default(),
            critic: None,
            distill: None,
            lora: None,
            train,
            memory: Default::default(),
            eval: Default::default(),
            checkpoint: Default::default(),
            run: Default::default(),
            track: Default::default(),
            environment: None,
        }
    }

    pub fn trains(&self) -> Trains {
        match self.environment.is_some() && self.model.starts_with(MLP) {
            true => Trains::Policy,
            false => Trains::LanguageModel,
        }
    }

    /// True if programs that own their loop play the episodes.
    pub fn plays_agents(&self) -> bool {
        self.environment.as_ref().is_some_and(Environment::plays_agents)
    }
}
