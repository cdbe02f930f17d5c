//! Finds the command of ms-swift in a shell script, and what it says in words of its own.

use crate::import::data::hub_name;
use crate::launch::shell::{self, word::Word};
use crate::setting::{Setting, TRAINER, list};

/// Commands that train, and the trainer that each is without `--rlhf_type`.
const COMMANDS: [(&str, &str); 6] = [
    ("swift sft", "sft"),
    ("swift pt", "pt"),
    ("swift rlhf", "dpo"),
    ("megatron sft", "megatron sft"),
    ("megatron pt", "megatron pt"),
    ("megatron rlhf", "megatron rlhf"),
];

pub(super) fn is_of(text: &str) -> bool {
    let is_command =
        |start: &str| text.contains(&format!("{start} \\")) || text.contains(&format!("{start} --"));
    COMMANDS.iter().any(|(start, _)| is_command(start)) || text.contains("swift/cli/")
}

pub(super) fn read(text: &str) -> Vec<Setting> {
    let Some(command) = shell::trainer(text, trainer_at) else { return Vec::new() };
    let flags = shell::flags(command.arguments());
    let value = |key: &str| flags.iter().rev().find(|one| one.key == key);
    let start = command_of(command.before(), command.trainer()).unwrap_or_default();
    let usual = COMMANDS.iter().find(|(name, _)| *name == start).map_or("sft", |(_, trainer)| *trainer);
    let trainer = match value("rlhf_type").filter(|one| one.unreadable.is_none()) {
        Some(one) if usual == "dpo" => one.value.clone(),
        _ => usual.to_string(),
    };
    let mut given = vec![Setting::new(TRAINER, trainer, command.word().line)];
    given.extend(command.launcher());
    let variables = shell::script(text).variables;
    let count = variables.iter().rev().find(|(name, ..)| name == "NPROC_PER_NODE");
    given.extend(count.map(|(_, value, line)| Setting::new("num_processes", value, *line)));
    given.extend(flags.iter().map(|one| plain(one.clone())));
    let four = value("quant_bits").filter(|one| one.value == "4" && is_bnb(value("quant_method")));
    given.extend(four.map(|one| Setting::new("load_in_4bit", "True", one.line)));
    let has_turns = flags.iter().any(|one| OF_TURNS.contains(&one.key.as_str()));
    given.extend(turns_of_sampler(text).filter(|_| !has_turns));
    given.into_iter().chain(command.others).collect()
}

/// Flags that make episodes of several turns, of the trainer or of `swift rollout`, which samples for it.
const OF_TURNS: [&str; 2] = ["multi_turn_scheduler", "use_gym_env"];

/// Finds a flag of the sampler that the file starts, or says how to start, next to the trainer.
fn turns_of_sampler(text: &str) -> Option<Setting> {
    text.lines().enumerate().find_map(|(index, line)| {
        let (flag, rest) = line.trim_start_matches(['#', ' ']).strip_prefix("--")?.split_once(' ')?;
        let value = rest.split_whitespace().next()?;
        OF_TURNS.contains(&flag).then(|| Setting::new(flag, value, index + 1))
    })
}

fn is_bnb(method: Option<&Setting>) -> bool {
    method.is_none_or(|one| one.value == "bnb")
}

fn trainer_at(words: &[Word]) -> Option<usize> {
    (0..words.len()).find(|&at| {
        let before = at.checked_sub(1).map(|before| &words[before]);
        command_of(before, &words[at].text).is_some()
    })
}

/// Returns `swift rlhf` for a command of these two words, or of `swift/cli/rlhf.py`.
fn command_of(before: Option<&Word>, word: &str) -> Option<&'static str> {
    let program = before.map_or("", |before| before.text.rsplit('/').next().unwrap_or_default());
    let file = word.strip_suffix(".py").and_then(|stem| stem.rsplit_once("swift/cli/")).map(|(_, stem)| stem);
    let (program, name) = match file {
        Some(stem) => ("swift", stem.strip_prefix("_megatron/").unwrap_or(stem)),
        None => (program, word),
    };
    COMMANDS.iter().map(|(start, _)| *start).find(|start| *start == format!("{program} {name}"))
}

/// Replaces names of data sets, older names of options, and words for none.
fn plain(mut one: Setting) -> Setting {
    match one.key.as_str() {
        "dataset" | "val_dataset" => {
            let sets: Vec<String> = list(&one.value).iter().map(|set| data_set(set)).collect();
            one.value = format!("[{}]", sets.join(", "));
        }
        "tuner_type" | "train_type" | "sft_type" if one.value == "full" => one.value = "None".into(),
        _ => {}
    }
    one
}

/// Writes `org/name:subset#1000` as `hf:org/name/subset/train`, without the number of rows; a file is kept.
fn data_set(text: &str) -> String {
    let text = text.split('#').next().unwrap_or_default();
    let text = ["hf::", "HF::", "ms::", "MS::"].iter().find_map(|hub| text.strip_prefix(hub)).unwrap_or(text);
    let (name, subset) = text.split_once(':').map_or((text, None), |(name, subset)| (name, Some(subset)));
    let here = hub_name(name, subset, None, true);
    format!("\"{}\"", here.unwrap_or_else(|| name.to_string()))
}
