//! The table of types: every key of a run file, its type and its default. Messages, the JSON Schema and the resolved
//! `run.toml` all come from here; keys are named nowhere else.

mod data;
mod distill;
mod environment;
mod lora;
mod loss;
mod reward;
mod track;

use super::key::{
    ABOVE_ZERO, Becomes, COUNT, FREELY, Fact, Key, NOT_NEGATIVE, Player, REPLANNED, REQUIRED, Resumes,
    STORED, also, renamed, such, within,
};
use super::limits::{MICRO_BATCHES_MAX, TEMPERATURE_MIN, TOKENS_MAX};
use super::speculate::{SPECULATE_DEPTH, SPECULATE_DEPTH_MAX, Speculate, is_usual_depth};
use super::tree::flatten;
use super::{frozen::Frozen, tower_use::TowerUse, values::*};
use plimsoll_algo::method::Method;
use plimsoll_algo::update::{MuonRate, OptimizerName};
use plimsoll_arch::Compute;
use plimsoll_base::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use data::Data;
pub use distill::{Distill, Endpoint};
pub use environment::{Environment, is_python_env};
pub use lora::Lora;
pub use loss::{Critic, Loss};
pub use reward::Reward;
pub use track::Track;

/// Prefix of the name of a small actor-critic.
pub const MLP: &str = "mlp:";
/// Values of `async.weight_sync` that name no schedule.
pub(crate) const WEIGHT_SYNC_STEP: &str = "step";
pub(crate) const WEIGHT_SYNC_TICK: &str = "tick";
/// Largest number of passes over the data.
const EPOCHS_MAX: f64 = 100_000.0;
/// Newton-Schulz iterations of Muon, of which a few are enough.
const MUON_ITERATIONS_MAX: f64 = 99.0;
/// Attention on the CPU reads whole blocks of this size.
const BLOCK: Fact = such("16, the only block size on the CPU", |tokens| tokens == 16.0);
const TOKENS: Fact = within(1.0, TOKENS_MAX as f64);
const BYTES: Fact = such("bytes above 0, such as \"8GiB\", or \"auto\"", |bytes| bytes > 0.0);
const TEMPERATURE: Fact =
    such("0, which is greedy, or a number from 1e-6 up that is finite in f32", |value| {
        value == 0.0 || (value >= TEMPERATURE_MIN && (value as f32).is_finite())
    });

/// The keys of every section, in the order in which messages list them.
const SECTIONS: [&[Key]; 17] = [
    Train::KEYS,
    ModelOptions::KEYS,
    Data::KEYS,
    Rollout::KEYS,
    Async::KEYS,
    Reward::KEYS,
    Loss::KEYS,
    Critic::KEYS,
    Distill::KEYS,
    Endpoint::KEYS,
    Lora::KEYS,
    Memory::KEYS,
    Eval::KEYS,
    Checkpoint::KEYS,
    Run::KEYS,
    Track::KEYS,
    Environment::KEYS,
];

/// Returns the row of every key of a section.
pub(crate) fn rows() -> impl Iterator<Item = &'static Key> {
    // A table in a section is no key: its keys are.
    let is_table = |key: &&Key| SECTIONS.iter().any(|keys| keys[0].parts().0 == key.path);
    SECTIONS.into_iter().flatten().filter(move |key| !is_table(key))
}

/// Returns the row of the key at `path`, where tables of a list have an index: `reward.0.kind`.
pub(crate) fn row(path: &str) -> Option<&'static Key> {
    let named = |part: &&str| part.parse::<usize>().is_err();
    let path: Vec<&str> = path.split('.').filter(named).collect();
    let path = path.join(".");
    rows().find(|row| row.path == path)
}

/// Returns what a resumed run may do with the key at `path`.
pub fn resumes(path: &str) -> Resumes {
    row(path).map_or(Resumes::Never, Key::resumes)
}

