//! `[distill]`.

use crate::key::{FREELY, NOT_NEGATIVE, REQUIRED, such, within};
use plimsoll_algo::divergence::DivergenceKind;
use plimsoll_algo::spans::Align;
use plimsoll_arch::Quantization;
use plimsoll_reward::TEACHER_WORKERS_MAX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

section! {
    /// The teacher of `distill`, and what its word weighs.
    Distill "distill" {
        /// A model, named as `model` is; it is never trained. `initial`: the weights that the
        /// run began with, `self`: those that it has, with another prompt. `endpoint`: the model of a server.
        teacher: String = String::new() => [REQUIRED],
        /// What the teacher reads in place of the prompt: `{prompt}` and columns of the row in braces.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt: Option<String> = None,
        /// How its tokens and the student's are compared: `tokens` requires the same ones, `text` compares spans of the
        /// same text, so that it may have another tokenizer.
        align: Align = Align::Tokens,
        /// How the teacher's linear layers are stored: `nf4` has 4 bits and a scale for each 64, `gguf` the blocks of
        /// the GGUF file that the model is; in full if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(schema_with = "super::lora::quantize_schema")]
        quantize: Option<Quantization> = None,
        /// What the student learns: `sampled` has the teacher's log-probability of each sampled token as an advantage;
        /// `reverse`, `forward` and `jsd` are divergences at each position, differentiated through its logits.
        divergence: DivergenceKind = DivergenceKind::Sampled,
        /// Tokens of each position, the teacher's most likely ones, that a divergence other than `sampled` compares one
        /// by one; all others are one bucket. Absent: the whole vocabulary, token by token.
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
        /// The server of `teacher = "endpoint"`.
        #[serde(skip_serializing_if = "Option::is_none")]
        endpoint: Option<Endpoint> = None,
    }
}

section! {
    /// The server with the teacher of `distill.teacher = "endpoint"`.
    Endpoint "distill.endpoint" {
        /// Its address: an OpenAI-compatible one, which ends in `/v1` and gives log-probabilities of prompts.
        url: String = String::new() => [FREELY],
        /// The name of the teacher in requests; none is sent if absent, which servers of one model take.
        #[serde(skip_serializing_if = "Option::is_none")]
        model: Option<String> = None,
        /// The environment variable that has the server's key; no key is sent if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        key_env: Option<String> = None => [FREELY],
        /// Longest time for one request, which is one response, in milliseconds.
        timeout_ms: u64 = 60_000 => [such("a number of milliseconds above 0", |time| time > 0.0), FREELY],
        /// How often a request that failed is sent again, before its sample is left out of the step.
        retries: u32 = 1,
        /// Requests under way at a time.
        workers: u32 = 8 => [within(1.0, TEACHER_WORKERS_MAX as f64), FREELY],
    }
}
