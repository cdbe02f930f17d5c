//! Facts about a run's model, data and directory that its plan depends on, known before anything is allocated.

use crate::hosts::Hosts;
use crate::lora::Lora;
use crate::role_name::PerRole;
use crate::sight::SightShape;
use plimsoll_arch::{LayerEncodings, LoraTargets, ModelSpec};
use plimsoll_base::{Bytes, DType};
use plimsoll_config::{Auto, ByteSize, LoraSpec, RunSpec, SamplerSpec};
use plimsoll_device::DriverMemory;
use plimsoll_devices::{Card, DeviceRow};
use plimsoll_files::OpenModel;
use plimsoll_memory::host::Host;
use plimsoll_model::STAGING_BYTES_MIN;
use plimsoll_reward::{STEPS_MAX, WORDS_BYTES_MAX};
use plimsoll_textenv::{EpisodeMemory, Kind, ReplyLimits};
use plimsoll_train::Share;

/// Host bytes of a tokenizer per token of its vocabulary: both maps, merges and the decoding table. Measured as growth
/// of resident memory with a vocabulary of 49,152.
const TOKENIZER_BYTES_PER_TOKEN: u64 = 700;
/// Tokens of the byte tokenizer: 256 bytes and three special tokens.
const BYTE_TOKENS: u64 = 259;
/// Disk space of `curves.svg` and `samples/side_by_side.md`, which are bounded.
const REPORT_BYTES: u64 = 1 << 20;
/// The largest staging buffers that `"auto"` chooses.
const STAGING_BYTES_MAX: Bytes = Bytes::mib(64);
/// Samples of a step that are written to the run directory.
pub const SAMPLES_KEPT: usize = 32;
/// Maximum prompts whose responses are kept.
const PROMPTS_KEPT: usize = 8;

/// Numbers of a run's model and data that its memory depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    pub spec: ModelSpec,
    /// Longest prompt, of training and evaluation.
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
    pub eval_prompts: usize,
    /// Shapes of the models other than the run's own and its reference.
    pub models: PerRole<ModelSpec>,
    /// Adapters of the reward models that are an adapter on their base.
    pub adapters: PerRole<Lora>,
    /// Encodings of the models that are GGUF files; `RoleName::Actor` is the run's own model, in any role.
    pub encodings: PerRole<LayerEncodings>,
    /// Host memory outside the arena.
    pub host: HostFacts,
    /// The rank that is planned.
    pub share: Share,
    /// The hosts of the run's ranks.
    pub hosts: Hosts,
    /// The hosts of those that train: all, unless some only sample.
    pub trainers: Hosts,
    /// The card to plan for, if it is not this machine's.
    pub card: Option<Card>,
    /// The images of its prompts; none without images.
    pub sight: Option<SightShape>,
    /// What trains a server's adapters side by side; none where nothing does.
    pub tenants: Option<TenantPasses>,
}

/// The passes that train the adapters of a server's tenants. How sequences are cut follows from it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantPasses {
    /// Rows of a micro-batch, and rows through its head.
    pub tokens: usize,
    /// Sequences of a micro-batch.
    pub sequences: usize,
}

/// Bytes of host memory outside the arena that do not depend on the run's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// The binary and its libraries, as mapped.
    pub image: Bytes,
    pub tokenizer: Bytes,
    pub data: Bytes,
    /// Both buffers for reading and writing weights.
    pub staging: Bytes,
    /// Buffers of a server between its clients and the engine.
    pub clients: Bytes,
    /// What responses are held to, with the vocabulary's bytes.
    pub schema: Bytes,
    /// Arrays that come from a script that makes the steps; 0 if none does.
    pub script: Bytes,
    /// Responses of a step or an evaluation that are kept as samples.
    pub rows_kept: usize,
    pub disk: DiskFacts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFacts {
    /// Checkpoints kept by age, excluding the one being written; `None` if nothing is saved.
    pub keep: Option<u32>,
    /// Limit of their total size.
    pub keep_bytes: Option<u64>,
    /// True if the checkpoint with the highest evaluation is kept as well.
    pub best: bool,
    pub records: Bytes,
}

impl Facts {
    /// True if no product of the run uses a library. `merge`: it computes with adapters merged into its weights.
    pub(crate) fn are_own(&self, run: &RunSpec, merge: bool) -> bool {
        // Layers without the target compute as before.
        let has_all = |lora: &LoraSpec| {
            lora.targets == LoraTargets::ALL
                && lora.targets.unfit(&self.spec).is_none()
                && !self.spec.has_states()
        };
        let adapts = run.lora.as_ref().is_some_and(has_all) && !merge;
        // Each of these computes with weights that have no adapters.
        let others = run.has_reference() || run.critic().is_some() || self.models.values().next().is_some();
        run.model_options.dtype.dtype() == DType::F32 || (adapts && !others)
    }

    /// Returns the memory of a card's driver and libraries, with adapters apart and merged, and the numbers' origin.
    pub(crate) fn held(&self, row: &DeviceRow, run: &RunSpec) -> ([DriverMemory; 2], String) {
        let held = |merge| (row.held)(self.are_own(run, merge), self.spec.hidden);
        let [(apart, source), (merged, _)] = [false, true].map(held);
        ([apart, merged], source)
    }
}

/// Returns the evaluation responses that are kept: all of a prompt's, so that pass@k can be read off them.
pub fn samples_kept(samples: usize) -> usize {
    (SAMPLES_KEPT / samples).clamp(1, PROMPTS_KEPT) * samples
}

