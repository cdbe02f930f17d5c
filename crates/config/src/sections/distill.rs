//! `[distill]`.

use plimsoll_arch::Quantization;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The teacher of `distill`, and what its word weighs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Distill {
    /// A model with the same tokenizer, named as `model` is; it is never trained.
    pub teacher: String,
    /// How the teacher's linear layers are stored: `nf4` has 4 bits and a scale for each 64, `gguf` the blocks of
    /// the GGUF file that the model is; in full if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::lora::quantize_schema")]
    pub quantize: Option<Quantization>,
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
