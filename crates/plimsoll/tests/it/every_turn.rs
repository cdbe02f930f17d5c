//! `data.train_on = "assistant"`: supervised runs that learn every turn of the assistant.

use crate::common::text;
use crate::run::{Run, check_done};

const FILE: &str = r#"
method = "sft"
model = "builtin:nano"
[data]
prompts = "ROWS"
shuffle = false
chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
[rollout]
prompts_per_step = 1
[train]
steps = 1
learning_rate = 0.001
[memory]
host = "4GiB"
[run]
threads = 1
"#;

fn message(role: &str, content: &str) -> String {
    format!("{{\"role\": \"{role}\", \"content\": \"{content}\"}}")
}

fn row(turns: &[(&str, &str)]) -> String {
    let messages: Vec<String> =
        turns.iter().flat_map(|(user, own)| [message("user", user), message("assistant", own)]).collect();
    format!("{{\"messages\": [{}]}}\n", messages.join(", "))
}

const TURNS: [(&str, &str); 3] = [("1+2=", "3"), ("+40=", "43"), ("+5=", "48")];

/// One row with three turns, against three rows of which the last turn is learnt: the same tokens after the same texts.
#[test]
fn every_turn_is_learnt_as_rows_that_end_with_it_are() {
    let run = Run::new("");
    let one = run.write("one.jsonl", &row(&TURNS));
    let three: String = (1..=3).map(|turns| row(&TURNS[..turns])).collect();
    let three = run.write("three.jsonl", &three);
    let mut losses = Vec::new();
    for (name, rows, sets) in [
        ("one", &one, &["data.train_on=assistant"][..]),
        ("three", &three, &["rollout.prompts_per_step=3"]),
        ("last", &one, &[]),
    ] {
        run.write("x.toml", &FILE.replace("ROWS", rows));
        check_done(&run.output(name, sets));
        losses.push(run.metrics(name)[0]["loss"].as_f64().expect("a loss"));
    }
    assert!((losses[0] - losses[1]).abs() < 1e-6, "{losses:?}");
    assert!((losses[0] - losses[2]).abs() > 1e-3, "the last turn alone has another loss: {losses:?}");
}

#[test]
fn other_methods_and_templates_that_hide_turns_are_refused() {
    let run = Run::new("");
    let rows = run.write("rows.jsonl", &row(&TURNS));
    run.write("x.toml", &FILE.replace("ROWS", &rows));
    let hides = "data.chat_template={% for m in messages %}{{ loop.revindex }}{{ m.content }}{% endfor %}";
    for (sets, slug, words) in [
        (&["data.train_on=assistant", hides][..], "turns-not-found", "row 1 of"),
        (
            &["data.train_on=assistant", "method=dpo"],
            "contradictory-keys",
            "with method = \"dpo\", which does not read it",
        ),
        (&["data.train_on=all"], "bad-value", "takes last, assistant"),
    ] {
        let output = run.output("out", sets);
        let stderr = text(&output.stderr);
        assert!(stderr.contains(&format!("error[{slug}]")) && stderr.contains(words), "{sets:?}: {stderr}");
        assert!(!output.status.success());
    }
}

/// Such a row ended the run with an internal error.
#[test]
fn an_answer_without_a_token_is_named_with_its_row() {
    let run = Run::new("");
    let rows = ["3", ""].map(|answer| format!("{{\"prompt\": \"1+2=\", \"completion\": \"{answer}\"}}\n"));
    let rows = run.write("rows.jsonl", &rows.concat());
    run.write("x.toml", &FILE.replace("ROWS", &rows));
    let stderr = text(&run.output("out", &[]).stderr);
    assert!(stderr.contains("error[data-bad-prompt]") && stderr.contains("row 2 of"), "{stderr}");
}
