//! Other stacks' files from outside: what happens to every key, that the result plans, and what is refused.

use crate::common::{Folder, check_refused, command, plimsoll, python_with, text};
use std::path::Path;

const OPENRLHF: &str = r#"#!/bin/bash
# GRPO on two nodes
MODEL=Qwen/Qwen2.5-0.5B-Instruct
export LR=5e-7
set -x
ray job submit --address="http://127.0.0.1:8265" -- python3 -m openrlhf.cli.train_ppo_ray \
   --ref_num_nodes 1 --ref_num_gpus_per_node 8 \
   --vllm_num_engines 4 --vllm_gpu_memory_utilization 0.6 \
   --pretrain $MODEL \
   --remote_rm_url rewards/check.py \
   --save_path "./ckpt/${RUN_NAME:-first}" \
   --prompt_data data/train.jsonl --input_key question --label_key answer --apply_chat_template \
   --advantage_estimator group_norm --use_kl_loss --kl_estimator k3 --init_kl_coef 1e-3 \
   --n_samples_per_prompt 8 --rollout_batch_size 16 --train_batch_size 32 \
   --micro_train_batch_size 2 --prompt_max_len 256 --generate_max_len 512 \
   --max_samples 3200 --num_episodes 2 --actor_learning_rate $LR --critic_learning_rate 9e-6 \
   --lr_warmup_ratio 0.05 --eps_clip_low_high 0.2 0.27 --gradient_checkpointing --adam_offload \
   --zero_stage 3 --wandb_run_name $WHO --frobnicate 7
"#;

const VERL: &str = r#"
set -x
train=/data/gsm8k/train.parquet
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files="['$train','/data/math/train.parquet']" data.val_files=/data/gsm8k/test.parquet \
    data.train_batch_size=32 data.max_prompt_length=256 data.max_response_length=512 \
    data.filter_overlong_prompts=True data.truncation='error' \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B \
    actor_rollout_ref.actor.optim.lr=2e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=8 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.002 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.actor.clip_ratio_high=0.28 actor_rollout_ref.actor.clip_ratio=0.2 \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    algorithm.use_kl_in_reward=False algorithm.filter_groups.enable=True \
    trainer.critic_warmup=0 trainer.n_gpus_per_node=8 trainer.save_freq=20 trainer.test_freq=5 \
    trainer.total_epochs=15 +trainer.frobnicate=3 $@
"#;

/// The file that Hydra leaves next to a run, with references of one key to another.
const VERL_YAML: &str = "\
actor_rollout_ref:
  hybrid_engine: true
  model:
    path: Qwen/Qwen2.5-0.5B
  actor:
    ppo_mini_batch_size: ${data.train_batch_size}
    optim:
      lr: 1.0e-06
      betas: [0.9, 0.95]
    use_kl_loss: false
    entropy_coeff: ${oc.select:critic.no_such_key,0.001}
  rollout:
    n: 4
    temperature: 0.9
    response_length: ${data.max_response_length}
    prompt_length: ${env.of_the_node}
data:
  train_files:
  - train.jsonl
  val_files: test.jsonl
  train_batch_size: 16
  max_prompt_length: 128
  max_response_length: 256
algorithm:
  adv_estimator: rloo
trainer:
  total_training_steps: 12
  project_name: sums
";

const TRL_YAML: &str = "\
# trl grpo --config this.yaml
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
dataset_name: trl-lib/DeepMath-103K   # on the hub
reward_funcs:
  - accuracy_reward
  - my_rewards.text.shortness
reward_weights: [1.0, 0.25]
mask_truncated_completions: true
delta: 1.5
learning_rate: 3.0e-6
max_steps: 400
warmup_steps: 40
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
steps_per_generation: 8
num_generations: 4
max_completion_length: 256
loss_type: dr_grpo
scale_rewards: none
beta: 0.04
epsilon: 0.2
epsilon_high: 0.28
use_vllm: true
vllm_mode: colocate
report_to: [wandb]
frobnicate: 9
";

