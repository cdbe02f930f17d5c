//! Scripts in the form that people copy: a run file of each is read by the plan, or refused for what is not built here.

use crate::common::{Folder, check_refused, command, plimsoll, text};
use crate::import::check_plans;

fn launch_file(name: &str) -> String {
    format!("{}/../stacks/tests/launch-files/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The stack is the first part of a file's name.
fn import(name: &str, more: &[&str]) -> std::process::Output {
    let stack = name.split('-').next().expect("a part");
    let (path, home) = (launch_file(name), Folder::new());
    let args = [&["import", stack, path.as_str()][..], more].concat();
    // The home of the machine that imports is in no run file.
    command(&args).current_dir(home.path("")).env("HOME", "/home/me").output().expect("the binary runs")
}

/// Imports a launch file: the run file must hold `lines`, its remarks `remarks`, and the plan must read it.
fn check(name: &str, more: &[&str], lines: &[&str], remarks: &[&str]) {
    let output = import(name, &[more, &["--all"]].concat());
    let (run, notes) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{name}: {notes}");
    for line in lines {
        let has = |have: &str| have == *line || have.starts_with(&format!("{line}  # "));
        assert!(run.lines().any(has), "{name}: no {line:?}: {run}");
    }
    for remark in remarks {
        assert!(notes.contains(&format!("note: {remark}")), "{name}: no {remark:?}: {notes}");
    }
    for gone in ["builtin:nano", "\"builtin:"] {
        assert!(!run.contains(gone), "{name}: a stand-in: {run}");
    }
    let folder = Folder::new();
    check_plans(&folder.write("run.toml", &run));
}

const OWN: &str = "trl-grpo-own-reward.py";

#[test]
fn scripts_of_trl() {
    let file = launch_file(OWN);
    let reward = |name: &str| format!("kind = {:?}", format!("python:{file}:{name}"));
    check(
        OWN,
        &[],
        &[
            "method = \"grpo\"",
            "model = \"hf:Qwen/Qwen2.5-0.5B-Instruct\"",
            "dtype = \"bf16\"",
            "prompts = \"hf:someone/short-stories/train\"",
            "to = [\"wandb\"]",
            "chat_template = \"none\"",
            "max_new_tokens = 2048",
            "learning_rate = 1e-6",
            "optimizer_dtype = \"int8\"",
            "dir = \"out/Qwen/Qwen2.5-0.5B-Instruct-grpo\"",
            &reward("reward_len"),
            &reward("reward_words"),
        ],
        &["changed: reward_funcs = "],
    );
    check(
        "trl-grpo-notebook.ipynb",
        &[],
        &[
            "method = \"grpo\"",
            "model = \"hf:Qwen/Qwen2.5-0.5B-Instruct\"",
            "aggregation = \"seq_mean_token_sum_norm\"",
            "rank = 16",
            "dir = \"out/stories\"",
            "steps = 200",
        ],
        &[
            &format!("missing: {}: Python loads no function", launch_file("trl-grpo-notebook.py")),
            "left out: use_vllm = True: no other engine",
        ],
    );
    check(
        "trl-grpo-readme.py",
        &[],
        &[
            "method = \"grpo\"",
            "model = \"hf:Qwen/Qwen2.5-0.5B-Instruct\"",
            "kind = \"math\"",
            "answer_column = \"solution\"",
            "prompts = \"hf:someone/sums-with-solutions/train\"",
            "epochs = 3",
        ],
        &[],
    );
    check(
        "trl-grpo-launch.sh",
        &[],
        // 8 processes x 4 x 4 sequences / 8.
        &[
            "prompts_per_step = 16",
            "optimizer_dtype = \"int8\"",
            "kind = \"length\"",
            "overlong_buffer = 256",
        ],
        &[
            "changed: optim = paged_adamw_8bit",
            "left out: mixed_precision = bf16: weights are stored in bf16",
        ],
    );
}

#[test]
fn jobs_of_trl_without_samples_are_imported_as_what_they_are() {
    check(
        "trl-sft.yaml",
        &[],
        &[
            "method = \"sft\"",
            "prompts_per_step = 16",
            "micro_batch_tokens = 4096",
            "steps = 500",
            "warmup_steps = 50",
            "train_on = \"assistant\"",
        ],
        &["changed: packing = true: a batch counts packs there"],
    );
    check(
        "trl-dpo.py",
        &[],
        &[
            "method = \"dpo\"",
            "model = \"hf:Qwen/Qwen2.5-0.5B-Instruct\"",
            "prompts = \"pairs.jsonl\"",
            "dpo_beta = 0.05",
            "loss_type = \"ipo\"",
            "prompts_per_step = 4",
            "micro_batch_tokens = 4096",
        ],
        &["changed: loss_type = ipo: the log-probs"],
    );
    check("trl-reward.sh", &[], &["method = \"reward_model\"", "prompts_per_step = 16", "steps = 300"], &[]);
}

#[test]
fn jobs_of_verl_and_openrlhf_without_samples() {
    check(
        "verl-sft.sh",
        &[],
        &[
            "method = \"sft\"",
            "model = \"hf:Qwen/Qwen2.5-0.5B-Instruct\"",
            "prompts = \"$HOME/data/gsm8k/train.parquet\"",
            "prompts_per_step = 64",
            "learning_rate = 0.0001",
            "warmup_steps = 10",
            "schedule = \"cosine\"",
        ],
        &[
            "left out: data.prompt_key = extra_info: a row has `messages`",
            "left out: trainer.default_local_dir = $2: holds",
        ],
    );
    check(
        "openrlhf-sft.sh",
        &[],
        &[
            "method = \"sft\"",
            "prompts = [{ path = \"data/answers.jsonl\", name = \"answers\", weight = 0.7 }, { path = \"data/chats.jsonl\", name = \"chats\", weight = 0.3 }]",
            "prompts_per_step = 256",
            "steps = 400",
        ],
        &["left out: output_key = response: a row has"],
    );
    check(
        "openrlhf-dpo.sh",
        &[],
        &[
            "method = \"dpo\"",
            "loss_type = \"ipo\"",
            "dpo_beta = 0.1",
            "prompts_per_step = 64",
            "steps = 100",
        ],
        &[],
    );
    check(
        "openrlhf-rm.sh",
        &[],
        &["method = \"reward_model\"", "learning_rate = 9e-6", "steps = 100"],
        &["changed: loss = logexp"],
    );
}

#[test]
fn scripts_of_verl() {
    check(
        "verl-quickstart.sh",
        &[],
        &[
            "method = \"ppo\"",
            "prompts = \"$HOME/data/gsm8k/train.parquet\"",
            "eval = \"$HOME/data/gsm8k/test.parquet\"",
            "prompts_per_step = 256",
        ],
        &[
            "missing: reward.0.kind: verl picks a scorer by each row's data_source",
            "left out: actor_rollout_ref.rollout.enforce_eager = False: there is no other engine",
        ],
    );
    check(
        "verl-dapo.sh",
        &[],
        &[
            "prompt_tokens_max = 2048",
            "max_new_tokens = 20480",
            "overlong_buffer = 4096",
            "micro_batch_tokens = 22528",
            "model = \"$HOME/verl/models/Qwen2.5-32B\"",
            "prompts = \"$HOME/verl/data/sums.parquet\"",
            "dir = \"$HOME/verl/ckpts/DAPO\"",
        ],
        &["left out: data.gen_batch_size = 1536: "],
    );
}

/// Its class has other methods than an environment here: it was imported as one that could not play.
#[test]
fn r_an_agent_became_an_environment_that_cannot_play() {
    let output = import("openrlhf-agent.sh", &[]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    let error = text(&output.stderr);
    for part in ["import-not-built", "agent_func_path = agents/guess.py", "reset(seed) and step(response)"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let run = text(&import("openrlhf-agent.sh", &["--force"]).stdout);
    assert!(!run.contains("[environment]") && run.contains("an agent's class"), "{run}");
}

/// Shows that what is not built is refused, and with --force named in the run file.
#[test]
fn experts_became_a_full_fine_tune() {
    // Adapters there are of routers too, which are not built; those of all other linear layers are.
    let moe = "verl-lora-moe.sh";
    let asked =
        "line 5: actor_rollout_ref.model.lora_rank = 64: the model has experts, and the adapter is of all";
    check_refused(&["import", "verl", &launch_file(moe)], 2, &["error[import-not-built]: ", asked]);
    let built = text(&import(moe, &["--force"]).stdout);
    for part in ["hf:Qwen/Qwen3-30B-A3B", "\n[lora]\n", "targets = \"all-linear\""] {
        assert!(built.contains(part), "{part}: {built}");
    }
    let name = "verl-lora-mixtral.sh";
    let asked = "line 4: actor_rollout_ref.model.path = mistralai/Mixtral-8x7B-v0.1: of models with experts";
    let contains = ["error[import-not-built]: ", "hint: ", "--force", asked];
    check_refused(&["import", "verl", &launch_file(name)], 2, &contains);
    let refused = plimsoll(&["import", "verl", &launch_file(name)]);
    assert_eq!(refused.stdout.len(), 0);
    let run = text(&import(name, &["--force"]).stdout);
    assert!(
        run.contains("\n# This is another job than there: --force left out what is not built here.\n"),
        "{run}"
    );
    // The adapter itself is carried over.
    assert_eq!(run.matches("\n[lora]\n").count(), 1, "{run}");
}

/// Adapters over weights of 4 bits are carried over as what they are.
#[test]
fn r_4_bits_became_a_full_fine_tune() {
    check(
        "trl-lora.py",
        &[],
        &[
            "kind = \"python:my_rewards/text.py:shortness\"",
            "rank = 16",
            "alpha = 32.0",
            "targets = \"all-linear\"",
            "quantize = \"nf4\"",
        ],
        &[],
    );
    check(
        "openrlhf-ppo-lora.sh",
        &[],
        &[
            "rank = 32",
            "alpha = 32.0",
            "targets = [\"q_proj\", \"v_proj\"]",
            "quantize = \"nf4\"",
            "critic = \"adapter\"",
            "prompts = [{ path = \"math/train.jsonl\", name = \"math-train\", weight = 0.7 }, { path = \"code/train.jsonl\", name = \"code-train\", weight = 0.3 }]",
        ],
        &[],
    );
}

/// The head of a reward model is trained in full next to its adapters, there and here.
#[test]
fn an_adapter_of_a_reward_model_is_carried_over() {
    let folder = Folder::new();
    let openrlhf = "deepspeed --module openrlhf.cli.train_rm --pretrain Qwen/Qwen2.5-0.5B --dataset x.jsonl --lora_rank 32 --lora_alpha 64\n";
    let trl = "trl reward --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x --use_peft --lora_r 32\n";
    for (stack, content) in [("openrlhf", openrlhf), ("trl", trl)] {
        let file = folder.write("rm.sh", content);
        let output = plimsoll(&["import", stack, &file]);
        assert_eq!(output.status.code(), Some(0), "{stack}: {}", text(&output.stderr));
        let run = text(&output.stdout);
        for part in ["method = \"reward_model\"", "\n[lora]\n", "rank = 32"] {
            assert!(run.contains(part), "{stack}: no {part} in {run}");
        }
    }
}

#[test]
fn trainers_without_a_job_and_files_that_name_none() {
    let folder = Folder::new();
    let gkd = folder.write("gkd.sh", "trl gkd --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x\n");
    check_refused(
        &["import", "trl", &gkd],
        2,
        &["error[import-no-method]", "`gkd`", "grpo, rloo, sft, dpo, cpo, orpo, kto, reward"],
    );
    let plain = folder
        .write("plain.yaml", "model_name_or_path: Qwen/Qwen2.5-0.5B\nlearning_rate: 1e-5\nmax_steps: 10\n");
    check_refused(&["import", "trl", &plain], 2, &["error[import-trainer-unknown]", "--trainer NAME"]);
    let sft = plimsoll(&["import", "trl", &plain, "--trainer", "sft"]);
    assert!(text(&sft.stdout).contains("\nmethod = \"sft\""), "{sft:?}");
    let old = folder.write("kd.sh", "deepspeed --module openrlhf.cli.train_kto --pretrain a/b --dataset c\n");
    check_refused(&["import", "openrlhf", &old], 2, &["error[import-no-method]", "`kto`"]);
}

/// Rules of one trainer would plan another run than the file starts.
#[test]
fn the_doctor_names_a_trainer_that_it_cannot_plan() {
    for (stack, name) in [("trl", "trl-sft.yaml"), ("verl", "verl-sft.sh"), ("openrlhf", "openrlhf-dpo.sh")] {
        let args = ["doctor", "--run", stack, &launch_file(name), "--gpus", "8", "--gpu-memory", "80GiB"];
        check_refused(&args, 2, &["error[run-trainer-not-planned]", "plimsoll import"]);
    }
    let file = launch_file("trl-grpo-launch.sh");
    let args = [
        "doctor",
        "--json",
        "--run",
        "trl",
        &file,
        "--gpus",
        "8",
        "--gpu-memory",
        "80GiB",
        "--host-memory",
        "1TB",
    ];
    let output = plimsoll(&args);
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a plan");
    assert_eq!(plan["unknown_options"], serde_json::json!([]), "{}", text(&output.stderr));
}
