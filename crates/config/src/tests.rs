//! Run files, good and bad.

mod containers;
mod credit;
mod data_sets;
mod device;
mod distill;
mod judge;
mod keys;
mod lora;
mod methods;
mod optimizer;
mod origins;
mod renamed;
mod track;
mod verb;

use super::*;
use plimsoll_base::{Exit, Result};

const GOOD: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 32
group_size = 8
max_new_tokens = 5
[[reward]]
kind = "exact"
[train]
steps = 60
learning_rate = 1e-4
micro_batch_tokens = "auto"
[memory]
host = "48MiB"
"#;

fn load_text(text: &str, sets: &[&str], env: &[(&str, &str)]) -> Result<Loaded> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.toml");
    std::fs::write(&path, text).expect("a file in a temporary folder");
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    load(&path, &sets, env.iter().map(|(name, value)| (name.to_string(), value.to_string())))
}

#[test]
fn layers_win_in_their_order_and_remember_it() {
    let env = [("PLIMSOLL__ROLLOUT__GROUP_SIZE", "4"), ("PLIMSOLL__SEED", "3"), ("PATH", "x")];
    let loaded =
        load_text(GOOD, &["rollout.group_size=2", "reward.1.kind=format", "reward.0.weight=0.5"], &env)
            .unwrap();
    let run = &loaded.run;
    assert_eq!((run.rollout.group_size, run.seed, run.reward.len()), (2, 3, 2));
    assert_eq!((run.reward[0].weight, run.reward[1].kind.as_str()), (0.5, "format"));
    assert_eq!(run.memory.host, Auto::Value(ByteSize(plimsoll_base::Bytes::mib(48))));
    assert_eq!(run.loss.clip_high, Some(0.2));
    assert_eq!(run.run.dir.as_deref(), Some("runs/out/x"));
    for (key, origin) in [
        ("rollout.group_size", "--set"),
        ("seed", "environment PLIMSOLL__SEED"),
        ("rollout.temperature", "default"),
        ("loss.clip_low", "default of the method"),
    ] {
        assert_eq!(loaded.provenance.describe(key), origin, "{key}");
    }
    assert!(loaded.provenance.describe("train.steps").ends_with("x.toml:12"));
    let keys: Vec<String> = loaded.settings().into_iter().map(|setting| setting.key).collect();
    assert!(keys.contains(&"reward.1.kind".to_string()), "{keys:?}");
}

/// A number was printed with 300 digits, a text with all its letters.
#[test]
fn r_a_long_value_was_printed_whole() {
    let long = "x".repeat(100_000);
    for (set, words) in [
        ("train.learning_rate=1.7e308".into(), "is 1.7e308; it takes"),
        ("rollout.group_size=1.7e308".into(), "the number 1.7e308"),
        (format!("rollout.group_size={long}"), "xxx... (100000 bytes)"),
        (format!("method={long}"), "bytes"),
        (format!("{long}=1"), "bytes"),
    ] {
        let error = load_text(GOOD, &[&set], &[]).unwrap_err();
        assert!(error.message.contains(words), "{error}");
        assert!(error.to_string().lines().all(|line| line.chars().count() < 2200), "{error}");
    }
}

/// A hint counted down from there, for seconds.
#[test]
fn r_a_huge_number_has_a_hint_soon() {
    for key in ["train.mini_batch", "critic.updates_per_rollout"] {
        let sets = ["method=ppo".to_string(), format!("{key}=4294967295")];
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let begin = std::time::Instant::now();
        let error = load_text(GOOD, &sets, &[]).unwrap_err();
        assert_eq!(error.slug, "contradictory-keys", "{error}");
        assert!(begin.elapsed() < std::time::Duration::from_secs(1), "{:?}", begin.elapsed());
    }
}

#[test]
fn set_takes_toml_if_it_parses_and_a_string_otherwise() {
    let sets = [
        "model=2024",
        "rollout.stop=[\"a\", \"b\"]",
        "memory.host=1GiB",
        "rollout={top_k=5}",
        "data.eval=a b",
    ];
    let run = load_text(GOOD, &sets, &[]).unwrap().run;
    assert_eq!((run.model.as_str(), run.rollout.stop.len(), run.rollout.top_k), ("2024", 2, 5));
    assert_eq!((run.rollout.group_size, run.data.eval.clone()), (8, Some("a b".into())));
}

#[test]
fn the_resolved_file_reads_back_as_itself() {
    let run = load_text(GOOD, &["train.recompute=layer", "run.dir=o"], &[]).unwrap().run;
    let again = load_text(&run.to_toml(), &[], &[]).unwrap().run;
    assert_eq!(run, again);
}