const TRL_PYTHON: &str = r#"
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(
    output_dir="out/nine",  # (not) a folder of ours
    learning_rate=4e-6, num_generations=2, max_completion_length=128,
    max_steps=10, bf16=True, lr_scheduler_type="cosine",
    run_name=os.environ["WHO"],
    seed=make_seed(),
)
trainer = GRPOTrainer(model="Qwen/Qwen2.5-0.5B", args=args, reward_funcs=[closeness])
"#;

const ORZ: &str = r#"
class PPOExpConfig(BasePPOExpConfig):
    total_num_nodes: int = 32 if not DEBUG_MODE else 8
    pretrain: Optional[str] = "Qwen/Qwen2.5-0.5B"
    ckpt_path: str = f"orz_ckpt/{file_name}"
    prompt_data: ListConfig = ListConfig(["data/math_a.json", "data/math_b.json"])
    actor_learning_rate: float = 1e-6
    critic_learning_rate: float = 5e-6
    num_warmup_steps: int = 50
    prompt_max_len: int = 2048
    rollout_batch_size: int = 128 if not DEBUG_MODE else 16
    n_samples_per_prompt: int = 64 if not DEBUG_MODE else 2
    critic_update_steps: int = 12 if not DEBUG_MODE else 1
    kl_loss_coef: float = 0.0
    use_kl_loss: bool = True
    generate_max_len: int = 8000
    stop: ListConfig = ListConfig(
        ["User:", "</answer>"]
    )
    frobnicate: int = 4

    def train(self):
        actor_learning_rate = 5
"#;

/// Keys that a run file leaves to the user, each with what fills it in here.
fn missing(content: &str) -> Vec<(String, String)> {
    let (mut keys, mut rewards) = (Vec::new(), 0);
    for line in content.lines() {
        rewards += usize::from(line.starts_with("[[reward]]"));
        let Some((name, _)) = line.split_once(" = \"\"  # ").filter(|(name, _)| !name.contains('#')) else {
            continue;
        };
        keys.push(match name {
            "model" => (name.into(), "model=random:qwen2.5-0.5b".into()),
            "prompts" => ("data.prompts".into(), "data.prompts=builtin:addition".into()),
            "kind" => (format!("reward.{}.kind", rewards - 1), format!("reward.{}.kind=exact", rewards - 1)),
            "prompt_tokens_max" => ("data.prompt_tokens_max".into(), "data.prompt_tokens_max=64".into()),
            _ => panic!("{line}"),
        });
    }
    keys
}

/// Names the answers of the built-in task, where the run file names those of its own data.
fn answer_columns(content: &str) -> Vec<String> {
    let (mut section, mut rewards, mut sets) = (String::new(), 0, Vec::new());
    for line in content.lines() {
        let line = line.split_once("  #").map_or(line, |(line, _)| line);
        if line == "[[reward]]" {
            section = format!("reward.{rewards}");
            rewards += 1;
        } else if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_string();
        } else if line.starts_with("answer_column ") {
            sets.push(format!("{section}.answer_column=ground_truth"));
        }
    }
    sets
}

