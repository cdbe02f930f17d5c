//! How much of each cache a sequence needs from pass to pass: the unit, the units of a prompt and of a response, and
//! what sharing a prompt means. A scheduler hands out units and asks here; it does not know what is in one.

use std::ops::Range;

/// Keys per block: one 512-bit vector of f32.
pub const KV_BLOCK: usize = 16;
/// Kinds of caches.
pub const CACHES: usize = 3;
/// Minimum rows of one sequence in a pass, before a window bounds them; enough to keep a device busy.
const RING_STEP_LEAST: usize = 128;

/// How a cache holds the sequence data of some layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Blocks of all keys of a sequence. Responses share the full blocks of their prompt.
    Paged,
    /// Blocks of the keys that a row still sees, reused in a ring. Responses share the prompt blocks that they see; a
    /// prompt frees the blocks that none of them sees any more.
    Ring {
        /// W: keys that a row sees, including its own.
        keys: usize,
    },
    /// A state, which each row changes. A response starts from a copy of its prompt's state; one that does not share
    /// its prompt continues in the prompt's own.
    State,
}

/// The properties of a sequence that decide its cache use.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// True if no other response shares the prompt.
    pub is_alone: bool,
    /// Maximum rows of one sequence in a pass.
    pub step: usize,
}

impl Cache {
    /// The index of `Paged` among the kinds.
    pub const PAGED: usize = 0;
    /// The index of `Ring` among the kinds.
    pub const RING: usize = 1;
    /// The index of `State` among the kinds.
    pub const STATE: usize = 2;

    /// Returns the index of this kind.
    pub const fn index(self) -> usize {
        match self {
            Cache::Paged => Cache::PAGED,
            Cache::Ring { .. } => Cache::RING,
            Cache::State => Cache::STATE,
        }
    }

    /// Returns whether a unit is a block of keys, not the state of a whole sequence.
    pub fn has_blocks(self) -> bool {
        self != Cache::State
    }

    /// Returns whether a prompt frees units before its responses end.
    pub fn lets_go(self) -> bool {
        self != Cache::Paged
    }

    /// Returns the maximum rows of one sequence in a pass of `rows`. A ring holds its window and the rows of a pass, so
    /// these are bounded by a quarter of the window; rows of other sequences fill the pass.
    pub fn step(self, rows: usize) -> usize {
        match self {
            Cache::Ring { keys } => (keys / 4).max(RING_STEP_LEAST).min(rows),
            Cache::Paged | Cache::State => usize::MAX,
        }
    }

    /// Returns the most units of a sequence at once: blocks of a window and a pass's rows, at any alignment.
    fn most(self, step: usize) -> usize {
        match self {
            Cache::Paged => usize::MAX,
            Cache::Ring { keys } => (keys + step).div_ceil(KV_BLOCK) + 1,
            Cache::State => 1,
        }
    }

    /// Returns the most units that a response of up to `new_tokens` tokens owns, whatever its prompt.
    pub fn owned_most(self, new_tokens: usize, step: usize) -> usize {
        if self == Cache::Paged { own_blocks(KV_BLOCK - 1, new_tokens - 1) } else { self.most(step) }
    }

    /// Returns the units that a prompt holds.
    pub fn of_prompt(self, of: Extent) -> usize {
        of.prompt_tokens.div_ceil(KV_BLOCK).min(self.most(of.step))
    }

    /// Returns the most units that a response of `new_tokens` owns; its last token has no key. In a ring, a response
    /// that is alone takes over freed prompt blocks: both hold one window together, plus the prompt's last block.
    pub fn of_response(self, of: Extent, new_tokens: usize) -> usize {
        let (blocks, most) = (own_blocks(of.prompt_tokens, new_tokens - 1), self.most(of.step));
        match self {
            Cache::Ring { .. } if of.is_alone => blocks.min(most).min(most + 1 - self.of_prompt(of)),
            Cache::Paged | Cache::Ring { .. } => blocks.min(most),
            Cache::State => usize::from(!of.is_alone),
        }
    }

