//! Converts what needs several of prime-rl's options together: its loss, its environments, and the rows of `sft`.

use crate::import::draft::{Draft, Job};
use crate::import::{data, parts, track};
use crate::setting::{flag, list};
use crate::unbuilt::Unbuilt;
use plimsoll_base::Result;

pub(super) const JOBS: &[Job] = &[
    Job {
        trainers: &["rl"],
        of: None,
        defaults: &[
            ("orchestrator.algo.type", "grpo"),
            ("orchestrator.group_size", "1"),
            ("orchestrator.train.filter_zero_advantages", "True"),
            ("seq_len", "2048"),
            ("trainer.loss.dppo_mask_low", "0.2"),
            ("trainer.loss.dppo_mask_high", "0.2"),
            ("trainer.optim.lr", "1e-6"),
            ("trainer.optim.weight_decay", "0.01"),
            ("trainer.optim.betas1", "0.9"),
            ("trainer.optim.betas2", "0.999"),
            ("trainer.scheduler.type", "constant"),
        ],
        takes: &[],
        combine: rl,
    },
    Job {
        trainers: &["sft"],
        of: None,
        defaults: &[
            ("data.batch_size", "128"),
            ("data.seq_len", "128"),
            ("data.micro_batch_size", "1"),
            ("optim.lr", "1e-6"),
            ("optim.weight_decay", "0.01"),
            ("optim.betas1", "0.9"),
            ("optim.betas2", "0.999"),
            ("scheduler.type", "constant"),
        ],
        takes: &[],
        combine: sft,
    },
];

