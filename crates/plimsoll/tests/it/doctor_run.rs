//! `doctor --run` from outside: the five failures that founded this project, predicted from launch files alone; and
//! files, flags and numbers that give no plan.

use crate::common::{Folder, check_refused, plimsoll, text};
use serde_json::Value;

const GIB: u64 = 1 << 30;
const EIGHT: [&str; 4] = ["--gpus", "8", "--gpu-memory", "80GiB"];

fn launch_file(name: &str) -> String {
    format!("{}/../../runs/other-stacks/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The exit code and the object of a plan.
fn planned(stack: &str, file: &str, more: &[&str]) -> (Option<i32>, Value) {
    let output = plimsoll(&[&["doctor", "--json", "--run", stack, file], more].concat());
    let object = serde_json::from_slice(&output.stdout).unwrap_or_else(|err| panic!("{err}: {output:?}"));
    (output.status.code(), object)
}

fn words(stack: &str, file: &str, more: &[&str]) -> String {
    text(&plimsoll(&[&["doctor", "--run", stack, file], more].concat()).stdout)
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no bytes: {value}"))
}

fn hazard<'a>(plan: &'a Value, slug: &str) -> &'a Value {
    let hazards = plan["hazards"].as_array().expect("a list");
    hazards.iter().find(|one| one["slug"] == slug).unwrap_or_else(|| panic!("{slug}: {hazards:?}"))
}

fn peak(plan: &Value, phase: &str, pool: &str) -> u64 {
    let peaks = plan["peaks"].as_array().expect("a list").iter();
    let of = peaks.filter(|one| one["phase"] == phase && one["pool"] == pool).map(|one| bytes(&one["bytes"]));
    of.max().unwrap_or_else(|| panic!("no {pool} in {phase}"))
}

/// 13 264 901 120 + 12 937 226 240 parameters: 16 B each, 2 B each accumulated, six gradients of 655 360 000 B in
/// flight and eight processes of 1700 MiB; the save adds a shard of 5 GB and 2 B x 13 264 901 120 of file pages.
#[test]
fn founding_13b_with_cpu_adam_runs_out_of_host_memory_while_it_saves() {
    let file = launch_file("openrlhf-13b-cpu-adam.sh");
    let (code, plan) = planned("openrlhf", &file, &[&EIGHT[..], &["--host-memory", "500GB"]].concat());
    assert_eq!((code, &plan["verdict"]), (Some(1), &"does not fit".into()), "{}", plan["over"]);
    let over = &plan["over"];
    assert_eq!((&over["phase"], &over["pool"]), (&"save".into(), &"host".into()));
    assert_eq!(over["slug"], "host-oom-at-checkpoint");
    let trained = 18 * (13_264_901_120 + 12_937_226_240) + 6 * 655_360_000 + 8 * (1700 << 20);
    assert_eq!(peak(&plan, "actor update", "host"), trained);
    assert_eq!(bytes(&over["bytes"]), trained + 5_000_000_000 + 2 * 13_264_901_120);
    assert!(trained < 500_000_000_000, "training itself fits");
    // Against what was reported: within 10 %, and below it.
    for (index, reported) in [(0, 211.8), (1, 202.2)] {
        let computed = bytes(&plan["comparisons"][index]["computed"]) as f64 / GIB as f64;
        assert!((0.9..1.0).contains(&(computed / reported)), "{computed} against {reported}");
        let shown = bytes(&plan["comparisons"][index]["reported"]) as f64 / GIB as f64;
        assert!((shown - reported).abs() < 0.01);
    }
    assert_eq!(bytes(&plan["comparisons"][2]["reported"]), 537_000_000_000);
    let first = &plan["remedies"][0];
    assert_eq!(first["is_enough"], true, "{}", plan["remedies"]);
    assert_eq!(bytes(&first["frees"]), 2 * (13_264_901_120 + 12_937_226_240));
    let shown = words("openrlhf", &file, &[&EIGHT[..], &["--host-memory", "500GB"]].concat());
    for part in [
        "does not fit: save needs 485.6 GiB of a node, 465.7 GiB are allowed (--host-memory)\n",
        "plimsoll explain host-oom-at-checkpoint",
        "8 B x 3316225280",
        "DeepSpeed 0.12.6 runtime/zero/stage_1_and_2.py",
        "the run fits then",
        "reported 500.1 GiB",
    ] {
        assert!(shown.contains(part), "{part:?}: {shown}");
    }
}

