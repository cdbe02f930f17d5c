//! Counts what rollouts with carried groups count, of a step or of a run, and the shares that follow.

use crate::checkpoint::exact;
use crate::metrics::Metrics;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Counts of a step's rollout, or sums over those of a run. Checkpoints keep them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CarryCounts {
    /// T.
    pub ticks: u64,
    /// Ticks in which fewer than half of the places of responses under way drew.
    pub tail_ticks: u64,
    pub place_ticks: u64,
    /// Tokens that were drawn and stay.
    pub drawn_tokens: u64,
    /// Those of them that belong to turns under way at T.
    pub late_tokens: u64,
    /// Tokens that were drawn after T, and are drawn again.
    pub dropped_tokens: u64,
    /// Rows whose keys earlier steps had computed.
    pub recomputed_rows: u64,
    /// Rows of prompts that began, and of what environments said.
    pub prompt_rows: u64,
    pub trained_tokens: u64,
    /// Trained tokens that older weights drew.
    pub stale_tokens: u64,
    /// Updates between the weights that drew each trained token and those that it trains, all added.
    pub ages: u64,
    /// Estimated seconds that a rollout of the same groups alone would have taken beyond what this one took.
    #[serde(with = "exact")]
    pub saved_s: f64,
}

fn share(of: u64, all: u64) -> f64 {
    of as f64 / all.max(1) as f64
}

impl CarryCounts {
    /// Adds those of another step.
    pub fn add(&mut self, other: &CarryCounts) {
        for (sum, more) in [
            (&mut self.ticks, other.ticks),
            (&mut self.tail_ticks, other.tail_ticks),
            (&mut self.place_ticks, other.place_ticks),
            (&mut self.drawn_tokens, other.drawn_tokens),
            (&mut self.late_tokens, other.late_tokens),
            (&mut self.dropped_tokens, other.dropped_tokens),
            (&mut self.recomputed_rows, other.recomputed_rows),
            (&mut self.prompt_rows, other.prompt_rows),
            (&mut self.trained_tokens, other.trained_tokens),
            (&mut self.stale_tokens, other.stale_tokens),
            (&mut self.ages, other.ages),
        ] {
            *sum += more;
        }
        self.saved_s += other.saved_s;
    }

    /// Returns the shares and counts by their names in events and in the summary.
    fn named(&self) -> [(&'static str, f64); 8] {
        let rows = self.recomputed_rows + self.prompt_rows + self.drawn_tokens;
        // In a step whose groups had all ended before, no place was empty.
        let drawn = self.drawn_tokens - self.late_tokens;
        let idle = if self.place_ticks == 0 { 0.0 } else { 1.0 - share(drawn, self.place_ticks) };
        [
            ("ticks", self.ticks as f64),
            ("staleness", share(self.ages, self.trained_tokens)),
            ("stale_share", share(self.stale_tokens, self.trained_tokens)),
            ("idle_share", idle),
            ("tail_share", share(self.tail_ticks, self.ticks)),
            ("recomputed_share", share(self.recomputed_rows, rows)),
            ("dropped_tokens", self.dropped_tokens as f64),
            ("saved_seconds", self.saved_s),
        ]
    }

    /// Returns the metrics of a step.
    pub fn metrics(&self) -> Metrics {
        self.named().into_iter().map(|(name, value)| (format!("rollout/{name}"), value)).collect()
    }

    /// Returns the object of the summary.
    pub fn summary(&self) -> Value {
        self.named().into_iter().map(|(name, value)| (name.to_string(), json!(value))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_run_weigh_steps_by_what_they_drew() {
        let step = |ticks, drawn_tokens, ages| CarryCounts {
            ticks,
            tail_ticks: ticks / 4,
            place_ticks: 10 * ticks,
            drawn_tokens,
            late_tokens: 2,
            dropped_tokens: 3,
            recomputed_rows: 20,
            prompt_rows: 30,
            trained_tokens: 50,
            stale_tokens: 25,
            ages,
            saved_s: -0.5,
        };
        let mut run = step(8, 60, 100);
        run.add(&step(4, 40, 0));
        let metrics = run.metrics();
        for (name, expect) in [
            ("ticks", 12.0),
            ("staleness", 1.0),
            ("stale_share", 0.5),
            ("idle_share", 1.0 - 96.0 / 120.0),
            ("tail_share", 0.25),
            ("recomputed_share", 40.0 / 200.0),
            ("dropped_tokens", 6.0),
            ("saved_seconds", -1.0),
        ] {
            assert_eq!(metrics[&format!("rollout/{name}")], expect, "{name}");
            assert_eq!(run.summary()[name], expect, "{name}");
        }
        assert_eq!(CarryCounts::default().metrics()["rollout/idle_share"], 0.0);
    }
}
