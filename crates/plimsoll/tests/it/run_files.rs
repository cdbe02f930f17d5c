//! Run files from outside: what is refused, with which name and hint, and what `plan` makes of a good one.

use crate::common::{Folder, check_refused, plimsoll, text};
use serde_json::Value;

const GOOD: &str = r#"method = "grpo"
model = "random:smollm2-135m"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 8
group_size = 4
max_new_tokens = 8
[[reward]]
kind = "exact"
[train]
steps = 2
learning_rate = 1e-5
[memory]
host = "3GiB"
staging = "4MiB"
"#;

/// (what is replaced in the good file, by what, the slug, what stderr must contain).
const BAD: &[(&str, &str, &str, &[&str])] = &[
    (
        "group_size = 4",
        "grup_size = 4",
        "unknown-key",
        &["x.toml:7:1: ", "7 | grup_size = 4", "did you mean `rollout.group_size`?"],
    ),
    ("[rollout]", "[rolout]", "unknown-key", &["did you mean `rollout`?"]),
    ("steps = 2", "steps = 2\ngroup_size = 4", "unknown-key", &["`rollout.group_size`"]),
    ("steps = 2", "steps = \"two\"", "bad-type", &["the string \"two\""]),
    ("steps = 2", "steps = 2.5", "bad-type", &["x.toml:12:1: "]),
    ("steps = 2", "steps = 0", "bad-value", &["at least 1"]),
    ("steps = 2", "", "missing-key", &["`train.steps` is missing"]),
    ("kind = \"exact\"", "kind = [1]", "bad-type", &["`reward.0.kind` is a list"]),
    ("[[reward]]\nkind = \"exact\"\n", "", "missing-key", &["`reward` is missing"]),
    ("[[reward]]", "[reward]", "bad-type", &["`reward` is a table; it takes a list"]),
    ("group_size = 4", "group_size = 1", "group-too-small", &["x.toml:7:1: ", "at least 2"]),
    (
        "steps = 2",
        "steps = 2\nmini_batch = 5",
        "contradictory-keys",
        &["32 sequences of a step (8 prompts x 4 samples)", "train.mini_batch = 4"],
    ),
    ("learning_rate = 1e-5", "learning_rate = nan", "bad-value", &["finite"]),
    ("learning_rate = 1e-5", "learning_rate = -1.0", "bad-value", &["not negative"]),
    ("group_size = 4", "group_size = 4\ntop_p = 0", "bad-value", &["rollout.top_p"]),
    ("group_size = 4", "group_size = 4\nn = 4", "duplicate-key", &["another name of `rollout.group_size`"]),
    ("group_size = 4", "group_size = 4\ngroup_size = 5", "run-file-syntax", &["x.toml:8:1"]),
    ("group_size = 4", "group_size = = 4", "run-file-syntax", &["x.toml:7:"]),
    ("method = \"grpo\"", "method = \"gpro\"", "bad-value", &["did you mean \"grpo\"?"]),
    (
        "method = \"grpo\"",
        "method = \"reward_model\"",
        "contradictory-keys",
        &["with method = \"reward_model\", which samples nothing"],
    ),
    ("host = \"3GiB\"", "host = \"3 gigs\"", "bad-value", &["memory.host"]),
    ("host = \"3GiB\"", "offload = [\"gradients\"]", "not-built", &["memory.offload"]),
];

#[test]
fn a_bad_run_file_is_refused_by_name_with_its_place_and_a_hint() {
    let folder = Folder::new();
    for (from, to, slug, contains) in BAD {
        assert!(GOOD.contains(from), "{from}");
        let path = folder.write("x.toml", &GOOD.replacen(from, to, 1));
        let slug = format!("error[{slug}]: ");
        let contains: Vec<&str> = std::iter::once(slug.as_str()).chain(contains.iter().copied()).collect();
        check_refused(&["plan", &path], 2, &contains);
    }
}

