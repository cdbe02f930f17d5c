//! `rollout.schema`, from outside: every response is of the form, and log-probabilities of the update and of the
//! reference are those of the masked distribution, to the bit.

use crate::carry::{as_after, long};
use crate::ranks::left;
use crate::run::{Run, SMALL, number};
use serde_json::Value;

/// Numbers of any length: at the temperature of `long` one in five ends at a token.
const NUMBERS: &str = "rollout.schema=regex:[1-9][0-9]*(\\+[1-9]+)?";

fn is_held(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
    !text.starts_with('0') && text.split('+').count() <= 2 && text.split('+').all(digits)
}

#[test]
fn responses_of_a_run_are_of_its_form_and_the_update_has_the_same_bits() {
    let folder = Run::new(SMALL);
    let sets = long(&[
        NUMBERS,
        "loss.kl_coef=0.01",
        "train.cut_multiple=4",
        "checkpoint.every=1",
        "checkpoint.keep=6",
    ]);
    folder.train("a", &sets);
    let metrics = folder.metrics("a");
    assert!(metrics.iter().all(|step| number(step, "rollout/logprob_mismatch_max") == 0.0));
    let lines = (1..=6).flat_map(|step| folder.read_lines(&format!("a/samples/step-{step:06}.jsonl")));
    let lines: Vec<Value> = lines.collect();
    let ended = |line: &&Value| line["finish"] != "length";
    let texts: Vec<&str> = lines.iter().filter(ended).filter_map(|line| line["response"].as_str()).collect();
    assert!(texts.len() > 10 && texts.iter().all(|text| is_held(text)), "{texts:?}");
    let bits = left(&folder, "a");
    folder.train("ranks", &[&sets[..], &["--ranks=2"]].concat());
    assert_eq!(left(&folder, "ranks"), bits, "two ranks");
    let again = as_after(&folder, "a", 2);
    folder.train(&again, &[&sets[..], &["--resume"]].concat());
    assert_eq!(left(&folder, &again), bits, "after a kill");
}

#[test]
fn a_form_that_no_response_can_have_ends_the_run_before_it_begins() {
    let folder = Run::new(SMALL);
    for (schema, code, slug) in [
        ("rollout.schema=regex:[a-z]+", 1, "grammar-invalid"),
        ("rollout.schema=none.json", 2, "schema-unreadable"),
        ("rollout.schema={\"type\":\"integer\",\"minimum\":5,\"maximum\":3}", 1, "grammar-invalid"),
    ] {
        folder.train_refused("a", &[schema], code, &[slug]);
    }
}
