//! Experiment trackers (`[track]`): Weights & Biases, Trackio, MLflow, TensorBoard, each through its own Python client.
//! One worker process reads `events.jsonl` and passes on its numbers; a thread of the trainer drives it, with bounded
//! restarts. Its failures cost a warning and never change the run.

mod thread;

use crate::shareable::shareable;
use plimsoll_base::{Error, Result, json_within};
use plimsoll_config::Track;
use plimsoll_worker::{Launch, Limits, Network, Pool, Stop, default_python};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

pub use thread::Tracking;

const SCRIPT: &str = include_str!("track.py");
/// Folder of the run directory with files of trackers and the position of each.
pub(crate) const FOLDER: &str = "track";
/// Time for the interpreter to start.
const START_MAX: Duration = Duration::from_secs(60);
/// Most bytes of a reply as a tree.
const REPLY_TREE_BYTES_MAX: usize = 1 << 20;

/// Checks that the interpreter has every client that `[track]` names.
///
/// Errors: `tracker-missing`, `tracker-not-started`.
pub fn check(track: &Track) -> Result<()> {
    if track.to.is_empty() { Ok(()) } else { start(track, Stop::default()).map(drop) }
}

/// Starts the worker and waits for its report of the clients it has.
fn start(track: &Track, stop: Stop) -> Result<Pool> {
    let names: Vec<&str> = track.to.iter().map(|tracker| tracker.name()).collect();
    let launch = Launch {
        name: "track".into(),
        program: track.python.clone().unwrap_or_else(default_python),
        args: vec!["-c".into(), SCRIPT.into(), names.join(",")],
        env: vec![("PYTHONIOENCODING".into(), "utf-8".into())],
        memory: track.worker_memory.0,
        is_private: false,
        memory_groups: true,
        network: Network::Allow,
        folder: None,
        file: None,
        words: None,
        ready: Some(ready),
    };
    let limits = Limits {
        workers: 1,
        timeout: Duration::from_millis(track.timeout_ms),
        start_timeout: START_MAX,
        retries: 0,
    };
    Pool::start(launch, limits, stop).map_err(not_started)
}

/// Reads the first line of the worker: the clients that its interpreter lacks.
fn ready(_: &str, line: &str) -> Result<()> {
    let reply: Value = json_within(line, REPLY_TREE_BYTES_MAX).unwrap_or_default();
    let text = |key: &str| reply[key].as_str().unwrap_or_default().to_string();
    let missing: Vec<&str> =
        reply["missing"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let (python, names) = (text("python"), missing.join(", "));
    let error =
        format!("`track.to` names {names}, and {python} (Python {}) has no such package", text("version"));
    Err(Error::usage("tracker-missing", error)
        .hint(format!("{python} -m pip install {}", missing.join(" ")))
        .hint("or name an interpreter that has it: track.python"))
}

/// Rewords an error of workers, which speak of rewards.
fn not_started(error: Error) -> Error {
    if error.slug == "tracker-missing" {
        return error;
    }
    let message = format!("the process of the trackers did not start: {}", own_words(&error));
    let (facts, words) = (error.facts, Error::new("tracker-not-started", message));
    facts
        .into_iter()
        .fold(words, Error::fact)
        .hint("check track.python, and track.worker_memory if it ran out of memory")
}

/// Returns the message of a worker's error without the words about rewards.
fn own_words(error: &Error) -> String {
    let message = error.message.strip_prefix("reward `track`: ").unwrap_or(&error.message);
    message.replace("took for one batch longer", "took longer")
}

/// Returns the worker's description of the run. `run_file`: the resolved run file, without secrets.
fn spec(track: &Track, dir: &Path, run_file: &str) -> Value {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let own = absolute(&track.dir.as_ref().map_or_else(|| dir.join(FOLDER), Into::into));
    let last = absolute(dir).file_name().unwrap_or_default().to_string_lossy().into_owned();
    json!({
        "to": track.to.iter().map(|tracker| tracker.name()).collect::<Vec<_>>(),
        "project": track.project,
        "name": track.name.clone().unwrap_or(last),
        "mode": track.mode.name(),
        "uri": track.uri,
        "dir": own,
        "events": absolute(dir).join("events.jsonl"),
        "config": shareable(run_file),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_client_is_named_with_its_interpreter() {
        let line = r#"{"missing": ["wandb"], "python": "/venv/bin/python", "version": "3.11.7"}"#;
        let error = ready("track", line).expect_err("one is missing");
        assert_eq!(
            (error.slug, error.hints[0].as_str()),
            ("tracker-missing", "/venv/bin/python -m pip install wandb")
        );
        assert!(ready("track", r#"{"missing": []}"#).is_ok());
    }
}
