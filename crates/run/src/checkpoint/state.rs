//! The counters of a run: everything except tensors that its next step depends on. Random numbers are counter-based, so
//! the seed, the next sample and the next prompt are the full state of every generator.

use super::{STATE_JSON, exact, exact_option};
use crate::progress::Progress;
use plimsoll_base::{Error, Result, open_regular};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
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

/// The rollout whose samples are waiting, in `state.json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferState {
    /// The step that sampled them.
    pub step: u32,
    /// Number of optimizer updates of the weights that sampled them.
    pub policy_version: u64,
    pub groups: u64,
}

/// A checkpoint's record of one of the run's models, apart from its tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoleState {
    /// Optimizer updates of the model; `None` if it does not learn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updates: Option<u64>,
    /// Sum of squares of the frozen weights; `None` if all learn.
    #[serde(with = "exact_option", default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<f64>,
}

/// The content of `state/state.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    pub policy_version: u64,
    /// Key of all random numbers.
    pub seed: u64,
    pub data_position: u64,
    pub next_sample_id: u64,
    /// Samples of an earlier rollout that are waiting for their steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<BufferState>,
    /// Number of groups that had not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<u64>,
    /// Rollouts that wait for the steps that train on them, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ahead: Vec<BufferState>,
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
    /// State of each of the run's models, by role name.
    #[serde(default)]
    pub roles: BTreeMap<String, RoleState>,
}

impl RunState {
    /// Returns the counters of a run with this progress and nothing else, for measurements and tests.
    pub fn blank(progress: Progress) -> RunState {
        RunState {
            policy_version: 0,
            seed: 0,
            data_position: 0,
            next_sample_id: 0,
            held: None,
            carried: None,
            ahead: Vec::new(),
            kl_coef: None,
            events_bytes: 0,
            progress,
            machine: String::new(),
            build: String::new(),
            plan: String::new(),
            inputs: BTreeMap::new(),
            roles: BTreeMap::new(),
        }
    }

    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a state is plain data") + "\n"
    }

    /// Reads the state of a verified checkpoint, of this version or an earlier one.
    ///
    /// Errors: `checkpoint-damaged`.
    pub fn read(checkpoint: &Path) -> Result<RunState> {
        let path = checkpoint.join(STATE_JSON);
        let bad = |what: String| Error::new("checkpoint-damaged", format!("{}: {what}", path.display()));
        let text =
            open_regular(&path).and_then(std::io::read_to_string).map_err(|err| bad(err.to_string()))?;
        let mut state: Value = serde_json::from_str(&text).map_err(|err| bad(err.to_string()))?;
        state.as_object_mut().into_iter().for_each(with_roles);
        serde_json::from_value(state).map_err(|err| bad(err.to_string()))
    }
}

/// Role of the weights below adapters, in states that do not name it.
pub const BASE: &str = "base";

/// Fields of states before `roles` (0.1): the field, its role, and the role's field.
const BEFORE_ROLES: [(&str, &str, &str); 6] = [
    ("critic_updates", "critic", "updates"),
    ("critic_base", "critic", "frozen"),
    ("base", BASE, "frozen"),
    ("reference", "reference", "frozen"),
    ("teacher", "teacher", "frozen"),
    ("reward", "reward", "frozen"),
];

/// Moves fields of an earlier state into `roles`.
fn with_roles(state: &mut Map<String, Value>) {
    let mut found: Vec<(String, &str, Value)> = Vec::new();
    for (field, role, what) in BEFORE_ROLES {
        found.extend(state.remove(field).map(|value| (role.to_string(), what, value)));
    }
    if let Some(Value::Array(more)) = state.remove("more_rewards") {
        found.extend((2..).zip(more).map(|(n, value)| (format!("reward{n}"), "frozen", value)));
    }
    for (role, what, value) in found.into_iter().filter(|(.., value)| !value.is_null()) {
        if let Value::Object(roles) = state.entry("roles").or_insert_with(|| json!({}))
            && let Value::Object(role) = roles.entry(role).or_insert_with(|| json!({}))
        {
            role.insert(what.into(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_before_names_its_roles() {
        let role = |updates, frozen| RoleState { updates, frozen };
        let folder = std::env::temp_dir().join(format!("plimsoll-state-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("state")).unwrap();
        let mut state = RunState::blank(Progress::default());
        state.roles = [
            ("base", role(None, Some(0.1))),
            ("critic", role(Some(7), Some(2.5))),
            ("reward", role(None, Some(3.0))),
            ("reward2", role(None, Some(4.0))),
            ("reward3", role(None, Some(5.0))),
        ]
        .map(|(name, role)| (name.to_string(), role))
        .into();
        let mut text: Value = serde_json::from_str(&state.to_text()).unwrap();
        std::fs::write(folder.join(STATE_JSON), text.to_string()).unwrap();
        assert_eq!(RunState::read(&folder).unwrap(), state);
        let fields = text.as_object_mut().unwrap();
        fields.remove("roles");
        let before = json!({
            "critic_updates": 7, "base": "0.1", "critic_base": "2.5", "reference": null, "reward": "3.0",
            "more_rewards": ["4.0", "5.0"],
        });
        fields.extend(before.as_object().unwrap().clone());
        std::fs::write(folder.join(STATE_JSON), text.to_string()).unwrap();
        assert_eq!(RunState::read(&folder).unwrap(), state);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
