//! `train --resume` and `checkpoint` from outside: what continues, what is refused, and what is printed.

use crate::common::{check_refused, command, every_nth, plimsoll, text};
use crate::run::{Run, check_done, export, refs};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 4
group_size = 2
max_new_tokens = 4
[[reward]]
kind = "exact"
[train]
steps = 4
learning_rate = 1e-4
[eval]
prompts_max = 8
[checkpoint]
every = 1
keep = 3
"#;

/// The critic and its states after the last step.
fn critic(folder: &Run, dir: &str) -> [Vec<u8>; 2] {
    ["state/critic.safetensors", "state/critic_optimizer.safetensors"].map(|file| folder.saved(dir, file))
}

/// A directory with its own model.
fn model(folder: &Run, name: &str) -> String {
    folder.train("made", &["train.steps=1"]);
    let to = folder.text_path(name);
    export(folder, "made", &to);
    to
}

fn flip(folder: &Run, name: &str) {
    let mut bytes = folder.read(name);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    folder.write_bytes(name, bytes);
}

#[test]
fn a_run_that_is_made_longer_equals_a_long_one_whatever_its_storage() {
    let folder = Run::new(RUN);
    for (_, (name, sets)) in every_nth(
        3,
        [
            ("master", &["loss.kl_coef=0.05", "loss.kl_target=0.01", "train.mini_batch=4"][..]),
            ("bf16", &["train.optimizer_dtype=bf16"]),
            ("int8", &["train.optimizer_dtype=int8"]),
            ("f32", &["model_options.dtype=f32"]),
            ("muon", &["train.optimizer=muon", "train.learning_rate=1e-3", "train.muon_nesterov=false"]),
            ("sft", &["method=sft", "train.epochs_per_rollout=1"]),
            (
                "ppo",
                &["method=ppo", "critic.updates_per_rollout=2", "critic.warmup_steps=1", "loss.lambda=0.9"],
            ),
            (
                "ppo-int8",
                &[
                    "method=ppo",
                    "loss.kl_coef=0.05",
                    "loss.kl_in=reward",
                    "loss.kl_target=0.01",
                    "train.optimizer_dtype=int8",
                ],
            ),
        ],
    ) {
        let (long, short) = (format!("{name}-long"), format!("{name}-short"));
        folder.train(&long, &[sets, &["checkpoint.every=100"]].concat());
        folder.train(&short, &[sets, &["train.steps=2"]].concat());
        let said = folder.train(&short, &[sets, &["--resume"]].concat());
        assert!(said.starts_with("resumes after step 2 from "), "{name}: {said}");
        assert!(folder.result(&long) == folder.result(&short), "{name}: other bits");
        if name.starts_with("ppo") {
            assert!(critic(&folder, &long) == critic(&folder, &short), "{name}: another critic");
        }
    }
}

/// Where states and the reference lie changes no bit, not even in the middle of a run.
#[test]
fn an_offloaded_run_equals_a_resident_one() {
    let folder = Run::new(RUN);
    for (_, dtype) in every_nth(3, ["f32", "bf16", "int8"]) {
        let optimizer = format!("train.optimizer_dtype={dtype}");
        let sets = ["loss.kl_coef=0.05", "train.mini_batch=4", &optimizer];
        let (resident, offloaded) = (format!("{dtype}-resident"), format!("{dtype}-offloaded"));
        folder.train(&resident, &[&sets[..], &["checkpoint.every=100"]].concat());
        let both = "memory.offload=[\"optimizer\", \"reference\"]";
        folder.train(&offloaded, &[&sets[..], &["train.steps=2", both]].concat());
        folder.train(&offloaded, &[&sets[..], &["train.steps=3", both, "--resume"]].concat());
        folder.train(&offloaded, &[&sets[..], &["memory.offload=[\"reference\"]", "--resume"]].concat());
        assert!(folder.result(&resident) == folder.result(&offloaded), "{dtype}: other bits");
    }
}

