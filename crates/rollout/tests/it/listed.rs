//! Likeliest tokens and log-probabilities of prompts: what was drawn has, as part of a prompt, the bits that it was
//! drawn with, and lists at one place are equal, whatever else runs.

use crate::common::harness::Numbers;
use crate::common::sampling;
use crate::prefixes::{NEW_TOKENS, SLOTS, VOCAB, world_that_lists};
use plimsoll_base::{DType, Result};
use plimsoll_device::Sampling;
use plimsoll_rollout::{Ask, Finish, LISTED, Likeliest, Listener, Live, NamedTokens, OnFull, PrefixScope};
use std::sync::Arc;

type List = Vec<(u32, u32)>;

/// What was drawn or scored, with its bits and its list.
type Row = (u32, u32, List);

#[derive(Clone, Default)]
struct Heard {
    scored: Vec<Row>,
    /// Bits.
    named: Vec<Vec<u32>>,
    drawn: Vec<Row>,
    list: List,
}

#[derive(Default)]
struct Ears(Vec<Heard>);

fn list(likeliest: Likeliest<'_>) -> List {
    likeliest.ids.iter().copied().zip(likeliest.logprobs.iter().map(|l| l.to_bits())).collect()
}

impl Listener for Ears {
    fn scored(&mut self, slot: usize, token: u32, logprob: f32, likeliest: Likeliest<'_>) {
        assert!(self.0[slot].drawn.is_empty(), "a prompt comes before its response");
        self.0[slot].scored.push((token, logprob.to_bits(), list(likeliest)));
    }

    fn named(&mut self, slot: usize, logprobs: &[f32]) {
        self.0[slot].named.push(logprobs.iter().map(|l| l.to_bits()).collect());
    }

    fn listed(&mut self, slot: usize, likeliest: Likeliest<'_>) {
        self.0[slot].list = list(likeliest);
    }

    fn drawn(&mut self, slot: usize, token: u32, logprob: f32) -> bool {
        let list = std::mem::take(&mut self.0[slot].list);
        self.0[slot].drawn.push((token, logprob.to_bits(), list));
        false
    }

    fn mask(&mut self, _slot: usize, words: &mut [u32]) -> Result<()> {
        let word = |at: usize| (0..32).filter(|bit| (at * 32 + bit) % 3 == 1).map(|bit| 1 << bit).sum();
        (0..).zip(words).for_each(|(at, to)| *to = word(at));
        Ok(())
    }

    fn ended(&mut self, _slot: usize, how: Result<Finish>) {
        how.expect("finite logits");
    }
}

fn ask(prompt: &[u32], sampling: Sampling, scores_prompt: bool) -> Ask<'_> {
    Ask {
        adapter: None,
        prompt,
        images: &[],
        sample_ids: &[3],
        max_new_tokens: NEW_TOKENS / 2,
        sampling,
        ends: &[],
        masked: false,
        biases: &[],
        prefix: PrefixScope::default(),
        scores_prompt,
        named: None,
        lists: true,
    }
}

/// Runs requests together. Returns what was heard of each.
fn heard(live: &mut Live<'_, '_, '_>, asks: &[Ask<'_>]) -> Vec<Heard> {
    let mut ears = Ears(vec![Heard::default(); SLOTS]);
    let slots: Vec<usize> = asks.iter().map(|ask| live.admit(ask).expect("a free slot")[0]).collect();
    while live.step(&mut ears).unwrap() {}
    slots.into_iter().map(|slot| std::mem::take(&mut ears.0[slot])).collect()
}

fn check_list(row: &Row) {
    let (token, logprob, list) = row;
    let logprobs: Vec<f32> = list.iter().map(|(_, bits)| f32::from_bits(*bits)).collect();
    assert_eq!(list.len(), LISTED);
    let in_order = |pair: &[(u32, u32)]| {
        let [a, b] = [pair[0].1, pair[1].1].map(f32::from_bits);
        a > b || (a == b && pair[0].0 < pair[1].0)
    };
    assert!(list.windows(2).all(in_order), "{list:?}");
    let own = f32::from_bits(*logprob);
    match list.iter().position(|(id, _)| id == token) {
        Some(at) => assert!((logprobs[at] - own).abs() < 1e-5, "{own} {list:?}"),
        None => assert!(own <= logprobs[LISTED - 1] + 1e-5, "{own} {list:?}"),
    }
    assert!(logprobs.iter().map(|l| l.exp()).sum::<f32>() < 1.0 + 1e-4);
}

