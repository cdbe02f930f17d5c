//! Converts what needs several of ms-swift's options together. Its trainers are TRL's, with defaults and rewards of its
//! own.

use crate::import::draft::{Draft, Job, quoted};
use crate::import::parts;
use crate::setting::{flag, integer, list, number};
use crate::table::Take::{Later, Lost, Number};
use crate::table::why;
use crate::trl;
use crate::unbuilt::Unbuilt;
use plimsoll_base::Result;

/// (name, value) of ms-swift's own defaults, for every trainer.
macro_rules! defaults {
    ($($more:expr),* $(,)?) => {
        &[
            ("per_device_train_batch_size", "1"),
            ("num_train_epochs", "3"),
            ("lr_scheduler_type", "cosine"),
            ("weight_decay", "0.1"),
            ("adam_beta1", "0.9"),
            ("adam_beta2", "0.95"),
            ("tuner_type", "lora"),
            $($more),*
        ]
    };
}

/// A job of TRL's trainer of pairs, with this stack's name and defaults.
macro_rules! job_of_pairs {
    ($job:ident, $trainer:literal $(, $more:expr)*) => {
        Job {
            trainers: &[$trainer],
            of: OF,
            defaults: defaults![$($more),*],
            combine: |draft| pairs(draft, trl::pairs::$job.combine),
            ..trl::pairs::$job
        }
    };
}

const OF: Option<&str> = Some("ms-swift");

pub(super) const JOBS: &[Job] = &[
    Job {
        trainers: &["sft", "pt"],
        of: OF,
        defaults: defaults![("loss_scale", "default")],
        takes: &[("packing", Later), ("beta", Lost("the loss of SFT has no such factor"))],
        combine: sft,
    },
    job_of_pairs!(DPO, "dpo", ("beta", "0.1"), ("loss_type", "sigmoid")),
    job_of_pairs!(
        CPO,
        "cpo",
        ("beta", "0.1"),
        ("loss_type", "sigmoid"),
        ("cpo_alpha", "1.0"),
        ("simpo_gamma", "1.0")
    ),
    job_of_pairs!(
        CPO,
        "simpo",
        ("beta", "2.0"),
        ("loss_type", "simpo"),
        ("cpo_alpha", "1.0"),
        ("simpo_gamma", "1.0")
    ),
    job_of_pairs!(ORPO, "orpo", ("beta", "0.1")),
    job_of_pairs!(
        KTO,
        "kto",
        ("beta", "0.1"),
        ("loss_type", "kto"),
        ("desirable_weight", "1.0"),
        ("undesirable_weight", "1.0")
    ),
    job_of_pairs!(REWARD, "rm"),
    Job {
        trainers: &["grpo"],
        of: OF,
        defaults: defaults![
            ("gradient_accumulation_steps", "1"),
            ("max_completion_length", "512"),
            ("num_generations", "8"),
            ("temperature", "0.9"),
            ("beta", "0.04"),
            ("loss_type", "grpo"),
            ("scale_rewards", "group"),
        ],
        takes: &[("beta", Number("loss.kl_coef"))],
        combine: grpo,
    },
];

