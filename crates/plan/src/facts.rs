//! What a plan needs to know of a run's model, data and directory before anything is allocated.

use plimsoll_base::{Bytes, ModelSpec};
use plimsoll_config::{Auto, ByteSize, RunSpec};
use plimsoll_files::OpenModel;
use plimsoll_memory::host::Host;
use plimsoll_model::STAGING_BYTES_MIN;
use plimsoll_textenv::{EpisodeMemory, Kind};

/// Host bytes of a tokenizer for each token of its vocabulary: both maps, merges and the decoding table, measured
/// with a vocabulary of 49,152 as the growth of resident memory.
const TOKENIZER_BYTES_PER_TOKEN: u64 = 700;
/// Tokens of the byte tokenizer: each byte, and three with a meaning.
const BYTE_TOKENS: u64 = 259;
/// On the disk: `curves.svg` and `samples/side_by_side.md`, which have so many points and letters at most.
const REPORT_BYTES: u64 = 1 << 20;
/// The largest staging buffers that `"auto"` takes.
const STAGING_BYTES_MAX: Bytes = Bytes::mib(64);
/// Samples of a step that are written to the run directory.
pub const SAMPLES_KEPT: usize = 32;
/// Most prompts whose responses are kept.
const PROMPTS_KEPT: usize = 8;

/// Numbers about a run's model and data that its memory depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    /// The model.
    pub spec: ModelSpec,
    /// Longest prompt, of training and evaluation.
    pub prompt_tokens: usize,
    /// Longest supervised completion.
    pub completion_tokens: usize,
    /// Prompts of an evaluation.
    pub eval_prompts: usize,
    /// The critic's shape, if there is a critic.
    pub critic: Option<ModelSpec>,
    /// The reward model's shape, if there is a reward model.
    pub reward: Option<ModelSpec>,
    /// Host memory outside the arena.
    pub host: HostFacts,
}

/// Bytes of host memory outside the arena that do not follow from the run's own limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// The binary and its libraries, as mapped.
    pub image: Bytes,
    /// The tokenizer's tables.
    pub tokenizer: Bytes,
    /// Prompts, their tokens and their columns.
    pub data: Bytes,
    /// Both buffers through which weights are read and written.
    pub staging: Bytes,
    /// Responses that a step or an evaluation keeps for people.
    pub rows_kept: usize,
    /// What the run directory may hold.
    pub disk: DiskFacts,
}

/// What a run writes to its directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFacts {
    /// Checkpoints kept by age beside the one being written; `None` where nothing is saved.
    pub keep: Option<u32>,
    /// Bytes of them.
    pub keep_bytes: Option<u64>,
    /// True if the one with the highest evaluation is kept besides.
    pub best: bool,
    /// Event log and samples.
    pub records: Bytes,
}

/// Responses of an evaluation that are kept: all of a prompt's, so that pass@k can be read off them.
pub fn samples_kept(samples: usize) -> usize {
    (SAMPLES_KEPT / samples).clamp(1, PROMPTS_KEPT) * samples
}

/// Bytes of its line, at most: a token has up to 32 bytes of text, its length and log-prob, and 20 rewards with their names fit.
pub fn line_bytes_max(tokens: u64) -> u64 {
    2048 + 32 * tokens
}

/// What a run writes beside its checkpoints: an event a step of 1.5 KB, measured, and samples with their log-probs.
pub fn disk_facts(run: &RunSpec) -> DiskFacts {
    let steps = u64::from(run.train.steps);
    let evals = 2 + run.eval.every.map_or(0, |every| steps / u64::from(every.max(1)));
    // Twenty steps show samples, and the first and the last.
    let sets = run.eval_sets.len() as u64;
    let rows =
        (22 * SAMPLES_KEPT as u64).saturating_add((evals * sets).saturating_mul(rows_kept(run) as u64));
    let prompt_tokens = run.data.prompt_tokens_max.unwrap_or(1024);
    // An episode's line has its tokens and its mask beside its texts.
    let lines = if run.environment.is_some() { 2 } else { 1 };
    let tokens = lines * (run.response_tokens_max() as u64 + u64::from(prompt_tokens));
    let samples = rows.saturating_mul(line_bytes_max(tokens));
    DiskFacts {
        // Without `every` a run saves once, where there is nothing to keep beside it.
        keep: Some(if run.checkpoint.every.is_some() { run.checkpoint.keep } else { 0 }),
        keep_bytes: run.checkpoint.keep_bytes.map(|limit| limit.0.0),
        best: run.checkpoint.every.is_some() && sets > 0,
        records: Bytes(samples.saturating_add(4096 * (steps + evals * sets) + REPORT_BYTES)),
    }
}

/// Responses that an evaluation keeps, and what a step keeps where that is more.
pub fn rows_kept(run: &RunSpec) -> usize {
    samples_kept(run.eval.samples.max(1) as usize).max(SAMPLES_KEPT)
}

/// Bytes of the binary and its libraries that come to be resident: three quarters of what is mapped. Training,
/// evaluation and grading together touch 57 to 62 % of it.
pub fn image_bytes() -> Bytes {
    Bytes(Host::this().image_bytes().0 / 4 * 3)
}

/// The same of a process that has environments and no language model: five eighths. It touches about half.
pub fn environments_image_bytes() -> Bytes {
    Bytes(Host::this().image_bytes().0 / 8 * 5)
}

/// Host bytes of a model's tokenizer; that of bytes is small whatever the model's vocabulary.
pub fn tokenizer_bytes(model: &OpenModel) -> Bytes {
    if model.tokenizer.bytes {
        return Bytes(BYTE_TOKENS * TOKENIZER_BYTES_PER_TOKEN);
    }
    tokenizer_bytes_of(&model.spec)
}

/// The same of a model that is only a shape.
pub fn tokenizer_bytes_of(spec: &ModelSpec) -> Bytes {
    Bytes(u64::from(spec.vocab) * TOKENIZER_BYTES_PER_TOKEN)
}

/// The staging buffers: as large as the run file allows, never larger than the weights need.
pub fn staging_bytes(allowed: Auto<ByteSize>, model: &OpenModel) -> Bytes {
    staging_bytes_of(allowed, &model.spec)
}

/// The same of a model that is only a shape.
///
/// Both buffers hold part of one tensor, as stored and as f32, so what they need at most is its elements twice in f32:
/// of the embedding, or of a layer's largest matrix.
pub fn staging_bytes_of(allowed: Auto<ByteSize>, spec: &ModelSpec) -> Bytes {
    let ByteSize(allowed) = allowed.or(ByteSize(STAGING_BYTES_MAX));
    // Every matrix has the hidden width on one side.
    let rows = spec.vocab.max(2 * spec.ffn).max(spec.q_width() + 2 * spec.kv_width());
    let largest = 8 * u64::from(rows) * u64::from(spec.hidden);
    Bytes(allowed.0.min(largest.next_multiple_of(STAGING_BYTES_MIN)).max(STAGING_BYTES_MIN))
}

/// The part of a run's shape that its environment decides.
pub fn episode_memory(run: &RunSpec) -> EpisodeMemory {
    let Some(section) = &run.environment else { return EpisodeMemory::default() };
    let has_workers = Kind::parse(&section.env).is_ok_and(|kind| kind.has_workers());
    let workers = if has_workers { section.num_workers.value().unwrap_or(1) } else { 0 };
    EpisodeMemory {
        turns_max: run.turns_max(),
        workers: Bytes(section.worker_memory.0.0.saturating_mul(u64::from(workers))),
        threads: workers as usize,
        is_there: true,
    }
}
