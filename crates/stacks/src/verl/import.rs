//! Converts what needs several of verl's options together: method, data, batches, steps, KL term, rewards.

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
        ("algorithm.adv_estimator", "gae"),
        ("data.max_prompt_length", "512"),
        ("data.max_response_length", "512"),
        ("data.train_batch_size", "1024"),
        ("actor_rollout_ref.rollout.n", "1"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", "256"),
        ("actor_rollout_ref.actor.clip_ratio_c", "3.0"),
        ("actor_rollout_ref.actor.kl_loss_coef", "0.001"),
        ("actor_rollout_ref.actor.loss_agg_mode", "token-mean"),
        ("actor_rollout_ref.actor.optim.lr", "1e-6"),
        ("actor_rollout_ref.actor.optim.weight_decay", "0.01"),
        ("actor_rollout_ref.actor.optim.betas", "[0.9, 0.999]"),
        ("critic.optim.lr", "1e-5"),
        ("critic.cliprange_value", "0.5"),
        ("actor_rollout_ref.actor.kl_loss_type", "low_var_kl"),
        ("algorithm.kl_ctrl.kl_coef", "0.001"),
        ("algorithm.kl_penalty", "kl"),
    ],
    takes: &[],
    combine,
};

fn combine(draft: &mut Draft) -> Result<()> {
    method(draft)?;
    parts::model(draft, "actor_rollout_ref.model.path");
    parts::critic_model(draft, "critic.model.path");
    // Any other loop plays several turns, or calls tools.
    if let Some(taken) = draft.take_text("actor_rollout_ref.rollout.agent.default_agent_loop")
        && taken.value != "single_turn_agent"
    {
        draft.is_not_built(&taken, Unbuilt::Turns);
    }
    data(draft);
    trackers(draft);
    batches(draft);
    steps(draft, 30.0);
    parts::adamw(draft, "actor_rollout_ref.actor.optim.optimizer");
    let scheduler = "actor_rollout_ref.actor.optim.lr_scheduler_type";
    parts::schedule(draft, scheduler, "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio");
    kl(draft);
    filter(draft);
    rewards(draft);
    Ok(())
}

/// Converts dynamic sampling: groups whose scores differ, for any metric.
fn filter(draft: &mut Draft) {
    let enable = draft.take("algorithm.filter_groups.enable");
    let metric = draft.take("algorithm.filter_groups.metric");
    let batches = draft.take_count("algorithm.filter_groups.max_num_gen_batches");
    if !draft.is_on("algorithm.filter_groups.enable") {
        for taken in [metric, batches.map(|(_, taken)| taken)].into_iter().flatten() {
            draft.leave(&taken, why::OFF);
        }
        return;
    }
    if let Some(taken) = enable {
        draft.set_toml("loss.dynamic_sampling", "true", &taken.from);
    }
    if let Some(taken) = metric.filter(|taken| !["score", "seq_reward"].contains(&taken.value.as_str())) {
        draft.change(&taken, "groups are kept by the sum of their rewards here");
    }
    if let Some((count, taken)) = batches {
        // The first batch is not a retry.
        draft.set_toml("loss.dynamic_sampling_retries", count - 1, &taken.from);
    }
}

