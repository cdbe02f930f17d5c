//! `checkpoint push` from outside, against a hub in this process that knows the protocol.

#[path = "../../../files/tests/fake_hub/mod.rs"]
mod fake_hub;

use crate::common::{Folder, check_error, command, python_with, text};
use fake_hub::{COMMIT, FakeHub, Fault, State, TOKEN, committed};
use std::path::Path;
use std::process::Output;

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
steps = 3
learning_rate = 1e-4
[run]
dir = "out"
"#;

/// Trains `run` in a folder, where its directory is `out`.
fn trained(run: &str) -> Folder {
    let folder = Folder::with("run.toml", run);
    let output =
        command(&["train", "run.toml"]).current_dir(folder.path(".")).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    folder
}

/// Runs `plimsoll checkpoint push out ...` with a token, or without one.
fn push(folder: &Folder, hub: &FakeHub, token: Option<&str>, args: &[&str]) -> Output {
    let mut command = command(&[&["checkpoint", "push"], args].concat());
    command
        .current_dir(folder.path("."))
        .env("HF_HOME", folder.path("hub"))
        .env("HF_ENDPOINT", &hub.endpoint);
    for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
        command.env_remove(name);
    }
    if let Some(token) = token {
        command.env("HF_TOKEN", token);
    }
    let output = command.output().expect("the binary runs");
    for secret in [TOKEN, "wrong-token-123"] {
        assert!(!text(&output.stdout).contains(secret) && !text(&output.stderr).contains(secret), "{args:?}");
    }
    output
}

