//! OpenRLHF's SFT, DPO and reward model trainers. A step here is one update, of `train_batch_size` rows or pairs.

use super::import::trackers;
use crate::import::draft::{Draft, Job};
use crate::import::{data, parts};
use crate::table::Take::{self, Integer, Later};
use crate::unbuilt::Unbuilt;
use plimsoll_base::Result;

const ROWS: (&str, Take) = ("train_batch_size", Integer("rollout.prompts_per_step"));
/// Passes over the data, not over a rollout.
const PASSES: (&str, Take) = ("max_epochs", Later);

pub(super) const SFT: Job = Job {
    trainers: &["sft"],
    of: None,
    defaults: &[
        ("train_batch_size", "128"),
        ("max_epochs", "2"),
        ("micro_train_batch_size", "8"),
        ("max_len", "2048"),
        ("learning_rate", "5e-6"),
        ("lr_scheduler", "cosine_with_min_lr"),
        ("lr_warmup_ratio", "0.03"),
        ("adam_betas", "0.9, 0.95"),
    ],
    takes: &[ROWS, PASSES, ("input_key", Later), ("label_key", Later)],
    combine: sft,
};

pub(super) const DPO: Job = Job {
    trainers: &["dpo"],
    of: None,
    defaults: &[
        ("train_batch_size", "128"),
        ("max_epochs", "1"),
        ("micro_train_batch_size", "8"),
        ("max_len", "512"),
        ("learning_rate", "1e-5"),
        ("lr_scheduler", "cosine_with_min_lr"),
        ("lr_warmup_ratio", "0.03"),
        ("adam_betas", "0.9, 0.95"),
        ("beta", "0.1"),
    ],
    takes: &[ROWS, PASSES],
    combine: dpo,
};

pub(super) const RM: Job = Job {
    trainers: &["rm"],
    of: None,
    defaults: &[
        ("train_batch_size", "128"),
        ("max_epochs", "1"),
        ("micro_train_batch_size", "1"),
        ("max_len", "512"),
        ("learning_rate", "9e-6"),
        ("lr_scheduler", "cosine_with_min_lr"),
        ("lr_warmup_ratio", "0.03"),
        ("adam_betas", "0.9, 0.95"),
    ],
    takes: &[ROWS, PASSES],
    combine: rm,
};

fn sft(draft: &mut Draft) -> Result<()> {
    draft.set_text("method", "sft", "train_sft");
    data_alone(draft, 1);
    for name in ["input_key", "output_key"] {
        draft.leave_out(name, "a row has `messages`, or `prompt` and `completion` here");
    }
    parts::every_turn(draft, "multiturn");
    if draft.get("data.chat_template") == Some("\"none\"") {
        draft.choose("prompts are as they are: unless --input_template says otherwise, they are wrapped in `User: ... Assistant: ` there");
    }
    Ok(())
}

fn dpo(draft: &mut Draft) -> Result<()> {
    draft.set_text("method", "dpo", "train_dpo");
    data_alone(draft, 2);
    columns(draft);
    if let Some(taken) = draft.take_text("ref_pretrain") {
        let model = draft.get("model").unwrap_or_default().trim_matches('"').to_string();
        if model.strip_prefix("hf:").unwrap_or(&model) != taken.value {
            draft.is_not_built(&taken, Unbuilt::Objective);
        }
    }
    Ok(())
}

fn rm(draft: &mut Draft) -> Result<()> {
    draft.set_text("method", "reward_model", "train_rm");
    data_alone(draft, 2);
    columns(draft);
    if let Some(taken) = draft.take_text("loss") {
        match taken.value.as_str() {
            "sigmoid" => {}
            // log(1 + exp(rejected - chosen)) is the sigmoid loss without a margin.
            "logexp" => {
                draft.change(&taken, "the sigmoid loss, which is the same unless the pairs have a `margin`")
            }
            _ => draft.is_not_built(&taken, Unbuilt::Objective),
        }
    }
    Ok(())
}

/// Reports columns of pairs, which have fixed names here.
fn columns(draft: &mut Draft) {
    for (name, ours) in [("prompt_key", "prompt"), ("chosen_key", "chosen"), ("rejected_key", "rejected")] {
        if let Some(taken) = draft.take_text(name)
            && taken.value != ours
        {
            draft.leave(&taken, &format!("the column is called `{ours}` here: rename it in the data"));
        }
    }
}

const DATA: data::Of = data::Of {
    prompts: "dataset",
    eval: "eval_dataset",
    weights: Some("dataset_probs"),
    subset: None,
    splits: [Some("dataset_split"), Some("eval_split")],
};

/// Converts model, data, batch and steps of a trainer with this number of texts per row.
fn data_alone(draft: &mut Draft, texts: i64) {
    draft.take("trainer");
    parts::model(draft, "pretrain");
    data::data(draft, &DATA);
    trackers(draft);
    if !draft.is_on("apply_chat_template") && draft.get("data.chat_template").is_none() {
        draft.set_text("data.chat_template", "none", "apply_chat_template is off");
    }
    super::import::optimizer(draft);
    let longest = draft.take_count("max_len");
    let tokens = longest.as_ref().map(|(count, _)| *count);
    parts::micro_batch_of_rows(draft, "micro_train_batch_size", tokens, texts);
    if let Some((_, taken)) = longest {
        draft.change(
            &taken,
            "a longer row is cut or left out there; here one that fits no micro-batch is an error",
        );
    }
    steps(draft);
    parts::schedule(draft, "lr_scheduler", "lr_warmup_ratio");
}

fn steps(draft: &mut Draft) {
    let samples = draft.take_count("max_samples");
    let passes = draft.take_count("max_epochs");
    match (samples, passes, draft.count("rollout.prompts_per_step")) {
        (Some((samples, taken)), Some((passes, _)), Some(rows)) if rows > 0 => {
            let steps = (samples.saturating_mul(passes) / rows).max(1);
            draft.set_toml("train.steps", steps, "max_samples x max_epochs / train_batch_size");
            draft.change(&taken, &format!("{steps} steps, as if the data had as many rows"));
        }
        _ => parts::passes(draft, "max_epochs", None),
    }
}
