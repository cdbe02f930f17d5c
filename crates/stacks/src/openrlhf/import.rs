//! Converts what needs several of OpenRLHF's options together: method, KL term, lengths, steps, rewards.

use crate::import::draft::{Draft, Job, quoted};
use crate::import::{data, parts, track};
use crate::setting::{flag, list, number};
use crate::table::why;
use crate::unbuilt::Unbuilt;
use plimsoll_base::Result;

pub(super) const PPO: Job = Job {
    trainers: &["ppo"],
    of: None,
    defaults: &[
        ("advantage_estimator", "gae"),
        ("input_key", "input"),
        ("rollout_batch_size", "1024"),
        ("n_samples_per_prompt", "1"),
        ("train_batch_size", "128"),
        ("actor_learning_rate", "1e-6"),
        ("critic_learning_rate", "9e-6"),
        ("lr_scheduler", "cosine_with_min_lr"),
        ("lr_warmup_ratio", "0.03"),
        ("value_clip", "0.5"),
        ("init_kl_coef", "0.01"),
        ("kl_estimator", "k1"),
        ("num_episodes", "1"),
        ("max_len", "2048"),
    ],
    takes: &[],
    combine,
};

const DATA: data::Of = data::Of {
    prompts: "prompt_data",
    eval: "eval_dataset",
    weights: Some("prompt_data_probs"),
    subset: None,
    splits: [Some("prompt_split"), Some("eval_split")],
};

fn combine(draft: &mut Draft) -> Result<()> {
    method(draft)?;
    let where_from = if draft.is_on("use_kl_loss") { "loss" } else { "reward" };
    draft.set_text("loss.kl_in", where_from, "use_kl_loss");
    parts::model(draft, "pretrain");
    parts::critic_model(draft, "critic_pretrain");
    data::data(draft, &DATA);
    trackers(draft);
    if !draft.is_on("apply_chat_template") {
        draft.set_text("data.chat_template", "none", "apply_chat_template is off");
    }
    optimizer(draft);
    filter(draft);
    lengths(draft);
    let samples = draft.take_count("max_samples");
    let episodes = draft.take_count("num_episodes");
    match (samples, episodes, draft.count("rollout.prompts_per_step")) {
        (Some((samples, _)), Some((episodes, _)), Some(prompts)) if prompts > 0 => {
            let steps = (samples.saturating_mul(episodes) / prompts).max(1);
            draft.set_toml("train.steps", steps, "max_samples x num_episodes / rollout_batch_size");
        }
        _ => parts::passes(draft, "num_episodes", None),
    }
    parts::schedule(draft, "lr_scheduler", "lr_warmup_ratio");
    rewards(draft);
    Ok(())
}

/// Writes the trackers: W&B if its key is given, else TensorBoard if its folder is.
pub(super) fn trackers(draft: &mut Draft) {
    let key = draft.take_text("use_wandb").filter(|taken| flag(&taken.value) != Some(false));
    if let Some(taken) = &key {
        track::send_to(draft, &["wandb"], taken);
        if flag(&taken.value).is_none() {
            draft.change(taken, track::WANDB_KEY);
        }
    }
    if let Some(taken) = draft.take_text("use_tensorboard") {
        match key {
            Some(_) => draft.leave(&taken, "W&B is on, which counts there"),
            None => {
                track::send_to(draft, &["tensorboard"], &taken);
                let place = "its files are in track/tensorboard of the run directory, or in track.dir";
                draft.change(&taken, place);
            }
        }
    }
    track::names(draft, Some("wandb_project"), "wandb_run_name");
}

/// Converts the optimizer: AdamW, or Muon as DeepSpeed's `MuonWithAuxAdam` has it.
///
/// There iterations and Nesterov's mixing are fixed, the rate is `original`, and decay is AdamW's.
pub(super) fn optimizer(draft: &mut Draft) {
    let Some(taken) = draft.take("optim").filter(|taken| taken.value == "muon") else {
        return parts::adamw(draft, "optim");
    };
    draft.set_text("train.optimizer", "muon", &taken.from);
    draft.set_text("train.muon_rate", "original", "as DeepSpeed has it");
    draft.change(
        &taken,
        "gradients are clipped before Muon here, its steps after it there; a critic keeps AdamW",
    );
    match draft.take_number("muon.lr") {
        Some((rate, taken)) => draft.set_toml("train.muon_learning_rate", rate, &taken.from),
        None => draft.set_toml("train.muon_learning_rate", "0.02", "OpenRLHF's default"),
    }
    if let Some((momentum, taken)) = draft.take_number("muon.momentum") {
        draft.set_toml("train.muon_momentum", momentum, &taken.from);
    }
}

fn method(draft: &mut Draft) -> Result<()> {
    let Some(taken) = draft.take("advantage_estimator") else { return Ok(()) };
    let mut method = match taken.value.as_str() {
        "gae" => "ppo",
        "group_norm" | "grpo" => "grpo",
        name @ ("reinforce" | "reinforce_baseline" | "rloo" | "dr_grpo") => name,
        _ => return Err(Draft::no_method(&taken)),
    };
    if let Some(loss) = draft.take("policy_loss_type") {
        match (loss.value.as_str(), method) {
            ("ppo", _) => {}
            ("gspo", "grpo") => method = "gspo",
            _ => draft.is_not_built(&loss, Unbuilt::Objective),
        }
    }
    draft.set_text("method", method, &taken.from);
    if matches!(method, "grpo" | "gspo") {
        draft.set_toml("loss.group_norm_eps", "1e-9", "as OpenRLHF has it");
    }
    if method == "gspo" {
        // Its aggregation is fixed there, and its clips are PPO's.
        draft
            .leave_out("actor.loss_agg_mode", "GSPO's loss is a mean of sequences there, whatever this says");
        draft.set_text("loss.aggregation", "seq_mean_token_mean", "as GSPO has it in OpenRLHF");
        for key in ["loss.clip_low", "loss.clip_high"] {
            if draft.get(key).is_none() {
                draft.set_toml(key, "0.2", "default of OpenRLHF: eps_clip");
            }
        }
    }
    if method == "dr_grpo" && draft.get("loss.aggregation").is_none() {
        draft.set_text("loss.aggregation", "token_mean", "as there, whatever the estimator");
    }
    if method == "reinforce" {
        draft.set_text("loss.policy", "ppo", "OpenRLHF clips the ratio, whatever the estimator");
    }
    Ok(())
}