#[test]
fn aliases_are_read_under_our_names() {
    let text = GOOD
        .replace("group_size = 8", "num_generations = 6")
        .replace("steps = 60", "steps = 60\ngradient_checkpointing = true");
    let text = text.replace("[memory]", "[loss]\nepsilon = 0.3\nbeta = 0.01\n[memory]");
    let loaded = load_text(&text, &["rollout.free_cache_engine=true", "rollout.n=4"], &[]).unwrap();
    let run = &loaded.run;
    assert_eq!(run.rollout.group_size, 4);
    assert_eq!((run.loss.clip_low, run.loss.clip_high, run.loss.kl_coef), (Some(0.3), Some(0.3), 0.01));
    assert_eq!(run.train.recompute, Auto::Value(Recompute::Layer));
    assert!(loaded.notes[0].contains("is ignored"), "{:?}", loaded.notes);
    let offloaded = load_text(GOOD, &["memory.adam_offload=true"], &[]).unwrap().run.memory.offload;
    assert_eq!(offloaded, Auto::Value(vec![Offload::Optimizer]));
    assert_eq!(load_text(GOOD, &["memory.offload=auto"], &[]).unwrap().run.memory.offload, Auto::Auto);
    let sets = ["data.prompt_tokens_max=11", "train.per_device_train_batch_size=4"];
    assert_eq!(load_text(GOOD, &sets, &[]).unwrap().run.train.micro_batch_tokens, Auto::Value(64));
}

#[test]
fn names_of_trl_and_verl_with_the_same_meaning_are_taken() {
    let sets = [
        "train.max_grad_norm=0.5",
        "train.num_iterations=2",
        "train.total_training_steps=7",
        "data.max_prompt_length=9",
        "run.output_dir=o",
        "checkpoint.save_total_limit=3",
        "loss.delta=4.0",
    ];
    let run = load_text(GOOD, &sets, &[]).unwrap().run;
    assert_eq!((run.train.grad_clip, run.train.epochs_per_rollout, run.train.steps), (0.5, 2, 7));
    assert_eq!((run.data.prompt_tokens_max, run.checkpoint.keep), (Some(9), 3));
    assert_eq!((run.run.dir.as_deref(), run.loss.dual_clip), (Some("o"), Some(4.0)));
}

