//! SkyRL's `main_base`: overrides by full path.

mod import;
mod options;

use crate::import::draft::Import;
use crate::import::lora::{Lora, Silent, lora};
use crate::launch::shell::{self, word::Word};
use crate::launch::source::Source;
use crate::setting::{Setting, TRAINER, named_trainer};
use crate::stack::Stack;

pub(crate) static STACK: Stack = Stack {
    name: "skyrl",
    looked_for: "a command `... -m skyrl.train.entrypoints.main_base key=value ...`",
    is_of: |source| ["skyrl.train.", "skyrl_train."].iter().any(|module| source.text.contains(module)),
    read: |source| Ok(read(source)),
    trainer: |settings| named_trainer(settings),
    table: &options::TABLE,
    import: Some(&IMPORT),
    planned: None,
};

static LORA: Lora = Lora {
    asked_by: &[(
        "trainer.policy.model.lora.rank",
        Silent { of: "SkyRL", rank: 0, alpha: 16.0, dropout: 0.0, targets: "all-linear" },
    )],
    rank: "trainer.policy.model.lora.rank",
    alpha: "trainer.policy.model.lora.alpha",
    dropout: "trainer.policy.model.lora.dropout",
    targets: "trainer.policy.model.lora.target_modules",
    parameters: None,
    rslora: None,
    bias: None,
    adapter: None,
    four_bits: None,
    adapts_critic: false,
};

static IMPORT: Import = Import {
    title: "SkyRL",
    file: "a shell script with `... -m skyrl.train.entrypoints.main_base key=value ...`, or main_dapo of its examples",
    adapter: Some(|draft| lora(draft, &LORA)),
    images: None,
    jobs: import::JOBS,
    nearest: &[("main_sft", "sft"), ("main_on_policy_distill", "distill")],
};

/// Programs that train by this job alone, and those that sample while they train.
const MAIN: [&str; 5] =
    ["main_base", "main_dapo", "main_tis_dapo", "main_fully_async", "main_dapo_fully_async"];

fn read(source: &Source<'_>) -> Vec<Setting> {
    let Some(command) = shell::trainer(source.text, trainer_at) else { return Vec::new() };
    let name = command.trainer().rsplit('.').next().unwrap_or_default().to_string();
    let name = if MAIN.contains(&name.as_str()) { "main_base".to_string() } else { name };
    let named = Setting::new(TRAINER, name, command.word().line);
    [named].into_iter().chain(shell::overrides(command.arguments())).chain(command.others).collect()
}

/// Returns the module after `-m` that trains: SkyRL's own, or one of its examples.
fn trainer_at(words: &[Word]) -> Option<usize> {
    (1..words.len()).find(|&at| {
        let module = words[at].text.as_str();
        let last = module.rsplit('.').next().unwrap_or_default();
        let is_its = ["skyrl.", "skyrl_train.", "examples.", "integrations."]
            .iter()
            .any(|start| module.starts_with(start));
        words[at - 1].text == "-m" && is_its && last.starts_with("main_")
    })
}
