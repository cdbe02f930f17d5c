//! `plan` from outside: what `auto` becomes, hints in the order of their cost, the smallest limits and what they are
//! worth in a real container, the grid, the drawing, sizes that no machine has.

use crate::common::cgroup::Group;
use crate::common::{Folder, check_refused, command, plimsoll, text};
use crate::run::{FIRST, Run, SMALL, object, region};
use serde_json::Value;
use std::fs;

/// The plan of the first run with every knob left open, under a host limit.
fn open_plan(host: &str, more: &[&str]) -> (i32, Value) {
    let mut args = vec!["plan", FIRST, "--json", "--limit", host];
    let sets = ["train.recompute=auto", "train.optimizer_dtype=auto", "memory.staging=auto", "run.threads=2"];
    args.extend(sets.iter().chain(more).flat_map(|set| ["--set", *set]));
    object(&args)
}

fn least(pool: &str, args: &[&str]) -> u64 {
    let (code, found) = object(&[&["plan", FIRST, "--min", "--json"], args].concat());
    assert_eq!(code, 0);
    found[pool].as_u64().expect("a number of bytes")
}

#[test]
fn auto_takes_the_fastest_setting_that_fits_and_says_what_came_next() {
    // The disk's own limit changes as others write.
    let (code, wide) = open_plan("host=8GiB,disk=1TiB", &[]);
    let auto = &wide["auto"];
    assert_eq!((code, wide["resolved"]["optimizer_dtype"].as_str()), (0, Some("f32")));
    assert!(auto["runner_up"]["predicted_step_s"].as_f64() > Some(0.0), "{auto}");
    assert_eq!(open_plan("host=8GiB,disk=1TiB", &[]).1, wide, "the same question has the same answer");

    // Less memory: a slower setting that computes the same, then one that rounds more, said aloud.
    let smallest = least("min_host_bytes", &["--set", "memory.staging=auto", "--set", "run.threads=2"]);
    let tight = format!("host={}", smallest + (1 << 20));
    let (code, narrow) = open_plan(&tight, &[]);
    assert_eq!((code, narrow["resolved"]["optimizer_dtype"].as_str()), (0, Some("f32")));
    let step = |plan: &Value| plan["auto"]["chosen"]["predicted_step_s"].as_f64().expect("seconds");
    assert!(step(&narrow) > step(&wide));
    assert!(narrow["auto"]["gave_up"].is_null(), "{}", narrow["auto"]);
    let all_open = [
        "--set",
        "train.recompute=auto",
        "--set",
        "train.optimizer_dtype=auto",
        "--set",
        "memory.staging=auto",
        "--set",
        "run.threads=2",
    ];
    let (code, least_plan) = open_plan(&format!("host={}", least("min_host_bytes", &all_open)), &[]);
    assert_eq!((code, least_plan["resolved"]["optimizer_dtype"].as_str()), (0, Some("int8")));
    let gave_up = least_plan["auto"]["gave_up"].as_str().expect("words");
    assert!(gave_up.contains("stochastic rounding"), "{gave_up}");
}

/// Layers with windows keep a window, a quarter more for the rows of a pass and two blocks, however long responses are.
#[test]
fn the_cache_of_a_layer_with_a_window_is_a_window() {
    let bytes = |model: &str, tokens: u32| {
        let sets = [
            format!("model=random:{model}"),
            format!("rollout.max_new_tokens={tokens}"),
            "data.prompt_tokens_max=64".into(),
            "rollout.prompts_per_step=1".into(),
            "rollout.group_size=2".into(),
            "rollout.sequences_max=2".into(),
        ];
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let args = ["plan", FIRST, "--json", "--limit", "host=1TiB,disk=1TiB"];
        let plan = object(&args.into_iter().chain(sets).collect::<Vec<_>>()).1;
        ["keys", "window.keys"].map(|name| {
            region(&plan, &format!("rollout.{name}")).and_then(|region| region["bytes"].as_u64()).unwrap_or(0)
        })
    };
    // Gemma 3 1B: 22 layers of 26 see 512 keys, and all heads share those of one, of 256 elements in bf16.
    let block = 256 * 16 * 2;
    let ([whole, window], [longer, same]) = (bytes("gemma-3-1b", 16_384), bytes("gemma-3-1b", 32_000));
    let (prompts, sequence) = (2 * 4, (512 + 128_u64).div_ceil(16) + 1);
    assert_eq!((window, same), (22 * (prompts + 2 * sequence) * block, window), "windows do not grow");
    assert_eq!((whole, longer), (4 * (prompts + 2 * 1024) * block, 4 * (prompts + 2 * 2000) * block));
    // While no sequence is longer than a window there is one cache, and a model without windows has no other.
    assert_eq!(bytes("gemma-3-1b", 448), [26 * (prompts + 2 * 28) * block, 0]);
    assert_eq!(bytes("qwen3-0.6b", 16_384)[1], 0);
}