#[test]
fn a_run_that_is_over_and_one_that_never_began_say_so() {
    let folder = Run::new(RUN);
    let said = folder.train("out", &["--resume"]);
    assert!(said.contains("no run is there to resume; it starts at step 0"), "{said}");
    let said = folder.train("out", &["--resume", "--json"]);
    assert!(said.contains("is finished: 4 of 4 steps are done"), "{said}");
    assert!(!said.contains("step 4/4"), "it trained again: {said}");
    // Killed after its last step, before its summary.
    let pass_at_k = || {
        let summary = folder.read_json("out/summary.json");
        ["pass_at_k_before", "pass_at_k_after"].map(|key| summary[key]["1"].as_f64().expect("a number"))
    };
    let pass_before = pass_at_k();
    fs::remove_file(folder.path("out/summary.json")).expect("it is there");
    let before = folder.read("out/samples/eval-000004.jsonl");
    let said = folder.train("out", &["--resume"]);
    assert!(said.contains("resumes after step 4") && !said.contains("eval at step"), "{said}");
    assert_eq!(pass_at_k(), pass_before);
    assert_eq!(folder.read("out/samples/eval-000004.jsonl"), before);
    // Killed before its first checkpoint.
    fs::remove_dir_all(folder.path("out/checkpoints")).expect("it is there");
    let said = folder.train("out", &["--resume"]);
    assert!(said.contains("no complete checkpoint; it starts at step 0"), "{said}");
    let events = text(&folder.read("out/events.jsonl"));
    assert_eq!(events.lines().filter(|line| line.contains("\"event\":\"step\"")).count(), 4, "{events}");
    // Killed while the directory was made; and a directory of somebody else.
    fs::create_dir_all(folder.path("begun/samples")).expect("a folder");
    fs::write(folder.path("begun/lock"), "1\n").expect("a file");
    fs::write(folder.path("begun/.plan.json.1.0.part"), "{").expect("a file");
    assert!(folder.train("begun", &["--resume", "train.steps=1"]).contains("it starts at step 0"));
    fs::create_dir_all(folder.path("mine")).expect("a folder");
    fs::write(folder.path("mine/plan.json"), "{}").expect("a file");
    folder.train_refused("mine", &["--resume"], 2, &["error[run-dir-not-empty]: ", "plan.json"]);
    assert_eq!(folder.read("mine/plan.json"), b"{}");
    assert!(!folder.path("mine/lock").exists());
}

#[test]
fn changed_keys_are_refused_by_name_and_some_may_change() {
    let folder = Run::new(RUN);
    folder.train("out", &["train.steps=2"]);
    let resolved = folder.read("out/run.toml");
    folder.train_refused(
        "out",
        &["--resume", "seed=1", "rollout.temperature=0.5"],
        2,
        &["error[run-file-changed]: 2 keys", "seed is 1, the run began with 0", "may change: train.steps"],
    );
    folder.train_refused("out", &["--resume", "train.steps=1"], 2, &["error[run-file-changed]: ", "2 steps"]);
    folder.train_refused("out", &["--resume", "train.micro_batch_tokens=300"], 2, &["micro_batch_tokens"]);
    assert_eq!(folder.read("out/run.toml"), resolved, "a refusal changed the directory");
    folder.train_refused("out", &["--replan"], 2, &["error[bad-usage]: ", "--resume"]);
    folder.train_refused("out", &["--resume=newer"], 2, &["error[bad-usage]: ", "previous-good"]);
    folder.train_refused("out", &[], 2, &["error[run-dir-not-empty]: ", "--resume"]);
    folder.train("out", &["--resume", "train.steps=3", "checkpoint.keep=9", "eval.every=1", "run.threads=1"]);
    let said = folder.train("out", &["--resume", "--replan", "train.micro_batch_tokens=300"]);
    assert!(said.contains("not with the same bits") && said.contains("step 4/4"), "{said}");
    // A run of which a schedule decides every rate has the length that it has.
    let linear = "train.schedule=linear";
    folder.train("rates", &[linear, "train.steps=2"]);
    folder.train_refused("rates", &["--resume", linear], 2, &["train.steps is 4, the run began with 2"]);
}

