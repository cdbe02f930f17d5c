//! Adapters of scoring models: a reward model trained, exported and used; PPO's critic over the actor's weights.

use crate::common::{check_refused, every_nth};
use crate::ranks::left;
use crate::run::{Run, json as printed, number, region};
use plimsoll_files::{ADAPTER_SCORE, OpenModel};
use serde_json::{Value, json};
use std::fs;

const FIRST_REWARD_MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/first-reward-model.toml");

const REWARD_MODEL: &str = r#"method = "reward_model"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 16
[lora]
rank = 4
[train]
steps = 4
learning_rate = 1e-3
[eval]
prompts_max = 40
[checkpoint]
every = 1
keep = 4
"#;

const PPO: &str = r#"method = "ppo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 4
group_size = 2
max_new_tokens = 5
[[reward]]
kind = "exact"
[lora]
rank = 4
critic = "adapter"
[critic]
learning_rate = 3e-3
[train]
steps = 4
learning_rate = 1e-3
[eval]
prompts_max = 20
[checkpoint]
every = 1
keep = 4
"#;

const LATEST: &str = "checkpoints/latest";
const WEIGHTS: &str = "adapter_model.safetensors";

/// Returns what a reward model's run has learnt.
fn result(folder: &Run, dir: &str) -> [Vec<u8>; 2] {
    [WEIGHTS, "state/optimizer.safetensors"].map(|file| folder.saved(dir, file))
}

/// Returns what a PPO run has learnt.
fn both(folder: &Run, dir: &str) -> [Vec<u8>; 4] {
    let files = ["state/critic.safetensors", "state/critic_optimizer.safetensors"];
    let [critic, states] = files.map(|file| folder.saved(dir, file));
    let [actor, of_actor] = result(folder, dir);
    [actor, of_actor, critic, states]
}

fn bytes(plan: &Value, name: &str) -> f64 {
    number(region(plan, name).unwrap_or_else(|| panic!("no {name}")), "bytes")
}

/// Writes a run whose reward is a model, and returns it.
fn scored_by(folder: &Run, name: &str, models: &[&str]) -> Run {
    let table = |model: &&str| format!("[[reward]]\nkind = \"model\"\nmodel = \"{model}\"\n");
    let rewards: String = models.iter().map(table).collect();
    let run = PPO.replace("\"ppo\"", "\"grpo\"").replace("critic = \"adapter\"\n", "");
    let run = run.replace("[critic]\nlearning_rate = 3e-3\n", "");
    folder.write(name, &run.replace("[[reward]]\nkind = \"exact\"\n", &rewards));
    folder.file(name)
}

#[test]
fn a_reward_model_trains_an_adapter_and_a_head() {
    let folder = Run::new(&fs::read_to_string(FIRST_REWARD_MODEL).expect("a recipe"));
    let sets = ["lora={}", "train.steps=3", "train.warmup_steps=1", "eval.prompts_max=20"];
    let summary = folder.summary("out", &sets);
    assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
    let config = folder.read_json(&format!("out/{LATEST}/adapter_config.json"));
    assert_eq!((&config["task_type"], &config["modules_to_save"]), (&json!("SEQ_CLS"), &json!(["score"])));
    assert_eq!(config["base_model_name_or_path"], "builtin:nano");
    let head = format!("\"{ADAPTER_SCORE}\"");
    let saved = folder.saved("out", WEIGHTS);
    assert!(saved.windows(head.len()).any(|part| part == head.as_bytes()), "no {ADAPTER_SCORE}");
    let files = fs::read_dir(folder.path(&format!("out/{LATEST}"))).expect("a folder");
    assert!(files.flatten().all(|file| file.file_name() != "model.safetensors"));
}

#[test]
fn a_reward_model_s_adapter_goes_on_and_is_dealt_to_ranks_bit_for_bit() {
    let folder = Run::new(REWARD_MODEL);
    for (_, (name, sets)) in every_nth(
        2,
        [
            ("bf16", &["train.cut_multiple=4"][..]),
            (
                "f32",
                &[
                    "model_options.dtype=f32",
                    "train.cut_multiple=4",
                    "lora.targets=[\"q_proj\", \"down_proj\"]",
                ],
            ),
            ("merged", &["lora.merge=true", "train.cut_multiple=4"]),
            ("coded", &["lora.quantize=nf4", "train.cut_multiple=4", "train.recompute=layer"]),
        ],
    ) {
        let (long, short) = (format!("{name}-long"), format!("{name}-short"));
        folder.train(&long, sets);
        folder.train(&short, &[sets, &["train.steps=2"]].concat());
        let said = folder.train(&short, &[sets, &["--resume"]].concat());
        assert!(said.starts_with("resumes after step 2 from "), "{name}: {said}");
        assert!(result(&folder, &long) == result(&folder, &short), "{name}: other bits");
        let two = format!("{name}-ranks");
        folder.train(&two, &[sets, &["--ranks=2"]].concat());
        assert_eq!(left(&folder, &long), left(&folder, &two), "{name} on two ranks");
        // Half the run on two ranks, the rest on one.
        let less = format!("{name}-less");
        folder.train(&less, &[sets, &["--ranks=2", "train.steps=1"]].concat());
        folder.train(&less, &[sets, &["--resume"]].concat());
        assert!(result(&folder, &less) == result(&folder, &long), "{name}: other bits after two ranks");
        // Not over other weights.
        let state = folder.read_json(&format!("{short}/{LATEST}/state/state.json"));
        assert!(state["roles"]["reward"]["frozen"].is_string(), "{name}: {state}");
    }
}

