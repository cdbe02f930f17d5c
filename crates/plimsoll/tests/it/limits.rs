//! What the summary says of a run's phases and their limits.

use crate::run::{Run, SMALL, number};

/// The limits are below what was measured, and those of a run that was resumed are of all its steps.
#[test]
fn phases_have_limits_that_no_run_beats() {
    let folder = Run::new(SMALL);
    let whole = folder.summary("whole", &["train.steps=4"])["limits"].clone();
    folder.train("part", &["train.steps=2"]);
    let part = folder.summary("part", &["train.steps=4", "--resume"])["limits"].clone();
    for limits in [&whole, &part] {
        for phase in ["rollout", "update"] {
            let of = |name: &str| number(&limits[phase], name);
            assert!(0.0 < of("limit_seconds") && of("limit_seconds") < of("seconds"), "{limits}");
            assert!((of("share") - of("limit_seconds") / of("seconds")).abs() < 1e-9, "{limits}");
            assert!(
                ["memory", "arithmetic", "latency"].map(Some).contains(&limits[phase]["bound_by"].as_str()),
                "{limits}"
            );
        }
        assert!(number(&limits["other"], "share") > 0.0, "{limits}");
    }
    let ranks = folder.summary("ranks", &["train.steps=1", "--ranks=2"]);
    assert!(ranks["limits"].is_null(), "{ranks}");
}
