//! What a trainer does for a step: samples and scores with the same bits, and updates that fail change nothing.

use crate::rig::{Case, World, case};
use plimsoll_base::{Error, slugs};
use plimsoll_device::Sampling;
use plimsoll_infer::responder::Responder;
use plimsoll_plan::RoleName;
use plimsoll_rl::arrays::TokenArrays;
use plimsoll_rl::roles::Loss;
use plimsoll_rollout::{Finish, NeverStop, Request, StopCondition};
use plimsoll_train::Sequence;
use std::ops::Range;

fn prompts(case: &Case) -> Vec<Vec<u32>> {
    (0..4).map(|number| case.item(number).ids).collect()
}

/// Samples four responses to each of four prompts. Returns their tokens and log-probabilities.
fn sample(
    world: &mut World<'_, '_>,
    prompts: &[Vec<u32>],
    sampling: Sampling,
    stop: &mut dyn StopCondition,
) -> Vec<(Vec<u32>, Vec<f32>)> {
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let request = Request {
        prompts: &prompts,
        group_size: 4,
        max_new_tokens: 5,
        sampling,
        eos: &world.case.model.eos_token_ids,
        first_sample_id: 100,
        numbers: &[],
    };
    world.trainer.rollout(&request, stop).expect("finite logits");
    let samples = &world.trainer.sampler.samples;
    (0..16).map(|s| (samples.ids(s).to_vec(), samples.logprobs(s).to_vec())).collect()
}

fn sequences<'s>(prompts: &'s [Vec<u32>], drawn: &'s [(Vec<u32>, Vec<f32>)]) -> Vec<Sequence<'s>> {
    let one = |(s, (ids, _)): (usize, &'s (Vec<u32>, Vec<f32>))| Sequence {
        group: s / 4,
        prompt: &prompts[s / 4],
        response: ids,
    };
    drawn.iter().enumerate().map(one).collect()
}

const WHOLE: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

/// Samples the responses that an update learns from, with a loss that the test gives.
fn update(
    world: &mut World<'_, '_>,
    loss: &mut Loss<'_>,
) -> plimsoll_base::Result<plimsoll_rl::roles::UpdateStats> {
    let prompts = prompts(world.case);
    let drawn = sample(world, &prompts, WHOLE, &mut NeverStop);
    world.trainer.arrays.begin(drawn.iter().map(|(ids, _)| ids.len()));
    let how = world.case.run.train().update_options(1, 0);
    let sequences = sequences(&prompts, &drawn);
    world.trainer.update(RoleName::Actor, &sequences, 0..sequences.len(), 1.0, how, loss)
}

#[test]
fn a_score_has_the_bits_that_the_rollout_recorded_at_any_temperature() {
    for sets in [&[][..], &["model_options.dtype=f32"], &["train.micro_batch_tokens=32"]] {
        // Samples of an earlier policy are scored again, so this plan has a pass for it.
        let case = case("grpo", &[sets, &["async.reuse=1"]].concat());
        let prompts = prompts(&case);
        case.world(|world| {
            for temperature in [1.0, 0.5, 1.7] {
                let drawn = sample(world, &prompts, Sampling { temperature, ..WHOLE }, &mut NeverStop);
                let sequences = sequences(&prompts, &drawn);
                world.trainer.arrays.begin(drawn.iter().map(|(ids, _)| ids.len()));
                let offsets = world.trainer.arrays.offsets.clone();
                let mut scored = vec![0.0; offsets[16]];
                let tokens = |which: &Range<usize>| offsets[which.start]..offsets[which.end];
                let (role, inverse) = (RoleName::Actor, 1.0 / temperature);
                world.trainer.score(role, &sequences, inverse, &mut scored, tokens).expect("finite logits");
                for (s, (_, logprobs)) in drawn.iter().enumerate() {
                    let expect: Vec<u32> = logprobs.iter().map(|n| n.to_bits()).collect();
                    let found: Vec<u32> = scored[tokens(&(s..s + 1))].iter().map(|n| n.to_bits()).collect();
                    assert_eq!(found, expect, "{sets:?}, temperature {temperature}, sample {s}");
                }
            }
        });
    }
}

