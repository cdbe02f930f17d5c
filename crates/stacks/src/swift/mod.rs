//! ms-swift's commands `swift sft` and `swift rlhf`: fine-tuning, the pair trainers, a reward model, and GRPO.

mod import;
mod options;
mod read;

use crate::import::draft::Import;
use crate::import::images;
use crate::import::lora::{Lora, Silent, lora};
use crate::setting::named_trainer;
use crate::stack::Stack;

pub(crate) static STACK: Stack = Stack {
    name: "swift",
    looked_for: "a command `swift sft --flag value ...` or `swift rlhf --rlhf_type NAME --flag value ...`",
    is_of: |source| read::is_of(source.text),
    read: |source| Ok(read::read(source.text)),
    trainer: |settings| named_trainer(settings),
    table: &options::TABLE,
    import: Some(&IMPORT),
    planned: None,
};

static LORA: Lora = Lora {
    asked_by: &[(
        "tuner_type",
        Silent { of: "ms-swift", rank: 8, alpha: 32.0, dropout: 0.05, targets: "all-linear" },
    )],
    rank: "lora_rank",
    alpha: "lora_alpha",
    dropout: "lora_dropout",
    targets: "target_modules",
    parameters: Some("target_parameters"),
    rslora: Some("use_rslora"),
    bias: Some("lora_bias"),
    adapter: Some("adapters"),
    four_bits: Some("load_in_4bit"),
    adapts_critic: false,
};

const IMAGES: images::Of = images::Of {
    frozen: "freeze_vit",
    is_frozen: true,
    joint_frozen: "freeze_aligner",
    pixels_max: "max_pixels",
    has_variables: true,
    ..images::Of::NONE
};

static IMPORT: Import = Import {
    title: "ms-swift",
    file: "a shell script with `swift sft --flag value ...` or `swift rlhf ...`: also dpo, cpo, simpo, orpo, kto, rm and grpo",
    adapter: Some(|draft| lora(draft, &LORA)),
    images: Some(|draft| images::images(draft, &IMAGES)),
    jobs: import::JOBS,
    nearest: &[
        ("gkd", "distill"),
        ("ppo", "ppo"),
        ("megatron sft", "sft"),
        ("megatron pt", "sft"),
        ("megatron rlhf", "grpo"),
    ],
};
