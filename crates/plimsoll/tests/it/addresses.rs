//! Addresses as every command shows them: without user, password and query, in what it prints and in what it leaves.

use crate::common::{Folder, command, text};
use crate::endpoint::server_of_texts;
use serde_json::json;
use std::path::Path;

const QUERY: &str = "api_key=SECRET-OF-QUERY";
const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 4
group_size = 4
max_new_tokens = 5
[[reward]]
kind = "exact"
[train]
steps = 1
learning_rate = 1e-4
[run]
dir = "out"
"#;

/// Returns all that a command prints.
fn said(folder: &Folder, args: &[&str]) -> String {
    let output = command(args)
        .current_dir(folder.path(""))
        .env("HF_HOME", folder.path("hub"))
        .env("HF_ENDPOINT", format!("http://me:SECRET-OF-USER@127.0.0.1:1/?{QUERY}"))
        .output()
        .expect("the binary runs");
    text(&output.stdout) + &text(&output.stderr)
}

/// Returns the files of a folder that hold a part of a secret.
fn with_secrets(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(with_secrets(&path));
        } else if path.file_name().is_some_and(|name| name != "served.toml")
            && String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()).contains("SECRET")
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn r_no_command_shows_what_an_address_hides() {
    let (good, _) = server_of_texts(|_, body| {
        let rewards = vec![0.5; body["query"].as_array().map_or(0, Vec::len)];
        (200, json!({ "rewards": rewards }).to_string())
    });
    // A server repeats what it was asked.
    let (bad, _) = server_of_texts(|_, _| (500, format!("no such key: {QUERY}")));
    let folder = Folder::new();
    folder.write(
        "row.jsonl",
        "{\"prompt\": \"1+2=\", \"response\": \"3\", \"ground_truth\": \"3\", \"correct\": true}\n",
    );
    folder.write("run.toml", RUN);
    let of_reward = "[[reward]]\nkind = \"exact\"\n";
    let of_environment =
        format!("[environment]\nenv = \"openenv:http://me:SECRET-OF-USER@127.0.0.1:1/e?{QUERY}\"\n");
    folder.write("served.toml", &RUN.replace(of_reward, &of_environment));
    let eval = ["eval", "--model", "builtin:nano", "--data", "builtin:addition", "--prompts-max", "2"];
    for url in [good, bad] {
        let kind = format!("{url}?{QUERY}");
        let with_user = kind.replace("://", "://me:SECRET-OF-USER@");
        let judge = format!("judge:{kind}");
        let unknown = format!("htp:{with_user}");
        let reward = format!("reward.0.kind={kind}");
        let judged = format!("reward.0.kind={judge}");
        for reward in [&kind, &judge, &with_user, &unknown] {
            for more in [&["--output", "responses.jsonl"][..], &["--json"]] {
                let words = said(&folder, &[&eval, &["--reward", reward.as_str()][..], more].concat());
                assert!(!words.contains("SECRET"), "eval {more:?} {reward}: {words}");
            }
            let words = said(&folder, &["grade", "--reward", reward, "row.jsonl"]);
            assert!(!words.contains("SECRET"), "grade {reward}: {words}");
            let _ = std::fs::remove_file(folder.path("responses.jsonl"));
        }
        for args in [
            &["plan", "served.toml"][..],
            &["train", "served.toml", "--set", "run.dir=served"],
            &["plan", "run.toml", "--set", &reward],
            &["plan", "run.toml", "--json", "--set", &reward],
            &["plan", "run.toml", "--json", "--set", &judged],
            &["train", "run.toml", "--set", &judged, "--set", "run.dir=judged"],
            &["train", "run.toml", "--set", &reward],
            &["doctor", "out"],
            &["doctor", "out", "--json"],
            &["watch", "--static", "page.html", "out"],
            &["train", "run.toml", "--resume", "--set", &reward],
            &["checkpoint", "list", "out"],
            &["eval", "--model", &format!("hf:{with_user}"), "--data", "builtin:addition"],
            &["eval", "--model", &with_user, "--data", "builtin:addition"],
            &["eval", "--model", "builtin:nano", "--data", &with_user],
            &["eval", "--model", "hf:o/m", "--data", "builtin:addition"],
            &["generate", "--model", "hf:o/m", "a"],
            &["doctor", "--log", &with_user],
            &["plan", &with_user],
            &["grade", "--reward", "exact", &with_user],
        ] {
            let words = said(&folder, args);
            assert!(!words.contains("SECRET"), "{args:?}: {words}");
        }
        let left = with_secrets(&folder.path(""));
        assert!(left.is_empty(), "{url}: {left:?}");
        for name in ["out", "judged", "served"] {
            let _ = std::fs::remove_dir_all(folder.path(name));
        }
        let _ = std::fs::remove_file(folder.path("page.html"));
    }
}
