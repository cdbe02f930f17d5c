//! The curves of a run, from its event log. Long curves are thinned while read, and keep their ends.

use plimsoll_base::{Error, Result, open_regular};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

const POINTS_MAX: usize = 1024;
/// Longest line of a log; an event has a few kilobytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// (step, value) pairs.
pub type Points = Vec<(u32, f64)>;

/// The curves of a run, one point per step unless noted.
#[derive(Clone, Debug, Default)]
pub struct Curves {
    pub rewards: Points,
    pub lengths: Points,
    /// Mean length of the episodes that ended in each step, in frames.
    pub episode_lengths: Points,
    /// Loss of each step that samples nothing.
    pub losses: Points,
    pub evals: BTreeMap<String, Points>,
}

impl Curves {
    /// Reads `events.jsonl`.
    ///
    /// Errors: `run-dir-unreadable`.
    pub fn read(path: &Path) -> Result<Curves> {
        let unreadable = |err: &std::io::Error| {
            Error::io("run-dir-unreadable", path, err)
                .hint("give the directory of a run, with its events.jsonl")
        };
        let mut reader = BufReader::new(open_regular(path).map_err(|err| unreadable(&err))?);
        let (mut curves, mut line) = (Curves::default(), Vec::new());
        loop {
            line.clear();
            let read = (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
            if read.map_err(|err| unreadable(&err))? == 0 {
                return Ok(curves);
            }
            // A line that is not an event, such as a half-written one, is skipped.
            if let Ok(event) = serde_json::from_slice(&line) {
                curves.add(&event);
            }
        }
    }

    fn add(&mut self, event: &Value) {
        let Some(step) = event["step"].as_u64().and_then(|step| u32::try_from(step).ok()) else { return };
        match event["event"].as_str() {
            Some("step") => {
                add(&mut self.rewards, step, &event["reward"]);
                add(&mut self.lengths, step, &event["metrics"]["completions/mean_length"]);
                add(&mut self.episode_lengths, step, &event["metrics"]["episode/length_mean"]);
                if event["reward"].is_null() {
                    add(&mut self.losses, step, &event["loss"]);
                }
            }
            Some("eval") => {
                let set = event["set"].as_str().unwrap_or_default();
                add(self.evals.entry(set.to_string()).or_default(), step, &event["score"]);
            }
            _ => {}
        }
    }
}

fn add(points: &mut Points, step: u32, value: &Value) {
    points.extend(value.as_f64().map(|value| (step, value)));
    if points.len() > POINTS_MAX {
        let last = points.len() - 1;
        let mut index = 0;
        points.retain(|_| {
            index += 1;
            (index - 1) % 2 == 0 || index - 1 == last
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_gives_its_curves() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mut text = String::from(
            "{\"event\":\"eval\",\"step\":0,\"set\":\"a\",\"score\":0.5}\n{\"event\":\"memory\",\"step\":1}\n",
        );
        for step in 1..=5000 {
            text += &format!(
                "{{\"event\":\"step\",\"step\":{step},\"reward\":{},\"metrics\":{{\"completions/mean_length\":7.0}}}}\n",
                f64::from(step) / 5000.0
            );
        }
        text += "{\"event\":\"eval\",\"step\":5000,\"set\":\"b\",\"score\":1}\n{\"event\":\"step\",\"st";
        std::fs::write(&path, text).unwrap();
        let curves = Curves::read(&path).unwrap();
        assert!(curves.rewards.len() <= POINTS_MAX && curves.rewards.len() > POINTS_MAX / 3);
        assert_eq!((curves.rewards[0], curves.rewards[curves.rewards.len() - 1]), ((1, 0.0002), (5000, 1.0)));
        assert_eq!(curves.lengths[0], (1, 7.0));
        assert_eq!(
            curves.evals,
            [("a".to_string(), vec![(0, 0.5)]), ("b".to_string(), vec![(5000, 1.0)])].into()
        );
        assert!(curves.losses.is_empty());
        assert_eq!(Curves::read(&folder.path().join("none")).unwrap_err().slug, "run-dir-unreadable");
    }
}
