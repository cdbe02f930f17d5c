//! `plimsoll reproduce` from outside, with a reproduction of a few steps and a hub in this process.

use crate::common::{Folder, check_error, text};
use crate::hub_data::{run, serve};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;

const TINY: &str = r#"title = "a sum or two"
source = "https://example.com/sums"

[claim]
metric = "eval_after"
value = 0.5
tolerance = 0.5
why = "eight sums: any share of them is within"
curve = [[0, 0.9]]

[[stage]]
run = "stages/sft.toml"
plan_tokens = [8, 4]

[[stage]]
run = "stages/rl.toml"
"#;

const SFT: &str = r#"method = "sft"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 8
[train]
steps = 2
learning_rate = 1e-5
[run]
dir = "out/sft"
"#;

const RL: &str = r#"method = "grpo"
model = "out/sft"
[data]
prompts = "hf:o/sums"
eval = "hf:o/sums/test"
prompt_column = "question"
answer_column = "answer"
prompt_tokens_max = 8
[rollout]
prompts_per_step = 4
group_size = 4
max_new_tokens = 5
[[reward]]
kind = "exact"
[train]
steps = 2
learning_rate = 1e-5
[run]
dir = "out/rl"
"#;

/// A folder with `tiny.toml`, as `change` makes it, and its stages.
fn tiny(change: impl Fn(&str) -> String) -> Folder {
    let folder = Folder::with("tiny.toml", &change(TINY));
    fs::create_dir(folder.path("stages")).expect("a folder in it");
    folder.write("stages/sft.toml", SFT);
    folder.write("stages/rl.toml", RL);
    folder
}

fn last_line(bytes: &[u8]) -> String {
    text(bytes).lines().last().unwrap_or_default().to_string()
}

/// The files of the hub's cache with the rows of `split`.
fn cached(folder: &Folder, split: &str) -> std::path::PathBuf {
    let name = format!("hub/hub/datasets--o--sums/snapshots/{}/main/{split}.jsonl", crate::hub_data::COMMIT);
    folder.path(&name)
}

