//! The counters of a run: everything except tensors that its next step depends on. Random numbers are counter-based, so
//! the seed, the next sample and the next prompt are the whole state of every generator.

use super::{STATE_JSON, exact, exact_list, exact_option};
use crate::progress::Progress;
use plimsoll_base::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The checkpoint with the highest evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    pub step: u32,
    /// Mean of `eval.metric`.
    #[serde(with = "exact")]
    pub score: f64,
}

/// The rollout whose samples wait: part of `state.json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldState {
    /// The step that sampled them.
    pub step: u32,
    /// Number of optimizer updates of the weights that sampled them.
    pub policy_version: u64,
    pub groups: u64,
}

/// The content of `state/state.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    pub policy_version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub critic_updates: Option<u64>,
    /// Key of all random numbers.
    pub seed: u64,
    pub data_position: u64,
    pub next_sample_id: u64,
    /// Samples of an earlier rollout that wait for their steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<HeldState>,
    #[serde(with = "exact_option")]
    pub kl_coef: Option<f64>,
    /// Length of `events.jsonl` at this point.
    pub events_bytes: u64,
    pub progress: Progress,
    /// Instruction path or compute capability.
    pub machine: String,
    pub build: String,
    /// SHA-256 of the planner's decisions that bits depend on.
    pub plan: String,
    /// SHA-256 of each data file, and of the model's configuration, tokenizer and chat template.
    pub inputs: BTreeMap<String, String>,
    /// Sum of squares of the weights below adapters.
    #[serde(with = "exact_option", default, skip_serializing_if = "Option::is_none")]
    pub base: Option<f64>,
    /// Sum of squares of the weights below a critic's adapter.
    #[serde(with = "exact_option", default, skip_serializing_if = "Option::is_none")]
    pub critic_base: Option<f64>,
    /// Sum of squares of the reference model's weights.
    #[serde(with = "exact_option")]
    pub reference: Option<f64>,
    /// Sum of squares of the teacher's weights.
    #[serde(with = "exact_option", default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<f64>,
    /// Sum of squares of the weights of the reward model that scores responses.
    #[serde(with = "exact_option", default)]
    pub reward: Option<f64>,
    /// Those of further reward models, in their order.
    #[serde(with = "exact_list", default, skip_serializing_if = "Vec::is_empty")]
    pub more_rewards: Vec<f64>,
}

impl RunState {
    /// Returns the counters of a run with this progress and nothing else, for measurements and tests.
    pub fn blank(progress: Progress) -> RunState {
        RunState {
            policy_version: 0,
            critic_updates: None,
            seed: 0,
            data_position: 0,
            next_sample_id: 0,
            held: None,
            kl_coef: None,
            events_bytes: 0,
            progress,
            machine: String::new(),
            build: String::new(),
            plan: String::new(),
            inputs: BTreeMap::new(),
            base: None,
            critic_base: None,
            reference: None,
            teacher: None,
            reward: None,
            more_rewards: Vec::new(),
        }
    }

    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a state is plain data") + "\n"
    }

    /// Reads the state of a verified checkpoint.
    ///
    /// Errors: `checkpoint-damaged`.
    pub fn read(checkpoint: &Path) -> Result<RunState> {
        let path = checkpoint.join(STATE_JSON);
        let bad = |what: String| Error::new("checkpoint-damaged", format!("{}: {what}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|err| bad(err.to_string()))?;
        serde_json::from_str(&text).map_err(|err| bad(err.to_string()))
    }
}
