//! A line of `events.jsonl`, parsed in one pass for all kinds of events. Unknown fields of other versions are skipped.

use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// An event. Fields that its kind lacks are absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Line<'a> {
    #[serde(borrow)]
    pub event: Cow<'a, str>,
    pub step: Option<u32>,
    pub steps: Option<u32>,
    pub seconds_since_start: Option<f64>,
    pub seconds_left: Option<f64>,
    pub reward: Option<f64>,
    pub loss: Option<f64>,
    pub frames_per_second: Option<f64>,
    /// Means over all steps of the run so far, as the terminal shows them.
    pub tokens_per_second_rollout: Option<f64>,
    pub tokens_per_second_update: Option<f64>,
    pub rss_bytes: Option<u64>,
    pub planned_bytes: Option<u64>,
    pub limit_bytes: Option<u64>,
    /// NaN is `null` in JSON.
    #[serde(borrow)]
    pub metrics: BTreeMap<Cow<'a, str>, Option<f64>>,
    pub parts: Vec<Part>,
    pub workers_bytes: u64,
    pub workers_planned_bytes: u64,
    pub supervisor_bytes: u64,
    pub supervisor_planned_bytes: u64,
    pub what: Option<String>,
    pub set: Option<String>,
    pub score: Option<f64>,
    pub num_samples: Option<u64>,
    pub slug: Option<String>,
    pub message: Option<String>,
    pub facts: Vec<String>,
    pub notes: Vec<String>,
    pub path: Option<String>,
    pub kinds: Option<Value>,
    pub summary: Option<Value>,
}

/// The trainer's memory at the end of a part of a step.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Part {
    pub phase: String,
    pub planned_bytes: u64,
    pub rss_bytes: u64,
    pub arena_planned_bytes: u64,
    pub arena_bytes: u64,
    pub device_planned_bytes: u64,
    pub device_bytes: u64,
}

impl Line<'_> {
    /// Parses a line; `None` if it is not an event.
    pub fn parse(bytes: &[u8]) -> Option<Line<'_>> {
        serde_json::from_slice(bytes).ok().filter(|line: &Line| !line.event.is_empty())
    }

    /// Returns the numbers of a step by name.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, f64)> {
        let own =
            [("reward", self.reward), ("loss", self.loss), ("frames_per_second", self.frames_per_second)];
        let own = own.into_iter().filter(|(name, _)| !self.metrics.contains_key(*name));
        let metrics = self.metrics.iter().map(|(name, value)| (name.as_ref(), *value));
        own.chain(metrics).filter_map(|(name, value)| Some((name, value?)))
    }
}