fn rl(draft: &mut Draft) -> Result<()> {
    draft.take("trainer");
    if let Some(taken) = draft.take_text("orchestrator.algo.type").filter(|taken| taken.value != "grpo") {
        return Err(Draft::no_method(&taken));
    }
    draft.set_text(
        "method",
        "dppo_tv",
        "its loss masks by the difference of probabilities, whatever the algorithm",
    );
    draft.set_text(
        "loss.advantage",
        "mean_baseline",
        "as prime-rl has it: a reward less the mean of its group",
    );
    draft.set_text("loss.aggregation", "token_mean", "as prime-rl has it");
    draft.choose(parts::BOUNDED);
    let kind = draft.take_text("trainer.loss.type").filter(|taken| taken.value != "default");
    for taken in kind.into_iter().chain(draft.take_text("trainer.loss.ipo_threshold")) {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
    if let Some((factor, taken)) = draft.take_number("trainer.loss.adv_tau")
        && factor != 1.0
    {
        draft.is_not_built(&taken, Unbuilt::Objective);
    }
    if let Some(taken) = draft.take("orchestrator.train.filter_zero_advantages")
        && flag(&taken.value) == Some(true)
    {
        draft.choose("a step's mean counts every token here, and there those alone whose advantage is not 0: loss.dynamic_sampling = true draws other prompts for groups of one reward");
    }
    shared(draft);
    batch(draft);
    environments(draft);
    Ok(())
}

/// Converts the batch, which counts rollouts there.
fn batch(draft: &mut Draft) {
    let group = draft.count("rollout.group_size").unwrap_or(1).max(1);
    match draft.take_count("orchestrator.batch_size") {
        Some((rollouts, taken)) => {
            draft.set_toml("rollout.prompts_per_step", (rollouts / group).max(1), &taken.from);
            draft.change(&taken, &format!("{rollouts} rollouts there, groups of {group} here"));
        }
        None => {
            let why = "it counts tokens there, or is not set";
            draft.leave_out("orchestrator.token_batch_size", why);
            draft.miss(
                "rollout.prompts_per_step",
                "orchestrator.batch_size",
                "the rollouts of a step divided by group_size",
            );
        }
    }
    let whole = draft.take_count("seq_len");
    if draft.get("rollout.max_new_tokens").is_none()
        && draft.unread("orchestrator.train.sampling.max_completion_tokens").is_none()
    {
        match whole {
            Some((tokens, taken)) => {
                draft.set_toml("rollout.max_new_tokens", tokens, &taken.from);
                draft.change(&taken, "prompt and response together there; the response here");
            }
            None => draft.miss("rollout.max_new_tokens", "seq_len", "the most tokens of a response"),
        }
    } else if let Some((_, taken)) = whole {
        draft.leave(&taken, "prompt and response have a limit each here");
    }
}

/// Names the environments, which hold prompts, turns and rewards: packages there, a class here.
fn environments(draft: &mut Draft) {
    let names = draft.take_text("taskset_ids").map(|taken| list(&taken.value)).unwrap_or_default();
    let why = match names.as_slice() {
        [] => "the file names no environment".to_string(),
        [one] => format!("the environment `{one}` is a package there, which has prompts, turns and reward"),
        several => format!(
            "{} are packages there, which have prompts, turns and rewards, and there is one here",
            several.join(", ")
        ),
    };
    draft.set_toml("environment.env", "\"\"", &why);
    draft.missing.push(format!(
        "environment.env: {why}: write python:FILE.py:CLASS as docs/environments.md says, or take the section out, and name data.prompts and a [[reward]]"
    ));
}

fn sft(draft: &mut Draft) -> Result<()> {
    draft.take("trainer");
    draft.set_text("method", "sft", "its keys are those of `sft`");
    if let Some(taken) = draft.take_text("data.type").filter(|taken| taken.value != "sft") {
        draft.is_not_built(&taken, Unbuilt::PlainText);
    }
    shared(draft);
    data::data(draft, &DATA);
    if let Some(taken) = draft.take("data.shuffle") {
        draft.set_toml("data.shuffle", flag(&taken.value).unwrap_or(true), &taken.from);
    }
    draft.set_text("data.train_on", "assistant", "default of prime-rl: data.loss_mask");
    for name in ["system", "user", "tool"] {
        if let Some(taken) =
            draft.take(&format!("data.loss_mask.{name}")).filter(|taken| flag(&taken.value) == Some(true))
        {
            draft.is_not_built(&taken, Unbuilt::PlainText);
        }
    }
    if let Some(taken) =
        draft.take("data.loss_mask.assistant").filter(|taken| flag(&taken.value) == Some(false))
    {
        draft.is_not_built(&taken, Unbuilt::PlainText);
    }
    let longest = draft.take_count("data.seq_len");
    let tokens = longest.as_ref().map(|(count, _)| *count);
    parts::micro_batch_of_rows(draft, "data.micro_batch_size", tokens, 1);
    if let Some((_, taken)) = longest {
        draft.change(
            &taken,
            "rows are cut to it and packed there; here one that fits no micro-batch is an error",
        );
    }
    Ok(())
}

const DATA: data::Of = data::Of {
    prompts: "data.name",
    eval: "val.data.name",
    weights: None,
    subset: Some("data.subsets"),
    splits: [Some("data.splits"), None],
};

/// Converts model, optimizer, steps and trackers.
fn shared(draft: &mut Draft) {
    parts::model(draft, "model.name");
    if let Some(taken) = draft.take_text("trainer.optim.type").filter(|taken| taken.value != "adamw") {
        draft.is_not_built(&taken, Unbuilt::Optimizer);
    }
    if let (Some(first), Some(second)) =
        (draft.take_number("trainer.optim.betas1"), draft.take_number("trainer.optim.betas2"))
    {
        draft.set_toml(
            "train.betas",
            format!("[{:?}, {:?}]", first.0, second.0),
            &format!("{}, {}", first.1.from, second.1.from),
        );
    }
    match draft.take_count("max_steps") {
        Some((steps, taken)) => draft.set_toml("train.steps", steps, &taken.from),
        None => parts::chosen_steps(draft, "max_steps", "the file does not say how long the run is"),
    }
    parts::schedule(draft, "trainer.scheduler.type", "");
    if let Some(taken) = draft
        .take_text("orchestrator.renderer.name")
        .filter(|taken| !["auto", "default"].contains(&taken.value.as_str()))
    {
        draft.change(
            &taken,
            "the model's own template writes the turns here: data.chat_template names another",
        );
    }
    if let Some(taken) = draft.take_text("monitors.wandb.project") {
        track::send_to(draft, &["wandb"], &taken);
        track::names(draft, Some("monitors.wandb.project"), "monitors.wandb.name");
    }
    if draft.is_on("monitors.wandb.offline") && draft.get("track.to").is_some() {
        draft.set_text("track.mode", "offline", "monitors.wandb.offline");
    }
}
