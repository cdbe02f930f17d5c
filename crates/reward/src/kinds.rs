//! The kinds of rewards: a row for each, with its properties for the planner and the graders.
//!
//! A new reward is a file with its code, a row of [`KINDS`] and a row of `docs/rewards.md`.

use crate::case::{Case, column};
use crate::countdown::Countdown;
use crate::exact::{self, grade_exact};
use crate::format::Format;
use crate::gsm8k::{self, grade_gsm8k};
use crate::length::Length;
use crate::scorer::{OfTexts, Reading, Scorer, Start, Verifier, column_missing};
use crate::spec::RewardSpec;
use crate::{code, command, hash, http, json_schema, judge, math, pattern, python};
use plimsoll_base::{Bytes, Error, Result, shown_address, without_secrets};
use plimsoll_worker::{Columns, Limits, Stop, Words};
use serde_json::Value;
use std::time::Duration;

/// A kind of reward.
pub struct RewardKind {
    /// The part of `kind` before the colon in a run file.
    names: &'static [&'static str],
    /// Its spellings in a run file; the last one is complete.
    pub forms: &'static [&'static str],
    /// A complete `kind` with its argument; empty for a kind without an argument.
    example: &'static str,
    /// The score, as `docs/rewards.md` describes it.
    pub summary: &'static str,
    place: Place,
    /// True if the answer column is read.
    needs_answer: fn(&RewardSpec) -> bool,
    /// Reads the options and the argument; `None` if the argument is missing or malformed.
    read: fn(&RewardSpec, Option<&str>) -> Result<Option<Reading>>,
}

/// Where a reward is computed. This decides its memory, and whether a failure is retried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a thread of this process: cannot fail.
    Process,
    /// In a fresh process for each test: a failure is the response's.
    Program,
    /// In a worker that lives as long as the run.
    Worker,
    /// At a network address.
    Address,
    /// At a network address, a request for each sample.
    Judge,
}

/// Every kind that a run file may name, except `model`, which `config` and `rl` handle.
pub const KINDS: &[RewardKind] = &[
    RewardKind {
        names: &["exact"],
        forms: &["exact"],
        example: "",
        summary: "1 iff response and answer are equal after trimming white space",
        place: Place::Process,
        needs_answer: |_| true,
        read: |_, _| verifier("exact", OfTexts { grade: grade_exact, why: exact::why }),
    },
    RewardKind {
        names: &["math"],
        forms: &["math"],
        example: "",
        summary: "1 iff the answer found in the response equals the ground truth, in any notation (below)",
        place: Place::Process,
        needs_answer: |_| true,
        read: |_, _| verifier("math", OfTexts { grade: math::grade_math, why: math::why }),
    },
    RewardKind {
        names: &["gsm8k"],
        forms: &["gsm8k"],
        example: "",
        summary: "1 iff the number after the last `####`, or else the last number, equals the answer's, digit by digit",
        place: Place::Process,
        needs_answer: |_| true,
        read: |_, _| verifier("gsm8k", OfTexts { grade: grade_gsm8k, why: gsm8k::why }),
    },
    RewardKind {
        names: &["countdown"],
        forms: &["countdown"],
        example: "",
        summary: "1 iff the last `<answer>` is an expression of `+ - * / ( )` that uses each given number exactly once and whose exact value is the target",
        place: Place::Process,
        needs_answer: |_| true,
        read: |_, _| verifier("countdown", Countdown),
    },
    RewardKind {
        names: &["code"],
        forms: &["code"],
        example: "",
        summary: "1 iff the program passes all tests (below)",
        place: Place::Program,
        needs_answer: |_| true,
        read: |_, _| Ok(Some(code::read())),
    },
    RewardKind {
        names: &["json-schema"],
        forms: &["json-schema"],
        example: "",
        summary: "1 iff the response is JSON and valid (below)",
        place: Place::Process,
        needs_answer: |spec| spec.schema.is_none(),
        read: |spec, _| json_schema::read(spec).map(Some),
    },
    RewardKind {
        names: &["regex"],
        forms: &["regex", "regex:PATTERN"],
        example: "regex:PATTERN",
        summary: "1 iff the pattern matches anywhere; Rust's syntax, linear time",
        place: Place::Process,
        needs_answer: |_| false,
        read: pattern::read,
    },
    RewardKind {
        names: &["format"],
        forms: &["format"],
        example: "",
        summary: "1 iff `<think>…</think><answer>…</answer>` with each tag once, or `pattern`",
        place: Place::Process,
        needs_answer: |_| false,
        read: |spec, _| {
            let format = Format::new(spec.pattern.as_deref())?;
            verifier("format", move |case: &Case| f64::from(format.matches(&case.response)))
        },
    },
    RewardKind {
        names: &["length"],
        forms: &["length"],
        example: "",
        summary: "`-tokens / max_new_tokens`; with `overlong_buffer` b: `-max(0, tokens - (max_new_tokens - b)) / b`, at least -1",
        place: Place::Process,
        needs_answer: |_| false,
        read: |spec, _| {
            let length = Length { overlong_buffer: spec.overlong_buffer };
            verifier("length", move |case: &Case| length.score(case.response_ids.len(), case.max_new_tokens))
        },
    },
    RewardKind {
        names: &["python"],
        forms: &["python:FILE.py:FUNCTION"],
        example: "python:file.py:function",
        summary: "what your Python function returns, called in worker processes",
        place: Place::Worker,
        needs_answer: |_| false,
        read: |_, argument| Ok(python::read(argument)),
    },
    RewardKind {
        names: &["command"],
        forms: &["command:PROGRAM"],
        example: "command:PROGRAM ARGS",
        summary: "what your program answers to a line of JSON",
        place: Place::Worker,
        needs_answer: |_| false,
        read: |_, argument| Ok(command::read(argument)),
    },
    RewardKind {
        names: &["http", "https"],
        forms: &["http://ADDRESS"],
        example: "http://HOST:PORT/PATH",
        summary: "what a server of rewards answers",
        place: Place::Address,
        needs_answer: |_| false,
        read: http::read,
    },
    RewardKind {
        names: &["judge"],
        forms: &["judge", "judge:URL"],
        example: "judge:http://HOST:PORT/v1",
        summary: "what another model says, on a server of OpenAI's protocol",
        place: Place::Judge,
        needs_answer: judge::needs_answer,
        read: judge::read,
    },
    RewardKind {
        names: &["hash"],
        forms: &["hash"],
        example: "",
        summary: "noise between 0 and 1 that the response alone decides, to see what a run learns without a signal",
        place: Place::Process,
        needs_answer: |_| false,
        read: |_, _| verifier("hash", |case: &Case| hash::noise(&case.response)),
    },
];