#[test]
fn a_damaged_checkpoint_is_named_and_passed_over_when_told_so() {
    let folder = Run::new(RUN);
    folder.train("whole", &[]);
    folder.train("out", &["train.steps=3"]);
    let newest = "out/checkpoints/step-000003";
    flip(&folder, &format!("{newest}/state/optimizer.safetensors"));
    let named =
        ["error[checkpoint-damaged]: ", "optimizer.safetensors: bytes ", "step-000002, which is good"];
    folder.train_refused("out", &["--resume"], 1, &named);
    let (run, json) =
        (folder.text_path("out"), plimsoll(&["checkpoint", "verify", &folder.text_path("out"), "--json"]));
    assert_eq!(json.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&json.stdout).expect("one object");
    let damage = |i: usize| found["checkpoints"][i]["damage"].is_string();
    assert_eq!([damage(0), damage(1), damage(2)], [false, false, true], "{found}");
    let file = &found["checkpoints"][2]["damaged_files"][0];
    let range = &file["difference"]["ranges"][0];
    let bytes = |key: &str| range[key].as_u64().expect("a byte");
    let flipped = folder.read(&format!("{newest}/state/optimizer.safetensors")).len() as u64 / 2;
    assert!(file["file"] == "state/optimizer.safetensors", "{found}");
    assert!((bytes("first_byte")..=bytes("last_byte")).contains(&flipped), "{range}, byte {flipped}");
    assert!(bytes("last_byte") - bytes("first_byte") < 16 << 10, "{range}");
    // The error names the file, the bytes, the tensor and both sums.
    let verified = plimsoll(&["checkpoint", "verify", &run]);
    assert!(text(&verified.stdout).contains("checkpoint-damaged: state/optimizer.safetensors"));
    let said = text(&verified.stderr);
    let place = format!(
        "step-000003/state/optimizer.safetensors: bytes {} to {} (`adam_",
        bytes("first_byte"),
        bytes("last_byte")
    );
    for part in [&place, " have CRC-32 ", "; SHA-256 ", ", expected ", "of 3 checkpoints, 1 damaged"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = folder.train("out", &["--resume=previous-good"]);
    assert!(said.contains("damaged, passed over: ") && said.contains("resumes after step 2"), "{said}");
    assert!(folder.result("out") == folder.result("whole"), "other bits");
    assert!(!folder.path("out/checkpoints/step-000003.damaged").exists(), "it outlived a newer one");
    for step in 2..=4 {
        fs::remove_file(folder.path(&format!("out/checkpoints/step-00000{step}/config.json")))
            .expect("a file");
    }
    folder.train_refused(
        "out",
        &["--resume", "train.steps=9"],
        1,
        &["config.json: it is missing", "no earlier"],
    );
    folder.train_fails("out", &["--resume=previous-good"], 1, &["all 3 checkpoints are damaged"]);
}

#[test]
fn newer_forms_links_short_logs_and_other_times_of_day() {
    let folder = Run::new(RUN);
    folder.train("out", &["train.steps=2"]);
    // The clock went back: what is newest is a matter of steps.
    let set_time = |name: &str, time: SystemTime| {
        let file = fs::File::open(folder.path(name)).expect("it is there");
        file.set_modified(time).expect("times can be set");
    };
    let hour = Duration::from_secs(3600);
    set_time("out/checkpoints/step-000001", SystemTime::now() + 10_000 * hour);
    set_time("out/checkpoints/step-000002", SystemTime::UNIX_EPOCH + hour);
    let said = folder.train("out", &["--resume", "train.steps=3"]);
    assert!(said.contains("resumes after step 2"), "{said}");

    let manifest = folder.path("out/checkpoints/step-000003/manifest.json");
    let good = fs::read_to_string(&manifest).expect("it is there");
    fs::write(&manifest, good.replace("\"format\": 2", "\"format\": 3")).expect("a file");
    let newer = ["error[checkpoint-newer]: ", "format 3", "up to 2"];
    folder.train_refused("out", &["--resume"], 1, &newer);
    check_refused(
        &["checkpoint", "export", &folder.text_path("out"), "--to", &folder.text_path("x")],
        1,
        &newer,
    );
    fs::write(&manifest, good).expect("a file");

    for (name, code, contains) in [
        ("out/events.jsonl", 1, "error[symlink-refused]: "),
        ("out/lock", 1, "error[symlink-refused]: "),
        ("out/samples", 1, "error[symlink-refused]: "),
        ("out/checkpoints/step-000003", 1, "error[checkpoint-damaged]: "),
    ] {
        fs::rename(folder.path(name), folder.path("aside")).expect("it is there");
        symlink(folder.path("aside"), folder.path(name)).expect("a link");
        folder.train_refused("out", &["--resume"], code, &[contains, "symbolic link"]);
        fs::remove_file(folder.path(name)).expect("a link");
        fs::rename(folder.path("aside"), folder.path(name)).expect("it is there");
    }
    // A pipe in place of a file is named, not waited for.
    for (name, slug) in [
        ("out/lock", "run-dir-damaged"),
        ("out/events.jsonl", "run-dir-damaged"),
        ("out/checkpoints/step-000003/manifest.json", "checkpoint-damaged"),
        ("out/checkpoints/step-000003/config.json", "checkpoint-damaged"),
    ] {
        fs::rename(folder.path(name), folder.path("aside")).expect("it is there");
        let made = Command::new("mkfifo").arg(folder.path(name)).status().expect("coreutils");
        assert!(made.success());
        folder.train_refused("out", &["--resume"], 1, &[slug, "it is not a regular file"]);
        fs::rename(folder.path("aside"), folder.path(name)).expect("it is there");
    }
    // Checkpoints that are elsewhere: a run that had them does not begin anew over its log.
    let events = folder.read("out/events.jsonl");
    fs::rename(folder.path("out/checkpoints"), folder.path("aside")).expect("it is there");
    symlink(folder.path("not-mounted"), folder.path("out/checkpoints")).expect("a link");
    let words = ["error[symlink-refused]: ", "set run.dir to a directory on it"];
    folder.train_refused("out", &["--resume"], 1, &words);
    assert!(folder.read("out/events.jsonl") == events, "a refusal cut the log");
    fs::remove_file(folder.path("out/checkpoints")).expect("a link");
    fs::rename(folder.path("aside"), folder.path("out/checkpoints")).expect("it is there");
    fs::write(folder.path("out/events.jsonl"), &events[..40]).expect("a file");
    folder.train_fails("out", &["--resume"], 1, &["error[run-dir-damaged]: ", "40 bytes"]);
    fs::write(folder.path("out/events.jsonl"), &events).expect("a file");
    folder.train("out", &["--resume"]);
}

/// Samples were written where a link led, and checkpoints under `--resume` alone.
#[test]
fn r_a_link_in_place_of_a_folder_was_followed() {
    let folder = Run::new(RUN);
    folder.train("out", &["train.steps=1"]);
    for name in ["out/samples", "out/checkpoints", "out/track"] {
        let had = folder.path(name).exists();
        if had {
            fs::rename(folder.path(name), folder.path("aside")).expect("it is there");
        } else {
            fs::create_dir(folder.path("aside")).expect("a folder");
        }
        symlink(folder.path("aside"), folder.path(name)).expect("a link");
        let words = ["error[symlink-refused]: ", "a symbolic link in place of a folder"];
        folder.train_refused("out", &["--overwrite"], 1, &words);
        folder.train_refused("out", &["--resume"], 1, &words);
        fs::remove_file(folder.path(name)).expect("a link");
        if had {
            fs::rename(folder.path("aside"), folder.path(name)).expect("it is there")
        } else {
            fs::remove_dir(folder.path("aside")).expect("it is empty")
        }
    }
    fs::write(folder.path("victim"), "kept").expect("a file");
    for name in ["crash.json", "curves.svg", "schedule.jsonl", "agent.json", "rewards.log", "ranks.json"] {
        let name = format!("out/{name}");
        let _ = fs::remove_file(folder.path(&name));
        symlink(folder.path("victim"), folder.path(&name)).expect("a link");
        for how in ["--overwrite", "--resume"] {
            let words = ["error[symlink-refused]: ", "a symbolic link in place of a file"];
            folder.train_refused("out", &[how], 1, &words);
        }
        fs::remove_file(folder.path(&name)).expect("a link");
    }
    assert_eq!(folder.read("victim"), b"kept");
}

/// Returns the files below a folder that hold `word`.
fn holders(folder: &std::path::Path, word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        match entry.file_type().expect("a kind") {
            kind if kind.is_dir() => found.extend(holders(&entry.path(), word)),
            kind if kind.is_file() => {
                let bytes = fs::read(entry.path()).expect("a file");
                if bytes.windows(word.len()).any(|part| part == word.as_bytes()) {
                    found.push(entry.path().display().to_string());
                }
            }
            _ => {}
        }
    }
    found
}

