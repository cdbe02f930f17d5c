//! What scores one batch: a verifier in the process, or one interpreter, one program, one connection.

use crate::case::{Case, column, text_of};
use crate::code::{Code, Tests, simple_hash};
use crate::countdown::{Puzzle, grade_countdown};
use crate::http::Http;
use crate::json_schema::Schema;
use crate::spec::{Kind, RewardSpec};
use crate::{grade_exact, grade_gsm8k, math};
use plimsoll_base::{Error, Result, slugs};
use plimsoll_worker::{
    Batch, Columns, Launch, Limits, Pool, PythonFunction, PythonSpec, Request, Scores, Stop,
};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Longest time from start to ready: an interpreter may import large packages.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Scores batches, one at a time.
pub(crate) enum Scorer {
    Here { kind: Kind, name: String, answer_column: String },
    Code { code: Code, name: String, answer_column: String },
    Python { function: PythonFunction, answer_column: String },
    Command { pool: Pool, name: String },
    Http { http: Http, answer_column: String },
}

impl Scorer {
    /// Starts what has to be started. A worker dies with the thread that calls this.
    pub(crate) fn start(name: &str, spec: &RewardSpec, stop: &Stop) -> Result<Scorer> {
        let timeout = Duration::from_millis(spec.timeout_ms);
        // Tries are counted where the batch is known, so the pool makes one.
        let limits = Limits { workers: 1, timeout, start_timeout: START_TIMEOUT, retries: 0 };
        let (answer_column, stop) = (spec.answer_column.clone(), stop.clone());
        Ok(match Kind::parse(spec)? {
            Kind::Python { file, function } => {
                let python = PythonSpec {
                    file: Path::new(&file).to_path_buf(),
                    function,
                    signature: spec.signature,
                    python: spec.python.clone(),
                    memory: spec.worker_memory,
                    network: spec.network,
                };
                Scorer::Python { function: PythonFunction::start(&python, limits, stop)?, answer_column }
            }
            Kind::Command { program, args } => {
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
                Scorer::Command { pool: Pool::start(launch, limits, stop)?, name: name.to_string() }
            }
            Kind::Http { url } => Scorer::Http { http: Http::new(&url, name, timeout), answer_column },
            Kind::Code => {
                let launch = Code::launch(name, spec.python.as_deref(), spec.worker_memory);
                Scorer::Code { code: Code { launch, timeout, stop }, name: name.to_string(), answer_column }
            }
            kind => Scorer::Here { kind, name: name.to_string(), answer_column },
        })
    }

    /// Holds the data's columns against what is scored with them, where that can be told before the first batch.
    pub(crate) fn check(&mut self, columns: &Columns) -> Result<()> {
        match self {
            Scorer::Python { function, .. } => function.check(columns),
            Scorer::Here { kind, name, answer_column } => {
                let answer = column(columns, answer_column).unwrap_or(&Value::Null);
                match kind {
                    Kind::Countdown => puzzle(name, answer, columns).map(drop),
                    Kind::JsonSchema(None) => schema_of(answer).map(drop),
                    _ => Ok(()),
                }
            }
            Scorer::Code { name, answer_column, .. } => {
                tests(name, column(columns, answer_column).unwrap_or(&Value::Null)).map(drop)
            }
            Scorer::Command { .. } | Scorer::Http { .. } => Ok(()),
        }
    }

    /// Scores a batch, which is not empty; one entry a case.
    pub(crate) fn score(&mut self, cases: &[Arc<Case>], steps: [u32; 2]) -> Result<Scores> {
        let plain = |scores| Scores { scores, logged: Vec::new() };
        match self {
            Scorer::Here { kind, name, answer_column } => {
                let one = |case: &Arc<Case>| score_here(kind, name, answer_column, case).map(Some);
                cases.iter().map(one).collect::<Result<_>>().map(plain)
            }
            Scorer::Code { code, name, answer_column } => {
                let one = |case: &Arc<Case>| {
                    let tests = tests(name, answer(case, answer_column))?;
                    code.grade(&case.response, &tests).map(|verdict| Some(f64::from(verdict.is_ok())))
                };
                cases.iter().map(one).collect::<Result<_>>().map(plain)
            }
            Scorer::Python { function, answer_column } => {
                function.call(&[batch(cases, answer_column, steps)]).remove(0)
            }
            Scorer::Command { pool, name } => {
                let lines = pool.call(&[lines(cases)]).remove(0)?;
                read_lines(&lines, name).map(plain)
            }
            Scorer::Http { http, answer_column } => {
                let answers: Vec<Value> =
                    cases.iter().map(|case| answer(case, answer_column).clone()).collect();
                http.score(cases, &answers).map(plain)
            }
        }
    }

