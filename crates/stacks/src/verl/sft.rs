//! verl's SFT trainer. A step here is one of its updates, of `data.train_batch_size` rows.

use super::import::{data, steps, trackers};
use crate::import::draft::{Draft, Job};
use crate::import::parts;
use crate::table::Take::Later;
use plimsoll_base::Result;

pub(super) const SFT: Job = Job {
    trainers: &["sft"],
    of: None,
    defaults: &[
        ("data.train_batch_size", "256"),
        ("data.micro_batch_size_per_gpu", "4"),
        ("data.max_length", "1024"),
        ("optim.lr", "1e-5"),
        ("optim.betas", "[0.9, 0.95]"),
        ("optim.weight_decay", "0.01"),
        ("optim.warmup_steps_ratio", "0.1"),
        ("optim.clip_grad", "1.0"),
        ("optim.lr_scheduler", "cosine"),
    ],
    takes: &[("data.prompt_key", Later)],
    combine,
};

fn combine(draft: &mut Draft) -> Result<()> {
    draft.set_text("method", "sft", "fsdp_sft_trainer");
    draft.take("trainer");
    parts::model(draft, "model.partial_pretrain");
    data(draft);
    trackers(draft);
    if !parts::every_turn(draft, "data.multiturn.enable") {
        draft.leave_out("data.prompt_key", "a row has `messages`, or `prompt` and `completion` here");
        draft.choose(
            "a row has `prompt`, as messages, and `completion`: there the prompt is made a user's message, and the model's template is applied",
        );
    }
    let longest = draft.take_count("data.max_length");
    let tokens = longest.map(|(count, _)| count);
    parts::micro_batch_of_rows(draft, "data.micro_batch_size_per_gpu", tokens, 1);
    parts::adamw(draft, "optim.optimizer");
    steps(draft, 4.0);
    parts::schedule(draft, "optim.lr_scheduler", "optim.warmup_steps_ratio");
    Ok(())
}