/// They were in `run.toml` and in each checkpoint's.
#[test]
fn r_keys_of_a_run_file_were_copied_into_its_run_directory() {
    let with_key = |key: &str| {
        RUN.replacen("kind = \"exact\"", &format!("kind = \"command:sh reply.sh --api-key {key} -n 5\""), 1)
    };
    let folder = Run::new(&with_key("ZQ1x"));
    folder.write("reply.sh", "n=0\nwhile read line; do n=$((n + 1)); echo $((n % 2)); done\n");
    let train = |words: &[&str]| {
        let args = folder.train_args("out", words);
        command(&refs(&args)).current_dir(folder.path(".")).output().expect("the binary runs")
    };
    check_done(&train(&["train.steps=2"]));
    assert_eq!(holders(&folder.path("out"), "ZQ1x"), [""; 0]);
    let kept = text(&folder.read("out/checkpoints/latest/state/run.toml"));
    assert!(kept.contains("sh reply.sh --api-key (not shown) -n 5 (withheld "), "{kept}");

    // It goes on with the user's file, with no other key, and not with the file of the directory alone.
    let said = check_done(&train(&["--resume", "train.steps=3"]));
    assert!(said.contains("resumes after step 2"), "{said}");
    assert_eq!(holders(&folder.path("out"), "ZQ1x"), [""; 0]);
    let refused = |output: &std::process::Output, words: &[&str]| {
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        words.iter().for_each(|words| assert!(said.contains(words), "{words}: {said}"));
        assert!(!said.contains("ZQ"), "{said}");
    };
    folder.write("x.toml", &with_key("ZQ2x"));
    refused(&train(&["--resume", "train.steps=4"]), &["error[run-file-changed]: ", "reward.0.kind"]);
    folder.write("x.toml", &kept);
    refused(
        &train(&["--resume", "train.steps=4"]),
        &["error[secret-withheld]: ", "`reward.0.kind`", "x.toml:"],
    );
    let set = "reward.0.kind=command:sh reply.sh --api-key ZQ1x -n 5";
    check_done(&train(&["--resume", "train.steps=4", set]));
}

