//! Converts what needs several of axolotl's options together. Its trainers are TRL's, with defaults of its own.

use crate::import::draft::{Draft, Job};
use crate::import::track;
use crate::setting::{flag, list};
use crate::table::Take::{Later, Number};
use crate::table::why;
use crate::trl;
use crate::unbuilt::Unbuilt;
use plimsoll_base::Result;

/// (name, value) of axolotl's own defaults, for every trainer.
macro_rules! defaults {
    ($($more:expr),* $(,)?) => {
        &[
            ("micro_batch_size", "1"),
            ("gradient_accumulation_steps", "1"),
            ("num_epochs", "1"),
            ("lr_scheduler", "cosine"),
            ("warmup_ratio", "0.03"),
            ("weight_decay", "0.0"),
            ("optimizer", "adamw_torch_fused"),
            ("adam_beta1", "0.9"),
            ("adam_beta2", "0.999"),
            ("sequence_len", "512"),
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

const OF: Option<&str> = Some("axolotl");

pub(super) const JOBS: &[Job] = &[
    Job { trainers: &["sft"], of: OF, defaults: defaults![], takes: &[("packing", Later)], combine: sft },
    Job {
        trainers: &["dpo", "ipo"],
        of: OF,
        defaults: defaults![("rl_beta", "0.1"), ("dpo_loss_type", "sigmoid")],
        combine: dpo,
        ..trl::pairs::DPO
    },
    job_of_pairs!(ORPO, "orpo", ("rl_beta", "0.1")),
    job_of_pairs!(
        KTO,
        "kto",
        ("rl_beta", "0.1"),
        ("kto_desirable_weight", "1.0"),
        ("kto_undesirable_weight", "1.0")
    ),
    job_of_pairs!(
        CPO,
        "simpo",
        ("rl_beta", "0.1"),
        ("cpo_alpha", "1.0"),
        ("simpo_gamma", "0.5"),
        ("loss_type", "simpo")
    ),
    job_of_pairs!(REWARD, "reward_model"),
    Job {
        trainers: &["grpo", "gdpo"],
        of: OF,
        defaults: defaults![
            ("trl.max_completion_length", "512"),
            ("trl.num_generations", "8"),
            ("trl.use_bias_correction_kl", "True"),
            ("trl.loss_type", "dapo"),
            ("trl.scale_rewards", "True"),
        ],
        takes: &[("beta", Number("loss.kl_coef"))],
        combine: grpo,
    },
];

fn sft(draft: &mut Draft) -> Result<()> {
    draft.set_text("method", "sft", "rl is not set: fine-tuning");
    draft.take("trainer");
    let is_chat = rows(draft);
    if is_chat {
        turns(draft);
    }
    if let Some(taken) = draft.take("train_on_inputs").filter(|taken| flag(&taken.value) == Some(true)) {
        draft.is_not_built(&taken, Unbuilt::PlainText);
    }
    trl::pairs::data_alone(draft, 1);
    trl::pairs::packs(draft);
    common(draft, is_chat);
    Ok(())
}

/// Takes which turns of a conversation are learnt: every one of the assistant, and what ends it.
fn turns(draft: &mut Draft) {
    draft.set_text("data.train_on", "assistant", "default of axolotl: roles_to_train");
    if let Some(taken) = draft.take_text("datasets.roles_to_train")
        && list(&taken.value).iter().any(|role| !["assistant", "gpt", "model"].contains(&role.as_str()))
    {
        draft.is_not_built(&taken, Unbuilt::PlainText);
    }
    if let Some(taken) = draft.take_text("datasets.train_on_eos").filter(|taken| taken.value != "turn") {
        draft.change(&taken, "the end of each learnt turn is learnt here");
    }
}

/// Says what rows are here for each type there; true if all are conversations.
fn rows(draft: &mut Draft) -> bool {
    let Some(taken) = draft.take_text("datasets.type") else { return false };
    let types = list(&taken.value);
    let is_chat = |name: &String| name.starts_with("chat_template");
    let is_text = |name: &String| name.starts_with("completion") || name == "pretrain";
    match () {
        () if types.iter().any(is_text) => draft.is_not_built(&taken, Unbuilt::PlainText),
        () if types.iter().all(is_chat) => {}
        () => draft.change(
            &taken,
            "code makes the text of its columns there: write rows as `messages`, or `prompt` and `completion`, or `prompt`, `chosen` and `rejected`",
        ),
    }
    types.iter().all(is_chat)
}

fn pairs(draft: &mut Draft, combine: fn(&mut Draft) -> Result<()>) -> Result<()> {
    let is_chat = rows(draft);
    combine(draft)?;
    common(draft, is_chat);
    Ok(())
}

fn dpo(draft: &mut Draft) -> Result<()> {
    let is_ipo = draft.take_text("trainer").is_some_and(|taken| taken.value == "ipo");
    pairs(draft, trl::pairs::DPO.combine)?;
    if is_ipo {
        draft.set_text("loss.loss_type", "ipo", "rl");
    }
    Ok(())
}

fn grpo(draft: &mut Draft) -> Result<()> {
    let is_gdpo = draft.take_text("trainer").is_some_and(|taken| taken.value == "gdpo");
    let is_chat = rows(draft);
    let has_own = draft.is_written("multi_objective_aggregation");
    (trl::import::GRPO.combine)(draft)?;
    draft.leave_out("max_length", "prompt and response have a limit each here");
    if is_gdpo && !has_own && draft.get("loss.advantage").is_none() {
        draft.set_text(
            "loss.advantage",
            "decoupled",
            "rl = gdpo: each reward is normalised before their sum",
        );
    }
    // Its rows are conversations where the file names a template for them.
    common(draft, is_chat || draft.is_written("chat_template"));
    Ok(())
}

/// Converts what all trainers share and TRL has no option for.
fn common(draft: &mut Draft, is_chat: bool) {
    // Rows that code makes texts of are raw; conversations are written by the template.
    if is_chat {
        draft.drop_line("data.chat_template")
    } else if draft.get("data.chat_template").is_none() {
        draft.set_text("data.chat_template", "none", "its types write their text without a template");
    }
    let template =
        ["datasets.chat_template", "chat_template"].into_iter().filter_map(|name| draft.take_text(name));
    let template = template.collect::<Vec<_>>().into_iter().next();
    if let Some(taken) = template.filter(|taken| is_chat && !taken.value.starts_with("tokenizer_default")) {
        match taken.value.as_str() {
            "jinja" => {}
            name => {
                let why = format!("{} is a template of axolotl's called {name}", taken.from);
                draft.set_toml("data.chat_template", "\"\"", &why);
                draft.missing.push(format!(
                    "data.chat_template: {why}: write it as a Jinja file, or take the key out if it is the model's own"
                ));
            }
        }
    }
    if let Some(taken) = draft.take_text("adapter")
        && !["lora", "qlora"].contains(&taken.value.as_str())
    {
        draft.is_not_built(&taken, Unbuilt::Adapters);
    }
    if let Some(taken) = draft.take_text("plugins") {
        let is_kernel = |name: &String| {
            ["cut_cross_entropy", "liger", "LigerPlugin", "CutCrossEntropy", "kernels"]
                .iter()
                .any(|part| name.contains(part))
        };
        if list(&taken.value).iter().all(is_kernel) {
            draft.leave(&taken, why::KERNELS)
        } else {
            draft.is_not_built(&taken, Unbuilt::Trainer)
        }
    }
    if let Some((share, taken)) = draft.take_number("val_set_size")
        && share != 0.0
    {
        draft.leave(&taken, "rows that are held out of the data there: write them to a file of their own, and name it as data.eval");
    }
    if let Some(taken) = draft.take_text("excess_length_strategy").filter(|taken| taken.value != "raise") {
        draft.leave(&taken, "a row that fits no micro-batch is an error here");
    }
    trackers(draft);
}

/// Writes the trackers: W&B where a project is named, as axolotl has it.
fn trackers(draft: &mut Draft) {
    let wandb = draft.take("use_wandb").filter(|taken| flag(&taken.value) != Some(false));
    let project = draft.is_written("project");
    if let Some(taken) = wandb.or_else(|| draft.take_text("project").filter(|_| project)) {
        track::send_to(draft, &["wandb"], &taken);
    } else if let Some(taken) = draft.take("use_tensorboard").filter(|taken| flag(&taken.value) == Some(true))
    {
        track::send_to(draft, &["tensorboard"], &taken);
    }
    track::names(draft, Some("project"), "run_name");
}
