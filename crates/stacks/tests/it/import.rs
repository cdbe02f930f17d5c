//! Run files made of other stacks' settings, without the binary.

use plimsoll_stacks::{Imported, Wishes, find, import};

fn imported(stack: &str, name: &str, text: &str) -> plimsoll_base::Result<Imported> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a file");
    import(find(stack).expect("a stack"), &path, &Wishes::default())
}

/// Shell that never closes what it opens, or names itself, ends and is bounded.
#[test]
fn broken_text_ends() {
    for tail in ["'", "\"${", "$", "\\", "${A", "$(x", "[", "`", "=", "${:-}"] {
        let script =
            format!("A=1\npython3 -m verl.trainer.main_ppo data.train_batch_size=4 data.seed={tail}");
        assert!(imported("verl", "b.sh", &script).is_ok(), "{tail}");
        let python = imported("trl", "b.py", &format!("GRPOConfig(top_k=5, seed={tail}"));
        assert!(python.is_ok_and(|run| !run.run_file.is_empty()), "{tail}");
    }
}

#[test]
fn reward_models_of_others_become_rewards() {
    for (stack, script) in [
        (
            "openrlhf",
            "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --reward_pretrain c/rm --max_samples 8",
        ),
        (
            "verl",
            "python3 -m verl.trainer.main_ppo data.train_batch_size=4 reward_model.enable=True reward_model.model.path=c/rm",
        ),
        ("trl", "trl grpo --model_name_or_path a/b --reward_model_name_or_path c/rm --max_steps 4"),
    ] {
        let run = imported(stack, "x.sh", script).expect("a run file").run_file;
        assert!(run.contains("kind = \"model\"\nmodel = \"hf:c/rm\"\n"), "{stack}: {run}");
        assert!(!run.contains("kind = \"math\""), "{stack}: {run}");
    }
}

/// The lines of `[lora]` without their comments; none if there is no such section.
fn lora(run_file: &str) -> Vec<&str> {
    let section = run_file.split_once("\n[lora]\n").map_or("", |(_, rest)| rest);
    section
        .lines()
        .take_while(|line| !line.is_empty())
        .map(|line| line.split("  #").next().unwrap_or_default())
        .collect()
}

/// They were refused, and before that imported as training of every weight.
#[test]
fn adapters_of_others_become_a_section() {
    let openrlhf = "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --max_samples 8";
    let verl = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=a/b data.train_batch_size=4";
    let sft = "torchrun -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=a/b";
    let trl = "trl grpo --model_name_or_path a/b --max_steps 4";
    let all = "targets = \"all-linear\"";
    let two = "targets = [\"q_proj\", \"v_proj\"]";
    // PPO's critic has an adapter there wherever the actor does.
    let critic = "critic = \"adapter\"";
    for (script, expect) in [
        (format!("{openrlhf} --lora_rank 32"), vec!["rank = 32", "alpha = 16.0", all, critic]),
        (
            format!("{openrlhf} --lora_rank 32 --advantage_estimator rloo"),
            vec!["rank = 32", "alpha = 16.0", all],
        ),
        (
            format!("{openrlhf} --ds.lora.rank 8 --ds.lora.alpha 64 --ds.lora.target_modules q_proj v_proj"),
            vec!["rank = 8", "alpha = 64.0", two, critic],
        ),
        (format!("{openrlhf} --lora_rank 0 --lora_alpha 16"), vec![]),
        (
            format!("{verl} actor_rollout_ref.model.lora_rank=64 actor_rollout_ref.model.lora_alpha=32"),
            vec!["rank = 64", "alpha = 32.0", all],
        ),
        (
            format!(
                "{verl} actor_rollout_ref.model.lora_rank=4 actor_rollout_ref.model.target_modules=[q_proj,v_proj]"
            ),
            vec!["rank = 4", "alpha = 16.0", two],
        ),
        (format!("{verl} actor_rollout_ref.model.lora_rank=0"), vec![]),
        (format!("{sft} model.lora_rank=16 model.lora_alpha=8"), vec!["rank = 16", "alpha = 8.0", all]),
        (format!("{trl} --use_peft --lora_dropout 0"), vec!["rank = 16", "alpha = 32.0", two]),
        (
            format!(
                "{trl} --use_peft --lora_r 32 --lora_target_modules all-linear --use_rslora true --load_in_4bit true"
            ),
            vec!["rank = 32", "alpha = 32.0", all, "rslora = true", "quantize = \"nf4\""],
        ),
        (format!("{trl} --lora_r 32"), vec![]),
        (format!("{trl} --use_peft false --lora_r 32"), vec![]),
    ] {
        let stack = script
            .split(['.', ' '])
            .find_map(|word| ["openrlhf", "verl", "trl"].into_iter().find(|s| *s == word));
        let run = imported(stack.expect("a stack"), "x.sh", &script).expect(&script).run_file;
        assert_eq!(lora(&run), expect, "{script}: {run}");
    }
}