/// Plans `run` with another model and other data; any refusal but for size fails the test. A key that the run file
/// leaves to the user is refused by its name.
pub fn check_plans(run: &str) {
    // Recipes of small networks, text environments, collectors and tasks that draw need nothing that is not here.
    let content = std::fs::read_to_string(run).expect("a run file");
    let missing = missing(&content);
    let is_here = |line: &str| {
        line.starts_with("env ") || line == "[environment]" || line.contains("\"builtin:shapes\"")
    };
    let needs_stand_ins = !content.lines().any(is_here);
    let mut stand_ins = Vec::new();
    if needs_stand_ins {
        stand_ins.extend(["data.eval=none".to_string(), "run.device=cpu".to_string()]);
        // Passes over data that is not here are planned as one step.
        let prompts = if content.contains("\nepochs = ") {
            "data.prompt_tokens_max=256"
        } else {
            "data.prompts=builtin:addition"
        };
        for (key, set) in [("model", "model=random:qwen2.5-0.5b"), ("data.prompts", prompts)] {
            stand_ins.extend((!missing.iter().any(|(own, _)| own == key)).then(|| set.to_string()));
        }
    }
    if needs_stand_ins {
        stand_ins.extend(answer_columns(&content));
    }
    if needs_stand_ins && content.contains("\n[critic]\n") {
        stand_ins.push("critic.model=actor".to_string());
    }
    // A teacher of the recipe's own may have been trained here, and is not the stand-in's.
    if needs_stand_ins && content.contains("\n[distill]\n") {
        stand_ins.push("distill.teacher=random:qwen2.5-0.5b".to_string());
    }
    if content.contains("\"gym:") {
        let Some(found) = python_with("gymnasium") else { return };
        stand_ins.push(format!("environment.python={found}"));
    }
    // Recipes name their files from the root of the repository.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let plan = |without: Option<&str>| {
        let filled = missing.iter().filter(|(key, _)| Some(key.as_str()) != without).map(|(_, set)| set);
        let sets = stand_ins.iter().chain(filled).flat_map(|set| ["--set", set.as_str()]);
        let args: Vec<&str> =
            ["plan", run, "--limit", "host=512GiB,disk=4TiB"].into_iter().chain(sets).collect();
        command(&args).current_dir(&root).output().expect("the binary runs")
    };
    for (key, _) in &missing {
        let output = plan(Some(key));
        let refused = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{key}: {refused}");
        assert!(refused.contains(&format!("`{key}`")) && refused.contains("write "), "{key}: {refused}");
    }
    let output = plan(None);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{run}: {}", text(&output.stderr));
    let has_rows =
        [".weights", ".params", "collect.batches"].iter().any(|row| text(&output.stdout).contains(row));
    assert!(has_rows, "{run}: {}", text(&output.stdout));
}

/// Returns what comes before `=` and `:` and after `--` in a file; the address is of `ray`.
fn keys(content: &str) -> impl Iterator<Item = &str> {
    let is_key = |key: &&str| {
        !key.is_empty()
            && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.".contains(c))
    };
    let lines = content.lines().filter(|line| !line.starts_with('#'));
    lines.flat_map(|line| line.split([' ', '('])).filter_map(move |word| match word.strip_prefix("--") {
        Some(flag) => Some(flag).filter(is_key),
        None => word.strip_suffix(':').or(word.split_once('=').map(|(key, _)| key)).filter(is_key),
    })
}

/// Imports `content`: the run file must hold `lines`, its end and stderr `remarks`, and it must plan.
fn check(stack: &str, name: &str, content: &str, lines: &[&str], remarks: &[&str]) {
    let folder = Folder::new();
    let output = plimsoll(&["import", stack, &folder.write(name, content), "--all"]);
    let (run, notes) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{notes}");
    // No key is dropped silently: each is in the run file, as a key's origin or as a remark.
    // A trainer's `args` is its configuration, whose own keys are read.
    for key in keys(content).filter(|key| *key != "args") {
        assert!(run.contains(key), "{key} is gone: {run}");
    }
    for line in lines {
        assert!(
            run.lines().any(|have| have == *line || have.starts_with(&format!("{line}  # "))),
            "no {line:?}: {run}"
        );
    }
    for remark in remarks {
        assert!(run.contains(&format!("\n#   {remark}")), "no {remark:?}: {run}");
        assert!(notes.contains(&format!("note: {remark}")), "no {remark:?}: {notes}");
    }
    check_plans(&folder.write("run.toml", &run));
}

#[test]
fn openrlhf_script() {
    check(
        "openrlhf",
        "train.sh",
        OPENRLHF,
        &[
            "method = \"grpo\"",
            "model = \"hf:Qwen/Qwen2.5-0.5B-Instruct\"",
            "prompts = \"data/train.jsonl\"",
            "prompt_column = \"question\"",
            "prompts_per_step = 16",
            "group_size = 8",
            "mini_batch = 32",
            "max_new_tokens = 512",
            "micro_batch_tokens = 1536",
            "steps = 400",
            "warmup_steps = 20",
            "learning_rate = 5e-7",
            "clip_high = 0.27",
            "kl_coef = 0.001",
            "kl_in = \"loss\"",
            "offload = [\"optimizer\"]",
            "recompute = \"layer\"",
            "kind = \"python:rewards/check.py:reward_func\"",
            "signature = \"openrlhf\"",
            "dir = \"./ckpt/first\"",
        ],
        &[
            "left out: vllm_num_engines = 4: no other engine samples here",
            "left out: ref_num_gpus_per_node = 8: cards are not in the run file here",
            "left out: zero_stage = 3: ranks split neither matrices nor sequences here",
            "left out: critic_learning_rate = 9e-6: `grpo` has no critic",
            "left out: wandb_run_name = $WHO: holds a variable that the file does not set",
            "left out: frobnicate = (not shown): this option is not known here",
        ],
    );
}

