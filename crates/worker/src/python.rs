//! A reward function in a Python file, behind a pool of interpreters.
//!
//! The function has TRL's signature: `f(prompts, completions, **columns) -> list[float | None]`.

use crate::launch::{Launch, Limits};
use crate::pool::{Pool, Request};
use plimsoll_base::{Bytes, Error, Result};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Serves the function; embedded, so that nothing has to be installed.
const SERVE: &str = include_str!("serve.py");

/// A batch for a reward function: every list has one entry a sample.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Prompts as text.
    pub prompts: Vec<String>,
    /// Responses as text.
    pub completions: Vec<String>,
    /// Further columns by name.
    pub columns: Map<String, Value>,
}

/// A Python function that scores batches.
pub struct PythonFunction {
    pool: Pool,
    name: String,
}

impl PythonFunction {
    /// Starts `limits.workers` interpreters and loads the function in each.
    ///
    /// Errors: `reward-function-missing` if the file or the function cannot be loaded, with the traceback's last lines.
    pub fn start(
        file: &Path,
        function: &str,
        python: Option<&str>,
        memory: Bytes,
        limits: Limits,
    ) -> Result<Self> {
        if !file.is_file() {
            return Err(Error::usage(
                "reward-function-missing",
                format!("`{}` is not a file", file.display()),
            )
            .hint("write kind = \"python:FILE.py:FUNCTION\" with a path from where the command runs"));
        }
        let launch = Launch {
            name: function.to_string(),
            program: python.unwrap_or("python3").to_string(),
            args: vec!["-c".into(), SERVE.into(), file.to_string_lossy().into_owned(), function.to_string()],
            env: vec![("PYTHONUNBUFFERED".into(), "1".into()), ("PYTHONIOENCODING".into(), "utf-8".into())],
            memory,
            ready: Some(check_loaded),
        };
        let pool = Pool::start(launch, limits)?;
        Ok(PythonFunction { pool, name: function.to_string() })
    }

    /// Scores `slices`, slice `i` in worker `i`; `None` where the function gave none, NaN and infinities as they are.
    pub fn call(&mut self, slices: &[Batch]) -> Vec<Result<Vec<Option<f64>>>> {
        let requests: Vec<Request> = slices.iter().map(request).collect();
        let outcomes = self.pool.call(&requests);
        let mut scores = Vec::with_capacity(slices.len());
        for (index, outcome) in outcomes.into_iter().enumerate() {
            scores.push(
                outcome.and_then(|lines| self.read_reply(index, &lines[0], slices[index].prompts.len())),
            );
        }
        scores
    }

    /// How many slices one call takes.
    pub fn workers(&self) -> usize {
        self.pool.workers()
    }

    /// Times that a worker was started again.
    pub fn restarts(&self) -> u64 {
        self.pool.restarts()
    }

    /// Process ids of the workers.
    pub fn pids(&self) -> Vec<u32> {
        self.pool.pids()
    }

    fn read_reply(&mut self, worker: usize, line: &str, samples: usize) -> Result<Vec<Option<f64>>> {
        let name = &self.name;
        let reply: Value =
            serde_json::from_str(line).map_err(|_| self.bad_reply("a line that is not JSON"))?;
        if let Some(trace) = reply.get("raised").and_then(Value::as_str) {
            let lines: Vec<&str> = trace.lines().filter(|line| !line.trim().is_empty()).collect();
            let what = lines.last().copied().unwrap_or("an exception");
            let error = Error::new("reward-function-raised", format!("reward `{name}` raised {what}"));
            let tail = &lines[lines.len().saturating_sub(7)..];
            return Err(tail
                .iter()
                .fold(error, |error, line| error.fact(*line))
                .hint("fix the function, or set on_error = \"none\" to leave such samples out"));
        }
        if reply.get("memory").is_some() {
            return Err(self.pool.over_budget(worker));
        }
        if let Some(what) = reply.get("bad").and_then(Value::as_str) {
            return Err(self.bad_reply(what));
        }
        let Some(list) = reply.get("scores").and_then(Value::as_array) else {
            return Err(self.bad_reply("no list of scores"));
        };
        if list.len() != samples {
            return Err(self.bad_reply(&format!("{} scores for {samples} completions", list.len())));
        }
        list.iter()
            .map(|value| score(value).ok_or_else(|| self.bad_reply(&format!("the score {value}"))))
            .collect()
    }

    fn bad_reply(&self, what: &str) -> Error {
        Error::new("reward-bad-reply", format!("reward `{}` returned {what}", self.name))
            .hint("return a list with one float or None a completion")
    }
}

/// Reads the first line of a worker: `{"ready": true}`, or `{"load": traceback}`.
fn check_loaded(name: &str, line: &str) -> Result<()> {
    let reply: Value = serde_json::from_str(line).unwrap_or_default();
    let Some(trace) = reply.get("load").and_then(Value::as_str) else { return Ok(()) };
    let lines: Vec<&str> = trace.lines().filter(|line| !line.trim().is_empty()).collect();
    let what = lines.last().copied().unwrap_or("an exception");
    let error = Error::usage("reward-function-missing", format!("reward `{name}` does not load: {what}"));
    Err(lines[lines.len().saturating_sub(5)..].iter().fold(error, |error, line| error.fact(*line))
        .hint("import the file with the same interpreter to see why; `python` in the [[reward]] table names another"))
}

fn score(value: &Value) -> Option<Option<f64>> {
    match value {
        Value::Null => Some(None),
        Value::Number(number) => Some(number.as_f64()),
        Value::String(text) => text.parse().ok().map(Some),
        _ => None,
    }
}

fn request(batch: &Batch) -> Request {
    let mut keywords = batch.columns.clone();
    keywords.insert("prompts".into(), json!(batch.prompts));
    keywords.insert("completions".into(), json!(batch.completions));
    let mut bytes = Value::Object(keywords).to_string().into_bytes();
    bytes.push(b'\n');
    Request { bytes, reply_lines: 1 }
}
