//! Launch files of model families, with the keys of published recipes: what they become, and what is named.

use plimsoll_stacks::{Imported, Wishes, find, import};

fn imported(stack: &str, name: &str, text: &str) -> plimsoll_base::Result<Imported> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a file");
    import(find(stack).expect("a stack"), &path, &Wishes { all: true, ..Wishes::default() })
}

#[track_caller]
fn check(stack: &str, name: &str, text: &str, lines: &[&str]) {
    let imported = imported(stack, name, text).expect(text);
    let run: String = imported.run_file.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in lines {
        assert!(run.contains(line), "{line}: {}", imported.run_file);
    }
    let unknown = imported.run_file.lines().find(|line| line.contains("not known here"));
    assert_eq!(unknown, None, "{text}");
}

#[track_caller]
fn refused(stack: &str, text: &str, words: &[&str]) {
    let error = imported(stack, "x.sh", text).expect_err(text);
    assert_eq!(error.slug, "import-not-built", "{text}: {error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

/// A command of verl's main program for a model, with more options.
fn verl(model: &str, more: &str) -> String {
    format!(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=t.parquet data.train_batch_size=32 \
         data.max_prompt_length=1024 data.max_response_length=2048 data.truncation=error actor_rollout_ref.rollout.n=8 \
         actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.model.path={model} {more}\n"
    )
}

#[test]
fn recipes_of_verl_for_newer_families() {
    // Megatron-lite, veomni and FSDP describe machines alone.
    let engines = "actor@actor_rollout_ref.actor=megatron_lite hydra.searchpath=[pkg://x] \
        actor_rollout_ref.actor.engine.tp=2 actor_rollout_ref.actor.engine.impl_cfg.use_thd=True \
        actor_rollout_ref.actor.veomni.param_offload=True actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.ref.strategy=fsdp2 \
        actor_rollout_ref.nccl_timeout=7200 actor_rollout_ref.ref.entropy_checkpointing=True \
        actor_rollout_ref.ref.entropy_from_logits_with_chunking=True actor_rollout_ref.model.enable_activation_offload=True \
        +actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_offload_fraction=1 \
        +actor_rollout_ref.actor.optim.override_optimizer_config.overlap_cpu_optimizer_d2h_h2d=True \
        +actor_rollout_ref.actor.optim.override_optimizer_config.use_precision_aware_optimizer=True \
        actor_rollout_ref.actor.checkpoint.save_contents=['model','extra'] trainer.device=cuda critic.enable=False \
        +actor_rollout_ref.actor.megatron.override_transformer_config.moe_aux_loss_coeff=0.01";
    for model in [
        "Qwen/Qwen3.5-35B-A3B",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "zai-org/GLM-4.5-Air",
        "moonshotai/Moonlight-16B-A3B-Instruct",
        "zai-org/GLM-4.7-Flash",
        "mistralai/Mistral-Small-24B-Instruct-2501",
        "mistralai/Ministral-3-8B-Instruct-2512-BF16",
        "google/gemma-4-31B-it",
    ] {
        let line = format!("model = \"hf:{model}\"");
        check("verl", "x.sh", &verl(model, engines), &[&line, "prompts_per_step = 32", "method = \"grpo\""]);
    }
    let effort = "+data.apply_chat_template_kwargs.reasoning_effort=medium +data.apply_chat_template_kwargs.enable_thinking=False";
    let variables = "template_args = { enable_thinking = false, reasoning_effort = \"medium\" }";
    check(
        "verl",
        "x.sh",
        &verl("openai/gpt-oss-20b", effort),
        &["model = \"hf:openai/gpt-oss-20b\"", variables],
    );
    // Weights in 8 bits, another family of latent attention, and a term that no loss has here.
    refused("verl", &verl("deepseek-ai/DeepSeek-V3", ""), &["quantised weights"]);
    refused("verl", &verl("mistralai/Ministral-3-8B-Instruct-2512", ""), &["quantised weights"]);
    refused("verl", &verl("deepseek-ai/DeepSeek-V2-Lite-Chat", ""), &["experts"]);
    refused("verl", &verl("moonshotai/Kimi-K2-Instruct", ""), &["quantised weights"]);
    let z = "+actor_rollout_ref.actor.megatron.override_transformer_config.moe_z_loss_coeff=0.001";
    refused("verl", &verl("Qwen/Qwen3.5-35B-A3B", z), &["moe_z_loss_coeff", "a part of the objective"]);
}

/// A script of slime: arrays of flags, and those of the model's shape in another file.
fn slime(model: &str, more: &str) -> String {
    format!(
        "source \"${{SCRIPT_DIR}}/models/x.sh\"\nCKPT_ARGS=(\n   --hf-checkpoint /root/{model}\n   --ref-load /root/{model}_torch_dist\n   --save /root/{model}_slime/\n   --save-interval 20\n)\n\
         ROLLOUT_ARGS=(\n   --prompt-data /root/dapo.jsonl\n   --input-key prompt\n   --label-key label\n   --apply-chat-template\n   --rollout-shuffle\n   --rm-type deepscaler\n   --num-rollout 3000\n   --rollout-batch-size 32\n   --n-samples-per-prompt 8\n   --rollout-max-response-len 8192\n   --rollout-temperature 1\n   --num-steps-per-rollout 4\n   # --global-batch-size 256\n   --balance-data\n   --dynamic-sampling-filter-path slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std\n)\n\
         EVAL_ARGS=(\n   --eval-interval 20\n   --eval-prompt-data aime /root/aime.jsonl\n   --n-samples-per-eval-prompt 16\n   --eval-top-p 1\n)\n\
         GRPO_ARGS=(\n   --advantage-estimator grpo\n   --use-kl-loss\n   --kl-loss-coef 0.001\n   --kl-loss-type low_var_kl\n   --kl-coef 0.00\n   --entropy-coef 0.00\n   --eps-clip 0.2\n   --eps-clip-high 0.28\n)\n\
         PERF_ARGS=(\n   --tensor-model-parallel-size 4\n   --sequence-parallel\n   --expert-model-parallel-size 8\n   --recompute-granularity full\n   --recompute-method uniform\n   --recompute-num-layers 1\n   --use-dynamic-batch-size\n   --max-tokens-per-gpu 8192\n   --optimizer adam\n   --lr 1e-6\n   --lr-decay-style constant\n   --weight-decay 0.1\n   --adam-beta1 0.9\n   --adam-beta2 0.98\n   --optimizer-cpu-offload\n   --overlap-cpu-optimizer-d2h-h2d\n   --use-precision-aware-optimizer\n   --attention-dropout 0.0\n   --moe-enable-deepep\n   --sglang-mem-fraction-static 0.7\n)\n\
         ray job submit --address=x -- python3 train.py --actor-num-nodes 1 --colocate ${{CKPT_ARGS[@]}} ${{ROLLOUT_ARGS[@]}} ${{EVAL_ARGS[@]}} ${{GRPO_ARGS[@]}} ${{PERF_ARGS[@]}} {more}\n"
    )
}

#[test]
fn recipes_of_slime_for_newer_families() {
    for model in [
        "Qwen3.5-35B-A3B",
        "Qwen3-Next-80B-A3B-Thinking",
        "GLM-4.5-Air",
        "GLM-4.7-Flash",
        "Moonlight-16B-A3B",
        "gemma-4-31B-it",
    ] {
        let line = format!("model = \"/root/{model}\"");
        check(
            "slime",
            "x.sh",
            &slime(model, ""),
            &[
                &line,
                "method = \"grpo\"",
                "prompts_per_step = 32",
                "group_size = 8",
                "max_new_tokens = 8192",
                "mini_batch = 64",
                "steps = 3000",
                "kind = \"math\"",
                "kl_in = \"loss\"",
                "kl_coef = 0.001",
                "kl_estimator = \"k3\"",
                "clip_high = 0.28",
                "aggregation = \"seq_mean_token_mean\"",
                "dynamic_sampling = true",
                "betas = [0.9, 0.98]",
                "schedule = \"constant\"",
                "eval = \"/root/aime.jsonl\"",
                "samples = 16",
                "prompt_column = \"prompt\"",
                "answer_column = \"label\"",
            ],
        );
    }
    refused("slime", &slime("DeepSeek-R1", ""), &["quantised weights"]);
    refused("slime", &slime("Kimi-K2-Instruct", ""), &["quantised weights"]);
    for (more, words) in [
        ("--enable-mtp-training --mtp-num-layers 1", "enable_mtp_training"),
        ("--custom-generate-function-path x.generate", "turns with tools"),
        ("--normalize-advantages", "normalize_advantages"),
        ("--multimodal-keys '{\"image\": \"images\", \"video\": \"videos\"}'", "pictures"),
        ("--use-opd", "use_opd"),
    ] {
        refused("slime", &slime("GLM-4.7-Flash", more), &[words]);
    }
    let gspo = slime(
        "Moonlight-16B-A3B",
        "--advantage-estimator gspo --use-tis --calculate-per-token-loss ${MODEL_ARGS[@]}",
    );
    check("slime", "x.sh", &gspo, &["method = \"gspo\"", "aggregation = \"token_mean\""]);
    let custom = slime("Moonlight-16B-A3B", "--custom-rm-path my.reward");
    let remarks = imported("slime", "x.sh", &custom).expect("a run file").remarks;
    assert!(
        remarks.iter().any(|line| line.contains("my.reward is a function of slime's samples")),
        "{remarks:?}"
    );
}

/// Requires lines of a run file without their comments, and that none begins with what it lacks.
#[track_caller]
fn has(stack: &str, text: &str, lines: &[&str], lacks: &[&str]) {
    let run = imported(stack, "x.sh", text).expect(text).run_file;
    let run: Vec<&str> = run.lines().map(|line| line.split("  #").next().unwrap_or_default()).collect();
    for line in lines {
        assert!(run.contains(line), "{line}: {run:#?}");
    }
    for line in lacks {
        assert!(!run.iter().any(|have| have.starts_with(line)), "{line}: {run:#?}");
    }
}

/// The keys of published recipes about images.
#[test]
fn recipes_with_images_name_their_column_and_whether_the_tower_learns() {
    let (images, train) = ("images = \"images\"", "tower = \"train\"");
    // verl's geometry3k: the tower is trained unless it is frozen, or an adapter leaves it out.
    let model = "Qwen/Qwen2.5-VL-7B-Instruct";
    let key = "data.image_key=images +actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True \
        actor_rollout_ref.rollout.limit_images=2";
    has(
        "verl",
        &verl(model, key),
        &["model = \"hf:Qwen/Qwen2.5-VL-7B-Instruct\"", images, train],
        &["image_pixels"],
    );
    has("verl", &verl(model, ""), &[images, train], &[]);
    let frozen = format!("{key} actor_rollout_ref.actor.freeze_vision_tower=True");
    has("verl", &verl(model, &frozen), &[images], &["tower ="]);
    let lora = format!(
        "{key} actor_rollout_ref.model.lora_rank=64 actor_rollout_ref.model.lora_alpha=32 \
         actor_rollout_ref.model.target_modules=all-linear actor_rollout_ref.model.exclude_modules='.*visual.*'"
    );
    has("verl", &verl(model, &lora), &[images, "rank = 64"], &["tower ="]);
    let all = lora.split(" actor_rollout_ref.model.exclude_modules").next().expect("what is before it");
    has("verl", &verl(model, all), &[images, "rank = 64", "tower = \"adapters\""], &[]);
    refused(
        "verl",
        &verl(model, "actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.model.exclude_modules=[lm_head]"),
        &["such an adapter"],
    );
    // A recipe of text that writes the key out is one of text still: rows may lack the column.
    has("verl", &verl("Qwen/Qwen3-8B", ""), &[], &["images =", "tower ="]);
}

#[test]
fn areas_and_towers_of_slime_swift_and_trl() {
    let (images, train) = ("images = \"images\"", "tower = \"train\"");
    // slime's geometry3k.
    has(
        "slime",
        &slime("Qwen3-VL-8B-Instruct", "--multimodal-keys '{\"image\": \"images\"}'"),
        &[images, train],
        &[],
    );
    // ms-swift's CLEVR count: the tower is frozen by default there, and areas come from the environment.
    let swift = |more: &str| {
        format!(
            "NPROC_PER_NODE=4 MAX_PIXELS=602112 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-VL-3B-Instruct \
             --dataset clevr.jsonl --tuner_type full --max_steps 4 --reward_funcs format {more}\n"
        )
    };
    let area = "image_pixels_max = 602112";
    has("swift", &swift(""), &[images, area], &["tower ="]);
    has(
        "swift",
        &swift("--freeze_vit true --max_pixels 401408"),
        &[images, "image_pixels_max = 401408"],
        &["tower ="],
    );
    has("swift", &swift("--freeze_vit false --freeze_aligner false"), &[images, area, train], &[]);
    let lora = swift("--freeze_vit false --freeze_aligner false --lora_dropout 0")
        .replace("tuner_type full", "tuner_type lora");
    has("swift", &lora, &[images, "tower = \"adapters\""], &[]);
    refused("swift", &swift("--freeze_aligner false"), &["weights that stay as they are"]);
    let text = swift("--freeze_vit true").replace("Qwen2.5-VL-3B", "Qwen2.5-3B");
    has("swift", &text, &[], &["images =", "image_pixels", "tower ="]);
    // All models of Qwen3.5 see: a setting about images says that the rows have some.
    let both = swift("").replace("Qwen2.5-VL-3B-Instruct", "Qwen3.5-2B");
    has("swift", &both, &[images, area], &["tower ="]);
    has("swift", &both.replace("MAX_PIXELS=602112", ""), &[], &["images =", "tower ="]);
    // TRL's multimodal-open-r1.
    let trl = "trl grpo --model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct --dataset_name lmms-lab/multimodal-open-r1-8k-verified \
        --reward_funcs think_format_reward --max_completion_length 1024";
    has("trl", trl, &[images, train], &[]);
    has("trl", &format!("{trl} --use_peft --lora_target_modules q_proj v_proj"), &[images], &["tower ="]);
    let all = format!("{trl} --use_peft --lora_dropout 0 --lora_target_modules all-linear");
    has("trl", &all, &[images, "tower = \"adapters\""], &[]);
}

#[test]
fn adapters_of_all_experts_are_carried() {
    let experts = "targets = [\"experts.gate_up_proj\", \"experts.down_proj\"]";
    let both = "targets = [\"q_proj\", \"v_proj\", \"experts.gate_up_proj\", \"experts.down_proj\"]";
    let trl = "trl sft --model_name_or_path openai/gpt-oss-20b --dataset_name x.jsonl --use_peft --lora_dropout 0 \
        --lora_target_parameters mlp.experts.gate_up_proj mlp.experts.down_proj";
    check("trl", "x.sh", trl, &[experts]);
    check("trl", "x.sh", &format!("{trl} --lora_target_modules q_proj v_proj"), &[both]);
    let script = |config: &str| {
        format!(
            "from peft import LoraConfig\nfrom trl import SFTConfig, SFTTrainer\nSFTTrainer(model=\"openai/gpt-oss-20b\", args=SFTConfig(max_steps=4), peft_config=LoraConfig({config}))\n"
        )
    };
    let names = "target_parameters=[\"experts.gate_up_proj\", \"experts.down_proj\"]";
    check("trl", "x.py", &script(names), &[experts]);
    check("trl", "x.py", &script(&format!("target_modules=[], {names}")), &[experts]);
    check("trl", "x.py", &script(&format!("target_modules=[\"q_proj\", \"v_proj\"], {names}")), &[both]);
    check("trl", "x.py", &script("target_parameters=None"), &["targets = [\"q_proj\", \"v_proj\"]"]);
    let axolotl = "base_model: openai/gpt-oss-20b\nadapter: lora\nlora_r: 8\nlora_alpha: 16\ndatasets:\n  - path: x.jsonl\n    type: chat_template\nlora_target_parameters:\n  - mlp.experts.gate_up_proj\n  - mlp.experts.down_proj\n";
    check("axolotl", "x.yml", axolotl, &[experts]);
    let swift = "swift sft --model openai/gpt-oss-20b --dataset x.jsonl --tuner_type lora --lora_dropout 0 --target_modules q_proj v_proj --target_parameters mlp.experts.gate_up_proj mlp.experts.down_proj";
    check("swift", "x.sh", swift, &[both]);
    let lora = "actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.model.target_modules=[q_proj,v_proj] actor_rollout_ref.model.target_parameters=[experts.gate_up_proj,experts.down_proj]";
    check("verl", "x.sh", &verl("Qwen/Qwen3.5-35B-A3B", lora), &[both]);
    // Some layers alone, and parameters that are no experts.
    for parameter in ["7.mlp.experts.gate_up_proj", "mlp.router.weight"] {
        let text = trl.replace("mlp.experts.gate_up_proj", parameter);
        let error = imported("trl", "x.sh", &text).expect_err(parameter);
        assert!(error.slug == "import-not-built" && error.to_string().contains(parameter), "{error}");
    }
}

/// gpt-oss's recipe of TRL: a script whose command is in the text at its top.
#[test]
fn a_script_for_gpt_oss_has_its_options() {
    let script = "\"\"\"\naccelerate launch --config_file zero3.yaml x.py --model_name_or_path openai/gpt-oss-20b --dtype bfloat16 \\\n    --dataset_name x.jsonl --max_length 4096 --lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{\"min_lr_rate\": 0.1}' --num_train_epochs 1\n\"\"\"\n\
        from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser\nparser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))\n\
        script_args, args, model_args = parser.parse_args_and_config()\nkwargs = dict(quantization_config=Mxfp4Config(dequantize=True))\n\
        model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, **kwargs)\nSFTTrainer(model=model, args=args)\n";
    check("trl", "x.py", script, &["model = \"hf:openai/gpt-oss-20b\"", "dtype = \"bf16\""]);
}
