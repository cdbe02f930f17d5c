//! Converts what needs several of slime's options together: method, KL term, data, steps, rewards.

use crate::import::draft::{Draft, Job, quoted};
use crate::import::{data, parts, track};
use crate::unbuilt::Unbuilt;
use plimsoll_base::Result;

pub(super) const JOBS: &[Job] = &[Job {
    trainers: &["rl"],
    of: None,
    defaults: &[
        ("advantage_estimator", "grpo"),
        ("input_key", "input"),
        ("n_samples_per_prompt", "1"),
        ("rollout_temperature", "1.0"),
        ("lr", "1e-6"),
        ("lr_decay_style", "linear"),
        ("weight_decay", "0.01"),
        ("adam_beta1", "0.9"),
        ("adam_beta2", "0.999"),
        ("clip_grad", "1.0"),
        ("eps_clip", "0.2"),
        ("kl_loss_type", "k1"),
        ("seed", "1234"),
    ],
    takes: &[],
    combine,
}];

const DATA: data::Of = data::Of {
    prompts: "prompt_data",
    eval: "eval_prompt_data",
    weights: None,
    subset: None,
    splits: [None, None],
};
/// The filter that leaves groups of equal rewards out.
const NONZERO: &str = "check_reward_nonzero_std";

fn combine(draft: &mut Draft) -> Result<()> {
    method(draft)?;
    kl(draft);
    parts::model(draft, "hf_checkpoint");
    data::data(draft, &DATA);
    if !draft.is_on("apply_chat_template") {
        draft.set_text("data.chat_template", "none", "apply_chat_template is off");
    }
    if let Some(taken) = draft.take("rollout_shuffle") {
        draft.set_toml("data.shuffle", "true", &taken.from);
    } else {
        draft.set_toml("data.shuffle", "false", "rollout_shuffle is off");
    }
    parts::adamw(draft, "optimizer");
    betas(draft);
    steps(draft);
    parts::schedule(draft, "lr_decay_style", "lr_warmup_fraction");
    parts::micro_batch(draft, "micro_batch_size");
    filter(draft);
    rewards(draft);
    trackers(draft);
    Ok(())
}

fn method(draft: &mut Draft) -> Result<()> {
    let Some(taken) = draft.take("advantage_estimator") else { return Ok(()) };
    let method = match taken.value.as_str() {
        "ppo" => "ppo",
        name @ ("grpo" | "gspo" | "cispo") => name,
        "reinforce_plus_plus" => "reinforce",
        "reinforce_plus_plus_baseline" => "reinforce_baseline",
        _ => return Err(Draft::no_method(&taken)),
    };
    draft.set_text("method", method, &taken.from);
    if let Some(loss) = draft.take("loss_type")
        && loss.value != "policy_loss"
    {
        draft.is_not_built(&loss, Unbuilt::Objective);
    }
    if method == "reinforce" {
        draft.set_text("loss.policy", "ppo", "slime clips the ratio, whatever the estimator");
    }
    if draft.get("loss.aggregation").is_none() {
        draft.set_text("loss.aggregation", "seq_mean_token_mean", "calculate_per_token_loss is off");
    }
    let compares = ["grpo", "gspo", "cispo"].contains(&method);
    match draft.take("disable_grpo_std_normalization") {
        Some(taken) if compares => draft.set_text("loss.advantage", "mean_baseline", &taken.from),
        Some(taken) => draft.leave(&taken, "only GRPO divides by the deviation"),
        None if compares => draft.set_toml("loss.group_norm_eps", "1e-6", "as slime has it"),
        None => {}
    }
    if draft.get("loss.advantage").is_some() || !compares {
        draft.choose(parts::BOUNDED);
    }
    Ok(())
}

