//! `[[reward]]`.

use crate::values::{Auto, ByteSize, Network, RewardFailure, Signature};
use plimsoll_base::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One reward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reward {
    /// `exact`, `math`, `gsm8k`, `countdown`, `code`, `json-schema`, `regex:PATTERN`, `format`, `length`, `model`,
    /// `python:FILE.py:FUNCTION`, `command:PROGRAM` or `http://ADDRESS`.
    pub kind: String,
    /// The reward model of `model`: a directory or `hf:org/name` of a model for sequence classification with one label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Factor of its score in the sum.
    #[serde(default = "one")]
    pub weight: f64,
    /// The column with the answer; `data.answer_column` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_column: Option<String>,
    /// The regular expression of `regex` and `format`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// The file with the schema of `json-schema`; without one the answer column has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// For `length`: tokens before `max_new_tokens` from which a response costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong_buffer: Option<u32>,
    /// How a `python:` function is called.
    #[serde(default = "trl")]
    pub signature: Signature,
    /// The Python interpreter of `python:` and `code`; `python3` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Worker processes, or connections of `http:`.
    #[serde(default)]
    pub workers: Auto<u32>,
    /// Samples of one call, rounded up to whole groups.
    #[serde(default)]
    pub batch_size: Auto<u32>,
    /// Longest time for one batch, and of `code` for one test, in milliseconds.
    #[serde(default = "ten_seconds")]
    pub timeout_ms: u64,
    /// Limit on the address space of one worker.
    #[serde(default = "two_gib")]
    pub worker_memory: ByteSize,
    /// Whether a worker may reach a network.
    #[serde(default = "deny")]
    pub network: Network,
    /// How often a batch that failed is tried again.
    #[serde(default = "one_retry")]
    pub retries: u32,
    /// What a failure does.
    #[serde(default = "stop")]
    pub on_error: RewardFailure,
}

defaults! {
    one: f64 = 1.0;
    trl: Signature = Signature::Trl;
    ten_seconds: u64 = 10_000;
    two_gib: ByteSize = ByteSize(Bytes::mib(2048));
    deny: Network = Network::Deny;
    one_retry: u32 = 1;
    stop: RewardFailure = RewardFailure::Stop;
}
