//! `[lora]`.

use crate::key::{SHARE, STORED, also, such, within};
use crate::{Auto, CriticLearns};
use plimsoll_arch::{LoraShape, LoraTargets, Quantization};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

section! {
    /// Low-rank adapters are trained, and every other weight stays as it is.
    Lora "lora" {
        /// Rows of A and columns of B in y = W x + scale B (A x), from 1 to 256.
        rank: u32 = 16 => [within(1.0, LoraShape::RANK_MAX as f64), also(&["r", "lora_r", "lora_rank"])],
        /// The scale is `alpha / rank` [2 x rank].
        #[serde(skip_serializing_if = "Option::is_none")]
        alpha: Option<f64> = None => [
            such("a finite number above 0, such as 32", |alpha| alpha > 0.0 && (alpha as f32).is_finite()),
            also(&["lora_alpha"]),
        ],
        /// Which linear layers have an adapter: `all-linear`, or names of peft such as `["q_proj",
        /// "self_attn.v_proj"]`.
        #[schemars(schema_with = "targets_schema")]
        targets: LoraTargets = LoraTargets::ALL => [also(&["target_modules", "lora_target_modules"])],
        /// The scale is `alpha / sqrt(rank)` instead.
        rslora: bool = false => [also(&["use_rslora"])],
        /// 0: rollout and update are one policy.
        dropout: f64 = 0.0 => [SHARE, also(&["lora_dropout"])],
        /// A second copy of the weights has the adapters in it, and rollout and update read that one: faster, for its
        /// memory. `auto` has one where it fits and is predicted to be faster.
        merge: Auto<bool> = Auto::Value(false) => [STORED],
        /// How the frozen weights of linear layers are stored: `nf4` has 4 bits and a scale for each 64, `gguf` the
        /// blocks of the GGUF file that the model is, `mxfp4` the blocks of a file's experts; in full if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(schema_with = "quantize_schema")]
        quantize: Option<Quantization> = None,
        /// The folder of a peft adapter to start from; A is random and B is 0 if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        adapter: Option<String> = None,
        /// What of PPO's critic is trained: `full` is all its weights, `adapter` an adapter as the actor's, over the
        /// frozen weights that it starts from.
        #[serde(skip_serializing_if = "CriticLearns::is_full")]
        critic: CriticLearns = CriticLearns::Full,
    }
}

impl Lora {
    /// Returns alpha, or twice the rank if absent.
    pub fn alpha(&self) -> f64 {
        self.alpha.unwrap_or(2.0 * f64::from(self.rank))
    }
}

fn targets_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [
        { "type": "string" },
        { "type": "array", "minItems": 1, "items": { "type": "string" } },
    ] })
}

pub(super) fn quantize_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "enum": Quantization::ALL.map(Quantization::name) })
}
