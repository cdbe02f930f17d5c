//! What holds for the plan of every method on every kind of model: rows never shrink where a run grows, limits are
//! exact, and what the planner chose is planned the same again.

use crate::rig::{Case, ROOMY, case, method_case, peak, row};
use plimsoll_base::{Phase, PhaseSet};
use plimsoll_config::RunSpec;
use plimsoll_memory::{Place, Pool};
use std::collections::BTreeSet;

/// One of each kind of layer: dense, windows, linear attention, experts.
const MODELS: [&str; 5] = ["nano", "qwen2.5-0.5b", "gemma-3-1b", "qwen3.5-4b", "qwen3-30b-a3b"];
const METHODS: [&str; 6] = ["grpo", "ppo", "sft", "dpo", "distill", "reward_model"];

/// Every knob at one value, so that nothing but what a test changes is different.
const FIXED: [&str; 6] = [
    "train.micro_batch_tokens=512",
    "train.recompute=cheap",
    "train.optimizer_dtype=f32",
    "train.grad_dtype=f32",
    "memory.staging=16MiB",
    "run.device=cpu",
];

/// Each method on each model, with these settings as well.
fn each(sets: &[&str]) -> impl Iterator<Item = (String, Case)> {
    MODELS.into_iter().flat_map(move |model| {
        METHODS.map(|method| (format!("{method} on {model}"), method_case(method, model, sets)))
    })
}

