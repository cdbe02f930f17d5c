//! The engine at temperature 0 against transformers' greedy continuations of the tiny architectures.
//!
//! The least margin between best and second-best logit is 2.3e-3, two hundred times the rounding of a logit, so the
//! tokens must be the same on every instruction path.

use crate::common::harness::{GOLDEN, Machine, Reference, Setup};
use crate::common::{World, sampling};
use plimsoll_arch::{Cache, Caches};
use plimsoll_base::DType;
use plimsoll_model::PassLimits;
use plimsoll_rollout::{EngineLimits, Finish, OnFull, Request};

const NEW_TOKENS: usize = 20;
const UPDATE: PassLimits = PassLimits {
    rows: 16,
    head_rows: 16,
    listed: 0,
    taught: 0,
    own: plimsoll_model::OwnLogits::NONE,
    segments: 2,
    table_entries: 4,
    copies: 1,
    caches: Caches::paged(3),
};

#[test]
fn greedy_tokens_are_those_of_transformers_on_every_instruction_path() {
    for name in GOLDEN {
        let reference = Reference::open(name);
        let ids: Vec<Vec<u32>> = (0..3).map(|i| reference.ids(&format!("seq{i}.input_ids"))).collect();
        let prompts: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
        let longest = ids.iter().map(Vec::len).max().unwrap();
        // Over the edge of windows, of which the cache holds no more.
        let window = Setup::new(name, DType::F32, UPDATE).open().spec.file_shape().attention.window;
        let caches = |blocks| {
            let caches = Caches::paged(blocks).and(Cache::State, 4);
            let ring = window.map(|window| Cache::Ring { keys: window.keys as usize });
            ring.map_or(caches, |ring| caches.and(ring, 48))
        };
        for machine in Machine::all() {
            for (sequences, rows, ahead) in
                [(3, 104, false), (1, 64, false), (2, 7, false), (3, 104, true), (1, 64, true), (2, 7, true)]
            {
                let limits = EngineLimits {
                    sequences,
                    rows,
                    samples: 3,
                    prompt_tokens: longest,
                    new_tokens: NEW_TOKENS,
                    ahead,
                    listed: 0,
                    own: plimsoll_model::OwnLogits::NONE,
                    caches: caches(3 * (longest + NEW_TOKENS).div_ceil(16)),
                    drafts: None,
                };
                let mut world = World::new(Setup { machine, ..Setup::new(name, DType::F32, UPDATE) }, limits);
                let request = Request {
                    prompts: &prompts,
                    group_size: 1,
                    max_new_tokens: NEW_TOKENS,
                    sampling: sampling(0.0, 0),
                    eos: &[],
                    first_sample_id: 0,
                    numbers: &[],
                };
                let (samples, _) = world.sample(OnFull::WorstCase, &request).unwrap();
                for i in 0..3 {
                    let theirs = reference.ids(&format!("seq{i}.greedy"));
                    assert_eq!(samples.ids(i), theirs, "{name} {machine:?} {limits:?}, seq{i}");
                    assert_eq!(samples.finish(i), Finish::Length);
                }
            }
        }
    }
}

/// Log-probs of teacher-forced tokens: one new token after every prefix is `logits` at that position.
#[test]
fn recorded_log_probs_are_those_of_transformers() {
    for name in GOLDEN {
        let reference = Reference::open(name);
        for machine in Machine::all() {
            let ids = reference.ids("seq1.input_ids");
            let logits = reference.f32s("seq1.logits");
            let vocab = logits.len() / ids.len();
            let prompts: Vec<&[u32]> = (1..=ids.len()).map(|n| &ids[..n]).collect();
            let limits = EngineLimits {
                sequences: 4,
                rows: 64,
                samples: ids.len(),
                prompt_tokens: ids.len(),
                new_tokens: 1,
                ahead: false,
                listed: 0,
                own: plimsoll_model::OwnLogits::NONE,
                caches: Caches::paged(4 * (ids.len() + 1).div_ceil(16) + 4).and(Cache::State, 4),
                drafts: None,
            };
            let mut world = World::new(Setup { machine, ..Setup::new(name, DType::F32, UPDATE) }, limits);
            let request = Request {
                prompts: &prompts,
                group_size: 1,
                max_new_tokens: 1,
                sampling: sampling(1.0, 9),
                eos: &[],
                first_sample_id: 0,
                numbers: &[],
            };
            let (samples, _) = world.sample(OnFull::WorstCase, &request).unwrap();
            for (i, row) in logits.chunks_exact(vocab).enumerate() {
                let largest = row.iter().fold(f32::MIN, |a, &b| a.max(b));
                let lse =
                    row.iter().map(|&l| f64::from(l - largest).exp()).sum::<f64>().ln() as f32 + largest;
                let theirs = row[samples.ids(i)[0] as usize] - lse;
                let d = (samples.logprobs(i)[0] - theirs).abs();
                // Logits of the reference are within 1.6e-5 of those in float64; ours round as much again.
                assert!(d < 5e-5, "{name} {machine:?} position {i}: {} and {theirs}", samples.logprobs(i)[0]);
            }
        }
    }
}
