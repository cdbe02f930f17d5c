//! TRL's trainers on fixed data: SFT, DPO, CPO with SimPO, ORPO, KTO and the reward model. A step here is one of their
//! updates.

use super::import::{common, processes, raw_strings, schedule, steps};
use crate::import::draft::{Draft, Job};
use crate::import::parts;
use crate::setting::{flag, list};
use crate::table::Take::{Later, Lost, Number};
use crate::table::why;
use crate::unbuilt::Unbuilt;
use plimsoll_base::Result;

const NO_SAMPLES: &str = "this trainer samples nothing";

/// (name, value) of TRL's own defaults, for each of these trainers.
macro_rules! defaults {
    ($learning_rate:literal $(, $more:expr)*) => {
        &[
            ("per_device_train_batch_size", "8"),
            ("gradient_accumulation_steps", "1"),
            ("learning_rate", $learning_rate),
            ("lr_scheduler_type", "linear"),
            ("adam_beta1", "0.9"),
            ("adam_beta2", "0.999"),
            $($more,)*
            ("max_length", "1024"),
        ]
    };
}

pub(crate) const SFT: Job = Job {
    trainers: &["sft"],
    of: None,
    defaults: defaults!["2e-5"],
    takes: &[("loss_type", Later), ("beta", Lost("the loss of SFT has no such factor")), ("packing", Later)],
    combine: sft,
};

pub(crate) const DPO: Job = Job {
    trainers: &["dpo"],
    of: None,
    defaults: defaults!["1e-6", ("beta", "0.1"), ("loss_type", "sigmoid")],
    takes: &[("beta", Number("loss.dpo_beta")), ("max_completion_length", Lost(NO_SAMPLES))],
    combine: dpo,
};

pub(crate) const CPO: Job = Job {
    trainers: &["cpo"],
    of: None,
    defaults: defaults![
        "1e-6",
        ("beta", "0.1"),
        ("loss_type", "sigmoid"),
        ("cpo_alpha", "1.0"),
        ("simpo_gamma", "0.5")
    ],
    takes: &[("beta", Number("loss.dpo_beta")), ("max_completion_length", Lost(NO_SAMPLES))],
    combine: cpo,
};

pub(crate) const ORPO: Job = Job {
    trainers: &["orpo"],
    of: None,
    defaults: defaults!["1e-6", ("beta", "0.1")],
    takes: &[("beta", Number("loss.dpo_beta")), ("max_completion_length", Lost(NO_SAMPLES))],
    combine: orpo,
};

pub(crate) const KTO: Job = Job {
    trainers: &["kto"],
    of: None,
    defaults: defaults![
        "1e-6",
        ("beta", "0.1"),
        ("loss_type", "kto"),
        ("desirable_weight", "1.0"),
        ("undesirable_weight", "1.0")
    ],
    takes: &[
        ("beta", Number("loss.dpo_beta")),
        ("desirable_weight", Number("loss.desirable_weight")),
        ("undesirable_weight", Number("loss.undesirable_weight")),
        ("max_completion_length", Lost(NO_SAMPLES)),
    ],
    combine: kto,
};

pub(crate) const REWARD: Job = Job {
    trainers: &["reward"],
    of: None,
    defaults: defaults!["1e-4"],
    takes: &[("beta", Lost("the loss of a reward model has no such factor"))],
    combine: reward,
};

