//! Packing: sequences next to each other in micro-batches under hard limits, without padding, a group's prompt once.
//!
//! A prompt is a root segment; each response is a child that attends to the prompt's blocks and its own. The last
//! token of a response is predicted but never read, so it has no row. The row before a token predicts it: the
//! prompt's last row predicts the first token of every response of its group.
//!
//! A model that scores whole sequences reads every token: there the last token has a row, the only one with a head.

use plimsoll_arch::{Cache, Caches};
use plimsoll_base::{Error, Result};
use plimsoll_device::{KV_BLOCK, NO_PARENT, NO_STATE, edges};
use plimsoll_model::{OwnLogits, PassIndex, PassLimits, places_for};

/// A prompt with one response. Neighbours of the same `group` share the prompt's rows.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    pub group: usize,
    /// Tokens of the prompt, at least one.
    pub prompt: &'a [u32],
    /// Tokens of the response, at least one.
    pub response: &'a [u32],
}

/// The token that a head row predicts; with `Heads::End`, the last one, in its own row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadRow {
    /// Index into the sequences.
    pub sequence: u32,
    /// Index into its response; with `Heads::Targets`, into its targets.
    pub token: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heads {
    /// One for each response token: the row that predicts it.
    #[default]
    Tokens,
    /// One for each sequence: the row of its last token.
    End,
    /// As many for each row, also of the prompt and of the response's last token: `pack_targets` gets what they
    /// predict.
    Targets,
}

/// Options for packing sequences into micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    pub heads: Heads,
    /// True if the sequences of a group are in one micro-batch, because their loss needs all of them.
    pub whole_groups: bool,
}

/// The limits of a micro-batch, in the words of the run file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackLimits {
    /// Rows of a pass, and rows through its head.
    pub micro_batch_tokens: usize,
    pub prompt_tokens: usize,
    /// Segments of a pass: prompts and responses together.
    pub segments: usize,
    /// The caches that the models keep of sequences; the units are not read.
    pub caches: Caches,
}

impl PackLimits {
    /// Returns the limits of a pass.
    ///
    /// Every pass holds a prompt, so at most `segments - 1` responses do. A response copies up to 15 slots of its
    /// prompt; the blocks hold every row and all of these copies, which is enough for one sequence of any shape. Where
    /// more is lost at the ends of blocks, a micro-batch ends before its rows do.
    pub fn pass(&self) -> PassLimits {
        let responses = self.segments.saturating_sub(1).max(1);
        let copied = (KV_BLOCK - 1) * (responses - 1);
        let blocks = (self.micro_batch_tokens + copied).div_ceil(KV_BLOCK) + 1;
        PassLimits {
            rows: self.micro_batch_tokens,
            head_rows: self.micro_batch_tokens,
            listed: 0,
            taught: 0,
            own: OwnLogits::NONE,
            segments: self.segments,
            table_entries: blocks + responses * (self.prompt_tokens / KV_BLOCK),
            copies: responses,
            caches: self.caches.with(|cache| {
                if cache.has_blocks() { blocks } else { places_for(self.micro_batch_tokens, self.segments) }
            }),
        }
    }

    /// Returns the limits of a pass with these heads: `End` needs no more head rows than there are responses.
    pub fn pass_of(&self, heads: Heads) -> PassLimits {
        let pass = self.pass();
        match heads {
            Heads::Tokens | Heads::Targets => pass,
            Heads::End => PassLimits { head_rows: pass.copies.min(pass.head_rows), ..pass },
        }
    }

    /// Returns the segments that a step of `groups` prompts with `sequences` responses can fill.
    pub fn segments_of(micro_batch_tokens: usize, groups: usize, sequences: usize) -> usize {
        (groups + sequences).min(micro_batch_tokens).max(2)
    }
}

#[derive(Debug)]
pub struct MicroBatch<'a> {
    /// Index arrays for the device. Numbers of vectors among its ids become tokens as it is uploaded.
    pub index: &'a mut PassIndex,
    /// The token that each head row predicts, sequences ascending, tokens ascending.
    pub head: &'a [HeadRow],
    pub sequences: std::ops::Range<usize>,
}

