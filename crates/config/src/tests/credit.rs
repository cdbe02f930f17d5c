//! `environment.credit` with each advantage: what compares turns, what is refused by name, and what stays as it was.

use super::{EPISODES, GOOD, load_text};
use crate::RunSpec;
use plimsoll_algo::turns::TurnCredit;

fn credit(sets: &[&str]) -> Option<TurnCredit> {
    let loaded = load_text(EPISODES, sets, &[]).unwrap_or_else(|error| panic!("{sets:?}: {error}"));
    RunSpec::new(&loaded.run).turn_credit()
}

#[test]
fn a_group_is_compared_turn_by_turn_where_that_has_a_meaning() {
    let [turn, process] = ["environment.credit=turn", "environment.credit=process"];
    for (method, of_turn, of_process) in [
        ("grpo", true, true),
        ("gspo", true, true),
        ("dr_grpo", true, true),
        ("reinforce_baseline", true, true),
        ("clip_cov", true, true),
        ("rloo", true, false),
        ("opo", true, false),
    ] {
        let method = format!("method={method}");
        assert_eq!(credit(&[&method, turn]), of_turn.then_some(TurnCredit::Returns), "{method}");
        if of_process {
            assert_eq!(credit(&[&method, process]), Some(TurnCredit::Process), "{method}");
        }
        assert_eq!(credit(&[&method]), None, "{method}");
    }
    // Without a group a turn's reward is placed on its last token.
    for method in ["method=reinforce", "method=ppo"] {
        assert_eq!(credit(&[method, turn]), None, "{method}");
    }
    let baseline = ["method=reinforce", "loss.advantage=rloo", turn];
    assert_eq!(credit(&baseline), Some(TurnCredit::Returns));
    assert_eq!(credit(&["loss.advantage=python:a.py:f", turn]), None, "a function gets what was placed");
}

#[test]
fn what_a_turn_cannot_have_is_refused_by_name() {
    let [turn, process] = ["environment.credit=turn", "environment.credit=process"];
    for (sets, contains) in [
        (&["method=gpg", turn][..], "loss.advantage = \"gpg\", which counts the whole samples of a step"),
        (&["method=pass_k", turn], "loss.advantage = \"lead\", which pays the best whole sample"),
        (&["method=gdpo", turn], "loss.advantage = \"decoupled\", which compares each reward"),
        (&["method=gpg", process], "set loss.advantage = \"group_norm\" or \"mean_baseline\""),
        (&["method=rloo", process], "an episode's other turns stay in it"),
        (&["method=opo", process], "which weighs whole samples by their lengths"),
        (&["method=reinforce", process], "loss.advantage = \"none\", which compares no group"),
        (&["method=ppo", process], "loss.advantage = \"gae\", which compares no group"),
        (&["loss.advantage=python:a.py:f", process], "which compares no group"),
        (&["method=reinforce", "loss.advantage=rloo", "loss.gamma=0.9", turn], "remove loss.gamma"),
    ] {
        let error = load_text(EPISODES, sets, &[]).expect_err(&format!("{sets:?}"));
        assert_eq!(error.slug, "contradictory-keys", "{sets:?}: {error}");
        assert!(error.to_string().contains(contains), "{sets:?} lacks {contains}: {error}");
    }
    let agents = ["environment.env=http-agent", "data.prompt_tokens_max=64", process];
    let error = load_text(EPISODES, &agents, &[]).expect_err("one reward an episode");
    assert!(
        error.to_string().contains("environment.env = \"http-agent\", whose agent reports one"),
        "{error}"
    );
}

/// A run whose reward can return steps.
const STEPS: [&str; 2] = ["reward.0.kind=python:a.py:f", "loss.step_credit=turn"];

#[test]
fn steps_are_read_and_compared_where_a_reward_can_return_them() {
    let of = |sets: &[&str]| {
        let loaded = load_text(GOOD, sets, &[]).unwrap_or_else(|error| panic!("{sets:?}: {error}"));
        let spec = RunSpec::new(&loaded.run);
        (spec.turn_credit(), spec.rewards[0].steps)
    };
    assert_eq!(of(&STEPS), (Some(TurnCredit::Returns), true));
    assert_eq!(of(&[STEPS[0], "loss.step_credit=process"]), (Some(TurnCredit::Process), true));
    assert!(of(&["reward.0.kind=http://a/b", STEPS[1]]).1);
    assert_eq!(of(&STEPS[..1]), (None, false));
    for (sets, slug, contains) in [
        (&STEPS[1..], "contradictory-keys", "no [[reward]] that can return steps"),
        (&[STEPS[0], "loss.step_credit=episode"], "bad-value", "takes turn, process"),
        (&[STEPS[0], STEPS[1], "method=gpg"], "contradictory-keys", "loss.advantage = \"gpg\""),
        (&[STEPS[0], STEPS[1], "method=reinforce"], "contradictory-keys", "which compares no group"),
        (&[STEPS[0], STEPS[1], "method=optimal_token"], "contradictory-keys", "a baseline of each token"),
        (&[STEPS[0], STEPS[1], "method=remax"], "contradictory-keys", "which compares no group"),
        (&[STEPS[0], STEPS[1], "loss.overlong_buffer=2"], "contradictory-keys", "kind = \"length\""),
        (
            &[STEPS[0], "method=rloo", "loss.step_credit=process"],
            "contradictory-keys",
            "remove loss.step_credit",
        ),
    ] {
        let error = load_text(GOOD, sets, &[]).expect_err(&format!("{sets:?}"));
        assert_eq!(error.slug, slug, "{sets:?}: {error}");
        assert!(error.to_string().contains(contains), "{sets:?} lacks {contains}: {error}");
    }
    let error = load_text(EPISODES, &STEPS[1..], &[]).expect_err("episodes have turns");
    assert!(error.to_string().contains("[environment], which has turns"), "{error}");
}
