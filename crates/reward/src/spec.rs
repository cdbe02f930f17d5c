//! The contents of a `[[reward]]` table.

use crate::judge::JudgeSpec;
use plimsoll_base::Bytes;
use plimsoll_worker::{Network, Signature};

/// Default samples per batch, unless one group has more: few, so that grading begins early.
pub(crate) const BATCH_SAMPLES: usize = 8;

/// Says what a failing reward function does to the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The run stops with the named error.
    #[default]
    Stop,
    /// The samples of the failing call have no score from this reward.
    None,
}

/// One reward of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RewardSpec {
    /// A form of one of [`KINDS`](crate::KINDS).
    pub kind: String,
    /// Weight of its score in the sum.
    pub weight: f64,
    /// The column of the answer.
    pub answer_column: String,
    /// Longest time for one batch, and of `code` for one test, in milliseconds.
    pub timeout_ms: u64,
    /// Worker processes, or connections of `http:`; each takes its share of the batches.
    pub workers: u32,
    /// Samples per call, rounded up to whole groups; `None` for 8, or fewer with many workers.
    pub batch_size: Option<usize>,
    /// Limit on the address space of one worker.
    pub worker_memory: Bytes,
    /// Network access of a worker.
    pub network: Network,
    /// Retries of a failed batch, in a fresh worker if it died or hung.
    pub retries: u32,
    /// The effect of a failure.
    pub on_error: OnError,
    /// How a `python:` function is called.
    pub signature: Signature,
    /// The Python interpreter of `python:` and `code`; the worker crate's default if none.
    pub python: Option<String>,
    /// The schema file of `json-schema`; `None` if the answer column has the schema.
    pub schema: Option<String>,
    /// The regular expression of `regex` and `format`.
    pub pattern: Option<String>,
    /// For `length`: tokens before `max_new_tokens` from which a response is penalised; `None`: every token is.
    pub overlong_buffer: Option<usize>,
    /// How a `judge` is asked.
    pub judge: JudgeSpec,
    /// True if the steps that a function or a server may return are read.
    pub steps: bool,
    /// True if a function, program or server scores each response by itself, whichever others it is called with.
    pub per_response: bool,
}

impl Default for RewardSpec {
    fn default() -> RewardSpec {
        RewardSpec {
            kind: String::new(),
            weight: 1.0,
            answer_column: crate::case::ANSWER.into(),
            timeout_ms: 10_000,
            workers: 1,
            batch_size: None,
            worker_memory: Bytes::mib(2048),
            network: Network::Deny,
            retries: 1,
            on_error: OnError::Stop,
            signature: Signature::Trl,
            python: None,
            schema: None,
            pattern: None,
            overlong_buffer: None,
            judge: JudgeSpec::default(),
            steps: false,
            per_response: false,
        }
    }
}

impl RewardSpec {
    /// Returns the address that is asked, if the kind asks one.
    pub fn address(&self) -> Option<&str> {
        match self.kind.split_once(':') {
            Some(("http" | "https", _)) => Some(&self.kind),
            Some(("judge", url)) => Some(url),
            None if self.kind == "judge" => self.judge.url.as_deref(),
            _ => None,
        }
    }

    /// Returns the files that its scores depend on: a function's, a schema, a judge's prompt.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let code = self.kind.strip_prefix("python:").and_then(|place| Some(place.rsplit_once(':')?.0));
        code.into_iter().chain(self.schema.as_deref()).chain(self.judge.prompt.as_deref())
    }

    /// Returns the most whole groups of a batch.
    pub(crate) fn groups_of_batch(&self, group: usize) -> usize {
        self.batch_size.unwrap_or(BATCH_SAMPLES).div_ceil(group).max(1)
    }

    /// Returns a reward of `kind` with default options.
    pub fn of_kind(kind: impl Into<String>) -> RewardSpec {
        RewardSpec { kind: kind.into(), ..RewardSpec::default() }
    }
}