fn check_pushed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn bytes_of(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

#[test]
fn a_run_is_pushed_with_its_card_and_without_its_states() {
    let (folder, hub) = (trained(RUN), FakeHub::start(State::default()));
    let args = ["out", "hf:o/sums", "--create"];
    let dry = check_pushed(&push(&folder, &hub, None, &[&args[..], &["--dry-run"]].concat()));
    let lines = [
        "hf:o/sums at http://127.0.0.1:",
        "made if there is none, private",
        "  model.safetensors\n",
        "  in 8 files\n",
    ];
    assert!(lines.iter().all(|line| dry.contains(line)), "{dry}");
    assert!(hub.state().log.is_empty(), "a dry run sends nothing");

    let said = check_pushed(&push(&folder, &hub, Some(TOKEN), &args));
    assert!(said.starts_with(&format!("hf:o/sums at commit {COMMIT}: {}/o/sums\n", hub.endpoint)), "{said}");
    {
        let state = hub.state();
        assert!(state.wrong.is_empty(), "{:?}", state.wrong);
        assert_eq!((state.repos.get("o/sums"), state.commits.len()), (Some(&true), 1));
        let latest = folder.path("out/checkpoints/latest");
        for name in ["model.safetensors", "config.json", "tokenizer.json"] {
            assert_eq!(committed(&state, name), Some(bytes_of(&latest.join(name))), "{name}");
        }
        assert_eq!(committed(&state, "curves.svg"), Some(bytes_of(&folder.path("out/curves.svg"))));
        let paths: Vec<&str> =
            state.commits[0].iter().filter_map(|line| line["value"]["path"].as_str()).collect();
        assert!(
            !paths.iter().any(|path| path.starts_with("state") || path.contains("manifest")),
            "{paths:?}"
        );
        let card = text(&committed(&state, "README.md").expect("a card"));
        for part in [
            "# sums\n",
            "| method | `grpo` |",
            "| reward | `exact` |",
            "| memory | planned peak: host ",
            "| 3 | ",
        ] {
            assert!(card.contains(part), "{part}: {card}");
        }
        let run = text(&committed(&state, "run.toml").expect("a run file"));
        assert!(run.contains("method = \"grpo\"") && !run.contains("[track]"), "{run}");
    }
    let again =
        check_pushed(&push(&folder, &hub, Some(TOKEN), &[&args[..], &["--json", "--no-card"]].concat()));
    let again: serde_json::Value = serde_json::from_str(&again).expect("JSON");
    assert_eq!((&again["sent_bytes"], &again["to"]), (&0.into(), &"hf:o/sums".into()));
    assert!(committed(&hub.state(), "README.md").is_none());
}

/// Only lists were read as words of a command: a reward's command was sent with all its keys, and was in the card.
#[test]
fn r_a_command_was_published_with_its_keys() {
    let Some(python) = python_with("json") else { return };
    let kind = format!(
        "command:{python} g.py --openai-key ZQ1 --auth ZQ2 --header Authorization:ZQ3 sk-ZQ4abcdefghijklmnopqrstuvwx AKIAZQ5ABCDEFGHIJKL \
         ghp_ZQ6abcdefghijklmnopqrstuvwxyz012345 --pat ZQ7 OPENAI_KEY=ZQ8 --bearer ZQ9 --key ZQ10 --pw ZQ11 --api-key ZQ12 --hf-token=ZQ13 \
         --max-tokens 5"
    );
    let folder = Folder::with("run.toml", &RUN.replace("exact", &kind));
    folder.write(
        "g.py",
        "import sys\nfor number, line in enumerate(sys.stdin):\n    print(number % 2, flush=True)\n",
    );
    let output =
        command(&["train", "run.toml"]).current_dir(folder.path(".")).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let hub = FakeHub::start(State::default());
    let dry =
        check_pushed(&push(&folder, &hub, None, &["out", "hf:o/sums", "--create", "--dry-run", "--json"]));
    let said = check_pushed(&push(&folder, &hub, Some(TOKEN), &["out", "hf:o/sums", "--create"]));
    let state = hub.state();
    let sent = |name: &str| text(&committed(&state, name).unwrap_or_else(|| panic!("{name} is sent")));
    for shown in [dry, said, sent("run.toml"), sent("README.md"), sent("curves.svg")] {
        assert!(!shown.contains("ZQ"), "{shown}");
    }
    for name in ["run.toml", "README.md"] {
        assert!(sent(name).contains("g.py --openai-key (not shown) --auth (not shown)"), "{}", sent(name));
        assert!(sent(name).contains("--hf-token=(not shown) --max-tokens 5"), "{}", sent(name));
    }
}

/// An adapter, a folder that was exported, and a token from where the hub's own tool stores it.
#[test]
fn adapters_and_exported_folders_are_pushed() {
    let folder = trained(&format!("{RUN}[lora]\nrank = 2\n"));
    let hub = FakeHub::start(State {
        repos: [("o/m".to_string(), true)].into(),
        part_bytes: 4096,
        ..State::default()
    });
    std::fs::create_dir(folder.path("hub")).expect("a folder");
    std::fs::write(folder.path("hub/token"), format!("{TOKEN}\n")).expect("a token");
    check_pushed(&push(&folder, &hub, None, &["out/checkpoints/latest", "hf:o/m"]));
    let adapter = bytes_of(&folder.path("out/checkpoints/latest/adapter_model.safetensors"));
    assert_eq!(committed(&hub.state(), "adapter_model.safetensors"), Some(adapter));
    let card = text(&committed(&hub.state(), "README.md").expect("a card"));
    assert!(card.contains("library_name: peft") && card.contains("| adapter | LoRA of rank 2 |"), "{card}");

    let export = command(&["checkpoint", "export", "out", "--merge", "--to", "merged"])
        .current_dir(folder.path("."))
        .output()
        .expect("the binary runs");
    assert_eq!(export.status.code(), Some(0), "{}", text(&export.stderr));
    check_pushed(&push(&folder, &hub, None, &["merged", "hf:o/m"]));
    let merged = bytes_of(&folder.path("merged/model.safetensors"));
    assert_eq!(committed(&hub.state(), "model.safetensors"), Some(merged));
    assert!(hub.state().wrong.is_empty(), "{:?}", hub.state().wrong);
}

/// Half an upload and a hub that asks for a pause: the push goes on by itself.
#[test]
fn a_push_survives_a_broken_connection_and_a_limit() {
    let folder = trained(RUN);
    let faults = vec![("PUT /store/", Fault::Cut(1000)), ("/commit/", Fault::Status(429, Some(1)))];
    let hub = FakeHub::start(State { repos: [("o/m".to_string(), true)].into(), faults, ..State::default() });
    check_pushed(&push(&folder, &hub, Some(TOKEN), &["out", "hf:o/m"]));
    assert_eq!((hub.count("PUT /store/"), hub.count("/commit/"), hub.state().commits.len()), (2, 2, 1));
}

#[test]
fn what_cannot_be_pushed_is_named() {
    let folder = trained(RUN);
    let repos = || [("o/open".to_string(), false), ("o/m".to_string(), true)].into();
    for (token, args, code, contains) in [
        (None, &["out", "hf:o/m"][..], 1, &["error[push-refused]", "HF_TOKEN"][..]),
        (Some("wrong-token-123"), &["out", "hf:o/m"], 1, &["error[push-refused]", "401", "(token)"]),
        (Some(TOKEN), &["out", "hf:forbidden/m", "--create"], 1, &["error[push-refused]", "403"]),
        (Some(TOKEN), &["out", "hf:o/none"], 1, &["error[push-repo-missing]", "--create"]),
        (Some(TOKEN), &["out", "hf:o/m@other"], 1, &["error[push-repo-missing]", "Revision not found"]),
        (Some(TOKEN), &["out", "hf:o/open"], 2, &["error[push-public]", "--public"]),
        (Some(TOKEN), &["out", "o/m"], 2, &["error[push-target-invalid]"]),
        (Some(TOKEN), &["nothing", "hf:o/m"], 1, &["error[checkpoint-missing]"]),
    ] {
        let hub = FakeHub::start(State { repos: repos(), ..State::default() });
        check_error(args, &push(&folder, &hub, token, args), code, contains);
        assert!(hub.state().commits.is_empty() && hub.count("PUT") == 0, "{args:?}");
    }
    let weights = folder.path("out/checkpoints/latest/model.safetensors");
    let mut bytes = bytes_of(&weights);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&weights, bytes).expect("it is damaged");
    let hub = FakeHub::start(State { repos: repos(), ..State::default() });
    let args = ["out", "hf:o/m"];
    check_error(
        &args,
        &push(&folder, &hub, Some(TOKEN), &args),
        1,
        &["error[checkpoint-damaged]", "model.safetensors"],
    );
    assert!(hub.state().log.is_empty(), "nothing is sent of a damaged checkpoint");
}