#[test]
fn verl_script() {
    check(
        "verl",
        "train.sh",
        VERL,
        &[
            "method = \"grpo\"",
            "prompts = [{ path = \"/data/gsm8k/train.parquet\", name = \"gsm8k-train\" }, { path = \"/data/math/train.parquet\", name = \"math-train\" }]",
            "eval = \"/data/gsm8k/test.parquet\"",
            "prompts_per_step = 32",
            "group_size = 5",
            "mini_batch = 40",
            "micro_batch_tokens = 3072",
            "clip_low = 0.2",
            "clip_high = 0.28",
            "dynamic_sampling = true",
            "dual_clip = 3.0",
            "kl_coef = 0.002",
            "kl_estimator = \"k3\"",
            "overlong = \"drop\"",
            "betas = [0.9, 0.999]",
            "every = 20",
            "steps = 100",
        ],
        &[
            "chosen: train.steps = 100",
            "left out: actor_rollout_ref.rollout.tensor_model_parallel_size = 2: ranks split neither",
            "left out: actor_rollout_ref.rollout.name = vllm: no other engine",
            "left out: trainer.total_epochs = 15: several sets have weights here, and no passes",
            "left out: trainer.frobnicate = (not shown): this option is not known here",
            "left out: $@: holds a variable that the file does not set",
        ],
    );
}

#[test]
fn verl_configuration() {
    check(
        "verl",
        "config.yaml",
        VERL_YAML,
        &[
            "method = \"rloo\"",
            "model = \"hf:Qwen/Qwen2.5-0.5B\"",
            "prompts = \"train.jsonl\"",
            "eval = \"test.jsonl\"",
            "prompts_per_step = 16",
            "group_size = 4",
            "temperature = 0.9",
            "learning_rate = 1e-6",
            "entropy_coef = 0.001",
            "max_new_tokens = 256",
            "steps = 12",
        ],
        &[
            "left out: actor_rollout_ref.actor.ppo_mini_batch_size = 16: one update a step",
            "left out: actor_rollout_ref.rollout.prompt_length = ${env.of_the_node}: no other engine",
            "left out: actor_rollout_ref.hybrid_engine = true: nothing here corresponds to it",
            "left out: trainer.project_name = sums: no tracker of [track] has it",
        ],
    );
}

#[test]
fn trl_yaml() {
    check(
        "trl",
        "grpo.yaml",
        TRL_YAML,
        &[
            "method = \"grpo\"",
            "prompts = \"hf:trl-lib/DeepMath-103K\"",
            "to = [\"wandb\"]",
            // 4 x 8 sequences a generation, 4 x 2 an update: 4 updates a step.
            "prompts_per_step = 8",
            "mini_batch = 8",
            "steps = 100",
            "warmup_steps = 10",
            "aggregation = \"seq_mean_token_sum_norm\"",
            "advantage = \"mean_baseline\"",
            "kl_coef = 0.04",
            "clip_high = 0.28",
            "mask_truncated = true",
            "dual_clip = 1.5",
            "schedule = \"linear\"",
            "kind = \"python:my_rewards/text.py:shortness\"",
            "weight = 0.25",
        ],
        &[
            "chosen: one process",
            "changed: max_steps = 400: 4 updates there are one step here",
            "left out: vllm_mode = colocate: no other engine",
            "left out: frobnicate = (not shown): this option is not known here",
        ],
    );
}

