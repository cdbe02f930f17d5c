//! `code`: a program that the model wrote, run against tests. 1 if it passes all of them, else 0.
//!
//! Each test is a fresh interpreter with limits on time, address space, output and file size, in its own folder,
//! without network or GPU. A program's fault is a wrong answer and never an error of the run.

use crate::blocks::program_said;
use crate::case::Case;
use crate::scorer::{Reading, Scorer, Start, answer, bad_answer, plain};
use plimsoll_base::{Bytes, Error, JsonPart, Result};
use plimsoll_worker::{Columns, Ids, Judge, Launch, ProgramFolder, Ran, RunEnd, Runner, Scores, Stop};
use serde_json::{Value, json};
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most tests per row.
pub(crate) const TESTS_MAX: usize = 256;
/// Longest program and longest output of a test.
const PROGRAM_BYTES_MAX: usize = 256 << 10;
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Runs a program, and evaluates what its tests ask for.
const PROGRAM: &str = concat!(include_str!("code/values.py"), include_str!("code/program.py"));
/// Runs tests of programs that run elsewhere.
const JUDGE: &str = concat!(include_str!("code/values.py"), include_str!("code/judge.py"));
/// Memory limit of the interpreter that runs tests: it holds the tests, and values of one line each.
pub(crate) const JUDGE_BYTES: Bytes = Bytes::mib(128);
/// Runs a program and then the statements that are its tests.
const RUN_STATEMENTS: &str = include_str!("code/inside.py");
/// Largest file that a program may write.
const FILE_BYTES_MAX: Bytes = Bytes::mib(16);

/// The tests of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tests {
    /// Standard input and expected standard output.
    Streams(Vec<(String, String)>),
    /// Statements that must not fail; they see what the program defines.
    Statements(String),
}

impl Tests {
    /// Reads the answer column, or the JSON text in it.
    ///
    /// `[{"input", "output"}]` and `{"inputs", "outputs"}`: streams. A list of texts, or a text that is no JSON:
    /// statements. Errors: a sentence about what is wrong.
    pub(crate) fn read(answer: &Value) -> std::result::Result<Tests, String> {
        if let Value::String(text) = answer {
            return match serde_json::from_str(text) {
                Ok(parsed @ (Value::Array(_) | Value::Object(_))) => Tests::read(&parsed),
                _ if text.trim().is_empty() => Err("the tests are an empty text".into()),
                _ => Ok(Tests::Statements(text.clone())),
            };
        }
        if answer.get("fn_name").is_some_and(|name| !name.is_null()) {
            return Err(
                "tests that call a function (`fn_name`) are not known; write assert statements".into()
            );
        }
        let text = |value: &Value| value.as_str().map(str::to_string);
        let tests = match answer {
            Value::Object(_) => {
                let list = |name: &str| answer.get(name).and_then(Value::as_array);
                let (Some(inputs), Some(outputs)) = (list("inputs"), list("outputs")) else {
                    return Err("the tests have no lists `inputs` and `outputs`".into());
                };
                if inputs.len() != outputs.len() {
                    return Err(format!("{} inputs and {} outputs", inputs.len(), outputs.len()));
                }
                inputs.iter().zip(outputs).map(|(i, o)| Some((text(i)?, text(o)?))).collect()
            }
            Value::Array(list) if !list.is_empty() && list.iter().all(Value::is_string) => {
                let statements: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
                return Ok(Tests::Statements(statements.join("\n")));
            }
            Value::Array(list) => {
                let one = |test: &Value| Some((text(test.get("input")?)?, text(test.get("output")?)?));
                list.iter().map(one).collect::<Option<Vec<_>>>()
            }
            other => return Err(format!("the tests are `{other:.40}`")),
        };
        let tests = tests.ok_or("an input or an output is no text")?;
        if tests.is_empty() || tests.len() > TESTS_MAX {
            return Err(format!("there are {} tests; 1 to {TESTS_MAX} are run", tests.len()));
        }
        Ok(Tests::Streams(tests))
    }
}

/// Runs a model's programs as a tool, outside of rewards.
pub struct Programs(Code);

impl Programs {
    /// Makes interpreters of `python` with `memory` of address space, each for at most `timeout`.
    pub fn new(name: &str, python: Option<&str>, memory: Bytes, timeout: Duration, stop: Stop) -> Programs {
        Programs(Code::new(Code::launch(name, python, memory), timeout, stop))
    }

    /// Runs a program. Returns what it printed, and why it did not finish, if so.
    ///
    /// Errors: an interpreter that cannot be started, a folder that cannot be made.
    pub fn run(&self, program: &str) -> Result<(String, Option<String>)> {
        if program.len() > PROGRAM_BYTES_MAX {
            return Ok((String::new(), Some(format!("a program of {} bytes", program.len()))));
        }
        let ran = self.0.run(program, "")?;
        Ok((String::from_utf8_lossy(&ran.output).into_owned(), broke(&ran)))
    }
}

