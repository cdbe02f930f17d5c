//! Converts what needs several of SkyRL's options together: method, clips, batches, KL term, and the reward of an
//! environment.

use crate::import::draft::{Draft, Job, quoted};
use crate::import::{data, parts, track};
use crate::setting::{flag, list};
use crate::table::why;
use crate::unbuilt::Unbuilt;
use plimsoll_base::Result;

pub(super) const JOBS: &[Job] = &[Job {
    trainers: &["main_base"],
    of: None,
    defaults: &[
        ("trainer.algorithm.advantage_estimator", "grpo"),
        ("trainer.algorithm.policy_loss_type", "regular"),
        ("trainer.algorithm.loss_reduction", "token_mean"),
        ("trainer.algorithm.eps_clip_low", "0.2"),
        ("trainer.algorithm.eps_clip_high", "0.2"),
        ("trainer.algorithm.clip_ratio_c", "3.0"),
        ("trainer.algorithm.use_kl_loss", "True"),
        ("trainer.algorithm.kl_loss_coef", "0.001"),
        ("trainer.algorithm.kl_estimator_type", "k3"),
        ("trainer.algorithm.value_clip", "0.2"),
        ("trainer.train_batch_size", "1024"),
        ("trainer.policy_mini_batch_size", "256"),
        ("trainer.max_prompt_length", "512"),
        ("trainer.epochs", "1"),
        ("generator.n_samples_per_prompt", "5"),
        ("generator.sampling_params.max_generate_length", "1024"),
        ("trainer.policy.optimizer_config.lr", "1e-6"),
        ("trainer.policy.optimizer_config.adam_betas", "[0.9, 0.999]"),
        ("trainer.policy.optimizer_config.weight_decay", "0.01"),
        ("trainer.policy.optimizer_config.scheduler", "constant_with_warmup"),
        ("trainer.critic.optimizer_config.lr", "5e-6"),
        ("environment.env_class", "gsm8k"),
    ],
    takes: &[],
    combine,
}];

const ALGORITHM: &str = "trainer.algorithm.";
const DATA: data::Of = data::Of {
    prompts: "data.train_data",
    eval: "data.val_data",
    weights: None,
    subset: None,
    splits: [None, None],
};

fn name(last: &str) -> String {
    format!("{ALGORITHM}{last}")
}

fn combine(draft: &mut Draft) -> Result<()> {
    draft.take("trainer");
    method(draft)?;
    parts::model(draft, "trainer.policy.model.path");
    parts::critic_model(draft, "trainer.critic.model.path");
    if let Some(taken) = draft.take_text("trainer.ref.model.path") {
        let model = draft.get("model").unwrap_or_default().trim_matches('"').to_string();
        if model.strip_prefix("hf:").unwrap_or(&model) != taken.value {
            draft.is_not_built(&taken, Unbuilt::Objective);
        }
    }
    data::data(draft, &DATA);
    track::trackers(draft, "trainer.logger");
    track::names(draft, Some("trainer.project_name"), "trainer.run_name");
    batches(draft);
    if draft.misses("train.steps", &["trainer.max_training_steps"]) {
        draft.leave_out("trainer.epochs", "max_training_steps is set too, which counts");
    } else if let Some((steps, taken)) = draft.take_count("trainer.max_training_steps") {
        draft.set_toml("train.steps", steps, &taken.from);
        draft.leave_out("trainer.epochs", "max_training_steps is set too, which counts");
    } else {
        parts::passes(draft, "trainer.epochs", Some(1.0));
    }
    parts::schedule(draft, "trainer.policy.optimizer_config.scheduler", "");
    kl(draft);
    sampling(draft);
    environment(draft);
    if let Some(taken) = draft
        .take_text("trainer.policy.megatron_config.lora_config.lora_type")
        .filter(|taken| taken.value != "lora")
    {
        draft.is_not_built(&taken, Unbuilt::Adapters);
    }
    Ok(())
}