#[test]
fn an_adapter_scores_as_a_reward_in_runs_and_in_eval() {
    let folder = Run::new(REWARD_MODEL);
    folder.train("rm", &["lora.targets=[\"q_proj\", \"v_proj\"]"]);
    folder.train("other", &["seed=1", "lora.rank=8", "lora.quantize=nf4"]);
    let [first, second] = ["rm", "other"].map(|dir| folder.text_path(&format!("{dir}/{LATEST}")));
    let run = scored_by(&folder, "both.toml", &[&first, &second]);
    let plan = run.plan(&[]);
    assert!(bytes(&plan, "reward.adapters") < 0.1 * bytes(&plan, "reward.weights"), "{plan}");
    assert!(bytes(&plan, "reward2.codes") > 0.0 && bytes(&plan, "reward2.adapters") > 0.0);
    let summary = run.summary("long", &[]);
    assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"]);
    run.train("short", &["train.steps=2"]);
    run.train("short", &["--resume"]);
    assert!(result(&folder, "long") == result(&folder, "short"), "other bits");
    run.train("ranks", &["--ranks=2"]);
    assert!(result(&folder, "long") == result(&folder, "ranks"), "other bits on two ranks");
    // `eval` gives the run's own number, and a merged copy nearly the same.
    let alone = scored_by(&folder, "alone.toml", &[&first]);
    let in_run = alone.summary("alone", &["train.steps=1"]);
    let eval = |model: &str| {
        let args = ["eval", "--model", "builtin:nano", "--data", "builtin:addition", "--prompts-max", "20"];
        printed(&[&args[..], &["--max-new-tokens", "5", "--json", "--reward-model", model]].concat())
    };
    let found = eval(&first);
    assert!(number(&found, "score") != 0.0, "{found}");
    assert_eq!(found["score"], in_run["eval_before"], "{found}");
    // Another adapter in its place is not what the run began with.
    let weights = folder.path(&format!("rm/{LATEST}/{WEIGHTS}"));
    let good = fs::read(&weights).expect("a file");
    let mut bad = good.clone();
    *bad.last_mut().expect("bytes") ^= 1;
    fs::write(&weights, &bad).expect("a file");
    let differs = ["error[resume-differs]: ", "the reward model", "what scores responses"];
    run.train_fails("long", &["--resume", "train.steps=5"], 1, &differs);
}

#[test]
fn a_reward_model_s_adapter_is_exported_merged_and_trained_on() {
    let folder = Run::new(REWARD_MODEL);
    folder.write("whole.toml", &REWARD_MODEL.replace("[lora]\nrank = 4\n", ""));
    let f32 = "model_options.dtype=f32";
    folder.file("whole.toml").train("whole", &[f32, "train.steps=1"]);
    let base = folder.text_path("base");
    printed(&["checkpoint", "export", &folder.text_path("whole"), "--to", &base, "--json"]);
    // A reward model's head goes on; that of the base is not what is scored with.
    let model = format!("model={base}");
    let summary = folder.summary("first", &[&model, f32]);
    let [run, merged] = ["first", "merged"].map(|name| folder.text_path(name));
    let said = printed(&["checkpoint", "export", &run, "--merge", "--to", &merged, "--json"]);
    assert!(said.to_string().contains("tensors"), "{said}");
    let opened = OpenModel::open(&merged, None, false).expect("a model");
    plimsoll_files::check_against(&opened).expect("a whole reward model");
    assert_eq!(opened.head, plimsoll_files::Head::Score);
    // The merged model scores as the adapter did.
    let again = folder.file("whole.toml");
    let summary_of = again.summary("again", &[&format!("model={merged}"), f32, "train.steps=1"]);
    let (then, now) = (number(&summary, "eval_after"), number(&summary_of, "eval_before"));
    assert!((then - now).abs() < 0.051, "{then} and {now}");
    // The adapter is trained on, with its head.
    let adapter = folder.text_path(&format!("first/{LATEST}"));
    let on = folder.summary("on", &[&format!("model={adapter}"), f32, "train.steps=1"]);
    assert_eq!(on["eval_before"], summary["eval_after"]);
    let on = folder.summary("from", &[&model, f32, &format!("lora.adapter={adapter}"), "train.steps=1"]);
    assert_eq!(on["eval_before"], summary["eval_after"]);
    // It predicts no tokens, and GGUF files have no such head.
    folder.write("ppo.toml", &PPO.replace("critic = \"adapter\"\n", ""));
    let policy = folder.file("ppo.toml");
    let differs = ["error[adapter-differs]: ", "adapter of a reward model"];
    policy.check_train(&["model=builtin:nano", &format!("lora.adapter={adapter}")], 2, &differs);
    policy.check_train(&[&format!("model={adapter}")], 1, &["error[model-unsupported]: ", "it scores"]);
    let gguf = folder.text_path("merged.gguf");
    let args = ["checkpoint", "export", &run, "--merge", "--format", "gguf", "--to", &gguf];
    check_refused(&args, 1, &["error[model-unsupported]: ", "a reward model"]);
}

