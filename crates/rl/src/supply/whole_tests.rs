//! What a rollout is short of, and the error where no group is kept.

use super::*;
use crate::rollout::counted::CountedByAll;
use plimsoll_reward::Tally;

#[test]
fn a_rollout_without_a_kept_group_says_what_was_wanted_and_what_came() {
    let gathered = Gathered { rounds: 4, sampled: 32, rewards: 8.0, rewarded: 256, ..Gathered::default() };
    for (filter, wanted) in [
        (Some(GroupFilter::Mean { low: 0.1, high: 0.9 }), "a mean score above 0.1 and below 0.9"),
        (Some(GroupFilter::Mixed), "scores that differ"),
    ] {
        let error = exhausted(filter, &gathered, 7);
        assert_eq!(error.slug, slugs::DYNAMIC_SAMPLING_EXHAUSTED);
        assert_eq!(error.message, format!("step 7: none of 32 groups in 4 rounds has {wanted}"));
        assert_eq!(error.facts, ["mean score 0.03125 over 256 samples"]);
    }
}

#[test]
fn failures_of_rounds_add_up_and_what_was_logged_is_the_last_round_s() {
    let round = |crashes, length| CountedByAll {
        tallies: vec![("mine".into(), Tally { crashes, ..Tally::default() })],
        logged: vec![("length".into(), length)],
    };
    let mut gathered = Gathered::default();
    gathered.add_counted(round(2, 10.0));
    gathered.add_counted(round(3, 20.0));
    let other = vec![("other".into(), Tally { none: 1, ..Tally::default() })];
    gathered.add_counted(CountedByAll { tallies: other, logged: vec![("length".into(), 30.0)] });
    let crashes: Vec<(&str, u64)> =
        gathered.tallies.iter().map(|(name, tally)| (name.as_str(), tally.crashes + tally.none)).collect();
    assert_eq!(crashes, [("mine", 5), ("other", 1)]);
    assert_eq!(gathered.logged, [("length".to_string(), 30.0)]);
}

/// More prompts than a rollout has would have no room, and fewer than are missing could never be enough.
#[test]
fn a_further_round_is_never_too_small_and_never_larger_than_a_rollout() {
    for sampled in 1..40 {
        for passed in 0..=sampled {
            for missing in 1..16 {
                let round = Gathered { sampled, passed, ..Gathered::default() }.next_round(missing, 16);
                assert!((missing..=16).contains(&round), "{passed} of {sampled}, {missing} missing: {round}");
            }
        }
    }
}