fn method(draft: &mut Draft) -> Result<()> {
    let Some(taken) = draft.take(&name("advantage_estimator")) else { return Ok(()) };
    let estimator = match taken.value.as_str() {
        "grpo" => "grpo",
        "gae" => "ppo",
        "rloo" => "rloo",
        "reinforce++" => "reinforce",
        _ => return Err(Draft::no_method(&taken)),
    };
    let mut method = estimator;
    let loss = draft.take(&name("policy_loss_type"));
    let loss_name = loss.as_ref().map_or("regular", |loss| loss.value.as_str()).to_string();
    let own = match (loss_name.as_str(), estimator) {
        ("regular" | "dual_clip", _) => None,
        ("gspo", "grpo") => Some("gspo"),
        ("sapo", "grpo") => Some("sapo"),
        ("cispo", "grpo") => Some("cispo"),
        ("clip_cov", "grpo") => Some("clip_cov"),
        ("kl_cov", "grpo") => Some("kl_cov"),
        ("dppo", "grpo") => {
            match draft.take_text(&name("dppo.dppo_type")).map(|taken| taken.value).as_deref() {
                None | Some("binary_tv") => Some("dppo_tv"),
                Some("binary_kl") => Some("dppo_kl"),
                Some(_) => None,
            }
        }
        _ => None,
    };
    match (own, loss_name.as_str()) {
        (Some(own), _) => method = own,
        (None, "regular" | "dual_clip" | IMPORTANCE) => {}
        (None, "rollout_is") if has_one_update(draft) => loss.iter().for_each(|loss| {
            draft.change(loss, "with one update a step its ratio is 1 to the bit, within any band")
        }),
        // With several updates its band holds for both signs of the advantage, which no loss here has.
        (None, _) => loss.iter().for_each(|loss| draft.is_not_built(loss, Unbuilt::Objective)),
    }
    draft.set_text("method", method, &taken.from);
    if method == "reinforce" {
        draft.set_text("loss.policy", "ppo", "SkyRL clips the ratio, whatever the estimator");
    }
    clips(draft, method, &loss_name);
    covariances(draft, method);
    reduction(draft, method);
    if ["grpo", "gspo", "sapo", "cispo", "clip_cov", "kl_cov", "dppo_tv", "dppo_kl"].contains(&method) {
        draft.set_toml("loss.group_norm_eps", "1e-6", "as SkyRL has it");
    } else {
        draft.choose(parts::BOUNDED);
    }
    if let Some(norm) = draft.take(&name("grpo_norm_by_std")).filter(|norm| flag(&norm.value) == Some(false))
    {
        match estimator {
            "grpo" => {
                draft.set_text("loss.advantage", "mean_baseline", &norm.from);
                draft.choose(parts::BOUNDED);
            }
            _ => draft.leave(&norm, "only GRPO divides by the deviation"),
        }
    }
    if draft.is_on(&name("use_entropy_loss")) {
        let coef = draft.take_number(&name("entropy_loss_coef")).map_or(0.01, |(coef, _)| coef);
        draft.set_toml("loss.entropy_coef", format!("{coef:?}"), "use_entropy_loss, entropy_loss_coef");
    } else {
        draft.leave_out(&name("entropy_loss_coef"), why::OFF);
    }
    Ok(())
}

/// The loss of a ratio without bounds.
const IMPORTANCE: &str = "importance_sampling";

/// Returns true if a step makes one update of all its prompts.
fn has_one_update(draft: &mut Draft) -> bool {
    let part = draft.take_count("trainer.policy_mini_batch_size").map(|(count, _)| count);
    let is_whole = part.zip(draft.count("rollout.prompts_per_step")).is_some_and(|(part, all)| part >= all);
    is_whole && draft.count("train.epochs_per_rollout").unwrap_or(1) == 1
}

/// Writes the bounds of the ratio: those of the loss that is chosen.
fn clips(draft: &mut Draft, method: &str, loss: &str) {
    if loss == IMPORTANCE {
        for (key, value) in [("loss.clip_low", "1.0"), ("loss.clip_high", "1e9")] {
            draft.set_toml(key, value, "policy_loss_type = importance_sampling: its ratio has no bounds");
        }
        ["eps_clip_low", "eps_clip_high", "clip_ratio_c"]
            .iter()
            .for_each(|last| draft.leave_out(&name(last), why::OFF));
        return;
    }
    let (low, high) = match method {
        "cispo" => ("cispo.cispo_eps_clip_low", "cispo.cispo_eps_clip_high"),
        "dppo_tv" | "dppo_kl" => ("dppo.delta_low", "dppo.delta_high"),
        _ => ("eps_clip_low", "eps_clip_high"),
    };
    for (last, key) in [(low, "loss.clip_low"), (high, "loss.clip_high")] {
        let taken = draft.take_number(&name(last));
        let usual = match last {
            "cispo.cispo_eps_clip_low" => 1.0,
            "cispo.cispo_eps_clip_high" => 4.0,
            _ => 0.2,
        };
        let (value, from) = match taken {
            Some((value, taken)) => (value, taken.from),
            None => (usual, format!("default of SkyRL: {last}")),
        };
        let value = match last {
            // 1 - low and 1 + high there, the bounds themselves here.
            "cispo.cispo_eps_clip_low" => (1.0 - value).max(0.0),
            "cispo.cispo_eps_clip_high" => 1.0 + value,
            _ => value,
        };
        draft.set_toml(key, format!("{value:?}"), &from);
    }
    if method == "sapo" {
        for (last, paper) in [("sapo.tau_pos", 1.0), ("sapo.tau_neg", 1.05)] {
            if let Some((_, tau)) = draft.take_number(&name(last)).filter(|(value, _)| *value != paper) {
                draft.is_not_built(&tau, Unbuilt::Objective);
            }
        }
    }
    if let Some((factor, taken)) = draft.take_number(&name("clip_ratio_c")) {
        match loss {
            "dual_clip" => draft.set_toml("loss.dual_clip", format!("{factor:?}"), &taken.from),
            _ => draft.leave(&taken, why::OFF),
        }
    }
}