#[test]
fn data_that_changed_is_refused_and_replan_takes_it() {
    let folder = Run::new(RUN);
    let row = |sum: u32| format!("{{\"prompt\": \"1+{sum}=\", \"ground_truth\": \"{}\"}}\n", 1 + sum);
    let rows: String = (1..9).map(row).collect();
    fs::write(folder.path("d.jsonl"), &rows).expect("a file");
    let data = format!("data.prompts={}", folder.text_path("d.jsonl"));
    folder.train("out", &[&data, "train.steps=2"]);
    fs::write(folder.path("d.jsonl"), rows + &row(9)).expect("a file");
    let differs = ["error[resume-differs]: ", "d.jsonl has other contents", "--replan"];
    folder.train_refused("out", &[&data, "--resume"], 1, &differs);
    let said = folder.train("out", &[&data, "--resume", "--replan"]);
    assert!(said.contains("--replan: ") && said.contains("other contents"), "{said}");
}

#[test]
fn a_schema_that_changed_is_refused_as_data_is() {
    let folder = Run::new(RUN);
    folder.write("s.json", r#"{"type": "integer"}"#);
    let schema = format!(r#"reward=[{{kind = "json-schema", schema = "{}"}}]"#, folder.text_path("s.json"));
    folder.train("out", &[&schema, "train.steps=1"]);
    folder.write("s.json", r#"{"type": "string"}"#);
    folder.train_refused(
        "out",
        &[&schema, "--resume"],
        1,
        &["error[resume-differs]: ", "s.json has other contents"],
    );
}

#[test]
fn a_run_without_its_file_is_damaged_and_a_strangers_folder_is_no_run() {
    let folder = Run::new(RUN);
    folder.train("out", &["train.steps=1"]);
    std::fs::remove_file(folder.path("out/plan.json")).expect("it is there");
    let words =
        ["error[run-dir-damaged]: ", "holds checkpoints, and plan.json is missing", "hint: restore the file"];
    folder.train_refused("out", &["--resume"], 1, &words);
    std::fs::create_dir(folder.path("other")).expect("a folder");
    folder.write("other/notes.txt", "mine");
    folder.train_fails(
        "other",
        &["--resume"],
        2,
        &["error[run-dir-not-empty]: ", "holds notes.txt, and no run"],
    );
    assert_eq!(folder.read("other/notes.txt"), b"mine");
}

#[test]
fn a_model_that_went_away_is_not_missed_but_for_a_reference() {
    let folder = Run::new(RUN);
    let path = model(&folder, "m");
    let model = format!("model={path}");
    let (tokenizer, template) = (folder.text_path("t.json"), "data.chat_template={{ messages[0].content }}");
    fs::copy(folder.path("m/tokenizer.json"), &tokenizer).expect("a file");
    let tokenizer = format!("model_options.tokenizer={tokenizer}");
    let away = |is_away: bool| {
        let (away, there) = (folder.path("away"), PathBuf::from(&path));
        let (from, to) = if is_away { (&there, &away) } else { (&away, &there) };
        fs::rename(from, to).expect("it is there");
    };
    for (name, sets) in [("own", &[&*model, template][..]), ("other", &[&*model, &*tokenizer])] {
        let (whole, out) = (format!("{name}-whole"), format!("{name}-out"));
        folder.train(&whole, sets);
        folder.train(&out, &[sets, &["train.steps=2"]].concat());
        away(true);
        let gone = fs::rename(folder.path("t.json"), folder.path("t.away"));
        gone.expect("it is there");
        let said = folder.train(&out, &[sets, &["--resume"]].concat());
        assert!(
            said.contains("/m: no such directory; weights, configuration and tokenizer are the"),
            "{said}"
        );
        assert!(folder.result(&out) == folder.result(&whole), "{name}: other bits");
        for file in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
            let of = |run: &str| folder.read(&format!("{run}/checkpoints/latest/{file}"));
            assert!(of(&out) == of(&whole), "{name}: another {file}");
        }
        away(false);
        fs::rename(folder.path("t.away"), folder.path("t.json")).expect("it is there");
    }
    let sets = [&*model, "loss.kl_coef=0.05"];
    folder.train("kl-whole", &sets);
    folder.train("kl-out", &[&sets[..], &["train.steps=2"]].concat());
    away(true);
    let resumed = [&sets[..], &["--resume"]].concat();
    let named =
        ["/m: no such directory", "of the reference model (loss.kl_coef = 0.05)", "step-000002", "put the"];
    folder.train_fails("kl-out", &resumed, 1, &named);
    away(false);
    folder.train("kl-out", &resumed);
    assert!(folder.result("kl-out") == folder.result("kl-whole"), "kl: other bits");
}

#[test]
fn a_tokenizer_a_template_or_a_shape_that_changed_is_refused_by_name() {
    let folder = Run::new(RUN);
    let path = model(&folder, "m");
    let model = format!("model={path}");
    folder.train("out", &[&model, "train.steps=2"]);
    for (file, from, to) in [
        ("tokenizer.json", "\"version\"", " \"version\""),
        ("tokenizer_config.json", "{", "{\"chat_template\": \"{{ messages[0].content }}\", "),
        ("config.json", "1000.0", "2000.0"),
        ("generation_config.json", "\"eos_token_id\": ", "\"eos_token_id\": 1"),
    ] {
        let good = fs::read_to_string(folder.path(&format!("m/{file}"))).expect("a file");
        let other = good.replacen(from, to, 1);
        assert_ne!(good, other, "{file}: {good}");
        fs::write(folder.path(&format!("m/{file}")), other).expect("a file");
        let named = if file.starts_with("generation") { "config.json" } else { file };
        let differs =
            ["error[resume-differs]: ", &format!("  {named}"), &format!("of {path} has other contents")];
        folder.train_refused("out", &[&model, "--resume"], 1, &differs);
        fs::write(folder.path(&format!("m/{file}")), good).expect("a file");
    }
    let said = folder.train("out", &[&model, "--resume"]);
    assert!(said.contains("step 4/4"), "{said}");
}

#[test]
fn as_many_are_kept_as_there_are_bytes_for_and_the_best_with_them() {
    let folder = Run::new(RUN);
    let listed = |run: &str| {
        let output = plimsoll(&["checkpoint", "list", &folder.text_path(run), "--json"]);
        let found: Value = serde_json::from_slice(&output.stdout).expect("one object");
        found["checkpoints"].as_array().expect("a list").clone()
    };
    let steps =
        |run: &str| -> Vec<u64> { listed(run).iter().filter_map(|one| one["step"].as_u64()).collect() };
    folder.train("all", &["checkpoint.keep=9"]);
    assert_eq!(steps("all"), [1, 2, 3, 4]);
    let one = listed("all").iter().filter_map(|one| one["bytes"].as_u64()).max().expect("bytes");
    // Two of them and a little; then less than one, which leaves the newest, and the best where there is one.
    let bytes = |bytes: u64| format!("checkpoint.keep_bytes={bytes}");
    folder.train("two", &["checkpoint.keep=9", &bytes(2 * one + one / 2)]);
    assert_eq!(steps("two"), [3, 4]);
    folder.train("one", &["checkpoint.keep=9", &bytes(1)]);
    assert_eq!(steps("one"), [4]);
    folder.train("best", &["checkpoint.keep=9", &bytes(1), "eval.every=1", "train.learning_rate=0.05"]);
    let best = listed("best").iter().find(|one| one["best"] == true).and_then(|one| one["step"].as_u64());
    let best = best.expect("every step was evaluated");
    let kept: std::collections::BTreeSet<u64> = [best, 4].into();
    assert_eq!(steps("best"), kept.into_iter().collect::<Vec<_>>());
    folder.train_refused("none", &[&bytes(0)], 2, &["error[bad-value]: ", "checkpoint.keep_bytes"]);
}

#[test]
fn checkpoints_are_listed_verified_and_exported() {
    let folder = Run::new(RUN);
    folder.train("out", &["eval.every=1", "checkpoint.keep=1"]);
    let (run, to) = (folder.text_path("out"), folder.text_path("models/mine"));
    let output = plimsoll(&["checkpoint", "list", &run, "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).expect("one object");
    let last = found["checkpoints"].as_array().expect("a list").last().expect("one");
    assert!(last["step"] == 4 && last["latest"] == true && last["eval"].is_f64(), "{found}");
    assert_eq!(
        found["checkpoints"].as_array().expect("a list").iter().filter(|c| c["best"] == true).count(),
        1
    );
    let one = folder.text_path("out/checkpoints/latest");
    for dir in [&run, &one, &folder.text_path("out/checkpoints")] {
        let output = plimsoll(&["checkpoint", "verify", dir]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("whole, latest"), "{}", text(&output.stdout));
    }
    export(&folder, "out", &to);
    let mut names: Vec<String> = fs::read_dir(folder.path("models/mine"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let model = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names, model);
    let eval =
        ["eval", "--model", &to, "--data", "builtin:addition", "--prompts-max", "4", "--max-new-tokens", "4"];
    assert_eq!(plimsoll(&eval).status.code(), Some(0));
    check_refused(&["checkpoint", "export", &run, "--to", &to], 2, &["error[export-exists]: ", "mine"]);
    for verb in ["list", "verify"] {
        check_refused(
            &["checkpoint", verb, &folder.text_path("models")],
            1,
            &["error[checkpoint-missing]: "],
        );
    }
}