/// Returns the maximum bytes of a sample's line: 32 per token for text, length and log-prob; 20 named rewards fit.
pub(crate) fn line_bytes_max(tokens: u64) -> u64 {
    2048 + 32 * tokens
}

/// Returns what a run writes besides checkpoints: 1.5 KB of events per step, measured, and samples with log-probs.
pub fn disk_facts(run: &RunSpec) -> DiskFacts {
    let training = run.trains.training();
    let steps = training.map_or(0, |training| u64::from(training.train.steps));
    let checkpoint = training.map(|training| &training.checkpoint).filter(|of| of.every.is_some());
    let evals = 2 + run.eval.every.map_or(0, |every| steps / u64::from(every.max(1)));
    let sets = run.eval_sets.len() as u64;
    let rows = trained_rows_kept().saturating_add((evals * sets).saturating_mul(rows_kept(run) as u64));
    let prompt_tokens = run.data.prompt_tokens_max.unwrap_or(1024);
    // An episode's line has its tokens and its mask as well as its texts.
    let lines = if run.environment().is_some() { 2 } else { 1 };
    let tokens = lines * (run.response_tokens_max() as u64 + u64::from(prompt_tokens));
    let samples = rows.saturating_mul(line_bytes_max(tokens));
    // What rewards print.
    let has_workers = run.rewards.iter().any(|reward| reward.memory().leaves_process());
    let words = if has_workers { WORDS_BYTES_MAX } else { 0 };
    DiskFacts {
        // Without `every` a run saves only once, with no earlier checkpoint to keep.
        keep: Some(checkpoint.map_or(0, |of| of.keep)),
        keep_bytes: training.and_then(|of| of.checkpoint.keep_bytes).map(|limit| limit.0.0),
        best: checkpoint.is_some() && sets > 0,
        records: Bytes(samples.saturating_add(4096 * (steps + evals * sets) + REPORT_BYTES + words)),
    }
}

/// Returns the most samples of steps that a run writes: at twenty steps, the first and the last.
pub const fn trained_rows_kept() -> u64 {
    22 * SAMPLES_KEPT as u64
}

/// Returns the number of kept responses, of an evaluation or of a step, whichever is larger.
pub fn rows_kept(run: &SamplerSpec) -> usize {
    samples_kept(run.eval.samples.max(1) as usize).max(SAMPLES_KEPT)
}

/// Returns the resident bytes of the binary and its libraries: three quarters of what is mapped. Training, evaluation
/// and grading together touch 57 to 62 % of it.
pub fn image_bytes() -> Bytes {
    Bytes(Host::this().image_bytes().0 / 4 * 3)
}

/// Returns the resident bytes of a process with environments and no model: five eighths; it touches about half.
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

/// Returns the host bytes of the tokenizer of a model known only by its shape.
pub(crate) fn tokenizer_bytes_of(spec: &ModelSpec) -> Bytes {
    Bytes(u64::from(spec.vocab) * TOKENIZER_BYTES_PER_TOKEN)
}

/// Returns the bytes of the staging buffers: as large as the run file allows, but no larger than the weights need.
pub fn staging_bytes(allowed: Auto<ByteSize>, model: &OpenModel) -> Bytes {
    staging_bytes_of(allowed, &model.spec)
}

/// Returns the bytes of the staging buffers for a model known only by its shape.
///
/// Both buffers hold part of one tensor, as stored and as f32, so they need at most its elements twice in f32: those of
/// the embedding, or of a layer's largest matrix.
pub(crate) fn staging_bytes_of(allowed: Auto<ByteSize>, spec: &ModelSpec) -> Bytes {
    let ByteSize(allowed) = allowed.or(ByteSize(STAGING_BYTES_MAX));
    // Every matrix has the hidden width on one side.
    let gates = spec.most(|layer| 2 * layer.ffn.down_width());
    let rows = spec.vocab.max(gates).max(spec.widest().0);
    let largest = 8 * u64::from(rows) * u64::from(spec.hidden);
    Bytes(allowed.0.min(largest.next_multiple_of(STAGING_BYTES_MIN)).max(STAGING_BYTES_MIN))
}

pub(crate) fn episode_memory(run: &RunSpec) -> EpisodeMemory {
    let Some(section) = run.environment() else {
        let steps_max = if run.turn_credit().is_some() { STEPS_MAX } else { 0 };
        return EpisodeMemory { steps_max, ..EpisodeMemory::default() };
    };
    let kind = Kind::parse(&section.env);
    let has_workers = kind.as_ref().is_ok_and(Kind::has_workers);
    let container = if section.plays_tasks() { section.container_memory.0 } else { Bytes(0) };
    let plays_agents = kind.is_ok_and(|kind| kind.is_agents());
    // Agents started by others are not in this plan.
    let has_workers = has_workers && !(plays_agents && section.command.is_empty());
    let workers = if has_workers { section.num_workers.value().unwrap_or(1) } else { 0 };
    let threads = if plays_agents { 0 } else { workers as usize };
    EpisodeMemory {
        turns_max: run.turns_max(),
        workers: Bytes(section.worker_memory.0.0.saturating_mul(u64::from(workers))),
        threads,
        reply: if threads > 0 { ReplyLimits::of(section.turn_tokens_max).host_bytes() } else { Bytes(0) },
        images_max: section.images_max as usize,
        container,
        plays_agents,
        compares_turns: run.turn_credit().is_some(),
        steps_max: 0,
        has_environment: true,
    }
}
