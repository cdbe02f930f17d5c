//! Memory that a run measured, read from its directory: the highest reading of each phase, and the overall maximum.
//!
//! It reads `memory` events of the load line, and the peak in `summary.json`, which an unfinished run lacks.

use plimsoll_base::{Error, Phase, Result, open_regular, read_small};
use serde_json::{Map, Value};
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Longest line of an event log that is read; longer lines are no events.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// Largest plan or summary.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Highest readings of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Host memory of the run's processes by phase, in step order; phases without a reading are left out.
    pub phases: Vec<(Phase, u64)>,
    /// Highest reading of all processes of the run together.
    pub peak: Option<u64>,
    /// Highest reading of the processes other than the trainer.
    pub others: u64,
}

impl Measured {
    /// Reads `events.jsonl` and `summary.json` of a run directory.
    ///
    /// Errors: `run-dir-unreadable` if there are no events.
    pub fn of_run(dir: &Path) -> Result<Measured> {
        let path = dir.join("events.jsonl");
        let file = open_regular(&path).map_err(|err| unreadable(&path, &err))?;
        let mut measured = Measured::default();
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut limited = std::io::Read::take(&mut reader, LINE_BYTES_MAX);
            if limited.read_until(b'\n', &mut line).map_err(|err| unreadable(&path, &err))? == 0 {
                break;
            }
            // The last line of a killed run may be incomplete.
            if let Ok(Value::Object(event)) = serde_json::from_slice(&line) {
                measured.add(&event);
            }
        }
        let summary = read_small(&dir.join("summary.json"), FILE_BYTES_MAX).ok();
        let summary: Option<Value> = summary.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let trainer = summary.and_then(|summary| summary["rss_peak_bytes"].as_u64());
        measured.peak = trainer.map(|bytes| bytes + measured.others).or(measured.peak);
        measured.phases.sort_by_key(|(phase, _)| *phase);
        Ok(measured)
    }

    /// Adds the readings of a `memory` event: one per part of the step, some of which are phases.
    fn add(&mut self, event: &Map<String, Value>) {
        let held = |name: &str| event.get(name).and_then(Value::as_u64).unwrap_or(0);
        let others = held("workers_bytes") + held("supervisor_bytes");
        self.others = self.others.max(others);
        for part in event.get("parts").and_then(Value::as_array).into_iter().flatten() {
            let (Some(name), Some(bytes)) = (part["phase"].as_str(), part["rss_bytes"].as_u64()) else {
                continue;
            };
            let bytes = bytes + others;
            self.peak = Some(self.peak.unwrap_or(0).max(bytes));
            let Some(phase) = Phase::ALL.into_iter().find(|phase| phase.name() == name) else { continue };
            match self.phases.iter_mut().find(|(known, _)| *known == phase) {
                Some((_, most)) => *most = (*most).max(bytes),
                None => self.phases.push((phase, bytes)),
            }
        }
    }
}

/// Reads `plan.json` of a run directory.
///
/// Errors: `run-dir-unreadable`.
pub fn plan_of_run(dir: &Path) -> Result<Value> {
    let path = dir.join("plan.json");
    let bytes = read_small(&path, FILE_BYTES_MAX).map_err(|err| unreadable(&path, &err))?;
    let plan: Option<Value> = serde_json::from_slice(&bytes).ok();
    plan.filter(|plan| plan["regions"].is_array()).ok_or_else(|| {
        Error::new("run-dir-unreadable", format!("{}: this is not a plan", path.display()))
            .hint("give a run directory that `plimsoll train` made")
    })
}

fn unreadable(path: &Path, err: &std::io::Error) -> Error {
    Error::io("run-dir-unreadable", path, err).hint("give a run directory that `plimsoll train` made")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_reading_of_each_phase_counts() {
        let dir = tempfile::tempdir().unwrap();
        let events = concat!(
            "{\"event\": \"memory\", \"parts\": [{\"phase\": \"update\", \"rss_bytes\": 5}, {\"phase\": \"reward\", \"rss_bytes\": 9}]}\n",
            "{\"event\": \"step\", \"step\": 1}\n",
            "{\"event\": \"memory\", \"parts\": [{\"phase\": \"rollout\", \"rss_bytes\": 3}, {\"phase\": \"update\", \"rss_bytes\": 7}], \"supervisor_bytes\": 1, \"workers_bytes\": 2}\n",
            "{\"event\": \"st"
        );
        std::fs::write(dir.path().join("events.jsonl"), events).unwrap();
        let measured = Measured::of_run(dir.path()).unwrap();
        assert_eq!(measured.phases, [(Phase::Rollout, 6), (Phase::Reward, 9), (Phase::Update, 10)]);
        assert_eq!(measured.peak, Some(10));
        std::fs::write(dir.path().join("summary.json"), "{\"rss_peak_bytes\": 11}").unwrap();
        assert_eq!(Measured::of_run(dir.path()).unwrap().peak, Some(14));
    }

    #[test]
    fn a_folder_that_is_no_run_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Measured::of_run(dir.path()).unwrap_err().slug, "run-dir-unreadable");
        assert_eq!(plan_of_run(dir.path()).unwrap_err().slug, "run-dir-unreadable");
        std::fs::write(dir.path().join("plan.json"), "[]").unwrap();
        assert_eq!(plan_of_run(dir.path()).unwrap_err().slug, "run-dir-unreadable");
    }
}
