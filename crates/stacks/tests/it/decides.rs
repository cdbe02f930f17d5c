//! Options that decide a job are carried over or refused: unknown ones, and known ones whose value cannot be read.

use plimsoll_base::{Error, Result};
use plimsoll_stacks::{Imported, STACKS, Setting, Wishes, find, import, translate};

fn imported(stack: &str, name: &str, text: &str, force: bool) -> Result<Imported> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a file");
    import(find(stack).expect("a stack"), &path, &Wishes { force, ..Wishes::default() })
}

fn command(stack: &str) -> &'static str {
    match stack {
        "openrlhf" => {
            "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --max_samples 8 --prompt_data x.jsonl"
        }
        "verl" => {
            "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=a/b data.train_files=x.parquet"
        }
        _ => "trl grpo --model_name_or_path a/b --max_steps 4 --dataset_name x.jsonl",
    }
}

fn refused(stack: &str, more: &str) -> Error {
    let script = format!("{} \\\n {more}\n", command(stack));
    let error = imported(stack, "x.sh", &script, false).expect_err(&script);
    assert_eq!(error.slug, "import-not-built", "{script}: {error}");
    // What is left out by hand is named at the top.
    let run = imported(stack, "x.sh", &script, true).expect(&script).run_file;
    assert!(run.contains("# This is another job than there"), "{script}: {run}");
    error
}

const UNKNOWN: &str =
    "this option is not known here, and its name says that the job is another one without it";
const UNREAD: &str = "what it holds decides the job, and cannot be read";

/// Such options were left out with exit code 0, so that another job was trained.
#[test]
fn r_options_that_decide_the_job_were_left_out() {
    for (stack, more, named, why) in [
        ("trl", "--lora_layers 4", "an adapter", UNKNOWN),
        ("trl", "--use_qlora", "an adapter", UNKNOWN),
        ("trl", "--gold_objective 0.5", "the loss", UNKNOWN),
        ("trl", "--advantage_mode best", "the loss", UNKNOWN),
        ("trl", "--kl_schedule linear", "the loss", UNKNOWN),
        ("trl", "--max_turns 4", "the turns of an episode", UNKNOWN),
        ("trl", "--tool_parser hermes", "tools", UNKNOWN),
        ("trl", "--teacher_model_name_or_path c/d", "a teacher", UNKNOWN),
        ("trl", "--judge pair_rm", "a model that grades", UNKNOWN),
        ("trl", "--vllm_clip_advantages 3", "the loss", UNKNOWN),
        ("openrlhf", "--algo.kl.unbiased_gradient", "the loss", UNKNOWN),
        ("openrlhf", "--ds.lora.init olora", "an adapter", UNKNOWN),
        ("openrlhf", "--mcp_config x.json", "tools", UNKNOWN),
        ("verl", "actor_rollout_ref.actor.policy_loss.dro_beta=0.1", "the loss", UNKNOWN),
        ("verl", "+distillation.enabled=True", "a teacher", UNKNOWN),
        ("verl", "actor_rollout_ref.rollout.multi_turn.max_user_turns=3", "the turns of an episode", UNKNOWN),
        ("verl", "actor_rollout_ref.rollout.multi_turn.tool_config_path=$(pwd)/x.yaml", "the turns", UNKNOWN),
        ("verl", "actor_rollout_ref.rollout.agent.agent_loop_config_path=x.yaml", "the turns", UNKNOWN),
        ("verl", "+actor_rollout_ref.actor.adaptive_entropy.enabled=True", "the loss", UNKNOWN),
        ("verl", "+actor_rollout_ref.actor.entropy_target=0.2", "the loss", UNKNOWN),
        ("verl", "+trainer.rejection_sample=True", "which samples are trained", UNKNOWN),
        ("verl", "+trainer.rejection_sample_multiplier=2", "which samples are trained", UNKNOWN),
        ("verl", "+data.filter_accuracy=True", "which samples are trained", UNKNOWN),
        ("verl", "+algorithm.length_penalty=0.1", "the loss", UNKNOWN),
        ("trl", "--entropy_floor 0.3", "the loss", UNKNOWN),
        ("openrlhf", "--rejection_rate 0.5", "which samples are trained", UNKNOWN),
        (
            "verl",
            "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
            "turns with tools",
            "an episode",
        ),
        ("trl", "--beta $BETA", "the loss", UNREAD),
        ("openrlhf", "--init_kl_coef $(kl)", "the loss", UNREAD),
        ("verl", "actor_rollout_ref.actor.policy_loss.loss_mode=$MODE", "the loss", UNREAD),
        // They were left out as if rewards had no clip here.
        (
            "openrlhf",
            "--reward_clip_range -5 5",
            "a part of the objective",
            "the objective here has no such part",
        ),
        (
            "openrlhf",
            "--normalize_reward --reward_pretrain c/rm",
            "a part of the objective",
            "the objective here has no such part",
        ),
    ] {
        let error = refused(stack, more);
        let text = error.to_string();
        let head = format!("asks for what is not built here: {named}");
        assert!(text.contains(&head) && text.contains(why), "{more}: {text}");
        let key = more.trim_start_matches(['-', '+']).split([' ', '=']).next().expect("a key");
        assert!(text.contains(&format!("line 2: {key}")), "{more}: {text}");
    }
}