/// One row: what `--set` adds to the good file, the slug, and what the message or hint must contain.
const BAD: &[(&[&str], &str, &str)] = &[
    (&["rollout.grup_size=8"], "unknown-key", "did you mean `rollout.group_size`?"),
    (&["train.group_size=8"], "unknown-key", "`rollout.group_size`"),
    (&["rolout.group_size=8"], "unknown-key", "did you mean `rollout`?"),
    (&["train.lr=8"], "unknown-key", "hint: did you mean `train.learning_rate`?"),
    (&["rollout.max_tokens=8"], "unknown-key", "hint: did you mean `rollout.max_new_tokens`?"),
    (
        &["train.max_steps=8"],
        "unknown-key",
        "hint: set `train.steps`: rollouts here, where TRL counts updates",
    ),
    (&["max_steps=8"], "unknown-key", "hint: set `train.steps`"),
    (&["train.num_train_epochs=3"], "unknown-key", "set `train.epochs`: passes over the data"),
    (&["train.optim=adamw_8bit"], "unknown-key", "train.optimizer_dtype"),
    (&["checkpoint.save_steps=5"], "unknown-key", "set `checkpoint.every`"),
    (&["train.num_generations=8"], "unknown-key", "hint: `num_generations` belongs in [rollout]"),
    (&["num_generations=8"], "unknown-key", "hint: `num_generations` belongs in [rollout]"),
    (&["rollout.zzzzzzz=8"], "unknown-key", "keys of [rollout]: prompts_per_step"),
    (&["reward.0.wieght=8"], "unknown-key", "did you mean `reward.0.weight`?"),
    (&["rollout.group_size=eight"], "bad-type", "the string \"eight\"; it takes a whole number"),
    (&["rollout.group_size=1.5"], "bad-type", "the number 1.5"),
    (&["rollout.group_size=-1"], "bad-value", "-1"),
    (&["rollout.group_size=99999999999"], "bad-value", "99999999999"),
    (&["train=3"], "bad-type", "it takes a table"),
    (&["rollout.stop=x"], "bad-type", "a list"),
    (&["train.micro_batch_tokens=many"], "bad-type", "\"auto\" or a whole number"),
    (&["train.betas=[0.9]"], "bad-value", "a list of 2 numbers"),
    (&["train.betas=[0.9, 0.9, 0.9]"], "bad-value", "a list of 2 numbers"),
    (&["train.betas=[0.9, 1.0]"], "bad-value", "train.betas"),
    (&["memory.host=12XB"], "bad-value", "bytes, such as"),
    (&["memory.host=0"], "bad-value", "memory.host"),
    (&["method=grop"], "bad-value", "did you mean \"grpo\"?"),
    (&["model_options.dtype=bfloat16"], "bad-value", "did you mean \"bf16\"?"),
    (&["model_options.dtype=fp32"], "bad-value", "did you mean \"f32\"?"),
    (&["model_options.dtype=float16"], "bad-value", "halves are not built"),
    (&["train.grad_dtype=torch.float32"], "bad-value", "did you mean \"f32\"?"),
    (&["train.grad_dtype=half"], "bad-value", "set `train.grad_dtype` to \"bf16\""),
    (&["train.optimizer_dtype=adamw_8bit"], "bad-value", "did you mean \"int8\"?"),
    (&["run.device=gpu"], "bad-value", "did you mean \"cuda\"?"),
    (&["method=7"], "bad-value", "none of its names"),
    (&["rollout.on_full=never"], "bad-value", "worst-case"),
    (&["rollout.temperature=-1"], "bad-value", "from 1e-6 up"),
    (&["rollout.temperature=nan"], "bad-value", "NaN"),
    (&["rollout.temperature=0"], "contradictory-keys", "greedy"),
    (&["rollout.top_p=0"], "bad-value", "above 0"),
    (&["rollout.top_p=1.5"], "bad-value", "1.5"),
    (&["rollout.min_p=1"], "bad-value", "below 1"),
    (&["rollout.group_size=0"], "bad-value", "at least 1"),
    (&["rollout.group_size=1"], "group-too-small", "nothing to be compared with"),
    (&["rollout.max_new_tokens=0"], "bad-value", "max_new_tokens"),
    (&["rollout.block_size=32"], "bad-value", "16"),
    (&["rollout.kv_blocks=1", "rollout.max_new_tokens=64"], "contradictory-keys", "4 blocks"),
    (&["train.mini_batch=100"], "contradictory-keys", "set train.mini_batch = 64"),
    (&["train.steps=0"], "bad-value", "train.steps"),
    (&["train.learning_rate=inf"], "bad-value", "finite"),
    (&["train.learning_rate=-1e-4"], "bad-value", "-0.0001"),
    (&["train.warmup_steps=61"], "contradictory-keys", "61"),
    (&["loss.kl_target=0.1"], "contradictory-keys", "loss.kl_coef"),
    (&["loss.gamma=0.9"], "contradictory-keys", "reinforce"),
    (&["eval.samples=4"], "contradictory-keys", "greedy"),
    (&["reward.0.kind=exakt"], "unknown-reward", "`exact`"),
    (&["reward.0.kind=regex:("], "reward-bad-pattern", "reward.0.kind"),
    (&["reward.2.kind=exact"], "bad-set", "`reward.1` appends one"),
    (&["reward.1.weight=2"], "missing-key", "`reward.1.kind` is missing"),
    (&["nonsense"], "bad-set", "there is no `=`"),
    (&["a..b=1"], "bad-set", "not a key"),
    (&["model.x=1"], "bad-set", "not a table"),
    (&["method=dpo", "loss.dpo_beta=0"], "bad-value", "above 0"),
    (&["method=dpo", "loss.simpo_gamma=1.0"], "contradictory-keys", "loss.simpo_gamma"),
    (&["method=simpo", "loss.label_smoothing=0.1"], "contradictory-keys", "loss.label_smoothing"),
    (&["method=orpo", "loss.nll_coef=0.5"], "contradictory-keys", "loss.nll_coef"),
    (&["loss.nll_coef=0.5"], "contradictory-keys", "loss.nll_coef"),
    (&["method=dpo", "loss.label_smoothing=0.5"], "bad-value", "below 0.5"),
    (&["method=dpo", "loss.label_smoothing=0.1", "loss.loss_type=ipo"], "contradictory-keys", "not to IPO"),
    (&["method=dpo", "loss.loss_type=hinge"], "bad-value", "takes sigmoid, ipo"),
    (
        &["method=dpo", "loss.kl_coef=0.1"],
        "contradictory-keys",
        "loss.kl_coef = 0.1 with method = \"dpo\", which does not read it",
    ),
    (&["method=dpo", "train.mini_batch=8"], "contradictory-keys", "train.mini_batch"),
    (&["method=dpo", "train.epochs_per_rollout=2"], "contradictory-keys", "train.epochs_per_rollout"),
    (&["loss.loss_type=ipo"], "contradictory-keys", "method = \"grpo\", which does not read it"),
    (&["loss.label_smoothing=0.1"], "contradictory-keys", "method = \"dpo\""),
    (&["loss.dpo_beta=0.2"], "contradictory-keys", "method = \"dpo\""),
    (
        &["method=sft", "loss.kl_coef=0.1"],
        "contradictory-keys",
        "loss.kl_coef = 0.1 with method = \"sft\", which does not read it",
    ),
    (&["method=sft", "train.mini_batch=16"], "contradictory-keys", "is one update"),
    (&["method=sft", "train.epochs_per_rollout=2"], "contradictory-keys", "is one update"),
    (&["method=reward_model"], "contradictory-keys", "rollout.max_new_tokens = 5 with method"),
    (&["reward.0.kind=model"], "missing-key", "`reward.0.model` is missing"),
    (&["reward.0.kind=model", "reward.0.model="], "bad-value", "reward.0.model"),
    (&["reward.0.model=m"], "contradictory-keys", "kind = \"exact\" has no model"),
    (
        &[
            "reward=[{kind=\"model\",model=\"a\"},{kind=\"model\",model=\"b\"},{kind=\"model\",model=\"c\"},{kind=\"model\",model=\"d\"},{kind=\"model\",model=\"e\"}]",
        ],
        "bad-value",
        "`reward.4.model`: more than 4 reward models",
    ),
    (&["critic.model=actor"], "contradictory-keys", "method = \"grpo\", which has no critic"),
    (&["method=sft", "critic.value_clip=0.2"], "contradictory-keys", "method = \"sft\", which has no critic"),
    (&["loss.advantage=gae"], "contradictory-keys", "set method = \"ppo\""),
    (&["loss.lambda=0.9"], "contradictory-keys", "loss.lambda = 0.9"),
    (&["method=ppo", "loss.lambda=1.1"], "bad-value", "loss.lambda"),
    (&["method=ppo", "loss.lambda=-0.1"], "bad-value", "a number from 0 to 1"),
    (&["method=ppo", "loss.advantage=rloo"], "contradictory-keys", "its advantage is \"gae\""),
    (&["method=ppo", "critic.model="], "bad-value", "critic.model"),
    (&["method=ppo", "critic.learning_rate=-1"], "bad-value", "critic.learning_rate"),
    (&["method=ppo", "critic.value_clip=nan"], "bad-value", "critic.value_clip"),
    (&["method=ppo", "critic.updates_per_rollout=0"], "bad-value", "at least 1"),
    (&["method=ppo", "critic.updates_per_rollout=9"], "contradictory-keys", "updates_per_rollout = 8"),
    (&["method=ppo", "critic.warmup_steps=61"], "contradictory-keys", "at most 60"),
    (&["method=ppo", "critic.warmup=61"], "unknown-key", "keys of [critic]: model, learning_rate"),
    (&["environment.env=CartPole-v1"], "not-built", "environment"),
    (&["environment.env=text:guess"], "text-environment-unknown", "did you mean text:guess-number?"),
    (&["environment.env=python:game.py"], "text-environment-unknown", "python:FILE.py:CLASS"),
    (&["environment.turns_max=2"], "missing-key", "environment.env"),
    (&["environment.env=text:second-try"], "contradictory-keys", " with [environment], whose episodes"),
    (&["environment.env=text:second-try", "environment.turns=2"], "unknown-key", "turns_max"),
    (&["environment.env=text:second-try", "environment.turns_max=0"], "bad-value", "environment.turns_max"),
    (&["environment.env=text:second-try", "environment.turns_max=3000000"], "bad-value", "4194304"),
    (&["environment.env=text:second-try", "environment.turn_tokens_max=0"], "bad-value", "turn_tokens_max"),
    (&["environment.env=text:second-try", "environment.num_workers=0"], "bad-value", "num_workers"),
    (&["environment.env=text:second-try", "environment.step_timeout_ms=0"], "bad-value", "step_timeout_ms"),
    (
        &["environment.env=text:second-try", "environment.episode_tokens_max=3"],
        "contradictory-keys",
        "one turn",
    ),
    (&["environment.env=text:second-try", "environment.credit=token"], "bad-value", "episode"),
    (
        &["method=sft", "environment.env=text:second-try"],
        "contradictory-keys",
        "method = \"sft\", which samples nothing",
    ),
    (&["run.zero_stage=1"], "not-built", "2, 3 and"),
    (&["run.zero_stage=3", "lora.rank=4", "lora.merge=true"], "not-built", "whole on every rank"),
    (&["run.zero_stage=3", "lora.rank=4", "lora.quantize=nf4"], "not-built", "whole on every rank"),
    (&["memory.offload=[\"gradients\"]"], "not-built", "gradients"),
    (&["memory.offload=[\"weights\"]"], "bad-value", "weights"),
    (&["memory.offload=optimizer"], "bad-type", "\"auto\" or a list"),
    (&["train.micro_batch_tokens=[1]"], "bad-type", "\"auto\" or a whole number"),
    (&["memory.gpu_memory_utilization=0.9"], "not-built", "GPU"),
    (&["data.prompts=[]"], "bad-value", "`data.prompts` is an empty list"),
    (&["data.prompts=3"], "bad-type", "it takes a data set or a list of them"),
    (&["data.prompts=[3]"], "bad-type", "a path, or a table with `path`"),
    (&["data.prompts=[{ path = \"a.jsonl\", wieght = 2 }]"], "unknown-key", "weight"),
    (&["data.prompts=[{ weight = 2 }]"], "missing-key", "data.prompts.0.path"),
    (&["data.prompts=[{ path = \"\" }]"], "bad-value", "data.prompts.0"),
    (&["data.prompts=[{ path = \"a.jsonl\", weight = 0 }]"], "bad-value", "`data.prompts.0.weight` is 0"),
    (&["data.prompts=[{ path = \"a.jsonl\", weight = -1 }]"], "bad-value", "a finite number above 0"),
    (&["data.prompts=[{ path = \"a.jsonl\", weight = nan }]"], "bad-value", "`data.prompts.0.weight` is NaN"),
    (&["data.prompts=[{ path = \"a.jsonl\", weight = inf }]"], "bad-value", "data.prompts.0.weight"),
    (&["data.prompts=[\"x/a.jsonl\", \"y/a.parquet\"]"], "data-same-name", "two sets with the name `a`"),
    (
        &["data.prompts=[{ path = \"a.jsonl\", name = \"a/b\" }]"],
        "bad-value",
        "`data.prompts.0.name` is `a/b`",
    ),
    (&["data.eval=[\"a.jsonl\", \"a.jsonl\"]"], "data-same-name", "data.eval"),
    (&["data.eval=[{ path = \"a.jsonl\", weight = 2 }]"], "contradictory-keys", "data.eval.0.weight"),
    (&["data.pass_rate_min=0.5"], "contradictory-keys", "data.pass_rate_column"),
    (&["data.curriculum=easy-first"], "contradictory-keys", "data.pass_rate_column"),
    (&["data.image_folder=pictures"], "contradictory-keys", "data.images"),
    (&["data.images=prompt"], "contradictory-keys", "column with the prompt"),
    (
        &["data.images=i", "data.image_pixels_min=9", "data.image_pixels_max=8"],
        "contradictory-keys",
        "exchange",
    ),
    (&["data.curriculum=easy"], "bad-value", "easy-first"),
    (&["data.pass_rate_column=p", "data.pass_rate_max=1.5"], "bad-value", "data.pass_rate_max"),
    (
        &["data.pass_rate_column=p", "data.pass_rate_min=0.8", "data.pass_rate_max=0.2"],
        "contradictory-keys",
        "data.pass_rate_min = 0.8 is above",
    ),
    (&["eval.metric=rewrad"], "unknown-metric", "did you mean \"reward\"?"),
    (&["eval.metric=pass_at_2"], "unknown-metric", "it measures reward, pass_at_1"),
    (&["eval.metric=pass_at_1", "data.eval=none"], "unknown-metric", "it measures reward"),
    (&["eval.metric=c/reward", "data.eval=[\"a.jsonl\", \"b.jsonl\"]"], "unknown-metric", "b/pass_at_1"),
    (&["loss.correction=tiss"], "bad-value", "did you mean \"tis\"?"),
    (&["loss.correction_band=[0.5, 2.0]"], "contradictory-keys", "with no loss.correction"),
    (&["loss.correction=tis", "loss.correction_band=[1.2, 2.0]"], "bad-value", "from 0 to 1 and from 1 on"),
    (&["loss.correction=tis", "loss.correction_band=[0.5, inf]"], "bad-value", "correction_band"),
    (&["async.reuse=-1"], "bad-value", "-1"),
    (&["async.reuse=100000"], "bad-value", "a smaller async.reuse"),
    (&["loss.dynamic_sampling=mixed"], "bad-type", "true, false or two numbers"),
    (&["loss.dynamic_sampling=[0.0]"], "bad-value", "a list of 2 numbers"),
    (&["loss.dynamic_sampling=[1.0, 0.0]"], "bad-value", "the smaller first"),
    (&["loss.dynamic_sampling_retries=3"], "contradictory-keys", "keeps every group"),
    (
        &["loss.dynamic_sampling=false", "loss.dynamic_sampling_retries=3"],
        "contradictory-keys",
        "keeps every group",
    ),
    (
        &["method=reinforce", "rollout.group_size=1", "loss.dynamic_sampling=true"],
        "group-too-small",
        "one score a group",
    ),
    (&["loss.kl_unbiased=true"], "contradictory-keys", "loss.kl_coef = 0"),
    (
        &["loss.kl_unbiased=true", "loss.kl_coef=0.1", "loss.kl_in=reward"],
        "contradictory-keys",
        "no gradient",
    ),
    (
        &["loss.policy=grpo"],
        "bad-value",
        "takes ppo, gspo, cispo, sapo, gmpo, dppo_tv, dppo_kl, vespo, reinforce",
    ),
    (
        &["loss.policy=sapo", "loss.clip_high=0.3"],
        "contradictory-keys",
        "loss.policy = \"sapo\", which clips nothing",
    ),
    (
        &["method=vespo", "loss.clip_low=0.3"],
        "contradictory-keys",
        "loss.policy = \"vespo\", which clips nothing",
    ),
    (&["method=gdpo", "loss.overlong_buffer=2"], "contradictory-keys", "compares rewards as they are"),
    (&["method=pass_k", "rollout.group_size=1"], "group-too-small", "nothing to be compared with"),
    (
        &["method=reinforce", "loss.clip_low=0.3"],
        "contradictory-keys",
        "loss.policy = \"reinforce\", which clips nothing",
    ),
    (&["method=gspo", "loss.dual_clip=3"], "contradictory-keys", "loss.policy = \"gspo\""),
    (&["loss.policy=cispo", "loss.clip_low=6"], "contradictory-keys", "absolute"),
    (&["loss.policy=cispo", "loss.epsilon=0.2"], "contradictory-keys", "absolute bounds"),
    (&["loss.mask_hole=zero_value"], "contradictory-keys", "belongs to GAE"),
    (&["reward.0.kind=http:x"], "unknown-reward", "http://HOST"),
    (&["reward.0.kind=http://me:secret@h/r"], "bad-value", "--set reward.0.kind=http://h/r"),
    (&["reward.0.kind=python:f.py"], "unknown-reward", "python:file.py:function"),
    (&["reward.0.kind=json-schema", "reward.0.schema=/no/such.json"], "reward-bad-schema", "reward.0.kind"),
    (&["reward.0.network=maybe"], "bad-value", "takes deny, allow"),
    (&["train.per_device_train_batch_size=4"], "missing-key", "prompt_tokens_max"),
    (&["method=cispo", "loss.epsilon=0.2"], "contradictory-keys", "absolute bounds"),
];

