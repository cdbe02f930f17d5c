//! Responses of several turns: what was drawn depends neither on when answers come nor on how sequences were scheduled,
//! and training computes the same log-probability for every drawn token of every turn.

use crate::common::harness::{Numbers, Setup};
use crate::common::{DRAFTS, KEYS, World, sampling, sequences, with_states, with_windows};
use plimsoll_arch::{Cache, Caches, ModelSpec};
use plimsoll_base::{DType, Result};
use plimsoll_model::{PassLimits, Recompute};
use plimsoll_rollout::{
    Engine, EngineLimits, Finish, OnFull, Request, RolloutStats, Samples, StopCondition, Turn,
};
use plimsoll_train::PackLimits;
use std::collections::VecDeque;

const PROMPTS: [usize; 4] = [1, 16, 23, 33];
const GROUP: usize = 3;
const SAMPLES: usize = PROMPTS.len() * GROUP;
const TURN_TOKENS: usize = 9;
const TURNS: usize = 4;
/// Tokens between two turns, at most.
const ANSWER: usize = 19;
const NEW_TOKENS: usize = new_tokens(ANSWER);
const VOCAB: u64 = 15;

/// Four turns, and up to `answer` tokens between two.
const fn new_tokens(answer: usize) -> usize {
    TURNS * TURN_TOKENS + (TURNS - 1) * answer
}

/// When answers come.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// At once.
    First,
    /// The last turn that ended is answered first, and only when everyone waits.
    LastWhenAllWait,
    /// One after the engine asked this many times.
    After(usize),
}

/// Answers a turn by what was drawn in it.
struct Script {
    order: Order,
    answer: u64,
    waiting: VecDeque<(usize, Vec<u32>)>,
    asked: usize,
    turns: Vec<usize>,
    ended: Vec<Option<Finish>>,
}

impl Script {
    fn new(order: Order, answer: usize) -> Script {
        let (turns, ended) = (vec![0; SAMPLES], vec![None; SAMPLES]);
        Script { order, answer: answer as u64, waiting: VecDeque::new(), asked: 0, turns, ended }
    }
}

impl StopCondition for Script {
    fn stops(&mut self, _sample: usize, turn: &[u32]) -> bool {
        turn.len() > 3 && turn.last() == Some(&7)
    }

    fn ended(&mut self, sample: usize, _response: &[u32], finish: Finish) {
        assert!(self.ended[sample].replace(finish).is_none(), "a response ends once");
    }

    fn has_turns(&self) -> bool {
        true
    }

    fn turn_ended(&mut self, sample: usize, turn: &[u32], _finish: Finish) {
        self.turns[sample] += 1;
        let sum: u64 = turn.iter().map(|&t| u64::from(t)).sum::<u64>() + 3 * self.turns[sample] as u64;
        let over = self.turns[sample] == TURNS || sum % 7 == 3;
        let length = if over { 0 } else { 1 + (sum * 5 + sample as u64) % self.answer };
        let words = (0..length).map(|i| ((sum * 31 + i * 7) % VOCAB) as u32).collect();
        self.waiting.push_back((sample, words));
    }

    fn answer(&mut self, wait: bool, tokens: &mut Vec<u32>) -> Result<Option<usize>> {
        self.asked += 1;
        let next = match self.order {
            Order::First => self.waiting.pop_front(),
            Order::LastWhenAllWait if wait => self.waiting.pop_back(),
            Order::After(n) if wait || self.asked.is_multiple_of(n) => self.waiting.pop_front(),
            _ => None,
        };
        Ok(next.map(|(sample, words)| {
            tokens.extend(words);
            sample
        }))
    }
}

fn prompts() -> Vec<Vec<u32>> {
    let mut numbers = Numbers::new(4);
    PROMPTS.iter().map(|&n| numbers.tokens(n, VOCAB as u32)).collect()
}

fn limits(sequences: usize, rows: usize, blocks: usize, new_tokens: usize) -> EngineLimits {
    let prompt_tokens = PROMPTS[3];
    EngineLimits {
        sequences,
        rows,
        samples: SAMPLES,
        prompt_tokens,
        new_tokens,
        ahead: false,
        listed: 0,
        own: plimsoll_model::OwnLogits::NONE,
        caches: Caches::paged(blocks),
        drafts: None,
    }
}

