//! `kto` from outside: it learns from labelled answers, in the same bits on any number of ranks and after a resume, and
//! says what is wrong with labels.

use crate::run::{Run, number};

const RUN: &str = r#"method = "kto"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 16
max_new_tokens = 5
[train]
steps = 4
learning_rate = 1e-4
cut_multiple = 4
"#;

const ROWS: &str = r#"{"prompt": "1+2=", "completion": "3", "label": true, "other": 1}
{"prompt": "4+5=", "completion": "8", "label": false}
{"prompt": "12+2=", "completion": "14", "label": 1}
{"prompt": "21+2=", "completion": "22", "label": 0}
{"prompt": "30+5=", "chosen": "35", "rejected": "36"}
"#;

#[test]
fn labelled_answers_train_the_same_weights_on_any_number_of_ranks_and_after_a_resume() {
    let folder = Run::new(RUN);
    folder.train("one", &[]);
    let metrics = folder.metrics("one");
    assert_eq!(
        (number(&metrics[0], "loss"), number(&metrics[0], "kl")),
        (0.5, 0.0),
        "the policy is the reference"
    );
    assert!(number(&metrics[3], "loss") < 0.5 && number(&metrics[3], "rewards/margins") > 0.0, "{metrics:?}");
    folder.train("two", &["--ranks=2"]);
    assert_eq!(folder.result("two"), folder.result("one"));
    folder.train("part", &["train.steps=2"]);
    folder.train("part", &["--resume"]);
    assert_eq!(folder.result("part"), folder.result("one"));
}

#[test]
fn rows_of_files_have_labels_or_are_pairs() {
    let folder = Run::new(RUN);
    let data = |name: &str, rows: &str| format!("data.prompts={}", folder.write(name, rows));
    let good = data("good.jsonl", ROWS);
    let words = [&*good, "rollout.prompts_per_step=3", "train.cut_multiple=1"];
    folder.train("good", &words);
    let evaluated = format!("data.eval={}", folder.text_path("good.jsonl"));
    let said = folder.train("eval", &[&words[..], &[&*evaluated, "eval.every=4"]].concat());
    assert!(said.contains("on 6 pairs of"), "a pair counts as two answers: {said}");
    let other = |name: &str, from: &str, to: &str| data(name, &ROWS.replacen(from, to, 1));
    for (data, contains) in [
        (
            other("text.jsonl", "\"label\": true", "\"label\": \"good\""),
            &["error[label-invalid]", "text.jsonl:1", "\"good\""][..],
        ),
        (
            other("none.jsonl", ", \"label\": false", ""),
            &["error[label-invalid]", "none.jsonl:2", "no `label`"],
        ),
        (
            other("four.jsonl", "\"label\": 1}", "\"label\": 4}"),
            &["error[label-invalid]", "four.jsonl:3", "the label 4"],
        ),
        (
            data("one.jsonl", ROWS.lines().next().unwrap()),
            &["error[labels-all-equal]", "all 1 labels are true"],
        ),
    ] {
        folder.train_fails("bad", &[&*data, "rollout.prompts_per_step=2"], 1, contains);
    }
    folder.plan_refused(&["rollout.prompts_per_step=1"], 2, &["group-too-small", "at least 2"]);
    folder.plan_refused(&["loss.simpo_gamma=1.0"], 2, &["loss.simpo_gamma", "kto"]);
    folder.plan_refused(&["method=dpo", "loss.desirable_weight=2"], 2, &["loss.desirable_weight"]);
}