fn method(draft: &mut Draft) -> Result<()> {
    let Some(taken) = draft.take("algorithm.adv_estimator") else { return Ok(()) };
    let mut method = match taken.value.as_str() {
        "gae" => "ppo",
        "grpo" | "grpo_vectorized" => "grpo",
        "rloo" | "rloo_vectorized" => "rloo",
        "gdpo" => "gdpo",
        "reinforce_plus_plus" => "reinforce",
        "reinforce_plus_plus_baseline" => "reinforce_baseline",
        "opo" => "opo",
        "gpg" => "gpg",
        "grpo_passk" => "pass_k",
        "remax" => "remax",
        "optimal_token_baseline" => "optimal_token",
        _ => return Err(Draft::no_method(&taken)),
    };
    // The loss is chosen apart from the estimator there.
    let mut is_vanilla = true;
    if let Some(loss) = draft.take("actor_rollout_ref.actor.policy_loss.loss_mode") {
        is_vanilla = loss.value == "vanilla";
        match (loss.value.as_str(), method) {
            ("vanilla", _) | ("gpg", "gpg") => {}
            (name, estimator) => match own_name(name).filter(|_| estimator == "grpo") {
                Some(own) => method = own,
                None => draft.is_not_built(&loss, Unbuilt::Objective),
            },
        }
    }
    // Without a correction the ratio is clipped the same way here.
    if let Some(loss) = draft.take("algorithm.rollout_correction.loss_type") {
        match loss.value.as_str() {
            "ppo_clip" => draft.leave(&loss, why::SAME),
            _ => draft.is_not_built(&loss, Unbuilt::Objective),
        }
    }
    draft.set_text("method", method, &taken.from);
    if is_vanilla && ["reinforce", "gpg"].contains(&method) {
        draft.set_text("loss.policy", "ppo", "verl clips the ratio, whatever the estimator");
    }
    clips(draft, method);
    aggregation(draft, method);
    // SAPO's temperatures are the paper's here.
    for (name, value) in [("actor_rollout_ref.actor.tau_pos", 1.0), ("actor_rollout_ref.actor.tau_neg", 1.05)]
    {
        if let Some((given, tau)) = draft.take_number(name)
            && given != value
            && method == "sapo"
        {
            draft.is_not_built(&tau, Unbuilt::Objective);
        }
    }
    if method == "cispo" {
        absolute_clips(draft);
    }
    covariances(draft, method);
    deviation(draft, method);
    Ok(())
}

/// Writes whether rewards are divided by the deviation of their group, and what bounds them.
fn deviation(draft: &mut Draft, method: &str) {
    let has_no_deviation =
        !compares_by_deviation(method) || draft.is_written("algorithm.norm_adv_by_std_in_grpo");
    if has_no_deviation {
        draft.choose(parts::BOUNDED);
    }
    if compares_by_deviation(method) {
        draft.set_toml("loss.group_norm_eps", "1e-6", "as verl has it");
    }
    if let Some(norm) = draft.take("algorithm.norm_adv_by_std_in_grpo")
        && flag(&norm.value) == Some(false)
    {
        match method {
            "pass_k" | "gdpo" => draft.is_not_built(&norm, Unbuilt::Objective),
            _ if compares_by_deviation(method) => {
                draft.set_text("loss.advantage", "mean_baseline", &norm.from)
            }
            _ => draft.leave(&norm, "only GRPO divides by the deviation"),
        }
    }
}