#[test]
fn adapters_of_routers_are_refused_by_what_asks_for_them() {
    let model = "Qwen/Qwen3-30B-A3B";
    let verl = format!(
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path={model} data.train_batch_size=4 actor_rollout_ref.model.lora_rank=4"
    );
    let trl = format!("trl grpo --model_name_or_path {model} --max_steps 4 --use_peft --lora_dropout 0");
    for (stack, script, asked) in [
        // Its default is every linear layer.
        ("verl", verl.clone(), "lora_rank = 4"),
        ("verl", format!("{verl} actor_rollout_ref.model.target_modules=all-linear"), "target_modules"),
        ("trl", format!("{trl} --lora_target_modules all-linear"), "lora_target_modules"),
    ] {
        let error = imported(stack, "x.sh", &script).expect_err(&script);
        assert_eq!(error.slug, "import-not-built", "{script}: {error}");
        let (text, why) = (error.to_string(), "the router among them");
        assert!(text.contains(asked) && text.contains(why), "{script}: {text}");
    }
    let [two, down] = [["q_proj", "v_proj"], ["q_proj", "down_proj"]].map(|of| format!("targets = {of:?}"));
    for (stack, script, targets) in [
        ("verl", format!("{verl} actor_rollout_ref.model.target_modules=[q_proj,v_proj]"), &two),
        ("trl", trl.clone(), &two),
        ("trl", format!("{trl} --lora_target_modules q_proj down_proj"), &down),
    ] {
        let run = imported(stack, "x.sh", &script).expect(&script).run_file;
        assert!(lora(&run).contains(&targets.as_str()), "{script}: {run}");
    }
}

#[test]
fn a_lora_config_of_a_script_becomes_a_section() {
    let script = |config: &str, more: &str| {
        format!(
            "from peft import LoraConfig\nfrom trl import GRPOConfig, GRPOTrainer\npeft = {config}\n{more}\nGRPOTrainer(model=\"a/b\", args=GRPOConfig(max_steps=4), peft_config=peft)\n"
        )
    };
    let two = "targets = [\"q_proj\", \"v_proj\"]";
    for (config, expect) in [
        ("LoraConfig()", vec!["rank = 8", "alpha = 8.0", two]),
        (
            "LoraConfig(r=64, lora_alpha=16, lora_dropout=0.0, bias=\"none\", task_type=\"CAUSAL_LM\", target_modules=[\"q_proj\", \"v_proj\"])",
            vec!["rank = 64", "alpha = 16.0", two],
        ),
        (
            "LoraConfig(r=4, target_modules=\"all-linear\", use_rslora=True)",
            vec!["rank = 4", "alpha = 8.0", "targets = \"all-linear\"", "rslora = true"],
        ),
    ] {
        let run = imported("trl", "x.py", &script(config, "")).expect(config).run_file;
        assert_eq!(lora(&run), expect, "{config}: {run}");
    }
    let inside = "from peft import LoraConfig, get_peft_model\nmodel = get_peft_model(\"a/b\", LoraConfig(r=2))\nGRPOTrainer(model=model, args=GRPOConfig(max_steps=4))\n";
    let run = imported("trl", "x.py", inside).expect("a run file").run_file;
    assert_eq!(lora(&run)[0], "rank = 2", "{run}");
}

