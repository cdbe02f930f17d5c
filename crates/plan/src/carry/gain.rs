//! The numbers of what `async.partial_rollouts` brings, as `plan --json` has them.

use plimsoll_base::Bytes;
use serde::Serialize;

/// The gain of a number of carried prompts, as means of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gain {
    pub carry: u32,
    /// Why a run cannot have it; all numbers are then 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    pub fits: bool,
    pub host_bytes: Bytes,
    pub device_bytes: Bytes,
    /// Sequences that the engine draws at once.
    pub sequences_max: usize,
    pub ticks: f64,
    /// Share of the places of responses under way, over all ticks, in which nothing is drawn.
    pub idle_share: f64,
    /// Share of the ticks in which fewer than half of the places draw.
    pub tail_share: f64,
    /// Updates between the weights that drew a trained token and those that it trains.
    pub staleness: f64,
    /// Share of trained tokens that older weights drew.
    pub stale_share: f64,
    /// Share of the rollout's rows that compute keys again.
    pub recomputed_share: f64,
    pub trained_tokens: f64,
    pub trained_tokens_per_tick: f64,
    pub predicted_rollout_s: f64,
    /// Seconds of the rollout in which keys are computed again.
    pub predicted_recomputed_s: f64,
    pub predicted_step_s: f64,
    pub trained_tokens_per_second: f64,
}

/// The gain of each number of carried prompts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gains {
    /// The lengths of responses, for people.
    pub lengths: String,
    /// The number of the run file.
    pub now: u32,
    /// By the number of carried prompts, of which the first is 0.
    pub rows: Vec<Gain>,
    /// The number that is recommended, of those that fit.
    pub recommended: Option<u32>,
    /// The recommendation in a sentence.
    pub words: String,
}
