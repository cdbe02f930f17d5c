//! The numbers of an evaluation.

use plimsoll_infer::eval::{add_group, end_sums};
use plimsoll_reward::Scored;
use plimsoll_run::scores::EvalReport;

fn scored(score: Option<f32>) -> Scored {
    Scored { total: score, parts: vec![score], ..Scored::default() }
}

#[test]
fn means_are_over_responses_with_a_score_and_over_prompts() {
    let mut report = EvalReport::default();
    add_group(&mut report, &[scored(Some(1.0)), scored(Some(0.0)), scored(None)]);
    add_group(&mut report, &[scored(Some(0.5)), scored(None), scored(None)]);
    end_sums(&mut report, 2);
    assert_eq!((report.num_samples, report.num_unscored), (6, 3));
    assert_eq!((report.score, report.best), (Some(0.5), Some(0.75)));
    // One response of three succeeds for the first prompt, none for the second.
    assert_eq!(report.pass_rates, [1.0 / 3.0, 0.0]);
    assert!((report.pass_at_k[&1] - 1.0 / 6.0).abs() < 1e-12, "{:?}", report.pass_at_k);
}

#[test]
fn nothing_scored_is_no_score_rather_than_a_zero() {
    let mut report = EvalReport::default();
    add_group(&mut report, &[scored(None)]);
    end_sums(&mut report, 1);
    assert_eq!((report.score, report.best, report.num_unscored), (None, None, 1));
    let mut empty = EvalReport::default();
    end_sums(&mut empty, 0);
    assert_eq!((empty.score, empty.best, empty.num_samples), (None, None, 0));
}
