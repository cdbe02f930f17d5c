//! `command:PROGRAM ARGS`: a program of yours that answers each line of JSON with a line.

use crate::case::Case;
use crate::scorer::{Reading, Scorer, Start, plain};
use plimsoll_base::{Error, Result, slugs};
use plimsoll_worker::{Launch, Pool, Request, Scores};
use serde_json::{Value, json};
use std::sync::Arc;

struct Command {
    pool: Pool,
    name: String,
}

/// Reads `PROGRAM ARGS`; a reward is called after the program, without its folder.
pub(crate) fn read(argument: Option<&str>) -> Option<Reading> {
    let mut words = argument?.split_whitespace().map(str::to_string);
    let (program, args) = (words.next()?, words.collect());
    let label = program.rsplit('/').next().unwrap_or(&program).to_string();
    Some(Reading::starts(&label, |Start { name, spec, limits, stop, .. }| {
        let launch = Launch {
            name: name.to_string(),
            program,
            args,
            env: Vec::new(),
            memory: spec.worker_memory,
            network: spec.network,
            folder: None,
            file: None,
            ready: None,
        };
        Ok(Box::new(Command { pool: Pool::start(launch, limits, stop)?, name: name.to_string() }))
    }))
}

impl Scorer for Command {
    fn score(&mut self, cases: &[Arc<Case>], _: [u32; 2]) -> Result<Scores> {
        let replies = self.pool.call(&[lines(cases)]).remove(0)?;
        read_lines(&replies, &self.name).map(plain)
    }
}

/// A line a case: `{"prompt", "completion", "ended", "columns": {…}}`.
fn lines(cases: &[Arc<Case>]) -> Request {
    let mut bytes = Vec::new();
    for case in cases {
        let line = json!({
            "prompt": case.prompt.text, "completion": case.response, "ended": case.ended,
            "columns": case.prompt.columns,
        });
        bytes.extend_from_slice(line.to_string().as_bytes());
        bytes.push(b'\n');
    }
    Request { bytes, reply_lines: cases.len() }
}

/// A reply line is a number, `null`, or `{"score": number or null}`.
fn read_lines(lines: &[String], name: &str) -> Result<Vec<Option<f64>>> {
    let one = |line: &String| {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|_| Value::String(line.clone()));
        match value.get("score").unwrap_or(&value) {
            Value::Null => Ok(None),
            Value::Number(number) => Ok(number.as_f64()),
            _ => Err(Error::new(slugs::REWARD_BAD_REPLY, format!("reward `{name}` answered {line:.80?}"))
                .hint("answer each line with a number, null, or {\"score\": number}, and flush")),
        }
    };
    lines.iter().map(one).collect()
}
