//! The limits of an engine, and the regions that follow from them.

use crate::draft_limits::DraftLimits;
use plimsoll_arch::{CACHES, Cache, Caches, Extent, ModelSpec};
use plimsoll_base::{DType, Result};
use plimsoll_device::{ATTENTION_CHUNK, KV_BLOCK};
use plimsoll_memory::Layout;
use plimsoll_model::{Mode, OwnLogits, PassLimits, Target, activations_layout};
use serde::{Deserialize, Serialize};

/// Policy for when the KV blocks run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFull {
    /// A sequence starts only when there are blocks for its longest possible response.
    WorstCase,
    /// Sequences start freely; the youngest is preempted and recomputes its keys later.
    Preempt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Maximum sequences that run together.
    pub sequences: usize,
    /// Maximum rows of a pass, decode rows and prompt rows together; at least `sequences`.
    pub rows: usize,
    pub samples: usize,
    pub prompt_tokens: usize,
    pub new_tokens: usize,
    /// True if decode passes run ahead of the host, in buckets of rows, on devices with a pipeline.
    pub ahead: bool,
    /// Most likely tokens that are listed of a head row, for requests that ask for some; 0 if none may.
    pub listed: usize,
    /// What the logits of single sequences may have of their own.
    pub own: OwnLogits,
    /// The caches, with their units per layer.
    pub caches: Caches,
    /// What may be drafted; `None`: nothing is. Not with caches of one unit a sequence.
    pub drafts: Option<DraftLimits>,
}

/// Units of each cache; 0 for caches that the model lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) [usize; CACHES]);

impl Count {
    fn with(self, other: Count, of: impl Fn(usize, usize) -> usize) -> Count {
        Count(std::array::from_fn(|index| of(self.0[index], other.0[index])))
    }

    pub(crate) fn plus(self, more: Count) -> Count {
        self.with(more, |a, b| a + b)
    }

    /// Subtracts `fewer` from each, down to 0.
    pub(crate) fn less(self, fewer: Count) -> Count {
        self.with(fewer, usize::saturating_sub)
    }

    /// True if `room` has at least as many of each.
    pub(crate) fn fits(self, room: Count) -> bool {
        self.less(room) == Count::default()
    }
}

/// Most likely tokens of a row that clients may ask for.
pub const LISTED: usize = 20;
/// Rows of prompts that go through the head in a pass, at least, where clients may ask for these.
const SCORED_ROWS: usize = 64;

/// Maximum passes that run ahead of the host: a sequence that ends early keeps its row until then.
pub(crate) const PASSES_MAX: usize = 64;

impl EngineLimits {
    /// Returns the keys of the longest sequence. Its last token is drawn but never read, so it has no key.
    pub(crate) fn keys(&self) -> usize {
        self.prompt_tokens + self.new_tokens - 1
    }

    /// Returns the tokens of the longest sequence, prompt and response.
    pub fn context(&self) -> usize {
        self.prompt_tokens + self.new_tokens
    }

    pub fn blocks_per_sequence(&self) -> usize {
        self.keys().div_ceil(KV_BLOCK)
    }

    /// Returns the maximum rows of one sequence in a pass.
    pub(crate) fn step(&self) -> usize {
        let rows = self.rows.max(if self.ahead { PASSES_MAX } else { 1 });
        self.caches.each().map(|cache| cache.step(rows)).min().unwrap_or(usize::MAX)
    }

    /// Returns what `of` gives for each cache.
    pub(crate) fn count(&self, of: impl Fn(Cache) -> usize) -> Count {
        let mut count = Count::default();
        self.caches.each().for_each(|cache| count.0[cache.index()] = of(cache));
        count
    }

    /// True if some cache has one unit per sequence: a state.
    pub(crate) fn has_units(&self) -> bool {
        !self.caches.each().all(Cache::has_blocks)
    }

    /// Returns how many of the units are blocks.
    pub(crate) fn blocks(&self, count: Count) -> usize {
        self.caches.each().filter(|cache| cache.has_blocks()).map(|cache| count.0[cache.index()]).sum()
    }

    /// Returns the extent of a sequence with this prompt, as caches need it.
    pub(crate) fn extent(&self, prompt_tokens: usize, is_alone: bool) -> Extent {
        Extent { prompt_tokens, is_alone, step: self.step() }
    }

    /// Returns the units with which `sequences` of the longest sequences, in groups with one prompt each, never wait.
    pub fn enough(&self, cache: Cache, sequences: usize, group: usize) -> usize {
        let of = self.extent(self.prompt_tokens, group <= 1);
        groups(sequences, group) * cache.of_prompt(of) + sequences * cache.of_response(of, self.new_tokens)
    }