    /// Returns the units that a response owns with its first `tokens` tokens, `computed` of which went through passes.
    /// In a ring only those that its next pass writes count: a longer answer still sees the prompt's blocks until then.
    pub fn of_tokens(self, of: Extent, tokens: usize, computed: usize) -> usize {
        match self {
            _ if tokens == 0 => 0,
            Cache::Paged => own_blocks(of.prompt_tokens, tokens),
            Cache::Ring { .. } => {
                let next = tokens.min(computed.saturating_add(of.step));
                own_blocks(of.prompt_tokens, next).min(self.most(of.step))
            }
            Cache::State => self.of_response(of, tokens),
        }
    }

    /// Returns the units that the next token of a response that owns `held` may take.
    pub fn of_next(self, of: Extent, held: usize) -> usize {
        if self.has_blocks() { 1 } else { self.of_response(of, 1).saturating_sub(held) }
    }

    /// Returns the fewest units with which a sequence of `context` tokens, `new_tokens` of them generated, always makes
    /// progress; a ring takes more if others wait for its prompt.
    pub fn least(self, of: Extent, context: usize, new_tokens: usize) -> usize {
        match self {
            Cache::Paged => context.div_ceil(KV_BLOCK) + 1,
            Cache::Ring { .. } => self.of_prompt(of) + self.of_response(of, new_tokens + KV_BLOCK - 1) + 1,
            Cache::State => 2,
        }
    }

    /// Returns the units of a cache, if `enough` let no sequence wait and the run file gives a number of blocks.
    pub fn of_given(self, enough: usize, given: Option<usize>) -> usize {
        match self {
            Cache::Paged => given.unwrap_or(enough),
            Cache::Ring { .. } => enough.min(given.unwrap_or(enough)),
            Cache::State => enough,
        }
    }

    /// Returns the index of the first prompt unit that a response with `computed` tokens still needs.
    pub fn needed_from(self, of: Extent, computed: usize, is_running: bool) -> usize {
        match self {
            Cache::Ring { keys } => seen_from(of, keys, computed) / KV_BLOCK,
            Cache::State if !of.is_alone && (!is_running || computed > 0) => usize::MAX,
            Cache::Paged | Cache::State => 0,
        }
    }

    /// Returns whether a response lacks units of its computed prompt, which holds those in `held`: the others no longer
    /// see them, and this one lost its keys. A new response has no token and needs the prompt's last row again.
    pub fn lacks(self, of: Extent, held: Range<usize>, computed: usize, is_new: bool) -> bool {
        match self {
            Cache::Paged => false,
            Cache::Ring { keys } => {
                let (seen, end) = (seen_from(of, keys, computed), of.prompt_tokens.div_ceil(KV_BLOCK));
                seen < of.prompt_tokens && (seen / KV_BLOCK < held.start || held.end < end)
            }
            Cache::State => computed == 0 && (held.is_empty() || is_new),
        }
    }
}

/// Returns the first key that a response's next row sees. If it has no row yet, that row is the prompt's last.
fn seen_from(of: Extent, keys: usize, computed: usize) -> usize {
    (of.prompt_tokens + computed + usize::from(computed > 0)).saturating_sub(keys)
}

/// Returns the blocks that a response's first `tokens` tokens need in addition to the prompt's full blocks.
fn own_blocks(prompt_tokens: usize, tokens: usize) -> usize {
    (prompt_tokens % KV_BLOCK + tokens).div_ceil(KV_BLOCK)
}

/// One cache of a model: its kind and its size per token or state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// The kind of cache.
    pub cache: Cache,
    /// Elements per token, or per state, over all of its layers; 0 if no layer uses it.
    pub elements: u64,
}

impl CacheSpec {
    /// Returns the elements that a row with `context` keys reads from blocks.
    pub fn read_elements(&self, context: f64) -> f64 {
        let keys = match self.cache {
            Cache::Paged => context,
            Cache::Ring { keys } => context.min(keys as f64),
            Cache::State => 0.0,
        };
        self.elements as f64 * keys
    }
}

