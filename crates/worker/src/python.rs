//! A reward function in a Python file, in a pool of interpreters.
//!
//! Three ways to call it, so that functions written for other stacks work unchanged: see [`Signature`].

use crate::ids::Ids;
use crate::images::{SampleImage, shared_lists};
use crate::launch::{Launch, Limits};
use crate::pool::{Pool, Request, Stop};
use crate::raised::Raised;
use crate::reply::{field, field_of_first, reply_to, string};
use crate::sandbox::Network;
use crate::steps::{RewardStep, read_steps};
use crate::words::Words;
use plimsoll_base::{Bytes, Error, ExactSum, JsonPart, Result, shown, slugs};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// Serves the function; embedded, so that nothing needs to be installed.
const SERVE: &str = concat!(
    include_str!("load.py"),
    include_str!("protocol.py"),
    include_str!("functions.py"),
    include_str!("serve.py")
);

pub type Columns = Map<String, Value>;

/// How to call a Python function, and what it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signature {
    /// `f(prompts, completions, completion_ids, **columns)` for a batch: a list of numbers and None (TRL).
    #[default]
    Trl,
    /// `f(data_source, solution_str, ground_truth, extra_info)` for a sample: a number or a dict with `score` (verl).
    Verl,
    /// `f(queries, prompts, labels)` for a batch: a list, or a dict with `rewards` (OpenRLHF).
    OpenRlhf,
}

/// A batch for a reward function: every list has one entry per sample.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Prompts as text, or as messages if the data has messages.
    pub prompts: Vec<Value>,
    /// Prompts as the model read them, with template tokens.
    pub rendered: Vec<String>,
    pub responses: Vec<String>,
    /// The messages of a response that is a conversation; absent, or shorter than `responses`, if it is one message.
    pub completions: Vec<Option<Value>>,
    pub response_ids: Vec<Vec<u32>>,
    pub answers: Vec<Value>,
    pub columns: Vec<Arc<Columns>>,
    /// The images of each prompt; empty if no row has images.
    pub images: Vec<Arc<[SampleImage]>>,
    /// The step and the number of steps; 0 outside a run.
    pub steps: [u32; 2],
}

/// The function to load, and its limits.
#[derive(Clone, Debug)]
pub struct PythonSpec {
    pub file: PathBuf,
    pub function: String,
    pub signature: Signature,
    /// The interpreter; `None` for `default_python`.
    pub python: Option<String>,
    /// Limit on the address space of one interpreter.
    pub memory: Bytes,
    pub network: Network,
    /// True if the steps that it may return are read.
    pub steps: bool,
    /// Where output of the function goes.
    pub words: Option<Words>,
}

/// Most values that a function logs for a batch.
const LOGGED_MAX: usize = 1024;

/// Scores of a batch and the values that the function logged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// One entry per sample; `None` if the function gave none; NaN and infinities unchanged.
    pub scores: Vec<Option<f64>>,
    /// Samples that have none because grading failed, as indices.
    pub failed: Vec<usize>,
    /// Name, sum and count of each value.
    pub logged: Vec<(String, ExactSum, u64)>,
    /// The steps of each sample; empty if none are read.
    pub steps: Vec<Vec<RewardStep>>,
}

/// A Python function that scores batches.
pub struct PythonFunction {
    pool: Pool,
    name: String,
    signature: Signature,
    steps: bool,
    ids: Ids,
}

impl PythonFunction {
    /// Starts `limits.workers` interpreters and loads the function in each.
    ///
    /// Errors: `reward-function-missing` if the file or the function cannot be loaded, with the traceback's last lines.
    pub fn start(spec: &PythonSpec, limits: Limits, stop: Stop) -> Result<Self> {
        let (file, function) = (&spec.file, &spec.function);
        if !file.is_file() {
            return Err(Error::usage(
                "reward-function-missing",
                format!("`{}` is not a file", file.display()),
            )
            .near(file)
            .hint("write kind = \"python:FILE.py:FUNCTION\" with a path from where the command runs"));
        }
        let python = spec.python.as_deref();
        let place = file.to_string_lossy();
        let item = (function.as_str(), &[&*place, function][..]);
        let launch = Launch::of_python(python, SERVE, item, spec.memory, spec.network, check_loaded);
        let launch = Launch { words: spec.words.clone(), ..launch };
        let pool = Pool::start(launch, limits, stop)?;
        Ok(PythonFunction {
            pool,
            name: function.clone(),
            signature: spec.signature,
            steps: spec.steps,
            ids: Ids::default(),
        })
    }

