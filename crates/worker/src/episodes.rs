//! A text environment in a Python file, behind one interpreter that holds several episodes.
//!
//! What the environment does wrong is told apart: it raised, it hung, it died, it went over its memory, or what it
//! returned is no turn. An episode whose worker has ended since its reset is lost, which is nobody's second fault.

use crate::launch::{Launch, Limits};
use crate::pool::{Pool, Request, Stop};
use crate::sandbox::Network;
use plimsoll_base::{Bytes, Error, Result, slugs};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// Serves the class; embedded, so that nothing has to be installed.
const SERVE: &str = include_str!("serve_episodes.py");

/// What to load and how.
#[derive(Clone, Debug)]
pub struct EpisodesSpec {
    /// The file.
    pub file: PathBuf,
    /// The class in it, or a function that makes an environment.
    pub class: String,
    /// The interpreter; `python3` if none.
    pub python: Option<String>,
    /// Limit on the address space of the interpreter.
    pub memory: Bytes,
    /// Whether it may reach a network.
    pub network: Network,
    /// Longest time for the environment to answer one turn.
    pub step_timeout: Duration,
    /// Longest time to begin an episode, and to start.
    pub reset_timeout: Duration,
}

/// What an environment said: roles with contents.
pub type Messages = Vec<(String, String)>;

/// The answer to a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// What it said.
    pub messages: Messages,
    /// Reward of the turn; finite.
    pub reward: f64,
    /// True if the episode is over.
    pub done: bool,
}

/// Episodes of a Python class.
pub struct PythonEpisodes {
    pool: Pool,
    name: String,
    step_timeout: Duration,
    reset_timeout: Duration,
}

impl PythonEpisodes {
    /// Starts the interpreter and loads the class.
    ///
    /// Errors: `text-environment-missing` with the traceback's last lines; those of starting a worker.
    pub fn start(spec: &EpisodesSpec, stop: Stop) -> Result<PythonEpisodes> {
        let (file, class) = (&spec.file, &spec.class);
        if !file.is_file() {
            let message = format!("`{}` is not a file", file.display());
            return Err(Error::usage(slugs::TEXT_ENVIRONMENT_MISSING, message)
                .hint("write env = \"python:FILE.py:CLASS\" with a path from where the command runs"));
        }
        let python = spec.python.as_deref();
        let launch = Launch::of_python(python, SERVE, (file, class), spec.memory, spec.network, check_loaded);
        let (step_timeout, reset_timeout) = (spec.step_timeout, spec.reset_timeout);
        // A turn is not asked for twice: the environment may have taken it already.
        let limits = Limits { workers: 1, timeout: step_timeout, start_timeout: reset_timeout, retries: 0 };
        let pool = Pool::start(launch, limits, stop).map_err(of_environment)?;
        Ok(PythonEpisodes { pool, name: class.clone(), step_timeout, reset_timeout })
    }

    /// Begins an episode in a slot: what the environment says first.
    ///
    /// Errors: `text-environment-raised`, `-timeout`, `-crashed`, `-over-budget`, `-bad-reply`.
    pub fn reset(&mut self, slot: usize, seed: u32) -> Result<Messages> {
        self.pool.set_timeout(self.reset_timeout);
        let reply = self.ask(&json!({ "reset": slot, "seed": seed }));
        self.pool.set_timeout(self.step_timeout);
        let reply = reply?;
        messages(&reply).ok_or_else(|| self.bad_reply("a line that is no answer to `reset`"))
    }

    /// Gives the model's turn to the episode in a slot; `None` if the worker that held it has ended since.
    ///
    /// Errors: as `reset`.
    pub fn step(&mut self, slot: usize, response: &str) -> Result<Option<Turn>> {
        let reply = self.ask(&json!({ "step": slot, "response": response }))?;
        if reply.get("lost").is_some() {
            return Ok(None);
        }
        let (reward, done) = (reply.get("reward"), reply.get("done"));
        match (messages(&reply), reward.and_then(Value::as_f64), done.and_then(Value::as_bool)) {
            (Some(messages), Some(reward), Some(done)) => Ok(Some(Turn { messages, reward, done })),
            _ => Err(self.bad_reply("a line that is no answer to `step`")),
        }
    }

    /// Times that the worker was started again.
    pub fn restarts(&self) -> u64 {
        self.pool.restarts()
    }

