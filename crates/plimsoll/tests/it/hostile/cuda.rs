//! Runs that name a GPU where there is none, and plans for cards that are elsewhere.

use super::folder::folder;
use super::runs::check_hints_of;
use crate::common::{check_error, check_refused, command, plimsoll, text};
use crate::run::{FIRST, object, refs};
use serde_json::Value;
use std::path::Path;

const LARGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/qwen2.5-7b-grpo.toml");
const MISSING: [&str; 4] =
    ["error[cuda-driver-missing]: ", "libcuda.so.1", "looked by the system's loader", "run.device = \"cpu\""];

/// True if this machine has a driver; the caller is then skipped, and says so.
fn has_driver() -> bool {
    let devices = ["/dev/nvidiactl", "/dev/dxg"];
    let found = devices.iter().find(|device| Path::new(device).exists());
    found.inspect(|device| eprintln!("skipped: {device} exists, this machine has a driver")).is_some()
}

#[test]
fn without_a_driver_every_verb_says_where_it_was_looked_for() {
    if has_driver() {
        return;
    }
    let folder = folder();
    folder.check_train(&["run.device=cuda"], 1, &MISSING);
    // Before anything is opened: neither the model nor the data is there.
    folder.check_train(&["run.device=cuda", "model=no/such/model", "data.prompts=none.jsonl"], 1, &MISSING);
    let on = ["--set", "run.device=cuda"];
    for args in [
        &["generate", "--model", "builtin:nano", "--prompt", "1+2="][..],
        &["eval", "--model", "builtin:nano", "--data", "builtin:addition", "--prompts-max", "2"],
    ] {
        check_refused(&[args, &on].concat(), 1, &MISSING);
        check_refused(&[args, &on, &["--checked"]].concat(), 1, &MISSING);
    }
    for part in ["rollout", "train", "step", "exactness"] {
        check_refused(&["bench", part, "--model", "builtin:nano", "--device", "cuda"], 1, &MISSING);
    }
    // What was asked for by default runs on the CPU, checked or not.
    let args =
        ["generate", "--model", "builtin:nano", "--prompt", "1+2=", "--max-new-tokens", "2", "--checked"];
    let output = plimsoll(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_driver_that_does_not_open_is_named_with_its_path() {
    if has_driver() {
        return;
    }
    let folder = folder();
    std::fs::create_dir_all(folder.path("toolkit/lib64")).expect("a folder");
    let file = folder.write("toolkit/lib64/libcuda.so.1", "not a library");
    let args = folder.train_args("out", &["run.device=cuda"]);
    let args = refs(&args);
    let output = command(&args).env("CUDA_HOME", folder.path("toolkit")).output().expect("the binary runs");
    // The loader's words begin with the path once more.
    let reason = format!("{file} does not open: {file}: ");
    check_error(
        &args,
        &output,
        1,
        &["error[cuda-driver-missing]: ", &reason, &folder.text_path("toolkit/lib64")],
    );
    assert!(!folder.path("out").exists(), "a run directory was left");
}

fn plan(args: &[&str]) -> (i32, Value) {
    object(&[&["plan"], args, &["--json"]].concat())
}

#[test]
fn a_plan_for_a_card_needs_none_and_says_where_its_numbers_come_from() {
    let folder = folder();
    let run = folder.text_path("x.toml");
    let on = ["--set", "run.device=cuda"];
    if !has_driver() {
        let args = ["plan", &run, on[0], on[1]];
        check_error(&args, &plimsoll(&args), 1, &["error[cuda-driver-missing]: ", "hint: --limit device="]);
    }
    // A limit of the card's is a wish for it, too.
    for (args, limited) in [
        (&[&run, "--limit", "host=64GiB", on[0], on[1]][..], has_driver()),
        (&[&run, "--limit", "device=8GiB"], true),
        (&[&run, "--limit", "device=8GiB", on[0], on[1]], true),
    ] {
        let (code, plan) = plan(args);
        let device = &plan["pools"]["device"];
        assert_eq!((code, &plan["fits"]), (0, &true.into()), "{args:?}");
        assert_eq!(device["limit_bytes"].is_u64(), limited, "{args:?}: {device}");
        let row = |name: &str| {
            let found = plan["regions"].as_array().expect("rows").iter().find(|row| row["name"] == name);
            found.expect("a row of what the driver takes")["bytes"].as_u64().expect("bytes")
        };
        let bytes = row("device.libraries") + row("device.graphs");
        let (arena, peak) = (plan["arena_bytes"].as_u64(), device["peak_bytes"].as_u64());
        assert_eq!(
            arena.map(|arena| arena + bytes),
            peak,
            "{args:?}: the arena, the libraries and recorded passes"
        );
        assert!(plan["libraries_source"].as_str().is_some_and(|s| s.contains("table")), "{args:?}: {plan}");
    }
    let table = text(&plimsoll(&["plan", &run, "--limit", "device=8GiB"]).stdout);
    assert!(table.contains("what the driver and its libraries hold: from a table"), "{table}");
    let (_, cpu) = plan(&[&run, "--set", "run.device=cpu"]);
    assert!(cpu["libraries_source"].is_null() && cpu["pools"]["device"]["peak_bytes"] == 0, "{cpu}");
}

#[test]
fn a_run_in_too_little_device_memory_gets_hints_that_hold() {
    let (code, wide) = plan(&[FIRST, "--limit", "device=8GiB"]);
    let peak = wide["pools"]["device"]["peak_bytes"].as_u64().expect("bytes");
    let (_, least) = plan(&[FIRST, "--min", "--set", "run.device=cuda"]);
    let least = least["min_device_bytes"].as_u64().expect("bytes");
    assert!(code == 0 && least < peak, "{least} of {peak}");
    // As it is written, the run fits in its smallest limit and not in a byte less.
    for (bytes, code) in [(peak, 0), (least, 0), (least - 1, 3), (1, 3)] {
        let limit = format!("device={bytes}");
        let output = plimsoll(&["plan", FIRST, "--limit", &limit]);
        assert_eq!(output.status.code(), Some(code), "{limit}: {}", text(&output.stderr));
    }
    let memory = format!("memory.device={}", least - (1 << 20));
    let on = ["--limit", "host=64GiB", "--set", "run.device=cuda", "--set", &memory];
    check_hints_of("device", &[&["plan", FIRST, "--json"], &on[..]].concat());
    // The same as a limit of the machine's, under which every change of the run must hold.
    let limit = format!("device={}", least - (1 << 20));
    let (code, refused) = plan(&[FIRST, "--limit", &limit]);
    let hints = refused["hints"].as_array().expect("a list");
    let changes: Vec<&str> =
        hints.iter().filter(|h| h["lost_speed"].is_f64()).filter_map(|h| h["set"].as_str()).collect();
    assert!(code == 3 && !changes.is_empty(), "{refused}");
    for set in changes {
        let sets = set.split(" --set ").flat_map(|set| ["--set", set]);
        let again: Vec<&str> = [FIRST, "--limit", &limit].into_iter().chain(sets).collect();
        assert_eq!(plan(&again).0, 0, "{set} does not help");
    }
    // Below what the driver itself takes.
    let on = ["--limit", "host=64GiB", "--set", "run.device=cuda", "--set", "memory.device=1MiB"];
    check_hints_of("device", &[&["plan", FIRST, "--json"], &on[..]].concat());
}

#[test]
fn seven_billion_parameters_are_planned_for_one_card_without_one() {
    let (code, plan) = plan(&[LARGE, "--limit", "device=139GiB,host=120GiB,disk=1TiB"]);
    assert_eq!((code, &plan["fits"]), (0, &true.into()), "{}", plan["hints"]);
    let resolved = &plan["resolved"];
    assert_eq!(resolved["micro_batch_tokens"], 16_384, "{resolved}");
    assert_eq!((&resolved["optimizer_dtype"], &resolved["grad_dtype"]), (&"bf16".into(), &"bf16".into()));
    // Weights, gradients and both moments: four times two bytes a parameter.
    let rows = plan["regions"].as_array().expect("rows");
    let bytes = |name: &str| rows.iter().find(|r| r["name"] == name).and_then(|r| r["bytes"].as_u64());
    let weights = bytes("actor.weights").expect("a row");
    assert!((7_615_616_512 * 2..7_620_000_000 * 2).contains(&weights), "{weights}");
    for (pool, most) in [("device", 139u64 << 30), ("host", 120 << 30), ("disk", 1 << 40)] {
        assert!(plan["pools"][pool]["peak_bytes"].as_u64() <= Some(most), "{pool}: {}", plan["pools"][pool]);
    }
}
