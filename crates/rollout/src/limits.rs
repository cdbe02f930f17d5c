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

/// Limits of one engine.
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
    /// Longest prompt.
    pub prompt_tokens: usize,
    /// Longest response.
    pub new_tokens: usize,
}

impl EngineLimits {
    /// Blocks of the longest sequence. Its last token is drawn and never read, so that one has no key.
    pub fn blocks_per_sequence(&self) -> usize {
        (self.prompt_tokens + self.new_tokens - 1).div_ceil(KV_BLOCK)
    }

    /// Blocks with which `sequences` of the longest sequences never wait, groups of `group` sharing their prompt.
    pub fn blocks_for(sequences: usize, group: usize, prompt_tokens: usize, new_tokens: usize) -> usize {
        let groups = sequences.div_ceil(group.max(1)) + usize::from(group > 1 && sequences > 1);
        let own = own_blocks(prompt_tokens, new_tokens);
        groups.min(sequences) * prompt_tokens.div_ceil(KV_BLOCK) + sequences * own
    }

    /// Limits of the engine's passes.
    pub fn pass(&self) -> PassLimits {
        PassLimits {
            rows: self.rows,
            head_rows: self.sequences,
            segments: self.sequences,
            table_entries: self.sequences * self.blocks_per_sequence(),
            blocks: self.blocks,
            copies: self.sequences,
        }
    }
}

/// Blocks that a response of `new_tokens` owns beside its prompt's: the copied slots and every token but the last.
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
