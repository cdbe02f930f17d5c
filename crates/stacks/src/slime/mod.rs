//! slime's `train.py`: flags of Megatron and its own.

mod import;
mod options;

use crate::import::draft::Import;
use crate::import::images;
use crate::launch::shell::{self, word::Word};
use crate::launch::source::Source;
use crate::setting::{Setting, TRAINER, list, named_trainer};
use crate::stack::Stack;

pub(crate) static STACK: Stack = Stack {
    name: "slime",
    looked_for: "a command `... python3 train.py --hf-checkpoint ... --rollout-batch-size ...`",
    is_of: |source| source.text.contains("--hf-checkpoint") && source.text.contains("--rollout-batch-size"),
    read: |source| Ok(read(source)),
    trainer: |settings| named_trainer(settings),
    table: &options::TABLE,
    import: Some(&IMPORT),
    planned: None,
};

const IMAGES: images::Of = images::Of { column: "multimodal_keys", ..images::Of::NONE };

static IMPORT: Import = Import {
    title: "slime",
    file: "a shell script with `... python3 train.py --flag value ...`, or train_async.py",
    adapter: None,
    images: Some(|draft| images::images(draft, &IMAGES)),
    jobs: import::JOBS,
    nearest: &[("sft", "sft")],
};

const OF_SHAPE: &str = "MODEL_ARGS";
/// The loss of supervised training, with the same program.
const SFT: &str = "sft_loss";

fn read(source: &Source<'_>) -> Vec<Setting> {
    let Some(command) = shell::trainer(source.text, trainer_at) else { return Vec::new() };
    // The model's shape is an array of another file, whose place may be after a switch.
    let words: Vec<Word> =
        command.arguments().iter().filter(|word| !word.text.contains(OF_SHAPE)).cloned().collect();
    let mut given = shell::flags(&words);
    if !given.iter().any(|one| one.key == "hf-checkpoint") {
        return Vec::new();
    }
    for one in &mut given {
        one.key = one.key.replace('-', "_");
        if one.key == "eval_prompt_data" {
            one.value = files_of(&one.value);
        }
    }
    let is_sft = given.iter().any(|one| one.key == "loss_type" && one.value == SFT);
    let name = if is_sft { "sft" } else { "rl" };
    let named = Setting::new(TRAINER, name, command.word().line);
    [named].into_iter().chain(given).chain(command.others).collect()
}

/// Takes the names out of `NAME FILE NAME FILE ...`.
fn files_of(text: &str) -> String {
    match list(text).as_slice() {
        [_] => text.to_string(),
        words => words.iter().skip(1).step_by(2).cloned().collect::<Vec<_>>().join(", "),
    }
}

/// Returns the program that trains, of a folder or of none.
fn trainer_at(words: &[Word]) -> Option<usize> {
    words.iter().position(|word| {
        ["train.py", "train_async.py"].contains(&word.text.rsplit('/').next().unwrap_or_default())
    })
}
