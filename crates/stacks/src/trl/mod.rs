//! TRL's GRPO and RLOO, and its SFT, DPO and reward trainers: command line, YAML or JSON, or a Python script.

pub(crate) mod import;
mod jobs;
mod memory;
mod options;
pub(crate) mod pairs;
mod parsed;
mod read;
mod script;
mod unsloth;

use crate::import::draft::{Draft, Import};
use crate::import::images;
use crate::import::lora::{Lora, PEFT_TARGETS, Silent, lora};
use crate::stack::{Planned, Stack};

pub(crate) static STACK: Stack = Stack {
    name: "trl",
    looked_for: "`trl grpo --flag value ...` or another of its trainers, YAML or JSON with the keys of its configuration, or a script or notebook that makes a trainer such as `GRPOTrainer(...)`; one that reads its settings with TrlParser or HfArgumentParser needs its command: a shell script next to it with `accelerate launch FILE.py --flag value ...`",
    is_of: |source| {
        ["import trl", "from trl ", "from trl.", "trl grpo", "trl sft", "trl dpo"]
            .iter()
            .any(|part| source.text.contains(part))
    },
    read: read::read,
    trainer: read::trainer,
    table: &options::TABLE,
    import: Some(&IMPORT),
    planned: Some(Planned {
        trainers: &["grpo", "rloo"],
        newest: |_| ("1.10.0", "the newest that was read"),
        rules: memory::rules,
        changes: memory::CHANGES,
        comparisons: |_, _| Vec::new(),
    }),
};

/// peft's `LoraConfig`, with the targets of Llama and Qwen.
const OF_PEFT: Silent = Silent { of: "peft", rank: 8, alpha: 8.0, dropout: 0.0, targets: PEFT_TARGETS };
/// TRL's own flags, which become a `LoraConfig`.
const OF_TRL: Silent = Silent { of: "TRL", rank: 16, alpha: 32.0, dropout: 0.05, targets: PEFT_TARGETS };

static LORA: Lora = Lora {
    asked_by: &[
        ("peft_config.peft_type", OF_PEFT),
        ("peft_config.unsloth", unsloth::loader::ADAPTER),
        ("use_peft", OF_TRL),
    ],
    rank: "lora_r",
    alpha: "lora_alpha",
    dropout: "lora_dropout",
    targets: "lora_target_modules",
    parameters: Some("lora_target_parameters"),
    rslora: Some("use_rslora"),
    bias: Some("peft_config.bias"),
    adapter: Some("peft_config.adapter_path"),
    four_bits: Some("load_in_4bit"),
    adapts_critic: false,
};

const IMAGES: images::Of =
    images::Of { column: "images", adapted: "peft_config.finetune_vision_layers", ..images::Of::NONE };

/// Takes the settings about images. Rows with images are conversations there, so the form of strings is not set.
fn pictures(draft: &mut Draft) {
    images::images(draft, &IMAGES);
    if draft.get("data.images").is_some() && draft.get("data.chat_template") == Some("\"none\"") {
        draft.drop_line("data.chat_template");
    }
}

static IMPORT: Import = Import {
    title: "TRL",
    file: "a shell script with `trl grpo --flag value ...`, YAML or JSON, a Python script or a notebook; also of sft, dpo, cpo, orpo, kto, reward and rloo",
    adapter: Some(|draft| lora(draft, &LORA)),
    images: Some(pictures),
    jobs: jobs::JOBS,
    nearest: &[
        ("gkd", "distill"),
        ("distillation", "distill"),
        ("GOLDTrainer", "distill"),
        ("MiniLLMTrainer", "distill"),
        ("SDFTTrainer", "distill"),
        ("SDPOTrainer", "distill"),
        ("BCOTrainer", "kto"),
        ("OnlineDPOTrainer", "dpo"),
        ("NashMDTrainer", "dpo"),
        ("XPOTrainer", "dpo"),
        ("TPOTrainer", "dpo"),
        ("PRMTrainer", "reward_model"),
        ("PPOTrainer", "ppo"),
        ("AsyncGRPOTrainer", "grpo"),
        ("UnslothTrainer", "sft"),
    ],
};