#[test]
fn each_bad_value_is_a_named_usage_error_with_a_hint() {
    for (sets, slug, contains) in BAD {
        let error = load_text(GOOD, sets, &[]).expect_err(&format!("{sets:?}"));
        assert_eq!((error.slug, error.exit), (*slug, Exit::Usage), "{sets:?}: {error}");
        assert!(error.to_string().contains(contains), "{sets:?} lacks {contains}: {error}");
        assert!(!error.hints.is_empty(), "{sets:?}: {error}");
    }
}

#[test]
fn an_error_in_the_file_shows_its_line() {
    for (from, to, slug, contains) in [
        ("group_size = 8", "  grup_size = 8", "unknown-key", "x.toml:7:3: "),
        ("group_size = 8", "  grup_size = 8", "unknown-key", "7 |   grup_size = 8"),
        ("group_size = 8", "group_size = 8\nn = 8", "duplicate-key", "x.toml:8:1: `rollout.n`"),
        ("group_size = 8", "group_size = 8\ngroup_size = 9", "run-file-syntax", "x.toml:8:1: "),
        ("kind = \"exact\"", "kind = exact", "run-file-syntax", "10 | kind = exact"),
        ("[train]", "[train", "run-file-syntax", "x.toml:11:"),
        ("steps = 60", "", "missing-key", "`train.steps` is missing"),
        ("model = \"builtin:nano\"", "", "missing-key", "`model` is missing"),
        ("prompts = \"builtin:addition\"", "", "missing-key", "`data.prompts` is missing"),
        ("[[reward]]\nkind = \"exact\"", "", "missing-key", "`reward` is missing"),
        ("steps = 60", "steps = 1979-05-27", "bad-type", "a date"),
        ("kind = \"exact\"", "kind = \"exact\"\nweight = nan", "bad-value", "x.toml:11:1: `reward.0.weight`"),
        ("kind = \"exact\"", "kind = \"exact\"\nkindd = 1", "unknown-key", "x.toml:11:1: "),
        ("learning_rate = 1e-4", "learning_rate = \"1e-4\"", "bad-type", "x.toml:13:1"),
    ] {
        let error = load_text(&GOOD.replace(from, to), &[], &[]).expect_err(to);
        assert_eq!(error.slug, slug, "{to}: {error}");
        assert!(error.to_string().contains(contains), "{to} lacks {contains}: {error}");
    }
}