fn pass(tokens: usize, caches: Caches) -> PassLimits {
    let segments = PackLimits::segments_of(tokens, PROMPTS.len(), SAMPLES);
    PackLimits { micro_batch_tokens: tokens, prompt_tokens: PROMPTS[3], segments, caches }.pass()
}

/// The weights' dtype, and a shape other than that of `nano`.
type What = (DType, Option<ModelSpec>);

fn setup((dtype, spec): What, tokens: usize, threads: usize, recompute: Recompute) -> Setup {
    let has_states = spec.is_some_and(|spec| spec.has_states());
    let caches = if has_states { Caches::paged(0).and(Cache::State, 0) } else { Caches::paged(0) };
    let pass = pass(tokens, caches);
    Setup { threads, recompute, spec, ..Setup::new("random:nano", dtype, pass) }
}

fn draw(
    what: What,
    limits: EngineLimits,
    on_full: OnFull,
    threads: usize,
    order: Order,
) -> (Samples, RolloutStats, Script) {
    let ring = Cache::Ring { keys: KEYS as usize };
    let of = |units| {
        let caches = match what.1 {
            Some(spec) if spec.attentions().any(|of| of.window.is_some()) => limits.caches.and(ring, units),
            // A prompt's and two responses', or enough.
            Some(_) if on_full == OnFull::Preempt => limits.caches.and(Cache::State, 3),
            Some(_) => limits.caches.and(Cache::State, SAMPLES + PROMPTS.len()),
            None => limits.caches,
        };
        EngineLimits { caches, ..limits }
    };
    // As few as the other layers have.
    let least = EngineLimits { caches: limits.caches.and(ring, 0), ..limits }.least(ring, 0, PROMPTS[3]);
    let limits = of(limits.caches.units(Cache::PAGED).min(least + 2));
    draw_groups(what, limits, (&prompts(), GROUP, ANSWER), on_full, threads, order)
}

/// A group of responses for each prompt, with answers of up to `answer` tokens, in exactly these limits.
fn draw_groups(
    what: What,
    limits: EngineLimits,
    (prompts, group, answer): (&[Vec<u32>], usize, usize),
    on_full: OnFull,
    threads: usize,
    order: Order,
) -> (Samples, RolloutStats, Script) {
    let mut world = World::new(setup(what, 64, threads, Recompute::None), limits);
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let request = Request {
        prompts: &prompts,
        group_size: group,
        max_new_tokens: TURN_TOKENS,
        sampling: sampling(1.0, 5),
        eos: &[1],
        first_sample_id: 17,
        numbers: &[],
    };
    let mut engine = Engine::new(limits, on_full);
    let mut out = Samples::with_turns(prompts.len() * group, limits.new_tokens, TURNS);
    let mut script = Script::new(order, answer);
    if limits.drafts.is_some() {
        // Its texts are found when the same is drawn again.
        world.sample_until(&mut engine, &request, &mut script, &mut out).unwrap();
        script = Script::new(order, answer);
    }
    let stats = world.sample_until(&mut engine, &request, &mut script, &mut out).unwrap();
    (out, stats, script)
}

/// Bits, so that what was not drawn compares too.
fn parts(samples: &Samples, s: usize) -> (Vec<u32>, Vec<u32>, Vec<Turn>) {
    let logprobs = samples.logprobs(s).iter().map(|l| l.to_bits()).collect();
    (samples.ids(s).to_vec(), logprobs, samples.turns(s).to_vec())
}

fn check_same(a: &Samples, b: &Samples, how: &str) {
    for s in 0..SAMPLES {
        assert_eq!(parts(a, s), parts(b, s), "{how}: sample {s}");
    }
}

