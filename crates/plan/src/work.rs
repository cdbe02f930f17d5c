//! The work of a step: sequences, tokens and updates, as the cost model counts them, and their maximum.

use crate::cost::Work;
use crate::facts::Facts;
use plimsoll_base::{Error, Result};
use plimsoll_config::{FromSamples, RunSpec, TrainingSpec};

/// Maximum tokens of a step, prompts and responses; no larger step is planned.
const STEP_TOKENS_MAX: u64 = 1 << 40;

/// Returns the work of a step, for the cost model.
pub(crate) fn work(run: &RunSpec, facts: &Facts) -> Work {
    let sequences = run.sequences_per_step() as f64;
    let (epochs, updates) = match run.trains.samples() {
        Some(FromSamples { training: TrainingSpec { train, .. }, .. }) => {
            let mini_batch = train.mini_batch.map_or(sequences, |n| f64::from(n.max(1)));
            let epochs = f64::from(train.epochs_per_rollout.max(1));
            (epochs, (sequences / mini_batch).ceil() * epochs)
        }
        None => (1.0, 1.0),
    };
    Work {
        prompts: f64::from(run.rollout.prompts_per_step),
        group: sequences / f64::from(run.rollout.prompts_per_step.max(1)),
        carried: f64::from(run.partial_rollouts()),
        shares_prompts: !run.plays_agents(),
        prompt_tokens: facts.prompt_tokens as f64,
        response_tokens: response_tokens(run, facts) as f64,
        samples: run.samples(),
        updates,
        epochs,
        critic: match run.critic().and_then(|critic| critic.updates_per_rollout) {
            Some(updates) => (f64::from(updates.max(1)), 1.0),
            None => (updates, epochs),
        },
        weighs_merge: run.merge().is_auto(),
        ranks: facts.hosts.ranks.max(1) as f64,
        hosts: facts.trainers,
    }
}

pub(crate) fn response_tokens(run: &RunSpec, facts: &Facts) -> usize {
    if run.samples() { run.response_tokens_max() } else { facts.completion_tokens.max(1) }
}

fn sequences_per_rollout(run: &RunSpec) -> u64 {
    let sequences = run.sequences_per_step().saturating_mul(run.branches_max() as u64);
    let carried = u64::from(run.partial_rollouts()).saturating_mul(u64::from(run.rollout.group_size));
    let older = u64::from(run.reuse()) + u64::from(run.staleness());
    sequences.saturating_mul(1 + older).saturating_add(carried)
}

/// Refuses a run whose sizes exceed any machine, so that later products cannot overflow 64 bits.
///
/// Errors: `size-overflow`.
pub(crate) fn check_sizes(run: &RunSpec, facts: &Facts) -> Result<()> {
    let sequence = (facts.prompt_tokens as u64).checked_add(run.response_tokens_max() as u64);
    let longest = sequence.and_then(|n| n.checked_add(facts.completion_tokens as u64));
    let in_flight =
        u64::from(run.rollout.sequences_max.or(1).max(run.eval.samples)).max(sequences_per_rollout(run));
    let tokens = longest.and_then(|n| n.checked_mul(in_flight.max(1)));
    if tokens.is_some_and(|tokens| tokens <= STEP_TOKENS_MAX) {
        return Ok(());
    }
    let (prompt, new) = (facts.prompt_tokens, run.response_tokens_max());
    let message = format!(
        "{in_flight} sequences of {prompt} + {new} tokens are more than {STEP_TOKENS_MAX} tokens a step"
    );
    Err(Error::usage("size-overflow", message).hint(
        "lower rollout.prompts_per_step, rollout.group_size, rollout.max_new_tokens or data.prompt_tokens_max",
    ))
}
