//! A run file in a temporary folder: commands on it, and the files its runs leave there.

use crate::common::{Folder, check_error, check_refused, plimsoll, text};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::Deref;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::rc::Rc;

/// The first run of the README.
pub const FIRST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/first.toml");

/// Three small steps whose rewards differ within every group.
pub const SMALL: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 2
group_size = 4
max_new_tokens = 4
[[reward]]
kind = "hash"
[train]
steps = 3
learning_rate = 1e-6
"#;

/// A folder with a run file. Methods take words: `key=value` for `--set`, and flags, which begin with `--`.
pub struct Run {
    folder: Rc<Folder>,
    file: String,
}

impl Deref for Run {
    type Target = Folder;

    fn deref(&self) -> &Folder {
        &self.folder
    }
}

impl Run {
    /// Writes `x.toml`.
    pub fn new(content: &str) -> Run {
        Run::named("x.toml", content)
    }

    pub fn named(file: &str, content: &str) -> Run {
        Run { folder: Rc::new(Folder::with(file, content)), file: file.into() }
    }

    /// Returns another run file of the same folder.
    pub fn file(&self, name: &str) -> Run {
        Run { folder: Rc::clone(&self.folder), file: name.into() }
    }

    pub fn args(&self, verb: &str, words: &[&str]) -> Vec<String> {
        let mut args = vec![verb.to_string(), self.text_path(&self.file)];
        for word in words {
            if !word.starts_with("--") {
                args.push("--set".into());
            }
            args.push(word.to_string());
        }
        args
    }

    /// Returns the arguments of `train` into `dir`.
    pub fn train_args(&self, dir: &str, words: &[&str]) -> Vec<String> {
        self.args("train", &[&[&*format!("run.dir={}", self.text_path(dir))], words].concat())
    }

    pub fn output(&self, dir: &str, words: &[&str]) -> Output {
        plimsoll(&refs(&self.train_args(dir, words)))
    }

    /// Trains into `dir`, which must succeed. Returns stderr.
    pub fn train(&self, dir: &str, words: &[&str]) -> String {
        check_done(&self.output(dir, words))
    }

    /// Trains into `dir`, which must succeed. Returns the summary.
    pub fn summary(&self, dir: &str, words: &[&str]) -> Value {
        json(&refs(&self.train_args(dir, &[words, &["--json"]].concat())))
    }

    /// Plans, which must fit.
    pub fn plan(&self, words: &[&str]) -> Value {
        json(&refs(&self.args("plan", &[words, &["--json"]].concat())))
    }

    pub fn plan_refused(&self, words: &[&str], code: i32, contains: &[&str]) {
        check_refused(&refs(&self.args("plan", words)), code, contains);
    }

    pub fn train_refused(&self, dir: &str, words: &[&str], code: i32, contains: &[&str]) {
        check_refused(&refs(&self.train_args(dir, words)), code, contains);
    }

    /// Works as `train_refused`, where stderr has other lines before the error.
    pub fn train_fails(&self, dir: &str, words: &[&str], code: i32, contains: &[&str]) {
        let args = self.train_args(dir, words);
        let args = refs(&args);
        check_error(&args, &plimsoll(&args), code, contains);
    }

    /// Training must end with this error and without a run directory.
    pub fn check_train(&self, words: &[&str], code: i32, contains: &[&str]) {
        self.train_fails("out", words, code, contains);
        assert!(!self.path("out").exists(), "{words:?} left a run directory");
    }
}