fn sft(draft: &mut Draft) -> Result<()> {
    draft.set_text("method", "sft", "SFTTrainer");
    if let Some(taken) = draft.take("loss_type")
        && !["nll", "chunked_nll"].contains(&taken.value.as_str())
    {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
    learnt_tokens(draft);
    data_alone(draft, 1);
    packs(draft);
    Ok(())
}

/// Says what a batch of packs is: it counts packs there, each of as many rows as fit, and rows here.
pub(crate) fn packs(draft: &mut Draft) {
    let Some(taken) = draft.take("packing") else { return };
    match (flag(&taken.value), draft.count("rollout.prompts_per_step")) {
        (Some(true), Some(count)) => draft.change(
            &taken,
            &format!(
                "a batch counts packs there, each of as many rows as fit into max_length, and rows here: a step has {count} packs there and {count} rows here; set rollout.prompts_per_step to {count} x max_length / the mean tokens of a row"
            ),
        ),
        (Some(true), None) => draft.leave(&taken, why::PACKED),
        _ => draft.leave(&taken, why::OFF),
    }
}

/// Converts the trained tokens: the assistant's last turn of a conversation, the completion after a prompt.
fn learnt_tokens(draft: &mut Draft) {
    let completion = draft.take("completion_only_loss");
    let on = completion.as_ref().and_then(|taken| flag(&taken.value));
    match (&completion, on) {
        (Some(_), Some(true)) => raw_strings(draft),
        (Some(taken), Some(false)) => draft.is_not_built(taken, Unbuilt::Objective),
        _ => {}
    }
    if !parts::every_turn(draft, "assistant_only_loss") && on != Some(true) {
        draft.choose(
            "a row has `messages`, whose last one is learnt, or `prompt` and `completion`; there every token of a conversation is learnt",
        );
    }
    if let Some(taken) = draft.take("dataset_text_field") {
        draft.leave(
            &taken,
            "plain text has nothing to answer: write rows with `messages`, or `prompt` and `completion`",
        );
    }
}

fn dpo(draft: &mut Draft) -> Result<()> {
    draft.set_text("method", "dpo", "DPOTrainer");
    if let Some(taken) = draft.take("loss_type") {
        match list(&taken.value).as_slice() {
            [one] if one == "sigmoid" => draft.set_text("loss.loss_type", "sigmoid", &taken.from),
            [one] if one == "ipo" => {
                draft.set_text("loss.loss_type", "ipo", &taken.from);
                draft.change(
                    &taken,
                    "the log-probs of a response are averaged there, summed here as in the paper",
                );
            }
            _ => draft.is_not_built(&taken, Unbuilt::Objective),
        }
    }
    if let Some(taken) = draft.take_text("f_divergence_type")
        && taken.value != "reverse_kl"
    {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
    raw_strings(draft);
    data_alone(draft, 2);
    reference(draft);
    Ok(())
}

/// Converts CPO: with the loss of SimPO and no likelihood of the chosen it is SimPO.
fn cpo(draft: &mut Draft) -> Result<()> {
    let (loss, alpha) = (draft.take("loss_type"), draft.take_number("cpo_alpha"));
    let (gamma, shape) = (draft.take_number("simpo_gamma"), draft.take_number("alpha"));
    match loss.as_ref().map_or("sigmoid", |taken| taken.value.as_str()) {
        "sigmoid" => {
            draft.set_text("method", "cpo", "CPOTrainer");
            if let Some((factor, taken)) = alpha {
                draft.set_toml("loss.nll_coef", factor, &taken.from);
            }
        }
        "simpo" => {
            draft.set_text("method", "simpo", "CPOTrainer with loss_type = simpo");
            if let Some((margin, taken)) = gamma {
                draft.set_toml("loss.simpo_gamma", margin, &taken.from);
            }
            // SimPO with a likelihood is another loss.
            if let Some((_, taken)) = alpha.filter(|(factor, _)| *factor != 0.0) {
                draft.is_not_built(&taken, Unbuilt::Objective);
            }
        }
        _ => loss.iter().for_each(|taken| draft.is_not_built(taken, Unbuilt::Objective)),
    }
    if let Some((_, taken)) = shape.filter(|(factor, _)| *factor != 0.0) {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
    raw_strings(draft);
    data_alone(draft, 2);
    Ok(())
}

fn orpo(draft: &mut Draft) -> Result<()> {
    draft.set_text("method", "orpo", "ORPOTrainer");
    draft.choose("the likelihood of a chosen answer is that of its own tokens here, as in the paper; there the prompt's count too");
    raw_strings(draft);
    data_alone(draft, 2);
    Ok(())
}

fn kto(draft: &mut Draft) -> Result<()> {
    draft.set_text("method", "kto", "KTOTrainer");
    if let Some(taken) = draft.take("loss_type").filter(|taken| taken.value != "kto") {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
    draft.choose("the KL is that of all rows of a step here, of the rows of each device's micro-batch there");
    raw_strings(draft);
    data_alone(draft, 1);
    reference(draft);
    Ok(())
}

/// Checks the reference, which is the initial model; another one is not built.
fn reference(draft: &mut Draft) {
    let Some(taken) = draft.take_text("ref_model") else { return };
    let model = draft.get("model").unwrap_or_default().trim_matches('"').to_string();
    if model.strip_prefix("hf:").unwrap_or(&model) != taken.value {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
}

fn reward(draft: &mut Draft) -> Result<()> {
    draft.set_text("method", "reward_model", "RewardTrainer");
    raw_strings(draft);
    data_alone(draft, 2);
    Ok(())
}

/// Converts model, data, batch and steps of a trainer with this number of texts per row.
pub(crate) fn data_alone(draft: &mut Draft, texts: i64) {
    draft.take("trainer");
    common(draft);
    let processes = processes(draft, "rollout.prompts_per_step");
    let accumulated = draft.take_count("gradient_accumulation_steps").map_or(1, |(count, _)| count);
    let longest = draft.take_count("max_length");
    let tokens = longest.as_ref().map(|(count, _)| *count);
    let device = draft.take_count("per_device_train_batch_size").map_or(8, |(count, _)| count);
    let rows = device.saturating_mul(accumulated).saturating_mul(processes);
    let from = "per_device_train_batch_size x gradient_accumulation_steps x num_processes";
    if !draft
        .misses("rollout.prompts_per_step", &["per_device_train_batch_size", "gradient_accumulation_steps"])
    {
        draft.set_toml("rollout.prompts_per_step", rows, from);
    }
    parts::micro_batch_of_rows(draft, "per_device_train_batch_size", tokens, texts);
    if let Some((_, taken)) = longest {
        draft.change(&taken, "a longer row is cut there; here one that fits no micro-batch is an error");
    }
    steps(draft, 1);
    schedule(draft, 1);
}
