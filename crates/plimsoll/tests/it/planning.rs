//! `plan` from outside: recipes, the smallest limits and their worth in a real container, the grid, the drawing.
//! What a plan says of a run is tested in `crates/plan/tests`.

use crate::common::cgroup::Group;
use crate::common::{check_refused, command, plimsoll, text};
use crate::run::{FIRST, Run, SMALL, object, region};
use serde_json::Value;
use std::fs;

fn least(pool: &str, args: &[&str]) -> u64 {
    let (code, found) = object(&[&["plan", FIRST, "--min", "--json"], args].concat());
    assert_eq!(code, 0);
    found[pool].as_u64().expect("a number of bytes")
}

#[test]
fn the_recipe_of_adapters_fits_on_the_card_that_it_names_and_that_of_all_weights_says_so() {
    let limit = ["--limit", "device=24GiB,host=64GiB,disk=1TiB"];
    let lora = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/qwen2.5-7b-lora-24gb.toml");
    let fits = text(&plimsoll(&[&["plan", lora], &limit[..]].concat()).stdout);
    assert!(fits.ends_with("verdict: fits\n"), "{fits}");
    // Where two changes are needed, next to those that leave the result as it is.
    let large = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/qwen2.5-7b-grpo.toml");
    let output = plimsoll(&["plan", large, "--limit", "device=40GiB,host=64GiB,disk=1TiB"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    for part in [
        "memory.offload=",
        "--set lora.rank=16 --set train.learning_rate=1e-5 --set train.optimizer_dtype=f32",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_grid_has_a_row_a_cell() {
    let args = ["plan", "--table", "--models", "smollm2-135m,qwen2.5-7b", "--contexts", "512,1024"];
    let (code, grid) = object(&[&args[..], &["--limit", "host=16GiB", "--json"]].concat());
    let rows = grid["rows"].as_array().expect("rows");
    assert_eq!((code, rows.len()), (0, 2 * 2 * 2));
    assert!(rows.iter().all(|row| (row["fits"] == true) == (row["min_bytes"].as_u64() <= Some(16 << 30))));
    // Adapters take less, and the larger model fits with them alone.
    let lora = |row: &Value| row["lora"]["min_bytes"].as_u64();
    assert!(rows.iter().all(|row| lora(row) < row["min_bytes"].as_u64() && row["lora"]["rank"] == 16));
    // The rounded weights come on top of those that are trained.
    let fp8 = |row: &Value| row["fp8"]["min_bytes"].as_u64();
    assert!(rows.iter().all(|row| fp8(row) > row["min_bytes"].as_u64()));
    let words = text(&plimsoll(&[&args[..], &["--methods", "sft"]].concat()).stdout);
    assert!(["all weights", "in FP8", "LoRA r=16"].iter().all(|way| words.contains(way)), "{words}");
    assert_eq!(words.matches("qwen2.5-7b").count(), 2, "{words}");
    check_refused(&["plan", "--table", "--models", "gpt-9"], 2, &["error[unknown-preset]: "]);
    check_refused(&["plan"], 2, &["error[bad-usage]: "]);
}

#[test]
fn a_run_is_drawn_before_and_after() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    let output = plimsoll(&["plan", FIRST, "--svg", &path("plan.svg"), "--set", "memory.host=200MiB"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let drawn = fs::read_to_string(path("plan.svg")).expect("a drawing");
    for part in
        [">load line<", "limit 200.0 MiB", "prefers-color-scheme", "<title", "<desc", "grpo on builtin:nano"]
    {
        assert!(drawn.contains(part), "no {part}");
    }
    assert!(!drawn.contains("measured "), "nothing was measured yet");
    assert!(!drawn.contains("href") && !drawn.contains("url("), "an outside resource");

    let dir = format!("run.dir={}", path("out"));
    let args =
        ["train", FIRST, "--quiet", "--set", "train.steps=1", "--set", "eval.prompts_max=8", "--set", &dir];
    let output = plimsoll(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = plimsoll(&["plan", "--run", &path("out"), "--svg", &path("run.svg"), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let measured: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert!(measured["measured_peak_bytes"].as_u64() > Some(1 << 20), "{measured}");
    assert!(fs::read_to_string(path("run.svg")).expect("a drawing").contains("measured "));
    check_refused(
        &["plan", "--run", &path("none"), "--svg", &path("x.svg")],
        1,
        &["error[run-dir-unreadable]: "],
    );
}

#[test]
fn a_run_ends_in_a_container_of_its_smallest_size_and_is_refused_below() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = |name: &str| format!("run.dir={}", folder.path().join(name).display());
    let common = [
        "--set",
        "train.steps=3",
        "--set",
        "train.recompute=auto",
        "--set",
        "train.optimizer_dtype=auto",
        "--set",
        "memory.staging=auto",
        "--set",
        "eval.prompts_max=64",
    ];
    let bytes = least("min_host_bytes", &common);
    assert_eq!(bytes % 4096, 0);
    let (Some(exact), Some(below)) = (Group::new("exact", bytes), Group::new("below", bytes / 10 * 9)) else {
        return;
    };
    let run = |group: &Group, args: &[&str]| {
        group.plimsoll(&[args, &common[..]].concat()).output().expect("sh is everywhere")
    };
    let output = run(&exact, &["train", FIRST, "--json", "--set", &dir("exact")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(summary["steps"], 3);
    // A wide limit does not help within a narrower one.
    let inner = below.inner("inner", 2 * bytes).expect("a group within a group");
    for group in [&below, &inner] {
        let output = run(group, &["train", FIRST, "--set", &dir("below")]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(stderr.starts_with("error[host-pool-exceeded]: ") && stderr.contains("cgroup v"), "{stderr}");
        // The run file cannot raise it, so no hint says that it can.
        assert!(stderr.contains("; the limit is outside the run file: cgroup v"), "{stderr}");
        assert!(!stderr.contains("memory.host="), "{stderr}");
        assert!(!folder.path().join("below").exists(), "a refused run leaves nothing");
    }
    // With little more than what the supervisor comes to hold, it still reports: both processes' pages are 8 MiB by
    // then, and more while the first plan is made.
    assert!(below.set_limit(12 << 20));
    let output = run(&below, &["train", FIRST, "--set", &dir("below")]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
}

#[test]
fn worker_processes_are_in_the_account() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("r.py");
    fs::write(&file, "def f(prompts, completions, **columns):\n    return [0.0] * len(prompts)\n")
        .expect("a file");
    let kind = format!("reward.0.kind=python:{}:f", file.display());
    let sets = ["--set", &kind, "--set", "reward.0.workers=3", "--set", "reward.0.worker_memory=512MiB"];
    let output = command(&["plan", FIRST, "--json"]).args(sets).output().expect("the binary runs");
    let plan: Value = serde_json::from_slice(&output.stdout).expect("one object");
    let row = region(&plan, "reward.workers").expect("a row");
    assert_eq!(row["bytes"], 3u64 * (512 << 20));
}

#[test]
fn every_recipe_of_a_language_model_plans_without_its_model_and_data() {
    let recipes = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs")).expect("recipes");
    let mut assumed = 0;
    for path in recipes.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()) {
        let run = path.display().to_string();
        let text = std::fs::read_to_string(&path).expect("a run file");
        // A wheel has no published shape, `nano` names a relative path, environments fetch no model.
        if run.contains("smollm2") || run.ends_with("/nano.toml") || !text.contains("prompts ") {
            continue;
        }
        let args = ["plan", &run, "--json", "--limit", "device=80GiB,host=500GiB,disk=4TiB"];
        let (code, plan) = object(&args);
        assert!(matches!(code, 0 | 3), "{run}: {plan}");
        assumed += plan["assumed"].as_array().map_or(0, Vec::len);
        if code == 3 {
            let hints = plan["hints"].as_array().expect("hints");
            let worded =
                |hint: &Value| hint["why"].as_str().is_some_and(|why| why.contains("predicted step "));
            assert!(hints.iter().all(|hint| hint["predicted_step_s"].is_null() || worded(hint)), "{hints:?}");
        }
    }
    assert!(assumed >= 10, "models and data of the recipes are not in the repository: {assumed}");
}

#[test]
fn a_plan_shows_what_it_assumed_and_the_time_of_the_run() {
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/simplerl-7b-grpo.toml");
    let limit = ["--limit", "device=140GiB,host=500GiB,disk=4TiB"];
    let output = plimsoll(&[&["plan", recipe][..], &limit].concat());
    let said = text(&output.stdout);
    assert!(said.contains("assumed: hf:Qwen/Qwen2.5-7B is not on this machine"), "{said}");
    assert!(said.contains("is not there: data.prompt_tokens_max = "), "{said}");
    let output = plimsoll(&["plan", FIRST]);
    let said = text(&output.stdout);
    assert!(
        said.contains("  200 steps and 11 evaluations of 1000 responses (")
            && said.contains("\nverdict: fits\n"),
        "{said}"
    );
    // What trains needs the files themselves.
    let set = ["train", recipe, "--set", "run.dir=/nowhere/at/all"];
    assert_ne!(plimsoll(&set).status.code(), Some(0));
}

#[test]
fn families_that_are_not_trained_are_planned_and_the_plan_says_so() {
    let (other, sparse) = ("this family is not trained here", "the indexer of sparse attention is not built");
    for (model, shape, why) in [
        ("hf:mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b", other),
        ("random:mixtral-8x22b", "mixtral-8x22b", other),
        ("random:olmoe-1b-7b", "olmoe-1b-7b", other),
        ("random:deepseek-v3.2", "deepseek-v3.2", sparse),
        ("hf:zai-org/GLM-5", "glm-5", sparse),
    ] {
        let model = format!("model={model}");
        let limit = "host=16TiB,disk=64TiB";
        let args = ["plan", FIRST, "--limit", limit, "--set", &model, "--set", "data.prompt_tokens_max=32"];
        let (code, plan) = object(&[&args[..], &["--json"]].concat());
        let words = format!("{shape} is planned only: {why}");
        assert_eq!(code, 0, "{plan}");
        assert!(
            plan["assumed"][0].as_str().is_some_and(|said| said.ends_with(&words)),
            "{}",
            plan["assumed"]
        );
        let has_index = plan["regions"].to_string().contains("latent.index_keys");
        assert_eq!(has_index, why == sparse, "{shape}: {}", plan["regions"]);
        let said = ["error[model-unsupported]: ", "is a shape for plans only", why];
        let folder = Run::new(SMALL);
        folder.check_train(&[&format!("model=random:{shape}")], 1, &said);
    }
}