    fn ask(&mut self, request: &Value) -> Result<Value> {
        let mut bytes = request.to_string().into_bytes();
        bytes.push(b'\n');
        let reply = self.pool.call(&[Request { bytes, reply_lines: 1 }]).remove(0).map_err(of_environment)?;
        let reply: Value =
            serde_json::from_str(&reply[0]).map_err(|_| self.bad_reply("a line that is not JSON"))?;
        if let Some(trace) = reply.get("raised").and_then(Value::as_str) {
            let lines: Vec<&str> = trace.lines().filter(|line| !line.trim().is_empty()).collect();
            let what = lines.last().copied().unwrap_or("an exception");
            let message = format!("environment `{}` raised {what}", self.name);
            let error = Error::new(slugs::TEXT_ENVIRONMENT_RAISED, message);
            let tail = &lines[lines.len().saturating_sub(7)..];
            return Err(tail.iter().fold(error, |error, line| error.fact(*line)).hint("fix the environment"));
        }
        if reply.get("memory").is_some() {
            return Err(of_environment(self.pool.over_budget(0)));
        }
        match reply.get("bad").and_then(Value::as_str) {
            Some(what) => Err(self.bad_reply(what)),
            None => Ok(reply),
        }
    }

    fn bad_reply(&self, what: &str) -> Error {
        let message = format!("environment `{}`: {what}", self.name);
        Error::new(slugs::TEXT_ENVIRONMENT_BAD_REPLY, message)
            .hint("reset(seed) returns messages, step(response) returns (messages, reward, done); messages are a string, a dict with `role` and `content`, or a list of these")
    }
}

fn messages(reply: &Value) -> Option<Messages> {
    let one = |message: &Value| {
        let text = |i: usize| message.get(i).and_then(Value::as_str).map(str::to_string);
        Some((text(0)?, text(1)?))
    };
    reply.get("messages")?.as_array()?.iter().map(one).collect()
}

/// Reads the first line of a worker: `{"ready": true}`, or `{"load": traceback}`.
fn check_loaded(name: &str, line: &str) -> Result<()> {
    let reply: Value = serde_json::from_str(line).unwrap_or_default();
    let Some(trace) = reply.get("load").and_then(Value::as_str) else { return Ok(()) };
    let lines: Vec<&str> = trace.lines().filter(|line| !line.trim().is_empty()).collect();
    let what = lines.last().copied().unwrap_or("an exception");
    let message = format!("environment `{name}` does not load: {what}");
    let error = Error::usage(slugs::TEXT_ENVIRONMENT_MISSING, message);
    Err(lines[lines.len().saturating_sub(5)..]
        .iter()
        .fold(error, |error, line| error.fact(*line))
        .hint("import the file with the same interpreter to see why; `environment.python` names another"))
}

/// What is said of an environment's worker.
struct Words {
    slug: &'static str,
    hint: &'static str,
}

/// What a pool says of the worker of a reward, said of that of an environment.
fn of_environment(error: Error) -> Error {
    let Words { slug, hint } = match error.slug {
        slugs::REWARD_WORKER_TIMEOUT => Words {
            slug: slugs::TEXT_ENVIRONMENT_TIMEOUT,
            hint: "raise environment.step_timeout_ms, or make the environment return in time",
        },
        slugs::REWARD_WORKER_OVER_BUDGET => Words {
            slug: slugs::TEXT_ENVIRONMENT_OVER_BUDGET,
            hint: "raise environment.worker_memory, or lower environment.num_workers",
        },
        slugs::REWARD_WORKER_CRASHED | slugs::REWARD_WORKER_OOM_KILLED => Words {
            slug: slugs::TEXT_ENVIRONMENT_CRASHED,
            hint: "run the environment alone to see why; a crash in native code may also be the limit environment.worker_memory",
        },
        slugs::REWARD_BAD_REPLY => Words {
            slug: slugs::TEXT_ENVIRONMENT_BAD_REPLY,
            hint: "what an environment says to one turn is bounded by 1 MiB",
        },
        slugs::REWARD_WORKER_NOT_STARTED => Words {
            slug: slugs::TEXT_ENVIRONMENT_MISSING,
            hint: "environment.python names the interpreter; `python3` if absent",
        },
        slugs::REWARD_SANDBOX_MISSING => Words {
            slug: slugs::TEXT_ENVIRONMENT_MISSING,
            hint: "set environment.network = \"allow\" if the environment may reach the network",
        },
        _ => return error,
    };
    let message = error.message.replacen("reward `", "environment `", 1);
    let message = message.replace("took for one batch", "took for one turn");
    Error { slug, message, hints: vec![hint.to_string()], ..error }
}
