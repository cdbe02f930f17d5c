//! What a plan says to people and programs: the same numbers, and a verdict.

use crate::rig::{ROOMY, case};
use plimsoll_memory::Pool;
use plimsoll_plan::duration;

#[test]
fn a_time_has_a_unit_in_which_its_number_is_short() {
    for (seconds, words) in [
        (0.0, "0.0 ms"),
        (0.0123, "12.3 ms"),
        (1.0, "1.0 s"),
        (99.94, "99.9 s"),
        (100.0, "100 s"),
        (299.0, "299 s"),
        (300.0, "5.0 minutes"),
        (7199.0, "120.0 minutes"),
        (7200.0, "2.0 hours"),
        (172_800.0, "2.0 days"),
    ] {
        assert_eq!(duration(seconds), words);
    }
    // No number is longer than four digits below a year.
    let times = (0..400).map(|n| 1e-4 * 1.07_f64.powi(n)).take_while(|seconds| *seconds < 3.15e7);
    for seconds in times {
        let said = duration(seconds);
        let number = said.split(' ').next().expect("a number").replace('.', "");
        assert!(number.len() <= 4, "{seconds} s: {said}");
    }
}

#[test]
fn the_table_has_every_row_and_the_object_the_same_bytes() {
    let report = case(&["run.device=cpu", "loss.kl_coef=0.1"]).plan("host=8GiB,disk=1TiB");
    let (table, object) = (report.table(), report.to_json());
    for region in &report.plan.layout.regions {
        assert!(table.lines().any(|line| line.starts_with(&format!("{} ", region.name))), "{}", region.name);
    }
    assert_eq!(object["regions"].as_array().map(Vec::len), Some(report.plan.layout.regions.len()));
    for pool in Pool::ALL {
        let peak = report.plan.peak(pool);
        assert_eq!(object["pools"][pool.name()]["peak_bytes"], peak.peak.0, "{}", pool.name());
    }
    assert_eq!(object["arena_bytes"], report.plan.arena_bytes().0);
    let arena = format!("arena: {} ({} bytes)\n", report.plan.arena_bytes(), report.plan.arena_bytes().0);
    assert!(table.contains(&arena) && table.ends_with("verdict: fits\n"), "{table}");
    let steps = format!("  {} steps and {} evaluations of ", report.steps, report.evaluations.count);
    assert!(table.contains(&steps), "{table}");
}

#[test]
fn the_verdict_is_that_of_the_numbers() {
    let mut report = case(&["run.device=cpu"]).plan(ROOMY);
    assert!(report.refuse().is_ok());
    report.assumed.push("the model has 15 tokens".into());
    let said = report.table();
    assert!(said.ends_with("verdict: fits, if what is assumed holds\n"), "{said}");
    assert!(said.contains("assumed: the model has 15 tokens\n"));
    let refused = case(&["run.device=cpu"]).plan("host=60MiB,disk=1TiB");
    let said = refused.table();
    assert!(
        said.ends_with("verdict: does not fit\n")
            && said.contains("\nthe smallest setting: micro_batch_tokens "),
        "{said}"
    );
    assert!(!said.contains("predicted step"), "it is never run: {said}");
    let error = refused.refuse().expect_err("it does not fit");
    assert_eq!((error.slug, error.hints.len()), ("host-pool-exceeded", refused.hints.len()));
    assert!(error.message.contains("the limit is 60.0 MiB (--limit)"), "{error}");
    for (said, hint) in error.hints.iter().zip(&refused.hints) {
        assert!(
            said.ends_with(&hint.why) && said.contains(hint.set.as_deref().unwrap_or_default()),
            "{said}"
        );
    }
}

#[test]
fn ranks_are_named_with_what_all_of_them_take() {
    let report = case(&["run.device=cpu"]).ranks(4).plan(ROOMY);
    let all = plimsoll_base::Bytes(4 * report.plan.peak(Pool::Host).peak.0);
    let words = format!("4 ranks on this host: {all} together; the rows are of each\n");
    assert!(report.table().contains(&words), "{}", report.table());
    assert_eq!((&report.to_json()["ranks"], &report.to_json()["hosts"]), (&4.into(), &1.into()));
}
