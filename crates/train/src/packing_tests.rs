//! Tests of packing: what shares rows, and what fits.

use super::*;
use crate::cut::{Cut, Units};

fn limits(tokens: usize) -> PassLimits {
    PackLimits { micro_batch_tokens: tokens, prompt_tokens: 40, segments: 64, caches: Caches::paged(0) }
        .pass()
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
    let mut packer = Packer::new(limits(128), 0);
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
    let mut packer = Packer::new(limits(256), 0);
    let batch = packer.pack(&all, 0).unwrap();
    let mut slots = batch.index.caches[Cache::PAGED].slots.clone();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), batch.index.ids.len());
    for s in batch.index.segments.chunks(5) {
        for i in 0..s[1] {
            let position = (s[2] + i) as usize;
            let block = batch.index.caches[Cache::PAGED].tables[s[3] as usize + position / KV_BLOCK] as usize;
            let slot = batch.index.caches[Cache::PAGED].slots[(s[0] + i) as usize] as usize;
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
        let mut packer = Packer::new(limits(tokens), 0);
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

/// The rows of each segment times its children, as the loss of balance weighs them.
#[test]
fn rows_of_sequences_are_those_of_segments_times_their_children() {
    let (prompts, responses) = (vec![vec![7; 5], vec![8; 3]], [3, 1, 2, 1, 1, 4, 1, 1]);
    let responses: Vec<Vec<u32>> = responses.iter().map(|&n| vec![9; n]).collect();
    let all = sequences(&prompts, &responses, 4);
    for tokens in [12, 16, 64] {
        for heads in [Heads::Tokens, Heads::End] {
            let packing = Packing { heads, whole_groups: false };
            let mut packer = Packer::new(limits(tokens), all.len());
            let units = Units { packing, hidden: 16 };
            packer.cut(Cut::multiple(1), units, &all, 0..all.len()).unwrap();
            let mut want = 0;
            for index in 0..packer.num_micro_batches() {
                let first = packer.sequences(0, index).start;
                let batch = packer.micro_batch(packing, &all, first, index).unwrap();
                let segments = batch.index.segments.as_chunks::<5>().0;
                for [first, rows, ..] in segments {
                    let children = segments.iter().filter(|[.., parent]| parent == first).count();
                    want += u64::from(*rows) * children.max(1) as u64;
                }
            }
            assert_eq!(packer.rows_of_sequences(heads, &all, 0), want, "{tokens} {heads:?}");
        }
    }
}

#[test]
fn a_scored_sequence_has_one_head_on_its_last_token() {
    let prompts = vec![(0..20).collect::<Vec<u32>>(), (100..117).collect()];
    let responses: Vec<Vec<u32>> = (0..4).map(|i| (200..201 + 3 * i).collect()).collect();
    let all = sequences(&prompts, &responses, 2);
    let how = Packing { heads: Heads::End, whole_groups: false };
    let mut packer = Packer::new(limits(128), 0);
    let batch = packer.pack_as(how, &all, 0).unwrap();
    assert_eq!(batch.index.ids.len(), 20 + 17 + responses.iter().map(Vec::len).sum::<usize>());
    let last = |row: &u32| batch.index.ids[*row as usize];
    let ends: Vec<u32> = batch.index.head_rows.iter().map(last).collect();
    assert_eq!(ends, responses.iter().map(|r| *r.last().unwrap()).collect::<Vec<u32>>());
    let of = |h: &HeadRow| (h.sequence as usize, h.token as usize + 1);
    assert!(batch.head.iter().map(of).eq(responses.iter().map(Vec::len).enumerate()));
}

#[test]
fn whole_groups_are_never_cut() {
    let prompts: Vec<Vec<u32>> = (0..8).map(|i| (0..10 + i).collect()).collect();
    let responses: Vec<Vec<u32>> = (0..16).map(|i| (0..1 + i % 7).collect()).collect();
    let all = sequences(&prompts, &responses, 2);
    for (tokens, heads) in [32, 64, 200].into_iter().flat_map(|n| [(n, Heads::Tokens), (n, Heads::End)]) {
        let mut packer = Packer::new(limits(tokens), 0);
        let (mut first, mut rows) = (0, 0);
        while first < all.len() {
            let batch = packer.pack_as(Packing { heads, whole_groups: true }, &all, first).unwrap();
            assert!(
                batch.index.ids.len() <= tokens && batch.sequences.end.is_multiple_of(2),
                "{tokens} {heads:?}"
            );
            rows += batch.index.ids.len();
            first = batch.sequences.end;
        }
        // Each prompt occurs once.
        let unread = if heads == Heads::Tokens { all.len() } else { 0 };
        let total = prompts.iter().chain(&responses).map(Vec::len).sum::<usize>();
        assert_eq!(rows, total - unread, "{tokens} {heads:?}");
    }
    // Each half fits alone, the pair does not.
    let how = Packing { whole_groups: true, heads: Heads::End };
    let error = Packer::new(limits(21), 0).pack_as(how, &all[4..6], 0).unwrap_err();
    assert!(error.slug == "sequence-too-long" && error.message.contains("a pair of 23"), "{error}");
}

#[test]
fn a_sequence_beyond_the_limit_is_named() {
    let prompts = vec![vec![0; 40]];
    let responses = vec![vec![0; 40]];
    let all = sequences(&prompts, &responses, 1);
    assert_eq!(Packer::new(limits(64), 0).pack(&all, 0).unwrap_err().slug, "sequence-too-long");
}
