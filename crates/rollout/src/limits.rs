//! What an engine may hold at most, and the regions that follow from it.

use plimsoll_base::{DType, ModelSpec, Result};
use plimsoll_device::KV_BLOCK;
use plimsoll_memory::Layout;
use plimsoll_model::{Mode, PassLimits, Target, activations_layout};
use serde::{Deserialize, Serialize};

/// What happens when the KV blocks run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFull {
    /// A sequence starts only when its longest possible response has blocks.
    WorstCase,
    /// Sequences start freely; the youngest gives its blocks back and computes its keys again later.
    Preempt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Sequences that run together.
    pub sequences: usize,
    /// Rows of a pass: decode rows and prompt rows together; at least `sequences`.
    pub rows: usize,
    /// KV blocks of each layer.
    pub blocks: usize,
    /// Samples of one request.
    pub samples: usize,
    pub prompt_tokens: usize,
    pub new_tokens: usize,
    /// True if decode passes run ahead of the host, in buckets of rows: where the device has a pipeline.
    pub ahead: bool,
}

impl EngineLimits {
    /// Keys of the longest sequence. Its last token is drawn and never read, so that one has no key.
    pub(crate) fn keys(&self) -> usize {
        self.prompt_tokens + self.new_tokens - 1
    }

    /// Tokens of the longest sequence, prompt and response.
    pub fn context(&self) -> usize {
        self.prompt_tokens + self.new_tokens
    }

    /// Blocks of the longest sequence.
    pub fn blocks_per_sequence(&self) -> usize {
        self.keys().div_ceil(KV_BLOCK)
    }

    /// Blocks with which `sequences` of the longest sequences never wait, groups of `group` sharing their prompt.
    pub fn blocks_for(sequences: usize, group: usize, prompt_tokens: usize, new_tokens: usize) -> usize {
        let groups = sequences.div_ceil(group.max(1)) + usize::from(group > 1 && sequences > 1);
        let own = own_blocks(prompt_tokens, new_tokens);
        groups.min(sequences) * prompt_tokens.div_ceil(KV_BLOCK) + sequences * own
    }

    /// Bound on the keys of a row in passes that run ahead.
    pub fn keys_max(&self) -> usize {
        crate::schedule::keys_bucket(self.prompt_tokens + self.new_tokens + 1)
    }

    /// Entries of a sequence's table in passes that run ahead: one more than it can own, so that the position after
    /// its last has an entry.
    pub(crate) fn table_stride(&self) -> usize {
        self.blocks_per_sequence() + 1
    }

    /// The block that rows of ended sequences write to while passes run ahead.
    pub(crate) fn spare_block(&self) -> u32 {
        self.blocks as u32
    }

    /// Limits of the engine's passes.
    pub fn pass(&self) -> PassLimits {
        let (sequences, stride, spare) = match self.ahead {
            true => (bucket(self.sequences), self.table_stride(), 1),
            false => (self.sequences, self.blocks_per_sequence(), 0),
        };
        PassLimits {
            rows: self.rows.max(sequences),
            head_rows: sequences,
            segments: sequences,
            table_entries: sequences * stride,
            blocks: self.blocks + spare,
            copies: self.sequences,
        }
    }
}

/// Rows of a decode pass that runs ahead, for a number of sequences: few enough sizes to record a graph for each, and
/// never under sixteen, from where on a product's bits do not depend on its rows.
pub(crate) fn bucket(sequences: usize) -> usize {
    match sequences {
        0..=128 => sequences.next_multiple_of(16).max(16),
        _ => sequences.next_multiple_of(64),
    }
}

/// Blocks that a response of `new_tokens` owns besides its prompt's: the copied slots and every token but the last.
pub(crate) fn own_blocks(prompt_tokens: usize, new_tokens: usize) -> usize {
    (prompt_tokens % KV_BLOCK + new_tokens - 1).div_ceil(KV_BLOCK)
}

/// The engine's regions: activations of a pass and the KV cache of all layers.
///
/// Errors: `size-overflow`.
pub fn layout(
    spec: &ModelSpec,
    weights: DType,
    target: Target,
    limits: &EngineLimits,
    truncates: bool,
) -> Result<Layout> {
    activations_layout(spec, weights, target, Mode::Rollout { truncates }, limits.pass())
}