/// Writes the clips, which are 0.2 there for every loss: `clip_ratio` alone moves none, as the two others have values.
fn clips(draft: &mut Draft, method: &str) {
    let keys = ["loss.clip_low", "loss.clip_high"];
    let both = draft.take_number("actor_rollout_ref.actor.clip_ratio");
    // Its own clips would hold here where the file has one of the two.
    let has_others = ["gspo", "gmpo", "dppo_tv", "dppo_kl"].contains(&method);
    let is_set = keys.iter().any(|key| draft.get(key).is_some());
    if !has_others && !is_set && both.is_none() {
        return;
    }
    let counts = is_of_old_version(draft);
    let mut is_idle = false;
    for (key, name) in keys.into_iter().zip(["clip_ratio_low", "clip_ratio_high"]) {
        if draft.get(key).is_some() {
            continue;
        }
        match &both {
            Some((value, taken)) if counts || *value == CLIP => {
                draft.set_toml(key, format!("{value:?}"), &taken.from);
            }
            both => {
                is_idle |= both.is_some();
                draft.set_toml(key, format!("{CLIP:?}"), &format!("default of verl: {name}"));
            }
        }
    }
    if let Some((_, taken)) = both.filter(|_| is_idle) {
        let why = "clip_ratio_low and clip_ratio_high have values of their own since verl 0.3, 0.2 each, and count: set loss.clip_low and loss.clip_high if you mean it";
        draft.change(&taken, why);
    }
    // The largest factor of DPPO is that of its authors here.
    if let Some((factor, taken)) = draft.take_number("actor_rollout_ref.actor.clip_ratio_c")
        && method.starts_with("dppo")
        && factor != 20.0
    {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
}

/// The default of each of verl's clips.
const CLIP: f64 = 0.2;

/// Writes the aggregation of losses that bring their own, and says what older versions did.
fn aggregation(draft: &mut Draft, method: &str) {
    let name = "actor_rollout_ref.actor.loss_agg_mode";
    match method {
        "sapo" | "gmpo" => {
            let is_written = draft.is_written(name);
            draft.leave_out(name, "its loss is a mean of sequences there, whatever this says");
            let from = if is_written { "as its loss there has it" } else { "as its loss in verl has it" };
            draft.set_text("loss.aggregation", "seq_mean_token_mean", from);
        }
        "gspo" if draft.get("loss.aggregation") != Some("\"seq_mean_token_mean\"") => draft.choose(
            "loss.aggregation follows loss_agg_mode, as in verl 0.9; before, GSPO's was seq_mean_token_mean whatever that said: set it if yours is older",
        ),
        _ => {}
    }
}

/// Losses there, and the methods here.
const LOSSES: [(&str, &str); 8] = [
    ("gspo", "gspo"),
    ("cispo", "cispo"),
    ("sapo", "sapo"),
    ("geo_mean", "gmpo"),
    ("clip_cov", "clip_cov"),
    ("kl_cov", "kl_cov"),
    ("dppo_tv", "dppo_tv"),
    ("dppo_kl", "dppo_kl"),
];

/// Returns our method with the name of a loss there.
fn own_name(loss: &str) -> Option<&'static str> {
    let (_, ours) = LOSSES.into_iter().find(|(theirs, _)| *theirs == loss)?;
    Some(ours)
}

/// True if the method divides by the deviation of a group's rewards.
fn compares_by_deviation(method: &str) -> bool {
    ["grpo", "pass_k", "gdpo"].contains(&method) || LOSSES.iter().any(|(_, ours)| *ours == method)
}

/// Takes the numbers of losses that look at covariances, and drops the clips that such a loss has not.
fn covariances(draft: &mut Draft, method: &str) {
    let name = |last: &str| format!("actor_rollout_ref.actor.policy_loss.{last}");
    for (last, key, of) in [
        ("clip_cov_ratio", "loss.covariance_share", "clip_cov"),
        ("kl_cov_ratio", "loss.covariance_share", "kl_cov"),
        ("ppo_kl_coef", "loss.covariance_coef", "kl_cov"),
    ] {
        match draft.take_number(&name(last)) {
            Some((number, taken)) if method == of => draft.set_toml(key, format!("{number:?}"), &taken.from),
            Some((_, taken)) => draft.leave(&taken, why::OFF),
            None => {}
        }
    }
    let band = [("clip_cov_lb", 1.0), ("clip_cov_ub", 5.0)].map(|(last, default)| {
        let taken = draft.take_number(&name(last));
        (taken.as_ref().map_or(default, |(number, _)| *number), taken.map(|(_, taken)| taken))
    });
    for taken in band.iter().filter_map(|(_, taken)| taken.as_ref()) {
        match method {
            "clip_cov" => draft.set_toml(
                "loss.covariance_band",
                format!("{:?}", band.each_ref().map(|(n, _)| n)),
                &taken.from,
            ),
            _ => draft.leave(taken, why::OFF),
        }
    }
    if ["clip_cov", "kl_cov"].contains(&method) {
        draft.drop_line("loss.dual_clip");
    }
    if method == "kl_cov" {
        ["loss.clip_low", "loss.clip_high"].into_iter().for_each(|key| draft.drop_line(key));
        if draft.get("loss.covariance_coef").is_none() {
            draft.set_toml("loss.covariance_coef", "0.1", "as verl has it");
        }
    }
}