/// Returns the keys that a resumed run may change freely; a section whose keys all are is one entry, `memory.*`.
pub fn resumes_freely() -> Vec<String> {
    let is_free = |key: &&Key| key.resumes() == Resumes::Freely;
    let of = |keys: &'static [Key]| {
        if keys.iter().all(|key| is_free(&key)) {
            vec![format!("{}.*", keys[0].parts().0)]
        } else {
            keys.iter().filter(is_free).map(|key| key.path.replace("reward.", "reward.*.")).collect()
        }
    };
    SECTIONS.into_iter().flat_map(of).collect()
}

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
    /// Asynchronous rollouts: how old samples may be when they are trained.
    #[serde(default, rename = "async")]
    pub asynchrony: Async,
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
    ModelOptions "model_options" {
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
        /// How the linear layers of models that are GGUF files and that nothing trains are stored: `full` widens them
        /// to `dtype`, `gguf` keeps the blocks of the file, for less memory, more time and the same numbers. `auto` is
        /// `full`. The base of adapters in training has `lora.quantize`.
        #[serde(skip_serializing_if = "Auto::is_auto")]
        quantize: Auto<Frozen> = Auto::Auto,
        /// What the linear layers of the policy and of its reference are computed with, in rollout and update alike:
        /// `full` takes the weights as they are, `fp8` rounds weights and inputs to numbers of eight bits in blocks. It
        /// is a property of the policy, which its files name: one that was trained so is another one without it.
        /// `auto` is what the files name in commands that sample, and `full` in training.
        #[serde(skip_serializing_if = "Auto::is_auto")]
        #[schemars(schema_with = "crate::compute::compute_schema")]
        compute: Auto<Compute> = Auto::Auto,
        /// What training does with the tower over images, where prompts have some.
        #[serde(skip_serializing_if = "TowerUse::is_frozen")]
        tower: TowerUse = TowerUse::Frozen,
    }
}

section! {
    /// How responses are sampled.
    Rollout "rollout" {
        /// Prompts a step; for `sft`, examples a step; for `dpo` and `reward_model`, pairs a step.
        prompts_per_step: u32 = 32 => [
            COUNT, also(&["train_batch_size", "data.train_batch_size", "rollout_batch_size"]),
        ],
        /// Samples a prompt.
        group_size: u32 = 8 => [COUNT, also(&["num_generations", "n", "n_samples_per_prompt"])],
        /// Longest response in tokens.
        max_new_tokens: u32 = 256 => [
            TOKENS, also(&["max_completion_length", "max_response_length", "generate_max_len"]),
        ],
        /// 0 is greedy.
        temperature: f64 = 1.0 => [TEMPERATURE],
        /// Only the k likeliest tokens; 0 is all.
        top_k: u32 = 0,
        /// Only the likeliest tokens that make up this probability.
        top_p: f64 = 1.0 => [such("a number above 0 and up to 1; 1 keeps every token", |p| p > 0.0 && p <= 1.0)],
        /// Only tokens with at least this share of the likeliest one's probability.
        min_p: f64 = 0.0 => [such("a number from 0 to below 1; 0 keeps every token", |p| (0.0..1.0).contains(&p))],
        /// Strings that end a response.
        stop: Vec<String> = Vec::new(),
        /// Whether the stop string stays in the response.
        keep_stop: bool = false,
        /// What every response is held to: a file with a JSON schema, the schema itself, or `regex:` and an expression.
        /// Tokens that it does not let follow have no probability, in the rollout, the update and the reference.
        #[serde(skip_serializing_if = "Option::is_none")]
        schema: Option<String> = None,
        /// Sequences in flight.
        sequences_max: Auto<u32> = Auto::Auto => [COUNT, FREELY],
        /// Blocks of the KV cache.
        kv_blocks: Auto<u32> = Auto::Auto => [FREELY, Fact::Also(Becomes::Nothing, &["free_cache_engine"])],
        /// Tokens in one block.
        block_size: u32 = 16 => [BLOCK],
        /// What to do when the KV cache is full.
        on_full: OnFull = OnFull::WorstCase => [FREELY],
        /// Tokens that a response may have next, computed in one pass with its last one and kept as far as they are
        /// what is drawn: fewer passes, the same tokens. "ngram" takes them from the response and its prompt, "suffix"
        /// from other responses too, "auto" is "suffix" where it can be.
        #[serde(skip_serializing_if = "Speculate::is_off")]
        speculate: Speculate = Speculate::Off => [FREELY],
        /// Most tokens that are drafted of a response in a pass.
        #[serde(skip_serializing_if = "is_usual_depth")]
        speculate_depth: u32 = SPECULATE_DEPTH => [within(1.0, SPECULATE_DEPTH_MAX), FREELY],
        /// Responses of which drafts are made with "suffix", in addition to those of the step; "auto": as many as a
        /// step has.
        #[serde(skip_serializing_if = "Auto::is_auto")]
        speculate_texts: Auto<u32> = Auto::Auto => [FREELY],
    }
}