/// 28 layers x 2 GiB x 8 cards.
#[test]
fn founding_swap_space_of_40_gib_is_448_gib_of_pinned_memory() {
    let file = launch_file("simplerl-7b-swap.sh");
    let (code, plan) = planned("verl", &file, &[&EIGHT[..], &["--host-memory", "1TB"]].concat());
    assert_eq!((code, &plan["verdict"]), (Some(1), &"problem".into()), "{}", plan["over"]);
    let grows = hazard(&plan, "run-pinned-swap-regrown");
    let finding = grows["finding"].as_str().expect("words");
    assert!(finding.contains("pinned as 448.0 GiB on 8 cards (28 layers x 2.0 GiB x 8)"), "{finding}");
    assert_eq!(bytes(&plan["comparisons"][0]["computed"]), 448 * GIB);
    assert_eq!(plan["comparisons"][0]["reported"], Value::Null);
    // 8 processes of 3600 MiB and the reference model, 2 B x 7 615 616 512, next to it.
    assert_eq!(peak(&plan, "rollout", "host"), 448 * GIB + 8 * (3600 << 20) + 2 * 7_615_616_512);
    // In a container of 480 GB it does not even start.
    let (code, plan) = planned("verl", &file, &[&EIGHT[..], &["--host-memory", "480GB"]].concat());
    assert_eq!((code, &plan["over"]["pool"]), (Some(1), &"host".into()));
    let remedy = &plan["remedies"][0];
    assert!(remedy["words"].as_str().is_some_and(|words| words.contains("swap_space = 4")), "{remedy}");
    assert_eq!((bytes(&remedy["frees"]), &remedy["is_enough"]), (8 * 49 * GIB, &true.into()));
}

#[test]
fn founding_64_workers_on_the_cpu_fill_a_card_with_contexts() {
    let file = launch_file("torchrl-64-workers.py");
    let machine = ["--gpus", "1", "--gpu-memory", "24GiB", "--host-memory", "64GiB", "--shm", "8GiB"];
    let (code, plan) = planned("torchrl", &file, &machine);
    assert_eq!((code, &plan["over"]["slug"]), (Some(1), &"cuda-context-per-worker".into()), "{plan}");
    assert_eq!(bytes(&plan["over"]["bytes"]), 65 * (512 << 20) + 33_554_432);
    assert_eq!(hazard(&plan, "cuda-context-per-worker")["verdict"], "problem");
    // A newer version makes none.
    let newer = [&machine[..], &["--stack-version", "0.14.1"]].concat();
    let (code, plan) = planned("torchrl", &file, &newer);
    assert_eq!((code, &plan["verdict"]), (Some(0), &"fits".into()), "{plan}");
    assert_eq!(peak(&plan, "rollout", "host"), (1700 << 20) + 64 * (570 << 20));
}

