//! Logs in words that no sign holds: what a message means names it, a level that a whole log has says nothing, and a
//! warning does not outweigh a good end.

use plimsoll_doctor::log::self_test::sign_uses;
use plimsoll_doctor::log::{Diagnosis, Input, Limits, diagnose};
use std::io::Cursor;

fn stream(text: &str) -> Input {
    Input::Stream("a".into(), Box::new(Cursor::new(text.to_string().into_bytes())))
}

fn read(text: &str) -> Diagnosis {
    diagnose(vec![stream(text)], Limits::default()).expect("memory can be read")
}

const FRAMES: &str =
    "Traceback (most recent call last):\n  File \"/app/train.py\", line 3, in main\n    run(config)\n";

/// (message of an exception, class)
const MEANT: [(&str, &str); 14] = [
    ("AssertionError: the loss of the critic is not finite", "nan-not-memory"),
    (
        "lab.ConfigError: Unexpected sampler option top_q, known options are ['top_k', 'top_p']",
        "settings-refused",
    ),
    ("RuntimeError: packing is only supported with flash attention", "settings-refused"),
    ("NotImplementedError: expert parallelism is not supported together with LoRA", "settings-refused"),
    ("ValueError: load_in_4bit and load_in_8bit are mutually exclusive", "settings-refused"),
    ("ValueError: unknown schedule kind 'cosin'; available choices: cosine, linear", "settings-refused"),
    ("RuntimeError: Rank 3 failed to pass monitoredBarrier in 300000 ms", "wait-timed-out"),
    ("lab.StoreError: the leader did not answer within 90 seconds", "wait-timed-out"),
    (
        "Exception: flashinfer_python is installed with version 0.2.9, which is less than the minimum required version 0.3.1.",
        "package-mismatch",
    ),
    (
        "ValueError: prompts per step (60) must be a multiple of the group of 8 generations",
        "batch-size-contradiction",
    ),
    (
        "lab.MeshError: 12 heads do not divide evenly: heads must be divisible by 8 devices",
        "parallel-sizes-contradict",
    ),
    ("lab.BrokerError: the broker of the arena lost its ledger", "exception-raised"),
    ("ZeroDivisionError: float division by zero", "value-refused"),
    ("NotImplementedError: the subclass has to write this", "code-broken"),
];

#[test]
fn r_what_a_message_means_names_it() {
    let mut wrong = Vec::new();
    for (message, expected) in MEANT {
        for before in ["", "[rank0]: ", "(Worker pid=71) "] {
            let log: String =
                format!("{FRAMES}{message}\n").lines().map(|line| format!("{before}{line}\n")).collect();
            let found = read(&log);
            if found.slug.as_deref() != Some(expected) {
                wrong.push(format!("{before}{message}: {:?}", found.slug));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn r_an_intent_in_a_list_of_possible_causes_is_no_evidence() {
    let found = read(&format!(
        "{FRAMES}lab.PeerError: the peer is gone. Possible reasons: an unknown option was given, or the port is in use\n"
    ));
    assert_eq!(found.slug.as_deref(), Some("exception-raised"), "{found:?}");
}

#[test]
fn r_a_level_of_the_whole_log_means_nothing() {
    let loading = |level: &str| -> String {
        (0..30).map(|n| format!("2026-03-01 10:11:{n:02} {level} loading part {n}\n")).collect()
    };
    assert_eq!(read(&loading("ERROR")).slug, None);
    // In a log of other levels the word means something.
    let last = "2026-03-01 10:12:00 ERROR loading part 31\n";
    assert_eq!(read(&(loading("INFO") + last)).slug.as_deref(), Some("unknown"));
    let died: String = format!("{FRAMES}KeyError: 'reward'\n")
        .lines()
        .map(|line| format!("2026-03-01 10:12:00 ERROR {line}\n"))
        .collect();
    assert_eq!(read(&(loading("ERROR") + &died)).slug.as_deref(), Some("value-missing"));
}

#[test]
fn r_a_traceback_that_is_forwarded_as_information_is_one() {
    let of = |text: &str| -> String { text.lines().map(|line| format!("INFO:stdout:{line}\n")).collect() };
    let died = of(&format!("loading the model\n{FRAMES}KeyError: 'reward'\n"));
    assert_eq!(read(&died).slug.as_deref(), Some("value-missing"));
    // The program went on, or its logger gives the level once.
    assert_eq!(read(&(died + &of("the sample is left out\nnext sample\n"))).slug, None);
    assert_eq!(read("INFO:root:KeyError: 'reward'\n").slug, None);
}

#[test]
fn r_a_warning_does_not_outweigh_a_good_end() {
    let short = "WARNING 11-12 08:20:12 [scheduler.py:1057] Sequence group 31 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space.\n";
    for end in ["INFO:     Finished server process [71]\n", "Training completed in 0:10:00\n"] {
        let found = read(&format!("step 1 loss 0.9\nstep 2 loss 0.8\n{short}step 3 loss 0.7\n{end}"));
        assert!(found.finished && found.slug.is_none(), "{end}: {found:?}");
        assert!(found.follows.iter().any(|follow| follow.slug == "kv-preemption"), "{end}: {found:?}");
    }
    assert_eq!(read(short).slug.as_deref(), Some("kv-preemption"));
}

#[test]
fn r_a_complaint_announces_the_exception_below_it() {
    let complaint = "2026-03-01 10:11:12 Engine ERROR: server did not become healthy\n";
    let raised = format!("{FRAMES}TimeoutError: not healthy after 600 s\n");
    assert_eq!(read(&format!("{complaint}{raised}")).slug.as_deref(), Some("wait-timed-out"));
    assert_eq!(read(complaint).slug.as_deref(), Some("unknown"));
}

#[test]
fn the_use_of_signs_is_counted_by_log() {
    let logs = [
        format!("{FRAMES}{}\n", MEANT[1].0),
        format!("{FRAMES}{}\n{FRAMES}{}\n", MEANT[2].0, MEANT[2].0),
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nslurmstepd: error: *** JOB 1 ON a CANCELLED AT 2026-03-01T10:11:12 DUE TO TIME LIMIT ***\n".into(),
    ];
    let uses = sign_uses(logs.iter().map(|log| stream(log)).collect()).expect("memory can be read");
    let of = |sign: &str| uses.iter().find(|used| used.sign == sign).map(|used| used.logs);
    assert_eq!(of("intent: only if"), Some(1), "a log counts once");
    assert_eq!(of("intent: must divide a batch"), Some(0));
    let cancelled: u64 = uses.iter().filter(|used| used.class == "job-cancelled").map(|used| used.logs).sum();
    assert!(cancelled >= 1);
}
