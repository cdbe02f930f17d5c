//! `[[reward]]`.

use crate::key::{ABOVE_ZERO, COUNT, FINITE, FREELY, NOT_NEGATIVE, OF_JUDGE, REQUIRED, SHARE, such};
use crate::values::{Auto, ByteSize, Network, RewardFailure, Signature};
use plimsoll_base::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

section! {
    /// One reward.
    Reward "reward" {
        /// `exact`, `math`, `gsm8k`, `countdown`, `code`, `json-schema`, `regex:PATTERN`, `format`, `length`, `model`,
        /// `judge`, `python:FILE.py:FUNCTION`, `command:PROGRAM` or `http://ADDRESS`.
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
        /// The judge's server: the address of an OpenAI-compatible one, which ends in `/v1`.
        #[serde(skip_serializing_if = "Option::is_none")]
        url: Option<String> = None => [OF_JUDGE, FREELY],
        /// The name of the judge in requests; none is sent if absent, which servers of one model take.
        #[serde(skip_serializing_if = "Option::is_none")]
        judge_model: Option<String> = None => [OF_JUDGE],
        /// The file with the text that the judge reads, which has places `{prompt}`, `{response}`, `{answer}` and
        /// `{COLUMN}`; a built-in one if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt: Option<String> = None => [OF_JUDGE],
        /// Criteria that the judge answers with yes or no; without one it gives a number.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        rubric: Vec<String> = Vec::new() => [OF_JUDGE],
        /// The weight of each criterion; equal ones if absent.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        rubric_weights: Vec<f64> = Vec::new() => [OF_JUDGE, ABOVE_ZERO],
        /// The judge's numbers that become 0 and 1; `[0, 10]` if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        scale: Option<[f64; 2]> = None => [OF_JUDGE, FINITE],
        /// The judge's temperature; 0, which is greedy, if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        temperature: Option<f64> = None => [OF_JUDGE, NOT_NEGATIVE],
        /// Most tokens of the judge's reply; 1024 if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        max_tokens: Option<u32> = None => [OF_JUDGE, COUNT],
        /// The environment variable that has the key of the judge's server; no key is sent if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        key_env: Option<String> = None => [OF_JUDGE, FREELY],
        /// The share of samples that the judge is asked about a second time, in another wording, to see how often it
        /// agrees with itself; none if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        second_ask: Option<f64> = None => [OF_JUDGE, SHARE],
        /// How a `python:` function is called.
        signature: Signature = Signature::Trl,
        /// The Python interpreter of `python:` and `code`; if absent that of the virtual
        /// environment in which `plimsoll` lies, or of `$VIRTUAL_ENV`, else `python3`.
        #[serde(skip_serializing_if = "Option::is_none")]
        python: Option<String> = None,
        /// Worker processes, or connections of `http:` and `judge`.
        workers: Auto<u32> = Auto::Auto => [COUNT, FREELY],
        /// Samples of one call, rounded up to whole groups.
        batch_size: Auto<u32> = Auto::Auto => [COUNT],
        /// With `async.partial_rollouts`, for `python:`, `command:` and `http:`: each response is scored by itself,
        /// whichever others are in the call. It is then graded as soon as it has ended, alone in a call, while an
        /// update runs.
        per_response: bool = false,
        /// Longest time for one batch, of `code` for one test, and of `judge` for one request, in milliseconds.
        timeout_ms: u64 = 10_000 => [such("a number of milliseconds above 0", |time| time > 0.0), FREELY],
        /// Limit on the address space of one worker.
        worker_memory: ByteSize = ByteSize(Bytes::mib(2048)) => [FREELY],
        /// Whether a worker may reach a network.
        network: Network = Network::Deny => [FREELY],
        /// How often a batch that failed is tried again, and of `judge` a request.
        retries: u32 = 1,
        /// What a failure does.
        on_error: RewardFailure = RewardFailure::Stop,
    }
}