fn sft(draft: &mut Draft) -> Result<()> {
    draft.set_text("method", "sft", "swift sft");
    if let Some(taken) = draft.take("trainer").filter(|taken| taken.value == "pt") {
        draft.is_not_built(&taken, Unbuilt::PlainText);
    }
    if let Some(taken) = draft.take_text("loss_scale") {
        match taken.value.as_str() {
            "default" => draft.set_text("data.train_on", "assistant", &taken.from),
            "last_round" => {}
            "all" => draft.is_not_built(&taken, Unbuilt::PlainText),
            _ => draft.is_not_built(&taken, Unbuilt::Objective),
        }
    }
    if let Some(taken) = draft.take_text("loss_type") {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
    accumulation(draft);
    trl::pairs::data_alone(draft, 1);
    trl::pairs::packs(draft);
    common(draft);
    Ok(())
}

fn pairs(draft: &mut Draft, combine: fn(&mut Draft) -> Result<()>) -> Result<()> {
    if let Some(taken) = draft.take_text("loss_scale").filter(|taken| taken.value != "last_round") {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
    accumulation(draft);
    combine(draft)?;
    common(draft);
    Ok(())
}

fn grpo(draft: &mut Draft) -> Result<()> {
    rewards(draft);
    let scale = draft.take_text("scale_rewards");
    let is_gdpo = scale.as_ref().is_some_and(|taken| taken.value == "gdpo");
    if let Some(taken) =
        draft.take_text("loss_type").filter(|taken| ["real", "fipo"].contains(&taken.value.as_str()))
    {
        return Err(Draft::no_method(&taken));
    }
    (trl::import::GRPO.combine)(draft)?;
    if let Some(taken) = scale.filter(|_| is_gdpo) {
        draft.set_text("loss.advantage", "decoupled", &taken.from);
        draft.change(&taken, "each reward is divided by its own deviation in the group, as there");
    }
    estimator(draft);
    let (on, times) = (draft.is_on("dynamic_sample"), draft.take_count("max_resample_times"));
    match (on, times) {
        (true, times) => {
            draft.set_toml("loss.dynamic_sampling", "true", "dynamic_sample");
            let (count, from) = times
                .map_or((3, "default of ms-swift: max_resample_times".to_string()), |(count, taken)| {
                    (count, taken.from)
                });
            draft.set_toml("loss.dynamic_sampling_retries", count, &from);
        }
        (false, Some((_, taken))) => draft.leave(&taken, why::OFF),
        (false, None) => {}
    }
    if let Some(taken) = draft.take_text("stop_words") {
        let stops: Vec<String> = list(&taken.value).iter().map(|stop| quoted(stop)).collect();
        draft.set_toml("rollout.stop", format!("[{}]", stops.join(", ")), &taken.from);
    }
    // Its `max_length` bounds the prompt.
    if let Some((tokens, taken)) = draft.take_count("max_length") {
        draft.set_toml("data.prompt_tokens_max", tokens, &taken.from);
    }
    if let Some(taken) = draft.take_text("truncation_strategy") {
        match taken.value.as_str() {
            "delete" => draft.set_text("data.overlong", "drop", &taken.from),
            "left" => draft.set_text("data.overlong", "truncate-left", &taken.from),
            _ => draft.leave(&taken, "prompts keep their last tokens here, or are dropped"),
        }
    }
    common(draft);
    Ok(())
}

/// Converts the estimator: RLOO and REINFORCE++ have their KL term in the reward.
fn estimator(draft: &mut Draft) {
    let in_reward = draft.take("kl_in_reward");
    let Some(taken) = draft.take_text("advantage_estimator") else {
        if let Some(taken) = in_reward.filter(|taken| flag(&taken.value) == Some(true)) {
            draft.is_not_built(&taken, Unbuilt::Objective);
        }
        return;
    };
    match taken.value.as_str() {
        "grpo" => {}
        "rloo" if draft.get("method") == Some("\"grpo\"") => {
            draft.set_text("method", "rloo", &taken.from);
            draft.drop_line("loss.advantage");
            if in_reward.is_none_or(|taken| flag(&taken.value) != Some(false)) {
                draft.set_text("loss.kl_in", "reward", "as RLOO has it in ms-swift");
                draft.set_text("loss.kl_estimator", "k1", "as RLOO has it in ms-swift");
            }
            draft.choose(parts::BOUNDED);
        }
        // Within a group the deviation of rewards less their mean is that of the rewards, and without one the mean
        // alone counts: GRPO's. By default it is the deviation of a batch, of rewards less those of their group.
        "reinforce_plus_plus" if draft.is_written("scale_rewards") => {
            if in_reward.is_none_or(|taken| flag(&taken.value) != Some(false)) {
                draft.set_text("loss.kl_in", "reward", "as REINFORCE++ has it in ms-swift");
                draft.set_text("loss.kl_estimator", "k1", "as REINFORCE++ has it in ms-swift");
            }
        }
        _ => draft.is_not_built(&taken, Unbuilt::Objective),
    }
}

/// Writes accumulation where the file is silent: as many as make 16 rows on all cards.
fn accumulation(draft: &mut Draft) {
    if draft.has("gradient_accumulation_steps") {
        return;
    }
    let device = draft.take_count("per_device_train_batch_size").map_or(1, |(count, _)| count);
    let processes = draft.take_count("num_processes").map_or(1, |(count, _)| count);
    let count = 16_i64.div_euclid(device.saturating_mul(processes).max(1)).max(1);
    draft.give("gradient_accumulation_steps", &count.to_string());
}

/// Adds ms-swift's rewards by their names; those of a plugin are classes there.
fn rewards(draft: &mut Draft) {
    let file = draft.take_text("external_plugins").map(|taken| taken.value);
    let Some(taken) = draft.take_text("names_of_rewards") else { return };
    let names = list(&taken.value);
    let longest = draft.take_text("soft_max_length").and_then(|taken| integer(&taken.value));
    let buffer = draft.take_text("soft_cache_length").and_then(|taken| integer(&taken.value));
    for name in &names {
        match (name.as_str(), buffer) {
            ("accuracy", _) => {
                let lines = vec![("kind", quoted("math")), ("answer_column", quoted("solution"))];
                draft.add_reward(&taken.from, lines);
            }
            ("format", _) => {
                let kind = quoted(r"regex:(?s)^<think>.*?</think>\s*<answer>.*?</answer>$");
                draft.add_reward(&taken.from, vec![("kind", kind)]);
            }
            ("soft_overlong", Some(buffer)) => {
                let lines = vec![("kind", quoted("length")), ("overlong_buffer", buffer.to_string())];
                draft.add_reward(&taken.from, lines);
                if longest.is_some() && longest != draft.count("rollout.max_new_tokens") {
                    draft.change(&taken, "soft_overlong counts back from soft_max_length there, from rollout.max_new_tokens here");
                }
            }
            (name, _) => {
                let place = file.as_deref().unwrap_or("ms-swift");
                let why =
                    format!("`{name}` is a class of {place}, which is called with its completions there");
                parts::miss_reward(draft, &why, parts::REWARD);
            }
        }
    }
    if let Some(weights) = draft.take_text("weights_of_rewards") {
        let values: Vec<f64> = list(&weights.value).iter().filter_map(|text| number(text)).collect();
        if values.len() == names.len() {
            parts::weigh_rewards(draft, &values, &weights.from)
        } else {
            draft.leave(&weights, "it is not one weight for each reward")
        }
    }
}

/// Converts what all trainers share and TRL has no option for.
fn common(draft: &mut Draft) {
    // Every row is written by the model's template there.
    if draft.take_text("use_chat_template").is_none_or(|taken| flag(&taken.value) != Some(false)) {
        draft.drop_line("data.chat_template");
    }
    if let Some(taken) = draft.take_text("system") {
        if taken.value.ends_with(".txt") {
            draft.leave(&taken, "a file: write its text as data.system_prompt")
        } else {
            draft.set_text("data.system_prompt", &taken.value, &taken.from)
        }
    }
    if let Some(taken) = draft.take_text("task_type").filter(|taken| taken.value != "causal_lm") {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
    if let Some(taken) = draft.take_text("tuner_type").filter(|taken| taken.value != "lora") {
        draft.is_not_built(&taken, Unbuilt::Adapters);
    }
    if let Some(taken) = draft.take_text("init_weights").filter(|taken| flag(&taken.value) != Some(true)) {
        draft.is_not_built(&taken, Unbuilt::Adapters);
    }
    let method = draft.take_text("quant_method").map(|taken| taken.value);
    if let Some(taken) = draft.take_text("quant_bits")
        && (taken.value != "4" || method.is_some_and(|method| method != "bnb"))
    {
        draft.is_not_built(&taken, Unbuilt::Quantisation);
    }
    if let Some((share, taken)) = draft.take_number("split_dataset_ratio")
        && share != 0.0
    {
        draft.leave(&taken, "rows that are held out of the data there: write them to a file of their own, and name it as data.eval");
    }
    if draft.get("train.learning_rate").is_none() {
        let rate = if draft.has("tuner_type") { "1e-4" } else { "1e-5" };
        draft.set_toml("train.learning_rate", rate, "default of ms-swift, by tuner_type");
    }
    let is_hub = draft.take("use_hf").is_some_and(|taken| flag(&taken.value) == Some(true))
        || draft.variable("USE_HF").is_some_and(|value| flag(value) == Some(true));
    if !is_hub {
        draft.choose("names of models and data sets are those of ModelScope there, and of the Hugging Face hub here: check that each is the same one; `#N` of a data set, its first N rows, is not carried over");
    }
}
