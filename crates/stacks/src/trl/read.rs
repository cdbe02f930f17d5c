//! Finds TRL's settings in a command line, in YAML or JSON, or in a script; and their trainer.

use super::jobs::JOBS;
use super::parsed;
use super::script::{self, TRAINERS};
use crate::launch::config;
use crate::launch::shell::{self, word::Word};
use crate::launch::source::Source;
use crate::setting::{Setting, TRAINER, named_trainer};
use plimsoll_base::Result;

pub(super) fn read(source: &Source<'_>) -> Result<Vec<Setting>> {
    let text = source.text;
    if let Some(given) = config::json(text) {
        return Ok(given);
    }
    let given = script::read(source)?;
    if !given.is_empty() {
        // A parser's settings are in the command alone: without it all would be TRL's defaults.
        let is_built = |name: &str| JOBS.iter().any(|job| job.trainers.contains(&name));
        let trainer = named_trainer(&given).filter(|name| !is_built(name));
        return match (trainer, script::is_parsed(text)) {
            (Some(_), _) => Ok(given.into_iter().filter(|one| one.key == TRAINER).collect()),
            (None, true) => parsed::command_of_text(source, given),
            (None, false) => Ok(given),
        };
    }
    if let Some(given) = parsed::command_next_to_script(source)? {
        return Ok(given);
    }
    if let Some(command) = shell::trainer(text, trainer_at) {
        let name = trainer_of(command.trainer()).unwrap_or_default();
        let given = command.launcher().into_iter().chain([Setting::new(TRAINER, name, command.word().line)]);
        return Ok(given.chain(shell::flags(command.arguments())).chain(command.others).collect());
    }
    let starts = |words: &Vec<Word>| matches!(words[0].text.as_str(), "trl" | "accelerate");
    // Python without a trainer is no YAML.
    let is_other = source.path.ends_with(".py") || shell::script(text).commands.iter().any(starts);
    if is_other { Ok(Vec::new()) } else { config::yaml(source) }
}

/// Returns where a command names a trainer: `trl NAME`, or TRL's script for it.
fn trainer_at(words: &[Word]) -> Option<usize> {
    words.iter().enumerate().position(|(at, word)| {
        let before = at.checked_sub(1).map_or("", |before| words[before].text.as_str());
        let is_argument = matches!(before, "trl" | "trl.cli") || before.ends_with("/trl");
        let is_script = at > 0 && word.text.contains(['.', '/']);
        (is_argument || is_script) && trainer_of(&word.text).is_some()
    })
}

/// Finds the trainer in `grpo`, `trl/scripts/grpo.py`, `train_grpo.py`, `trl.scripts.grpo`.
fn trainer_of(word: &str) -> Option<&'static str> {
    let last = word.rsplit('/').next().unwrap_or_default();
    let stem = last.strip_suffix(".py").unwrap_or(last);
    let is_it = |name: &str| {
        if last.ends_with(".py") {
            stem.ends_with(name) || (name == "reward" && stem.ends_with("reward_modeling"))
        } else {
            stem == name || stem.ends_with(&format!(".scripts.{name}"))
        }
    };
    TRAINERS.iter().map(|(name, _)| *name).find(|name| is_it(name))
}

/// Keys and values of only one trainer's configuration.
const SIGNS: [(&str, &[&str]); 4] = [
    (
        "grpo",
        &[
            "reward_funcs",
            "num_generations",
            "max_completion_length",
            "use_vllm",
            "vllm_mode",
            "scale_rewards",
            "mask_truncated_completions",
            "num_iterations",
            "epsilon",
            "epsilon_high",
            "importance_sampling_level",
            "generation_batch_size",
            "steps_per_generation",
        ],
    ),
    (
        "sft",
        &[
            "packing",
            "packing_strategy",
            "eval_packing",
            "assistant_only_loss",
            "completion_only_loss",
            "dataset_text_field",
            "max_seq_length",
        ],
    ),
    (
        "dpo",
        &[
            "precompute_ref_log_probs",
            "rpo_alpha",
            "ld_alpha",
            "f_divergence_type",
            "reference_free",
            "use_weighting",
            "loss_weights",
            "ref_model_name_or_path",
            "label_smoothing",
        ],
    ),
    ("reward", &["center_rewards_coefficient"]),
];

const LOSSES: [(&str, &[&str]); 3] = [
    ("grpo", &["grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"]),
    ("sft", &["nll", "chunked_nll", "dft"]),
    (
        "dpo",
        &["sigmoid", "ipo", "hinge", "robust", "exo_pair", "nca_pair", "sppo_hard", "apo_zero", "apo_down"],
    ),
];

/// Returns the trainer in the settings, or the only one with their keys.
pub(super) fn trainer(settings: &[Setting]) -> Option<String> {
    if let Some(name) = named_trainer(settings) {
        return Some(name);
    }
    let has = |signs: &[&str]| settings.iter().any(|one| signs.contains(&one.key.as_str()));
    let of_loss = |name: &str| {
        let losses =
            LOSSES.iter().find(|(trainer, _)| *trainer == name).map_or(&[][..], |(_, losses)| losses);
        settings.iter().any(|one| one.key == "loss_type" && losses.contains(&one.value.as_str()))
    };
    let mut found = SIGNS.iter().filter(|(name, signs)| has(signs) || of_loss(name)).map(|(name, _)| *name);
    let first = found.next()?;
    found.next().is_none().then(|| first.to_string())
}