    /// Returns the fewest units with which a sequence of `context` tokens with such a prompt always makes progress.
    pub fn least(&self, cache: Cache, context: usize, prompt_tokens: usize) -> usize {
        cache.least(self.extent(prompt_tokens, self.samples == 1), context, self.new_tokens)
    }

    /// Panics unless every cache holds one sequence after a prompt of up to `prompt_tokens`.
    pub(crate) fn check(&self, prompt_tokens: usize) {
        let holds =
            |cache: Cache| self.caches.units(cache.index()) >= self.least(cache, self.keys(), prompt_tokens);
        assert!(self.caches.each().all(holds), "units of one sequence: {self:?}");
    }

    /// Returns the units of the first cache that a layer of the model has.
    pub fn layer_blocks(&self, spec: &ModelSpec) -> usize {
        let first = spec.caches(self.keys()).into_iter().find(|of| of.elements > 0);
        self.caches.units(first.map_or(Cache::PAGED, |of| of.cache.index()))
    }

    /// True if `sequences` of the longest sequences in groups of `group` never wait.
    pub fn holds(&self, sequences: usize, group: usize) -> bool {
        let holds = |cache: Cache| self.enough(cache, sequences, group) <= self.caches.units(cache.index());
        self.caches.each().all(holds)
    }

    /// Returns rows and key bounds of all passes that run ahead; each is recorded once per sampling setting.
    pub fn recorded_sizes(&self) -> Vec<(usize, usize)> {
        if !self.ahead {
            return Vec::new();
        }
        let longest = keys_bucket(self.prompt_tokens + self.new_tokens + 1);
        let mut rows: Vec<usize> = (1..=self.decode_rows()).map(bucket).collect();
        rows.dedup();
        let keys = std::iter::successors(Some(keys_bucket(1)), |&k| (k < longest).then_some(2 * k));
        keys.flat_map(|keys| rows.iter().map(move |&rows| (rows, keys))).collect()
    }

    /// Returns the bound on a row's keys in passes that run ahead.
    pub fn keys_max(&self) -> usize {
        keys_bucket(self.prompt_tokens + self.new_tokens + 1)
    }

    /// Returns the table entries of a row in passes that run ahead or verify drafts: all blocks of its sequence, and
    /// one for the next position.
    pub(crate) fn table_stride(&self) -> usize {
        self.blocks_per_sequence() + 1
    }

    /// Returns the block that ended sequences' rows write to while passes run ahead; any block if they do not.
    pub(crate) fn spare(&self, cache: Cache) -> u32 {
        if self.ahead { self.caches.units(cache.index()) as u32 } else { 0 }
    }

    /// Returns the most rows of a pass that decodes: one of each sequence, and drafts.
    pub(crate) fn decode_rows(&self) -> usize {
        self.drafts.map_or(0, |drafts| drafts.rows).max(self.sequences)
    }

    pub fn pass(&self) -> PassLimits {
        let (decoded, stride, spare) = if self.ahead {
            (bucket(self.decode_rows()), self.table_stride(), 1)
        } else {
            let stride = self.drafts.map_or(self.blocks_per_sequence(), |_| self.table_stride());
            (self.decode_rows(), stride, 0)
        };
        let (rows, scored) = (self.rows.max(decoded), if self.listed > 0 { SCORED_ROWS } else { 0 });
        PassLimits {
            rows,
            head_rows: (decoded + scored).min(rows),
            listed: self.listed,
            taught: 0,
            own: self.own,
            segments: decoded,
            table_entries: decoded * stride,
            copies: self.sequences,
            caches: self
                .caches
                .with(|cache| self.caches.units(cache.index()) + if cache.has_blocks() { spare } else { 0 }),
        }
    }
}

/// Returns a bound on keys for recorded passes: chunks of attention in powers of two, so that there are few.
pub(crate) fn keys_bucket(keys: usize) -> usize {
    keys.div_ceil(ATTENTION_CHUNK).next_power_of_two() * ATTENTION_CHUNK
}

/// Returns the most groups that `sequences` may be of, if all but the first and the last are whole.
fn groups(sequences: usize, group: usize) -> usize {
    let groups = sequences.div_ceil(group.max(1)) + usize::from(group > 1 && sequences > 1);
    groups.min(sequences)
}

/// Returns the rows of a decode pass that runs ahead: few enough sizes to record a graph for each, and at least
/// sixteen, from where on a product's bits do not depend on its rows.
pub(crate) fn bucket(sequences: usize) -> usize {
    match sequences {
        0..=128 => sequences.next_multiple_of(16).max(16),
        _ => sequences.next_multiple_of(64),
    }
}

/// Returns the engine's regions: activations of a pass and the caches of all layers.
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