#[test]
fn muon_of_openrlhf_is_muon_with_its_rate() {
    let ppo = "python -m openrlhf.cli.train_ppo_ray --pretrain a/b --prompt_data c/d --remote_rm_url x.py";
    let sft = "python -m openrlhf.cli.train_sft --pretrain a/b --dataset c/d";
    for (script, rate) in [
        (format!("{ppo} --actor.optim muon --actor.muon.lr 0.01 --actor.muon.momentum 0.9"), "0.01"),
        (format!("{sft} --optim muon"), "0.02"),
    ] {
        let import = imported("openrlhf", "x.sh", &script).expect(&script);
        let run = &import.run_file;
        for line in
            ["optimizer = \"muon\"", "muon_rate = \"original\"", &format!("muon_learning_rate = {rate}")]
        {
            assert!(run.contains(line), "{script}: {run}");
        }
        assert_eq!(run.contains("muon_momentum = 0.9"), script.contains("0.9"), "{run}");
        assert!(import.remarks.iter().any(|line| line.starts_with("changed: ")), "{:?}", import.remarks);
    }
}

#[test]
fn dropout_is_named_and_other_adapters_are_refused() {
    let trl = "trl grpo --model_name_or_path a/b --max_steps 4 --use_peft";
    for (script, remark) in [
        (trl.to_string(), "chosen: lora.dropout = 0 here"),
        (
            format!("{trl} --lora_dropout 0.1"),
            "left out: lora_dropout = 0.1: 0 here: with dropout the policy",
        ),
        (
            format!("{trl} --optim adamw_8bit"),
            "left out: optim = adamw_8bit: gradients and states of adapters",
        ),
        (
            "trl grpo --model_name_or_path a/b --lora_alpha 8".into(),
            "left out: lora_alpha = 8: there is no adapter",
        ),
    ] {
        let remarks = imported("trl", "x.sh", &script).expect(&script).remarks;
        assert!(remarks.iter().any(|line| line.starts_with(remark)), "{script}: {remarks:?}");
    }
    for more in [
        "--use_dora true",
        "--lora_modules_to_save lm_head",
        "--lora_target_modules q_proj lm_head",
        "--lora_r $(nproc)",
        "--load_in_8bit true",
    ] {
        let error = imported("trl", "x.sh", &format!("{trl} {more}")).expect_err(more);
        assert_eq!(error.slug, "import-not-built", "{more}: {error}");
        let key = more.trim_start_matches("--").split(' ').next().unwrap_or_default();
        assert!(error.to_string().contains(key), "{more}: {error}");
    }
    for config in [
        "make_config()",
        "LoraConfig(r=RANK)",
        "LoraConfig(bias=\"all\")",
        "LoraConfig(target_modules=\".*proj\")",
    ] {
        let script =
            format!("GRPOTrainer(model=\"a/b\", args=GRPOConfig(max_steps=4), peft_config={config})\n");
        assert_eq!(imported("trl", "x.py", &script).expect_err(config).slug, "import-not-built", "{config}");
    }
}

#[test]
fn paths_of_the_importing_machine_stay_as_they_are_written() {
    let script = "ROOT=\"$(cd \"$(dirname \"$0\")/../..\" && pwd)\"\npython3 -m openrlhf.cli.train_ppo_ray --pretrain $HOME/m --max_samples 8 \\\n\
        --vllm_num_engines 4 --remote_rm_url $ROOT/r.py --save_path ~/out --prompt_data $ROOT/x.jsonl --best_metric_key k\n";
    let run = imported("openrlhf", "x.sh", script).expect("a run file");
    for part in [
        "model = \"$HOME/m\"",
        "dir = \"$HOME/out\"",
        "/../..\" && pwd)/r.py:reward_func",
        "/../..\" && pwd)/x.jsonl",
    ] {
        assert!(run.run_file.contains(part), "{part}: {}", run.run_file);
    }
    let notes = run.remarks.iter().filter(|line| line.contains("set them for the machine that trains"));
    assert_eq!(notes.count(), 1, "{:?}", run.remarks);
    // What an engine decides comes after what the job loses.
    let at = |key: &str| run.remarks.iter().position(|line| line.starts_with(key));
    let (job, engine) =
        (at("left out: best_metric_key"), at("left out: 1 option of the engine there (--all lists them)"));
    assert!(job.is_some() && job < engine, "{:?}", run.remarks);
}
