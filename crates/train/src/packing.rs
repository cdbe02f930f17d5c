//! Packing: sequences side by side in micro-batches under hard limits, without padding, a group's prompt once.
//!
//! A prompt is a root segment; each response is a child that attends to the prompt's blocks and its own. The last
//! token of a response is predicted but never read, so it has no row. The row before a token predicts it: the
//! prompt's last row predicts the first token of every response of its group.

use plimsoll_base::{Error, Result};
use plimsoll_device::{KV_BLOCK, NO_PARENT};
use plimsoll_model::{PassIndex, PassLimits};

/// A prompt with one response. Neighbours of the same `group` share the prompt's rows.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// Which prompt.
    pub group: usize,
    /// Its tokens, at least one.
    pub prompt: &'a [u32],
    /// The response's tokens, at least one.
    pub response: &'a [u32],
}

/// Which token a head row predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadRow {
    /// Index into the sequences.
    pub sequence: u32,
    /// Index into its response.
    pub token: u32,
}

/// What limits a micro-batch, in the words of the run file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackLimits {
    /// Rows of a pass, and rows through its head.
    pub micro_batch_tokens: usize,
    /// Longest prompt.
    pub prompt_tokens: usize,
    /// Segments of a pass: prompts and responses together.
    pub segments: usize,
}

impl PackLimits {
    /// The limits of a pass.
    ///
    /// A prompt stands in every pass, so at most `segments - 1` responses do. A response copies up to 15 slots of its
    /// prompt; the blocks hold every row and all of these copies, which is enough for one sequence of any shape. Where
    /// more is lost at the ends of blocks, a micro-batch ends before its rows do.
    pub fn pass(&self) -> PassLimits {
        let responses = self.segments.saturating_sub(1).max(1);
        let copied = (KV_BLOCK - 1) * (responses - 1);
        let blocks = (self.micro_batch_tokens + copied).div_ceil(KV_BLOCK) + 1;
        PassLimits {
            rows: self.micro_batch_tokens,
            head_rows: self.micro_batch_tokens,
            segments: self.segments,
            table_entries: blocks + responses * (self.prompt_tokens / KV_BLOCK),
            blocks,
            copies: responses,
        }
    }

    /// Segments that a step of `groups` prompts with `sequences` responses can fill.
    pub fn segments_of(micro_batch_tokens: usize, groups: usize, sequences: usize) -> usize {
        (groups + sequences).min(micro_batch_tokens).max(2)
    }
}

/// One forward and backward pass.
#[derive(Debug)]
pub struct MicroBatch<'a> {
    /// Index arrays for the device.
    pub index: &'a PassIndex,
    /// What each head row predicts, sequences ascending, tokens ascending.
    pub head: &'a [HeadRow],
    /// The sequences in it.
    pub sequences: std::ops::Range<usize>,
}

/// Makes micro-batches; its vectors are made once.
#[derive(Debug)]
pub struct Packer {
    limits: PassLimits,
    index: PassIndex,
    head: Vec<HeadRow>,
    next_block: usize,
}

/// What adding a sequence takes.
struct Need {
    prompt_rows: usize,
    rows: usize,
    head_rows: usize,
    segments: usize,
    table_entries: usize,
    blocks: usize,
}

impl Packer {
    /// A packer for passes within `limits`.
    pub fn new(limits: PassLimits) -> Packer {
        let index = PassIndex::with_capacity(&limits);
        Packer { limits, index, head: Vec::with_capacity(limits.head_rows), next_block: 0 }
    }

    /// Heap bytes of a packer.
    pub fn host_bytes(limits: &PassLimits) -> u64 {
        PassIndex::bytes(limits) + 8 * limits.head_rows as u64
    }

