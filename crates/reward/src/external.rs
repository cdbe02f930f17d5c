//! Rewards that are other people's code, behind worker processes: Python functions and programs.
//!
//! A batch is cut into one contiguous slice a worker; the cut depends on the batch and the configuration alone.

use crate::rewards::Case;
use crate::spec::{Kind, RewardSpec};
use plimsoll_base::{Error, Result};
use plimsoll_worker::{Batch, Launch, Limits, Pool, PythonFunction, Request};
use serde_json::{Map, Value, json};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// Longest time from start to ready: an interpreter may import large packages.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Most worker processes of one reward.
pub(crate) const WORKERS_MAX: u32 = 256;

pub(crate) enum External {
    Python(PythonFunction),
    Command { pool: Pool, name: String },
}

type Outcome = Result<Vec<Option<f64>>>;

impl External {
    /// Starts the workers of a reward that has any.
    pub(crate) fn start(name: &str, kind: &Kind, spec: &RewardSpec) -> Result<Option<External>> {
        let limits = Limits {
            workers: spec.workers.clamp(1, WORKERS_MAX),
            timeout: Duration::from_millis(spec.timeout_ms),
            start_timeout: START_TIMEOUT,
            retries: spec.retries,
        };
        match kind {
            Kind::Python { file, function } => {
                let python = spec.python.as_deref();
                let started =
                    PythonFunction::start(Path::new(file), function, python, spec.worker_memory, limits)?;
                Ok(Some(External::Python(started)))
            }
            Kind::Command { program, args } => {
                let launch = Launch {
                    name: name.to_string(),
                    program: program.clone(),
                    args: args.clone(),
                    env: Vec::new(),
                    memory: spec.worker_memory,
                    ready: None,
                };
                Ok(Some(External::Command { pool: Pool::start(launch, limits)?, name: name.to_string() }))
            }
            _ => Ok(None),
        }
    }

    /// Scores the cases. With `none_on_error` a slice whose worker failed has no scores; else the first error is returned.
    pub(crate) fn score(&mut self, cases: &[Case], none_on_error: bool) -> Outcome {
        if cases.is_empty() {
            return Ok(Vec::new());
        }
        let slices = cut(cases.len(), self.workers());
        let outcomes = match self {
            External::Python(function) => {
                let batches: Vec<Batch> = slices.iter().map(|range| batch(&cases[range.clone()])).collect();
                function.call(&batches)
            }
            External::Command { pool, name } => {
                let requests: Vec<Request> =
                    slices.iter().map(|range| lines(&cases[range.clone()])).collect();
                pool.call(&requests)
                    .into_iter()
                    .map(|reply| reply.and_then(|lines| read_lines(&lines, name)))
                    .collect()
            }
        };
        let mut scores = Vec::with_capacity(cases.len());
        for (range, outcome) in slices.into_iter().zip(outcomes) {
            match outcome {
                Ok(slice) => scores.extend(slice),
                Err(_) if none_on_error => scores.extend(range.map(|_| None)),
                Err(error) => return Err(error),
            }
        }
        Ok(scores)
    }

    /// Times that a worker was started again.
    pub(crate) fn restarts(&self) -> u64 {
        match self {
            External::Python(function) => function.restarts(),
            External::Command { pool, .. } => pool.restarts(),
        }
    }

    fn workers(&self) -> usize {
        match self {
            External::Python(function) => function.workers(),
            External::Command { pool, .. } => pool.workers(),
        }
    }
}

/// `count` items in at most `parts` contiguous ranges, whose lengths differ by at most one; none is empty.
fn cut(count: usize, parts: usize) -> Vec<Range<usize>> {
    let parts = parts.min(count).max(1);
    (0..parts).map(|part| count * part / parts..count * (part + 1) / parts).collect()
}

fn batch(cases: &[Case]) -> Batch {
    let mut columns: Map<String, Value> = Map::new();
    for name in cases.iter().flat_map(|case| case.columns.keys()) {
        // Names that the call itself uses keep the call's meaning.
        if !columns.contains_key(name) && name != "prompts" && name != "completions" {
            let values =
                cases.iter().map(|case| case.columns.get(name).cloned().unwrap_or(Value::Null)).collect();
            columns.insert(name.clone(), Value::Array(values));
        }
    }
    Batch {
        prompts: cases.iter().map(|case| case.prompt.to_string()).collect(),
        completions: cases.iter().map(|case| case.response.to_string()).collect(),
        columns,
    }
}

/// A line a case: `{"prompt", "completion", "ended", "columns": {…}}`.
fn lines(cases: &[Case]) -> Request {
    let mut bytes = Vec::new();
    for case in cases {
        let line = json!({
            "prompt": case.prompt, "completion": case.response, "ended": case.ended, "columns": case.columns,
        });
        bytes.extend_from_slice(line.to_string().as_bytes());
        bytes.push(b'\n');
    }
    Request { bytes, reply_lines: cases.len() }
}

/// A reply line is a number, `null`, or `{"score": number or null}`.
fn read_lines(lines: &[String], name: &str) -> Outcome {
    lines
        .iter()
        .map(|line| {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|_| Value::String(line.clone()));
            match value.get("score").unwrap_or(&value) {
                Value::Null => Ok(None),
                Value::Number(number) => Ok(number.as_f64()),
                _ => {
                    let head: String = line.chars().take(80).collect();
                    Err(Error::new("reward-bad-reply", format!("reward `{name}` answered {head:?}"))
                        .hint("answer each line with a number, null, or {\"score\": number}, and flush"))
                }
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_cut_evenly_in_order() {
        for (count, parts, lengths) in
            [(5, 2, vec![2, 3]), (1, 4, vec![1]), (4, 4, vec![1; 4]), (23, 3, vec![7, 8, 8])]
        {
            let ranges = cut(count, parts);
            assert_eq!(ranges.iter().map(ExactSizeIterator::len).collect::<Vec<_>>(), lengths);
            assert!(ranges[0].start == 0 && ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }
}