/// Writes the KL term: in the loss, or in the reward.
fn kl(draft: &mut Draft) {
    let (in_loss, in_reward) = (draft.take_number("kl_loss_coef"), draft.take_number("kl_coef"));
    let kind = draft.take("kl_loss_type");
    let is_in_loss = draft.is_on("use_kl_loss");
    if let Some(taken) = draft.take("use_kl_loss") {
        draft.set_text("loss.kl_in", "loss", &taken.from);
    }
    if let Some((coef, taken)) = in_reward.filter(|(coef, _)| *coef != 0.0) {
        if is_in_loss {
            return draft.is_not_built(&taken, Unbuilt::Objective);
        }
        draft.set_text("loss.kl_in", "reward", &taken.from);
        return draft.set_toml("loss.kl_coef", format!("{coef:?}"), &taken.from);
    }
    match in_loss {
        Some((coef, taken)) if is_in_loss => {
            draft.set_toml("loss.kl_coef", format!("{coef:?}"), &taken.from);
            if let Some(kind) = kind {
                let name = if kind.value == "low_var_kl" { "k3" } else { kind.value.as_str() };
                draft.set_text("loss.kl_estimator", name, &kind.from);
            }
        }
        Some((_, taken)) => draft.leave(&taken, "use_kl_loss is off"),
        None => {}
    }
}

fn betas(draft: &mut Draft) {
    let (first, second) = (draft.take_number("adam_beta1"), draft.take_number("adam_beta2"));
    if let (Some((first, _)), Some((second, taken))) = (first, second) {
        draft.set_toml("train.betas", format!("[{first:?}, {second:?}]"), &taken.from);
    }
}

/// Writes the length of the run and the updates of a step.
fn steps(draft: &mut Draft) {
    let rollouts = draft.take_count("num_rollout");
    match rollouts {
        Some((steps, taken)) => {
            draft.set_toml("train.steps", steps, &taken.from);
            draft.leave_out("num_epoch", "num_rollout is set too, which counts");
        }
        None => parts::passes(draft, "num_epoch", None),
    }
    if let Some((updates, taken)) = draft.take_count("num_steps_per_rollout").filter(|(count, _)| *count > 0)
    {
        match (draft.get("train.mini_batch").is_some(), draft.sequences()) {
            (true, _) => draft.leave(&taken, "global_batch_size is set too, which counts"),
            (false, Some(sequences)) => draft.set_toml("train.mini_batch", sequences / updates, &taken.from),
            (false, None) => draft.leave(&taken, "the file does not say how many sequences a step has"),
        }
    }
}

/// Converts the filter of groups that teach nothing.
fn filter(draft: &mut Draft) {
    let Some(taken) = draft.take_text("dynamic_sampling_filter_path") else { return };
    if taken.value.ends_with(NONZERO) {
        draft.set_toml("loss.dynamic_sampling", "true", &taken.from);
        draft.change(&taken, "the rounds of further prompts are bounded here");
    } else {
        draft.is_not_built(&taken, super::options::FILTER);
    }
}

fn rewards(draft: &mut Draft) {
    let custom = draft.take_text("custom_rm_path");
    let kind = draft.take_text("rm_type");
    match (custom, kind) {
        (Some(taken), kind) => {
            let why = format!("{} is a function of slime's samples", taken.value);
            parts::miss_reward(draft, &why, parts::REWARD);
            kind.iter().for_each(|kind| draft.leave(kind, "custom_rm_path is set too, which counts"));
        }
        (None, Some(taken)) => match taken.value.trim_start_matches("boxed_") {
            "math" | "deepscaler" | "dapo" => {
                draft.add_reward(&taken.from, vec![("kind", quoted("math"))]);
                draft.change(
                    &taken,
                    "the last box or announced answer counts here, in any notation, as 1 or 0",
                );
            }
            other => {
                let why = format!("rm_type = {other} has no counterpart here");
                parts::miss_reward(draft, &why, parts::REWARD);
            }
        },
        (None, None) => parts::no_reward(draft, "rm_type"),
    }
}

fn trackers(draft: &mut Draft) {
    for (name, to) in [("use_wandb", "wandb"), ("use_tensorboard", "tensorboard")] {
        if let Some(taken) = draft.take(name) {
            track::send_to(draft, &[to], &taken);
        }
    }
    track::names(draft, Some("wandb_project"), "wandb_group");
}
