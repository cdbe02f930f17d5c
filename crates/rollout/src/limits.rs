//! What an engine may hold at most, and the regions that follow from it.

use plimsoll_arch::ModelSpec;
use plimsoll_base::{DType, Result};
use plimsoll_device::{ATTENTION_CHUNK, KV_BLOCK};
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
    pub samples: usize,
    pub prompt_tokens: usize,
    pub new_tokens: usize,
    /// True if decode passes run ahead of the host, in buckets of rows: where the device has a pipeline.
    pub ahead: bool,
    /// The cache of the layers with windows; none where every layer's holds whole sequences.
    pub window: Option<WindowLimits>,
    /// States of linear attention, of one layer; 0 where no layer has any.
    pub states: usize,
}

/// A cache that holds the windows of sequences alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// W: keys that a row sees, its own among them.
    pub keys: usize,
    /// KV blocks of each of these layers.
    pub blocks: usize,
}

/// Blocks of the cache of whole sequences, of that of windows, and states of linear attention; those that a model has not are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) whole: usize,
    pub(crate) window: usize,
    pub(crate) states: usize,
}

impl Count {
    pub(crate) fn plus(self, more: Count) -> Count {
        let Count { whole, window, states } = more;
        Count { whole: self.whole + whole, window: self.window + window, states: self.states + states }
    }

    /// Less `fewer` of each, or none.
    pub(crate) fn less(self, fewer: Count) -> Count {
        Count {
            whole: self.whole.saturating_sub(fewer.whole),
            window: self.window.saturating_sub(fewer.window),
            states: self.states.saturating_sub(fewer.states),
        }
    }

    pub(crate) fn times(self, n: usize) -> Count {
        Count { whole: self.whole * n, window: self.window * n, states: self.states * n }
    }

    /// True if `room` has as many of each.
    pub(crate) fn fits(self, room: Count) -> bool {
        self.whole <= room.whole && self.window <= room.window && self.states <= room.states
    }
}

/// Passes that run ahead of the host, at most: a sequence that ends early keeps its row so long.
pub(crate) const PASSES_MAX: usize = 64;

/// Rows of one sequence in a pass, at least, before a window bounds them: what keeps a device busy.
const WINDOW_STEP_LEAST: usize = 128;

impl EngineLimits {
    /// Keys of the longest sequence. Its last token is drawn and never read, so that one has no key.
    pub(crate) fn keys(&self) -> usize {
        self.prompt_tokens + self.new_tokens - 1
    }

    /// Tokens of the longest sequence, prompt and response.
    pub fn context(&self) -> usize {
        self.prompt_tokens + self.new_tokens
    }

    pub fn blocks_per_sequence(&self) -> usize {
        self.keys().div_ceil(KV_BLOCK)
    }

    /// Rows of one sequence in a pass, at most. A sequence holds its window and the rows of a pass, so that a quarter of
    /// the window is a bound on what it holds beyond that; rows of other sequences fill up the pass.
    pub(crate) fn step(&self) -> usize {
        let Some(window) = self.window else { return usize::MAX };
        let run = if self.ahead { PASSES_MAX } else { 1 };
        (window.keys / 4).max(WINDOW_STEP_LEAST).min(self.rows.max(run))
    }

    /// Blocks of a window and the rows of a pass, wherever they begin; 0 without a cache of windows.
    pub(crate) fn ring(&self) -> usize {
        self.window.map_or(0, |window| (window.keys + self.step()).div_ceil(KV_BLOCK) + 1)
    }

    /// Blocks that a prompt holds.
    pub(crate) fn of_prompt(&self, prompt_tokens: usize) -> Count {
        let whole = prompt_tokens.div_ceil(KV_BLOCK);
        Count { whole, window: whole.min(self.ring()), states: self.states.min(1) }
    }

    /// Blocks that a response owns at most. One that shares its prompt with no other gives the prompt's blocks back as it
    /// grows, so that both together are a window, and twice the block in which the prompt ends.
    pub(crate) fn of_response(&self, prompt_tokens: usize, new_tokens: usize, is_alone: bool) -> Count {
        let whole = own_blocks(prompt_tokens, new_tokens);
        let prompt = if is_alone { self.of_prompt(prompt_tokens).window } else { 0 };
        let most = self.ring() + usize::from(self.window.is_some() && is_alone);
        let window = whole.min(self.ring()).min(most - prompt);
        Count { whole, window, states: self.of_own_state(is_alone) }
    }