/// The prompt of a group in a micro-batch.
#[derive(Clone, Copy, Debug)]
struct Root {
    group: usize,
    /// The sequence that came with it.
    first: usize,
    row: usize,
    block: usize,
    /// Place of the state after the last row.
    state: u32,
}

/// Makes micro-batches; its vectors are allocated once.
#[derive(Debug)]
pub struct Packer {
    limits: PassLimits,
    index: PassIndex,
    head: Vec<HeadRow>,
    next_block: usize,
    next_place: usize,
    pub(crate) parts: Parts,
}

/// The ends and costs of a cut's micro-batches; its vectors are allocated once.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub ends: Vec<u32>,
    pub costs: Vec<u64>,
}

impl Parts {
    fn with_capacity(sequences: usize) -> Parts {
        Parts { ends: Vec::with_capacity(sequences), costs: Vec::with_capacity(sequences) }
    }

    /// Returns the heap bytes for an update of up to this many sequences.
    fn bytes(sequences: usize) -> u64 {
        sequences as u64 * 12
    }
}

/// Resources that sequences take in a pass.
#[derive(Default)]
pub(crate) struct Need {
    pub prompt_rows: usize,
    pub rows: usize,
    head_rows: usize,
    segments: usize,
    table_entries: usize,
    blocks: usize,
    places: usize,
    /// Keys that the rows attend to.
    keys: u64,
}

impl Need {
    pub fn plus(&self, more: &Need) -> Need {
        Need {
            prompt_rows: self.prompt_rows + more.prompt_rows,
            rows: self.rows + more.rows,
            head_rows: self.head_rows + more.head_rows,
            segments: self.segments + more.segments,
            table_entries: self.table_entries + more.table_entries,
            blocks: self.blocks + more.blocks,
            places: self.places + more.places,
            keys: self.keys + more.keys,
        }
    }

    /// Returns the work in arbitrary units: a layer multiplies a row by some 12 h^2 weights and reads a key with 2 h
    /// products.
    pub fn cost(&self, hidden: u64) -> u64 {
        (self.prompt_rows + self.rows) as u64 * 6 * hidden + self.keys
    }
}

impl Packer {
    /// Returns a packer for passes within `limits` and updates of up to `sequences`.
    pub fn new(limits: PassLimits, sequences: usize) -> Packer {
        let index = PassIndex::with_capacity(&limits);
        let parts = Parts::with_capacity(sequences);
        Packer {
            limits,
            index,
            head: Vec::with_capacity(limits.head_rows),
            next_block: 0,
            next_place: 0,
            parts,
        }
    }

    /// Returns the heap bytes of a packer.
    pub fn host_bytes(limits: &PassLimits, sequences: usize) -> u64 {
        PassIndex::bytes(limits) + 8 * limits.head_rows as u64 + Parts::bytes(sequences)
    }

    /// Returns how many micro-batches the last cut made.
    pub fn num_micro_batches(&self) -> usize {
        self.parts.ends.len()
    }

    /// Returns the sequences of micro-batch `index` of the last cut, of sequences from `first` on.
    pub fn sequences(&self, first: usize, index: usize) -> std::ops::Range<usize> {
        let start = if index == 0 { first } else { self.parts.ends[index - 1] as usize };
        start..self.parts.ends[index] as usize
    }