/// Files that runs leave in a folder.
impl Folder {
    pub fn write_bytes(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), content).expect("a file in it");
        self.text_path(name)
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|err| panic!("{name}: {err}"))
    }

    pub fn read_json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.read(name)).expect("JSON")
    }

    pub fn read_lines(&self, name: &str) -> Vec<Value> {
        let text = text(&self.read(name));
        text.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
    }

    pub fn events(&self, dir: &str) -> Vec<Value> {
        self.read_lines(&format!("{dir}/events.jsonl"))
    }

    /// Returns the metrics of each step.
    pub fn metrics(&self, dir: &str) -> Vec<Value> {
        let steps = self.events(dir).into_iter().filter(|event| event["event"] == "step");
        steps.map(|event| event["metrics"].clone()).collect()
    }

    /// Reads a file of the last checkpoint.
    pub fn saved(&self, dir: &str, file: &str) -> Vec<u8> {
        self.read(&format!("{dir}/checkpoints/latest/{file}"))
    }

    pub fn weights(&self, dir: &str) -> Vec<u8> {
        self.saved(dir, "model.safetensors")
    }

    /// Sums a metric over the steps.
    pub fn metric(&self, dir: &str, name: &str) -> f64 {
        self.metrics(dir).iter().map(|metrics| number(metrics, name)).sum()
    }

    /// Reads weights, states, and the samples and the evaluation of step 2.
    pub fn result_and_samples(&self, dir: &str) -> [Vec<u8>; 4] {
        let [weights, states] = self.result(dir);
        let [samples, evaluated] = ["step", "eval"].map(|kind| format!("{dir}/samples/{kind}-000002.jsonl"));
        [weights, states, self.read(&samples), self.read(&evaluated)]
    }

    /// Reads weights and optimizer states after the last step.
    pub fn result(&self, dir: &str) -> [Vec<u8>; 2] {
        [self.weights(dir), self.saved(dir, "state/optimizer.safetensors")]
    }
}

/// A running `train` whose first step is done.
pub struct Started {
    pub child: Child,
    stderr: BufReader<ChildStderr>,
    said: String,
}

impl Started {
    pub fn new(mut command: Command) -> Started {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut said = String::new();
        while !said.contains("step 1/") {
            assert!(
                stderr.read_line(&mut said).expect("readable") > 0,
                "ended before its first step: {said}"
            );
        }
        Started { child, stderr, said }
    }

    /// Waits for its end. Returns all of stderr.
    pub fn end(mut self) -> Output {
        let mut rest = Vec::new();
        // The pipe must be drained, or the run would block writing to it.
        self.stderr.read_to_end(&mut rest).expect("readable");
        let mut stdout = Vec::new();
        self.child.stdout.take().expect("piped").read_to_end(&mut stdout).expect("readable");
        let status = self.child.wait().expect("it ends");
        Output { status, stdout, stderr: [self.said.as_bytes(), &rest].concat() }
    }
}

impl Drop for Started {
    /// A test that fails leaves no run: a supervisor that is killed takes all others with it.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn kill(signal: &str, pid: u32) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill is everywhere");
    assert!(status.success(), "kill {signal} {pid}");
}

pub fn refs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// Asserts that a command succeeded. Returns its stderr.
pub fn check_done(output: &Output) -> String {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    stderr
}

/// Runs a command. Returns its exit code and the object on stdout.
/// Requires that a `train` failed with an error that contains these words.
pub fn check_train_fails(output: &Output, contains: &[&str]) {
    let code = output.status.code().expect("an exit code");
    assert_ne!(code, 0);
    check_error(&["train"], output, code, contains);
}

pub fn object(args: &[&str]) -> (i32, Value) {
    let output = plimsoll(args);
    let object = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|err| panic!("{args:?}: {err}: {}", text(&output.stderr)));
    (output.status.code().expect("an exit code"), object)
}

/// Runs a command that must succeed. Returns the object on stdout.
pub fn json(args: &[&str]) -> Value {
    let output = plimsoll(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one object on stdout")
}

pub fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} of {value}"))
}

/// Returns the names of a plan's regions.
pub fn regions(plan: &Value) -> Vec<&str> {
    plan["regions"].as_array().expect("a list").iter().filter_map(|region| region["name"].as_str()).collect()
}

pub fn region<'a>(plan: &'a Value, name: &str) -> Option<&'a Value> {
    plan["regions"].as_array().expect("a list").iter().find(|region| region["name"] == name)
}

pub fn has_python() -> bool {
    let found = Command::new("python3").args(["-c", ""]).output().is_ok_and(|out| out.status.success());
    if !found {
        eprintln!("skipped: no python3");
    }
    found
}

/// Exports the last checkpoint of a run.
pub fn export(folder: &Folder, run: &str, to: &str) {
    json(&["checkpoint", "export", &folder.text_path(run), "--to", to, "--json"]);
}