section! {
    /// Asynchronous rollouts: how old samples may be when they are trained.
    Async "async" {
        /// Steps by which samples are drawn ahead: a step trains on what the weights of that many steps earlier drew.
        staleness: u32 = 0 => [renamed(&["rollout.ahead"])],
        /// Where new weights arrive with `staleness`: "step", between two rollouts; "tick", as soon as they are there,
        /// in the middle of responses too; or the `schedule.jsonl` of a run with "tick", whose ticks are followed.
        weight_sync: String = WEIGHT_SYNC_STEP.to_string() => [renamed(&["rollout.arrivals"])],
        /// Of several ranks, how many only sample: the last ones. The others only train, at the same time. No bit
        /// depends on it.
        rollout_ranks: u32 = 0 => [FREELY, renamed(&["run.rollout_ranks"])],
        /// Prompts under way beyond those of a step: the step takes the groups that end first, and the others go on in
        /// the next one.
        partial_rollouts: u32 = 0 => [renamed(&["rollout.carry"])],
        /// Tokens of a response that older weights may have drawn before a step waits for it; no bound if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        stale_tokens_max: Option<u32> = None => [COUNT, renamed(&["rollout.lag_tokens_max"])],
        /// Further steps that one rollout serves: their samples are older than the weights that they train.
        reuse: u32 = 0 => [renamed(&["rollout.policy_lag"])],
    }
}

section! {
    /// The optimizer and its batches.
    Train "train" {
        /// Steps of the run; of an environment policy they follow from `environment.total_frames`, with `epochs` from
        /// the data.
        steps: u32 = 0 => [COUNT, FREELY, also(&["total_training_steps"])],
        /// Passes over the data, instead of `steps`: as many steps as they take.
        #[serde(skip_serializing_if = "Option::is_none")]
        epochs: Option<f64> = None => [within(1e-6, EPOCHS_MAX)],
        /// Sequences of one optimizer update, of an environment policy frames; all of the step if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        mini_batch: Option<u32> = None => [COUNT],
        /// Token limit of one forward pass.
        micro_batch_tokens: Auto<u32> = Auto::Auto => [
            TOKENS, REPLANNED, also(&["max_tokens_per_gpu", "ppo_max_token_len_per_gpu"]),
            Fact::Also(Becomes::Sequences, &[
                "micro_train_batch_size", "ppo_micro_batch_size_per_gpu", "per_device_train_batch_size",
            ]),
        ],
        /// The number of micro-batches of an update is a multiple of it, so that ranks share them evenly; "auto": of 8,
        /// or of 4 or 2 where less work is to be done. The order of sums, and with it the bits, depends on it, but not
        /// on the number of ranks.
        cut_multiple: Auto<u32> = Auto::Auto => [within(1.0, MICRO_BATCHES_MAX)],
        /// Passes over one rollout.
        epochs_per_rollout: u32 = 1 => [COUNT, also(&["num_iterations", "ppo_epochs"])],
        /// Learning rate after warm-up.
        learning_rate: f64 = 0.0 => [REQUIRED, NOT_NEGATIVE],
        /// How it moves after warm-up.
        schedule: Schedule = Schedule::Constant,
        /// Steps over which it rises from 0.
        warmup_steps: u32 = 0,
        /// What updates weights. `muon` is for the matrices of layers, and AdamW still updates all others.
        #[serde(skip_serializing_if = "OptimizerName::is_adamw")]
        optimizer: OptimizerName = OptimizerName::AdamW,
        /// Muon's learning rate after warm-up [train.learning_rate].
        #[serde(skip_serializing_if = "Option::is_none")]
        muon_learning_rate: Option<f64> = None => [NOT_NEGATIVE],
        /// How Muon's rate depends on a matrix [match_rms_adamw]: by 0.2 sqrt(max(rows, columns)), so that AdamW's rate
        /// fits, or `original`, by sqrt(max(1, rows / columns)).
        #[serde(skip_serializing_if = "Option::is_none")]
        muon_rate: Option<MuonRate> = None => [also(&["adjust_lr_fn"])],
        /// Decay of Muon's momentum [0.95].
        #[serde(skip_serializing_if = "Option::is_none")]
        muon_momentum: Option<f64> = None => [
            such("a number from 0 to below 1, such as 0.95", |x| (0.0..1.0).contains(&(x as f32))),
        ],
        /// Whether the gradient is mixed with the new momentum once more [true].
        #[serde(skip_serializing_if = "Option::is_none")]
        muon_nesterov: Option<bool> = None,
        /// Newton-Schulz iterations of an update [5].
        #[serde(skip_serializing_if = "Option::is_none")]
        muon_iterations: Option<u32> = None => [within(1.0, MUON_ITERATIONS_MAX), also(&["ns_steps"])],
        /// a, b and c of an iteration X <- a X + b (X X^T) X + c (X X^T)^2 X [3.4445, -4.775, 2.0315].
        #[serde(skip_serializing_if = "Option::is_none")]
        muon_coefficients: Option<[f64; 3]> = None => [
            such("three finite numbers, such as [3.4445, -4.775, 2.0315]", |x| (x as f32).is_finite()),
            also(&["ns_coefficients"]),
        ],
        /// Muon's decoupled weight decay [train.weight_decay].
        #[serde(skip_serializing_if = "Option::is_none")]
        muon_weight_decay: Option<f64> = None => [NOT_NEGATIVE],
        /// AdamW's decay of the two moments.
        betas: [f64; 2] = [0.9, 0.95] => [
            such("two numbers from 0 to below 1, such as [0.9, 0.95]", |beta| (0.0..1.0).contains(&(beta as f32))),
        ],
        /// AdamW's addend to the root of the second moment.
        adam_epsilon: f64 = 1e-8 => [ABOVE_ZERO],
        /// Decoupled weight decay.
        weight_decay: f64 = 0.0 => [NOT_NEGATIVE],
        /// Largest norm of the whole gradient; 0 never clips.
        grad_clip: f64 = 1.0 => [NOT_NEGATIVE, also(&["max_grad_norm"])],
        /// Storage of accumulated gradients.
        grad_dtype: Auto<ModelDtype> = Auto::Auto => [REPLANNED, also(&["grad_accum_dtype"])],
        /// What each micro-batch's gradient is rounded to before it is added, on one rank as on many: in bf16 ranks
        /// send each other half the bytes.
        gradient_wire: GradientWire = GradientWire::F32,
        /// Consecutive micro-batches whose gradients are added to each other first, on one rank as on many; their sums
        /// are added in order. If it divides the ranks of each of several hosts, those take one sum of another host in
        /// place of its gradients.
        fold: u32 = 1 => [within(1.0, MICRO_BATCHES_MAX)],
        /// Storage of optimizer states.
        optimizer_dtype: Auto<OptimizerDtype> = Auto::Auto => [STORED],
        /// What the backward pass computes again.
        recompute: Auto<Recompute> = Auto::Auto => [
            REPLANNED, Fact::Also(Becomes::Recompute, &["gradient_checkpointing"]),
        ],
        /// Steps in a row that teach nothing (no score, no advantage, no gradient, an exploded loss) after which the
        /// run ends; 0 is never.
        dead_steps_max: u32 = 50 => [FREELY],
    }
}