pub(crate) struct Code {
    /// The interpreter with its limits; the program's file is added for each run.
    launch: Launch,
    /// Limit of one test.
    timeout: Duration,
    stop: Stop,
    workers: Mutex<Workers>,
}

/// The processes that run programs and their tests.
struct Workers {
    runner: Runner,
    judge: Judge,
    ids: Ids,
}

impl Code {
    pub(crate) fn new(launch: Launch, timeout: Duration, stop: Stop) -> Code {
        let mut judge = Launch { memory: JUDGE_BYTES, ..launch.clone() };
        judge.args.extend(["-c".into(), JUDGE.into()]);
        let (runner, judge, ids) = (Runner::default(), Judge::new(judge), Ids::default());
        Code { launch, timeout, stop, workers: Mutex::new(Workers { runner, judge, ids }) }
    }

    /// Returns how to launch an interpreter.
    pub(crate) fn launch(name: &str, python: Option<&str>, memory: Bytes) -> Launch {
        Launch {
            name: name.to_string(),
            program: python.map_or_else(plimsoll_worker::default_python, String::from),
            // Isolated: neither the user's packages nor environment variables affect a program.
            args: vec!["-I".into()],
            env: vec![("PYTHONIOENCODING".into(), "utf-8".into())],
            memory,
            is_private: false,
            memory_groups: true,
            network: plimsoll_worker::Network::Deny,
            folder: None,
            file: Some(FILE_BYTES_MAX),
            words: None,
            ready: None,
        }
    }

    /// Runs the tests on the program in a response; the inner error is why it fails.
    ///
    /// Errors: an interpreter that cannot be started, a folder that cannot be made.
    pub(crate) fn grade(&self, response: &str, tests: &Tests) -> Result<std::result::Result<(), String>> {
        let program = &*program_said(response);
        if program.len() > PROGRAM_BYTES_MAX {
            return Ok(Err(format!("a program of {} bytes, above {PROGRAM_BYTES_MAX}", program.len())));
        }
        match tests {
            Tests::Streams(tests) => {
                for (index, (input, expect)) in tests.iter().enumerate() {
                    let ran = self.run(program, input)?;
                    if let Some(why) = broke(&ran).or_else(|| differs(&ran.output, expect)) {
                        return Ok(Err(format!("test {}: {why}", index + 1)));
                    }
                }
                Ok(Ok(()))
            }
            Tests::Statements(statements) => match self.judged(program, statements)? {
                Some(verdict) => Ok(verdict),
                None => self.inside(program, statements),
            },
        }
    }

    /// Runs statements on a program from another process; `None` if they must run in the program's own.
    fn judged(&self, program: &str, statements: &str) -> Result<Option<std::result::Result<(), String>>> {
        let (launch, _folder) = self.prepare(&["-c", PROGRAM], program)?;
        let tests = json!({ "tests": statements }).to_string();
        let Workers { runner, judge, .. } = &mut *self.workers();
        let judged = judge.judge(runner, &launch, &tests, self.timeout, OUTPUT_BYTES_MAX, &self.stop)?;
        let verdict = judged.verdict.as_deref().and_then(|line| JsonPart::of(line.as_bytes()).ok());
        let field = |name| verdict.and_then(|verdict| verdict.field(name).ok().flatten());
        if field("inside").is_some() {
            return Ok(None);
        }
        if field("holds").and_then(JsonPart::boolean) == Some(true) {
            return Ok(Some(Ok(())));
        }
        // Why the program ended is more useful than that it ended.
        let ended = judged.program.as_ref().filter(|_| judged.verdict.is_none());
        let why = ended.map(|ran| broke(ran).unwrap_or_else(|| "it ended before the tests had run".into()));
        let said = field("why").and_then(JsonPart::string);
        Ok(Some(Err(why.or(said).unwrap_or_else(|| "out of time".into()))))
    }

    /// Runs statements after a program, in its process.
    fn inside(&self, program: &str, statements: &str) -> Result<std::result::Result<(), String>> {
        let token = self.workers().ids.next_id();
        let ran = self.run_with(&["-c", RUN_STATEMENTS], program, &format!("{token}\n{statements}\n"))?;
        let answer: String = token.chars().rev().collect();
        let says = ran.output.trim_ascii_end().ends_with(answer.as_bytes());
        // A program that ends before the tests have run fails.
        let early = || (!says).then(|| "it ended before the tests had run".to_string());
        Ok(broke(&ran).or_else(early).map_or(Ok(()), Err))
    }

    fn run(&self, program: &str, input: &str) -> Result<Ran> {
        self.run_with(&[], program, input)
    }

    /// Runs a program in its own folder.
    fn run_with(&self, before: &[&str], program: &str, input: &str) -> Result<Ran> {
        let (launch, _folder) = self.prepare(before, program)?;
        let runner = &mut self.workers().runner;
        runner.run(&launch, input.as_bytes(), self.timeout, OUTPUT_BYTES_MAX, &self.stop)
    }