/// Converts CISPO's bounds on the ratio: 1 - low and 1 + high there, the bounds themselves here.
fn absolute_clips(draft: &mut Draft) {
    for (key, sign) in [("loss.clip_low", -1.0), ("loss.clip_high", 1.0)] {
        let given = draft.get(key).and_then(number);
        let bound = (1.0 + sign * given.unwrap_or(0.2)).max(0.0);
        // 1 + 0.28 is 1.28, whatever the sum's last bits.
        let text = format!("{:?}", (bound * 1e9).round() / 1e9);
        let from = match given {
            Some(value) => {
                format!("1 {} {value}: a bound of the ratio itself here", if sign < 0.0 { "-" } else { "+" })
            }
            None => "default of verl: clip_ratio = 0.2".to_string(),
        };
        draft.set_toml(key, text, &from);
    }
}

const DATA: data::Of = data::Of {
    prompts: "data.train_files",
    eval: "data.val_files",
    weights: None,
    subset: None,
    splits: [None, None],
};

/// Writes the trackers that the file names. The default, W&B, is left out: nothing is sent unasked.
pub(super) fn trackers(draft: &mut Draft) {
    track::trackers(draft, "trainer.logger");
    track::names(draft, Some("trainer.project_name"), "trainer.experiment_name");
}

pub(super) fn data(draft: &mut Draft) {
    data::data(draft, &DATA);
    if let Some(taken) = draft.take("data.truncation") {
        match (taken.value.as_str(), draft.get("data.overlong").is_some()) {
            (_, true) => draft.leave(&taken, "longer prompts are dropped before it"),
            ("error", _) => draft.set_text("data.overlong", "error", &taken.from),
            ("left", _) => draft.set_text("data.overlong", "truncate-left", &taken.from),
            _ => draft.leave(&taken, "prompts keep their last tokens here, or are dropped"),
        }
    }
    if let Some(taken) = draft.take("data.shuffle") {
        match flag(&taken.value) {
            Some(on) => draft.set_toml("data.shuffle", on, &taken.from),
            None => draft.leave(&taken, "it is neither true nor false"),
        }
    }
}

