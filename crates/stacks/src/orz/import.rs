//! Converts what needs several of Open-Reasoner-Zero's options together: method, updates per step, KL term.

use crate::import::draft::{Draft, Import, Job, quoted};
use crate::import::{data, parts};
use crate::setting::{flag, list};
use crate::table::why;
use plimsoll_base::Result;

pub(super) static IMPORT: Import = Import {
    title: "Open-Reasoner-Zero",
    file: "Python with a class of `key: type = value` lines",
    adapter: None,
    images: None,
    jobs: &[Job {
        trainers: &["ppo"],
        of: None,
        defaults: &[
            ("use_grpo", "False"),
            ("actor_learning_rate", "1e-6"),
            ("critic_learning_rate", "5e-6"),
            ("rollout_batch_size", "128"),
            ("n_samples_per_prompt", "64"),
            ("generate_max_len", "8000"),
            ("advantage_normalize", "True"),
        ],
        takes: &[],
        combine,
    }],
    nearest: &[],
};

const DATA: data::Of = data::Of {
    prompts: "prompt_data",
    eval: "eval_prompt_data",
    weights: Some("prompt_data_probs"),
    subset: None,
    splits: [None, None],
};

fn combine(draft: &mut Draft) -> Result<()> {
    let is_grpo = draft.is_on("use_grpo");
    draft.set_text("method", if is_grpo { "grpo" } else { "ppo" }, "use_grpo");
    if is_grpo {
        draft.set_text(
            "loss.advantage",
            "mean_baseline",
            "its division by the standard deviation divides by 1",
        );
    }
    parts::model(draft, "pretrain");
    parts::critic_model(draft, "critic_pretrain");
    data::data(draft, &DATA);
    draft.choose("the prompt's template is code there: write it as data.chat_template");
    if let Some(taken) = draft.take("stop") {
        let stops: Vec<String> = list(&taken.value).iter().map(|stop| quoted(stop)).collect();
        draft.set_toml("rollout.stop", format!("[{}]", stops.join(", ")), &taken.from);
        draft.set_toml("rollout.keep_stop", "true", "as its engine is called");
    }
    updates(draft);
    if let Some(taken) = draft.take("advantage_normalize") {
        let on = flag(&taken.value).unwrap_or(true);
        draft.set_text("loss.whiten", if on { "full" } else { "off" }, &taken.from);
    }
    kl(draft);
    let why = "the reward is code of the class, 1 for a correct answer that ended by itself in Open-Reasoner-Zero's own";
    parts::miss_reward(draft, why, "math, or python:FILE.py:FUNCTION");
    Ok(())
}

fn updates(draft: &mut Draft) {
    parts::passes(draft, "num_episodes", None);
    let updates = match draft.take_count("policy_update_steps") {
        Some((updates, taken)) if updates > 1 => {
            let sequences = draft.sequences().unwrap_or(0);
            draft.set_toml("train.mini_batch", sequences / updates, &taken.from);
            updates
        }
        _ => 1,
    };
    if let Some((warmup, taken)) = draft.take_number("num_warmup_steps") {
        let steps = (warmup / updates as f64).ceil().max(0.0);
        draft.set_toml("train.warmup_steps", format!("{steps}"), &taken.from);
    }
}

fn kl(draft: &mut Draft) {
    let in_loss = draft.is_on("use_kl_loss");
    let is_k3 = draft.is_on("use_kl_estimator_k3");
    let (used, unused) =
        if in_loss { ("kl_loss_coef", "init_kl_coef") } else { ("init_kl_coef", "kl_loss_coef") };
    if let Some((coef, taken)) = draft.take_number(used) {
        draft.set_toml("loss.kl_coef", format!("{coef:?}"), &taken.from);
        draft.set_text("loss.kl_in", if in_loss { "loss" } else { "reward" }, "use_kl_loss");
        draft.set_text("loss.kl_estimator", if is_k3 { "k3" } else { "k1" }, "use_kl_estimator_k3");
    }
    draft.leave_out(unused, why::OFF);
}
