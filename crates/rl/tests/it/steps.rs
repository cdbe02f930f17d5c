//! Steps of the methods that sample: what they count, what they promise, and what their bits depend on.

use crate::rig::{World, case, trained};
use plimsoll_base::slugs;
use plimsoll_infer::responder::Responder;
use plimsoll_plan::RoleName;
use plimsoll_run::checkpoint::RunState;
use plimsoll_run::progress::Progress;

/// Methods without a model next to the policy.
const METHODS: [&str; 15] = [
    "grpo", "dr_grpo", "rloo", "gspo", "cispo", "sapo", "luspo", "gmpo", "dppo_tv", "dppo_kl", "vespo",
    "opo", "gpg", "pass_k", "gdpo",
];

#[test]
fn a_step_trains_on_what_it_sampled_with_the_log_probabilities_of_the_rollout() {
    for method in METHODS {
        case(method, &[]).world(|world| {
            for step in 1..=2 {
                let report = world.step(step).expect("finite losses");
                assert_eq!(report.logprob_mismatch_max, 0.0, "{method}");
                let metrics = &report.metrics;
                assert!((0.0..=1.0).contains(&metrics["reward"]), "{method}: exact answers are 0 or 1");
                assert_eq!(metrics["rewards/exact/mean"], metrics["reward"], "{method}");
                assert_eq!(report.reward, Some(metrics["reward"]));
                assert!(report.vitals.grad_norm.is_some_and(|norm| norm.is_finite()), "{method}");
                // Four prompts with four samples each, in the order of the data.
                let number = u64::from(step);
                assert_eq!(world.cursor.data_position, 4 * number, "{method}");
                assert_eq!(world.cursor.next_sample_id, 16 * number, "{method}");
                assert_eq!(world.trainer.updates(), number, "{method}");
                let samples = report.samples.as_ref().expect("it trains on samples");
                assert_eq!((samples.groups.clone(), samples.sequences()), (0..4, 0..16));
                let tokens: usize = samples.sequences().map(|s| samples.rollout.samples.ids(s).len()).sum();
                assert_eq!(report.sampled_tokens, tokens, "{method}");
            }
        });
    }
}

#[test]
fn threads_change_no_bit_and_the_seed_changes_all() {
    for method in ["grpo", "ppo"] {
        let of = |set: &str| trained(&case(method, &[set]), 2);
        let one = of("run.threads=1");
        assert!(one == of("run.threads=2") && one == of("run.threads=3"), "{method}");
        assert!(one != of("seed=1"), "{method}");
    }
}

#[test]
fn what_saves_memory_without_a_change_of_the_result_changes_no_bit() {
    let of =
        |set: &str| trained(&case("grpo", &["train.recompute=none", "train.micro_batch_tokens=256", set]), 2);
    let all = of("rollout.sequences_max=16");
    // Layers that are computed again, fewer sequences at one time, a cache that gives its blocks back.
    for set in [
        "train.recompute=layer",
        "train.recompute=cheap",
        "rollout.sequences_max=3",
        "memory.staging=1MiB",
        "rollout.on_full=preempt",
    ] {
        assert!(of(set) == all, "{set}");
    }
}

#[test]
fn a_lagging_policy_takes_several_steps_from_one_rollout() {
    let sets = ["async.reuse=1"];
    case("grpo", &sets).world(|world| {
        world.step(1).expect("finite losses");
        // Two steps' prompts were sampled at once, and half of them wait.
        assert_eq!((world.cursor.data_position, world.cursor.next_sample_id), (8, 32));
        let waiting = |world: &World<'_, '_>| {
            let mut state = RunState::blank(Progress::default());
            world.supply.state(&mut state);
            state.held
        };
        let state = waiting(world).expect("groups wait");
        assert_eq!((state.groups, state.policy_version), (4, 0));
        let second = world.step(2).expect("finite losses");
        let groups = second.samples.as_ref().map(|samples| samples.groups.clone());
        assert_eq!((world.cursor.data_position, groups), (8, Some(4..8)));
        assert_eq!((second.sampled_tokens, waiting(world)), (0, None));
        assert_eq!(second.logprob_mismatch_max, 0.0, "they are scored again before the update");
        world.step(3).expect("finite losses");
        assert_eq!(world.cursor.data_position, 16);
    });
}

#[test]
fn a_reference_is_the_policy_as_it_was() {
    case("grpo", &["loss.kl_coef=0.1"]).world(|world| {
        let first = world.weights(RoleName::Actor);
        let report = world.step(1).expect("finite losses");
        assert_eq!(report.metrics["kl"], 0.0, "no weight has changed yet");
        assert!(world.step(2).expect("finite losses").metrics["kl"] > 0.0);
        assert!(world.weights(RoleName::Actor) != first);
    });
}

#[test]
fn a_teacher_that_is_the_student_teaches_nothing() {
    let sets = ["distill.teacher=builtin:nano", "distill.reward_coef=0"];
    case("distill", &sets).world(|world| {
        let report = world.step(1).expect("finite losses");
        assert_eq!((report.reverse_kl, report.metrics["distill/reverse_kl"]), (Some(0.0), 0.0));
    });
}

#[test]
fn a_critic_learns_next_to_its_policy() {
    let sets = ["train.mini_batch=8", "train.epochs_per_rollout=2"];
    case("ppo", &sets).world(|world| {
        let critic = world.weights(RoleName::Critic);
        let report = world.step(1).expect("finite losses");
        assert_eq!(report.logprob_mismatch_max, 0.0);
        assert!(report.metrics["value/explained_variance"].is_finite());
        // Two epochs of two mini-batches, of each role.
        let updates = |role| world.trainer.role(role).map(|role| role.updates());
        assert_eq!((updates(RoleName::Actor), updates(RoleName::Critic)), (Some(4), Some(4)));
        assert!(world.weights(RoleName::Critic) != critic);
    });
}

#[test]
fn groups_whose_scores_are_all_alike_are_sampled_again_and_then_given_up() {
    // No answer of one token is a sum with its end.
    let sets = ["loss.dynamic_sampling=true", "loss.dynamic_sampling_retries=2", "rollout.max_new_tokens=1"];
    case("grpo", &sets).world(|world| {
        let before = world.weights(RoleName::Actor);
        let error = world.step(3).map(|_| ()).expect_err("no group is kept");
        assert_eq!(error.slug, slugs::DYNAMIC_SAMPLING_EXHAUSTED);
        assert!(error.message.starts_with("step 3: none of 12 groups in 3 rounds has "), "{error}");
        assert!(world.weights(RoleName::Actor) == before);
    });
}

#[test]
fn adapters_learn_and_the_weights_below_them_stay() {
    let sets = ["lora.rank=4", "train.learning_rate=1e-2"];
    case("grpo", &sets).world(|world| {
        let adapters = world.weights(RoleName::Actor);
        let report = world.step(1).expect("finite losses");
        assert_eq!(report.logprob_mismatch_max, 0.0);
        let after = world.weights(RoleName::Actor);
        assert!(after.len() < 100_000 && after != adapters, "{} numbers are trained", after.len());
        assert_eq!(world.trainer.first().files().0, "adapter_model.safetensors");
        // The rollout samples with what was learnt: the next step's log-probabilities are its own.
        assert_eq!(world.step(2).expect("finite losses").logprob_mismatch_max, 0.0);
    });
}