/// Converts dynamic sampling: groups whose mean score is strictly between two numbers.
fn filter(draft: &mut Draft) {
    let (enable, range) = (draft.take("dynamic_filtering"), draft.take("dynamic_filtering_reward_range"));
    match (draft.is_on("dynamic_filtering"), enable, range) {
        (true, Some(enable), range) => {
            let bounds = range.as_ref().map(|taken| list(&taken.value));
            let numbers: Option<Vec<f64>> =
                bounds.map(|bounds| bounds.iter().filter_map(|bound| bound.parse().ok()).collect());
            match (numbers.as_deref(), range) {
                (Some([low, high]), Some(taken)) => {
                    draft.set_toml("loss.dynamic_sampling", format!("[{low:?}, {high:?}]"), &taken.from);
                }
                (Some(_), Some(taken)) => draft.leave(&taken, "it is not two numbers"),
                // The default range.
                _ => draft.set_toml("loss.dynamic_sampling", "[0.0, 1.0]", &enable.from),
            }
            draft.change(&enable, "the rounds of further prompts are bounded here");
        }
        (false, _, Some(range)) => draft.leave(&range, why::OFF),
        _ => {}
    }
}

/// Converts longest response and micro-batch, which depend on each other's limits.
fn lengths(draft: &mut Draft) {
    let whole = draft.take_count("max_len");
    let prompt = draft.count("data.prompt_tokens_max");
    match (draft.take_count("generate_max_len"), &whole) {
        (Some((tokens, taken)), whole) => {
            draft.set_toml("rollout.max_new_tokens", tokens, &taken.from);
            if let Some((_, whole)) = whole {
                draft.leave(whole, "prompt and response have a limit each here");
            }
        }
        (None, Some((tokens, taken))) => {
            let rest = tokens - prompt.unwrap_or(0).min(tokens - 1);
            draft.set_toml("rollout.max_new_tokens", rest, &taken.from);
            draft.change(taken, "prompt and response together there; the response here");
        }
        (None, None) => {}
    }
    parts::micro_batch(draft, "micro_train_batch_size");
}

fn rewards(draft: &mut Draft) {
    if let Some(taken) = draft.take("remote_rm_url") {
        let urls = list(&taken.value);
        if urls.len() > 1 {
            draft.change(&taken, "the first of several");
        }
        let first = urls.into_iter().next().unwrap_or_default();
        let reward = if first.ends_with(".py") {
            vec![("kind", quoted(&format!("python:{first}:reward_func"))), ("signature", quoted("openrlhf"))]
        } else {
            vec![("kind", quoted(&first))]
        };
        draft.add_reward(&taken.from, reward);
    }
    normalised(draft);
    parts::reward_model(draft, "reward_pretrain");
    // Rewards are clipped to its default here, after the baseline as there.
    if let Some(taken) = draft.take_text("reward_clip_range")
        && list(&taken.value).iter().map(|end| number(end)).ne([Some(-10.0), Some(10.0)])
    {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
    // It multiplies or replaces the score of a cut response: 0 is no switch, 1 changes nothing.
    if let Some((factor, taken)) = draft.take_number("stop_properly_penalty_coef")
        && factor != 1.0
    {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
    if let Some(taken) = draft.take_text("agent_func_path") {
        // Its class has reset(states) and step(states), not our reset(seed) and step(response): it cannot play.
        draft.is_not_built(&taken, Unbuilt::Agent);
    }
    parts::no_reward(draft, "remote_rm_url");
}

/// Converts the mean and the deviation in a reward model's file. There its score, and the value of a critic made of
/// it, are less that mean and divided by that deviation.
fn normalised(draft: &mut Draft) {
    let Some(taken) = draft.take("normalize_reward").filter(|taken| flag(&taken.value) != Some(false)) else {
        return;
    };
    let divides = match draft.get("method").unwrap_or_default() {
        "\"grpo\"" | "\"gspo\"" => true,
        "\"reinforce_baseline\"" => draft.get("loss.whiten").is_none(),
        _ => false,
    };
    // With the KL term in the reward its weight would be another one.
    let is_apart = draft.get("loss.kl_in") == Some("\"loss\"") || draft.is_zero("init_kl_coef");
    match () {
        () if !draft.has("reward_pretrain") && !draft.has("critic_pretrain") => {
            draft.leave(&taken, "mean and deviation are those of a reward model's file, and there is none");
        }
        () if divides && is_apart && !draft.has("critic_pretrain") => draft.leave(
            &taken,
            "an advantage is divided by the deviation of its scores, so that one mean and one deviation for all scores cancel",
        ),
        () => draft.is_not_built(&taken, Unbuilt::Objective),
    }
}
