//! `[distill]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The teacher of `distill`, and what its word weighs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Distill {
    /// A model with the same tokenizer, named as `model` is; it is never trained.
    pub teacher: String,
    /// Factor of the reverse KL of the student from it.
    #[serde(default = "one")]
    pub coef: f64,
    /// Factor of the group advantage of the rewards, which is added; 0 only reports them.
    #[serde(default)]
    pub reward_coef: f64,
}

fn one() -> f64 {
    1.0
}
