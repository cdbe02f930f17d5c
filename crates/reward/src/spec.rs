//! What a `[[reward]]` table says, and what its `kind` names. Nothing here runs a reward.

use crate::shape::{Format, Length, Pattern};
use plimsoll_base::{Bytes, Error, Result};

/// The kinds that a run file may name; those that end in `:` take an argument.
pub const KINDS: [&str; 10] = [
    "exact",
    "math",
    "gsm8k",
    "regex",
    "format",
    "length",
    "python:FILE.py:FUNCTION",
    "command:PROGRAM",
    "regex:PATTERN",
    "hash",
];

/// What a failing reward function does to the run.
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
    /// One of [`KINDS`], with its argument.
    pub kind: String,
    /// Factor of its score in the sum.
    pub weight: f64,
    /// The column that holds the answer.
    pub answer_column: String,
    /// Longest time for one batch in one worker, in milliseconds.
    pub timeout_ms: u64,
    /// Worker processes; each takes one slice of the batch.
    pub workers: u32,
    /// Limit on the address space of one worker.
    pub worker_memory: Bytes,
    /// How often a worker that died or timed out is started again for the same slice.
    pub retries: u32,
    /// What a failure does.
    pub on_error: OnError,
    /// The Python interpreter of `python:`; `python3` if none.
    pub python: Option<String>,
    /// The regular expression of `regex` and `format`.
    pub pattern: Option<String>,
    /// For `length`: tokens before `max_new_tokens` from which a response costs; none: every token costs.
    pub overlong_buffer: Option<usize>,
}

impl Default for RewardSpec {
    fn default() -> RewardSpec {
        RewardSpec {
            kind: String::new(),
            weight: 1.0,
            answer_column: "ground_truth".into(),
            timeout_ms: 10_000,
            workers: 1,
            worker_memory: Bytes::mib(2048),
            retries: 1,
            on_error: OnError::Stop,
            python: None,
            pattern: None,
            overlong_buffer: None,
        }
    }
}

impl RewardSpec {
    /// A reward of `kind` with every option at its default.
    pub fn of_kind(kind: impl Into<String>) -> RewardSpec {
        RewardSpec { kind: kind.into(), ..RewardSpec::default() }
    }

    /// The most that its worker processes may come to hold together; none for what runs in the process.
    pub fn worker_bytes(&self) -> Bytes {
        match Kind::parse(self) {
            Ok(Kind::Python { .. } | Kind::Command { .. }) => {
                let workers = u64::from(self.workers.clamp(1, crate::external::WORKERS_MAX));
                Bytes(self.worker_memory.0.saturating_mul(workers))
            }
            _ => Bytes(0),
        }
    }
}

/// A kind, parsed.
pub(crate) enum Kind {
    Exact,
    Math,
    Gsm8k,
    Pattern(Pattern),
    Format(Format),
    Length(Length),
    Python {
        file: String,
        function: String,
    },
    Command {
        program: String,
        args: Vec<String>,
    },
    /// Noise that the response alone decides: for benchmarks, and to see what a run learns without a signal.
    Hash,
}

impl Kind {
    /// Reads `spec.kind`; an unknown one is `unknown-reward`, a pattern that does not compile `reward-bad-pattern`.
    pub(crate) fn parse(spec: &RewardSpec) -> Result<Kind> {
        let (head, argument) = match spec.kind.split_once(':') {
            Some((head, argument)) => (head, Some(argument)),
            None => (spec.kind.as_str(), None),
        };
        match (head, argument) {
            ("exact", None) => Ok(Kind::Exact),
            ("math", None) => Ok(Kind::Math),
            ("gsm8k", None) => Ok(Kind::Gsm8k),
            ("hash", None) => Ok(Kind::Hash),
            ("regex", argument) => match argument.or(spec.pattern.as_deref()) {
                Some(pattern) if !pattern.is_empty() => Ok(Kind::Pattern(Pattern::new(pattern)?)),
                _ => Err(Error::usage("reward-bad-pattern", "reward `regex` has no pattern")
                    .hint("write kind = \"regex:PATTERN\", or set `pattern`")),
            },
            ("format", None) => Ok(Kind::Format(Format::new(spec.pattern.as_deref())?)),
            ("length", None) => Ok(Kind::Length(Length { overlong_buffer: spec.overlong_buffer })),
            ("python", Some(argument)) => match argument.rsplit_once(':') {
                Some((file, function)) if !file.is_empty() && !function.is_empty() => {
                    Ok(Kind::Python { file: file.into(), function: function.into() })
                }
                _ => Err(unknown(&spec.kind).hint("write kind = \"python:file.py:function\"")),
            },
            ("command", Some(argument)) => {
                let mut words = argument.split_whitespace().map(str::to_string);
                match words.next() {
                    Some(program) => Ok(Kind::Command { program, args: words.collect() }),
                    None => Err(unknown(&spec.kind).hint("write kind = \"command:PROGRAM ARGS\"")),
                }
            }
            _ => Err(unknown(&spec.kind)),
        }
    }

    /// True if the kind compares with the answer column.
    pub(crate) fn needs_answer(&self) -> bool {
        matches!(self, Kind::Exact | Kind::Math | Kind::Gsm8k)
    }

    /// The name in metrics: the kind, or the function of `python:`, or the program of `command:`.
    pub(crate) fn name(&self) -> String {
        match self {
            Kind::Exact => "exact".into(),
            Kind::Math => "math".into(),
            Kind::Gsm8k => "gsm8k".into(),
            Kind::Hash => "hash".into(),
            Kind::Pattern(_) => "regex".into(),
            Kind::Format(_) => "format".into(),
            Kind::Length(_) => "length".into(),
            Kind::Python { function, .. } => function.clone(),
            Kind::Command { program, .. } => program.rsplit('/').next().unwrap_or(program).into(),
        }
    }
}

pub(crate) fn unknown(kind: &str) -> Error {
    let head = kind.split(':').next().unwrap_or(kind);
    let heads = ["exact", "hash", "math", "gsm8k", "regex", "format", "length", "python", "command"];
    let near = heads
        .into_iter()
        .map(|known| (strsim::damerau_levenshtein(&head.to_ascii_lowercase(), known), known))
        .min()
        .filter(|&(distance, known)| distance <= 2 && distance < known.len() - 1);
    let error = Error::usage("unknown-reward", format!("`{kind}` is not a kind of reward"));
    match near {
        Some((_, known)) if known != head => error.hint(format!("did you mean `{known}`?")),
        _ => error.hint(format!("the kinds are {}", KINDS.join(", "))),
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
        ] {
            let error = Kind::parse(&RewardSpec::of_kind(kind)).err().expect(kind);
            assert_eq!((error.slug, error.exit), ("unknown-reward", plimsoll_base::Exit::Usage), "{kind}");
            assert!(error.to_string().contains(hint), "{error}");
        }
    }

    #[test]
    fn a_pattern_that_does_not_compile_is_named() {
        for kind in ["regex", "regex:", "regex:(", "regex:(a{1000}){1000}{1000}"] {
            let error = Kind::parse(&RewardSpec::of_kind(kind)).err().expect(kind);
            assert_eq!(error.slug, "reward-bad-pattern", "{kind}");
        }
    }
}