#[test]
fn trl_command_line_and_json() {
    let script = "accelerate launch --num_processes 4 --mixed_precision bf16 train_grpo.py --max_steps 8 \\\n  --per_device_train_batch_size 4 --num_generations 8 --learning_rate 1e-5\n";
    check(
        "trl",
        "t.sh",
        script,
        &["prompts_per_step = 2", "steps = 8", "learning_rate = 1e-5"],
        &[
            "missing: model: the file does not say model_name_or_path: write hf:org/name",
            "missing: reward.0.kind: ",
        ],
    );
    let json = r#"{"max_steps": 5, "num_generations": 4, "loss_type": "cispo", "epsilon_high": 5, "logging_steps": 1}"#;
    check(
        "trl",
        "t.json",
        json,
        &["method = \"cispo\"", "clip_low = 0.0", "clip_high = 5.0", "group_size = 4"],
        &["left out: logging_steps = 1: metrics are lines", "missing: data.prompts: "],
    );
}

#[test]
fn trl_python_is_not_run() {
    check(
        "trl",
        "train.py",
        TRL_PYTHON,
        &[
            "dir = \"out/nine\"",
            "model = \"hf:Qwen/Qwen2.5-0.5B\"",
            "group_size = 2",
            "schedule = \"cosine\"",
            "kind = \"\"",
        ],
        &[
            "left out: run_name = os.environ[\"WHO\"]: an expression, which is not run",
            "left out: seed = make_seed(): an expression, which is not run",
            "missing: reward.0.kind: no reward here is called closeness: write a kind of docs/rewards.md",
        ],
    );
}

#[test]
fn orz_class() {
    check(
        "orz",
        "orz.py",
        ORZ,
        &[
            "method = \"ppo\"",
            "prompts = [{ path = \"data/math_a.jsonl\", name = \"math_a\" }, { path = \"data/math_b.jsonl\", name = \"math_b\" }]",
            "prompts_per_step = 128",
            "group_size = 64",
            "learning_rate = 1e-6",
            "updates_per_rollout = 8",
            "warmup_steps = 50",
            "stop = [\"User:\", \"</answer>\"]",
            "whiten = \"full\"",
        ],
        &[
            "changed: critic_update_steps = 12: 8, which divides the 8192 sequences of a step",
            "left out: total_num_nodes = 32: cards are not in the run file here",
            "left out: ckpt_path = (not shown): checkpoints are in the run directory here",
            "left out: frobnicate = (not shown): this option is not known here",
        ],
    );
}

#[test]
fn output_is_never_overwritten() {
    let folder = Folder::new();
    let (file, out) = (folder.write("t.yaml", TRL_YAML), folder.path("out.toml"));
    let out = out.to_str().expect("UTF-8");
    let first = plimsoll(&["import", "trl", &file, "--output", out, "--quiet"]);
    assert_eq!((first.status.code(), first.stdout.len(), first.stderr.len()), (Some(0), 0, 0));
    let written = std::fs::read(out).expect("the run file");
    check_refused(&["import", "trl", &file, "-o", out], 2, &["error[run-file-exists]"]);
    assert_eq!(std::fs::read(out).expect("the run file"), written);
}

#[test]
fn files_of_others_are_refused_by_name() {
    let folder = Folder::new();
    let large = folder.write("large.sh", &"x".repeat((1 << 20) + 1));
    let prose = folder.write("prose.txt", "This is no configuration; it has: a colon.\n");
    let otb = folder.write(
        "otb.sh",
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=tir_optimal_token_baseline\n",
    );
    check_refused(&["import", "verl", "/nowhere/at/all.sh"], 2, &["error[import-unreadable]"]);
    check_refused(&["import", "verl", &large], 2, &["error[import-unreadable]", "larger than 1 MiB"]);
    for stack in ["openrlhf", "verl", "trl", "orz"] {
        check_refused(&["import", stack, &prose], 2, &["error[import-nothing-found]"]);
    }
    check_refused(&["import", "verl", &otb], 2, &["error[import-no-method]", "`tir_optimal_token_baseline`"]);
}

#[test]
fn every_recipe_plans() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../runs");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("the recipes") {
        let path = entry.expect("a recipe").path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            check_plans(path.to_str().expect("UTF-8"));
            count += 1;
        }
    }
    assert!(count >= 13, "{count} recipes in {}", folder.display());
}