impl Train {
    /// Returns `steps` steps at `learning_rate`, everything else at its default.
    pub fn new(steps: u32, learning_rate: f64) -> Train {
        Train { steps, learning_rate, ..Train::default() }
    }
}

section! {
    /// Limits.
    Memory "memory" {
        /// Host memory of the run; auto is the container's limit less what others use.
        host: Auto<ByteSize> = Auto::Auto => [BYTES, FREELY],
        /// Device memory of the run.
        device: Auto<ByteSize> = Auto::Auto => [
            BYTES, FREELY, Fact::Also(Becomes::CardFraction, &["gpu_memory_utilization"]),
        ],
        /// What lives in pinned host memory and passes through the device in parts; auto is nothing as long as it fits
        /// so.
        offload: Auto<Vec<Offload>> = Auto::Value(Vec::new()) => [
            FREELY, Fact::Also(Becomes::OffloadOptimizer, &["adam_offload"]),
        ],
        /// The buffer through which files are read and written.
        staging: Auto<ByteSize> = Auto::Value(ByteSize(Bytes::mib(64))) => [
            such("bytes above 0, such as \"64MiB\"", |bytes| bytes > 0.0), FREELY,
        ],
        /// End the run with an error, after a checkpoint, at the first reading above its row of the plan; else that is
        /// a warning.
        strict: bool = false => [FREELY],
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
    Eval "eval" {
        /// Steps between two evaluations; none in between if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        every: Option<u32> = None => [COUNT, FREELY],
        /// Samples a prompt.
        samples: u32 = 1 => [COUNT],
        /// 0 is greedy.
        temperature: f64 = 0.0 => [TEMPERATURE],
        /// What decides which checkpoint is the best: `reward`, the mean weighted reward, or `pass_at_K`, the mean over
        /// the sets; `SET/reward` and `SET/pass_at_K` are those of one set.
        metric: String = "reward".into(),
        /// Most prompts, from the first; all if absent. In environments, episodes.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompts_max: Option<u32> = None => [COUNT],
    }
}

section! {
    /// What is saved, and when; after the last step there is always one.
    Checkpoint "checkpoint" {
        /// Steps between two checkpoints; only the last one if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        every: Option<u32> = None => [COUNT, FREELY],
        /// How many are kept.
        keep: u32 = 2 => [COUNT, FREELY, also(&["save_total_limit", "max_ckpt_num"])],
        /// How many bytes of them are kept; the newest and the best are kept in any case.
        #[serde(skip_serializing_if = "Option::is_none")]
        keep_bytes: Option<ByteSize> = None => [
            such("bytes above 0, such as \"60GiB\"", |bytes| bytes > 0.0), FREELY,
        ],
        /// Seconds that the run may wait for a checkpoint before it warns.
        stall_seconds_max: f64 = 60.0 => [within(1e-3, 86_400.0), FREELY],
    }
}

section! {
    /// Device, directory, threads.
    Run "run" {
        /// CUDA if there is a device, else the CPU.
        device: Auto<RunDevice> = Auto::Auto => [REPLANNED],
        /// The run directory; `runs/out/NAME` for `NAME.toml` if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        dir: Option<String> = None => [FREELY, also(&["output_dir", "default_local_dir"])],
        /// Threads; auto is the container's CPU quota.
        threads: Auto<u32> = Auto::Auto => [within(1.0, 4096.0), FREELY],
        /// What several ranks share out: 2 gradients and optimizer states, 3 the weights too; auto is 3 where 2 does
        /// not fit. No bit depends on it.
        zero_stage: Auto<u32> = Auto::Auto => [FREELY],
        /// How cards of different hosts exchange; auto is NCCL where it is there. No bit depends on it.
        exchange: Auto<Exchange> = Auto::Auto => [FREELY],
        /// Wait after every kernel of a GPU, check indices and values, and name what is wrong.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        checked: bool = false,
    }
}

/// The kinds of things that a run trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainedKind {
    LanguageModel,
    /// A small network that acts in environments.
    Policy,
}