#[test]
fn hints_stand_in_the_order_of_the_speed_they_cost() {
    let sets = ["--set", "train.micro_batch_tokens=2048", "--set", "loss.kl_coef=0.1"];
    let plan = |more: &[&str]| object(&[&["plan", FIRST, "--json"], &sets[..], more].concat());
    // A limit that recomputing alone would meet: then smaller micro-batches do as well.
    let peak = &plan(&["--set", "train.recompute=layer"]).1["pools"]["host"]["peak_bytes"];
    let (code, plan) = plan(&["--limit", &format!("host={peak}")]);
    assert_eq!(code, 3);
    let hints = plan["hints"].as_array().expect("a list");
    let lost: Vec<f64> = hints
        .iter()
        .filter(|hint| hint["changes_result"] == false)
        .filter_map(|hint| hint["lost_speed"].as_f64())
        .collect();
    assert!(lost.len() >= 2 && lost.windows(2).all(|pair| pair[0] <= pair[1]), "{hints:?}");
    for hint in hints.iter().filter(|hint| !hint["lost_speed"].is_null()) {
        assert!(hint["why"].as_str().is_some_and(|why| why.contains("; predicted ")), "{hint}");
    }
    let changing = hints.iter().position(|hint| hint["changes_result"] == true);
    let same = hints.iter().rposition(|h| h["changes_result"] == false && !h["lost_speed"].is_null());
    assert!(changing.is_none_or(|changing| Some(changing) > same), "{hints:?}");
}

#[test]
fn sizes_that_no_machine_has_are_refused_with_a_name() {
    for sets in [
        &["data.prompt_tokens_max=4294967295"][..],
        &[
            "rollout.prompts_per_step=1048576",
            "rollout.group_size=1",
            "rollout.max_new_tokens=4194304",
            "method=reinforce",
        ],
        &["rollout.sequences_max=4294967295", "rollout.max_new_tokens=4194304"],
    ] {
        let args: Vec<&str> = ["plan", FIRST, "--set", "model_options.positions=extend"]
            .into_iter()
            .chain(sets.iter().flat_map(|set| ["--set", *set]))
            .collect();
        check_refused(&args, 2, &["error[size-overflow]: "]);
    }
    // Large, and still a number: a plan that does not fit.
    let (code, plan) = object(&["plan", FIRST, "--json", "--set", "rollout.kv_blocks=4294967295"]);
    assert_eq!(code, 3);
    assert!(plan["pools"]["host"]["peak_bytes"].as_u64() > Some(1 << 46), "{}", plan["pools"]);
}

/// The shape of a 7B model on a card of 24 GiB.
const ON_24_GIB: [&str; 2] = ["--limit", "device=24GiB,host=64GiB,disk=1TiB"];