#[test]
fn a_file_that_is_no_run_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("first.toml"), GOOD).unwrap();
    std::fs::write(folder.path().join("binary.toml"), [0xffu8, 0xfe, 0]).unwrap();
    std::fs::write(folder.path().join("large.toml"), vec![b'#'; 2 << 20]).unwrap();
    std::process::Command::new("mkfifo").arg(folder.path().join("pipe.toml")).status().unwrap();
    for (name, slug, contains) in [
        ("frist.toml", "run-file-missing", "first.toml?"),
        ("", "run-file-unreadable", ""),
        ("binary.toml", "run-file-syntax", "UTF-8"),
        ("large.toml", "run-file-unreadable", "1 MiB"),
        ("pipe.toml", "run-file-unreadable", "pipe.toml: it is a pipe without a writer"),
    ] {
        let error = load(&folder.path().join(name), &[], std::iter::empty()).expect_err(name);
        assert_eq!((error.slug, error.exit), (slug, Exit::Usage), "{error}");
        assert!(error.to_string().contains(contains), "{error}");
    }
}

#[test]
fn other_methods_take_what_they_need() {
    let sft = "method = \"sft\"\nmodel = \"random:x\"\n[data]\nprompts = \"a.jsonl\"\n[train]\nsteps = 9\nlearning_rate = 1\n";
    let run = load_text(sft, &[], &[]).unwrap().run;
    assert_eq!(
        (RunSpec::new(&run).sequences_per_step(), run.train.learning_rate, run.loss.advantage.clone()),
        (32, 1.0, None)
    );
    assert!(load_text(GOOD, &["method=reinforce", "rollout.group_size=1", "loss.gamma=0.99"], &[]).is_ok());
    let gspo = load_text(GOOD, &["method=gspo"], &[]).unwrap().run;
    assert_eq!(
        (gspo.loss.clip_low, gspo.loss.aggregation),
        (Some(3e-4), Some(plimsoll_algo::aggregation::AggregationKind::SeqMeanTokenMean))
    );
}