fn verifier(label: &str, verifier: impl Verifier + 'static) -> Result<Option<Reading>> {
    Ok(Some(Reading::verifier(label, verifier)))
}

/// Longest time from start to ready: an interpreter may import large packages.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Most workers of one reward.
const WORKERS_MAX: u32 = 256;
/// Stack of a grader's thread: the `math` verifier's recursion is bounded well below half of it.
pub(crate) const STACK_BYTES: usize = 1 << 20;
/// Most that a grader holds for one batch besides the texts: 1 MiB of reply, its parsed values, and pipes.
const GRADER_BYTES: u64 = 3 << 20;
/// Most that a verifier in this process holds: its stack. It works on the texts in place.
const IN_PROCESS_BYTES: u64 = STACK_BYTES as u64;
/// Most that a connection holds: two copies of the largest reply, and TLS buffers.
const HTTP_BYTES: u64 = 2 * http::REPLY_BYTES_MAX + (1 << 20);

/// A kind with its options, read but not started.
pub(crate) struct Kind {
    row: &'static RewardKind,
    reading: Reading,
    pub(crate) needs_answer: bool,
}

/// Reads `spec.kind` and the options that it uses. Starts nothing.
///
/// Errors: `unknown-reward`, `reward-bad-pattern`, `reward-bad-schema`, `reward-bad-judge`, `bad-value`.
pub(crate) fn read(spec: &RewardSpec) -> Result<Kind> {
    let (head, argument) = match spec.kind.split_once(':') {
        Some((head, argument)) => (head, Some(argument)),
        None => (spec.kind.as_str(), None),
    };
    let row = KINDS.iter().find(|row| row.names.contains(&head)).ok_or_else(|| unknown(&spec.kind))?;
    if row.example.is_empty() && argument.is_some() {
        return Err(unknown(&spec.kind));
    }
    let reading = (row.read)(spec, argument)?.ok_or_else(|| match argument {
        Some(_) => unknown(&spec.kind).hint(format!("write kind = \"{}\"", row.example)),
        None => unknown(&spec.kind),
    })?;
    Ok(Kind { row, reading, needs_answer: (row.needs_answer)(spec) })
}

