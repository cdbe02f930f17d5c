//! `[distill]`.

use crate::key::{NOT_NEGATIVE, REQUIRED, such};
use plimsoll_algo::divergence::DivergenceKind;
use plimsoll_arch::Quantization;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

section! {
    /// The teacher of `distill`, and what its word weighs.
    Distill "distill" {
        /// A model with the same tokenizer, named as `model` is; it is never trained. `initial`: the weights that the
        /// run began with, `self`: those that it has, with another prompt.
        teacher: String = String::new() => [REQUIRED],
        /// What the teacher reads in place of the prompt: `{prompt}` and columns of the row in braces.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt: Option<String> = None,
        /// How the teacher's linear layers are stored: `nf4` has 4 bits and a scale for each 64, `gguf` the blocks of
        /// the GGUF file that the model is; in full if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(schema_with = "super::lora::quantize_schema")]
        quantize: Option<Quantization> = None,
        /// What the student learns: `sampled` has the teacher's log-probability of each sampled token as an advantage;
        /// `reverse`, `forward` and `jsd` are divergences at each position, differentiated through its logits.
        divergence: DivergenceKind = DivergenceKind::Sampled,
        /// Tokens of each position, the teacher's most likely ones, that a divergence other than `sampled` compares one
        /// by one; all others are one bucket.
        #[serde(skip_serializing_if = "Option::is_none")]
        top_k: Option<u32> = None,
        /// The teacher's part of the mixture of `jsd`; 0.5 if absent. Near 0 it acts as `forward`, near 1 as `reverse`.
        #[serde(skip_serializing_if = "Option::is_none")]
        jsd_beta: Option<f64> = None,
        /// Factor of the divergence of the student from it.
        coef: f64 = 1.0 => [
            such("a finite number above 0, such as 1.0", |coef| coef > 0.0 && (coef as f32).is_finite()),
        ],
        /// Factor of the group advantage of the rewards, which is added; 0 only reports them.
        reward_coef: f64 = 0.0 => [NOT_NEGATIVE],
    }
}
