//! verl's `main_ppo`, simpleRL-reason's fork, and the SFT trainer: overrides by full path, or Hydra's configuration.

mod import;
mod memory;
mod options;
mod reported;
mod sft;

use crate::import::draft::Import;
use crate::import::images;
use crate::import::lora::{Lora, Silent, lora};
use crate::launch::config;
use crate::launch::shell::{self, word::Word};
use crate::launch::source::Source;
use crate::options::Options;
use crate::setting::{Setting, TRAINER, named_trainer};
use crate::stack::{Planned, Stack};
use plimsoll_base::Result;

pub(crate) static STACK: Stack = Stack {
    name: "verl",
    looked_for: "a command `... verl.trainer.main_ppo key=value ...` or `... verl.trainer.fsdp_sft_trainer key=value ...`",
    is_of: |source| source.text.contains("verl.trainer."),
    read,
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
        "actor_rollout_ref.model.lora_rank",
        Silent { of: "verl", rank: 0, alpha: 16.0, dropout: 0.0, targets: "all-linear" },
    )],
    rank: "actor_rollout_ref.model.lora_rank",
    alpha: "actor_rollout_ref.model.lora_alpha",
    dropout: "actor_rollout_ref.model.lora.dropout",
    targets: "actor_rollout_ref.model.target_modules",
    parameters: Some("actor_rollout_ref.model.target_parameters"),
    rslora: None,
    bias: None,
    adapter: Some("actor_rollout_ref.model.lora_adapter_path"),
    four_bits: None,
    adapts_critic: false,
};

const IMAGES: images::Of = images::Of {
    column: "data.image_key",
    frozen: "actor_rollout_ref.actor.freeze_vision_tower",
    excluded: "actor_rollout_ref.model.exclude_modules",
    ..images::Of::NONE
};

static IMPORT: Import = Import {
    title: "verl",
    file: "a shell script with `python3 -m verl.trainer.main_ppo key=value ...`, or the YAML that Hydra writes; also of fsdp_sft_trainer",
    adapter: Some(|draft| lora(draft, &LORA)),
    images: Some(|draft| images::images(draft, &IMAGES)),
    jobs: &[import::PPO, sft::SFT],
    nearest: &[],
};

/// The trainer of `main_ppo`, for any estimator, and that of `fsdp_sft_trainer`.
const PPO: &str = "ppo";
const SFT: &str = "sft";

fn read(source: &Source<'_>) -> Result<Vec<Setting>> {
    let sft = || Setting::new(TRAINER, SFT, 0);
    if let Some(command) = shell::trainer(source.text, trainer_at) {
        let is_sft = command.trainer().contains("sft_trainer");
        // A program of its own, which is refused by its name.
        let other = command.trainer().strip_prefix(EXPERIMENTAL).and_then(|module| module.rsplit('.').next());
        let other = other.map(|name| Setting::new(TRAINER, name, command.word().line));
        let named = is_sft.then(sft).or(other);
        let given = named.into_iter().chain(shell::overrides(command.arguments()));
        return Ok(given.chain(command.others).collect());
    }
    let given = config::interpolate(config::yaml(source)?);
    let has = |sections: &[&str]| {
        given.iter().any(|one| sections.iter().any(|section| one.key.starts_with(section)))
    };
    Ok(match () {
        () if has(&["actor_rollout_ref.", "algorithm."]) => given,
        () if has(&["model.partial_pretrain"]) || (has(&["data."]) && has(&["optim."])) => {
            given.into_iter().chain([sft()]).collect()
        }
        () if has(&["data."]) => given,
        () => Vec::new(),
    })
}

/// The package of programs that train in other ways.
const EXPERIMENTAL: &str = "verl.experimental.";

fn trainer_at(words: &[Word]) -> Option<usize> {
    const MODULES: [&str; 5] =
        ["verl.trainer.main_ppo", ".main_dapo", "main_ppo.py", "sft_trainer.py", "verl.trainer.sft_trainer"];
    words.iter().position(|word| {
        let text = word.text.as_str();
        MODULES.iter().any(|module| text.contains(module))
            || text.ends_with(".fsdp_sft_trainer")
            || text.starts_with(EXPERIMENTAL)
    })
}

fn newest(options: &Options) -> (&'static str, &'static str) {
    if options.has("actor_rollout_ref.rollout.swap_space") {
        ("0.2", "simpleRL-reason's fork, by its option swap_space")
    } else {
        ("0.7.0", "the newest that was read")
    }
}
