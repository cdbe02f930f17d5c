//! `environment.rows` from a data set of the hub and from Parquet, and what is wrong with them.

use crate::common::{Folder, check_error, text};
use crate::hub_data::{COMMIT, run, serve};
use crate::run::{has_python, region};
use serde_json::Value;
use std::process::Output;

/// Mentions tools, and writes none of them, whose letters the model does not know.
const QUIET: &str = "{% if tools is defined %}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";

const FUNCTIONS: &str = "\
def look(x: int) -> int:
    \"\"\"Looks.

    Args:
        x: Where.
    \"\"\"
    return x

def right(completions, answer, **kwargs):
    assert all(given.isdigit() for given in answer), answer
    return [0.5] * len(answer)

class Sums:
    def reset(self, question, answer):
        assert question and answer.isdigit()
        return question

    def look(self) -> str:
        \"\"\"Looks.\"\"\"
        return 'nothing'

    def get_reward(self):
        return 0.25
";

/// Functions of no class; the tests name other things.
fn folder() -> Folder {
    let folder = Folder::with(
        "run.toml",
        &format!(
            "method = \"grpo\"\nmodel = \"builtin:nano\"\n[environment]\nenv = \"tools\"\ntools = [\"python:f.py:look\"]\n\
             rows = \"hf:o/sums\"\neval_rows = \"hf:o/sums\"\nturns_max = 2\nturn_tokens_max = 16\n\
             [data]\nprompt_column = \"question\"\nprompt_tokens_max = 8\nchat_template = \"{QUIET}\"\n\
             [[reward]]\nkind = \"python:f.py:right\"\n\
             [rollout]\nprompts_per_step = 2\ngroup_size = 4\nmax_new_tokens = 5\n\
             [eval]\nprompts_max = 2\n[train]\nsteps = 1\nlearning_rate = 1e-4\n[run]\ndir = \"out\"\n"
        ),
    );
    folder.write("f.py", FUNCTIONS);
    folder
}

/// The settings that make it a class of tools, which gives the reward.
const CLASS: [&str; 3] =
    ["environment.env=python:f.py:Sums", "environment.tools=[]", "data.prompt_column=prompt"];

