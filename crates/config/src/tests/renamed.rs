//! Keys that had other names before.

use super::*;

#[test]
fn keys_that_were_renamed_are_taken_and_say_their_names() {
    for (old, now) in [
        ("rollout.ahead", "async.staleness"),
        ("rollout.carry", "async.partial_rollouts"),
        ("rollout.policy_lag", "async.reuse"),
    ] {
        let was = load_text(GOOD, &[&format!("{old}=2")], &[]).unwrap();
        let is = load_text(GOOD, &[&format!("{now}=2")], &[]).unwrap();
        assert_eq!((&was.run, is.notes.len()), (&is.run, 0), "{old}");
        assert_eq!(was.notes, [format!("`{old}` is called `{now}` now")]);
    }
    let sets = ["rollout.ahead=1", "rollout.arrivals=tick", "run.rollout_ranks=1"];
    let of = load_text(GOOD, &sets, &[]).unwrap().run.asynchrony;
    assert_eq!((of.staleness, of.weight_sync.as_str(), of.rollout_ranks), (1, "tick", 1));
    let bounded = GOOD.replace("max_new_tokens = 5", "max_new_tokens = 5\ncarry = 4\nlag_tokens_max = 3");
    let run = load_text(&bounded, &[], &[]).unwrap().run;
    assert_eq!((run.asynchrony.partial_rollouts, run.asynchrony.stale_tokens_max), (4, Some(3)));
    assert!(run.to_toml().contains("[async]\n"), "{}", run.to_toml());
    let both = load_text(&bounded, &["async.partial_rollouts=5"], &[]).unwrap().run;
    assert_eq!(both.asynchrony.partial_rollouts, 5, "--set comes after the file");
}
