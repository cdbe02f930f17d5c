//! Tests what summaries and benchmarks say of phases and their limits.

use crate::common::{command, text};
use crate::run::{Run, SMALL, number};
use serde_json::Value;

/// Bytes of the built-in model in bf16: 855,040 parameters. Its embedding is its head: a token computes with all of it.
const WEIGHTS: f64 = 2.0 * 855_040.0;

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

fn bench(args: &[&str], isa: &str) -> (Value, String) {
    let common = ["--model=builtin:nano", "--device=cpu", "--threads=1", "--repeats=2", "--json"];
    let output =
        command(&[&["bench"], args, &common].concat()).env("PLIMSOLL_ISA", isa).output().expect("it runs");
    let said = text(&output.stderr);
    (serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}")), said)
}

/// Each phase has its work, and its share is that of the lower of the two limits that the measured peaks give.
#[test]
fn benchmarks_show_how_near_the_limit_each_phase_is() {
    let rollout = ["rollout", "--sequences=4", "--prompt-tokens=8", "--new-tokens=8"];
    let train = ["train", "--batch=2", "--seq=16"];
    let step = ["step", "--prompts=2", "--group=2", "--prompt-tokens=8", "--new-tokens=8"];
    for (args, phases) in
        [(&rollout[..], &["rollout"][..]), (&train, &["update"]), (&step, &["rollout", "update"])]
    {
        let (found, said) = bench(args, "");
        let (flops, bandwidth) = (number(&found["peak"], "flops"), number(&found["peak"], "bandwidth"));
        assert!(
            said.contains(&format!("peak: {:.1} GFLOP/s, {:.1} GB/s", flops * 1e-9, bandwidth * 1e-9)),
            "{said}"
        );
        for phase in ["rollout", "update"] {
            let of = &found["limits"][phase];
            assert_eq!(of.is_object(), phases.contains(&phase), "{found}");
            assert_eq!(said.contains(&format!("  {phase}: ")), of.is_object(), "{said}");
            if of.is_object() {
                let least = (number(of, "flops") / flops).max(number(of, "bytes") / bandwidth);
                assert!((number(of, "share") * number(of, "seconds") / least - 1.0).abs() < 1e-9, "{found}");
                assert!(number(of, "flops") > 0.0 && number(of, "bytes") > 0.0, "{found}");
                assert!(0.0 < number(of, "share") && number(of, "share") < 1.0, "{found}");
            }
        }
    }
}

/// A pass reads each weight once; an update moves them, gradients and both moments, in bf16; a path has its own peak.
#[test]
fn bytes_are_counted_from_the_work_and_peaks_are_of_the_path() {
    let rollout =
        |new: &str, isa: &str| bench(&["rollout", "--sequences=4", "--prompt-tokens=8", new], isa).0;
    let (few, many) = (rollout("--new-tokens=4", "scalar"), rollout("--new-tokens=12", ""));
    let bytes = |found: &Value, phase: &str| number(&found["limits"][phase], "bytes");
    let weights = (bytes(&many, "rollout") - bytes(&few, "rollout")) / 8.0;
    assert_eq!(weights, WEIGHTS);
    assert!(number(&few["peak"], "flops") < number(&many["peak"], "flops"), "{few} {many}");
    let train = bench(&["train", "--batch=2", "--seq=16"], "").0;
    assert_eq!(bytes(&train, "update"), WEIGHTS * 10.0);
}