/// A way to make a run larger, with its name.
type Growth = (&'static str, fn(&mut Case));

#[test]
fn a_larger_run_takes_no_fewer_bytes_in_any_pool_or_phase() {
    // What a step or a sequence has more of; the last are those of methods that sample.
    let larger: [Growth; 6] = [
        ("prompts", |case| case.run.rollout.prompts_per_step += 3),
        ("prompt tokens", |case| case.facts.prompt_tokens += 100),
        ("micro-batch", |case| case.run.train_mut().micro_batch_tokens = plimsoll_config::Auto::Value(1024)),
        ("response", |case| {
            case.run.rollout.max_new_tokens += 77;
            case.facts.completion_tokens += 77;
        }),
        ("lag", |case| case.run.trains.samples_mut().into_iter().for_each(|of| of.asynchrony.reuse += 1)),
        ("sequences", |case| case.run.rollout.sequences_max = plimsoll_config::Auto::Value(13)),
    ];
    for (name, small) in each(&FIXED) {
        let mut small = small;
        small.run.rollout.sequences_max = plimsoll_config::Auto::Value(6);
        let before = small.plan(ROOMY);
        for (what, grow) in larger {
            let mut large = small.clone();
            grow(&mut large);
            let after = large.plan(ROOMY);
            for pool in Pool::ALL {
                for phase in Phase::ALL {
                    let [a, b] = [&before, &after].map(|report| report.plan.in_phase(pool, phase));
                    assert!(a <= b, "{name}, more {what}: {} {} {a} to {b}", pool.name(), phase.name());
                }
            }
        }
    }
}

#[test]
fn a_run_fits_at_its_smallest_limits_and_not_a_page_below() {
    for (name, case) in each(&[]).filter(|(name, _)| name.starts_with("grpo") || name.starts_with("ppo")) {
        for case in [case.clone(), on_a_card(case)] {
            let (host, device) = case.least();
            let limits = |host: u64, device: u64| match device {
                0 => format!("host={host},disk=1024TiB"),
                device => format!("host={host},device={device},disk=1024TiB"),
            };
            assert!(case.plan(&limits(host, device)).fits, "{name}: {host} B of host, {device} of a card");
            let short = case.plan(&limits(host - 4096, device));
            let error = short.plan.refusal().expect_err("it does not fit");
            assert_eq!((short.fits, error.slug), (false, "host-pool-exceeded"), "{name}");
            if device > 0 {
                // A host with room for more would take the inputs of layers.
                let short = case.plan(&limits(host, device - 1));
                assert!(
                    !short.fits && short.plan.refusal().is_err(),
                    "{name}: less than {device} B of a card"
                );
            }
        }
    }
}

/// The same run on a card, of whose driver built-in numbers are known.
fn on_a_card(mut case: Case) -> Case {
    case.run.run.device = plimsoll_config::Auto::Value(plimsoll_config::RunDevice::Cuda);
    case
}

#[test]
fn what_the_planner_chose_is_planned_the_same_when_it_is_written_down() {
    for (name, case) in each(&[]) {
        let (host, _) = case.least();
        for limits in [ROOMY.to_string(), format!("host={},disk=1024TiB", host + host / 20)] {
            let open = case.plan(&limits);
            let file = open.resolved.write_into(&case.file);
            let written = Case { run: RunSpec::new(&file), ..case.clone() }.plan(&limits);
            assert_eq!(open.plan.layout.regions, written.plan.layout.regions, "{name} under {limits}");
            assert_eq!(open.resolved.micro_batch_tokens, written.resolved.micro_batch_tokens);
        }
    }
}

#[test]
fn the_arena_is_its_resident_rows_and_its_largest_phase() {
    for (name, case) in each(&[]) {
        let plan = case.plan(ROOMY).plan;
        let arena = |phases: &dyn Fn(&PhaseSet) -> bool| {
            plan.layout.sum(|region| region.place == Place::Arena && phases(&region.phases)).0
        };
        let resident = arena(&|phases| phases.is_resident());
        let own = |phase: Phase| arena(&|phases| !phases.is_resident() && phases.contains(phase));
        let largest = Phase::ALL.into_iter().map(own).max().expect("phases");
        assert_eq!(plan.arena_bytes().0, resident + largest, "{name}");
        let parts: u64 = plan.host_parts().into_iter().map(|(_, bytes)| bytes.0).sum();
        assert_eq!(parts, plan.peak(Pool::Host).peak.0, "{name}: the parts are the peak");
        assert!(plan.process_peak() <= plan.peak(Pool::Host).peak, "{name}");
    }
}

#[test]
fn no_two_rows_of_a_phase_have_one_name() {
    for (name, case) in each(&[]) {
        let plan = case.plan(ROOMY).plan;
        for phase in Phase::ALL {
            let mut names = BTreeSet::new();
            for region in plan.layout.regions.iter().filter(|region| region.phases.contains(phase)) {
                assert!(names.insert(&region.name), "{name}: {} twice in {}", region.name, phase.name());
            }
        }
    }
}

#[test]
fn each_role_has_its_weights_and_who_learns_has_gradients_and_states() {
    let parameters = |case: &Case| case.facts.spec.parameters();
    for model in MODELS {
        let case = |method: &str, sets: &[&str]| method_case(method, model, &[&FIXED, sets].concat());
        let (grpo, kl, ppo) = (case("grpo", &[]), case("grpo", &["loss.kl_coef=0.1"]), case("ppo", &[]));
        let [plain, with_reference, with_critic] = [&grpo, &kl, &ppo].map(|case| case.plan(ROOMY));
        let weights = row(&plain, "actor.weights");
        assert!(weights >= 2 * parameters(&grpo), "{model}: {weights} B");
        assert_eq!(row(&with_reference, "reference.weights"), weights, "{model}");
        for state in ["grads", "adam_m", "adam_v"] {
            let of = |role: &str, report| row(report, &format!("{role}.{state}"));
            assert!(of("actor", &plain) >= 4 * parameters(&grpo), "{model}: {state}");
            assert_eq!(of("reference", &with_reference), 0, "{model}: it is frozen");
            assert!(of("critic", &with_critic) > 0, "{model}: {state} of the critic");
        }
        assert_eq!(row(&plain, "reference.weights") + row(&plain, "critic.weights"), 0, "{model}");
    }
}

#[test]
fn more_ranks_take_no_more_of_each_card_and_the_third_stage_takes_less() {
    let sets = ["model=random:qwen2.5-7b", "rollout.prompts_per_step=64", "train.micro_batch_tokens=4096"];
    let device = |ranks: usize, stage: &str| {
        let case = on_a_card(case(&[&sets[..], &[stage]].concat())).ranks(ranks);
        peak(&case.plan("host=64TiB,device=4TiB,disk=1024TiB"), Pool::Device)
    };
    let second: Vec<u64> = [1, 2, 4, 8].map(|ranks| device(ranks, "run.zero_stage=2")).to_vec();
    assert!(second.is_sorted_by(|a, b| a > b), "{second:?}");
    for ranks in [2, 4, 8] {
        assert!(device(ranks, "run.zero_stage=3") < device(ranks, "run.zero_stage=2"), "{ranks} ranks");
    }
}

#[test]
fn the_parts_of_ranks_hold_every_state() {
    let sets = [&["model=random:qwen2.5-0.5b", "run.zero_stage=2"][..], &FIXED].concat();
    let whole = case(&sets).plan(ROOMY);
    for ranks in [2, 3, 8] {
        let mut case = case(&sets).ranks(ranks);
        for state in ["actor.adam_m", "actor.adam_v"] {
            let mut all = 0;
            for rank in 0..ranks {
                case.facts.share.rank = rank;
                all += row(&case.plan(ROOMY), state);
            }
            // Each has room for the largest part, and parts end at the ends of rows.
            let one = row(&whole, state);
            assert!(one <= all && all < one + one / 20, "{ranks} ranks: {state} {all} of {one}");
        }
    }
}
