//! Every job of TRL's trainers, with TRL's defaults and with those that unsloth writes over them.

use super::unsloth::jobs as unsloth;
use super::{import, pairs};
use crate::import::draft::Job;

pub(super) const JOBS: &[Job] = &[
    import::GRPO,
    import::RLOO,
    pairs::SFT,
    pairs::DPO,
    pairs::CPO,
    pairs::ORPO,
    pairs::KTO,
    pairs::REWARD,
    unsloth::GRPO,
    unsloth::SFT,
    unsloth::DPO,
    unsloth::ORPO,
    unsloth::KTO,
    unsloth::REWARD,
];
