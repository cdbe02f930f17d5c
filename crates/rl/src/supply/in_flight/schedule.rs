//! The ticks at which weights arrived, as lines of a file.

use plimsoll_base::{Error, Result, read_small_text};
use plimsoll_config::RunSpec;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;

/// The file of a run directory with the ticks at which weights arrived.
const SCHEDULE: &str = "schedule.jsonl";
/// A line of a step is under 100 bytes.
const SCHEDULE_BYTES_MAX: u64 = 1 << 30;

/// When the weights that a step made arrived where samples are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrival {
    /// The step that made them.
    pub step: u32,
    /// The step whose samples were the next to be finished.
    pub rollout: u32,
    /// Tokens that each of these had that had not ended; 0 if none were begun.
    pub tick: u32,
}

/// The arrivals that a run follows, step by step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightArrivals {
    arrivals: Vec<Arrival>,
}

impl WeightArrivals {
    /// Reads the schedule that a run follows; `None` if it follows none.
    ///
    /// Errors: `bad-value` if it is not one of such a run.
    pub fn of(run: &RunSpec) -> Result<Option<WeightArrivals>> {
        let Some(path) = run.follows() else { return Ok(None) };
        let bad = |what: String| {
            Error::usage("bad-value", format!("async.weight_sync = \"{path}\": {what}"))
                .hint("name the schedule.jsonl of a run with the same async.staleness and as many steps")
        };
        let text =
            read_small_text(Path::new(path), SCHEDULE_BYTES_MAX).map_err(|err| bad(err.to_string()))?;
        let mut arrivals: Vec<Arrival> = Vec::new();
        for (line, step) in text.lines().zip(1..=run.train().steps) {
            let arrival = serde_json::from_str(line).map_err(|err| bad(format!("line {step}: {err}")))?;
            if !is_possible(run, step, arrivals.last(), arrival) {
                return Err(bad(format!("line {step}: {line} cannot follow what is before it")));
            }
            arrivals.push(arrival);
        }
        if arrivals.len() < run.train().steps as usize {
            return Err(bad(format!(
                "it has {} steps, and the run has {}",
                arrivals.len(),
                run.train().steps
            )));
        }
        Ok(Some(WeightArrivals { arrivals }))
    }

    /// Returns the arrival of the weights that `step` makes.
    pub(crate) fn at(&self, step: u32) -> Arrival {
        self.arrivals[step as usize - 1]
    }
}

fn is_possible(run: &RunSpec, step: u32, before: Option<&Arrival>, arrival: Arrival) -> bool {
    let Arrival { step: of, rollout, tick } = arrival;
    let first = before.map_or((1, 0), |before| (before.rollout, before.tick));
    let end = step.saturating_add(run.staleness()).min(run.train().steps) + 1;
    let is_begun = rollout < end && tick < run.rollout.max_new_tokens;
    of == step && rollout > step && (rollout, tick) >= first && (is_begun || (rollout, tick) == (end, 0))
}

/// Adds a line to the schedule in a run directory.
///
/// Errors: `write-failed`.
pub(crate) fn write(dir: &Path, arrival: &Arrival) -> Result<()> {
    let line = serde_json::to_string(arrival).expect("plain data") + "\n";
    let file = plimsoll_files::append_to(&dir.join(SCHEDULE));
    file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(|err| failed(dir, &err))
}

/// Drops the lines of steps after `step`, which are made again.
///
/// Errors: `write-failed`.
pub(crate) fn cut(dir: &Path, step: u32) -> Result<()> {
    let path = dir.join(SCHEDULE);
    let Ok(text) = read_small_text(&path, SCHEDULE_BYTES_MAX) else { return Ok(()) };
    let kept: String = text.split_inclusive('\n').take(step as usize).collect();
    plimsoll_files::write_atomic(&path, kept.as_bytes())
}

fn failed(dir: &Path, err: &std::io::Error) -> Error {
    Error::new("write-failed", format!("{}: {err}", dir.join(SCHEDULE).display()))
}
