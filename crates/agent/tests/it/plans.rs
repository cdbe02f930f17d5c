//! The plan of a run against what the run takes.

use crate::rig::{Case, case};
use plimsoll_agent::experience::Experience;
use plimsoll_agent::plan::{AgentPlan, checkpoint_bytes};
use plimsoll_base::{Exit, Phase};
use plimsoll_memory::{Limits, Pool};
use plimsoll_plan::parse_limits;

fn plan(case: &Case, limits: &str) -> AgentPlan {
    let limits: Limits = parse_limits(limits).expect("limits");
    AgentPlan::new(&case.run, &case.settings, &limits).expect("sizes of machines")
}

const ROOMY: &str = "host=64GiB,disk=1TiB";

#[test]
fn a_larger_run_takes_no_fewer_bytes() {
    let bytes = |sets: &[&str]| {
        let plan = plan(&case(sets), ROOMY).plan;
        let phases = Phase::ALL.map(|phase| plan.in_phase(Pool::Host, phase));
        (phases, plan.peak(Pool::Disk).peak)
    };
    let base = bytes(&[]);
    for more in [
        &["environment.num_envs=8"][..],
        &["environment.frames_per_batch=512", "environment.total_frames=8192"],
        &["model=mlp:16x16"],
        &["train.mini_batch=128"],
        &["run.threads=3"],
        &["environment.normalise_observations=true"],
        &["eval.every=1"],
        &["checkpoint.every=2"],
    ] {
        let larger = bytes(more);
        let all = base.0.iter().zip(&larger.0).all(|(a, b)| a <= b);
        assert!(all && base.1 <= larger.1 && base != larger, "{more:?}: {base:?} {larger:?}");
    }
}

#[test]
fn the_arrays_of_a_rollout_are_as_large_as_planned() {
    for sets in [&["environment.env=Pendulum-v1"][..], &["environment.normalise_observations=true"]] {
        let case = case(sets);
        let settings = &case.settings;
        let (width, dims) = (settings.network.reader.width(), settings.network.spec.head.action_dims());
        let is_normalised = settings.first_moments.is_some();
        let planned = Experience::bytes(settings.frames(), width, dims, is_normalised);
        case.world(|world| {
            world.rollout();
            let e = &world.experience;
            let of = |array: &Vec<f32>| 4 * array.capacity() as u64;
            let floats = [
                &e.inputs,
                &e.raw_inputs,
                &e.actions,
                &e.logprobs,
                &e.values,
                &e.rewards,
                &e.advantages,
                &e.returns,
                &e.bootstrap,
                &e.tails,
            ];
            // Two more are its own: the mask and the returns of which rewards are scaled.
            let own = 2 * 4 * settings.frames() as u64;
            let held: u64 = floats.into_iter().map(of).sum::<u64>()
                + own
                + 8 * (e.slices.capacity() + e.tail_slices.capacity()) as u64;
            assert_eq!(held, planned, "a rollout makes none of them larger");
            let arena = world.learner.params.all.len() as u64;
            let plan = plan(world.case, ROOMY).plan;
            let row = plan.layout.sum(|region| region.name == "actor.weights");
            assert_eq!(row.0, 4 * arena);
        });
    }
}

#[test]
fn a_run_that_does_not_fit_ends_with_the_numbers_and_what_to_lower() {
    let case = case(&[]);
    assert!(plan(&case, ROOMY).refuse().is_ok());
    let peak = plan(&case, ROOMY).plan.peak(Pool::Host).peak.0;
    assert!(plan(&case, &format!("host={peak},disk=1TiB")).refuse().is_ok());
    let short = plan(&case, &format!("host={},disk=1TiB", peak - 1));
    let error = short.refuse().expect_err("a byte is missing");
    assert_eq!((error.slug, error.exit), ("host-pool-exceeded", Exit::DoesNotFit));
    assert!(error.hints[0].contains("environment.frames_per_batch"), "{error}");
    assert!(short.table().ends_with("verdict: does not fit\n") && short.to_json()["fits"] == false);
}

#[test]
fn the_disk_holds_as_many_checkpoints_as_are_kept() {
    let files = |sets: &[&str]| {
        let case = case(sets);
        let one = checkpoint_bytes(&case.settings).0;
        (plan(&case, ROOMY).plan.layout.sum(|region| region.name == "checkpoint.files").0, one)
    };
    let (only, one) = files(&[]);
    assert_eq!(only, one, "the last one");
    let (kept, one) = files(&["checkpoint.every=2", "checkpoint.keep=3"]);
    assert_eq!(kept, 4 * one, "three, and the one that is written");
    let limit = format!("checkpoint.keep_bytes={}", 2 * one);
    let (bounded, one) = files(&["checkpoint.every=2", "checkpoint.keep=3", &limit]);
    assert_eq!(bounded, 3 * one);
}
