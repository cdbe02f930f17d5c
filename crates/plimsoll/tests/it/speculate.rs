//! `rollout.speculate`, from outside: drafts change the passes of a rollout and nothing else, whatever the run is.

use crate::carry::{as_after, long};
use crate::common::{check_refused, in_turn, turn};
use crate::ranks::left;
use crate::run::{Run, SMALL, json, number, region};
use serde_json::Value;

/// What a run left, without the counts of drafts.
fn bits(folder: &Run, dir: &str) -> Vec<String> {
    let without = |line: String| match serde_json::from_str::<Value>(&line) {
        Ok(Value::Object(mut metrics)) => {
            metrics.retain(|name, _| !name.starts_with("speculate/"));
            serde_json::to_string(&metrics).expect("JSON")
        }
        _ => line,
    };
    left(folder, dir).into_iter().map(without).collect()
}

#[test]
fn a_run_has_the_same_bits_with_drafts() {
    let folder = Run::new(SMALL);
    let sets = |more: &[&'static str]| long(&[&["train.cut_multiple=4"], more].concat());
    folder.train("off", &sets(&["checkpoint.every=1", "checkpoint.keep=6"]));
    let off = bits(&folder, "off");
    let ways: [(&str, &[&str]); 6] = [
        ("ngram", &["rollout.speculate=ngram"]),
        ("suffix", &["rollout.speculate=suffix", "rollout.speculate_depth=32"]),
        ("few", &["rollout.speculate=suffix", "rollout.sequences_max=3", "rollout.speculate_texts=0"]),
        (
            "full",
            &[
                "rollout.speculate=auto",
                "rollout.on_full=preempt",
                "rollout.sequences_max=16",
                "rollout.kv_blocks=6",
            ],
        ),
        ("ranks", &["rollout.speculate=suffix", "--ranks=2"]),
        (
            "stage-3",
            &["rollout.speculate=ngram", "--ranks=3", "run.zero_stage=3", "rollout.speculate_depth=1"],
        ),
    ];
    for (dir, more) in in_turn(turn(), &ways) {
        folder.train(dir, &sets(more));
        assert_eq!(bits(&folder, dir), off, "{dir}");
        // A step without drafts has no such counts.
        let of = |step: &Value, name: &str| step[name].as_f64().unwrap_or(0.0);
        let sum = |name: &str| -> f64 { folder.metrics(dir).iter().map(|step| of(step, name)).sum() };
        // How many there are depends on what passes cost on this machine.
        assert!(sum("speculate/drafts") >= sum("speculate/accepted"), "{dir}");
    }
    // Drafts may begin in the middle of a run, whose earlier texts are then not known.
    let again = as_after(&folder, "off", 2);
    folder.train(&again, &[&sets(&["rollout.speculate=suffix"])[..], &["--resume"]].concat());
    assert_eq!(bits(&folder, &again), off);
}

#[test]
fn what_cannot_draft_is_named_and_auto_leaves_it_off() {
    let folder = Run::new(SMALL);
    let delta = ["model=random:qwen3.5-4b", "--limit=host=2TiB,disk=8TiB"];
    for (sets, code, contains) in [
        (&["rollout.speculate=mtp"][..], 2, &["error[not-built]", "\"ngram\", \"suffix\" and \"auto\""][..]),
        (&["rollout.speculate=tree"], 2, &["error[bad-value]", "off, ngram, suffix, auto"]),
        (
            &["rollout.speculate=ngram", "rollout.speculate_depth=0"],
            2,
            &["error[bad-value]", "speculate_depth"],
        ),
        (&["rollout.speculate=suffix", "rollout.schema=regex:[0-9]+"], 2, &["error[not-built]", "masks"]),
        (
            &["rollout.speculate=suffix", delta[0], delta[1]],
            2,
            &["error[not-built]", "linear attention", "\"auto\""],
        ),
    ] {
        folder.plan_refused(sets, code, contains);
    }
    for more in [&delta[..], &["rollout.schema=regex:[0-9]+"]] {
        let plan = folder.plan(&[more, &["rollout.speculate=auto"]].concat());
        assert!(region(&plan, "rollout.drafts").is_none(), "{more:?}");
    }
    let bytes = |texts: &'static str| {
        let plan = folder.plan(&["rollout.speculate=auto", texts]);
        number(region(&plan, "rollout.drafts").expect("a row"), "bytes")
    };
    assert!(bytes("rollout.speculate_texts=1000") > 10.0 * bytes("rollout.speculate_texts=auto"));
}

#[test]
fn bench_speculation_compares_every_bit() {
    let folder = Run::new(SMALL);
    let prompts = folder.path("prompts.jsonl");
    let rows: String = (0..4).map(|n| format!("{{\"prompt\":\"1{n}+2{n}=\"}}\n")).collect();
    std::fs::write(&prompts, rows).expect("a file");
    let prompts = prompts.to_str().expect("UTF-8");
    let common = ["bench", "speculation", "--model", "builtin:nano", "--device", "cpu", "--repeats", "1"];
    let with = |more: &[&'static str]| [&common[..], more].concat();
    let found = json(
        &[
            &with(&["--depths", "2,32", "--requests", "4", "--new-tokens", "24", "--json"])[..],
            &["--temperature", "0.7", "--prompts", prompts],
        ]
        .concat(),
    );
    let rows = found["rows"].as_array().expect("rows");
    assert_eq!((rows.len(), &found["responses_that_differ"]), (3, &0.into()));
    // Two repeats of two depths, of four requests for eight responses.
    assert_eq!((&found["tokens_compared"], &rows[0]["drafts"]), (&(2 * 2 * 4 * 8 * 24).into(), &0.into()));
    assert!(rows[2]["drafts"].as_u64() >= rows[2]["accepted"].as_u64());
    for (more, contains) in [
        (&["--sequences", "5", "--group", "2"][..], "--sequences 6 are"),
        (&["--depths", "0"], "0 is not in"),
        (&["--temperature", "1000"], "from 0.01 to 100"),
        (&["--source", "mtp"], "[possible values: ngram, suffix]"),
        (&["--prompts", "none.jsonl"], "none.jsonl"),
    ] {
        check_refused(&with(more), 2, &["error[bad-usage]", contains]);
    }
    let few = [&with(&["--requests", "5"])[..], &["--prompts", prompts]].concat();
    check_refused(&few, 2, &["error[bad-usage]", "4 rows, and 5 prompts are needed"]);
}