#[test]
fn founding_expandable_segments_need_calls_that_an_older_kernel_lacks() {
    let file = launch_file("orz-expandable.py");
    let machine = [&EIGHT[..], &["--host-memory", "1TB", "--shm", "64GiB"]].concat();
    let on = |kernel| planned("orz", &file, &[&machine[..], &["--kernel", kernel]].concat());
    let (code, plan) = on("5.4.0-204-generic");
    let ipc = hazard(&plan, "cuda-ipc-pidfd-enosys");
    assert_eq!((code, &plan["verdict"], &ipc["verdict"]), (Some(1), &"problem".into(), &"problem".into()));
    let finding = ipc["finding"].as_str().expect("words");
    assert!(
        finding.contains("Linux 5.4 (--kernel) lacks pidfd_getfd")
            && finding.contains("(line 6 of the file)"),
        "{finding}"
    );
    assert!(ipc["remedies"][0].as_str().is_some_and(|words| words.contains("expandable_segments:False")));
    let (_, plan) = on("3.10.0");
    assert!(
        hazard(&plan, "cuda-ipc-pidfd-enosys")["finding"].to_string().contains("pidfd_open and pidfd_getfd")
    );
    let (code, plan) = on("6.8.0");
    assert_eq!((code, &hazard(&plan, "cuda-ipc-pidfd-eperm")["verdict"]), (Some(0), &"note".into()));
    let off =
        [&machine[..], &["--kernel", "5.4", "--env", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"]]
            .concat();
    let (code, plan) = planned("orz", &file, &off);
    assert_eq!((code, &plan["verdict"]), (Some(0), &"fits".into()), "{}", plan["hazards"]);
}

#[test]
fn founding_illegal_memory_access_cannot_be_judged_before_the_run() {
    let file = launch_file("openrlhf-1.5b-vllm.sh");
    let machine = ["--gpus", "4", "--gpu-memory", "80GiB", "--host-memory", "500GB", "--shm", "64GiB"];
    let (code, plan) = planned("openrlhf", &file, &machine);
    assert_eq!((code, &plan["verdict"]), (Some(0), &"fits".into()), "{}", plan["over"]);
    let open = hazard(&plan, "cuda-illegal-access-rollout");
    assert_eq!(open["verdict"], "cannot be judged before the run");
    assert!(open["remedies"].to_string().contains("CUDA_LAUNCH_BLOCKING=1"));
    let shown = words("openrlhf", &file, &machine);
    assert!(shown.starts_with("fits; 1 cannot be judged before the run\n"), "{shown}");
    assert!(
        shown.contains("\ncannot be judged before the run\n  cuda-illegal-access-rollout: 2 vLLM engines"),
        "{shown}"
    );
}

#[test]
fn trl_is_planned_from_its_yaml() {
    let yaml = "model_name_or_path: Qwen/Qwen2.5-0.5B\nuse_vllm: true\nvllm_gpu_memory_utilization: 0.3\nper_device_train_batch_size: 8\n\
                max_completion_length: 512\nmax_prompt_length: 512\nbeta: 0.04\nfrobnicate: 3\n";
    let folder = Folder::with("grpo.yaml", yaml);
    let machine = ["--gpus", "1", "--gpu-memory", "40GiB", "--host-memory", "64GiB", "--shm", "8GiB"];
    let (code, plan) = planned("trl", &folder.text_path("grpo.yaml"), &machine);
    assert_eq!((code, &plan["verdict"]), (Some(0), &"fits".into()), "{}", plan["over"]);
    assert_eq!(plan["unknown_options"], serde_json::json!(["frobnicate (line 8)"]));
    let row = |name: &str| {
        let rows = plan["rows"].as_array().expect("a list").iter();
        let found: Vec<u64> =
            rows.filter(|row| row["name"] == name).map(|row| bytes(&row["bytes"])).collect();
        found
    };
    // f32 unless a dtype is given; the reference model too.
    assert_eq!(row("weights"), [4 * 494_032_768, 4 * 494_032_768]);
    assert_eq!(row("Adam m and v"), [8 * 494_032_768]);
    // 8 rows x 513 tokens x 151 936 words.
    assert_eq!(row("logits"), [8 * 513 * 151_936 * 10, 8 * 513 * 151_936 * 6]);
    let small = [&machine[..2], &["--gpu-memory", "18GiB", "--host-memory", "64GiB"]].concat();
    let (code, plan) = planned("trl", &folder.text_path("grpo.yaml"), &small);
    assert_eq!((code, &plan["over"]["phase"]), (Some(1), &"actor update".into()), "{}", plan["over"]);
    assert!(
        plan["remedies"]
            .as_array()
            .is_some_and(|remedies| remedies.iter().any(|one| bytes(&one["frees"]) > 0))
    );
}

const PPO: &str = "python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen2.5-0.5B --actor_num_gpus_per_node 2 --critic_num_gpus_per_node 2 --ref_num_gpus_per_node 2 --save_path x\n";

#[test]
fn what_cannot_be_planned_is_refused_by_name() {
    let folder = Folder::with("a.sh", PPO);
    let file = folder.text_path("a.sh");
    let machine = ["--gpus", "8", "--gpu-memory", "80GiB", "--host-memory", "500GB"];
    let check = |more: &[&str], expect: &[&str]| {
        let line = [&["doctor", "--run", "openrlhf", file.as_str()], &machine[..], more].concat();
        check_refused(&line, 2, expect);
    };
    check(
        &["--set", "micro_train_batch_size=-2"],
        &["error[run-value-invalid]: `micro_train_batch_size` = `-2`"],
    );
    check(&["--set", "zero_stage=7"], &["error[run-settings-contradict]: zero_stage = 7"]);
    check(
        &["--set", "zero_stage=0", "--set", "adam_offload="],
        &["error[run-settings-contradict]: adam_offload"],
    );
    check(
        &["--set", "actor_num_gpus_per_node=64"],
        &["error[run-settings-contradict]: the actor asks for 64 cards"],
    );
    check(
        &["--set", "colocate_all_models=", "--set", "ref_num_gpus_per_node=1"],
        &["error[run-settings-contradict]: "],
    );
    check(
        &["--set", "pretrain=my-org/my-model"],
        &["error[run-model-unknown]: the shape of `my-org/my-model`", "--model-config"],
    );
    check(&["--set", "max_len=1e15"], &["error[run-value-invalid]: ", "2^40"]);
    check(
        &["--set", "max_len=1099511627776", "--set", "micro_train_batch_size=1099511627776"],
        &["error[size-overflow]: "],
    );
    check(&["--set", "no-value"], &["error[bad-usage]: --set no-value"]);
    check(&["--kernel", "new"], &["error[run-value-invalid]: --kernel new"]);
    check(&["--stack-version", "latest"], &["error[run-value-invalid]: --stack-version latest"]);
    let flags = |flags: &[&str], expect: &str| {
        check_refused(&[&["doctor", "--run", "openrlhf", file.as_str()], flags].concat(), 2, &[expect]);
    };
    flags(&["--gpus=-1"], "error[run-value-invalid]: --gpus -1");
    flags(&["--gpu-memory", "0"], "error[bad-bytes]: ");
    flags(&["--host-memory", "lots"], "error[bad-bytes]: ");
    check_refused(
        &["doctor", "--run", "verll", &file],
        2,
        &["error[bad-usage]: --run verll", "did you mean verl?"],
    );
    check_refused(&["doctor", "--run", "openrlhf", "no/such.sh"], 2, &["error[import-unreadable]: "]);
    for stack in ["openrlhf", "orz", "verl", "trl", "torchrl"] {
        let empty = Folder::with("empty", "");
        check_refused(
            &["doctor", "--run", stack, &empty.text_path("empty")],
            2,
            &["error[import-nothing-found]: "],
        );
    }
    check_refused(&["doctor", "--gpus", "8"], 2, &["--run"]);
}

#[test]
fn a_model_is_a_folder_a_name_or_what_the_user_points_at() {
    let folder = Folder::with("a.sh", PPO);
    let machine = ["--gpus", "8", "--gpu-memory", "80GiB", "--host-memory", "500GB", "--shm", "8GiB"];
    let of = |more: &[&str]| {
        let (code, plan) = planned("openrlhf", &folder.text_path("a.sh"), &[&machine[..], more].concat());
        assert_eq!(code, Some(0), "{}", plan["over"]);
        plan["models"][0]["parameters"].as_u64()
    };
    assert_eq!(of(&[]), Some(494_032_768));
    assert_eq!(of(&["--set", "pretrain=x/y", "--model-config", "smollm2-135m"]), Some(134_515_008));
    // The flag counts where the shape is not known.
    assert_eq!(of(&["--model-config", "smollm2-135m"]), Some(494_032_768));
    let config = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152, "hidden_size": 576,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
        "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": true, "max_position_embeddings": 8192, "hidden_act": "silu"}"#;
    let model = Folder::with("config.json", config);
    let path = model.path(".").display().to_string();
    assert_eq!(of(&["--set", &format!("pretrain={path}")]), Some(134_515_008));
    assert_eq!(
        of(&["--set", "pretrain=x/y", "--model-config", &model.text_path("config.json")]),
        Some(134_515_008)
    );
}

#[test]
fn a_model_of_experts_is_planned_with_all_of_its_weights() {
    let folder = Folder::with("a.sh", PPO);
    let file = folder.text_path("a.sh");
    let machine = ["--gpus", "8", "--gpu-memory", "140GiB", "--host-memory", "2TB", "--shm", "64GiB"];
    let of = |name: &str| {
        let (_, plan) =
            planned("openrlhf", &file, &[&machine[..], &["--set", &format!("pretrain={name}")]].concat());
        plan
    };
    let plan = of("Qwen/Qwen3-30B-A3B-Instruct-2507");
    assert_eq!(plan["models"][0]["parameters"].as_u64(), Some(30_532_122_624));
    assert!(plan["notes"].to_string().contains("expert"), "{}", plan["notes"]);
    assert!(!of("Qwen/Qwen2.5-7B").to_string().contains("expert"));
}

#[test]
fn the_file_says_its_machine_and_a_flag_says_otherwise() {
    let script = format!("docker run --gpus 2 -m 64g --shm-size=4g image\n{PPO}");
    let folder = Folder::with("a.sh", &script);
    let file = folder.text_path("a.sh");
    let (_, plan) = planned("openrlhf", &file, &["--gpu-memory", "80GiB"]);
    let limit = |plan: &Value, name: &str| plan["limits"][name]["value"].clone();
    assert_eq!((limit(&plan, "gpus"), limit(&plan, "host_memory")), (2.into(), (64 * GIB).into()));
    assert_eq!(
        (limit(&plan, "shm"), &plan["limits"]["shm"]["source"]),
        ((4 * GIB).into(), &"line 1 of the file".into())
    );
    let (_, plan) =
        planned("openrlhf", &file, &["--gpu-memory", "80GiB", "--gpus", "8", "--host-memory", "1GiB"]);
    assert_eq!((limit(&plan, "gpus"), &plan["limits"]["gpus"]["source"]), (8.into(), &"--gpus".into()));
    assert_eq!(plan["over"]["pool"], "host");
}
