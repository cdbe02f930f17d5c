//! A function in a Python file that turns the rewards of a step into one advantage a token, in one interpreter.
//!
//! N tokens, S sequences.

use crate::ids::Ids;
use crate::launch::{Launch, Limits};
use crate::pool::{Pool, Stop};
use crate::python::{Columns, line};
use crate::raised::Raised;
use crate::reply::{field, field_of_first, reply_to, string};
use crate::sandbox::Network;
use crate::words::Words;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use plimsoll_base::{Bytes, Error, JsonPart, Result, slugs};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// Serves the function; embedded, so that nothing needs to be installed but numpy.
const SERVE: &str = concat!(
    include_str!("load.py"),
    include_str!("protocol.py"),
    include_str!("functions.py"),
    include_str!("serve_estimator.py")
);
/// Time to start the interpreter and to import the file and numpy.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const HINT: &str = "return one finite number for each token, as a numpy array of the length of `logprobs`";

/// The function to load, and its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct EstimatorSpec {
    /// The file of the function.
    pub file: PathBuf,
    /// Its name there.
    pub function: String,
    /// The interpreter; `None` for `default_python`.
    pub python: Option<String>,
    /// Limit on the address space of the interpreter.
    pub memory: Bytes,
    /// Time for one step.
    pub timeout: Duration,
}

/// A step as the function gets it.
#[derive(Clone, Copy, Debug)]
pub struct EstimatorInputs<'a> {
    /// [S], the sample's reward after the length penalty; NaN without a score.
    pub rewards: &'a [f32],
    /// [N], the reward of a sequence at its last trained token, less the KL where it is part of the reward.
    pub token_rewards: &'a [f32],
    /// [N], 1 on trained tokens.
    pub mask: &'a [f32],
    /// [S + 1], in tokens.
    pub offsets: &'a [usize],
    /// [S], the sample of each sequence.
    pub samples: &'a [usize],
    /// [S], the group of each sequence.
    pub groups: &'a [usize],
    /// [N], the turn in which a token was drawn, -1 for tokens of the environment.
    pub turns: &'a [i32],
    /// [N], of the policy that sampled.
    pub logprobs: &'a [f32],
    /// [N], of the reference; empty without one.
    pub ref_logprobs: &'a [f32],
    /// The data's columns of each sequence.
    pub columns: &'a [&'a Columns],
    /// The step, from 1.
    pub step: u32,
    pub seed: u64,
}

/// A Python function that estimates advantages.
pub struct PythonEstimator {
    pool: Pool,
    name: String,
    ids: Ids,
}

impl PythonEstimator {
    /// Starts an interpreter, and loads the function in it.
    ///
    /// Errors: `advantage-function-missing` if file, function or numpy cannot be loaded, or the function asks for what
    /// there is not; `advantage-worker-failed`.
    pub fn start(spec: &EstimatorSpec, words: Words, start_timeout: Option<Duration>) -> Result<Self> {
        let (file, function) = (&spec.file, &spec.function);
        if !file.is_file() {
            let message = format!("`{}` is not a file", file.display());
            return Err(Error::usage(slugs::ADVANTAGE_FUNCTION_MISSING, message).near(file).hint(
                "write loss.advantage = \"python:FILE.py:FUNCTION\" with a path from where the command runs",
            ));
        }
        let place = file.to_string_lossy();
        let item = (function.as_str(), &[&*place, function][..]);
        let (python, network) = (spec.python.as_deref(), Network::Deny);
        let launch = Launch::of_python(python, SERVE, item, spec.memory, network, check_loaded);
        let mut launch = Launch { words: Some(words), ..launch };
        // The order of a set of strings must not differ between two starts of a run.
        launch.env.push(("PYTHONHASHSEED".into(), "0".into()));
        let start_timeout = start_timeout.unwrap_or(START_TIMEOUT);
        let limits = Limits { workers: 1, timeout: spec.timeout, start_timeout, retries: 0 };
        let pool = Pool::start(launch, limits, Stop::default()).map_err(of_estimator)?;
        Ok(PythonEstimator { pool, name: function.clone(), ids: Ids::default() })
    }

