//! Ranks in threads, each with a part of the prompts: all of them end with what one rank alone has.

use super::*;
use plimsoll_base::{Error, Exit};
use plimsoll_reward::RewardStep;
use plimsoll_rollout::Finish;

const PROMPTS: usize = 7;
const SIZE: usize = 2;

/// Runs `body` on each rank of a group, in threads.
fn ranks<T: Send>(count: usize, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let (file, body) = (tempfile::tempfile().expect("a file"), &body);
    std::thread::scope(|scope| {
        let start = |rank| {
            let group = Group::on_one_host(rank, count, &file).expect("a window");
            scope.spawn(move || body(group))
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn keys() -> impl Iterator<Item = (u64, usize)> {
    (0..PROMPTS).map(|prompt| (100 + prompt as u64, prompt % 2))
}

/// Response `s` of all, which does not depend on the rank that draws it.
fn response(s: usize) -> (Vec<u32>, Vec<f32>, Scored, String) {
    let ids: Vec<u32> = (0..1 + (s * 5 % 9) as u32).map(|t| s as u32 * 100 + t).collect();
    let logprobs = ids.iter().map(|id| -(*id as f32) / 3.0).collect();
    let scored = Scored {
        total: (!s.is_multiple_of(3)).then_some(s as f32 / 7.0),
        parts: vec![Some(s as f32), None],
        failed: false,
        steps: (0..s as u32 % 3).map(|end| RewardStep { end, reward: f64::from(end) / 3.0 }).collect(),
    };
    (ids, logprobs, scored, format!("réponse {s}"))
}

/// Adds to `samples` what a rank sampled of its own prompts.
fn own(samples: &mut Samples, prompts: &[usize]) -> (Graded, Counted) {
    let mut own = Graded {
        stats: RolloutStats { passes: 1, rows: prompts.len() as u64, ..RolloutStats::default() },
        scored: Vec::new(),
        texts: Vec::new(),
    };
    samples.clear();
    for s in prompts.iter().flat_map(|prompt| prompt * SIZE..(prompt + 1) * SIZE) {
        let (ids, logprobs, scored, text) = response(s);
        samples.push_response(&ids, &logprobs, Finish::Length);
        own.scored.push(scored);
        own.texts.push(text);
    }
    (own, Counted::default())
}

fn room() -> Samples {
    Samples::with_capacity(PROMPTS * SIZE, 16)
}

#[test]
fn every_rank_has_all_samples_in_the_order_of_the_prompts() {
    for count in [1, 2, 3, 5, 9] {
        let passes = ranks(count, |group| {
            let lengths = Lengths::default();
            let deal = Deal::new(&group, &lengths, keys());
            let mut samples = room();
            let part = own(&mut samples, &deal.own(&group));
            let whole = share(&group, &mut samples, Ok(part), &deal, SIZE).expect("no rank failed");
            assert_eq!(samples.len(), PROMPTS * SIZE);
            for s in 0..PROMPTS * SIZE {
                let (ids, logprobs, scored, text) = response(s);
                assert_eq!((samples.ids(s), samples.logprobs(s)), (&ids[..], &logprobs[..]), "sample {s}");
                assert_eq!((&whole.scored[s], &whole.texts[s]), (&scored, &text), "sample {s}");
            }
            assert_eq!(whole.stats.rows, PROMPTS as u64);
            whole.stats.passes
        });
        assert!(passes.iter().all(|passes| *passes == count as u64), "{passes:?}");
    }
}

#[test]
fn ranks_learn_the_same_lengths_and_make_the_same_next_deal() {
    let learnt = |count: usize| {
        let all = ranks(count, |group| {
            let mut lengths = Lengths::default();
            let deal = Deal::new(&group, &lengths, keys());
            let mut samples = room();
            let part = own(&mut samples, &deal.own(&group));
            share(&group, &mut samples, Ok(part), &deal, SIZE).expect("no rank failed");
            deal.learn(&mut lengths, &samples, SIZE);
            let expected: Vec<u64> = keys().map(|(key, set)| lengths.expected(key, set)).collect();
            let next = Deal::new(&group, &lengths, keys());
            (expected, (0..count).map(|_| next.own(&group)).next().expect("a rank"))
        });
        let dealt: usize = all.iter().map(|(_, own)| own.len()).sum();
        assert_eq!(dealt, PROMPTS, "each prompt has one rank");
        assert!(all.iter().all(|(expected, _)| *expected == all[0].0));
        all[0].0.clone()
    };
    assert_eq!(learnt(1), learnt(3));
}

#[test]
fn the_error_of_one_rank_ends_the_part_of_all_by_its_name() {
    let errors = ranks(3, |group| {
        let deal = Deal::new(&group, &Lengths::default(), keys());
        let mut samples = room();
        let part = match group.rank() {
            1 => Err(Error::new("reward-http-failed", "no scores")),
            _ => Ok(own(&mut samples, &deal.own(&group))),
        };
        share(&group, &mut samples, part, &deal, SIZE).map(|_| ()).expect_err("a rank failed")
    });
    for (rank, error) in errors.iter().enumerate() {
        match rank {
            1 => assert_eq!((error.slug, error.message.as_str()), ("reward-http-failed", "no scores")),
            _ => {
                assert_eq!((error.slug, error.exit), ("rank-lost", Exit::OtherRank));
                assert_eq!(error.message, "rank 1: reward-http-failed: no scores");
            }
        }
    }
}