#[test]
fn a_sample_is_its_number_whoever_else_is_drawn() {
    let case = case("grpo", &["rollout.sequences_max=16"]);
    let prompts = prompts(&case);
    case.world(|world| {
        let all = sample(world, &prompts, WHOLE, &mut NeverStop);
        // The last two prompts alone, under the numbers that they have among all four.
        let some: Vec<&[u32]> = prompts[2..].iter().map(Vec::as_slice).collect();
        let request = Request {
            prompts: &some,
            group_size: 4,
            max_new_tokens: 5,
            sampling: WHOLE,
            eos: &case.model.eos_token_ids,
            first_sample_id: 100,
            numbers: &[2, 3],
        };
        world.trainer.rollout(&request, &mut NeverStop).expect("finite logits");
        for s in 0..8 {
            assert_eq!(world.trainer.sampler.samples.ids(s), all[8 + s].0, "sample {s}");
            assert_eq!(world.trainer.sampler.samples.logprobs(s), all[8 + s].1, "sample {s}");
        }
    });
}

#[test]
fn the_likeliest_tokens_are_the_same_for_each_sample_of_a_prompt() {
    let case = case("grpo", &[]);
    let prompts = prompts(&case);
    case.world(|world| {
        let drawn = sample(world, &prompts, Sampling { temperature: 0.0, ..WHOLE }, &mut NeverStop);
        for group in drawn.chunks(4) {
            assert!(group.iter().all(|sample| sample == &group[0]));
        }
    });
}

/// Ends each response after two tokens.
struct Two;

impl StopCondition for Two {
    fn stops(&mut self, _: usize, response: &[u32]) -> bool {
        response.len() == 2
    }
}

#[test]
fn a_stop_condition_ends_a_response_and_keeps_its_last_token() {
    let case = case("grpo", &[]);
    let prompts = prompts(&case);
    case.world(|world| {
        let whole = sample(world, &prompts, WHOLE, &mut NeverStop);
        let stopped = sample(world, &prompts, WHOLE, &mut Two);
        for (s, ((whole, _), (ids, _))) in whole.iter().zip(&stopped).enumerate() {
            assert_eq!(ids[..], whole[..ids.len()], "sample {s} begins alike");
            match world.trainer.sampler.samples.finish(s) {
                Finish::Stop => assert_eq!(ids.len(), 2),
                finish => assert!(ids.len() <= 2 && finish == Finish::Eos, "{finish:?}"),
            }
        }
    });
}

#[test]
fn an_update_that_fails_changes_no_weight_and_counts_for_nothing() {
    let case = case("grpo", &[]);
    case.world(|world| {
        let before = world.weights(RoleName::Actor);
        let mut nan = |buffers: &mut TokenArrays, tokens: Range<usize>| {
            buffers.d_logprobs[tokens].fill(f32::NAN);
            Ok(())
        };
        let error = update(world, &mut nan).map(|_| ()).expect_err("no number");
        assert_eq!(error.slug, slugs::GRADIENT_NOT_FINITE, "{error}");
        let mut own = |_: &mut TokenArrays, _: Range<usize>| Err(Error::new("internal", "of the loss"));
        let error = update(world, &mut own).map(|_| ()).expect_err("its own");
        assert_eq!(error.message, "of the loss");
        assert!(world.weights(RoleName::Actor) == before && world.trainer.updates() == 0);
        // After both a step is the first one.
        let mut fine = |buffers: &mut TokenArrays, tokens: Range<usize>| {
            buffers.d_logprobs[tokens].fill(-0.01);
            Ok(())
        };
        update(world, &mut fine).expect("finite gradients");
        assert!(world.weights(RoleName::Actor) != before && world.trainer.updates() == 1);
    });
}

#[test]
fn gradients_alone_are_those_of_the_update_and_move_nothing() {
    let case = case("grpo", &[]);
    case.world(|world| {
        let mut loss = |buffers: &mut TokenArrays, tokens: Range<usize>| {
            for t in tokens {
                buffers.d_logprobs[t] = -0.01 * (t % 3) as f32;
            }
            Ok(())
        };
        let before = world.weights(RoleName::Actor);
        let prompts = prompts(&case);
        let drawn = sample(world, &prompts, WHOLE, &mut NeverStop);
        let sequences = sequences(&prompts, &drawn);
        world.trainer.arrays.begin(drawn.iter().map(|(ids, _)| ids.len()));
        let stats = world.trainer.gradients(RoleName::Actor, &sequences, 0..16, 1.0, &mut loss);
        let alone = stats.expect("finite gradients");
        assert!(world.weights(RoleName::Actor) == before && world.trainer.updates() == 0);
        let updated = update(world, &mut loss).expect("finite gradients");
        assert_eq!(updated.micro_batches, alone.micro_batches);
        assert!(updated.grad_norm > 0.0);
    });
}