#[test]
fn a_run_that_does_not_fit_is_offered_adapters_that_do() {
    let lora = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/qwen2.5-7b-lora-24gb.toml");
    let (code, plan) = object(&[&["plan", lora, "--json"], &ON_24_GIB[..]].concat());
    assert_eq!((code, &plan["fits"]), (0, &true.into()), "{}", plan["hints"]);
    let fits = text(&plimsoll(&[&["plan", lora], &ON_24_GIB[..]].concat()).stdout);
    assert!(fits.ends_with("verdict: fits\n"), "{fits}");

    // The same in full, whatever dtypes it asks for.
    let content = fs::read_to_string(lora).expect("a recipe").replace("[lora]\nrank  = 32", "[lora_was]\n#");
    let content: Vec<&str> = content.split("[lora_was]").collect();
    let rest = content[1].split_once("\n[train]").expect("a section").1;
    let file = Folder::with("full.toml", &format!("{}[train]{rest}", content[0]));
    let file = file.text_path("full.toml");
    for (dtypes, more) in [
        (&[][..], ""),
        (
            &["--set", "train.optimizer_dtype=bf16", "--set", "train.grad_dtype=bf16"],
            " --set train.optimizer_dtype=f32 --set train.grad_dtype=f32",
        ),
    ] {
        let (code, plan) = object(&[&["plan", &*file, "--json"], &ON_24_GIB[..], dtypes].concat());
        let set = format!("lora.rank=16 --set train.learning_rate=1e-4{more}");
        let hints = plan["hints"].as_array().expect("a list");
        let hint = hints.iter().find(|hint| hint["set"] == set.as_str());
        let hint = hint.unwrap_or_else(|| panic!("{code}: {hints:?}"));
        assert_eq!((code, &hint["changes_result"]), (3, &true.into()), "{hint}");
        let sets: Vec<&str> = set.split(" --set ").flat_map(|set| ["--set", set]).collect();
        let (code, plan) = object(&[&["plan", &*file, "--json"], &ON_24_GIB[..], dtypes, &sets].concat());
        assert_eq!(code, 0, "{}", plan["hints"]);
        let peak = plan["pools"]["device"]["peak_bytes"].as_u64().expect("bytes") as f64;
        let words = format!(": {:.1} GiB of device memory; predicted step ", peak / f64::from(1 << 30));
        assert!(hint["why"].as_str().is_some_and(|why| why.contains(&words)), "{words}: {hint}");
    }
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
    // Not where they do not fit either, and not of adapters.
    let offers = |args: &[&str]| {
        let (code, plan) = object(&[&["plan", "--json"], args].concat());
        assert_eq!(code, 3, "{args:?}");
        plan["hints"].as_array().expect("a list").iter().any(|hint| hint.to_string().contains("lora.rank"))
    };
    assert!(!offers(&[&file, "--limit", "device=6GiB,host=64GiB,disk=1TiB"]));
    assert!(!offers(&[lora, "--limit", "device=12GiB,host=64GiB,disk=1TiB"]));
    let rest = "model = \"random:smollm2-135m\"\n[data]\nprompts = \"builtin:addition\"\neval = \"none\"\n[rollout]\nprompts_per_step = 4\n[train]\nsteps = 1\nlearning_rate = 1e-6\n";
    for method in ["sft", "dpo", "reward_model"] {
        let file = Folder::with("x.toml", &format!("method = \"{method}\"\n{rest}"));
        assert!(offers(&[&file.text_path("x.toml"), "--limit", "host=700MiB"]), "{method}");
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
    let (code, large) =
        object(&["plan", "--table", "--models", "qwen2.5-7b", "--limit", "host=30GiB", "--json"]);
    let row = &large["rows"][0];
    assert_eq!((code, &row["fits"], &row["lora"]["fits"]), (0, &false.into(), &true.into()), "{row}");
    let words = text(&plimsoll(&[&args[..], &["--methods", "sft"]].concat()).stdout);
    assert!(words.contains("all weights") && words.contains("LoRA r=16"), "{words}");
    assert_eq!(words.matches("qwen2.5-7b").count(), 2, "{words}");
    // A separate critic and its optimizer are added to the actor's.
    let all = ["plan", "--table", "--models", "smollm2-135m", "--contexts", "512", "--json"];
    let (_, grid) = object(&[&all[..], &["--methods", "grpo,ppo,dpo,reward_model"]].concat());
    let least: Vec<u64> =
        grid["rows"].as_array().expect("rows").iter().filter_map(|row| row["min_bytes"].as_u64()).collect();
    assert!(least.len() == 4 && least[1] > least[0], "{least:?}");
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
    // With only what the supervisor comes to hold, it still reports: both processes' pages are 7 MiB by then.
    assert!(below.set_limit(10 << 20));
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

/// A card that is too small for states and reference, on a host that has room for them.
#[test]
fn a_refused_card_is_told_what_to_offload_and_the_rows_move() {
    let sets = [
        "model=random:qwen2.5-0.5b",
        "train.optimizer_dtype=f32",
        "train.recompute=layer",
        "loss.kl_coef=0.1",
    ];
    let plan = |limit: &str, more: &[&str]| {
        let mut args = vec!["plan", FIRST, "--json", "--limit", limit];
        args.extend(sets.iter().chain(more).flat_map(|set| ["--set", *set]));
        object(&args)
    };
    let roomy = "device=139GiB,host=64GiB,disk=1TiB";
    let (code, resident) = plan(roomy, &[]);
    let both = "memory.offload=[\"optimizer\",\"reference\"]";
    let (offloaded_code, offloaded) = plan(roomy, &[both]);
    assert_eq!((code, offloaded_code), (0, 0));
    let peak = |plan: &Value, pool: &str| plan["pools"][pool]["peak_bytes"].as_u64().expect("bytes");
    let row = |plan: &Value, name: &str| {
        plan["regions"].as_array().expect("regions").iter().find(|row| row["name"] == name).cloned()
    };
    for state in ["adam_m", "adam_v", "master"] {
        let (kept, moved) =
            (row(&resident, &format!("actor.{state}")), row(&offloaded, &format!("offload.actor.{state}")));
        let (kept, moved) = (kept.expect("resident"), moved.expect("offloaded"));
        assert_eq!(kept["bytes"], moved["bytes"]);
        assert_eq!((moved["pool"].as_str(), moved["place"].as_str()), (Some("host"), Some("offloaded")));
    }
    assert!(
        row(&offloaded, "reference.weights").is_none()
            && row(&offloaded, "offload.reference.weights").is_some()
    );
    // 494 million parameters: 12 bytes of states and the reference's 2 leave the card; slots share the passes' bytes.
    let saved = peak(&resident, "device") - peak(&offloaded, "device");
    assert!(saved > 13 * 494_000_000, "{saved}");
    assert!(peak(&offloaded, "host") - peak(&resident, "host") >= 14 * 494_000_000);

    let tight = format!("device={},host=64GiB,disk=1TiB", peak(&resident, "device") / 2);
    let micro_batch = ["train.micro_batch_tokens=auto"];
    let (code, refused) = plan(&tight, &micro_batch);
    assert_eq!(code, 3);
    let hints: Vec<&str> =
        refused["hints"].as_array().expect("a list").iter().filter_map(|hint| hint["set"].as_str()).collect();
    assert!(hints.contains(&both), "{hints:?}");
    assert_eq!(plan(&tight, &[both, micro_batch[0]]).0, 0, "the hint holds");
    // Left open, nothing moves as long as it fits, and then what must.
    let open = |limit: &str| plan(limit, &["memory.offload=auto", micro_batch[0]]);
    let (code, fits) = open(roomy);
    assert_eq!((code, &fits["resolved"]["offload"]["optimizer"]), (0, &Value::Bool(false)));
    let (code, fits) = open(&tight);
    assert_eq!((code, &fits["resolved"]["offload"]["optimizer"]), (0, &Value::Bool(true)));
}

/// 131,072 tokens of a model of 8 billion parameters: the inputs of its layers leave the card that they do not fit.
#[test]
fn inputs_of_layers_leave_a_card_that_long_sequences_fill() {
    let sets = [
        "model=random:qwen3-8b",
        "model_options.positions=extend",
        "data.prompt_tokens_max=122880",
        "rollout.max_new_tokens=8192",
        "rollout.prompts_per_step=1",
        "rollout.group_size=2",
        "train.micro_batch_tokens=131072",
        "train.optimizer_dtype=int8",
        "train.grad_dtype=bf16",
    ];
    let under = |limit: &str, level: &str| {
        let level = format!("train.recompute={level}");
        let mut args = vec!["plan", FIRST, "--json", "--limit", limit];
        args.extend(sets.iter().chain([&&*level]).flat_map(|set| ["--set", *set]));
        object(&args)
    };
    let plan = |level: &str| under("device=139GiB,host=128GiB,disk=1TiB", level);
    let [(layer, refused), (offload, fits), (auto, chosen)] = ["layer", "offload", "auto"].map(plan);
    assert_eq!((layer, offload, auto), (3, 0, 0), "{refused}");
    let row =
        |name: &str| fits["regions"].as_array().expect("regions").iter().find(|row| row["name"] == name);
    let [slots, host] = ["update.resid", "offload.update.resid"].map(|name| row(name).expect("a row"));
    assert_eq!(host["place"], "offloaded");
    // 36 layers: 34 inputs wait, and three pass through the card.
    let bytes = |row: &Value| row["bytes"].as_u64().expect("bytes");
    assert_eq!(bytes(host) * 3, bytes(slots) * 34);
    assert_eq!(chosen["resolved"]["recompute"], "offload", "{}", chosen["resolved"]);
    let hints = refused["hints"].as_array().expect("a list");
    assert!(hints.iter().any(|hint| hint["set"] == "train.recompute=offload"), "{hints:?}");
    // A host that is too small for any of it is not asked for room for inputs, which this card has.
    let needs = |level: &str| {
        let (code, refused) = under("device=512GiB,host=600MiB,disk=1TiB", level);
        assert_eq!(code, 3, "{level}");
        refused["pools"]["host"]["peak_bytes"].as_u64().expect("bytes")
    };
    assert_eq!(needs("auto"), needs("layer"));
    assert!(needs("layer") < needs("offload"));
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
    for (model, shape) in [
        ("hf:mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("random:mixtral-8x22b", "mixtral-8x22b"),
        ("random:olmoe-1b-7b", "olmoe-1b-7b"),
    ] {
        let model = format!("model={model}");
        let limit = "host=16TiB,disk=64TiB";
        let args = ["plan", FIRST, "--limit", limit, "--set", &model, "--set", "data.prompt_tokens_max=32"];
        let (code, plan) = object(&[&args[..], &["--json"]].concat());
        let words = format!("{shape} is planned only: this family is not trained here");
        assert_eq!(code, 0, "{plan}");
        assert!(
            plan["assumed"][0].as_str().is_some_and(|said| said.ends_with(&words)),
            "{}",
            plan["assumed"]
        );
        let said = ["error[model-unsupported]: ", "is a shape for plans only"];
        let folder = Run::new(SMALL);
        folder.check_train(&[&format!("model=random:{shape}")], 1, &said);
    }
}