    /// States that a response owns: one that shares its prompt with no other goes on in the prompt's.
    pub(crate) fn of_own_state(&self, is_alone: bool) -> usize {
        if is_alone { 0 } else { self.states.min(1) }
    }

    /// States with which `sequences` sequences in groups of `group` never wait.
    pub fn states_for(sequences: usize, group: usize) -> usize {
        if group <= 1 { sequences } else { sequences + groups(sequences, group) }
    }

    /// Blocks of each layer with a window with which `sequences` of the longest sequences never wait; as `blocks_for`.
    pub fn window_blocks_for(&self, sequences: usize, group: usize) -> usize {
        let prompts = self.of_prompt(self.prompt_tokens).times(groups(sequences, group));
        let response = self.of_response(self.prompt_tokens, self.new_tokens, group <= 1);
        prompts.plus(response.times(sequences)).window
    }

    /// Blocks of each layer with a window that one sequence may take after a prompt of up to `prompt_tokens`, whatever else there is:
    /// more where others wait for its prompt.
    pub fn window_blocks_least(&self, prompt_tokens: usize) -> usize {
        let new_tokens = self.new_tokens + KV_BLOCK - 1;
        let response = self.of_response(prompt_tokens, new_tokens, self.samples == 1);
        self.of_prompt(prompt_tokens).plus(response).window + 1
    }

    /// Blocks of a layer that sees all keys, or of one with a window where there are only such.
    pub fn layer_blocks(&self, spec: &ModelSpec) -> usize {
        let only =
            self.window.filter(|_| spec.attention.window.is_some_and(|w| w.layers.len() == spec.layers));
        only.map_or(self.blocks, |window| window.blocks)
    }

    /// True if `sequences` of the longest sequences in groups of `group` have blocks.
    pub fn holds(&self, sequences: usize, group: usize) -> bool {
        let whole = EngineLimits::blocks_for(sequences, group, self.prompt_tokens, self.new_tokens);
        let window = self.window.is_none_or(|w| self.window_blocks_for(sequences, group) <= w.blocks);
        let states = self.states == 0 || EngineLimits::states_for(sequences, group) <= self.states;
        whole <= self.blocks && window && states
    }

    /// Blocks with which `sequences` of the longest sequences never wait, groups of `group` sharing their prompt.
    pub fn blocks_for(sequences: usize, group: usize, prompt_tokens: usize, new_tokens: usize) -> usize {
        let own = own_blocks(prompt_tokens, new_tokens);
        groups(sequences, group) * prompt_tokens.div_ceil(KV_BLOCK) + sequences * own
    }

    /// Returns rows and bounds on keys of all passes that run ahead, each of which is recorded once for a way of sampling.
    pub fn recorded_sizes(&self) -> Vec<(usize, usize)> {
        if !self.ahead {
            return Vec::new();
        }
        let longest = keys_bucket(self.prompt_tokens + self.new_tokens + 1);
        let mut rows: Vec<usize> = (1..=self.sequences).map(bucket).collect();
        rows.dedup();
        let keys = std::iter::successors(Some(keys_bucket(1)), |&k| (k < longest).then_some(2 * k));
        keys.flat_map(|keys| rows.iter().map(move |&rows| (rows, keys))).collect()
    }

    /// Bound on the keys of a row in passes that run ahead.
    pub fn keys_max(&self) -> usize {
        keys_bucket(self.prompt_tokens + self.new_tokens + 1)
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

    /// As `spare_block`, in the cache of windows; where passes do not run ahead any block, which is not written.
    pub(crate) fn spare_window_block(&self) -> u32 {
        self.window.filter(|_| self.ahead).map_or(0, |window| window.blocks as u32)
    }

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
            window_blocks: self.window.map_or(0, |window| window.blocks + spare),
            places: self.states,
        }
    }
}

/// A bound on keys for passes that are recorded: chunks of attention in powers of two, so that there are few.
pub(crate) fn keys_bucket(keys: usize) -> usize {
    keys.div_ceil(ATTENTION_CHUNK).next_power_of_two() * ATTENTION_CHUNK
}

/// Groups that `sequences` may be of, where all but the first and the last are whole.
fn groups(sequences: usize, group: usize) -> usize {
    let groups = sequences.div_ceil(group.max(1)) + usize::from(group > 1 && sequences > 1);
    groups.min(sequences)
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