#[test]
fn a_critic_has_defaults_and_the_names_of_other_stacks() {
    let loaded = load_text(GOOD, &["method=ppo"], &[]).unwrap();
    let critic = loaded.run.critic.clone().expect("ppo has one");
    assert_eq!(
        (critic.model.as_str(), critic.warmup_steps, critic.value_clip),
        ("actor", Some(0), Some(0.2))
    );
    assert_eq!(critic.learning_rate, Some(loaded.run.train.learning_rate));
    assert_eq!(loaded.provenance.describe("critic.value_clip"), "default of the method");
    assert_eq!(loaded.run.loss.baseline(), plimsoll_algo::advantage::Advantage::Gae);
    let sets = [
        "method=ppo",
        "loss.lam=0.95",
        "critic.cliprange_value=0.5",
        "critic.critic_learning_rate=3e-6",
        "critic.freezing_actor_steps=2",
    ];
    let run = load_text(GOOD, &sets, &[]).unwrap().run;
    let critic = run.critic.expect("ppo has one");
    assert_eq!((run.loss.lambda, critic.value_clip), (0.95, Some(0.5)));
    assert_eq!((critic.learning_rate, critic.warmup_steps), (Some(3e-6), Some(2)));
}

/// Valid keys together with an environment.
const EPISODES: &str = r#"method = "grpo"
model = "builtin:nano"
[environment]
env = "text:second-try"
[rollout]
max_new_tokens = 5
[train]
steps = 60
learning_rate = 1e-5
"#;