    /// Returns the rows of the last cut, of sequences from `first` on, as sequences have them: those of a prompt once
    /// for each response with rows that goes on from it in its micro-batch, and once if there is none.
    pub fn rows_of_sequences(&self, heads: Heads, sequences: &[Sequence<'_>], first: usize) -> u64 {
        let of_group = |group: &[Sequence<'_>]| {
            let rows = group.iter().map(|sequence| own_rows(heads, sequence));
            let children = rows.clone().filter(|rows| *rows > 0).count();
            group[0].prompt.len() * children.max(1) + rows.sum::<usize>()
        };
        let parts = (0..self.num_micro_batches()).map(|index| &sequences[self.sequences(first, index)]);
        parts
            .flat_map(|part| part.chunk_by(|a, b| a.group == b.group))
            .map(|group| of_group(group) as u64)
            .sum()
    }

    /// Packs micro-batch `index` of the last cut, which begins with sequence `first`.
    ///
    /// Errors: none that `cut` has not found.
    pub fn micro_batch(
        &mut self,
        how: Packing,
        sequences: &[Sequence<'_>],
        first: usize,
        index: usize,
    ) -> Result<MicroBatch<'_>> {
        let end = self.parts.ends[index] as usize;
        let batch = self.pack_as(how, &sequences[..end], first)?;
        assert_eq!(batch.sequences.end, end, "what was cut fits");
        Ok(batch)
    }

    /// Packs the micro-batch that begins with sequence `first`: as many as fit, in order.
    ///
    /// Errors: `sequence-too-long` when not even the first fits.
    pub fn pack(&mut self, sequences: &[Sequence<'_>], first: usize) -> Result<MicroBatch<'_>> {
        self.pack_as(Packing::default(), sequences, first)
    }

    /// Packs as `how` says. With `whole_groups`, `first` begins a group.
    ///
    /// Errors: `sequence-too-long` when not even the first sequence, or group, fits.
    pub fn pack_as(
        &mut self,
        how: Packing,
        sequences: &[Sequence<'_>],
        first: usize,
    ) -> Result<MicroBatch<'_>> {
        self.pack_with(how, sequences, &[], first)
    }

    /// Packs sequences whose rows all predict. `targets`: by sequence, what its rows predict, row by row, as many for
    /// each row of a group. A target of a prompt's row that its group's first sequence in the micro-batch has, too, has
    /// no head row of its own.
    ///
    /// Errors: `sequence-too-long` when not even the first sequence fits.
    pub fn pack_targets(
        &mut self,
        sequences: &[Sequence<'_>],
        targets: &[&[u32]],
        first: usize,
    ) -> Result<MicroBatch<'_>> {
        self.pack_with(Packing { heads: Heads::Targets, whole_groups: false }, sequences, targets, first)
    }

    fn pack_with(
        &mut self,
        how: Packing,
        sequences: &[Sequence<'_>],
        targets: &[&[u32]],
        first: usize,
    ) -> Result<MicroBatch<'_>> {
        self.index.clear();
        self.head.clear();
        (self.next_block, self.next_place) = (0, 0);
        let mut root: Option<Root> = None;
        let mut taken = Need::default();
        let mut end = first;
        while end < sequences.len() {
            let unit = unit(how, &sequences[end..]);
            let open = root.filter(|root| root.group == unit[0].group);
            let mut more = need(how.heads, unit, open.is_some());
            let shared = open.and_then(|root| targets.get(root.first).copied());
            if how.heads == Heads::Targets {
                more.head_rows = own_targets(unit[0].prompt.len(), shared, targets[end]).count();
            }
            let with = taken.plus(&more);
            if !self.holds(&with) {
                break;
            }
            taken = with;
            let open = *root.insert(open.unwrap_or_else(|| self.push_prompt(&unit[0], end)));
            for sequence in unit {
                let rows = self.push_response(how.heads, sequence, open);
                match how.heads {
                    Heads::Targets => self.push_targets(sequence, (targets[end], shared), end, rows),
                    heads => self.push_heads(heads, sequence, end, rows),
                }
                end += 1;
            }
        }
        if end == first {
            return Err(self.too_long(unit(how, &sequences[first..])));
        }
        Ok(MicroBatch { index: &mut self.index, head: &self.head, sequences: first..end })
    }

    /// True if one pass holds it.
    pub(crate) fn holds(&self, need: &Need) -> bool {
        let max = &self.limits;
        need.prompt_rows + need.rows <= max.rows
            && need.head_rows <= max.head_rows
            && need.segments <= max.segments
            && need.table_entries <= max.table_entries
            && need.blocks <= max.caches.units(Cache::PAGED)
            && (max.caches.units(Cache::STATE) == 0 || need.places <= max.caches.units(Cache::STATE))
    }

    pub(crate) fn too_long(&self, unit: &[Sequence<'_>]) -> Error {
        let tokens = unit[0].prompt.len() + unit.iter().map(|s| s.response.len()).sum::<usize>();
        let limit = self.limits.rows;
        let what = if unit.len() == 1 { "a sequence" } else { "a pair" };
        Error::new("sequence-too-long", format!("{what} of {tokens} tokens exceeds train.micro_batch_tokens = {limit}"))
            .hint(format!("set train.micro_batch_tokens to at least {tokens}, or lower data.prompt_tokens_max or rollout.max_new_tokens"))
    }

    fn take_blocks(&mut self, blocks: usize) -> usize {
        self.next_block += blocks;
        self.next_block - blocks
    }

    /// Adds the places of a segment that begins with the state at `from`; returns the place of its last state.
    fn push_places(&mut self, from: u32, rows: usize) -> u32 {
        if self.limits.caches.units(Cache::STATE) == 0 {
            return NO_STATE;
        }
        let first = self.next_place;
        self.next_place += edges(rows);
        self.index.caches[Cache::STATE].slots.extend_from_slice(&[from, first as u32]);
        self.next_place as u32 - 1
    }

    /// Adds the root segment.
    fn push_prompt(&mut self, sequence: &Sequence<'_>, first: usize) -> Root {
        let blocks = sequence.prompt.len().div_ceil(KV_BLOCK);
        let (row, block) = (self.index.ids.len(), self.take_blocks(blocks));
        self.push_segment(sequence.prompt, 0, block, NO_PARENT);
        self.index.caches[Cache::PAGED].tables.extend(block as u32..(block + blocks) as u32);
        let state = self.push_places(NO_STATE, sequence.prompt.len());
        Root { group: sequence.group, first, row, block, state }
    }

    /// Adds the rows of a response. Returns the first row of its prompt and its own first row.
    fn push_response(&mut self, heads: Heads, sequence: &Sequence<'_>, root: Root) -> [usize; 2] {
        let Root { row: root_row, block: root_block, .. } = root;
        let prompt = sequence.prompt.len();
        let rows = own_rows(heads, sequence);
        let first_row = self.index.ids.len();
        if rows > 0 {
            let (shared, tail) = (prompt / KV_BLOCK, prompt % KV_BLOCK);
            let blocks = (tail + rows).div_ceil(KV_BLOCK);
            let block = self.take_blocks(blocks);
            if tail > 0 {
                let copy = [(root_block + shared) as u32, block as u32, tail as u32];
                self.index.caches[Cache::PAGED].copies.extend_from_slice(&copy);
            }
            self.push_segment(&sequence.response[..rows], prompt, block, root_row as u32);
            self.index.caches[Cache::PAGED].tables.extend(root_block as u32..(root_block + shared) as u32);
            self.index.caches[Cache::PAGED].tables.extend(block as u32..(block + blocks) as u32);
            self.push_places(root.state, rows);
        }
        [root_row, first_row]
    }

    fn push_heads(
        &mut self,
        heads: Heads,
        sequence: &Sequence<'_>,
        which: usize,
        [root_row, row]: [usize; 2],
    ) {
        if heads == Heads::End {
            let last = own_rows(heads, sequence) - 1;
            return self.push_head(row + last, 0, which, last);
        }
        for (token, &target) in sequence.response.iter().enumerate() {
            let row = if token == 0 { root_row + sequence.prompt.len() - 1 } else { row + token - 1 };
            self.push_head(row, target, which, token);
        }
    }

    fn push_targets(
        &mut self,
        sequence: &Sequence<'_>,
        (targets, shared): (&[u32], Option<&[u32]>),
        which: usize,
        [root_row, row]: [usize; 2],
    ) {
        let prompt = sequence.prompt.len();
        let each = targets.len() / (prompt + sequence.response.len());
        for token in own_targets(prompt, shared, targets) {
            let at = token / each;
            let row = if at < prompt { root_row + at } else { row + at - prompt };
            self.push_head(row, targets[token], which, token);
        }
    }

    fn push_head(&mut self, row: usize, target: u32, sequence: usize, token: usize) {
        self.index.head_rows.push(row as u32);
        self.index.targets.push(target);
        self.head.push(HeadRow { sequence: sequence as u32, token: token as u32 });
    }

    /// Adds rows and a segment's record; the caller adds the table, whose first own block is `block`.
    fn push_segment(&mut self, tokens: &[u32], first_position: usize, block: usize, parent_row: u32) {
        let index = &mut self.index;
        let record = [
            index.ids.len() as u32,
            tokens.len() as u32,
            first_position as u32,
            index.caches[Cache::PAGED].tables.len() as u32,
            parent_row,
        ];
        index.segments.extend_from_slice(&record);
        let first_slot = block * KV_BLOCK + first_position % KV_BLOCK;
        for (i, &token) in tokens.iter().enumerate() {
            index.ids.push(token);
            index.positions.push((first_position + i) as u32);
            index.caches[Cache::PAGED].slots.push((first_slot + i) as u32);
        }
    }
}

/// Returns the sequences that may not be split: the first, or its whole group.
pub(crate) fn unit<'s, 'a>(how: Packing, sequences: &'s [Sequence<'a>]) -> &'s [Sequence<'a>] {
    let group = sequences[0].group;
    let end = if how.whole_groups {
        sequences.iter().position(|s| s.group != group).unwrap_or(sequences.len())
    } else {
        1
    };
    &sequences[..end]
}

/// Returns the rows of a response.
fn own_rows(heads: Heads, sequence: &Sequence<'_>) -> usize {
    match heads {
        Heads::Tokens => sequence.response.len() - 1,
        Heads::End | Heads::Targets => sequence.response.len(),
    }
}

/// Returns the targets of a sequence, `prompt` rows of which are its group's, that have a head row of their own: all
/// but those of the prompt that are `shared`'s, too, the targets of the sequence that came with the prompt.
fn own_targets<'t>(
    prompt: usize,
    shared: Option<&'t [u32]>,
    targets: &'t [u32],
) -> impl Iterator<Item = usize> + use<'t> {
    let shared = shared.unwrap_or_default();
    let is_own = move |token: &usize| *token >= prompt || shared.get(*token) != Some(&targets[*token]);
    (0..targets.len()).filter(is_own)
}