/// Converts batches: their mini-batch counts prompts, ours sequences.
fn batches(draft: &mut Draft) {
    let group = draft.count("rollout.group_size").unwrap_or(1);
    if let Some((prompts, taken)) = draft.take_count("actor_rollout_ref.actor.ppo_mini_batch_size") {
        let sequences = prompts.saturating_mul(group);
        draft.set_toml("train.mini_batch", sequences, &taken.from);
        draft.change(&taken, &format!("{prompts} prompts there, {sequences} sequences here"));
    }
    parts::micro_batch(draft, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu");
}

/// Converts the length of the run; without one it is `usual` passes.
pub(super) fn steps(draft: &mut Draft, usual: f64) {
    if draft.misses("train.steps", &["trainer.total_training_steps"]) {
        return draft.leave_out("trainer.total_epochs", "total_training_steps is set too, which counts");
    }
    match draft.take_count("trainer.total_training_steps") {
        Some((steps, taken)) => {
            draft.set_toml("train.steps", steps, &taken.from);
            draft.leave_out("trainer.total_epochs", "total_training_steps is set too, which counts");
        }
        None => parts::passes(draft, "trainer.total_epochs", Some(usual)),
    }
}

fn kl(draft: &mut Draft) {
    let in_loss = draft.is_on("actor_rollout_ref.actor.use_kl_loss");
    let has_no_switch = !in_loss && has_coefficient_alone(draft);
    let is_older = has_no_switch && is_of_old_version(draft);
    let in_reward = is_older || draft.is_on("algorithm.use_kl_in_reward");
    if in_loss
        && in_reward
        && let Some(taken) = draft.take("algorithm.use_kl_in_reward")
    {
        // There is one KL term here.
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
    let (loss_keys, reward_keys) = (
        ["actor_rollout_ref.actor.kl_loss_coef", "actor_rollout_ref.actor.kl_loss_type"],
        ["algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"],
    );
    let (used, unused) = if in_loss { (loss_keys, reward_keys) } else { (reward_keys, loss_keys) };
    for name in unused {
        draft.leave_out(name, why::OFF);
    }
    controller(draft, in_reward && !in_loss);
    if !in_loss && !in_reward {
        let [coef, estimator] = used;
        draft.leave_out(coef, if has_no_switch { ONLY_BEFORE } else { why::OFF });
        draft.leave_out(estimator, why::OFF);
        return;
    }
    draft.set_text(
        "loss.kl_in",
        if in_loss { "loss" } else { "reward" },
        if in_loss {
            "use_kl_loss"
        } else if is_older {
            "as before verl 0.3"
        } else {
            "use_kl_in_reward"
        },
    );
    if let Some((coef, taken)) = draft.take_number(used[0]) {
        draft.set_toml("loss.kl_coef", format!("{coef:?}"), &taken.from);
        if is_older {
            draft.change(
                &taken,
                "it is in the reward, as before verl 0.3; since then only use_kl_in_reward puts it there",
            );
        }
    }
    if let Some(taken) = draft.take(used[1]) {
        match taken.value.as_str() {
            "low_var_kl" | "k3" => draft.set_text("loss.kl_estimator", "k3", &taken.from),
            "mse" | "k2" => draft.set_text("loss.kl_estimator", "k2", &taken.from),
            "kl" | "k1" => draft.set_text("loss.kl_estimator", "k1", &taken.from),
            _ => draft.is_not_built(&taken, Unbuilt::Objective),
        }
    }
}

/// Why a coefficient without the switch has no effect, except in a file for an old version.
const ONLY_BEFORE: &str = "only use_kl_in_reward puts it into the reward since verl 0.3; before, it was there: if yours is older, set loss.kl_coef and loss.kl_in = \"reward\"";

/// Returns true if a file has the coefficient and not the switch, which came with 0.3.
fn has_coefficient_alone(draft: &Draft) -> bool {
    let coef = "algorithm.kl_ctrl.kl_coef";
    !draft.has("algorithm.use_kl_in_reward") && draft.is_written(coef) && !draft.is_zero(coef)
}

/// Returns true for a file with settings that only versions before 0.3 accept.
fn is_of_old_version(draft: &Draft) -> bool {
    let given = [
        "actor_rollout_ref.actor.fsdp_config.grad_offload",
        "actor_rollout_ref.actor.ppo_micro_batch_size",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size",
    ];
    given.iter().any(|key| draft.is_given(key))
        || draft.variable("VLLM_ATTENTION_BACKEND") == Some("XFORMERS")
}

/// Converts the controller of the coefficient in the reward; the rule is the same here.
fn controller(draft: &mut Draft, is_in_reward: bool) {
    let kind = draft.take("algorithm.kl_ctrl.type");
    let adapts = is_in_reward && kind.is_some_and(|taken| taken.value == "adaptive");
    for (name, key, default) in [
        ("algorithm.kl_ctrl.target_kl", "loss.kl_target", 0.1),
        ("algorithm.kl_ctrl.horizon", "loss.kl_horizon", 10000.0),
    ] {
        if !adapts {
            draft.leave_out(name, "the coefficient is fixed there");
            continue;
        }
        let (value, from) = match draft.take_number(name) {
            Some((value, taken)) => (value, taken.from),
            None => (default, format!("default of verl: {name}")),
        };
        draft.set_toml(key, format!("{value:?}"), &from);
    }
}

fn rewards(draft: &mut Draft) {
    let is_on = draft.is_on("reward_model.overlong_buffer.enable");
    for (name, key) in [
        ("reward_model.overlong_buffer.len", "loss.overlong_buffer"),
        ("reward_model.overlong_buffer.penalty_factor", "loss.overlong_factor"),
    ] {
        match draft.take_number(name) {
            Some((_, taken)) if !is_on => draft.leave(&taken, why::OFF),
            Some((value, taken)) if key == "loss.overlong_factor" => {
                draft.set_toml(key, format!("{value:?}"), &taken.from);
            }
            Some((value, taken)) => draft.set_toml(key, format!("{value:.0}"), &taken.from),
            None => {}
        }
    }
    if draft.get("method") == Some("\"gdpo\"") {
        return parts_of_a_score(draft);
    }
    let function = draft.take("custom_reward_function.name");
    match (draft.take("custom_reward_function.path"), function) {
        (Some(path), function) => {
            let name = function.map_or("compute_score".to_string(), |taken| taken.value);
            let kind = quoted(&format!("python:{}:{name}", path.value));
            draft.add_reward(&path.from, vec![("kind", kind), ("signature", quoted("verl"))]);
        }
        (None, Some(function)) => draft.leave(&function, "the function has no file"),
        (None, None) => {}
    }
    manager(draft);
    if draft.is_on("reward_model.enable") {
        parts::reward_model(draft, "reward_model.model.path")
    } else {
        draft.leave_out("reward_model.model.path", why::OFF)
    }
    if !draft.has_reward() {
        let why = "verl picks a scorer by each row's data_source, which the file does not say";
        parts::miss_reward(
            draft,
            why,
            "gsm8k, math or another kind of docs/rewards.md, or python:FILE.py:FUNCTION",
        );
    }
}

/// Writes one reward for each part of a score: GDPO compares them one by one. A function there returns all of them at
/// once, and one here a reward.
fn parts_of_a_score(draft: &mut Draft) {
    draft.choose("advantages are divided by the deviation of a step's samples here, of its tokens there, where a longer response counts more");
    let file = draft.take_text("custom_reward_function.path").map(|path| path.value);
    let place = match draft.take_text("custom_reward_function.name") {
        Some(name) => name.value,
        None => "compute_score".to_string(),
    };
    let place = file.map_or(place.clone(), |file| format!("{place} of {file}"));
    let keys = draft.take("algorithm.gdpo_reward_keys");
    let names = keys.as_ref().map(|taken| list(&taken.value)).unwrap_or_default();
    for name in &names {
        let why = format!("{place} returns `{name}` next to others there, and a reward is one number here");
        parts::miss_reward(draft, &why, "python:FILE.py:FUNCTION that returns it alone, or another kind");
    }
    if let Some(taken) = keys.filter(|_| names.len() > 1) {
        draft.change(&taken, "each is a [[reward]] of its own here");
    }
    if let Some(weights) = draft.take("algorithm.gdpo_reward_weights") {
        let values: Vec<f64> = list(&weights.value).iter().filter_map(|text| number(text)).collect();
        if !names.is_empty() && values.len() == names.len() {
            parts::weigh_rewards(draft, &values, &weights.from)
        } else {
            draft.leave(&weights, "it is not one weight for each reward")
        }
    }
    manager(draft);
    parts::no_reward(draft, "algorithm.gdpo_reward_keys");
}

/// Reads the reward manager, which calls the scorers. Each reads one row; `dapo` adds the overlong penalty set above.
fn manager(draft: &mut Draft) {
    let Some(taken) = draft.take("reward_model.reward_manager") else { return };
    match taken.value.as_str() {
        "naive" | "dapo" | "gdpo" => {}
        "batch" | "prime" => draft.change(&taken, "scores are computed in parallel in any case here"),
        _ => draft.leave(&taken, "rewards are the [[reward]] tables here, and nothing else calls them"),
    }
}