    /// The micro-batch that begins with sequence `first`: as many as fit, in order.
    ///
    /// Errors: `sequence-too-long` when not even the first fits.
    pub fn pack(&mut self, sequences: &[Sequence<'_>], first: usize) -> Result<MicroBatch<'_>> {
        self.index.clear();
        self.head.clear();
        self.next_block = 0;
        // (group, first row, first block) of the prompt that stands in this micro-batch.
        let mut root: Option<(usize, usize, usize)> = None;
        let mut end = first;
        while let Some(sequence) = sequences.get(end) {
            let open = root.filter(|&(group, ..)| group == sequence.group);
            let need = need(sequence, open.is_some());
            if !self.fits(&need) {
                break;
            }
            let (_, row, block) = *root.insert(open.unwrap_or_else(|| self.push_prompt(sequence)));
            self.push_response(sequence, end, row, block);
            end += 1;
        }
        if end == first {
            return Err(self.too_long(&sequences[first]));
        }
        Ok(MicroBatch { index: &self.index, head: &self.head, sequences: first..end })
    }

    fn fits(&self, need: &Need) -> bool {
        let (at, max) = (&self.index, &self.limits);
        at.ids.len() + need.prompt_rows + need.rows <= max.rows
            && self.head.len() + need.head_rows <= max.head_rows
            && at.num_segments() + need.segments <= max.segments
            && at.tables.len() + need.table_entries <= max.table_entries
            && self.next_block + need.blocks <= max.blocks
    }

    fn too_long(&self, sequence: &Sequence<'_>) -> Error {
        let tokens = sequence.prompt.len() + sequence.response.len();
        let limit = self.limits.rows;
        Error::new("sequence-too-long", format!("a sequence of {tokens} tokens exceeds train.micro_batch_tokens = {limit}"))
            .hint(format!("set train.micro_batch_tokens to at least {tokens}, or lower data.prompt_tokens_max or rollout.max_new_tokens"))
    }

    fn take_blocks(&mut self, blocks: usize) -> usize {
        self.next_block += blocks;
        self.next_block - blocks
    }

    /// Adds the root segment; returns (group, its first row, its first block).
    fn push_prompt(&mut self, sequence: &Sequence<'_>) -> (usize, usize, usize) {
        let blocks = sequence.prompt.len().div_ceil(KV_BLOCK);
        let (row, block) = (self.index.ids.len(), self.take_blocks(blocks));
        self.push_segment(sequence.prompt, 0, block, NO_PARENT);
        self.index.tables.extend(block as u32..(block + blocks) as u32);
        (sequence.group, row, block)
    }

    fn push_response(&mut self, sequence: &Sequence<'_>, which: usize, root_row: usize, root_block: usize) {
        let prompt = sequence.prompt.len();
        let rows = sequence.response.len() - 1;
        let first_row = self.index.ids.len();
        if rows > 0 {
            let (shared, tail) = (prompt / KV_BLOCK, prompt % KV_BLOCK);
            let blocks = (tail + rows).div_ceil(KV_BLOCK);
            let block = self.take_blocks(blocks);
            if tail > 0 {
                let copy = [(root_block + shared) as u32, block as u32, tail as u32];
                self.index.copies.extend_from_slice(&copy);
            }
            self.push_segment(&sequence.response[..rows], prompt, block, root_row as u32);
            self.index.tables.extend(root_block as u32..(root_block + shared) as u32);
            self.index.tables.extend(block as u32..(block + blocks) as u32);
        }
        for (token, &target) in sequence.response.iter().enumerate() {
            let row = if token == 0 { root_row + prompt - 1 } else { first_row + token - 1 };
            self.index.head_rows.push(row as u32);
            self.index.targets.push(target);
            self.head.push(HeadRow { sequence: which as u32, token: token as u32 });
        }
    }

    /// Adds rows and the segment's record; the caller adds the table, of which `block` is the first own block.
    fn push_segment(&mut self, tokens: &[u32], first_position: usize, block: usize, parent_row: u32) {
        let index = &mut self.index;
        let record = [
            index.ids.len() as u32,
            tokens.len() as u32,
            first_position as u32,
            index.tables.len() as u32,
            parent_row,
        ];
        index.segments.extend_from_slice(&record);
        let first_slot = block * KV_BLOCK + first_position % KV_BLOCK;
        for (i, &token) in tokens.iter().enumerate() {
            index.ids.push(token);
            index.positions.push((first_position + i) as u32);
            index.slots.push((first_slot + i) as u32);
        }
    }
}

fn need(sequence: &Sequence<'_>, prompt_is_there: bool) -> Need {
    let prompt = sequence.prompt.len();
    let rows = sequence.response.len() - 1;
    let own_blocks = if rows > 0 { (prompt % KV_BLOCK + rows).div_ceil(KV_BLOCK) } else { 0 };
    let prompt_blocks = if prompt_is_there { 0 } else { prompt.div_ceil(KV_BLOCK) };
    Need {
        prompt_rows: if prompt_is_there { 0 } else { prompt },
        rows,
        head_rows: rows + 1,
        segments: usize::from(!prompt_is_there) + usize::from(rows > 0),
        table_entries: prompt_blocks + if rows > 0 { prompt / KV_BLOCK + own_blocks } else { 0 },
        blocks: prompt_blocks + own_blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(tokens: usize) -> PassLimits {
        PackLimits { micro_batch_tokens: tokens, prompt_tokens: 40, segments: 64 }.pass()
    }

    fn sequences<'a>(prompts: &'a [Vec<u32>], responses: &'a [Vec<u32>], group: usize) -> Vec<Sequence<'a>> {
        responses
            .iter()
            .enumerate()
            .map(|(i, response)| Sequence { group: i / group, prompt: &prompts[i / group], response })
            .collect()
    }

    #[test]
    fn a_group_has_its_prompt_once_and_every_token_one_head_row() {
        let prompts = vec![(0..20).collect::<Vec<u32>>(), (100..117).collect()];
        let responses: Vec<Vec<u32>> = (0..6).map(|i| (200..201 + 3 * i).collect()).collect();
        let all = sequences(&prompts, &responses, 3);
        let mut packer = Packer::new(limits(128));
        let batch = packer.pack(&all, 0).unwrap();
        assert_eq!(batch.sequences, 0..6);
        let rows: usize = 20 + 17 + responses.iter().map(|r| r.len() - 1).sum::<usize>();
        assert_eq!(batch.index.ids.len(), rows);
        assert_eq!(batch.head.len(), responses.iter().map(Vec::len).sum::<usize>());
        // The prompt's last row predicts the first token of each response.
        for (row, head) in batch.index.head_rows.iter().zip(batch.head) {
            let predicts_first = *row == 19 || batch.index.ids[*row as usize] == 116;
            assert_eq!(head.token == 0, predicts_first);
        }
    }

    #[test]
    fn slots_of_a_micro_batch_are_distinct_and_lie_in_their_tables() {
        let prompts = vec![(0..20).collect::<Vec<u32>>()];
        let responses: Vec<Vec<u32>> = (0..5).map(|i| (0..2 + 9 * i).collect()).collect();
        let all = sequences(&prompts, &responses, 5);
        let mut packer = Packer::new(limits(256));
        let batch = packer.pack(&all, 0).unwrap();
        let mut slots = batch.index.slots.clone();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), batch.index.ids.len());
        for s in batch.index.segments.chunks(5) {
            for i in 0..s[1] {
                let position = (s[2] + i) as usize;
                let block = batch.index.tables[s[3] as usize + position / KV_BLOCK] as usize;
                let slot = batch.index.slots[(s[0] + i) as usize] as usize;
                assert_eq!(slot, block * KV_BLOCK + position % KV_BLOCK);
            }
        }
    }

    #[test]
    fn cutting_into_micro_batches_loses_no_sequence() {
        let prompts: Vec<Vec<u32>> = (0..4).map(|i| (0..10 + i).collect()).collect();
        let responses: Vec<Vec<u32>> = (0..16).map(|i| (0..1 + i % 7).collect()).collect();
        let all = sequences(&prompts, &responses, 4);
        for tokens in [24, 32, 64, 200] {
            let mut packer = Packer::new(limits(tokens));
            let (mut first, mut head) = (0, 0);
            while first < all.len() {
                let batch = packer.pack(&all, first).unwrap();
                assert!(batch.index.ids.len() <= tokens);
                head += batch.head.len();
                first = batch.sequences.end;
            }
            assert_eq!(head, responses.iter().map(Vec::len).sum::<usize>());
        }
    }

    #[test]
    fn a_sequence_beyond_the_limit_is_named() {
        let prompts = vec![vec![0; 40]];
        let responses = vec![vec![0; 40]];
        let all = sequences(&prompts, &responses, 1);
        assert_eq!(Packer::new(limits(64)).pack(&all, 0).unwrap_err().slug, "sequence-too-long");
    }
}