    /// Why a case has the score that it has, in words, where that is known.
    pub(crate) fn why(&self, case: &Case) -> String {
        let answer = |column: &str| answer(case, column).clone();
        let said =
            |verdict: std::result::Result<(), String>| verdict.err().unwrap_or_else(|| "it holds".into());
        match self {
            Scorer::Here { kind, name, answer_column } => {
                let (answer, response) = (answer(answer_column), &case.response);
                match kind {
                    Kind::Math => math::why(response, &text_of(&answer)),
                    Kind::Gsm8k => crate::gsm8k::why(response, &text_of(&answer)),
                    Kind::Exact => {
                        format!("{:.60?} against {:.60?}", response.trim(), text_of(&answer).trim())
                    }
                    Kind::Countdown => match puzzle(name, &answer, &case.prompt.columns) {
                        Ok(puzzle) => said(grade_countdown(response, &puzzle)),
                        Err(error) => error.message,
                    },
                    Kind::JsonSchema(schema) => match schema {
                        Some(schema) => said(schema.grade(response)),
                        None => schema_of(&answer)
                            .map_or_else(|error| error.message, |schema| said(schema.grade(response))),
                    },
                    _ => format!("the response is {response:.60?}"),
                }
            }
            Scorer::Code { code, name, answer_column } => {
                let graded = tests(name, &answer(answer_column)).and_then(|t| code.grade(&case.response, &t));
                graded.map_or_else(|error| error.message, said)
            }
            _ => format!("the response is {:.60?}", case.response),
        }
    }

    /// True if a try that failed may go better.
    pub(crate) fn may_retry(&self) -> bool {
        matches!(self, Scorer::Python { .. } | Scorer::Command { .. } | Scorer::Http { .. })
    }

    /// True for a server, which is given a pause between tries.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Scorer::Http { .. })
    }
}

fn answer<'c>(case: &'c Case, name: &str) -> &'c Value {
    column(&case.prompt.columns, name).unwrap_or(&Value::Null)
}

fn score_here(kind: &Kind, name: &str, column: &str, case: &Case) -> Result<f64> {
    let (answer, response) = (answer(case, column), case.response.as_str());
    if kind.needs_answer() && answer.is_null() {
        return Err(column_missing(name, column, &case.prompt.columns));
    }
    let truth = || text_of(answer);
    Ok(match kind {
        Kind::Exact => f64::from(grade_exact(response, &truth())),
        Kind::Math => f64::from(math::grade_math(response, &truth())),
        Kind::Gsm8k => f64::from(grade_gsm8k(response, &truth())),
        Kind::Countdown => {
            f64::from(grade_countdown(response, &puzzle(name, answer, &case.prompt.columns)?).is_ok())
        }
        Kind::JsonSchema(Some(schema)) => f64::from(schema.grade(response).is_ok()),
        Kind::JsonSchema(None) => f64::from(schema_of(answer)?.grade(response).is_ok()),
        Kind::Pattern(pattern) => f64::from(pattern.matches(response)),
        Kind::Format(format) => f64::from(format.matches(response)),
        Kind::Length(length) => length.score(case.response_ids.len(), case.max_new_tokens),
        Kind::Hash => (simple_hash(response.as_bytes()) >> 11) as f64 / (1u64 << 53) as f64,
        Kind::Python { .. } | Kind::Command { .. } | Kind::Http { .. } | Kind::Code => {
            unreachable!("these have a scorer of their own")
        }
    })
}

fn puzzle(name: &str, answer: &Value, columns: &Columns) -> Result<Puzzle> {
    Puzzle::read(answer, columns).map_err(|why| bad_answer(name, &why))
}

fn tests(name: &str, answer: &Value) -> Result<Tests> {
    Tests::read(answer).map_err(|why| bad_answer(name, &why))
}

fn schema_of(answer: &Value) -> Result<Schema> {
    match answer {
        Value::String(text) => Schema::new(serde_json::from_str(text).unwrap_or(Value::Null)),
        other => Schema::new(other.clone()),
    }
}

/// An answer column that the verifier cannot read.
fn bad_answer(name: &str, why: &str) -> Error {
    Error::usage("reward-bad-answer", format!("reward `{name}`: {why}"))
        .hint("`plimsoll explain reward-bad-answer` shows the forms that the answer column may have")
        .hint("`answer_column` in the [[reward]] table names another column")
}

pub(crate) fn column_missing(name: &str, column: &str, columns: &Columns) -> Error {
    let there: Vec<&str> = columns.keys().map(String::as_str).collect();
    let message = format!("reward `{name}` needs the column `{column}`, which the data does not have");
    Error::usage("data-column-missing", message)
        .fact(format!("columns there: {}", if there.is_empty() { "none".into() } else { there.join(", ") }))
        .hint("name the column of the answer with `answer_column` in the [[reward]] table, or add it to the data")
}

fn batch(cases: &[Arc<Case>], answer_column: &str, steps: [u32; 2]) -> Batch {
    let prompts = cases.iter().map(|case| &case.prompt);
    Batch {
        prompts: prompts.clone().map(|p| p.messages.clone().unwrap_or_else(|| json!(p.text))).collect(),
        rendered: prompts.clone().map(|p| p.rendered.clone()).collect(),
        responses: cases.iter().map(|case| case.response.clone()).collect(),
        response_ids: cases.iter().map(|case| case.response_ids.clone()).collect(),
        answers: cases.iter().map(|case| answer(case, answer_column).clone()).collect(),
        columns: prompts.map(|p| p.columns.clone()).collect(),
        steps,
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
