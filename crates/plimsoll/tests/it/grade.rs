//! `grade` on the files that people have: Parquet, TRL's column names, conversations, pipes.

use crate::common::{Folder, check_refused, plimsoll, text};
use std::path::Path;
use std::process::Output;

fn parquet(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/parquet").join(name).display().to_string()
}

fn grade(args: &[&str]) -> Output {
    plimsoll(&[&["grade", "--reward"], args].concat())
}

/// The scores of a command that ends well.
fn scores(args: &[&str]) -> Vec<String> {
    let output = grade(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout).lines().map(str::to_string).collect()
}

#[test]
fn parquet_is_graded_as_json_lines_are() {
    let plain = parquet("plain.parquet");
    assert_eq!(scores(&["exact", "--response-column", "ground_truth", &plain]), [r#"{"score":1.0}"#; 2]);
    assert_eq!(scores(&["exact", "--response-column", "prompt", &plain]), [r#"{"score":0.0}"#; 2]);
    // verl's rows: a conversation whose last message is "0+1=", "1+2=", ..., and answers within `reward_model`.
    let found = scores(&["gsm8k", "--response-column", "prompt", &parquet("verl-zstd.parquet")]);
    assert_eq!((found.len(), found[0].as_str()), (9, r#"{"score":1.0}"#));
    assert!(found[1..].iter().all(|score| score == r#"{"score":0.0}"#), "{found:?}");
    check_refused(
        &["grade", "--reward", "exact", "--response-column", "prompt", &parquet("bytes.parquet")],
        1,
        &["error[data-bad-parquet]: ", "`image`"],
    );
}

#[test]
fn files_of_trl_are_graded_by_the_names_of_their_columns() {
    let rows = "\
{\"prompt\": \"2+3=\", \"completion\": \"so 5\", \"answer\": \"#### 5\"}
{\"prompt\": [{\"role\": \"user\", \"content\": \"2+3=\"}], \"completion\": [{\"role\": \"assistant\", \"content\": \"6\"}], \"answer\": \"#### 5\"}
";
    let folder = Folder::with("trl.jsonl", rows);
    let file = folder.text_path("trl.jsonl");
    let named = ["--response-column", "completion", "--answer-column", "answer"];
    let found = scores(&[&["gsm8k"], &named[..], &[&file]].concat());
    assert_eq!(found, [r#"{"score":1.0}"#, r#"{"score":0.0}"#]);
    check_refused(
        &["grade", "--reward", "gsm8k", &file],
        1,
        &[
            "error[data-column-missing]: row 1 has no `response`",
            "did you mean `completion`? --response-column completion",
        ],
    );
    check_refused(
        &["grade", "--reward", "gsm8k", "--response-column", "completion", &file],
        1,
        &["row 1 has no `ground_truth`", "did you mean `answer`? --answer-column answer"],
    );
    check_refused(
        &["grade", "--reward", "gsm8k", "--response-column", "completions", &file],
        1,
        &["did you mean `completion`?"],
    );
}

#[test]
fn a_pipe_is_read_as_it_comes() {
    let folder = Folder::with("rows.jsonl", "{\"response\": \"5\", \"ground_truth\": \"5\"}\n");
    let line = format!(
        "'{}' grade --reward exact <(cat '{}')",
        env!("CARGO_BIN_EXE_plimsoll"),
        folder.text_path("rows.jsonl")
    );
    let Ok(output) = std::process::Command::new("bash").args(["-c", &line]).output() else {
        return eprintln!("skipped: a pipe, there is no bash");
    };
    assert_eq!(text(&output.stdout), "{\"score\":1.0}\n", "{}", text(&output.stderr));
}

#[test]
fn r_grade_was_more_lenient_than_a_run() {
    let rows = "{\"response\": \"1\", \"ground_truth\": \"1\"}\n".repeat(3);
    let folder = Folder::with("rows.jsonl", &rows);
    let file = folder.text_path("rows.jsonl");
    check_refused(&["grade", "--reward", "length", &file], 2, &["error[bad-usage]: `length` counts tokens"]);
    check_refused(
        &["grade", "--reward", "model", &file],
        2,
        &["error[bad-usage]: `model` is a reward model", "plimsoll eval --reward-model DIR"],
    );
    let program = |name: &str, reply: &str| {
        let script = format!("while read line; do echo '{reply}'; done\n");
        folder.write(name, &script);
        format!("command:sh {}", folder.text_path(name))
    };
    check_refused(
        &["grade", "--reward", &program("big.sh", "1e300"), &file],
        1,
        &["error[reward-not-finite]: ", " gave 1e300 for row 1"],
    );
    assert_eq!(scores(&[&program("none.sh", "null"), &file]), [r#"{"score":null}"#; 3]);
    let countdown = Folder::with("rows.jsonl", "{\"response\": \"1\", \"ground_truth\": 7}\n");
    check_refused(
        &["grade", "--reward", "countdown", &countdown.text_path("rows.jsonl")],
        2,
        &["error[reward-bad-answer]: ", "\n  it is row 1\n"],
    );
}
