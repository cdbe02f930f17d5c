//! Rewards of a run file as the reward crate takes them.

use crate::{Reward, RewardFailure};
use plimsoll_reward::{OnError, RewardSpec};

/// Converts a run file's rewards for the reward crate. Reward models are left out: the run scores with them itself.
pub(crate) fn reward_specs(rewards: &[Reward], answer_column: &str) -> Vec<RewardSpec> {
    rewards
        .iter()
        .filter(|r| !r.is_model())
        .map(|r| RewardSpec {
            kind: r.kind.clone(),
            weight: r.weight,
            answer_column: r.answer_column.clone().unwrap_or_else(|| answer_column.to_string()),
            timeout_ms: r.timeout_ms,
            workers: r.workers.value().unwrap_or(1),
            batch_size: r.batch_size.value().map(|n| n as usize),
            worker_memory: r.worker_memory.0,
            network: r.network.kind(),
            signature: r.signature.kind(),
            schema: r.schema.clone(),
            retries: r.retries,
            on_error: if r.on_error == RewardFailure::None { OnError::None } else { OnError::Stop },
            python: r.python.clone(),
            pattern: r.pattern.clone(),
            overlong_buffer: r.overlong_buffer.map(|n| n as usize),
            judge: r.judge(),
            steps: false,
            per_response: r.per_response,
        })
        .collect()
}

/// Lets rewards return steps, if the run credits them.
pub(crate) fn with_steps(specs: Vec<RewardSpec>, is_credited: bool) -> Vec<RewardSpec> {
    specs.into_iter().map(|spec| RewardSpec { steps: is_credited, ..spec }).collect()
}