impl VerbFile {
    /// Returns a file of the model alone, with everything else at its default.
    pub fn of(model: &str) -> VerbFile {
        VerbFile {
            seed: 0,
            model: model.into(),
            model_options: Default::default(),
            data: Default::default(),
            rollout: Default::default(),
            reward: Vec::new(),
            memory: Default::default(),
            eval: Default::default(),
            run: Default::default(),
        }
    }
}

impl RunFile {
    /// Returns the run file as TOML, with every default written out.
    pub fn to_toml(&self) -> String {
        let form = "every value of a run file has a form in TOML";
        let mut table = toml::Table::try_from(self).expect(form);
        if let (TrainedKind::Policy, Some(toml::Value::Table(section))) =
            (self.trains(), table.get_mut("environment"))
        {
            let has_workers = section.get("env").and_then(|env| env.as_str()).is_some_and(is_python_env);
            let is_other = |key: &str| {
                let is_of = |player| Environment::keys_of(player).any(|of| of == key);
                is_of(Player::Text) || (!has_workers && is_of(Player::Workers))
            };
            section.retain(|key, _| !is_other(key));
        }
        toml::to_string(&table).expect(form)
    }

    /// Visits every key with its value; elements of table lists by index.
    pub fn visit(&self, visit: &mut impl FnMut(&str, &toml::Value)) {
        let root = toml::Value::try_from(self).expect("every value of a run file has a form in TOML");
        flatten("", &root, visit);
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
            asynchrony: Default::default(),
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

    pub fn trains(&self) -> TrainedKind {
        if self.environment.is_some() && self.model.starts_with(MLP) {
            TrainedKind::Policy
        } else {
            TrainedKind::LanguageModel
        }
    }

    /// True if programs that own their loop play the episodes.
    pub fn plays_agents(&self) -> bool {
        self.environment.as_ref().is_some_and(Environment::plays_agents)
    }
}
