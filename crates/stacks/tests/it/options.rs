//! One table a stack: what `import` knows of an option the plan knows too, and the other way round.

use super::plans::plan_of;
use plimsoll_stacks::{STACKS, Setting, Stack, Wishes, find, translate};

/// Options that every stack has a row for, so that its file counts as one; the plan needs the model.
fn base(stack: &Stack) -> Vec<Setting> {
    let (key, value) = match stack.name {
        "openrlhf" | "orz" => ("pretrain", "Qwen/Qwen2.5-0.5B"),
        "verl" => ("actor_rollout_ref.model.path", "Qwen/Qwen2.5-0.5B"),
        "trl" => ("model_name_or_path", "Qwen/Qwen2.5-0.5B"),
        "axolotl" => ("base_model", "Qwen/Qwen2.5-0.5B"),
        "prime-rl" => ("model.name", "Qwen/Qwen2.5-0.5B"),
        "swift" => ("model", "Qwen/Qwen2.5-0.5B"),
        "slime" => ("hf_checkpoint", "Qwen/Qwen2.5-0.5B"),
        "skyrl" => ("trainer.policy.model.path", "Qwen/Qwen2.5-0.5B"),
        _ => ("num_workers", "4"),
    };
    let mut settings = vec![Setting::new(key, value, 1)];
    // Keys alone do not say which trainer they are for.
    let trainer = match stack.name {
        "trl" | "axolotl" | "swift" => Some("grpo"),
        "prime-rl" | "slime" => Some("rl"),
        "skyrl" => Some("main_base"),
        _ => None,
    };
    settings.extend(trainer.map(|name| Setting::new("trainer", name, 1)));
    settings
}

/// Whether the plan knows `key`: it is not listed as unknown, or a rule has read it and refused its value.
fn plan_knows(stack: &'static Stack, key: &str) -> bool {
    let mut settings = base(stack);
    settings.push(Setting::new(key, "1", 2));
    match plan_of(stack, settings, None) {
        Ok(plan) => plan.to_json()["unknown_options"] == serde_json::json!([]),
        Err(error) => {
            let slugs = ["run-settings-contradict", "run-model-unknown", "run-trainer-not-planned"];
            assert!(slugs.contains(&error.slug), "{key}: {error}");
            true
        }
    }
}

/// True if `import` reports what `key` became: a line of the run file, a reason against it, or what is not built.
fn import_knows(stack: &'static Stack, key: &str) -> bool {
    let mut settings = base(stack);
    settings.push(Setting::new(key, "1", 2));
    match translate(stack, settings, "x.sh", &Wishes { all: true, ..Wishes::default() }) {
        Ok(imported) => {
            let run_file = imported.expect("a file of this stack").run_file;
            run_file.split([' ', '\n', ',', ':']).any(|word| word == key)
        }
        Err(error) => ["import-no-method", "import-not-built"].contains(&error.slug),
    }
}

#[test]
fn every_name_that_one_knows_the_other_knows() {
    let mut wrong = Vec::new();
    for stack in STACKS {
        let names: Vec<&str> = stack.options().collect();
        assert!(names.len() > 40, "{stack:?} has {} names", names.len());
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{stack:?} has {name} twice");
            if stack.is_planned() && !plan_knows(stack, name) {
                wrong.push(format!("{stack:?}: the plan does not know {name}"));
            }
            if stack.imported_file().is_some() && !import_knows(stack, name) {
                wrong.push(format!("{stack:?}: import does not know {name}"));
            }
        }
        assert!(!stack.is_planned() || !plan_knows(stack, "frobnicate"));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// 4 sequences of 512 + 3072 tokens a backward pass, under either spelling; without the limit a prompt has 1024 tokens.
#[test]
fn r_the_plan_lost_the_dotted_limit_of_a_prompt() {
    let stack = find("openrlhf").expect("a stack");
    let flat = ["prompt_max_len", "generate_max_len", "pretrain"];
    let dotted = ["data.prompt_max_len", "rollout.max_new_tokens", "actor.model_name_or_path"];
    for [prompt, response, model] in [flat, dotted] {
        let settings = [(prompt, "512"), (response, "3072"), (model, "Qwen/Qwen2.5-0.5B")];
        let settings = settings.map(|(key, value)| Setting::new(key, value, 1)).to_vec();
        let plan = plan_of(stack, settings, None).expect("a plan");
        let rows = plan.items().iter();
        let logits: Vec<u128> = rows.filter(|row| row.name == "logits").map(|row| row.bytes).collect();
        let micro = if prompt == flat[0] { 4 } else { 1 };
        assert_eq!(logits[0], micro * (512 + 3072) * 151_936 * 10, "{prompt}");
        assert_eq!(plan.to_json()["unknown_options"], serde_json::json!([]), "{prompt}");
    }
}

/// TRL's flags and peft's `LoraConfig` describe one adapter, without weights, gradients or states of the model.
#[test]
fn a_lora_config_is_planned_as_the_flag_is() {
    let stack = find("trl").expect("a stack");
    let peak = |more: Option<(&str, &str)>| {
        let more = more.map(|(key, value)| Setting::new(key, value, 2));
        let plan = plan_of(stack, base(stack).into_iter().chain(more).collect(), None).expect("a plan");
        plan.items().iter().map(|row| row.bytes).sum::<u128>()
    };
    let (all, flag) = (peak(None), peak(Some(("use_peft", "True"))));
    assert!(flag < all, "{flag} of {all}");
    assert_eq!(peak(Some(("peft_config.peft_type", "LORA"))), flag);
}