fn sha256_of(path: &Path) -> String {
    let bytes = fs::read(path).expect("it is there");
    Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn two_stages_are_trained_once_and_the_verdict_is_the_last_line() {
    let (folder, (endpoint, log)) = (tiny(str::to_string), serve());
    let args = ["reproduce", "tiny.toml", "--out", "made", "--record", "results.json"];
    let first = run(&folder, &endpoint, &args);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    let verdict = last_line(&first.stdout);
    assert!(verdict.starts_with("reproduced, ") && verdict.ends_with(" of 50.0 ± 50.0"), "{verdict}");
    let said = text(&first.stderr);
    for words in ["https://example.com/sums", "stage 2 of 2", "hf:o/sums/test: sha256", "full length"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // Nothing is fetched that the files do not name.
    let asked = log.lock().expect("no thread panics").clone();
    assert!(asked.iter().all(|path| path.contains("o/sums")), "{asked:?}");
    let result = fs::read_to_string(folder.path("results.json")).expect("a list of results");
    assert!(result.contains("\"name\": \"tiny\"") && result.contains("\"curve\""), "{result}");

    // Again: nothing is trained, and the number is the same. Without `done`, the runs say that they have ended.
    let again = run(&folder, "http://127.0.0.1:1", &args[..4]);
    assert_eq!(last_line(&again.stdout), verdict, "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("done before"));
    let state = fs::read_to_string(folder.path("made/state.json")).expect("a state");
    assert!(state.contains(&sha256_of(&cached(&folder, "test"))), "{state}");
    let undone = state.replace("\"stages/rl.toml\",\n", "\"x\",\n");
    fs::write(folder.path("made/state.json"), undone).expect("it can be written");
    let resumed = run(&folder, "http://127.0.0.1:1", &args[..4]);
    assert_eq!(last_line(&resumed.stdout), verdict, "{}", text(&resumed.stderr));
    assert!(text(&resumed.stderr).contains("--resume"), "{}", text(&resumed.stderr));

    // The rows of the cache are other ones now, and then a run file is.
    fs::write(cached(&folder, "test"), "{\"question\": \"1+1=\", \"answer\": \"2\"}\n").expect("written");
    let changed = run(&folder, "http://127.0.0.1:1", &args[..4]);
    let words = ["error[reproduction-data-changed]", "hf:o/sums/test", "when this folder began"];
    check_error(&args, &changed, 1, &words);
    folder.write("stages/rl.toml", &RL.replace("steps = 2", "steps = 3"));
    let other = run(&folder, &endpoint, &args[..4]);
    check_error(&args, &other, 1, &["error[reproduction-changed]", "stages/rl.toml", "--out"]);
}

#[test]
fn another_number_is_exit_code_6_with_what_differs() {
    let claim = |text: &str| {
        let text =
            text.replace("value = 0.5", "value = 0.99").replace("tolerance = 0.5", "tolerance = 0.001");
        // An evaluation of its own, with the other keys of the last run file.
        text.replace("\"eval_after\"", "\"pass_at_k.2\"")
            + "[evaluate.rollout]\ntemperature = 1.0\n[evaluate.eval]\nsamples = 2\n"
    };
    let (folder, (endpoint, _)) = (tiny(claim), serve());
    let args = ["reproduce", "tiny.toml", "--set", "train.steps=1"];
    let made = run(&folder, &endpoint, &args);
    assert_eq!(made.status.code(), Some(6), "{}", text(&made.stderr));
    let said = text(&made.stdout);
    assert!(last_line(&made.stdout).starts_with("not reproduced, "), "{said}");
    assert!(said.contains("other than published: stages/rl.toml: train.steps = 1, not 2"), "{said}");
    assert!(said.contains("left the published curve at step 0: "), "{said}");
    assert!(folder.path("runs/out/reproduce/tiny/result.json").is_file());
}

#[test]
fn other_data_and_too_little_memory_are_refused_before_anything_runs() {
    let hashed = |text: &str| format!("{text}[sha256]\n\"hf:o/sums/test\" = \"{}\"\n", "0".repeat(64));
    let (folder, (endpoint, _)) = (tiny(hashed), serve());
    let args = ["reproduce", "tiny.toml"];
    let words =
        ["error[reproduction-data-changed]", "hf:o/sums/test", "the reproduction names 0000", "@COMMIT"];
    check_error(&args, &run(&folder, &endpoint, &args), 1, &words);
    let unread = |text: &str| format!("{text}[sha256]\n\"hf:o/other\" = \"{}\"\n", "0".repeat(64));
    let other = tiny(unread);
    check_error(&args, &run(&other, &endpoint, &args), 2, &["error[bad-value]", "hf:o/other"]);

    let right = |text: &str| {
        format!("{text}[sha256]\n\"hf:o/sums/test\" = \"{}\"\n", sha256_of(&cached(&folder, "test")))
    };
    let small = tiny(right);
    let args = ["reproduce", "tiny.toml", "--quiet", "--set", "memory.host=8MiB"];
    let words = ["error[host-pool-exceeded]", "stages/sft.toml", "hint: "];
    check_error(&args, &run(&small, &endpoint, &args), 3, &words);
    for folder in [folder, other, small] {
        assert!(!folder.path("runs/out/reproduce/tiny/out").exists(), "nothing ran");
    }
}

/// Stages wrote wherever their `run.dir` was.
#[test]
fn r_a_stage_wrote_outside_of_the_folder() {
    let args = ["reproduce", "tiny.toml"];
    let outside = Folder::with("x", "");
    for (key, place) in [
        ("dir = \"out/rl\"", "../elsewhere".to_string()),
        ("dir = \"out/rl\"", "out/../../elsewhere".to_string()),
        ("dir = \"out/rl\"", outside.text_path("run")),
        ("dir = \"out/rl\"", ".".to_string()),
    ] {
        let folder = tiny(str::to_string);
        folder.write("stages/rl.toml", &RL.replace(key, &format!("dir = \"{place}\"")));
        let refused = run(&folder, "http://127.0.0.1:1", &args);
        check_error(&args, &refused, 2, &["error[bad-value]", "stages/rl.toml:19", "`run.dir`", &place]);
        assert!(!folder.path("runs/out/reproduce/elsewhere").exists() && !outside.path("run").exists());
        assert!(!folder.path("runs/out/reproduce/tiny/out").exists(), "nothing ran");
    }
    let folder = tiny(str::to_string);
    let args = ["reproduce", "tiny.toml", "--set", "track.dir=../track"];
    let words = ["error[bad-value]", "--set: `track.dir`"];
    check_error(&args, &run(&folder, "http://127.0.0.1:1", &args), 2, &words);
}

#[test]
fn the_list_is_the_table_of_its_page() {
    let listed = crate::common::plimsoll(&["reproduce", "--list", "--markdown"]);
    assert_eq!(listed.status.code(), Some(0), "{}", text(&listed.stderr));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/reproduce.md")).expect("a page");
    let table = text(&listed.stdout);
    assert!(
        page.contains(&table),
        "docs/reproduce.md is not what `plimsoll reproduce --list --markdown` prints:\n{table}"
    );
    assert!(
        table.lines().filter(|line| line.contains("](https://") || line.contains("(hf:")).count() >= 12,
        "{table}"
    );
    assert!(table.lines().filter(|line| line.contains("| reproduced, ")).count() >= 4, "{table}");
    assert!(!table.contains("does not fit"), "{table}");
    let args = ["reproduce", "arithmetik"];
    check_error(&args, &crate::common::plimsoll(&args), 2, &["error[reproduction-unknown]", "`arithmetic`"]);
}
