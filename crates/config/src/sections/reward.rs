//! `[[reward]]`.

use crate::key::{COUNT, FINITE, FREELY, REQUIRED, such};
use crate::values::{Auto, ByteSize, Network, RewardFailure, Signature};
use plimsoll_base::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

section! {
    /// One reward.
    Reward "reward" {
        /// `exact`, `math`, `gsm8k`, `countdown`, `code`, `json-schema`, `regex:PATTERN`, `format`, `length`, `model`,
        /// `python:FILE.py:FUNCTION`, `command:PROGRAM` or `http://ADDRESS`.
        kind: String = String::new() => [REQUIRED],
        /// The reward model of `model`: a directory or `hf:org/name` of a model for sequence classification with one
        /// label.
        #[serde(skip_serializing_if = "Option::is_none")]
        model: Option<String> = None,
        /// Factor of its score in the sum.
        weight: f64 = 1.0 => [FINITE],
        /// The column with the answer; `data.answer_column` if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        answer_column: Option<String> = None,
        /// The regular expression of `regex` and `format`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pattern: Option<String> = None,
        /// The file with the schema of `json-schema`; without one the answer column has it.
        #[serde(skip_serializing_if = "Option::is_none")]
        schema: Option<String> = None,
        /// For `length`: tokens before `max_new_tokens` from which a response costs.
        #[serde(skip_serializing_if = "Option::is_none")]
        overlong_buffer: Option<u32> = None,
        /// How a `python:` function is called.
        signature: Signature = Signature::Trl,
        /// The Python interpreter of `python:` and `code`; `python3` if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        python: Option<String> = None,
        /// Worker processes, or connections of `http:`.
        workers: Auto<u32> = Auto::Auto => [COUNT, FREELY],
        /// Samples of one call, rounded up to whole groups.
        batch_size: Auto<u32> = Auto::Auto => [COUNT],
        /// Longest time for one batch, and of `code` for one test, in milliseconds.
        timeout_ms: u64 = 10_000 => [such("a number of milliseconds above 0", |time| time > 0.0), FREELY],
        /// Limit on the address space of one worker.
        worker_memory: ByteSize = ByteSize(Bytes::mib(2048)) => [FREELY],
        /// Whether a worker may reach a network.
        network: Network = Network::Deny => [FREELY],
        /// How often a batch that failed is tried again.
        retries: u32 = 1,
        /// What a failure does.
        on_error: RewardFailure = RewardFailure::Stop,
    }
}
