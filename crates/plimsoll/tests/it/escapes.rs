//! Outside text, at every way to a terminal: control characters and marks of direction are written out.

use crate::common::{Folder, command, plimsoll, python_with, text};
use std::process::Output;

/// Clears the screen, sets a title, fills the clipboard, and turns the order of letters.
const EVIL: &str = "\x1b[2J\x1b]0;t\x07\x1b]52;c;YQ==\x07\u{9b}31m\u{202e}\u{2066}\u{200f}\u{61c}";
/// The same in TOML, JSON and Python.
const ESCAPED: &str =
    "\\u001b[2J\\u001b]0;t\\u0007\\u001b]52;c;YQ==\\u0007\\u009b31m\\u202e\\u2066\\u200f\\u061c";
const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 4
group_size = 4
max_new_tokens = 5
[[reward]]
kind = "exact"
[train]
steps = 2
learning_rate = 1e-4
[run]
dir = "out"
"#;

/// Nothing that a terminal acts on, and the characters written out where `shows` says so.
fn check_clean(door: &str, output: &Output, shows: &str) {
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    for (name, words) in [("stdout", &stdout), ("stderr", &stderr)] {
        let hidden: Vec<char> = words.chars().filter(|c| plimsoll_base::is_hidden(*c)).collect();
        assert!(hidden.is_empty(), "{door}: {hidden:?} on {name}: {words:?}");
    }
    assert!(stdout.contains(shows) || stderr.contains(shows), "{door} lacks {shows}: {stdout} {stderr}");
}

#[test]
fn r_values_of_others_moved_the_cursor() {
    let folder = Folder::with("key.toml", &format!("\"{ESCAPED}\" = 1\n"));
    let path = |name: &str, content: &str| folder.write(name, content);
    let value = path("value.toml", &format!("method = \"{ESCAPED}\"\n"));
    let script = path("x.sh", &format!("trl grpo --model '{EVIL}' --max_steps 4 --{EVIL} 1\n"));
    let data = path("d.jsonl", &format!("{{\"{ESCAPED}\": 1}}\n"));
    let rows = path(
        "g.jsonl",
        &format!(
            "{{\"id\": \"{ESCAPED}\", \"response\": \"1\", \"ground_truth\": \"2\", \"correct\": true}}\n"
        ),
    );
    std::fs::create_dir_all(folder.path(&format!("run/checkpoints/step-000001/{EVIL}"))).expect("folders");
    folder.write("run/checkpoints/step-000001/manifest.json", &format!("{{\"format\": \"{ESCAPED}\"}}"));
    let (key, run) = (folder.text_path("key.toml"), folder.text_path("run"));
    let missing = folder.text_path(&format!("no{EVIL}.toml"));
    let set = format!("method={EVIL}");
    let prompts = format!("data.prompts={data}");
    let run_file = path("run.toml", RUN);
    for args in [
        vec!["plan", &key],
        vec!["plan", &value],
        vec!["plan", &missing],
        vec!["plan", &run_file, "--set", &set],
        vec!["explain", EVIL],
        vec!["checkpoint", "verify", &run],
        vec!["checkpoint", "verify", &run, "--json"],
        vec!["checkpoint", "list", &run],
        vec!["checkpoint", "list", &run, "--json"],
        vec!["doctor", "--run", "trl", &script],
        vec!["doctor", "--run", "trl", &script, "--json"],
        vec!["grade", "--reward", "exact", &rows],
        vec!["eval", "--model", EVIL, "--data", &data, "--reward", "exact"],
        vec!["train", &run_file, "--set", &prompts],
        vec!["generate", "--model", EVIL, "--prompt", "1"],
        vec![EVIL],
    ] {
        check_clean(&args.join(" "), &plimsoll(&args), "");
    }
    check_clean("a key", &plimsoll(&["plan", &key]), "\\u{1b}[2J");
    // The run file is data, and goes on byte for byte; its notes are words.
    let imported = plimsoll(&["import", "trl", &script]);
    let stderr = text(&imported.stderr);
    assert!(!stderr.chars().any(plimsoll_base::is_hidden), "{stderr:?}");
}

/// A policy's text in a reward's print is the commonest way.
#[test]
fn r_prints_and_exceptions_of_rewards_moved_the_cursor() {
    let Some(python) = python_with("json") else { return };
    let folder = Folder::with(
        "run.toml",
        &RUN.replace("\"exact\"", &format!("\"python:r.py:f\"\npython = \"{python}\"")),
    );
    let body = format!("def f(completions, **columns):\n    print(\"{ESCAPED} printed\", flush=True)\n");
    for (end, code, shows) in [
        (
            "    return [float(i % 2) for i in range(len(completions))]\n".to_string(),
            0,
            "\\u{1b}[2J\\u{1b}]0;t",
        ),
        (format!("    raise ValueError(\"{ESCAPED} raised\")\n"), 1, "\\u{1b}[2J"),
    ] {
        folder.write("r.py", &format!("{body}{end}"));
        let output = command(&["train", "run.toml", "--overwrite"])
            .current_dir(folder.path("."))
            .output()
            .expect("the binary runs");
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        check_clean(&end, &output, shows);
        let log = std::fs::read_to_string(folder.path("out/rewards.log")).expect("a log");
        assert!(log.contains("printed") && !log.chars().any(plimsoll_base::is_hidden), "{log:?}");
    }
}