    /// Writes a program to its own folder. `before` are the interpreter's arguments before the program's file.
    fn prepare(&self, before: &[&str], program: &str) -> Result<(Launch, ProgramFolder)> {
        let folder = ProgramFolder::make().map_err(|err| {
            Error::io("io-error", &std::env::temp_dir(), &err)
                .hint("TMPDIR names the folder in which programs are run")
        })?;
        let file = folder.path().join("main.py");
        fs::write(&file, program).map_err(|err| Error::io("io-error", &file, &err))?;
        let mut launch = Launch { folder: Some(folder.path().to_path_buf()), ..self.launch.clone() };
        launch.args.extend(before.iter().map(|argument| argument.to_string()));
        launch.args.push(file.to_string_lossy().into_owned());
        Ok((launch, folder))
    }

    fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns why a program did not finish.
fn broke(ran: &Ran) -> Option<String> {
    let last = ran.last_words.last().map_or(String::new(), |line| format!(": {line:.200}"));
    match ran.end {
        RunEnd::Code(0) => None,
        RunEnd::Code(code) if ran.was_full => {
            Some(format!("exit code {code}, with too many processes{last}"))
        }
        RunEnd::Code(code) => Some(format!("exit code {code}{last}")),
        RunEnd::Signal(signal) => Some(format!("signal {signal}{last}")),
        RunEnd::Late => Some("out of time".into()),
        RunEnd::TooLong => Some(format!("more than {OUTPUT_BYTES_MAX} bytes of output")),
        RunEnd::Over(over) => Some(format!("it held {over}")),
    }
}

/// Compares output line by line, ignoring white space at the ends of lines and of the whole.
fn differs(output: &[u8], expect: &str) -> Option<String> {
    let output = String::from_utf8_lossy(output);
    let mut lines = (output.trim_end().lines(), expect.trim_end().lines());
    loop {
        match (lines.0.next(), lines.1.next()) {
            (None, None) => return None,
            (a, b) if a.map(str::trim_end) == b.map(str::trim_end) => {}
            (a, b) => return Some(format!("`{:.60}` instead of `{:.60}`", a.unwrap_or(""), b.unwrap_or(""))),
        }
    }
}

/// The reward: runs programs against the tests of the answer column.
struct Graded {
    code: Code,
    name: String,
    answer_column: String,
}

impl Graded {
    fn tests(&self, columns: &Columns) -> Result<Tests> {
        Tests::read(answer(columns, &self.answer_column)).map_err(|why| bad_answer(&self.name, &why))
    }

    fn grade(&self, case: &Case) -> Result<std::result::Result<(), String>> {
        self.code.grade(&case.response, &self.tests(&case.prompt.columns)?)
    }
}

pub(crate) fn read() -> Reading {
    Reading::starts("code", |Start { name, spec, limits, stop, .. }| {
        let launch = Code::launch(name, spec.python.as_deref(), spec.worker_memory);
        let code = Code::new(launch, limits.timeout, stop);
        Ok(Box::new(Graded { code, name: name.to_string(), answer_column: spec.answer_column.clone() }))
    })
}

impl Scorer for Graded {
    fn check(&mut self, columns: &Columns) -> Result<()> {
        self.tests(columns).map(drop)
    }

    fn score(&mut self, cases: &[Arc<Case>], _: [u32; 2]) -> Result<Scores> {
        let one = |case: &Arc<Case>| Ok(Some(f64::from(self.grade(case)?.is_ok())));
        cases.iter().map(one).collect::<Result<_>>().map(plain)
    }

    fn why(&self, case: &Case) -> String {
        self.grade(case).map_or_else(|error| error.message, crate::scorer::verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_read_in_the_forms_that_data_sets_have() {
        let streams = Tests::Streams(vec![("1\n".into(), "2\n".into())]);
        let statements = Tests::Statements("assert f(1) == 2".into());
        for (answer, expect) in [
            (json!([{"input": "1\n", "output": "2\n"}]), &streams),
            (json!({"inputs": ["1\n"], "outputs": ["2\n"]}), &streams),
            (json!("{\"inputs\": [\"1\\n\"], \"outputs\": [\"2\\n\"]}"), &streams),
            (json!(["assert f(1) == 2"]), &statements),
            (json!("assert f(1) == 2"), &statements),
        ] {
            assert_eq!(Tests::read(&answer).as_ref(), Ok(expect), "{answer}");
        }
        for answer in [
            json!(null),
            json!(3),
            json!([]),
            json!(""),
            json!({"inputs": ["1"]}),
            json!({"inputs": ["1"], "outputs": []}),
            json!([{"input": 1, "output": "2"}]),
            json!({"fn_name": "f", "inputs": [], "outputs": []}),
        ] {
            assert!(Tests::read(&answer).is_err(), "{answer}");
        }
    }

    #[test]
    fn output_is_compared_by_lines() {
        for (output, expect, same) in [
            ("1 2 \n3\n\n", "1 2\n3", true),
            ("1\r\n2\n", "1\n2\n", true),
            ("1\n\n2", "1\n2", false),
            ("12", "1", false),
            ("", "1", false),
        ] {
            assert_eq!(differs(output.as_bytes(), expect).is_none(), same, "{output:?}");
        }
    }
}
