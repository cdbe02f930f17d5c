//! A fault of an environment, from the rank where it was to the error of the run.

use super::*;
use plimsoll_base::slugs;

#[test]
fn the_error_of_too_many_faults_has_the_first_one_in_its_own_words() {
    let error = Error::new(slugs::TEXT_ENVIRONMENT_TIMEOUT, "step took longer than 500 ms")
        .fact("it was episode 7")
        .hint("raise environment.step_timeout_ms");
    let fault = Fault::of(&error).on_rank(2);
    // As JSON text, between ranks.
    let text = serde_json::to_string(&fault).expect("plain data");
    assert_eq!(serde_json::from_str::<Fault>(&text).expect("its own form"), fault);
    let error = fault.too_many("python:env.py:Chess", 9, 5);
    assert_eq!(error.slug, "text-environment-failing");
    assert_eq!(
        error.message,
        "python:env.py:Chess: 9 episodes of one rollout failed, environment.restarts_max is 5"
    );
    let first = format!("the first, {}: step took longer than 500 ms", slugs::TEXT_ENVIRONMENT_TIMEOUT);
    assert_eq!(error.facts, [first.as_str(), "it was episode 7", "it was on rank 2"]);
    assert_eq!(error.hints[0], "raise environment.step_timeout_ms");
    assert!(error.hints[1].starts_with("environment.restarts_max is how many may fail"), "{error}");
}