#[test]
fn an_environment_stands_in_the_place_of_data_and_rewards() {
    let run =
        load_text(EPISODES, &["environment.turns_max=3", "environment.turn_tokens_max=10"], &[]).unwrap().run;
    let spec = RunSpec::new(&run);
    assert_eq!((spec.turns_max(), spec.response_tokens_max()), (3, 3 * 5 + 2 * 10));
    let shorter = load_text(EPISODES, &["environment.episode_tokens_max=7"], &[]).unwrap().run;
    assert_eq!(RunSpec::new(&shorter).response_tokens_max(), 7);
    for (sets, slug, contains) in [
        (&["reward.0.kind=exact"][..], "contradictory-keys", "gives the reward itself"),
        (&["data.eval=builtin:addition"], "contradictory-keys", "its own seeds"),
        (&["data.overlong=drop"], "contradictory-keys", "data.overlong"),
        (&["async.reuse=1"], "contradictory-keys", "the step that trains on them"),
        (&["loss.dynamic_sampling=true"], "contradictory-keys", "loss.dynamic_sampling"),
        (&["loss.overlong_buffer=2"], "contradictory-keys", "loss.overlong_buffer"),
        (&["environment.env=python:game.py:Game"], "missing-key", "data.prompt_tokens_max"),
        (&["environment.tools=[\"python:a.py:f\"]"], "contradictory-keys", "set env = \"tools\""),
        (&["environment.env=tools"], "missing-key", "environment.tools"),
        (
            &["environment.env=tools", "environment.tools=[\"python:a.py:f\"]"],
            "missing-key",
            "environment.rows",
        ),
    ] {
        let error = load_text(EPISODES, sets, &[]).expect_err(&format!("{sets:?}"));
        assert_eq!((error.slug, error.exit), (slug, Exit::Usage), "{sets:?}: {error}");
        assert!(error.to_string().contains(contains), "{sets:?} lacks {contains}: {error}");
    }
    load_text(EPISODES, &["method=reinforce", "environment.credit=turn"], &[]).unwrap();
}