#[test]
fn turns_do_not_depend_on_when_answers_come_or_on_the_schedule() {
    for what in [
        (DType::Bf16, None),
        (DType::F32, None),
        (DType::Bf16, Some(with_windows())),
        (DType::F32, Some(with_windows())),
        (DType::Bf16, Some(with_states())),
        (DType::F32, Some(with_states())),
    ] {
        let roomy = 16 * SAMPLES;
        let (drawn, ..) =
            draw(what, limits(SAMPLES, 512, roomy, NEW_TOKENS), OnFull::WorstCase, 1, Order::First);
        let turns: Vec<usize> = (0..SAMPLES).map(|s| drawn.turns(s).len()).collect();
        assert!(turns.contains(&TURNS) && turns.iter().any(|&n| n < TURNS), "{turns:?}");
        let longest = (PROMPTS[3] + NEW_TOKENS).div_ceil(16) + 2;
        let (mut preemptions, mut accepted) = (0, 0);
        let has_states = what.1.is_some_and(|spec| spec.has_states());
        for (sequences, rows, blocks, on_full, order, threads) in [
            (SAMPLES, 512, roomy, OnFull::WorstCase, Order::LastWhenAllWait, 1),
            (3, 3, roomy, OnFull::WorstCase, Order::After(3), 1),
            (1, 64, roomy, OnFull::WorstCase, Order::First, 2),
            (SAMPLES, 20, longest, OnFull::WorstCase, Order::After(2), 1),
            (SAMPLES, 20, longest, OnFull::Preempt, Order::First, 1),
            (SAMPLES, 40, longest, OnFull::Preempt, Order::LastWhenAllWait, 2),
            (4, 12, longest + 3, OnFull::Preempt, Order::After(7), 1),
        ] {
            let drafts = Some(DRAFTS).filter(|_| sequences == SAMPLES && !has_states);
            let limits = EngineLimits { drafts, ..limits(sequences, rows, blocks, NEW_TOKENS) };
            let (other, stats, script) = draw(what, limits, on_full, threads, order);
            check_same(&drawn, &other, &format!("{limits:?}, {on_full:?}, {order:?}"));
            assert!(script.ended.iter().all(Option::is_some), "everyone ends");
            preemptions += stats.preemptions;
            accepted += stats.drafted.accepted;
        }
        assert!(preemptions > 0, "the blocks were to run out");
        assert_eq!(accepted > 0, !has_states, "{accepted} drafts were right");
        check_training(what, &drawn);
    }
}

/// A response that is alone goes on in its prompt's state, and loses it with its keys while it waits for an answer.
#[test]
fn responses_that_are_alone_go_on_in_the_states_of_their_prompts() {
    let what = (DType::Bf16, Some(with_states()));
    let prompts = prompts();
    let of = |sequences, rows, blocks, states| EngineLimits {
        samples: prompts.len(),
        caches: Caches::paged(blocks).and(Cache::State, states),
        ..limits(sequences, rows, blocks, NEW_TOKENS)
    };
    let draw = |limits, on_full, order| draw_groups(what, limits, (&prompts, 1, ANSWER), on_full, 1, order);
    let (drawn, ..) = draw(of(prompts.len(), 512, 200, prompts.len()), OnFull::WorstCase, Order::First);
    let longest = (PROMPTS[3] + NEW_TOKENS).div_ceil(16) + 1;
    let mut preemptions = 0;
    for (sequences, rows, blocks, states, on_full, order) in [
        (2, 7, 200, 2, OnFull::WorstCase, Order::After(2)),
        (prompts.len(), 40, longest, 2, OnFull::Preempt, Order::LastWhenAllWait),
        (prompts.len(), 20, longest, prompts.len(), OnFull::Preempt, Order::First),
        (prompts.len(), 64, 200, 2, OnFull::Preempt, Order::After(5)),
    ] {
        let limits = of(sequences, rows, blocks, states);
        let (other, stats, _) = draw(limits, on_full, order);
        for s in 0..prompts.len() {
            assert_eq!(parts(&drawn, s), parts(&other, s), "{limits:?}, {on_full:?}, {order:?}: sample {s}");
        }
        preemptions += stats.preemptions;
    }
    assert!(preemptions > 0, "the states were to run out");
}