/// Returns what sequences of one group take together; of `Heads::Targets` without head rows.
pub(crate) fn need(heads: Heads, unit: &[Sequence<'_>], has_prompt: bool) -> Need {
    let prompt = unit[0].prompt.len();
    let mut need = Need::default();
    if !has_prompt {
        let blocks = prompt.div_ceil(KV_BLOCK);
        let keys = keys(0, prompt);
        let places = edges(prompt);
        need = Need { prompt_rows: prompt, segments: 1, table_entries: blocks, blocks, places, keys, ..need };
    }
    for sequence in unit {
        let rows = own_rows(heads, sequence);
        need.rows += rows;
        need.head_rows += match heads {
            Heads::Tokens => sequence.response.len(),
            Heads::End => 1,
            Heads::Targets => 0,
        };
        if rows > 0 {
            let blocks = (prompt % KV_BLOCK + rows).div_ceil(KV_BLOCK);
            need.segments += 1;
            need.table_entries += prompt / KV_BLOCK + blocks;
            need.blocks += blocks;
            need.places += edges(rows);
            need.keys += keys(prompt, rows);
        }
    }
    need
}

/// Returns the keys that rows at positions from `first` on attend to: each its own and those before.
fn keys(first: usize, rows: usize) -> u64 {
    let (first, rows) = (first as u64, rows as u64);
    rows * first + rows * (rows + 1) / 2
}

#[cfg(test)]
#[path = "packing_tests.rs"]
mod tests;
