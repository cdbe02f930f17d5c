//! Output places are checked first: models and run files here are missing, but the error is the place's.

use crate::common::{Folder, check_error, check_refused, command};

const MISSING: &str = "no/such/model";
const RUN: &str = r#"method = "grpo"
model = "no/such/model"
[data]
prompts = "builtin:addition"
[[reward]]
kind = "exact"
[train]
steps = 1
learning_rate = 1e-5
"#;

#[test]
fn a_wrong_place_for_output_is_refused_before_the_work() {
    let folder = Folder::with("file", "kept");
    let run = folder.write("run.toml", RUN);
    let [file, below, dir] = ["file", "file/below", ""].map(|name| folder.text_path(name));
    let eval = ["eval", "--model", MISSING, "--data", "builtin:addition"];
    let cases: [(&[&str], &[&str]); 8] = [
        (&["bench", "methods", "--runs", MISSING], &["--out", &file]),
        (&["bench", "methods", "--runs", MISSING], &["--out", &below]),
        (&["bench", "save", "--model", MISSING], &["--dir", &file]),
        (&eval, &["--pass-rates", &below]),
        (&eval, &["--pass-rates", &dir]),
        (&eval, &["--output", &below]),
        (&["plan", &run], &["--svg", &below]),
        (&["watch", MISSING], &["--static", &below]),
    ];
    for (args, place) in cases {
        check_refused(&[args, place].concat(), 1, &["error[output-unwritable]: ", place[1]]);
    }
    assert_eq!(std::fs::read_to_string(&file).expect("untouched"), "kept");
}

#[test]
fn what_is_missing_is_named_before_the_first_method_is_trained() {
    let folder = Folder::new();
    let (runs, out) = (folder.text_path(""), folder.text_path("out"));
    let args = ["bench", "methods", "--runs", &runs, "--out", &out];
    check_refused(&args, 2, &["error[run-file-missing]: ", "first.toml"]);
    assert!(!folder.path("out").exists());
}

#[test]
fn rates_that_cannot_be_stored_are_not_measured() {
    let folder = Folder::with("file", "x");
    let args = ["bench", "calibrate", "--model", MISSING];
    let output = command(&args).env("XDG_CACHE_HOME", folder.path("file")).output().expect("the binary runs");
    check_error(&args, &output, 1, &["error[calibration-not-stored]: "]);
}

#[test]
fn a_refused_evaluation_leaves_an_earlier_file_as_it_is() {
    let folder = Folder::with("responses.jsonl", "of yesterday");
    let to = folder.text_path("responses.jsonl");
    check_refused(
        &["eval", "--model", MISSING, "--data", "builtin:addition", "--output", &to],
        1,
        &["error["],
    );
    assert_eq!(std::fs::read_to_string(&to).expect("untouched"), "of yesterday");
}

#[test]
fn a_directory_that_is_taken_is_refused_before_the_model_is_opened() {
    let folder = Folder::with("run.toml", RUN);
    folder.write("mine.txt", "x");
    let dir = folder.text_path("");
    let args = ["train", &folder.text_path("run.toml"), "--set", &format!("run.dir={dir}")];
    check_refused(&args, 2, &["error[run-dir-not-empty]: ", "mine.txt"]);
    assert!(!folder.path("lock").exists());
}
