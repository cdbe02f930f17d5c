//! Outside text, at every way to a terminal: control characters and marks of direction are written out.

use crate::common::{Folder, command, plimsoll, python_with, text};
use std::process::Output;

/// Clears the screen, sets a title, fills the clipboard, and turns the order of letters.
const EVIL: &str = "\x1b[2J\x1b]0;t\x07\x1b]52;c;YQ==\x07\u{9b}31m\u{202e}\u{2066}\u{200f}\u{61c}";
/// The same without what ends a line of a log or a name of a file.
const MORE_EVIL: &str = "\x08\x0b\x0c\x7f\u{85}\u{90}q\u{9c}\u{200b}\u{2028}\u{feff}\u{e0041}";
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

/// A stranger's log, as text, as a JSON logger writes it, and in UTF-16.
#[test]
fn logs_of_strangers_move_no_cursor() {
    let cause = |evil: &str| {
        format!(
            "step 1 {evil}\nTraceback (most recent call last):\n  File \"{evil}.py\", line 3, in f\n    {evil}()\n\
             ValueError: {evil} is not a number\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. \
             GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free. {evil}\nActorDiedError: {evil}\n"
        )
    };
    let evil = format!("{EVIL}{MORE_EVIL}");
    let lines = cause(&evil);
    let json = |line: &str| serde_json::json!({ "level": "ERROR", "time": evil, "msg": line }).to_string();
    let logged: Vec<String> = lines.lines().map(json).collect();
    let wide: Vec<u8> =
        std::iter::once(0xfeff).chain(lines.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    let folder = Folder::with("text.log", &lines);
    folder.write("json.log", &logged.join("\n"));
    std::fs::write(folder.path("wide.log"), wide).expect("a log");
    std::fs::write(folder.path("nul.log"), lines.replace("step", "st\0ep").as_bytes()).expect("a log");
    for log in ["text.log", "json.log", "wide.log", "nul.log"] {
        let path = folder.text_path(log);
        for more in [&[][..], &["--json"]] {
            let args = [&["doctor", "--log", &path], more].concat();
            check_clean(&args.join(" "), &plimsoll(&args), "");
        }
    }
}

/// Files of a run that somebody else sent: what `watch`, `doctor`, `plan` and `checkpoint` show of them.
#[test]
fn runs_of_strangers_move_no_cursor() {
    let folder = Folder::with("run.toml", RUN);
    let at = |args: &[&str]| command(args).current_dir(folder.path(".")).output().expect("the binary runs");
    assert_eq!(at(&["train", "run.toml"]).status.code(), Some(0));
    let evil = format!("{EVIL}{MORE_EVIL}");
    let events = folder.path("out/events.jsonl");
    let append = |path: &std::path::Path, line: serde_json::Value| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        std::fs::write(path, format!("{text}{line}\n")).expect("a line more");
    };
    append(
        &events,
        serde_json::json!({ "event": "warning", "slug": evil, "message": evil, "hints": [evil] }),
    );
    append(
        &events,
        serde_json::json!({ "event": "step", "step": 2, "metrics": { "evil\u{202e}": 1.0 }, evil.as_str(): 2.0 }),
    );
    append(&events, serde_json::json!({ "event": "error", "slug": evil, "message": evil }));
    let samples = std::fs::read_dir(folder.path("out/samples")).expect("samples").flatten().next();
    let sample =
        serde_json::json!({ "step": 2, "prompt": evil, "response": evil, "reward": 1.0, "set": evil });
    append(&samples.expect("a file").path(), sample);
    let crash = serde_json::json!({
        "slug": evil, "message": evil, "facts": [evil], "hints": [evil], "error": evil, "phase": evil,
        "exit": evil, "signal": evil, "last_words": [evil], "cause": evil, "words": [evil],
    });
    folder.write("out/crash.json", &crash.to_string());
    folder.write("out/rewards.log", &evil);
    for args in [
        &["doctor", "out"][..],
        &["doctor", "out", "--json"],
        &["checkpoint", "list", "out"],
        &["checkpoint", "list", "out", "--json"],
        &["checkpoint", "verify", "out"],
        &["watch", "--static", "page.html", "out"],
        &["watch", "--export", "tensorboard", "tb", "out"],
        &["train", "run.toml", "--resume"],
        &["plan", "run.toml", "--json"],
    ] {
        check_clean(&args.join(" "), &at(args), "");
    }
    let page = std::fs::read_to_string(folder.path("page.html")).expect("a page");
    let hidden: Vec<char> = page.chars().filter(|c| plimsoll_base::is_hidden(*c)).collect();
    assert!(hidden.is_empty() && page.contains("\\u001b[2J"), "{hidden:?}");
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