/// The caches of an engine or of a pass, each with its units in a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caches([Option<(Cache, usize)>; CACHES]);

impl Caches {
    /// Returns a paged cache alone.
    pub const fn paged(blocks: usize) -> Caches {
        Caches([Some((Cache::Paged, blocks)), None, None])
    }

    /// Returns these caches and another one.
    pub const fn and(mut self, cache: Cache, units: usize) -> Caches {
        if let (Some((Cache::Ring { keys: one }, _)), Cache::Ring { keys }) = (self.0[cache.index()], cache) {
            assert!(one == keys, "one width of windows");
        }
        self.0[cache.index()] = Some((cache, units));
        self
    }

    /// Iterates over the caches.
    pub fn each(self) -> impl Iterator<Item = Cache> {
        self.0.into_iter().flatten().map(|(cache, _)| cache)
    }

    /// Returns the units per layer of a kind; 0 if there is no such cache.
    pub fn units(self, index: usize) -> usize {
        self.0[index].map_or(0, |(_, units)| units)
    }

    /// Returns the same caches with other units.
    pub fn with(self, units: impl Fn(Cache) -> usize) -> Caches {
        self.each().map(|cache| (cache, units(cache))).collect()
    }
}

impl FromIterator<(Cache, usize)> for Caches {
    fn from_iter<I: IntoIterator<Item = (Cache, usize)>>(of: I) -> Caches {
        of.into_iter().fold(Caches::default(), |all, (cache, units)| all.and(cache, units))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSpec;

    fn of(prompt_tokens: usize, is_alone: bool) -> Extent {
        Extent { prompt_tokens, is_alone, step: 128 }
    }

    #[test]
    fn a_model_has_a_cache_for_each_kind_of_what_its_layers_keep() {
        let caches = |preset, keys| ModelSpec::preset(preset).unwrap().caches(keys);
        let of = |cache, elements| CacheSpec { cache, elements };
        // 26 layers of one head of 256, of which all but every sixth have windows of 512 keys.
        assert_eq!(caches("gemma-3-1b", 512), [of(Cache::Paged, 26 * 512)]);
        let ring = of(Cache::Ring { keys: 512 }, 22 * 512);
        assert_eq!(caches("gemma-3-1b", 513), [of(Cache::Paged, 4 * 512), ring]);
        // 24 layers, of which every fourth has keys of two heads of 256.
        let state = of(Cache::State, 18 * 16 * 128 * 128);
        assert_eq!(caches("qwen3.5-0.8b", 9), [of(Cache::Paged, 6 * 1024), state]);
    }

    #[test]
    fn units_of_each_kind_are_shared_as_it_says() {
        let ring = Cache::Ring { keys: 64 };
        // (64 + 128) / 16 + 1 blocks hold a window and a pass.
        let most = 13;
        for (cache, prompt, response, alone) in
            [(Cache::Paged, 63, 20, 20), (ring, most, most, 1), (Cache::State, 1, 1, 0)]
        {
            let units = |is_alone| cache.of_response(of(1000, is_alone), 300);
            assert_eq!(
                (cache.of_prompt(of(1000, false)), units(false), units(true)),
                (prompt, response, alone)
            );
            assert_eq!(cache.of_tokens(of(1000, false), 0, 0), 0, "{cache:?}");
        }
        // Sixteen rows after the prompt, a window of 64 keys begins in its block 59.
        assert_eq!(ring.needed_from(of(1000, false), 16, true), 953 / KV_BLOCK);
        assert!(
            !ring.lacks(of(1000, false), 59..63, 16, false) && ring.lacks(of(1000, false), 60..63, 16, false)
        );
        assert_eq!(
            [true, false].map(|runs| Cache::State.needed_from(of(9, false), 0, runs)),
            [0, usize::MAX]
        );
        assert!(
            Cache::State.lacks(of(9, false), 0..1, 0, true)
                && !Cache::State.lacks(of(9, false), 0..1, 4, false)
        );
    }
}
