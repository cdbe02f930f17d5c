//! Jobs of TRL with the defaults that unsloth writes into their configurations when it is imported.

use crate::import::draft::{Draft, Job};
use crate::import::parts;
use crate::setting::flag;
use crate::trl::{import, pairs};
use plimsoll_base::Result;

/// (name, value) that unsloth writes into every configuration of TRL.
macro_rules! defaults {
    ($($more:expr),* $(,)?) => {
        &[
            ("per_device_train_batch_size", "4"),
            ("gradient_accumulation_steps", "2"),
            ("weight_decay", "0.001"),
            ("seed", "3407"),
            ("optim", "adamw_8bit"),
            ("learning_rate", "5e-5"),
            ("warmup_ratio", "0.1"),
            ("lr_scheduler_type", "linear"),
            ("adam_beta1", "0.9"),
            ("adam_beta2", "0.999"),
            $($more),*
        ]
    };
}

const OF: Option<&str> = Some("unsloth");

pub(in crate::trl) const GRPO: Job = Job {
    trainers: &["unsloth grpo"],
    of: OF,
    defaults: defaults![
        ("max_completion_length", "512"),
        ("num_generations", "8"),
        ("beta", "0.001"),
        ("use_bias_correction_kl", "True"),
        ("loss_type", "bnpo"),
        ("scale_rewards", "group"),
    ],
    combine: grpo,
    ..import::GRPO
};

pub(in crate::trl) const SFT: Job =
    Job { trainers: &["unsloth sft"], of: OF, defaults: defaults![("max_length", "1024")], ..pairs::SFT };

pub(in crate::trl) const DPO: Job = Job {
    trainers: &["unsloth dpo"],
    of: OF,
    defaults: defaults![("beta", "0.1"), ("loss_type", "sigmoid"), ("max_length", "1024")],
    ..pairs::DPO
};

pub(in crate::trl) const ORPO: Job = Job {
    trainers: &["unsloth orpo"],
    of: OF,
    defaults: defaults![("beta", "0.1"), ("max_length", "1024")],
    ..pairs::ORPO
};

pub(in crate::trl) const KTO: Job = Job {
    trainers: &["unsloth kto"],
    of: OF,
    defaults: defaults![
        ("beta", "0.1"),
        ("loss_type", "kto"),
        ("desirable_weight", "1.0"),
        ("undesirable_weight", "1.0"),
        ("max_length", "1024"),
    ],
    ..pairs::KTO
};

pub(in crate::trl) const REWARD: Job = Job {
    trainers: &["unsloth reward"],
    of: OF,
    defaults: defaults![("max_length", "1024")],
    ..pairs::REWARD
};

/// Converts GRPO with what unsloth's configuration does to two losses.
fn grpo(draft: &mut Draft) -> Result<()> {
    let loss = draft.take("loss_type").map(|taken| taken.value.to_ascii_lowercase()).unwrap_or_default();
    let scale = draft.take("scale_rewards").and_then(|taken| flag(&taken.value));
    (import::GRPO.combine)(draft)?;
    draft.leave_out("max_length", "prompt and response have a limit each here");
    match loss.as_str() {
        "dr_grpo" if scale == Some(true) => {
            draft.set_text("loss.advantage", "mean_baseline", "as unsloth has dr_grpo");
            draft.choose(parts::BOUNDED);
        }
        "dapo" => {
            draft.set_toml("loss.mask_truncated", "true", "as unsloth has dapo");
            draft.set_toml("loss.clip_high", "0.28", "as unsloth has dapo");
        }
        _ => {}
    }
    Ok(())
}
