//! prime-rl's TOML: `rl.toml`, whose environments are packages of their own, and `sft.toml`.

mod import;
mod options;
mod read;

use crate::import::draft::Import;
use crate::import::lora::{Lora, Silent, lora};
use crate::setting::named_trainer;
use crate::stack::Stack;

pub(crate) static STACK: Stack = Stack {
    name: "prime-rl",
    looked_for: "TOML with `[orchestrator]` and `[trainer]`, or with `[data]` and `[optim]`",
    is_of: |source| !read::read(source.text).is_empty(),
    read: |source| Ok(read::read(source.text)),
    trainer: |settings| named_trainer(settings),
    table: &options::TABLE,
    import: Some(&IMPORT),
    planned: None,
};

static LORA: Lora = Lora {
    asked_by: &[(
        "lora.is_given",
        Silent {
            of: "prime-rl",
            rank: 16,
            alpha: 32.0,
            dropout: 0.0,
            targets: "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
        },
    )],
    rank: "trainer.model.lora.rank",
    alpha: "trainer.model.lora.alpha",
    dropout: "trainer.model.lora.dropout",
    targets: "trainer.model.lora.target_modules",
    parameters: None,
    rslora: None,
    bias: None,
    adapter: None,
    four_bits: None,
    adapts_critic: false,
};

static IMPORT: Import = Import {
    title: "prime-rl",
    file: "TOML of `rl` or `sft`",
    adapter: Some(|draft| lora(draft, &LORA)),
    images: None,
    jobs: import::JOBS,
    nearest: &[],
};
