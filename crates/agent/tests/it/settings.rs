//! Tests what a run file of an environment policy may not say, and what follows from what it says.

use crate::rig::{case, load, try_case};
use plimsoll_base::Exit;
use plimsoll_device::Activation;

#[test]
fn what_cannot_be_is_refused_by_name() {
    for (sets, slug) in [
        (&["train.mini_batch=100"][..], "contradictory-keys"),
        (&["environment.frames_per_batch=254"], "contradictory-keys"),
        (&["environment.total_frames=100"], "contradictory-keys"),
        (&["rollout.group_size=4"], "contradictory-keys"),
        (&["method=grpo"], "contradictory-keys"),
        (&["run.device=cuda"], "contradictory-keys"),
        (&["train.recompute=layer"], "contradictory-keys"),
        (&["environment.num_workers=2"], "contradictory-keys"),
        (&["environment.gpu=allow"], "contradictory-keys"),
        (&["eval.prompts_max=2"], "contradictory-keys"),
        (&["eval.samples=2"], "contradictory-keys"),
        (&["eval.every=1", "eval.temperature=0.5"], "bad-value"),
        (&["eval.every=1", "eval.metric=pass_at_1"], "unknown-metric"),
        (&["environment.wings=2"], "unknown-key"),
        (&["model=builtin:nano"], "not-built"),
    ] {
        let error = load(sets).expect_err("a run file");
        assert_eq!((error.slug, error.exit), (slug, Exit::Usage), "{sets:?}: {error}");
    }
    for (sets, slug) in [
        (&["environment.env=CartPole"][..], "unknown-environment"),
        (&["environment.env_options.gravity=3"], "env-bad-option"),
        (&["environment.env=CliffWalking-v1"], "missing-key"),
        (&["model=mlp:64xx64"], "bad-value"),
        (&["model=mlp:64x64,gelu"], "bad-value"),
        (&["model=mlp:0"], "bad-value"),
        (&["model=mlp:5000"], "bad-value"),
    ] {
        let error = try_case(sets).err().unwrap_or_else(|| panic!("{sets:?} are settings"));
        assert_eq!((error.slug, error.exit), (slug, Exit::Usage), "{sets:?}: {error}");
    }
}

#[test]
fn an_episode_ends_at_the_shorter_of_both_limits() {
    let frames = |more: &[&str]| case(more).settings.episode_frames_max;
    assert_eq!(frames(&[]), 500, "CartPole-v1 says so");
    assert_eq!(frames(&["environment.max_frames_per_traj=70"]), 70);
    assert_eq!(frames(&["environment.max_frames_per_traj=900"]), 500);
    assert_eq!(frames(&["environment.env=CliffWalking-v1", "environment.max_frames_per_traj=900"]), 900);
}

#[test]
fn no_thread_is_without_an_environment() {
    let lanes = |sets: &[&str]| {
        let settings = case(sets).settings;
        (settings.threads, settings.lanes)
    };
    assert_eq!(lanes(&["run.threads=2"]), (2, 2));
    assert_eq!(lanes(&["run.threads=16"]), (16, 4));
    assert_eq!(lanes(&["run.threads=16", "environment.num_envs=16"]), (16, 16));
}

#[test]
fn a_model_is_its_widths_and_its_activation() {
    let network = |model: &str| case(&[&format!("model={model}")]).settings.network.spec;
    let (plain, relu) = (network("mlp:32x16"), network("mlp:7,relu"));
    assert_eq!((plain.hidden.as_slice(), plain.activation), (&[32, 16][..], Activation::Tanh));
    assert_eq!((relu.hidden.as_slice(), relu.activation), (&[7][..], Activation::Relu));
    assert_eq!((plain.inputs, plain.head.outputs()), (4, 2));
    // Actor: 4 to 7 to 2; critic: 4 to 7 to 1; each with biases.
    assert_eq!(relu.parameters(), (5 * 7 + 8 * 2) + (5 * 7 + 8));
}
