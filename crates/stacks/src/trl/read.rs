//! Finds TRL's settings in a command line, in YAML or JSON, or in a script; and their trainer.

use super::pairs::JOBS;
use super::script::{self, TRAINERS};
use crate::launch::config;
use crate::launch::shell::{self, word::Word};
use crate::launch::source::Source;
use crate::setting::{Setting, TRAINER, named_trainer};
use plimsoll_base::read_small_text;
use std::path::Path;

pub(super) fn read(source: &Source<'_>) -> Vec<Setting> {
    let text = source.text;
    if let Some(given) = config::json(text) {
        return given;
    }
    let given = script::read(source);
    if !given.is_empty() {
        // A parser's settings are in the command alone: without it all would be TRL's defaults.
        let is_built = |name: &str| JOBS.iter().any(|job| job.trainers.contains(&name));
        let trainer = named_trainer(&given).filter(|name| !is_built(name));
        return match (trainer, script::is_parsed(text)) {
            (Some(name), _) => vec![Setting::new(TRAINER, name, 0)],
            (None, true) => Vec::new(),
            (None, false) => given,
        };
    }
    if let Some(given) = command_of_script(source) {
        return given;
    }
    if let Some(command) = shell::trainer(text, trainer_at) {
        let name = trainer_of(command.trainer()).unwrap_or_default();
        let given = command.launcher().into_iter().chain([Setting::new(TRAINER, name, 0)]);
        return given.chain(shell::flags(command.arguments())).chain(command.others).collect();
    }
    let starts = |words: &Vec<Word>| matches!(words[0].text.as_str(), "trl" | "accelerate");
    if shell::script(text).commands.iter().any(starts) { Vec::new() } else { config::yaml(text) }
}

/// Longest script named by a command, equal to the limit of the file itself.
const SCRIPT_BYTES_MAX: u64 = 1 << 20;

/// Reads `accelerate launch X.py FLAGS`: trainer, data and rewards from X.py in the same folder, the rest from FLAGS.
fn command_of_script(source: &Source<'_>) -> Option<Vec<Setting>> {
    let folder = Path::new(source.path).parent()?;
    let find = |word: &Word| {
        let name = Path::new(&word.text).file_name()?;
        let places = [folder.join(&word.text), folder.join(name)];
        let place = places.into_iter().find(|place| place.is_file())?;
        Some((read_small_text(&place, SCRIPT_BYTES_MAX).ok()?, place))
    };
    let is_script = |word: &Word| {
        word.text.ends_with(".py") && find(word).is_some_and(|(text, _)| script::is_parsed(&text))
    };
    let command = shell::trainer(source.text, |words| words.iter().position(is_script))?;
    let (text, place) = find(command.word())?;
    let given = script::read(&Source { path: &place.to_string_lossy(), text: &text });
    // Names from the parser are flags, or defaults.
    let is_parsed =
        |one: &Setting| one.key == "args" || (one.unreadable.is_some() && one.value.contains("args."));
    let given: Vec<Setting> = given.into_iter().filter(|one| !is_parsed(one)).collect();
    // Lines are those of the given file.
    let given = given.into_iter().map(|one| Setting { line: 0, ..one });
    let flags = shell::flags(command.arguments());
    Some(command.launcher().into_iter().chain(given).chain(flags).chain(command.others).collect())
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
    let is_it = |name: &str| match last.ends_with(".py") {
        true => stem.ends_with(name) || (name == "reward" && stem.ends_with("reward_modeling")),
        false => stem == name || stem.ends_with(&format!(".scripts.{name}")),
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