/// Returns a check of any row: that it has the answers which these rewards compare with.
///
/// Errors: those of reading the kinds; of the check, `data-column-missing`.
pub fn answers_check(specs: &[RewardSpec]) -> Result<impl Fn(&Columns) -> Result<()>> {
    let mut needed = Vec::new();
    for spec in specs {
        let kind = read(spec)?;
        if kind.needs_answer {
            needed.push((kind.label().to_string(), spec.answer_column.clone()));
        }
    }
    Ok(move |columns: &Columns| {
        match needed.iter().find(|(_, name)| column(columns, name).is_none_or(Value::is_null)) {
            Some((label, name)) => Err(column_missing(label, name, columns)),
            None => Ok(()),
        }
    })
}

impl Kind {
    /// Returns the name in metrics: the kind, the function of `python:` or the program of `command:`.
    pub(crate) fn label(&self) -> &str {
        &self.reading.label
    }

    /// Returns the number of grader threads: one per worker or connection, one for a verifier in this process.
    pub(crate) fn graders(&self, spec: &RewardSpec) -> u32 {
        if self.row.place == Place::Process { 1 } else { spec.workers.clamp(1, WORKERS_MAX) }
    }

    /// Returns true if its failures are counted.
    pub(crate) fn may_fail(&self) -> bool {
        matches!(self.row.place, Place::Worker | Place::Address | Place::Judge)
    }

    /// Returns how often a batch is tried; a judge tries each sample itself.
    pub(crate) fn tries(&self, spec: &RewardSpec) -> u32 {
        let retries = if matches!(self.row.place, Place::Worker | Place::Address) { spec.retries } else { 0 };
        retries.saturating_add(1)
    }

    /// Returns true if a response's score depends on no other response.
    pub(crate) fn is_per_response(&self, spec: &RewardSpec) -> bool {
        spec.per_response || matches!(self.row.place, Place::Process | Place::Program | Place::Judge)
    }

    /// Returns true for a server: attempts have a pause between them, and a request in flight cannot be cancelled.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.row.place, Place::Address | Place::Judge)
    }

    /// Starts its process or connection. `words` receives a worker's output.
    pub(crate) fn start(
        self,
        name: &str,
        spec: &RewardSpec,
        stop: &Stop,
        words: Option<Words>,
    ) -> Result<Box<dyn Scorer>> {
        self.start_within(START_TIMEOUT, name, spec, stop, words)
    }

    /// Starts its process or connection, which must be ready within `start_timeout`.
    pub(crate) fn start_within(
        self,
        start_timeout: Duration,
        name: &str,
        spec: &RewardSpec,
        stop: &Stop,
        words: Option<Words>,
    ) -> Result<Box<dyn Scorer>> {
        let timeout = Duration::from_millis(spec.timeout_ms);
        // Retries are counted per batch, so the pool makes none.
        let limits = Limits { workers: 1, timeout, start_timeout, retries: 0 };
        let needs_answer = self.needs_answer;
        (self.reading.start)(Start { name, spec, needs_answer, limits, stop: stop.clone(), words })
    }
}

impl RewardSpec {
    /// Refuses an unknown kind, and a pattern or schema that cannot be used. Starts nothing.
    ///
    /// Errors: `unknown-reward`, `reward-bad-pattern`, `reward-bad-schema`, `reward-bad-judge`, `bad-value`.
    pub fn check(&self) -> Result<()> {
        read(self).map(drop)
    }

    /// Returns true if a response's score depends on no other response.
    pub fn is_per_response(&self) -> bool {
        read(self).is_ok_and(|kind| kind.is_per_response(self))
    }

    /// Returns the most samples in groups of `group` that are on their way to other processes at once.
    pub fn samples_sent(&self, group: usize) -> u64 {
        let Ok(kind) = read(self) else { return 0 };
        let batch = (self.groups_of_batch(group) * group) as u64;
        if kind.row.place == Place::Process { 0 } else { batch.saturating_mul(kind.graders(self).into()) }
    }

