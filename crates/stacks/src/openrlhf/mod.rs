//! OpenRLHF's `train_ppo_ray`, 0.1 to 0.11, and its SFT, DPO and reward model trainers.

mod import;
mod memory;
mod options;
mod pairs;
mod reported;

use crate::import::draft::Import;
use crate::import::images;
use crate::import::lora::{Lora, Silent, lora};
use crate::launch::shell::{self, word::Word};
use crate::launch::source::Source;
use crate::options::Options;
use crate::setting::{Setting, TRAINER, named_trainer};
use crate::stack::{Planned, Stack};

pub(crate) static STACK: Stack = Stack {
    name: "openrlhf",
    looked_for: "a command `... openrlhf.cli.train_ppo_ray --flag value ...`, or train_sft, train_dpo, train_rm",
    is_of: |source| source.text.contains("openrlhf.cli."),
    read: |source| Ok(read(source)),
    trainer: |settings| Some(named_trainer(settings).unwrap_or(PPO.into())),
    table: &options::TABLE,
    import: Some(&IMPORT),
    planned: Some(Planned {
        trainers: &[PPO],
        newest,
        rules: memory::rules,
        changes: memory::CHANGES,
        comparisons: reported::comparisons,
    }),
};

static LORA: Lora = Lora {
    asked_by: &[(
        "lora_rank",
        Silent { of: "OpenRLHF", rank: 0, alpha: 16.0, dropout: 0.0, targets: "all-linear" },
    )],
    rank: "lora_rank",
    alpha: "lora_alpha",
    dropout: "lora_dropout",
    targets: "target_modules",
    parameters: None,
    rslora: None,
    bias: None,
    adapter: None,
    four_bits: Some("load_in_4bit"),
    adapts_critic: true,
};

const IMAGES: images::Of =
    images::Of { column: "data.image_key", frozen: "actor.freeze_visual_encoder", ..images::Of::NONE };

static IMPORT: Import = Import {
    title: "OpenRLHF",
    file: "a shell script with `python3 -m openrlhf.cli.train_ppo_ray --flag value ...`; also of train_sft, train_dpo and train_rm",
    adapter: Some(|draft| lora(draft, &LORA)),
    images: Some(|draft| images::images(draft, &IMAGES)),
    jobs: &[import::PPO, pairs::SFT, pairs::DPO, pairs::RM],
    nearest: &[("kd", "distill"), ("kto", "kto"), ("prm", "reward_model")],
};

/// The trainer of `train_ppo_ray`, for any estimator.
const PPO: &str = "ppo";
/// Modules and files of its trainers, and their names. Those without a job are refused by name.
const TRAINERS: [(&str, &str); 7] = [
    ("train_ppo_ray", PPO),
    ("train_sft", "sft"),
    ("train_dpo", "dpo"),
    ("train_rm", "rm"),
    ("train_kto", "kto"),
    ("train_kd", "kd"),
    ("train_prm", "prm"),
];

fn read(source: &Source<'_>) -> Vec<Setting> {
    let Some(command) = shell::trainer(source.text, trainer_at) else { return Vec::new() };
    let name = trainer_of(command.trainer()).filter(|name| *name != PPO);
    let named = name.map(|name| Setting::new(TRAINER, name, command.word().line)).into_iter();
    named.chain(shell::flags(command.arguments())).chain(command.others).collect()
}

fn trainer_at(words: &[Word]) -> Option<usize> {
    words.iter().position(|word| trainer_of(&word.text).is_some())
}

/// Finds the trainer in `openrlhf.cli.train_sft` or `openrlhf/cli/train_sft.py`.
fn trainer_of(word: &str) -> Option<&'static str> {
    let is_it = |stem: &str| {
        word.ends_with(&format!("openrlhf.cli.{stem}"))
            || word.ends_with(&format!("/{stem}.py"))
            || word == format!("{stem}.py")
    };
    TRAINERS.iter().find(|(stem, _)| is_it(stem)).map(|(_, name)| *name)
}

fn newest(options: &Options) -> (&'static str, &'static str) {
    if options.has_first_names() {
        ("0.10.1", "the newest with flat flags")
    } else {
        ("0.11.2", "the newest that was read")
    }
}
