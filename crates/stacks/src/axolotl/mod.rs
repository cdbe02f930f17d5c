//! axolotl's YAML: fine-tuning, the pair trainers, a reward model, and GRPO, all of which are TRL's trainers.

mod import;
mod options;
mod read;

use crate::import::draft::Import;
use crate::import::lora::{Lora, PEFT_TARGETS, Silent, lora};
use crate::setting::named_trainer;
use crate::stack::Stack;

pub(crate) static STACK: Stack = Stack {
    name: "axolotl",
    looked_for: "YAML with `base_model` and `datasets`",
    is_of: |source| read::is_of(source.text),
    read: read::read,
    trainer: |settings| named_trainer(settings),
    table: &options::TABLE,
    import: Some(&IMPORT),
    planned: None,
};

/// The file gives rank and alpha, or axolotl stops.
const SILENT: Silent = Silent { of: "axolotl", rank: 8, alpha: 16.0, dropout: 0.0, targets: PEFT_TARGETS };

static LORA: Lora = Lora {
    asked_by: &[("adapter", SILENT)],
    rank: "lora_r",
    alpha: "lora_alpha",
    dropout: "lora_dropout",
    targets: "lora_target_modules",
    parameters: Some("lora_target_parameters"),
    rslora: Some("use_rslora"),
    bias: None,
    adapter: Some("lora_model_dir"),
    four_bits: Some("load_in_4bit"),
    adapts_critic: false,
};

static IMPORT: Import = Import {
    title: "axolotl",
    file: "YAML with `base_model`: fine-tuning, dpo, ipo, kto, orpo, simpo, grpo, gdpo and a reward model",
    adapter: Some(|draft| lora(draft, &LORA)),
    images: None,
    jobs: import::JOBS,
    nearest: &[("ebft", "grpo"), ("process_reward_model", "reward_model")],
};