    /// Returns the most host memory that the reward takes.
    pub fn memory(&self) -> RewardMemory {
        let Ok(kind) = read(self) else { return RewardMemory::default() };
        let graders = u64::from(kind.graders(self));
        let (worker, each) = match kind.row.place {
            Place::Process => (0, IN_PROCESS_BYTES),
            // The program and the interpreter of its tests.
            Place::Program => (self.worker_memory.0.saturating_add(code::JUDGE_BYTES.0), GRADER_BYTES),
            Place::Worker => (self.worker_memory.0, GRADER_BYTES),
            Place::Address => (0, HTTP_BYTES),
            Place::Judge => (0, HTTP_BYTES + judge::CACHE_BYTES),
        };
        RewardMemory {
            workers: Bytes(worker.saturating_mul(graders)),
            buffers: Bytes(graders * each),
            threads: graders as usize,
            sends: kind.row.place != Place::Process,
        }
    }
}

/// The most host memory that rewards take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewardMemory {
    /// Memory of all worker processes.
    pub workers: Bytes,
    /// Requests and replies in flight in this process, including stacks.
    pub buffers: Bytes,
    /// Threads of this process.
    pub threads: usize,
    sends: bool,
}

impl RewardMemory {
    /// True if texts are sent to other processes.
    pub fn leaves_process(&self) -> bool {
        self.sends
    }

    /// Returns the sum of both.
    pub fn with(self, other: RewardMemory) -> RewardMemory {
        RewardMemory {
            workers: Bytes(self.workers.0.saturating_add(other.workers.0)),
            buffers: Bytes(self.buffers.0.saturating_add(other.buffers.0)),
            threads: self.threads + other.threads,
            sends: self.sends || other.sends,
        }
    }
}

/// Returns a kind for messages and reports: an address in it without user, password and query.
pub(crate) fn shown_kind(kind: &str) -> String {
    match kind.split_once(':') {
        Some(("http" | "https", _)) => shown_address(kind),
        Some(("judge", url)) => format!("judge:{}", shown_address(url)),
        _ => kind.into(),
    }
}

fn unknown(kind: &str) -> Error {
    let head = kind.split(':').next().unwrap_or(kind);
    let near = (KINDS.iter().flat_map(|row| row.names))
        .map(|&known| (strsim::damerau_levenshtein(&head.to_ascii_lowercase(), known), known))
        .min()
        .filter(|&(distance, known)| distance <= 2 && distance < known.len() - 1);
    let error =
        Error::usage("unknown-reward", format!("`{}` is not a kind of reward", without_secrets(kind)));
    match near {
        Some((_, known)) if known != head => error.hint(format!("did you mean `{known}`?")),
        _ => {
            let forms: Vec<&str> = KINDS.iter().flat_map(|row| row.forms).copied().collect();
            error.hint(format!("the kinds are {}", forms.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kinds_are_usage_errors_that_name_the_nearest() {
        for (kind, hint) in [
            ("mth", "did you mean `math`?"),
            ("gsmk8", "did you mean `gsm8k`?"),
            ("Exact", "did you mean `exact`?"),
            ("pyton:a.py:f", "did you mean `python`?"),
            ("zzzzzz", "the kinds are"),
            ("", "the kinds are"),
            ("python:", "python:file.py:function"),
            ("http:", "http://HOST"),
            ("https:///x", "http://HOST"),
            ("juge", "did you mean `judge`?"),
            ("json-shema", "did you mean `json-schema`?"),
        ] {
            let error = read(&RewardSpec::of_kind(kind)).err().expect(kind);
            assert_eq!((error.slug, error.exit), ("unknown-reward", plimsoll_base::Exit::Usage), "{kind}");
            assert!(error.to_string().contains(hint), "{error}");
        }
    }

    #[test]
    fn a_pattern_that_does_not_compile_is_named() {
        for kind in ["regex", "regex:", "regex:(", "regex:(a{1000}){1000}{1000}"] {
            let error = read(&RewardSpec::of_kind(kind)).err().expect(kind);
            assert_eq!(error.slug, "reward-bad-pattern", "{kind}");
        }
    }

    #[test]
    fn each_verifier_has_its_row_in_the_docs() {
        let docs = include_str!("../../../docs/rewards.md");
        let is_verifier = |kind: &&RewardKind| matches!(kind.place, Place::Process | Place::Program);
        for kind in KINDS.iter().filter(is_verifier) {
            let form = kind.forms.last().unwrap();
            let row = format!("| `{form}` | {} |", kind.summary);
            assert!(docs.contains(&row), "docs/rewards.md has no row {row}");
        }
    }
}
