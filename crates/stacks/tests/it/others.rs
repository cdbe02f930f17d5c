//! axolotl, prime-rl, ms-swift and SkyRL: a job as its file describes it, and what is not built refused with its line.

use plimsoll_base::Result;
use plimsoll_stacks::{Imported, Wishes, find, import};

fn imported(stack: &str, text: &str) -> Result<Imported> {
    let name = match stack {
        "axolotl" => "x.yaml",
        "prime-rl" => "x.toml",
        _ => "x.sh",
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a file");
    import(find(stack).expect("a stack"), &path, &Wishes::default())
}

fn check(stack: &str, text: &str, lines: &[&str], remarks: &[&str]) {
    let run = imported(stack, text).unwrap_or_else(|error| panic!("{text}: {error}"));
    for line in lines {
        let has = |have: &str| have == *line || have.starts_with(&format!("{line}  # "));
        assert!(run.run_file.lines().any(has), "{stack}: no {line:?}: {}", run.run_file);
    }
    for remark in remarks {
        assert!(
            run.remarks.iter().any(|have| have.starts_with(remark)),
            "{stack}: no {remark:?}: {:?}",
            run.remarks
        );
    }
}

fn refused(stack: &str, text: &str, slug: &str, words: &str) {
    let error = imported(stack, text).expect_err(text);
    assert!(error.slug == slug && error.to_string().contains(words), "{text}: {words}: {error}");
}

const AXOLOTL: &str = "base_model: a/b\nsequence_len: 1024\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\nlearning_rate: 2e-4\noptimizer: adamw_torch\n";

fn sets(kind: &str) -> String {
    format!("datasets:\n  - path: o/n\n    name: sub\n    split: train\n    type: {kind}\n")
}

#[test]
fn axolotl() {
    check(
        "axolotl",
        &format!(
            "{AXOLOTL}{}adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\nval_set_size: 0.1\n",
            sets("chat_template")
        ),
        &[
            "method = \"sft\"",
            "model = \"hf:a/b\"",
            "prompts = \"hf:o/n/sub/train\"",
            "train_on = \"assistant\"",
            "prompts_per_step = 8",
            "rank = 8",
            "alpha = 16.0",
            "targets = \"all-linear\"",
            "quantize = \"nf4\"",
            "epochs = 1",
            "schedule = \"cosine\"",
        ],
        &[
            "left out: val_set_size = 0.1: rows that are held out",
            "left out: default of axolotl: warmup_ratio = 0.03",
        ],
    );
    check(
        "axolotl",
        &format!("{AXOLOTL}rl: kto\nrl_beta: 0.5\nkto_desirable_weight: 0.2\n{}", sets("llama3.ultra")),
        &["method = \"kto\"", "dpo_beta = 0.5", "desirable_weight = 0.2", "chat_template = \"none\""],
        &["changed: datasets.type = llama3.ultra: code makes the text"],
    );
    check(
        "axolotl",
        &format!("{AXOLOTL}rl: ipo\n{}", sets("chat_template.default")),
        &["method = \"dpo\"", "loss_type = \"ipo\""],
        &[],
    );
    check(
        "axolotl",
        &format!(
            "{AXOLOTL}chat_template: llama3\nmax_steps: 4\nrl: gdpo\ntrl:\n  beta: 0.001\n  num_generations: 2\n  reward_funcs:\n    - rwd.one\n    - rwd.two\n  reward_weights: [1.0, 2.0]\n{}",
            sets("rwd.rows")
        ),
        &[
            "method = \"grpo\"",
            "advantage = \"decoupled\"",
            "kl_coef = 0.001",
            "group_size = 2",
            "kind = \"python:rwd.py:two\"",
            "weight = 2.0",
        ],
        &["missing: data.chat_template: chat_template is a template of axolotl's called llama3"],
    );
}

#[test]
fn what_axolotl_has_and_is_not_built() {
    for (more, words) in [
        ("load_in_8bit: true\nadapter: lora\n", "line 12: load_in_8bit = true: weights are"),
        (
            "plugins:\n  - axolotl.integrations.diffusion.DiffusionPlugin\n",
            "line 12: plugins = axolotl.integrations.diffusion.DiffusionPlugin: its methods",
        ),
        (
            "unfrozen_parameters:\n  - lm_head\n",
            "line 12: unfrozen_parameters = lm_head: every weight is trained",
        ),
        ("train_on_inputs: true\n", "line 12: train_on_inputs = true: a row here is a prompt and its answer"),
    ] {
        refused("axolotl", &format!("{AXOLOTL}{}{more}", sets("chat_template")), "import-not-built", words);
    }
    refused(
        "axolotl",
        &format!("{AXOLOTL}rl: ebft\n{}", sets("x.y")),
        "import-no-method",
        "the trainer is `ebft`",
    );
    // It was taken for TRL's, and asked for a trainer.
    let yaml = format!("{AXOLOTL}{}", sets("chat_template"));
    refused("trl", &yaml, "import-trainer-unknown", "it is a file of axolotl: plimsoll import axolotl");
}

const SKYRL: &str = "uv run --isolated -m skyrl.train.entrypoints.main_base trainer.policy.model.path=a/b data.train_data=\"['x.parquet']\"";

#[test]
fn skyrl() {
    let command = SKYRL;
    check(
        "skyrl",
        &format!(
            ": \"${{N:=4}}\"\n{command} generator.n_samples_per_prompt=$N trainer.train_batch_size=64 trainer.policy_mini_batch_size=16 trainer.max_prompt_length=128 trainer.policy.model.lora.rank=8\n"
        ),
        &[
            "method = \"grpo\"",
            "group_size = 4",
            "prompts_per_step = 64",
            "mini_batch = 64",
            "kl_coef = 0.001",
            "kl_in = \"loss\"",
            "kind = \"gsm8k\"",
            "rank = 8",
            "group_norm_eps = 1e-6",
        ],
        &["changed: trainer.policy_mini_batch_size = 16: 16 prompts there, 64 sequences here"],
    );
    check(
        "skyrl",
        &format!(
            "{} trainer.algorithm.policy_loss_type=dual_clip trainer.algorithm.eps_clip_high=0.28 trainer.algorithm.clip_ratio_c=10.0 trainer.algorithm.use_kl_loss=false trainer.algorithm.dynamic_sampling.type=filter trainer.algorithm.dynamic_sampling.max_sample_batches=30 trainer.algorithm.overlong_buffer_len=512 environment.env_class=aime generator.apply_overlong_filtering=true\n",
            command.replace("skyrl.train.entrypoints.main_base", "examples.train.algorithms.dapo.main_dapo")
        ),
        &[
            "clip_high = 0.28",
            "dual_clip = 10.0",
            "dynamic_sampling = true",
            "dynamic_sampling_retries = 29",
            "overlong_buffer = 512",
            "mask_truncated = true",
            "kind = \"math\"",
        ],
        &[],
    );
}

#[test]
fn losses_of_skyrl() {
    let command = SKYRL;
    check(
        "skyrl",
        &format!("{command} trainer.algorithm.policy_loss_type=cispo environment.env_class=own\n"),
        &["method = \"cispo\"", "clip_low = 0.0", "clip_high = 5.0"],
        &["missing: reward.0.kind: the environment `own` grades there"],
    );
    check(
        "skyrl",
        &format!(
            "{command} trainer.algorithm.policy_loss_type=kl_cov trainer.algorithm.kl_cov.kl_cov_frac=0.3\n"
        ),
        &["method = \"kl_cov\"", "covariance_share = 0.3", "covariance_coef = 1.0"],
        &[],
    );
    check(
        "skyrl",
        &format!("{command} trainer.algorithm.policy_loss_type=clip_cov\n"),
        &[
            "method = \"clip_cov\"",
            "covariance_share = 0.0002",
            "covariance_band = [1.0, 5.0]",
            "clip_low = 0.2",
        ],
        &[],
    );
}

/// Its band was refused where every ratio is 1, and a ratio without bounds altogether.
#[test]
fn r_ratios_of_skyrl_that_need_no_band_were_refused() {
    let command = |more: &str| format!("{SKYRL} trainer.algorithm.policy_loss_type={more}\n");
    check(
        "skyrl",
        &command("rollout_is trainer.train_batch_size=64 trainer.policy_mini_batch_size=64"),
        &["method = \"grpo\"", "clip_low = 0.2"],
        &["changed: trainer.algorithm.policy_loss_type = rollout_is: with one update a step its ratio is 1"],
    );
    check(
        "skyrl",
        &command("importance_sampling trainer.algorithm.eps_clip_low=0.1"),
        &["method = \"grpo\"", "clip_low = 1.0", "clip_high = 1e9"],
        &["left out: 1 option off or at the default there"],
    );
}

#[test]
fn refusals_of_skyrl() {
    let command = SKYRL;
    for (more, words) in [
        ("generator.max_turns=4", "generator.max_turns = 4: an episode is one response"),
        ("environment.env_class=search", "environment.env_class = search: an episode is one response"),
        (
            "trainer.algorithm.policy_loss_type=rollout_is",
            "trainer.algorithm.policy_loss_type = rollout_is: the objective",
        ),
        (
            "trainer.algorithm.policy_loss_type=rollout_is trainer.train_batch_size=64 trainer.policy_mini_batch_size=64 trainer.update_epochs_per_batch=2",
            "trainer.algorithm.policy_loss_type = rollout_is: the objective",
        ),
        (
            "trainer.algorithm.loss_reduction=token_mean_legacy",
            "trainer.algorithm.loss_reduction = token_mean_legacy: the objective",
        ),
    ] {
        refused(
            "skyrl",
            &format!("{command} \\\n  {more}\n"),
            "import-not-built",
            &format!("line 2: {words}"),
        );
    }
    refused(
        "skyrl",
        &command.replace("main_base", "main_generate"),
        "import-no-method",
        "the trainer is `main_generate`",
    );
}

const SWIFT_REFUSALS: [(&str, &str); 6] = [
    (
        "swift sft --model LiquidAI/LFM2-1.2B --dataset x.jsonl --target_modules in_proj w1 q_proj\n",
        "target_modules = in_proj, w1, q_proj: the linear layers here are q_proj",
    ),
    ("swift sft --model LiquidAI/LFM2-1.2B --dataset x.jsonl\n", "its layers are no decoder of a family"),
    ("swift pt --model a/b --dataset x.jsonl\n", "line 1: trainer = pt: a row here"),
    (
        "swift rlhf --rlhf_type dpo --model a/b \\\n --rpo_alpha 0.1 --dataset x.jsonl\n",
        "line 2: rpo_alpha = 0.1: the objective",
    ),
    (
        "swift sft --model a/b --dataset x.jsonl --tuner_type adalora\n",
        "line 1: tuner_type = adalora: an adapter here",
    ),
    (
        "# swift rollout --model a/b \\\n#   --multi_turn_scheduler tools\nswift rlhf --rlhf_type grpo --model a/b --dataset x.jsonl\n",
        "line 2: multi_turn_scheduler = tools",
    ),
];

#[test]
fn ms_swift() {
    check(
        "swift",
        "nproc=4\nNPROC_PER_NODE=$nproc \\\nswift sft --model Qwen/Qwen2.5-7B-Instruct --dataset 'o/n#500' x.jsonl --per_device_train_batch_size 1 --gradient_accumulation_steps $(expr 16 / $nproc) --max_length 2048 --system 'Be brief.'\n",
        &[
            "method = \"sft\"",
            "system_prompt = \"Be brief.\"",
            "train_on = \"assistant\"",
            "prompts_per_step = 16",
            "rank = 8",
            "alpha = 32.0",
            "targets = \"all-linear\"",
            "learning_rate = 1e-4",
            "weight_decay = 0.1",
            "betas = [0.9, 0.95]",
        ],
        &["chosen: names of models and data sets are those of ModelScope there"],
    );
    check(
        "swift",
        "swift rlhf --rlhf_type grpo --model a/b --tuner_type full --dataset x.jsonl --reward_funcs accuracy format own --external_plugins p.py --num_generations 4 --per_device_train_batch_size 4 --max_completion_length 64 --dynamic_sample true --use_hf true\n",
        &[
            "method = \"grpo\"",
            "aggregation = \"seq_mean_token_mean\"",
            "kl_coef = 0.04",
            "temperature = 0.9",
            "answer_column = \"solution\"",
            "dynamic_sampling = true",
            "dynamic_sampling_retries = 3",
            "learning_rate = 1e-5",
        ],
        &["missing: reward.2.kind: `own` is a class of p.py"],
    );
    check(
        "swift",
        "swift rlhf --rlhf_type kto --model a/b --dataset x.jsonl --beta 0.2\n",
        &["method = \"kto\"", "dpo_beta = 0.2"],
        &[],
    );
    for (text, words) in SWIFT_REFUSALS {
        refused("swift", text, "import-not-built", words);
    }
    refused(
        "swift",
        "swift rlhf --rlhf_type gkd --model a/b\n",
        "import-no-method",
        "the nearest method here is `distill`",
    );
    refused(
        "swift",
        "megatron sft --model a/b\n",
        "import-no-method",
        "its loss is another, or the options of that trainer are not read",
    );
}

#[test]
fn reinforce_plus_plus_of_ms_swift() {
    // REINFORCE++ of ms-swift by the deviation of a group, or by none, is GRPO's advantage.
    let plus = "swift rlhf --rlhf_type grpo --advantage_estimator reinforce_plus_plus --tuner_type full --model a/b --dataset x.jsonl --reward_funcs accuracy";
    check(
        "swift",
        &format!("{plus} --scale_rewards group\n"),
        &["method = \"grpo\"", "kl_in = \"reward\"", "kl_estimator = \"k1\""],
        &[],
    );
    check(
        "swift",
        &format!("{plus} --scale_rewards none --kl_in_reward false\n"),
        &["method = \"grpo\"", "advantage = \"mean_baseline\""],
        &[],
    );
    for (more, words) in [
        ("", "line 1: advantage_estimator = reinforce_plus_plus: the objective"),
        (" --scale_rewards batch", "line 1: scale_rewards = batch: the objective"),
    ] {
        refused("swift", &format!("{plus}{more}\n"), "import-not-built", words);
    }
}

#[test]
fn prime_rl() {
    let rl = "max_steps = 20\nseq_len = 2048\n[model]\nname = \"a/b\"\n[orchestrator]\nbatch_size = 128\ngroup_size = 16\n[orchestrator.train.sampling]\nmax_completion_tokens = 64\n[[orchestrator.train.source]]\nname = \"x\"\n[orchestrator.train.source.env.taskset]\nid = \"reverse\"\nmin_turns = 3\n[trainer.optim]\nlr = 3e-6\n";
    check(
        "prime-rl",
        rl,
        &[
            "method = \"dppo_tv\"",
            "advantage = \"mean_baseline\"",
            "aggregation = \"token_mean\"",
            "clip_low = 0.2",
            "prompts_per_step = 8",
            "group_size = 16",
            "max_new_tokens = 64",
            "steps = 20",
            "learning_rate = 3e-6",
        ],
        &[
            "missing: environment.env: the environment `reverse` is a package there",
            "changed: orchestrator.batch_size = 128: 128 rollouts",
        ],
    );
    check(
        "prime-rl",
        "max_steps = 5\n[model]\nname = \"a/b\"\n[model.lora]\n[data]\nname = \"o/n\"\nbatch_size = 8\nseq_len = 256\n[optim]\nlr = 2e-5\n",
        &[
            "method = \"sft\"",
            "prompts = \"hf:o/n\"",
            "train_on = \"assistant\"",
            "rank = 16",
            "alpha = 32.0",
            "prompts_per_step = 8",
            "steps = 5",
        ],
        &[],
    );
    refused(
        "prime-rl",
        &format!("{rl}[orchestrator.algo]\ntype = \"opd\"\n"),
        "import-no-method",
        "`orchestrator.algo.type` is `opd`",
    );
    refused(
        "prime-rl",
        &format!("{rl}[orchestrator.algo.length_penalty]\ntype = \"linear\"\n"),
        "import-not-built",
        "line 18: orchestrator.algo.length_penalty.type = linear",
    );
    refused(
        "prime-rl",
        &format!("{rl}[trainer.loss]\ntype = \"custom\"\nimport_path = \"x.y\"\n"),
        "import-not-built",
        "line 18: trainer.loss.type = custom",
    );
}

/// The trainer of a refused job had no line, and neither had an estimator that is no method here.
#[test]
fn r_a_refused_trainer_or_method_had_no_line() {
    let python = "from trl import BCOTrainer\n\nBCOTrainer(model=\"a/b\")\n";
    let verl = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=a/b \\\n algorithm.adv_estimator=own\n";
    for (stack, name, text, words) in [
        ("trl", "x.py", python, "line 3: the trainer is `BCOTrainer`"),
        ("trl", "x.sh", "\ntrl gkd --model_name_or_path a/b\n", "line 2: the trainer is `gkd`"),
        (
            "openrlhf",
            "x.sh",
            "python3 -m openrlhf.cli.train_kd --pretrain a/b\n",
            "line 1: the trainer is `kd`",
        ),
        ("verl", "x.sh", verl, "line 2: `algorithm.adv_estimator` is `own`"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        let error = import(find(stack).expect("a stack"), &path, &Wishes::default()).expect_err(text);
        assert!(error.slug == "import-no-method" && error.to_string().contains(words), "{words}: {error}");
    }
}

/// A data set of plain text was passed over, and the rest of the job imported.
#[test]
fn plain_text_and_other_positions_are_refused() {
    for (more, words) in [
        (
            "pretraining_dataset:\n  - path: o/n\n    name: en\n",
            "line 8: pretraining_dataset = o/n: a row here",
        ),
        (
            "rope_scaling: yarn\ndatasets:\n  - path: o/n\n    type: chat_template\n",
            "line 7: rope_scaling = yarn: positions",
        ),
    ] {
        refused("axolotl", &format!("{AXOLOTL}{more}"), "import-not-built", words);
    }
}