/// Writes the numbers of losses that look at covariances, with their defaults there.
fn covariances(draft: &mut Draft, method: &str) {
    let mut of = |last: &str, usual: f64| match draft.take_number(&name(last)) {
        Some((value, taken)) => (value, taken.from),
        None => (usual, format!("default of SkyRL: {last}")),
    };
    let (share, coef, band) = match method {
        "clip_cov" => (
            of("clip_cov.clip_ratio", 0.0002),
            None,
            Some((of("clip_cov.clip_cov_lb", 1.0), of("clip_cov.clip_cov_ub", 5.0))),
        ),
        "kl_cov" => (of("kl_cov.kl_cov_frac", 0.2), Some(of("kl_cov.ppo_kl_coef", 1.0)), None),
        _ => return,
    };
    draft.set_toml("loss.covariance_share", format!("{:?}", share.0), &share.1);
    if let Some((low, high)) = band {
        draft.set_toml("loss.covariance_band", format!("[{:?}, {:?}]", low.0, high.0), &high.1);
    }
    if let Some((coef, from)) = coef {
        draft.set_toml("loss.covariance_coef", format!("{coef:?}"), &from);
        // Its ratio has no bounds.
        ["loss.clip_low", "loss.clip_high"].into_iter().for_each(|key| draft.drop_line(key));
    }
}

fn reduction(draft: &mut Draft, method: &str) {
    let Some(taken) = draft.take(&name("loss_reduction")) else { return };
    let length = draft.take_text(&name("max_seq_len"));
    let aggregation = match taken.value.as_str() {
        "token_mean" => "token_mean",
        "sequence_mean" => "seq_mean_token_mean",
        "seq_mean_token_sum_norm" => "seq_mean_token_sum_norm",
        _ => return draft.is_not_built(&taken, Unbuilt::Objective),
    };
    draft.set_text("loss.aggregation", aggregation, &taken.from);
    if let Some(length) = length {
        match aggregation {
            "seq_mean_token_sum_norm" => {
                draft.change(&length, "sums are divided by rollout.max_new_tokens here")
            }
            _ => draft.leave(&length, why::OFF),
        }
    }
    if method == "gspo" && aggregation == "token_mean" {
        draft.choose(
            "loss.aggregation follows loss_reduction, as there: GSPO's authors take the mean of sequences",
        );
    }
}

fn batches(draft: &mut Draft) {
    let group = draft.count("rollout.group_size").unwrap_or(1);
    if let Some((prompts, taken)) = draft.take_count("trainer.policy_mini_batch_size") {
        let sequences = prompts.saturating_mul(group);
        draft.set_toml("train.mini_batch", sequences, &taken.from);
        draft.change(&taken, &format!("{prompts} prompts there, {sequences} sequences here"));
    }
    if let Some((tokens, taken)) = draft.take_count("trainer.max_tokens_per_microbatch") {
        draft.set_toml("train.micro_batch_tokens", tokens, &taken.from);
    }
    parts::micro_batch(draft, "trainer.micro_train_batch_size_per_gpu");
}