#[test]
fn a_raised_token_becomes_likelier() {
    let case = case("grpo", &["train.learning_rate=1e-5"]);
    let prompts = prompts(&case);
    case.world(|world| {
        let drawn = sample(world, &prompts, WHOLE, &mut NeverStop);
        let mut likelihoods = Vec::new();
        for step in 1..=3 {
            let sequences = sequences(&prompts, &drawn);
            world.trainer.arrays.begin(drawn.iter().map(|(ids, _)| ids.len()));
            let how = case.run.train().update_options(step, 0);
            let mut sum = 0.0;
            let mut loss = |buffers: &mut TokenArrays, tokens: Range<usize>| {
                sum += buffers.logprobs[tokens.clone()].iter().map(|&l| f64::from(l)).sum::<f64>();
                buffers.d_logprobs[tokens].fill(-1.0 / 64.0);
                Ok(())
            };
            world
                .trainer
                .update(RoleName::Actor, &sequences, 0..16, 1.0, how, &mut loss)
                .expect("finite gradients");
            likelihoods.push(sum);
        }
        assert!(likelihoods.is_sorted_by(|a, b| a < b), "{likelihoods:?}");
    });
}

#[test]
fn weights_in_four_bits_stay_as_they_are_and_their_adapters_learn() {
    for sets in [&["lora.rank=4", "lora.quantize=nf4"][..], &["lora.rank=4", "lora.merge=true"]] {
        case("grpo", &[sets, &["train.learning_rate=1e-2"]].concat()).world(|world| {
            let adapters = world.weights(RoleName::Actor);
            for step in 1..=2 {
                let report = world.step(step).expect("finite losses");
                assert_eq!(report.logprob_mismatch_max, 0.0, "{sets:?}");
            }
            assert!(world.weights(RoleName::Actor) != adapters, "{sets:?}");
        });
    }
}

#[test]
fn mini_batches_and_epochs_are_updates_of_one_rollout() {
    for (sets, updates) in [
        (&["train.mini_batch=8"][..], 2),
        (&["train.mini_batch=4", "train.epochs_per_rollout=3"], 12),
        (&["train.epochs_per_rollout=2"], 2),
    ] {
        case("grpo", sets).world(|world| {
            let report = world.step(1).expect("finite losses");
            assert_eq!(world.trainer.updates(), updates, "{sets:?}");
            assert_eq!(report.logprob_mismatch_max, 0.0, "{sets:?}: of the first update");
            assert_eq!(world.cursor.data_position, 4, "{sets:?}");
        });
    }
}

#[test]
fn samples_that_are_all_alike_teach_nothing() {
    // The likeliest tokens are drawn, so that each group has one score.
    let case = case("grpo", &["rollout.temperature=0.0001"]);
    case.world(|world| {
        let before = world.weights(RoleName::Actor);
        let report = world.step(1).expect("finite losses");
        assert_eq!(report.metrics["frac_reward_zero_std"], 1.0);
        assert_eq!(report.vitals.grad_norm, Some(0.0));
        assert!(world.weights(RoleName::Actor) == before, "without weight decay");
    });
}

#[test]
fn a_rate_of_learning_warms_up_and_is_reported() {
    let sets = ["train.learning_rate=1e-3", "train.warmup_steps=4", "train.schedule=linear", "train.steps=8"];
    case("grpo", &sets).world(|world| {
        let rates: Vec<f64> =
            (1..=8).map(|step| world.step(step).expect("finite losses").metrics["learning_rate"]).collect();
        assert!(rates[..4].is_sorted_by(|a, b| a < b) && (rates[3] - 1e-3).abs() < 1e-9, "{rates:?}");
        assert!(rates[4..].is_sorted_by(|a, b| a > b) && rates[7] > 0.0, "{rates:?}");
    });
}
