//! The binary from outside: what it prints where, and its exit codes.

use crate::common::{check_error, check_refused, command, plimsoll, text};
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn a_wrong_command_line_is_a_usage_error_in_our_form() {
    for (args, contains) in [
        (&["explian", "x"][..], &["error[bad-usage]: ", "explain"][..]),
        (&["grade"], &["error[bad-usage]: ", "plimsoll grade --help"]),
        (&["grade", "--reward", "math", "--jsn", "x"], &["error[bad-usage]: ", "--json"]),
        (&["completions", "tcsh"], &["error[bad-usage]: ", "bash"]),
        (&["--bogus"], &["error[bad-usage]: "]),
        (&["train", "r.toml", "--gpus", "2"], &["error[bad-usage]: ", "\nhint: --ranks N trains on N cards"]),
        (&["train", "r.toml", "--nproc_per_node=2"], &["\nhint: --ranks N trains on N cards"]),
        (&["train", "r.toml", "--lr", "1"], &["\nhint: `train.learning_rate` is a key of the run file"]),
        (&["export", "x"], &["error[bad-usage]: ", "\nhint: it is `plimsoll checkpoint export`\n"]),
        (&["list"], &["\nhint: it is `plimsoll checkpoint list`\n"]),
        (&["merge", "x"], &["\nhint: it is `plimsoll checkpoint export RUN --to DIR`, with --merge"]),
        (&["resume", "x"], &["\nhint: it is `plimsoll train RUN.toml --resume`\n"]),
    ] {
        check_refused(args, 2, contains);
    }
    let help = plimsoll(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(text(&help.stdout).contains("First steps:"));
    assert_eq!(plimsoll(&[]).status.code(), Some(2));
    assert!(text(&plimsoll(&["--version"]).stdout).starts_with("plimsoll "));
}

#[test]
fn explain_prints_pages_and_suggests_the_nearest() {
    let page = plimsoll(&["explain", "unknown-key"]);
    assert_eq!((page.status.code(), text(&page.stdout).lines().next()), (Some(0), Some("# unknown-key")));
    assert_eq!(text(&plimsoll(&["explain", "error[unknown-key]:"]).stdout), text(&page.stdout));
    let list = text(&plimsoll(&["explain", "--list"]).stdout);
    assert!(list.lines().count() > 15 && list.contains("\n  unknown-key "), "{list}");
    let object: serde_json::Value =
        serde_json::from_slice(&plimsoll(&["explain", "--list", "--json"]).stdout).expect("one object");
    let pages = list.lines().filter(|line| line.starts_with("  ")).count();
    assert_eq!(object["errors"].as_array().map(Vec::len), Some(pages));
    let found = text(&plimsoll(&["explain", "--search", "DEV/SHM", "docker"]).stdout);
    assert!(found.lines().any(|line| line.starts_with("shm-full-nccl ")), "{found}");
    // Several words are no name: they are searched for.
    let [asked, words] = [&["explain", "--search"][..], &["explain"]]
        .map(|args| text(&plimsoll(&[args, &["chat", "template"]].concat()).stdout));
    assert!(asked.contains("chat-template") && asked == words, "{words}");
    check_refused(&["explain", "qqqq", "zzzz"], 2, &["error[unknown-slug]: ", "no page holds any of"]);
    let some = plimsoll(&["explain", "--search", "reward", "always", "zero", "qqqq"]);
    assert!(
        text(&some.stdout).contains("\nno-advantage ") || text(&some.stdout).starts_with("no-advantage ")
    );
    assert!(text(&some.stderr).contains("no page holds all of these words"), "{}", text(&some.stderr));
    let keys = text(&plimsoll(&["explain", "environment"]).stdout);
    assert!(keys.starts_with("[environment]\n") && keys.contains("\n  environment.env "), "{keys}");
    check_refused(&["explain", "--search", "qqqq"], 2, &["error[unknown-slug]: ", "--list"]);
    check_refused(&["explain", "unknwon-key"], 2, &["error[unknown-slug]: ", "did you mean `unknown-key`?"]);
    check_refused(&["explain", "zzzzzzzzzzzzzzzz"], 2, &["explain --list"]);
}

#[test]
fn the_environment_chooses_the_instruction_path() {
    let bench = |isa: &str| {
        let args =
            ["bench", "rollout", "--model=builtin:nano", "--device=cpu", "--repeats=1", "--new-tokens=4"];
        command(&args).env("PLIMSOLL_ISA", isa).output().expect("the binary runs")
    };
    let slow = bench("scalar");
    let said = text(&slow.stdout) + &text(&slow.stderr);
    assert!(slow.status.success() && said.contains("; scalar, "), "{said}");
    let refused = ["error[unknown-isa]: instruction path `neon`", "unset"];
    check_error(&["PLIMSOLL_ISA=neon"], &bench("neon"), 2, &refused);
    // A plan whose rates would be those of another path, here and elsewhere, of one rank and of several.
    let first = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/first.toml");
    for more in
        [&[][..], &["--set", "run.device=cpu"], &["--limit", "host=8GiB"], &["--ranks", "1,2"], &["--min"]]
    {
        let args = [&["plan", first], more].concat();
        let output = command(&args).env("PLIMSOLL_ISA", "neon").output().expect("the binary runs");
        check_error(&args, &output, 2, &refused);
    }
}

#[test]
fn every_shell_gets_a_completion_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = plimsoll(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(text(&output.stdout).contains("explain"), "{shell}");
    }
}

const CASES: &str = r#"{"id": "a", "response": "so it is \\boxed{12}", "ground_truth": "12", "correct": true}
{"id": "b", "response": "so #### 13", "ground_truth": "12", "grader": "gsm8k", "correct": false}
"#;

#[test]
fn grade_prints_scores_to_stdout_and_agreement_to_stderr() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("cases.jsonl");
    std::fs::write(&path, CASES).expect("a file");
    let path = path.to_str().expect("UTF-8");
    let output = plimsoll(&["grade", "--reward", "math", path]);
    assert_eq!(text(&output.stdout), "{\"id\":\"a\",\"score\":1.0}\n{\"id\":\"b\",\"score\":0.0}\n");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("math: 1 of 1 agree") && stderr.contains("gsm8k: 1 of 1 agree"), "{stderr}");
    assert!(plimsoll(&["--quiet", "grade", "--reward", "math", path]).stderr.is_empty());

    check_refused(&["grade", "--reward", "mth", path], 2, &["error[unknown-reward]: ", "`math`"]);
    check_refused(
        &["grade", "--reward", "math", "no-such-file.jsonl"],
        1,
        &["error[data-missing]: ", "no-such-file"],
    );
    check_refused(
        &["grade", "--reward", "math", folder.path().to_str().expect("UTF-8")],
        1,
        &["is a directory"],
    );
}

#[test]
fn grade_reads_stdin_and_keeps_what_came_before_a_bad_line() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["grade", "--reward", "math", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    child.stdin.take().expect("piped").write_all(format!("{CASES}{{oops\n").as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout).lines().count(), 2);
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("error[data-bad-json]: stdin:3: "), "{stderr}");
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["explain", "--list"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}
