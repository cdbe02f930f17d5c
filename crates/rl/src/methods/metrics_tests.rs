//! Metrics of parts of a step: means over what is there, and names that nothing hides.

use super::*;
use plimsoll_infer::text::Item;
use plimsoll_reward::Tally;
use plimsoll_textenv::EnvironmentTally;

fn scored(total: Option<f32>, parts: &[Option<f32>]) -> Scored {
    Scored { total, parts: parts.to_vec(), ..Scored::default() }
}

fn group(set: usize, totals: &[Option<f32>]) -> SampleGroup {
    let scored = totals.iter().map(|&total| scored(total, &[])).collect();
    let item = Item { set, ..Item::default() };
    SampleGroup { position: 0, item, scored, texts: Vec::new(), branches: None, greedy: None }
}

#[test]
fn each_set_has_the_mean_of_its_own_samples_and_its_share_of_the_prompts() {
    let groups = [
        group(0, &[Some(1.0), Some(0.0)]),
        group(1, &[None, Some(0.5)]),
        group(0, &[Some(1.0), None]),
        group(2, &[None, None]),
    ];
    let mut metrics = Metrics::default();
    add_sets(&mut metrics, &["easy", "hard", "odd", "unused"], &groups);
    assert!((metrics["sets/easy/reward"] - 2.0 / 3.0).abs() < 1e-12);
    assert_eq!((metrics["sets/hard/reward"], metrics["sets/easy/share"]), (0.5, 0.5));
    // A set without a score has no mean, and one without a prompt is there with 0 of them.
    assert!(!metrics.contains_key("sets/odd/reward") && !metrics.contains_key("sets/unused/reward"));
    assert_eq!((metrics["sets/odd/share"], metrics["sets/unused/share"]), (0.25, 0.0));
    let mut one = Metrics::default();
    add_sets(&mut one, &["all"], &groups);
    add_sets(&mut one, &["a", "b"], &[]);
    assert!(one.is_empty(), "one set is the whole, and no group has no mean");
}

#[test]
fn a_reward_s_mean_is_over_the_samples_that_it_scored() {
    let all = [
        scored(None, &[Some(1.0), None, None]),
        scored(None, &[Some(0.0), Some(3.0), None]),
        scored(None, &[Some(0.5), None, None]),
    ];
    let metrics = of_reward_parts(&["a", "b", "c"], all.iter());
    assert_eq!((metrics["rewards/a/mean"], metrics["rewards/b/mean"]), (0.5, 3.0));
    assert!(!metrics.contains_key("rewards/c/mean"), "it scored none");
    assert!(of_rewards(&RewardMetrics::default(), false).is_empty(), "without a score there is no reward");
}

#[test]
fn what_a_function_logs_hides_none_of_its_own_failures() {
    let tally = Tally { timeouts: 3, ..Tally::default() };
    let gathered = Gathered {
        tallies: vec![("mine".into(), tally)],
        logged: vec![("mine/timeouts".into(), 0.0), ("length".into(), 12.5)],
        rollout_s: 0.0,
        tokens: 100,
        ..Gathered::default()
    };
    let mut metrics = Metrics::default();
    add_rollout(&mut metrics, &gathered);
    assert_eq!((metrics["rewards/mine/timeouts"], metrics["rewards/length"]), (3.0, 12.5));
    assert!(metrics["tokens_per_second/rollout"].is_finite(), "a rollout that took no time");
    assert!(!metrics.keys().any(|name| name.starts_with("dynamic_sampling/")), "nothing was filtered");
}

#[test]
fn dynamic_sampling_says_how_much_of_what_was_sampled_is_used() {
    let gathered = Gathered {
        filters: true,
        rounds: 3,
        sampled: 12,
        passed: 9,
        missing: 1,
        rewards: 6.0,
        rewarded: 24,
        ..Gathered::default()
    };
    let mut metrics = Metrics::default();
    add_rollout(&mut metrics, &gathered);
    let of = |name: &str| metrics[&format!("dynamic_sampling/{name}")];
    assert_eq!([of("rounds"), of("kept_share"), of("missing"), of("reward")], [3.0, 0.75, 1.0, 0.25]);
    let nothing = Gathered::default();
    assert_eq!((nothing.kept_share(), nothing.mean_reward()), (0.0, 0.0), "no NaN before the first round");
}

#[test]
fn turns_beyond_the_eighth_are_in_the_means_alone() {
    let report = RoundReport {
        turns_mean: 9.5,
        return_mean: 2.0,
        by_turn: (0..12).map(|t| (1.0 / f64::from(t + 1), f64::from(t))).collect(),
        tally: EnvironmentTally { timeouts: 2, ..EnvironmentTally::default() },
        fault: None,
    };
    let gathered = Gathered { episodes: Some(report), ..Gathered::default() };
    let mut metrics = Metrics::default();
    add_rollout(&mut metrics, &gathered);
    assert_eq!((metrics["episode/turn_1/share"], metrics["episode/turn_8/reward"]), (1.0, 7.0));
    assert!(!metrics.contains_key("episode/turn_9/share"));
    assert_eq!((metrics["episode/turns_mean"], metrics["environment/timeouts"]), (9.5, 2.0));
    // Without an episode there is no mean, and no -0.0.
    let gathered = Gathered { episodes: Some(RoundReport::default()), ..Gathered::default() };
    let mut metrics = Metrics::default();
    add_rollout(&mut metrics, &gathered);
    assert!(!metrics.keys().any(|name| name.starts_with("episode/")));
    assert_eq!(metrics["environment/timeouts"], 0.0);
}