#[test]
fn what_is_off_or_at_its_default_decides_nothing() {
    for (stack, more) in [
        ("trl", "--vllm_importance_sampling_mode token_truncate"),
        ("trl", "--entropy_coef_max 1.0"),
        ("trl", "--lora_task_type CAUSAL_LM"),
        ("trl", "--kl_warmup 0"),
        ("openrlhf", "--reward_clip_range -10 10"),
        ("openrlhf", "--algo.advantage.is_correction_enable --algo.advantage.is_correction_type icepop"),
        ("verl", "actor_rollout_ref.rollout.multi_turn.format=hermes"),
        (
            "verl",
            "actor_rollout_ref.rollout.multi_turn.enable=False actor_rollout_ref.rollout.multi_turn.max_user_turns=3",
        ),
        ("verl", "+trainer.rejection_sample=False +trainer.rejection_sample_multiplier=2"),
        (
            "verl",
            "actor_rollout_ref.actor.adaptive_entropy.enabled=False actor_rollout_ref.actor.adaptive_entropy.target=1",
        ),
        (
            "verl",
            "actor_rollout_ref.actor.entropy_from_logits_with_chunking=True data.filter_overlong_prompts_workers=8",
        ),
        ("verl", "distillation.enabled=False distillation.teacher_key=x"),
        ("verl", "actor_rollout_ref.model.lora_adapter_path=null"),
        (
            "verl",
            "reward_model.enable=True reward_model.model.path=a/rm reward_model.micro_batch_size_per_gpu=8",
        ),
        ("verl", "actor_rollout_ref.actor.profiler.tool=torch critic.grad_clip=10"),
    ] {
        let script = format!("{} {more}", command(stack));
        assert!(imported(stack, "x.sh", &script, false).is_ok(), "{script}");
    }
}

/// Every option of a package at its default is a file that says nothing.
#[test]
fn a_file_of_defaults_is_imported() {
    let table: serde_json::Value =
        serde_json::from_str(include_str!("../../src/defaults.json")).expect("a table");
    for stack in STACKS {
        let Some(trainers) = table[stack.name]["trainers"].as_object() else { continue };
        for (trainer, values) in trainers {
            let mut settings = vec![Setting::new("trainer", trainer, 1)];
            for (key, value) in values.as_object().expect("options") {
                let is_model = ["model_name_or_path", "actor_rollout_ref.model.path"];
                if !is_model.contains(&key.as_str()) {
                    settings.push(Setting::new(key, value.as_str().expect("text"), 2));
                }
            }
            let run = translate(stack, settings, "x.yaml", &Wishes::default());
            assert!(run.as_ref().is_ok_and(Option::is_some), "{stack:?} {trainer}: {}", run.unwrap_err());
        }
    }
}

/// The lines of `[lora]` without their comments; none if there is no such section.
fn lora(run_file: &str) -> Vec<&str> {
    let section = run_file.split_once("\n[lora]\n").map_or("", |(_, rest)| rest);
    let lines = section.lines().take_while(|line| !line.is_empty());
    lines.map(|line| line.split("  #").next().unwrap_or_default()).collect()
}

/// It was left out, and every weight was trained.
#[test]
fn r_an_adapter_to_start_from_became_full_training() {
    const FOLDER: &str = "adapter = \"out/adapter\"";
    let verl = |more: &str| format!("{} {more}", command("verl"));
    let path = "actor_rollout_ref.model.lora_adapter_path=out/adapter";
    let python = |model: &str| {
        format!(
            "model = AutoModelForCausalLM.from_pretrained(\"a/b\")\nGRPOTrainer(model={model}, args=GRPOConfig(max_steps=4))\n"
        )
    };
    for (stack, name, text, expect, model) in [
        ("verl", "x.sh", verl(path), vec![FOLDER, "rank = \"\""], "hf:a/b"),
        (
            "verl",
            "x.sh",
            verl(&format!("{path} actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.model.lora_alpha=64")),
            vec![FOLDER, "rank = 32", "alpha = 64.0"],
            "hf:a/b",
        ),
        (
            "verl",
            "x.sh",
            "torchrun -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=a/b model.lora_adapter_path=out/adapter model.lora_rank=8".into(),
            vec![FOLDER, "rank = 8"],
            "hf:a/b",
        ),
        (
            "trl",
            "x.py",
            python("PeftModel.from_pretrained(model, \"out/adapter\", is_trainable=True)"),
            vec![FOLDER, "rank = \"\""],
            "hf:a/b",
        ),
        (
            "trl",
            "x.py",
            python("AutoPeftModelForCausalLM.from_pretrained(\"out/adapter\", is_trainable=True)"),
            vec![FOLDER, "rank = \"\""],
            "",
        ),
    ] {
        let run = imported(stack, name, &text, false).expect(&text);
        assert_eq!(lora(&run.run_file), expect, "{text}: {}", run.run_file);
        let line = format!("\nmodel = \"{model}\"  #");
        assert!(run.run_file.contains(&line), "{text}: {}", run.run_file);
        let is_missing = run.remarks.iter().any(|line| line.starts_with("missing: lora.rank"));
        assert_eq!(is_missing, expect.contains(&"rank = \"\""), "{text}: {:?}", run.remarks);
    }
}
