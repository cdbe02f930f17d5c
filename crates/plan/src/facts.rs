//! Facts about a run's model, data and directory that its plan depends on, known before anything is allocated.

use crate::hosts::Hosts;
use crate::lora::Lora;
use crate::role_name::PerRole;
use plimsoll_arch::{LayerEncodings, LoraTargets, ModelSpec};
use plimsoll_base::{Bytes, DType};
use plimsoll_config::{Auto, ByteSize, LoraSpec, RunSpec};
use plimsoll_device::Held;
use plimsoll_devices::{Card, DeviceRow};
use plimsoll_files::OpenModel;
use plimsoll_memory::host::Host;
use plimsoll_model::STAGING_BYTES_MIN;
use plimsoll_reward::WORDS_BYTES_MAX;
use plimsoll_textenv::{EpisodeMemory, Kind};
use plimsoll_train::Share;

/// Host bytes of a tokenizer per token of its vocabulary: both maps, merges and the decoding table, measured with a
/// vocabulary of 49,152 as the growth of resident memory.
const TOKENIZER_BYTES_PER_TOKEN: u64 = 700;
/// Tokens of the byte tokenizer: 256 bytes and three special tokens.
const BYTE_TOKENS: u64 = 259;
/// Disk space of `curves.svg` and `samples/side_by_side.md`, whose points and letters are bounded.
const REPORT_BYTES: u64 = 1 << 20;
/// The largest staging buffers that `"auto"` chooses.
const STAGING_BYTES_MAX: Bytes = Bytes::mib(64);
/// Samples of a step that are written to the run directory.
pub const SAMPLES_KEPT: usize = 32;
/// Largest number of prompts whose responses are kept.
const PROMPTS_KEPT: usize = 8;

/// Numbers of a run's model and data that its memory depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    pub spec: ModelSpec,
    /// Longest prompt, of training and evaluation.
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub eval_prompts: usize,
    /// Shapes of the models besides the run's own and its reference.
    pub models: PerRole<ModelSpec>,
    /// Of the reward models among them that are an adapter on its base.
    pub adapters: PerRole<Lora>,
    /// How those models are stored that are GGUF files; `RoleName::Actor` is the run's own, whatever it is trained as.
    pub encodings: PerRole<LayerEncodings>,
    /// Host memory outside the arena.
    pub host: HostFacts,
    /// The rank that is planned.
    pub share: Share,
    /// Where the others are.
    pub hosts: Hosts,
    /// The card that it has, if that is not this machine's.
    pub card: Option<Card>,
}

/// Bytes of host memory outside the arena that do not follow from the run's own limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// The binary and its libraries, as mapped.
    pub image: Bytes,
    pub tokenizer: Bytes,
    pub data: Bytes,
    /// Both buffers through which weights are read and written.
    pub staging: Bytes,
    /// What a server holds between its clients and the engine.
    pub clients: Bytes,
    /// Responses that a step or an evaluation keeps as samples.
    pub rows_kept: usize,
    pub disk: DiskFacts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFacts {
    /// Checkpoints kept by age besides the one being written; `None` where nothing is saved.
    pub keep: Option<u32>,
    /// Limit of their total size.
    pub keep_bytes: Option<u64>,
    /// True if the one with the highest evaluation is kept as well.
    pub best: bool,
    pub records: Bytes,
}

impl Facts {
    /// True if no product that a run computes is a library's. `merge`: adapters are merged into the weights that it computes with.
    pub(crate) fn are_own(&self, run: &RunSpec, merge: bool) -> bool {
        // The layers without one compute as ever.
        let has_all =
            |lora: &LoraSpec| lora.targets == LoraTargets::ALL && lora.targets.unfit(&self.spec).is_none();
        let adapts = run.lora.as_ref().is_some_and(has_all) && !merge;
        // Each of them computes with weights that have no adapters.
        let others = run.reference || run.critic.is_some() || self.models.values().next().is_some();
        run.model_options.dtype.dtype() == DType::F32 || (adapts && !others)
    }

    /// Returns what a card's driver and libraries hold, with adapters apart and merged, and the origin of the numbers.
    pub(crate) fn held(&self, row: &DeviceRow, run: &RunSpec) -> ([Held; 2], String) {
        let held = |merge| (row.held)(self.are_own(run, merge), self.spec.hidden);
        let [(apart, source), (merged, _)] = [false, true].map(held);
        ([apart, merged], source)
    }
}

/// Returns the number of evaluation responses that are kept: all of a prompt's, so that pass@k can be read off them.
pub fn samples_kept(samples: usize) -> usize {
    (SAMPLES_KEPT / samples).clamp(1, PROMPTS_KEPT) * samples
}

/// Returns the largest size of a sample's line: a token has up to 32 bytes of text, its length and log-prob, and 20
/// rewards with their names fit.
pub(crate) fn line_bytes_max(tokens: u64) -> u64 {
    2048 + 32 * tokens
}