#[test]
fn a_critic_s_adapter_lies_over_the_weights_of_the_actor() {
    let folder = Run::new(PPO);
    let [plan, full] = [folder.plan(&[]), folder.plan(&["lora.critic=full"])];
    assert!(region(&plan, "critic.weights").is_none(), "a second copy of the weights");
    assert_eq!(bytes(&plan, "actor.weights"), bytes(&full, "actor.weights"));
    assert!(bytes(&plan, "critic.adapters") < 0.1 * bytes(&full, "critic.weights"));
    for row in ["grads", "master", "adam_m", "adam_v"].map(|part| format!("critic.{part}")) {
        assert!(bytes(&plan, &row) < 0.1 * bytes(&full, &row), "{row}");
    }
    // The head comes on top of what the actor's adapters take.
    assert!(bytes(&plan, "critic.adapters") > bytes(&plan, "actor.adapters"));
    assert!(region(&plan, "critic.adapt.qkv").is_some() && region(&full, "critic.adapt.qkv").is_none());
    // Merged weights are the actor's alone, and codes are shared too.
    let merged = folder.plan(&["lora.merge=true"]);
    assert!(region(&merged, "actor.merged").is_some() && region(&merged, "critic.merged").is_none());
    let coded = folder.plan(&["lora.quantize=nf4"]);
    assert!(region(&coded, "actor.codes").is_some() && region(&coded, "critic.codes").is_none());
    // Another model has frozen weights of its own.
    let own = folder.plan(&["critic.model=random:nano"]);
    assert!(region(&own, "critic.weights").is_some() && region(&own, "critic.adapters").is_some());
    let coded = folder.plan(&["critic.model=random:nano", "lora.quantize=nf4"]);
    assert_eq!(bytes(&coded, "critic.codes"), bytes(&coded, "actor.codes"));
    // Of which an adapter must be one too.
    let narrow =
        ["model=random:smollm2-360m", "critic.model=random:smollm2-135m", "data.prompt_tokens_max=16"];
    let refused = ["error[lora-unsupported]: lora.rank = 200", "k_proj [192, 576]", "it is critic.model"];
    folder.plan_refused(&[&narrow[..], &["lora.rank=200", "data.eval=none"]].concat(), 2, &refused);
    folder.plan_refused(&["method=grpo"], 2, &["error[contradictory-keys]: "]);
}

#[test]
fn a_critic_s_adapter_goes_on_and_is_dealt_to_ranks_bit_for_bit() {
    let folder = Run::new(PPO);
    for (_, (name, sets)) in every_nth(
        2,
        [
            ("kl", &["loss.kl_coef=0.05", "critic.warmup_steps=1", "train.cut_multiple=4"][..]),
            ("merged", &["lora.merge=true", "train.cut_multiple=4"]),
            ("coded", &["lora.quantize=nf4", "train.cut_multiple=4"]),
            ("own", &["critic.model=random:nano", "train.cut_multiple=4"]),
        ],
    ) {
        let (long, short) = (format!("{name}-long"), format!("{name}-short"));
        let summary = folder.summary(&long, sets);
        assert_eq!(summary["arena_planned_bytes"], summary["arena_used_bytes"], "{name}");
        folder.train(&short, &[sets, &["train.steps=2"]].concat());
        folder.train(&short, &[sets, &["--resume"]].concat());
        assert!(both(&folder, &long) == both(&folder, &short), "{name}: other bits");
        let two = format!("{name}-ranks");
        folder.train(&two, &[sets, &["--ranks=2"]].concat());
        assert!(both(&folder, &long) == both(&folder, &two), "{name}: other bits on two ranks");
        assert_eq!(left(&folder, &long), left(&folder, &two), "{name} on two ranks");
        // A critic of all weights is another run.
        let full = [sets, &["--resume", "lora.critic=full"]].concat();
        folder.train_refused(&short, &full, 2, &["error[run-file-changed]: "]);
    }
    // Its adapter does not begin as the actor's, and the critic of all weights keeps its bits.
    folder.train("alone", &["train.steps=1"]);
    let actor = folder.text_path(&format!("alone/{LATEST}"));
    folder.train("on", &[&format!("model={actor}"), "train.steps=1", "train.learning_rate=0"]);
    let on = folder.saved("on", WEIGHTS);
    assert!(on == folder.saved("alone", WEIGHTS), "a rate of 0 changes no adapter");
}