/// A response that is alone is promised its window and the rows of a pass. An answer may be longer than a pass, and
/// then the prompt's blocks are still seen when it comes.
#[test]
fn responses_that_are_alone_stay_within_what_windows_promise() {
    const LONG: [usize; 4] = [70, 41, 64, 100];
    const WINDOW: usize = 40;
    const ANSWER: usize = 90;
    const RING: Cache = Cache::Ring { keys: WINDOW };
    let mut shape = with_windows().file_shape();
    shape.attention.window.iter_mut().for_each(|window| window.keys = WINDOW as u32);
    let spec = shape.spec();
    let mut numbers = Numbers::new(4);
    let prompts: Vec<Vec<u32>> = LONG.iter().map(|&n| numbers.tokens(n, VOCAB as u32)).collect();
    let of = |sequences, rows, blocks| EngineLimits {
        samples: LONG.len(),
        prompt_tokens: LONG[3],
        caches: Caches::paged(24 * SAMPLES).and(RING, blocks),
        ..limits(sequences, rows, 0, new_tokens(ANSWER))
    };
    let run = |limits: EngineLimits, order| {
        draw_groups((DType::F32, Some(spec)), limits, (&prompts, 1, ANSWER), OnFull::WorstCase, 1, order)
    };
    let (drawn, ..) = run(of(4, 512, 16 * SAMPLES), Order::First);
    let answers = (0..LONG.len()).flat_map(|s| drawn.turns(s).windows(2));
    let longest = answers.map(|two| two[1].start - two[0].end).max();
    assert!(longest > Some(64), "answers of up to {longest:?} tokens are longer than passes");
    for sequences in 1..=LONG.len() {
        for rows in [4, 5, 8, 64] {
            let least = of(sequences, rows, 0);
            let promised = least.enough(RING, sequences, 1).max(least.least(RING, 0, LONG[3]));
            let limits = of(sequences, rows, promised);
            for order in [Order::First, Order::LastWhenAllWait, Order::After(3)] {
                let (other, stats, _) = run(limits, order);
                for s in 0..LONG.len() {
                    assert_eq!(parts(&drawn, s), parts(&other, s), "{limits:?}, {order:?}: sample {s}");
                }
                assert_eq!(stats.preemptions, 0, "what is promised is there: {limits:?}, {order:?}");
            }
        }
    }
}

/// Returns what training computes for drawn tokens is what was recorded; other tokens have no log-probability.
fn check_training(what: What, drawn: &Samples) {
    let prompts = prompts();
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let all = sequences(&prompts, drawn, GROUP);
    let longest = PROMPTS[3] + NEW_TOKENS;
    for (tokens, threads, recompute) in
        [(longest, 1, Recompute::None), (1024, 2, Recompute::Layer), (2 * longest, 1, Recompute::Cheap)]
    {
        let limits = limits(1, 1, 64, NEW_TOKENS);
        let mut world = World::new(setup(what, tokens, threads, recompute), limits);
        let (logprobs, _) = world.harness.logprobs(&all, 1.0).unwrap();
        for (s, trained) in logprobs.iter().enumerate() {
            let mut drawn_tokens = vec![false; trained.len()];
            for turn in drawn.turns(s) {
                drawn_tokens[turn.tokens()].fill(true);
            }
            for (t, recorded) in drawn.logprobs(s).iter().enumerate() {
                let same = recorded.to_bits() == trained[t].to_bits();
                assert!(same == drawn_tokens[t] && recorded.is_nan() != drawn_tokens[t], "{s} {t}");
            }
        }
    }
}

#[test]
fn an_answer_without_room_ends_its_response_by_length() {
    // Room for a turn, the longest answer and one token: many answers do not fit a second time.
    let short = TURN_TOKENS + ANSWER + 1;
    let (drawn, _, script) =
        draw((DType::F32, None), limits(SAMPLES, 64, 200, short), OnFull::WorstCase, 1, Order::First);
    let (whole, ..) =
        draw((DType::F32, None), limits(SAMPLES, 64, 200, NEW_TOKENS), OnFull::WorstCase, 1, Order::First);
    let cut: Vec<usize> = (0..SAMPLES).filter(|&s| script.ended[s] == Some(Finish::Length)).collect();
    assert!(!cut.is_empty());
    for s in 0..SAMPLES {
        let (ids, last) = (drawn.ids(s), *drawn.turns(s).last().unwrap());
        assert!(ids.len() <= short && last.end as usize == ids.len(), "a response ends with what was drawn");
        assert_eq!(ids, &whole.ids(s)[..ids.len()], "and begins as the whole one");
    }
}