fn done(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

#[test]
fn rows_of_the_hub_are_fetched_once_by_train_alone_and_their_commit_is_kept() {
    if !has_python() {
        return;
    }
    let (folder, (endpoint, log)) = (folder(), serve());
    let asked = || log.lock().expect("no thread panics").len();
    let said = done(&run(&folder, &endpoint, &["plan", "run.toml"]));
    assert!(said.contains("hf:o/sums is not there: data.prompt_tokens_max = 8 bounds its prompts"), "{said}");
    assert_eq!(asked(), 0, "a plan fetches nothing");

    done(&run(&folder, &endpoint, &["train", "run.toml"]));
    let kept = std::fs::read_to_string(folder.path("out/run.toml")).expect("a run file");
    assert!(kept.contains(&format!("\nrows = \"hf:o/sums@{COMMIT}\"")), "{kept}");
    assert!(kept.contains(&format!("eval_rows = \"hf:o/sums@{COMMIT}\"")), "{kept}");
    let paths = log.lock().expect("no thread panics").join(" ");
    assert!(paths.contains("main/train.jsonl") && paths.contains("main/test.jsonl"), "{paths}");
    let episodes = std::fs::read_to_string(folder.path("out/samples/step-000001.jsonl")).expect("samples");
    assert!(episodes.contains("\"reward\":0.5"), "{episodes}");

    // The plan reads what is here, and the run goes on without the hub.
    let before = asked();
    let said = done(&run(&folder, "http://127.0.0.1:1", &["plan", "run.toml"]));
    assert!(!said.contains("is not there"), "{said}");
    done(&run(&folder, "http://127.0.0.1:1", &["train", "run.toml", "--resume", "--set", "train.steps=2"]));
    assert_eq!(asked(), before);
    let other = ["train", "run.toml", "--resume", "--set", "environment.rows=hf:o/sums/test"];
    let words = ["error[run-file-changed]", "environment.rows"];
    check_error(&other, &run(&folder, &endpoint, &other), 2, &words);

    // A class of tools gets the columns as arguments; Parquet is read alike.
    let sets: Vec<&str> = CLASS.iter().flat_map(|set| ["--set", set]).collect();
    let class = std::fs::read_to_string(folder.path("run.toml")).expect("a run file");
    let class = class.replace("[[reward]]\nkind = \"python:f.py:right\"\n", "");
    folder.write("class.toml", &class);
    let args = [&["train", "class.toml", "--set", "run.dir=class"], &sets[..]].concat();
    done(&run(&folder, &endpoint, &args));
    let episodes = std::fs::read_to_string(folder.path("class/samples/step-000001.jsonl")).expect("samples");
    assert!(episodes.contains("\"reward\":0.25") && !episodes.contains("\"reward\":null"), "{episodes}");
    let plain = concat!(env!("CARGO_MANIFEST_DIR"), "/../text/tests/parquet/plain.parquet");
    let rows = format!("environment.rows={plain}");
    let eval = format!("environment.eval_rows={plain}");
    let args = [
        "train",
        "run.toml",
        "--set",
        &rows,
        "--set",
        &eval,
        "--set",
        "data.prompt_column=prompt",
        "--set",
        "reward.0.kind=exact",
        "--set",
        "run.dir=parquet",
    ];
    done(&run(&folder, &endpoint, &args));
}

#[test]
fn the_plan_counts_rows_and_the_longest_for_each_worker() {
    if !has_python() {
        return;
    }
    let (folder, (endpoint, _)) = (folder(), serve());
    folder.write("small.jsonl", "{\"question\": \"1\", \"answer\": \"1\"}\n");
    folder
        .write("large.jsonl", &format!("{{\"question\": \"1\", \"answer\": \"{}\"}}\n", "1".repeat(1 << 20)));
    let planned = |rows: &str, workers: &str| {
        let sets = [format!("environment.rows={rows}"), format!("environment.num_workers={workers}")];
        let args = ["plan", "run.toml", "--json", "--set", &sets[0], "--set", &sets[1]];
        let output = run(&folder, &endpoint, &args);
        let plan: Value = serde_json::from_slice(&output.stdout).expect("a plan");
        region(&plan, "rl.data").expect("a row")["bytes"].as_u64().expect("a number")
    };
    let (small, large) = (planned("small.jsonl", "1"), planned("large.jsonl", "1"));
    assert!(large > small + (6 << 20), "{large} {small}");
    assert!(planned("large.jsonl", "3") >= large + (8 << 20));
}

#[test]
fn what_is_wrong_with_rows_of_the_hub_is_named_before_a_run_directory_is_made() {
    if !has_python() {
        return;
    }
    let (folder, (endpoint, log)) = (folder(), serve());
    let whole =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../text/tests/parquet/verl-zstd.parquet"));
    let mut lying = whole.expect("a fixture");
    let end = lying.len();
    lying[end - 8..end - 4].copy_from_slice(&u32::MAX.to_le_bytes());
    std::fs::write(folder.path("lying.parquet"), lying).expect("a file");
    folder.write("long.jsonl", &format!("{{\"question\": \"{}\"}}\n", "1".repeat(16 << 20)));
    for (set, code, contains) in [
        ("environment.rows=hf:sums", 2, &["error[data-hub-name]", "hf:org/name"][..]),
        ("environment.rows=hf:o/none", 1, &["error[hub-refused]", "404", "HF_TOKEN"]),
        ("environment.rows=hf:o/gated", 1, &["error[hub-refused]", "401", "HF_TOKEN"]),
        ("environment.rows=hf:o/sums/valid", 1, &["error[data-hub-file]", "main/train.jsonl"]),
        (
            "data.prompt_column=prompt",
            1,
            &["error[data-column-missing]", "no column `prompt`", "environment.rows", "data.prompt_column"],
        ),
        ("environment.rows=lying.parquet", 1, &["error[data-bad-parquet]", "bytes of metadata"]),
        ("environment.rows=long.jsonl", 1, &["error[data-bad-json]", "longer than 16777216 bytes"]),
        (
            "environment.rows=absent.jsonl",
            1,
            &["error[data-missing]", "environment.rows is a JSONL or Parquet"],
        ),
        ("environment.rows=builtin:addition", 2, &["error[bad-value]", "hf:org/name/SUBSET/SPLIT"]),
    ] {
        let args = ["train", "run.toml", "--set", set];
        check_error(&args, &run(&folder, &endpoint, &args), code, contains);
        assert!(!folder.path("out").exists(), "{set}");
    }
    // A plan refuses the same where the rows are here, without a request.
    let asked = log.lock().expect("no thread panics").len();
    for (set, slug) in [
        ("environment.rows=lying.parquet", "error[data-bad-parquet]"),
        ("environment.rows=long.jsonl", "error[data-bad-json]"),
        ("data.prompt_column=prompt", "error[data-column-missing]"),
    ] {
        let args = ["plan", "run.toml", "--set", set];
        check_error(&args, &run(&folder, &endpoint, &args), 1, &[slug]);
    }
    assert_eq!(log.lock().expect("no thread panics").len(), asked);
}