    /// Checks the function's parameters against the arguments of its call.
    ///
    /// `columns`: those of the data. Errors: `reward-function-signature`; those of a worker.
    pub fn check(&mut self, columns: &Columns) -> Result<()> {
        let mut names: Vec<&str> = self.signature.keywords().to_vec();
        if self.signature == Signature::Trl {
            names.extend(columns.keys().map(String::as_str));
        }
        let id = self.ids.next_id();
        let reply = self.pool.call(&[line(json!({ "check": names }), &id)]).remove(0)?;
        let reply = self.reply_to(0, &id, &reply[0])?;
        let Some(why) = string(reply, "signature") else { return Ok(()) };
        let parameters = string(reply, "parameters").unwrap_or_default();
        let name = &self.name;
        Err(Error::usage("reward-function-signature", format!("reward `{name}` cannot be called: {why}"))
            .fact(format!("it is `{name}{parameters}` and is called with {}", names.join(", ")))
            .hint("name the parameters as the call does, or take the rest with **kwargs")
            .hint("`signature` in the [[reward]] table chooses the call: \"trl\", \"verl\" or \"openrlhf\""))
    }

    /// Scores `slices`, slice `i` in worker `i`.
    pub fn call(&mut self, slices: &[Batch]) -> Vec<Result<Scores>> {
        let ids: Vec<String> = slices.iter().map(|_| self.ids.next_id()).collect();
        let requests: Vec<Request> =
            slices.iter().zip(&ids).map(|(batch, id)| line(self.request(batch), id)).collect();
        let outcomes = self.pool.call(&requests);
        let mut scores = Vec::with_capacity(slices.len());
        for (index, outcome) in outcomes.into_iter().enumerate() {
            scores.push(outcome.and_then(|lines| {
                let reply = self.reply_to(index, &ids[index], &lines[0])?;
                self.read_reply(index, reply, &slices[index].responses)
            }));
        }
        scores
    }

    /// Returns the number of slices that one call takes.
    pub fn workers(&self) -> usize {
        self.pool.workers()
    }

    /// Returns how often a worker was restarted.
    pub fn restarts(&self) -> u64 {
        self.pool.restarts()
    }

    /// Returns the process ids of the workers.
    pub fn pids(&self) -> Vec<u32> {
        self.pool.pids()
    }

    fn request(&self, batch: &Batch) -> Value {
        let mut request = self.call_of(batch);
        if self.steps {
            request["with_steps"] = true.into();
        }
        request
    }

    fn call_of(&self, batch: &Batch) -> Value {
        match self.signature {
            Signature::Trl => {
                let mut keywords = columns_by_name(&batch.columns);
                // Arguments of the call take precedence over columns.
                keywords.insert("prompts".into(), json!(batch.prompts));
                keywords.insert("completions".into(), completions(batch));
                keywords.insert("completion_ids".into(), json!(batch.response_ids));
                let mut call =
                    json!({ "keywords": keywords, "step": batch.steps[0], "steps": batch.steps[1] });
                if let Some(images) = shared_lists(&batch.images) {
                    call["images"] = images;
                }
                call
            }
            Signature::Verl => json!({ "calls": verl_calls(batch) }),
            Signature::OpenRlhf => {
                let both = batch.rendered.iter().zip(&batch.responses);
                let queries: Vec<String> =
                    both.map(|(prompt, response)| format!("{prompt}{response}")).collect();
                let keywords =
                    json!({ "queries": queries, "prompts": batch.rendered, "labels": batch.answers });
                json!({ "keywords": keywords, "step": batch.steps[0], "steps": batch.steps[1] })
            }
        }
    }

    /// Parses a line as the reply to request `id`. A worker that wrote anything else is dropped.
    fn reply_to<'l>(&mut self, worker: usize, id: &str, line: &'l str) -> Result<JsonPart<'l>> {
        reply_to(line, id).map_err(|what| {
            self.pool.discard(worker);
            self.bad_reply(what)
        })
    }

    fn read_reply(&mut self, worker: usize, reply: JsonPart<'_>, responses: &[String]) -> Result<Scores> {
        let samples = responses.len();
        let name = &self.name;
        if let Some(raised) = field(reply, "raised").map(Raised::read) {
            let message = format!("reward `{name}` raised {}", raised.head());
            return Err(raised
                .facts(Error::new(slugs::REWARD_FUNCTION_RAISED, message))
                .hint("fix the function, or set on_error = \"none\" to leave such samples out"));
        }
        if field(reply, "memory").is_some() {
            return Err(self.pool.over_budget(worker));
        }
        if let Some(what) = string(reply, "bad") {
            return Err(self.bad_reply(&what));
        }
        let list = field(reply, "scores");
        let (Some(list), Some(count)) = (list, list.and_then(JsonPart::count)) else {
            return Err(self.bad_reply("no list of scores"));
        };
        if count != samples {
            return Err(self.bad_reply(&format!("{count} scores for {samples} completions")));
        }
        let mut scores = Vec::with_capacity(samples);
        list.each(&mut |value| {
            let no_score = || self.bad_reply(&format!("the score {}", shown(value.text())));
            scores.push(score(value).ok_or_else(no_score)?);
            Ok(())
        })?;
        let responses: Vec<&str> = responses.iter().map(String::as_str).collect();
        let steps = if self.steps {
            read_steps(field(reply, "steps"), &responses).map_err(|what| self.bad_steps(&what))?
        } else {
            Vec::new()
        };
        let logged = logged(reply).map_err(|what| self.bad_reply(&what))?;
        Ok(Scores { scores, failed: Vec::new(), logged, steps })
    }

    fn bad_reply(&self, what: &str) -> Error {
        let hint = match self.signature {
            Signature::Verl => "return a number, or a dict with the number `score`",
            _ => "return a list with one float or None a completion",
        };
        self.returned(what).hint(hint)
    }

    fn bad_steps(&self, what: &str) -> Error {
        self.returned(what)
            .hint("a step is [end, reward]: ends ascend, and are at most the characters of the text")
    }

    fn returned(&self, what: &str) -> Error {
        Error::new(slugs::REWARD_BAD_REPLY, format!("reward `{}` returned {what}", self.name))
    }
}