/// Returns what a run writes besides its checkpoints: an event per step of 1.5 KB, measured, and samples with their log-probs.
pub fn disk_facts(run: &RunSpec) -> DiskFacts {
    let steps = u64::from(run.train.steps);
    let evals = 2 + run.eval.every.map_or(0, |every| steps / u64::from(every.max(1)));
    // Samples are written at twenty steps, the first and the last.
    let sets = run.eval_sets.len() as u64;
    let rows =
        (22 * SAMPLES_KEPT as u64).saturating_add((evals * sets).saturating_mul(rows_kept(run) as u64));
    let prompt_tokens = run.data.prompt_tokens_max.unwrap_or(1024);
    // An episode's line has its tokens and its mask as well as its texts.
    let lines = if run.environment.is_some() { 2 } else { 1 };
    let tokens = lines * (run.response_tokens_max() as u64 + u64::from(prompt_tokens));
    let samples = rows.saturating_mul(line_bytes_max(tokens));
    // What rewards print.
    let has_workers = run.rewards.iter().any(|reward| reward.memory().leaves_process());
    let words = if has_workers { WORDS_BYTES_MAX } else { 0 };
    DiskFacts {
        // Without `every` a run saves only once, with no earlier checkpoint to keep.
        keep: Some(if run.checkpoint.every.is_some() { run.checkpoint.keep } else { 0 }),
        keep_bytes: run.checkpoint.keep_bytes.map(|limit| limit.0.0),
        best: run.checkpoint.every.is_some() && sets > 0,
        records: Bytes(samples.saturating_add(4096 * (steps + evals * sets) + REPORT_BYTES + words)),
    }
}

/// Returns the number of kept responses: of an evaluation or of a step, whichever is larger.
pub fn rows_kept(run: &RunSpec) -> usize {
    samples_kept(run.eval.samples.max(1) as usize).max(SAMPLES_KEPT)
}

/// Returns the bytes of the binary and its libraries that become resident: three quarters of what is mapped. Training,
/// evaluation and grading together touch 57 to 62 % of it.
pub fn image_bytes() -> Bytes {
    Bytes(Host::this().image_bytes().0 / 4 * 3)
}

/// As `image_bytes`, for a process with environments and no language model: five eighths. It touches about half.
pub fn environments_image_bytes() -> Bytes {
    Bytes(Host::this().image_bytes().0 / 8 * 5)
}

/// Returns the host bytes of a model's tokenizer; the byte tokenizer is small whatever the model's vocabulary.
pub fn tokenizer_bytes(model: &OpenModel) -> Bytes {
    if model.tokenizer.bytes {
        return Bytes(BYTE_TOKENS * TOKENIZER_BYTES_PER_TOKEN);
    }
    tokenizer_bytes_of(&model.spec)
}

/// As `tokenizer_bytes`, for a model known only by its shape.
pub(crate) fn tokenizer_bytes_of(spec: &ModelSpec) -> Bytes {
    Bytes(u64::from(spec.vocab) * TOKENIZER_BYTES_PER_TOKEN)
}

/// Returns the bytes of the staging buffers: as large as the run file allows, never larger than the weights need.
pub fn staging_bytes(allowed: Auto<ByteSize>, model: &OpenModel) -> Bytes {
    staging_bytes_of(allowed, &model.spec)
}

/// As `staging_bytes`, for a model known only by its shape.
///
/// Both buffers hold part of one tensor, as stored and as f32, so they need at most its elements twice in f32: those of
/// the embedding, or of a layer's largest matrix.
pub(crate) fn staging_bytes_of(allowed: Auto<ByteSize>, spec: &ModelSpec) -> Bytes {
    let ByteSize(allowed) = allowed.or(ByteSize(STAGING_BYTES_MAX));
    // Every matrix has the hidden width on one side.
    let rows = spec.vocab.max(2 * spec.ffn).max(spec.widest().0);
    let largest = 8 * u64::from(rows) * u64::from(spec.hidden);
    Bytes(allowed.0.min(largest.next_multiple_of(STAGING_BYTES_MIN)).max(STAGING_BYTES_MIN))
}

pub(crate) fn episode_memory(run: &RunSpec) -> EpisodeMemory {
    let Some(section) = &run.environment else { return EpisodeMemory::default() };
    let kind = Kind::parse(&section.env);
    let has_workers = kind.as_ref().is_ok_and(Kind::has_workers);
    let plays_agents = kind.is_ok_and(|kind| kind.is_agents());
    // Agents that others start are not in this plan.
    let has_workers = has_workers && !(plays_agents && section.command.is_empty());
    let workers = if has_workers { section.num_workers.value().unwrap_or(1) } else { 0 };
    EpisodeMemory {
        turns_max: run.turns_max(),
        workers: Bytes(section.worker_memory.0.0.saturating_mul(u64::from(workers))),
        threads: if plays_agents { 0 } else { workers as usize },
        plays_agents,
        is_there: true,
    }
}