fn kl(draft: &mut Draft) {
    let (in_loss, in_reward) = (draft.is_on(&name("use_kl_loss")), draft.take(&name("use_kl_in_reward")));
    let in_reward = in_reward.filter(|taken| flag(&taken.value) == Some(true));
    if let Some(taken) = in_reward.as_ref().filter(|_| in_loss) {
        // There is one KL term here.
        return draft.is_not_built(taken, Unbuilt::Objective);
    }
    let kind = draft.take_text(&name("kl_ctrl.type"));
    let adapts = in_reward.is_some() && kind.is_some_and(|taken| taken.value == "adaptive");
    for (last, key) in [("kl_ctrl.kl_target", "loss.kl_target"), ("kl_ctrl.horizon", "loss.kl_horizon")] {
        match draft.take_number(&name(last)) {
            Some((value, taken)) if adapts => draft.set_toml(key, format!("{value:?}"), &taken.from),
            Some((_, taken)) => draft.leave(&taken, "the coefficient is fixed there"),
            None => {}
        }
    }
    if !in_loss && in_reward.is_none() {
        for last in ["kl_loss_coef", "kl_estimator_type"] {
            draft.leave_out(&name(last), why::OFF);
        }
        return;
    }
    let place = if in_loss { "loss" } else { "reward" };
    draft.set_text("loss.kl_in", place, if in_loss { "use_kl_loss" } else { "use_kl_in_reward" });
    if let Some((coef, taken)) = draft.take_number(&name("kl_loss_coef")) {
        draft.set_toml("loss.kl_coef", format!("{coef:?}"), &taken.from);
    }
    if let Some(taken) = draft.take_text(&name("kl_estimator_type")) {
        match taken.value.as_str() {
            kind @ ("k1" | "k2" | "k3") => draft.set_text("loss.kl_estimator", kind, &taken.from),
            _ => draft.is_not_built(&taken, Unbuilt::Objective),
        }
    }
}

/// Converts what decides which samples are trained: dynamic sampling, and the penalty of long responses.
fn sampling(draft: &mut Draft) {
    let batches = draft.take_count(&name("dynamic_sampling.max_sample_batches"));
    draft.leave_out(&name("dynamic_sampling.min_replace_ratio"), why::OFF);
    match draft.take_text(&name("dynamic_sampling.type")) {
        Some(taken) if taken.value == "filter" => {
            draft.set_toml("loss.dynamic_sampling", "true", &taken.from);
            // The first batch is not a retry.
            if let Some((count, taken)) = batches {
                draft.set_toml("loss.dynamic_sampling_retries", count - 1, &taken.from);
            }
        }
        Some(taken) => draft.is_not_built(&taken, Unbuilt::Objective),
        None => {
            if let Some((_, taken)) = batches {
                draft.leave(&taken, why::OFF);
            }
        }
    }
    for (last, key) in [
        ("overlong_buffer_len", "loss.overlong_buffer"),
        ("overlong_buffer_penalty_factor", "loss.overlong_factor"),
    ] {
        if let Some((value, taken)) = draft.take_number(&name(last)) {
            let text =
                if key == "loss.overlong_buffer" { format!("{value:.0}") } else { format!("{value:?}") };
            draft.set_toml(key, text, &taken.from);
        }
    }
    if let Some(taken) =
        draft.take("generator.apply_overlong_filtering").filter(|taken| flag(&taken.value) == Some(true))
    {
        draft.set_toml("loss.mask_truncated", "true", &taken.from);
    }
    if let Some((value, taken)) = draft.take_number("generator.sampling_params.repetition_penalty")
        && value != 1.0
    {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
    if let Some(taken) = draft.take_text("generator.sampling_params.stop") {
        let stops: Vec<String> = list(&taken.value).iter().map(|stop| quoted(stop)).collect();
        draft.set_toml("rollout.stop", format!("[{}]", stops.join(", ")), &taken.from);
        draft.set_toml("rollout.keep_stop", "true", "as its engine is called");
    }
    if let Some(taken) = draft.take_text("generator.chat_template.name_or_path") {
        if taken.value.ends_with(".jinja") || taken.value.ends_with(".jinja2") {
            draft.set_text("data.chat_template", &taken.value, &taken.from)
        } else {
            draft.miss(
                "data.chat_template",
                "generator.chat_template.name_or_path",
                "the template as a Jinja file",
            )
        }
    }
}

/// Converts the environment: a grader of one response, or turns.
fn environment(draft: &mut Draft) {
    if let Some((turns, taken)) = draft.take_count("generator.max_turns")
        && turns > 1
    {
        draft.is_not_built(&taken, Unbuilt::Turns);
    }
    let Some(taken) = draft.take_text("environment.env_class") else { return };
    match taken.value.as_str() {
        "gsm8k" => {
            draft.add_reward(&taken.from, vec![("kind", quoted("gsm8k"))]);
            draft.change(&taken, "an answer counts there only after `####`, here else the last number too");
        }
        "aime" => {
            draft.add_reward(&taken.from, vec![("kind", quoted("math"))]);
            draft.change(&taken, "an answer is 1 and -1 there, 1 and 0 here");
        }
        "search" | "text2sql" | "gsm8k_multi_turn" | "searchcode" => {
            draft.is_not_built(&taken, Unbuilt::Turns)
        }
        name => {
            let why = format!("the environment `{name}` grades there, in Python");
            parts::miss_reward(draft, &why, parts::REWARD);
        }
    }
}