impl Signature {
    /// Returns the keywords of every call.
    fn keywords(self) -> &'static [&'static str] {
        match self {
            Signature::Trl => {
                &["prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"]
            }
            Signature::Verl => &["data_source", "solution_str", "ground_truth", "extra_info"],
            Signature::OpenRlhf => &["queries", "prompts", "labels"],
        }
    }
}

/// Returns one list per column, with null where a row lacks it.
fn columns_by_name(rows: &[Arc<Columns>]) -> Columns {
    let mut columns = Columns::new();
    for name in rows.iter().flat_map(|row| row.keys()) {
        if !columns.contains_key(name) {
            let values = rows.iter().map(|row| row.get(name).cloned().unwrap_or(Value::Null)).collect();
            columns.insert(name.clone(), Value::Array(values));
        }
    }
    columns
}

/// Returns responses in the form of their prompts: text, or a list of messages.
fn completions(batch: &Batch) -> Value {
    let both = batch.prompts.iter().zip(&batch.responses).enumerate();
    both.map(|(sample, (prompt, response))| match (batch.completions.get(sample), prompt) {
        (Some(Some(messages)), _) => messages.clone(),
        (_, Value::Array(_)) => json!([{ "role": "assistant", "content": response }]),
        _ => json!(response),
    })
    .collect()
}

fn verl_calls(batch: &Batch) -> Vec<Value> {
    let rows = batch.responses.iter().zip(&batch.columns).zip(&batch.answers);
    rows.map(|((response, columns), answer)| {
        // verl has a special form for the answer column; a plain answer column is passed unchanged.
        let nested = columns.get("reward_model").and_then(|column| column.get("ground_truth"));
        json!({
            "data_source": columns.get("data_source"), "solution_str": response,
            "ground_truth": if answer.is_null() { nested.unwrap_or(&Value::Null) } else { answer },
            "extra_info": columns.get("extra_info"),
        })
    })
    .collect()
}

/// Reads the values that a function logged: for each name the bits of its partial sums, and a count.
///
/// Errors: words on too many.
fn logged(reply: JsonPart<'_>) -> std::result::Result<Vec<(String, ExactSum, u64)>, String> {
    let Some(metrics) = field(reply, "metrics") else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    metrics.fields(&mut |name, entry| {
        if all.len() == LOGGED_MAX {
            return Err(format!("more than {LOGGED_MAX} logged values"));
        }
        all.extend(logged_one(&name, entry));
        Ok(())
    })?;
    Ok(all)
}

fn logged_one(name: &str, entry: JsonPart<'_>) -> Option<(String, ExactSum, u64)> {
    let mut parts = Vec::new();
    // A list of two; what follows is not read.
    let _ = entry.each(&mut |part| {
        parts.push(part);
        if parts.len() < 2 { Ok(()) } else { Err(()) }
    });
    let (sums, count) = (parts.first()?, parts.get(1)?.text().parse().ok()?);
    let mut sum = ExactSum::default();
    sums.each(&mut |bits| {
        bits.text().parse().into_iter().for_each(|bits| sum.add(f64::from_bits(bits)));
        Ok::<(), ()>(())
    })
    .ok()??;
    Some((name.chars().take(64).collect(), sum, count))
}

/// Reads the first line of a worker: `{"ready": true}`, or `{"load": traceback}`.
fn check_loaded(name: &str, line: &str) -> Result<()> {
    let Some(raised) = field_of_first(line, "load").map(Raised::read) else { return Ok(()) };
    let message = format!("reward `{name}` does not load: {}", raised.head());
    Err(raised.facts(Error::usage("reward-function-missing", message))
        .hint("import the file with the same interpreter to see why; `python` in the [[reward]] table names another"))
}

fn score(value: JsonPart<'_>) -> Option<Option<f64>> {
    if value.is_null() {
        return Some(None);
    }
    value.number().or_else(|| value.string()?.parse().ok()).map(Some)
}

/// Makes the line of a request, which asks for one line.
pub(crate) fn line(request: impl Serialize, id: &str) -> Request {
    #[derive(Serialize)]
    struct Line<'a, T> {
        id: &'a str,
        #[serde(flatten)]
        request: T,
    }
    let mut bytes = serde_json::to_vec(&Line { id, request }).expect("a request is an object");
    bytes.push(b'\n');
    Request { bytes, reply_lines: 1 }
}
