//! What a `[[reward]]` table says, and what its `kind` names. Nothing here runs a reward.

use crate::json_schema::Schema;
use crate::shape::{Format, Length, Pattern};
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_worker::{Network, Signature};
use serde_json::Value;

/// The kinds that a run file may name.
pub const KINDS: [&str; 14] = [
    "exact",
    "math",
    "gsm8k",
    "countdown",
    "code",
    "json-schema",
    "regex",
    "regex:PATTERN",
    "format",
    "length",
    "python:FILE.py:FUNCTION",
    "command:PROGRAM",
    "http://ADDRESS",
    "hash",
];

/// Most workers of one reward.
const WORKERS_MAX: u32 = 256;
/// Stack of a grader's thread: the `math` verifier's recursion is bounded well below half of it.
pub(crate) const STACK_BYTES: usize = 1 << 20;
/// Most that a grader holds for one batch in addition to the texts: 1 MiB of reply, the same as values, and pipes.
const GRADER_BYTES: u64 = 3 << 20;
/// The same for a verifier in the process, which works in the texts themselves: its stack.
const IN_PROCESS_BYTES: u64 = STACK_BYTES as u64;
/// The same for an address: two copies of the largest reply, and what TLS holds.
const HTTP_BYTES: u64 = 2 * crate::http::REPLY_BYTES_MAX + (1 << 20);

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
    /// Longest time for one batch, and of `code` for one test, in milliseconds.
    pub timeout_ms: u64,
    /// Worker processes, or connections of `http:`; each takes its share of the batches.
    pub workers: u32,
    /// Samples of one call, rounded up to whole groups; none: 8, or fewer where there are many workers.
    pub batch_size: Option<usize>,
    /// Limit on the address space of one worker.
    pub worker_memory: Bytes,
    /// Whether a worker may reach a network.
    pub network: Network,
    /// How often a batch that failed is tried again, in a fresh worker where it died or hung.
    pub retries: u32,
    /// What a failure does.
    pub on_error: OnError,
    /// How a `python:` function is called.
    pub signature: Signature,
    /// The Python interpreter of `python:` and `code`; `python3` if none.
    pub python: Option<String>,
    /// The file with the schema of `json-schema`; without one the answer column has it.
    pub schema: Option<String>,
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
        }
    }
}

impl RewardSpec {
    /// A reward of `kind` with every option at its default.
    pub fn of_kind(kind: impl Into<String>) -> RewardSpec {
        RewardSpec { kind: kind.into(), ..RewardSpec::default() }
    }

    /// Whether the kind is known and its pattern or schema can be used. Starts nothing.
    ///
    /// Errors: `unknown-reward`, `reward-bad-pattern`, `reward-bad-schema`.
    pub fn check(&self) -> Result<()> {
        Kind::parse(self).map(drop)
    }

    /// What it takes of the host, at most.
    pub fn memory(&self) -> RewardMemory {
        let Ok(kind) = Kind::parse(self) else { return RewardMemory::default() };
        let graders = u64::from(self.graders(&kind));
        let (workers, each) = match kind {
            Kind::Python { .. } | Kind::Command { .. } | Kind::Code => {
                (Bytes(self.worker_memory.0.saturating_mul(graders)), GRADER_BYTES)
            }
            Kind::Http { .. } => (Bytes(0), HTTP_BYTES),
            _ => (Bytes(0), IN_PROCESS_BYTES),
        };
        let sends = each > IN_PROCESS_BYTES;
        RewardMemory { workers, buffers: Bytes(graders * each), threads: graders as usize, sends }
    }

    /// Threads that grade: one a worker or connection, one for what runs in the process.
    pub(crate) fn graders(&self, kind: &Kind) -> u32 {
        match kind {
            Kind::Python { .. } | Kind::Command { .. } | Kind::Code | Kind::Http { .. } => {
                self.workers.clamp(1, WORKERS_MAX)
            }
            _ => 1,
        }
    }
}

/// What rewards take of the host, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewardMemory {
    /// All worker processes together.
    pub workers: Bytes,
    /// Requests and replies under way in this process, stacks included.
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

    /// Both together.
    pub fn with(self, other: RewardMemory) -> RewardMemory {
        RewardMemory {
            workers: Bytes(self.workers.0.saturating_add(other.workers.0)),
            buffers: Bytes(self.buffers.0.saturating_add(other.buffers.0)),
            threads: self.threads + other.threads,
            sends: self.sends || other.sends,
        }
    }
}

/// A kind, parsed.
pub(crate) enum Kind {
    Exact,
    Math,
    Gsm8k,
    Countdown,
    Code,
    /// With the schema of all rows, where there is one.
    JsonSchema(Option<Box<Schema>>),
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
    Http {
        url: String,
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
            ("countdown", None) => Ok(Kind::Countdown),
            ("code", None) => Ok(Kind::Code),
            ("json-schema", None) => {
                spec.schema.as_deref().map(read_schema).transpose().map(Kind::JsonSchema)
            }
            ("http" | "https", Some(rest)) => match rest.strip_prefix("//") {
                Some(address) if !address.is_empty() && !address.starts_with('/') => {
                    Ok(Kind::Http { url: spec.kind.clone() })
                }
                _ => Err(unknown(&spec.kind).hint("write kind = \"http://HOST:PORT/PATH\"")),
            },
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

    /// True if the kind reads the answer column.
    pub(crate) fn needs_answer(&self) -> bool {
        match self {
            Kind::Exact | Kind::Math | Kind::Gsm8k | Kind::Countdown | Kind::Code => true,
            Kind::JsonSchema(schema) => schema.is_none(),
            _ => false,
        }
    }

    /// The name in metrics: the kind, or the function of `python:`, or the program of `command:`.
    pub(crate) fn name(&self) -> String {
        match self {
            Kind::Exact => "exact".into(),
            Kind::Math => "math".into(),
            Kind::Gsm8k => "gsm8k".into(),
            Kind::Hash => "hash".into(),
            Kind::Countdown => "countdown".into(),
            Kind::Code => "code".into(),
            Kind::JsonSchema(_) => "json-schema".into(),
            Kind::Http { .. } => "http".into(),
            Kind::Pattern(_) => "regex".into(),
            Kind::Format(_) => "format".into(),
            Kind::Length(_) => "length".into(),
            Kind::Python { function, .. } => function.clone(),
            Kind::Command { program, .. } => program.rsplit('/').next().unwrap_or(program).into(),
        }
    }
}

fn read_schema(path: &str) -> Result<Box<Schema>> {
    let named = |why: String| {
        Error::usage("reward-bad-schema", format!("the schema of `json-schema`: {path}: {why}"))
            .hint("set `schema` in the [[reward]] table to a file with a JSON Schema")
    };
    let text = std::fs::read_to_string(path).map_err(|err| named(err.to_string()))?;
    let root: Value = serde_json::from_str(&text).map_err(|err| named(format!("no JSON: {err}")))?;
    Schema::new(root).map(Box::new)
}

pub(crate) fn unknown(kind: &str) -> Error {
    let head = kind.split(':').next().unwrap_or(kind);
    let heads = [
        "exact",
        "hash",
        "math",
        "gsm8k",
        "countdown",
        "code",
        "json-schema",
        "regex",
        "format",
        "length",
        "python",
        "command",
        "http",
        "https",
    ];
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
            ("http:", "http://HOST"),
            ("https:///x", "http://HOST"),
            ("json-shema", "did you mean `json-schema`?"),
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