#[test]
fn what_was_drawn_has_the_same_bits_as_part_of_a_prompt() {
    let mut numbers = Numbers::new(6);
    let [one, two] = [30, 41].map(|length| numbers.tokens(length, VOCAB));
    for dtype in [DType::F32, DType::Bf16] {
        let first = world_that_lists(LISTED, dtype, [SLOTS, 512, 100], 2, true).live(
            OnFull::WorstCase,
            |mut live| {
                live.keep_prefixes();
                let greedy = sampling(0.0, 5);
                heard(&mut live, &[ask(&one, sampling(1.0, 5), false), ask(&two, greedy, false)])
            },
        );
        let drawn: Vec<&Row> = first.iter().flat_map(|heard| &heard.drawn).collect();
        drawn.iter().for_each(|row| check_list(row));
        assert!(first.iter().all(|heard| heard.scored.is_empty() && heard.drawn.len() == NEW_TOKENS / 2));
        let whole = |prompt: &[u32], heard: &Heard| -> Vec<u32> {
            prompt.iter().copied().chain(heard.drawn.iter().map(|row| row.0)).collect()
        };
        let prompts = [whole(&one, &first[0]), whole(&two, &first[1])];
        let mut expect: Option<Vec<Vec<Row>>> = None;
        for (size, on_full) in [
            ([SLOTS, 512, 100], OnFull::WorstCase),
            ([SLOTS, 9, 100], OnFull::Preempt),
            ([3, 3, 12], OnFull::Preempt),
            ([1, 1, 100], OnFull::WorstCase),
        ] {
            let mut world = world_that_lists(LISTED, dtype, size, 1, false);
            let found = world.live(on_full, |mut live| {
                live.keep_prefixes();
                // The temperature is that of what is drawn.
                let [hot, cold] = [2.0, 0.5].map(|temperature| sampling(temperature, 1));
                heard(
                    &mut live,
                    &[ask(&one, hot, false), ask(&prompts[0], hot, true), ask(&prompts[1], cold, true)],
                )
            });
            assert!(found[0].scored.is_empty());
            for ((scored, prompt), drawn) in found[1..].iter().zip(&prompts).zip(&first) {
                let ids: Vec<u32> = scored.scored.iter().map(|row| row.0).collect();
                assert_eq!(ids, prompt[1..], "each token after the first once: {size:?}");
                let tail = &scored.scored[ids.len() - NEW_TOKENS / 2..];
                assert_eq!(tail, &drawn.drawn[..], "{dtype:?} {size:?}");
                scored.scored.iter().for_each(check_list);
            }
            let all: Vec<Vec<Row>> = found[1..].iter().map(|heard| heard.scored.clone()).collect();
            assert_eq!(expect.get_or_insert_with(|| all.clone()), &all, "{size:?}");
        }
    }
}

#[test]
fn named_tokens_have_the_numbers_of_lists() {
    let mut numbers = Numbers::new(7);
    let [one, two] = [37, 20].map(|length| numbers.tokens(length, VOCAB));
    let heard_of = |rows: usize, per_row: usize, lists: &[Row]| {
        let ids =
            lists.iter().flat_map(|(.., list)| list[..per_row].iter().rev().map(|(id, _)| *id)).collect();
        let named = Arc::new(NamedTokens { per_row, ids });
        let mut world = world_that_lists(LISTED, DType::Bf16, [SLOTS, rows, 100], 2, true);
        world.live(OnFull::WorstCase, |mut live| {
            let with =
                Ask { named: (!lists.is_empty()).then_some(&named), ..ask(&one, sampling(1.0, 1), true) };
            heard(&mut live, &[ask(&two, sampling(1.0, 2), true), with]).remove(1)
        })
    };
    let lists = heard_of(512, 1, &[]).scored;
    for (rows, per_row) in [(512, LISTED), (7, 3)] {
        let heard = heard_of(rows, per_row, &lists);
        assert_eq!(heard.scored, lists);
        // A card sums the products of a named token in an order of its own.
        for (named, (.., list)) in heard.named.iter().zip(&lists) {
            let mut pairs = named.iter().zip(list[..per_row].iter().rev());
            let differ =
                |(a, (_, b)): (&u32, &(u32, u32))| (f32::from_bits(*a) - f32::from_bits(*b)).abs() > 1e-4;
            assert!(named.len() == per_row && !pairs.any(differ), "{named:?} {list:?}");
        }
        assert_eq!(heard.named.len(), lists.len());
    }
}

#[test]
fn lists_are_of_what_a_mask_and_biases_leave_and_prompts_have_neither() {
    let mut numbers = Numbers::new(8);
    let [one, two] = [37, 20].map(|length| numbers.tokens(length, VOCAB));
    let heard_of = |rows: usize, own: bool| {
        let mut world = world_that_lists(LISTED, DType::Bf16, [SLOTS, rows, 100], 2, false);
        world.live(OnFull::WorstCase, |mut live| {
            let biases: &[(u32, f32)] = if own { &[(4, 30.0)] } else { &[] };
            let other = Ask { masked: own, biases, ..ask(&two, sampling(1.0, 2), true) };
            heard(&mut live, &[ask(&one, sampling(1.0, 1), true), other])
        })
    };
    let free = heard_of(512, false);
    for rows in [512, 7] {
        let heard = heard_of(rows, true);
        assert_eq!((&heard[0].scored, &heard[0].drawn), (&free[0].scored, &free[0].drawn));
        assert_eq!(heard[1].scored, free[1].scored);
        for row in &heard[1].drawn {
            check_list(row);
            assert!(row.2[0].0 == 4 && row.2.iter().all(|(id, _)| id % 3 == 1), "{row:?}");
        }
    }
}