/// Valid keys of functions of no class.
const FUNCTIONS: [&str; 5] = [
    "environment.env=tools",
    "environment.tools=[\"python:a.py:f\", \"python:b.py:g\"]",
    "environment.rows=rows.jsonl",
    "data.prompt_tokens_max=64",
    "reward.0.kind=python:a.py:score",
];

#[test]
fn functions_of_no_class_are_tools_that_the_runs_rewards_grade() {
    let run = load_text(EPISODES, &FUNCTIONS, &[]).unwrap().run;
    let environment = run.environment.as_ref().unwrap();
    assert!(environment.is_graded() && RunSpec::new(&run).has_rewards());
    assert_eq!(environment.files().collect::<Vec<_>>(), ["a.py", "b.py"]);
    let tools = environment.host_settings(&run.data).tools;
    assert_eq!((tools[1].file.as_path(), tools[1].function.as_str()), (std::path::Path::new("b.py"), "g"));
    for (more, slug, contains) in [
        ("environment.tools=[\"a.py:f\"]", "bad-value", "python:FILE.py:FUNCTION"),
        ("environment.tools=[\"python:a.py\"]", "bad-value", "python:FILE.py:FUNCTION"),
        ("environment.tools=f", "bad-type", "environment.tools"),
        ("environment.tools=[\"mcp:\"]", "bad-value", "mcp:COMMAND"),
        ("environment.tools=[\"mcp:http://h/mcp\"]", "contradictory-keys", "environment.network = \"allow\""),
        (
            "environment.tools=[\"python:a.py:f\", \"python:b.py:f\"]",
            "contradictory-keys",
            "two of `environment.tools` are called `f`",
        ),
        ("reward.0.kind=model", "contradictory-keys", "a reward model cannot read"),
        ("environment.rows=", "missing-key", "environment.rows"),
        ("environment.rows=builtin:addition", "bad-value", "a JSONL or Parquet file, or hf:org/name"),
        ("environment.eval_rows=", "bad-value", "environment.eval_rows"),
        ("data.prompts=builtin:addition", "contradictory-keys", "their own prompts"),
    ] {
        let error = load_text(EPISODES, &[&FUNCTIONS[..], &[more]].concat(), &[]).expect_err(more);
        assert_eq!((error.slug, error.exit), (slug, Exit::Usage), "{more}: {error}");
        assert!(error.to_string().contains(contains), "{more} lacks {contains}: {error}");
    }
    let error = load_text(EPISODES, &FUNCTIONS[..4], &[]).unwrap_err();
    assert!(error.slug == "missing-key" && error.to_string().contains("[[reward]] grades"), "{error}");
    let many: Vec<String> = (0..65).map(|n| format!("\"python:a.py:f{n}\"")).collect();
    let many = format!("environment.tools=[{}]", many.join(", "));
    let error = load_text(EPISODES, &[&FUNCTIONS[..], &[&many]].concat(), &[]).unwrap_err();
    assert!(error.to_string().contains("at most 64"), "{error}");
    let servers = "environment.tools=[\"mcp:uvx time\", \"python:a.py:f\", \"mcp:https://h/mcp\"]";
    let more = [&FUNCTIONS[..], &[servers, "environment.network=allow"]].concat();
    let run = load_text(EPISODES, &more, &[]).unwrap().run;
    let settings = run.environment.as_ref().unwrap().host_settings(&run.data);
    assert_eq!(
        (settings.servers.len(), settings.servers[0].as_str(), settings.tools.len()),
        (2, "uvx time", 1)
    );
    // A class may have functions next to its methods.
    let class = ["environment.env=python:a.py:Class", FUNCTIONS[1], FUNCTIONS[3]];
    load_text(EPISODES, &class, &[]).unwrap();
}