#[test]
fn a_bad_set_or_limit_is_refused_too() {
    let folder = Folder::new();
    let path = folder.write("x.toml", GOOD);
    for (args, slug) in [
        (&["--set", "rollout.grup_size=2"][..], "unknown-key"),
        (&["--set", "rollout.group_size"], "bad-set"),
        (&["--set", "reward.7.kind=exact"], "bad-set"),
        (&["--set", "rollout.group_size=many"], "bad-type"),
        (&["--set", "model=random:no-such-preset"], "unknown-preset"),
        (&["--set", "reward.0.kind=exakt"], "unknown-reward"),
        (&["--limit", "host"], "bad-limit"),
        (&["--limit", "host=many"], "bad-bytes"),
    ] {
        check_refused(&[&["plan", &path], args].concat(), 2, &[&format!("error[{slug}]: ")]);
    }
    check_refused(&["plan", "no/such.toml"], 2, &["error[run-file-missing]: "]);
    check_refused(
        &["plan", &folder.text_path(".")],
        2,
        &["error[run-file-unreadable]: ", "a readable TOML file"],
    );
    // The directory of a run has one.
    std::fs::write(folder.path("run.toml"), "").expect("a file");
    check_refused(&["plan", &folder.text_path(".")], 2, &["hint: the run file of this run is ", "run.toml"]);
}

fn plan(path: &str, extra: &[&str]) -> (i32, Value, String) {
    let output = plimsoll(&[&["plan", path, "--json"], extra].concat());
    let stderr = text(&output.stderr);
    let object = serde_json::from_slice(&output.stdout).unwrap_or_else(|err| panic!("{err}: {stderr}"));
    (output.status.code().expect("it ends by itself"), object, stderr)
}

#[test]
fn plan_says_whether_it_fits_and_its_hints_hold() {
    let folder = Folder::new();
    let path = folder.write("x.toml", GOOD);
    let (code, object, stderr) = plan(&path, &[]);
    assert_eq!((code, &object["fits"]), (0, &Value::Bool(true)), "{stderr}");
    assert!(
        object["pools"]["host"]["peak_bytes"].as_u64().is_some_and(|bytes| bytes > 100 << 20),
        "{object}"
    );

    let (code, object, stderr) =
        plan(&path, &["--set", "memory.host=1200MiB", "--set", "train.optimizer_dtype=f32"]);
    assert_eq!((code, &object["fits"]), (3, &Value::Bool(false)), "{stderr}");
    assert!(stderr.starts_with("error[host-pool-exceeded]: ") && stderr.contains("\nhint: "), "{stderr}");
    let hints = object["hints"].as_array().expect("a list");
    assert!(!hints.is_empty());
    for hint in hints {
        let set = hint["set"].as_str().expect("text");
        let mut sets = vec!["--set", "memory.host=1200MiB", "--set", "train.optimizer_dtype=f32"];
        sets.extend(set.split(" --set ").flat_map(|set| ["--set", set]));
        assert_eq!(plan(&path, &sets).0, 0, "{set} does not help");
    }
}

#[test]
fn plan_explains_where_each_value_came_from() {
    let folder = Folder::new();
    let path = folder.write("x.toml", GOOD);
    let output = plimsoll(&["plan", &path, "--explain", "--set", "rollout.top_k=5"]);
    let stdout = text(&output.stdout);
    for (key, origin) in [
        ("rollout.top_k ", "--set"),
        ("rollout.group_size ", "x.toml:7"),
        ("loss.clip_low ", "default of the method"),
        ("rollout.top_p ", "default"),
        ("train.micro_batch_tokens ", "auto: the planner"),
    ] {
        let line = stdout
            .lines()
            .find(|line| line.starts_with(key))
            .unwrap_or_else(|| panic!("no {key} in {stdout}"));
        assert!(line.trim_end().ends_with(origin), "{line}");
    }
}
