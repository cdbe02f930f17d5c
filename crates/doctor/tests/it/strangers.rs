//! Short logs of many stacks, each with the answer that is true of it: `tests/strangers/`.
//!
//! `=== ANSWER | name`, then the lines. ANSWER is `finished`, `no answer` for a log that neither died nor ended, or a
//! class; a slash separates answers that are all true.

use plimsoll_doctor::log::{Diagnosis, Input, Limits, diagnose};
use std::io::Cursor;

const LOGS: [&str; 3] = [
    include_str!("../strangers/ended.txt"),
    include_str!("../strangers/running.txt"),
    include_str!("../strangers/died.txt"),
];

fn read(text: &str) -> Diagnosis {
    let input = Input::Stream("a".into(), Box::new(Cursor::new(text.to_string().into_bytes())));
    diagnose(vec![input], Limits::default()).expect("memory can be read")
}

/// (answers, name, text)
fn logs() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let parts = LOGS.iter().flat_map(|logs| logs.strip_prefix("=== ").unwrap_or_default().split("\n=== "));
    parts.map(|part| {
        let (head, text) = part.split_once('\n').expect("a head and a text");
        let (answers, name) = head.split_once(" | ").expect("answers and a name");
        (answers, name, text)
    })
}

fn answer(found: &Diagnosis) -> &str {
    match &found.slug {
        Some(slug) => slug,
        None if found.finished => "finished",
        None => "no answer",
    }
}

#[test]
fn logs_of_strangers_are_answered() {
    let wrong: Vec<String> = logs()
        .map(|(answers, name, text)| (answers, name, read(&format!("{text}\n"))))
        .filter(|(answers, _, found)| !answers.split('/').any(|one| one == answer(found)))
        .map(|(answers, name, found)| format!("{name}: {answers}, not {}: {found:?}", answer(&found)))
        .collect();
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// Every log but those of good ends, cut at every line: none is a good end.
#[test]
fn what_died_or_runs_on_is_no_good_end_at_any_line() {
    for (answers, name, text) in logs().filter(|(answers, ..)| *answers != "finished") {
        let mut part = String::new();
        for line in text.lines() {
            part = format!("{part}{line}\n");
            // The rows of a list are printed at once, and a log that ends so says that it is over.
            let is_meant =
                line.contains(" 0/1 ") || line.contains("Succeeded ") || line.starts_with("Done. ");
            assert!(is_meant || !read(&part).finished, "{answers} | {name}:\n{part}");
        }
    }
}

#[test]
fn r_what_was_survived_is_told() {
    let oom =
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nbatch halved, retrying\n";
    let steps = "step 2 loss 0.8\nstep 3 loss 0.7\n";
    for end in ["", "Training complete\n"] {
        let found = read(&format!("step 1 loss 0.9\n{oom}{steps}{end}"));
        assert_eq!((found.slug.as_deref(), found.finished), (None, !end.is_empty()), "{found:?}");
        let told = "a:2 is cuda-oom, and the run went on: steps follow it";
        assert!(found.reasons.iter().any(|reason| reason == told), "{found:?}");
    }
}