    /// Returns the advantages of a step, [N].
    ///
    /// Errors: `advantage-function-raised`, `advantage-bad-reply`, `advantage-worker-failed`.
    pub fn estimate(&mut self, inputs: &EstimatorInputs<'_>) -> Result<Vec<f32>> {
        let id = self.ids.next_id();
        let request = line(inputs.to_json(), &id);
        let reply = self.pool.call(&[request]).remove(0).map_err(of_estimator)?;
        let Ok(reply) = reply_to(&reply[0], &id) else {
            self.pool.discard(0);
            return Err(self.bad_reply("a line that is no reply to its request"));
        };
        if let Some(raised) = field(reply, "raised").map(Raised::read) {
            let message = format!("the advantage `{}` raised {}", self.name, raised.head());
            return Err(raised.facts(Error::new(slugs::ADVANTAGE_FUNCTION_RAISED, message)));
        }
        if field(reply, "memory").is_some() {
            return Err(of_estimator(self.pool.over_budget(0)));
        }
        if let Some(what) = string(reply, "bad") {
            return Err(self.bad_reply(&what));
        }
        // Base 64 is written without escapes.
        let text = field(reply, "advantages").and_then(JsonPart::plain_string);
        let bytes = text.and_then(|text| STANDARD.decode(text).ok());
        let bytes = bytes.ok_or_else(|| self.bad_reply("no array"))?;
        let number = |four: &[u8]| f32::from_le_bytes(four.try_into().expect("four bytes"));
        let values: Vec<f32> = bytes.chunks_exact(4).map(number).collect();
        // The script has checked both; the user's code shares its process.
        if values.len() == inputs.mask.len() && values.iter().all(|value| value.is_finite()) {
            Ok(values)
        } else {
            Err(self.bad_reply("an array of another length, or one with NaN"))
        }
    }

    fn bad_reply(&self, what: &str) -> Error {
        let message = format!("the advantage `{}` returned {what}", self.name);
        Error::new(slugs::ADVANTAGE_BAD_REPLY, message).hint(HINT)
    }
}

impl EstimatorInputs<'_> {
    fn to_json(self) -> Value {
        let lengths: Vec<usize> = self.offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let is_trained = array("?", self.mask.iter().map(|&mask| [u8::from(mask != 0.0)]));
        json!({
            "rewards": floats(self.rewards),
            "token_rewards": floats(self.token_rewards),
            "mask": is_trained,
            "offsets": counts(self.offsets),
            "lengths": counts(&lengths),
            "samples": counts(self.samples),
            "groups": counts(self.groups),
            "turns": array("<i4", self.turns.iter().map(|turn| turn.to_le_bytes())),
            "logprobs": floats(self.logprobs),
            "ref_logprobs": (!self.ref_logprobs.is_empty()).then(|| floats(self.ref_logprobs)),
            "columns": self.columns,
            "step": self.step,
            "seed": self.seed,
        })
    }
}

fn floats(values: &[f32]) -> Value {
    array("<f4", values.iter().map(|value| value.to_le_bytes()))
}

fn counts(values: &[usize]) -> Value {
    array("<i8", values.iter().map(|&value| (value as u64).to_le_bytes()))
}

/// Makes an array as the script reads it: numpy's name of the type, and the bytes.
fn array<const N: usize>(kind: &str, values: impl Iterator<Item = [u8; N]>) -> Value {
    json!({ "type": kind, "bytes": STANDARD.encode(values.flatten().collect::<Vec<u8>>()) })
}

/// Reads the first line of the worker: `{"ready": true}`, or `{"load": traceback}`.
fn check_loaded(name: &str, line: &str) -> Result<()> {
    let Some(raised) = field_of_first(line, "load").map(Raised::read) else { return Ok(()) };
    let message = format!("the advantage `{name}` does not load: {}", raised.head());
    Err(raised
        .facts(Error::usage(slugs::ADVANTAGE_FUNCTION_MISSING, message))
        .hint("import the file and numpy with the same interpreter to see why; loss.advantage_python names another")
        .hint("a function may name any of: rewards, token_rewards, mask, offsets, lengths, samples, groups, turns, logprobs, ref_logprobs, columns, step, seed"))
}

/// Turns a pool's error about a reward into one about the advantage.
fn of_estimator(error: Error) -> Error {
    let (slug, hint) = match error.slug {
        slugs::REWARD_WORKER_TIMEOUT => (
            slugs::ADVANTAGE_WORKER_FAILED,
            "raise loss.advantage_timeout_ms, or use numpy's operations in place of loops over tokens",
        ),
        slugs::REWARD_WORKER_OVER_BUDGET => (slugs::ADVANTAGE_WORKER_FAILED, "raise loss.advantage_memory"),
        slugs::REWARD_WORKER_CRASHED | slugs::REWARD_WORKER_OOM_KILLED => (
            slugs::ADVANTAGE_WORKER_FAILED,
            "run the function alone to see why; a crash in native code may also be the limit loss.advantage_memory",
        ),
        slugs::REWARD_BAD_REPLY => (slugs::ADVANTAGE_BAD_REPLY, HINT),
        slugs::REWARD_WORKER_NOT_STARTED | slugs::REWARD_SANDBOX_MISSING => (
            slugs::ADVANTAGE_WORKER_FAILED,
            "loss.advantage_python names the interpreter; without it: that of the virtual environment of plimsoll, of $VIRTUAL_ENV, or python3",
        ),
        _ => return error,
    };
    let message = error.message.replacen("reward `", "the advantage `", 1);
    let message = message.replace("took for one batch", "took for one step");
    Error { slug, message, hints: vec![hint.to_string()], ..error }
}
