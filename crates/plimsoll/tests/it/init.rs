//! `init` from outside: its files plan and learn, and replace no file. `man` writes a page for each command.

use crate::common::{Folder, check_error, check_refused, command, plimsoll, text};
use serde_json::Value;
use std::path::Path;
use std::process::Output;

/// Runs the binary in `folder`.
fn within(folder: &Folder, args: &[&str]) -> Output {
    command(args).current_dir(folder.path(".")).output().expect("the binary runs")
}

fn refused(folder: &Folder, args: &[&str], code: i32, contains: &[&str]) {
    check_error(args, &within(folder, args), code, contains);
}

/// The summary of a training that went well.
fn trained(folder: &Folder, args: &[&str]) -> Value {
    let output = within(folder, &[&["train"], args, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|err| panic!("{err}: {}", text(&output.stderr)))
}

#[test]
fn the_first_run_trains_outside_of_the_repository() {
    let folder = Folder::new();
    let output = within(&folder, &["init", "first"]);
    let words = text(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "{words}");
    assert!(words.contains("plimsoll train first.toml") && !words.contains("note:"), "{words}");
    let summary = trained(&folder, &["first.toml", "--set", "train.steps=2"]);
    assert!(summary["eval_after"].is_number(), "{summary}");
    assert!(folder.path("runs/out/first/checkpoints/latest").exists());
}

#[test]
fn a_run_file_of_ones_own_plans_and_trains() {
    let folder = Folder::new();
    let names = ["--model", "builtin:nano", "--data", "builtin:addition", "--reward", "exact"];
    let output = within(&folder, &[&["init"], &names[..], &["--output", "sums.toml"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let summary = trained(&folder, &["sums.toml", "--set", "train.steps=2"]);
    assert!(summary["eval_after"].is_number(), "{summary}");
    assert!(folder.path("runs/out/sums").exists());

    // The defaults are of a model that is not here yet, and data that is not.
    let output = within(&folder, &["init"]);
    let words = text(&output.stderr);
    assert!(
        words.contains("run.toml is written") && words.contains("train.jsonl, which is not here"),
        "{words}"
    );
    let plan = within(&folder, &["plan", "run.toml", "--limit", "host=64GiB,disk=1TiB"]);
    assert_eq!(plan.status.code(), Some(0), "{}", text(&plan.stderr));
}

#[test]
fn every_run_file_of_the_repository_can_be_written_once() {
    let folder = Folder::new();
    let list: Value =
        serde_json::from_slice(&plimsoll(&["init", "--list", "--json"]).stdout).expect("one object");
    let names: Vec<&str> =
        list["runs"].as_array().expect("a list").iter().filter_map(|run| run["name"].as_str()).collect();
    let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../runs");
    let is_toml = |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|ending| ending == "toml");
    let files =
        std::fs::read_dir(&runs).expect("a folder of the repository").flatten().filter(is_toml).count();
    assert_eq!(names.len(), files);
    for name in names {
        let output = within(&folder, &["init", name]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", text(&output.stderr));
        let written = std::fs::read_to_string(folder.path(&format!("{name}.toml"))).expect("it is there");
        let original = std::fs::read_to_string(runs.join(format!("{name}.toml"))).expect("it is listed");
        // Only the places of run files differ, in comments.
        assert_eq!(written.lines().count(), original.lines().count(), "{name}");
        let keys = |text: &str| {
            text.lines().map(|line| line.split('#').next().map(str::to_string)).collect::<Vec<_>>()
        };
        assert_eq!(keys(&written), keys(&original), "{name}");
        refused(&folder, &["init", name], 2, &["error[run-file-exists]", "--output"]);
    }
    let distill = text(&within(&folder, &["init", "first-distill", "-o", "b.toml"]).stderr);
    assert!(distill.contains("note: `distill.teacher` is runs/out/first/checkpoints/latest"), "{distill}");
    let collect = text(&within(&folder, &["init", "cartpole-collect", "-o", "c.toml"]).stderr);
    assert!(collect.contains("plimsoll collect c.toml"), "{collect}");
}

#[test]
fn a_wrong_init_is_refused_and_writes_nothing() {
    let folder = Folder::new();
    for (args, code, contains) in [
        (&["init", "frist"][..], 2, &["error[run-file-unknown]", "did you mean `first`?"][..]),
        (&["init", "runs/first.toml"], 2, &["error[run-file-unknown]", "did you mean `first`?"]),
        (&["init", "zzzzzzzzzzzzzz"], 2, &["error[run-file-unknown]", "init --list"]),
        (&["init", "--model", "s3:bucket"], 2, &["error[model-source-invalid]"]),
        (&["init", "--model", "random:qwen2.5-05b"], 2, &["error[unknown-preset]", "random:qwen2.5-0.5b"]),
        (&["init", "--reward", "mth"], 2, &["error[unknown-reward]", "`math`"]),
        (&["init", "--reward", "math", "--reward", "regex:("], 2, &["error["]),
        (&["init", "--data", ""], 2, &["error[bad-value]", "data.prompts"]),
        (&["init", "--output", "no/such/folder.toml"], 1, &["error[write-failed]", "no/such"]),
        (&["init", "first", "--model", "builtin:nano"], 2, &["error[bad-usage]"]),
        (&["init", "--json"], 2, &["error[bad-usage]", "--list"]),
        (
            &["train", "first.toml"],
            2,
            &["error[run-file-missing]", "`plimsoll init first` writes first.toml"],
        ),
        (&["plan", "runs/first-ppo.toml"], 2, &["error[run-file-missing]", "plimsoll init first-ppo"]),
        (&["collect", "cartpole-collect"], 2, &["error[run-file-missing]", "plimsoll init cartpole-collect"]),
    ] {
        refused(&folder, args, code, contains);
    }
    assert_eq!(std::fs::read_dir(folder.path(".")).expect("a folder").count(), 0);
}

#[test]
fn man_writes_a_page_for_each_command() {
    let folder = Folder::new();
    assert_eq!(within(&folder, &["man", "pages/man1"]).status.code(), Some(0));
    let page = std::fs::read_to_string(folder.path("pages/man1/plimsoll-train.1")).expect("it is there");
    assert!(page.contains("ranks") && page.contains("SYNOPSIS"), "{page}");
    assert!(folder.path("pages/man1/plimsoll.1").exists());
    let hidden = std::fs::read_dir(folder.path("pages/man1")).expect("a folder").flatten();
    let hidden: Vec<_> =
        hidden.filter(|entry| entry.file_name().to_string_lossy().contains("card")).collect();
    assert!(hidden.is_empty(), "{hidden:?}");
    folder.write("file", "");
    check_refused(&["man", &folder.text_path("file")], 1, &["error[write-failed]"]);
}

/// The file had `question` and `answer`, the run file `prompt`, and `plan` failed.
#[test]
fn columns_of_the_data_are_those_of_the_run_file() {
    let folder = Folder::new();
    folder.write("sums.jsonl", "{\"question\": \"1+2=\", \"answer\": \"3\", \"level\": 1}\n");
    let names = ["--model", "builtin:nano", "--data", "sums.jsonl", "--reward", "exact"];
    let output = within(&folder, &[&["init"], &names[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let written = std::fs::read_to_string(folder.path("run.toml")).expect("it is there");
    assert!(written.contains("prompt_column     = \"question\""), "{written}");
    assert!(
        written.lines().any(|line| line.contains("the data has ") && line.contains("level")),
        "{written}"
    );
    let plan = within(&folder, &["plan", "run.toml"]);
    assert_eq!(plan.status.code(), Some(0), "{}", text(&plan.stderr));
    // What is in comments works too, and the run may be made longer.
    let all: String = written
        .lines()
        .map(|line| {
            line.strip_prefix("# ")
                .filter(|line| line.contains(" = ") || line.starts_with('['))
                .unwrap_or(line)
        })
        .filter(|line| !line.starts_with("eval "))
        .map(|line| format!("{line}\n"))
        .collect();
    folder.write("all.toml", &all);
    let plan = within(&folder, &["plan", "all.toml", "--set", "track.to=[]"]);
    assert_eq!(plan.status.code(), Some(0), "{all}\n{}", text(&plan.stderr));
    let short = ["--set", "train.steps=1", "--set", "rollout.prompts_per_step=1", "--set", "eval.every=9"];
    trained(&folder, &[&["run.toml"], &short[..]].concat());
    let longer = [
        "--resume",
        "--set",
        "train.steps=2",
        "--set",
        "rollout.prompts_per_step=1",
        "--set",
        "eval.every=9",
    ];
    trained(&folder, &[&["run.toml"], &longer[..]].concat());
}
