//! What a step with carried groups reports.

use plimsoll_run::carry::CarryCounts;
use plimsoll_run::metrics::Metrics;

/// The counts and times of a step with groups under way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CarryReport {
    pub counts: CarryCounts,
    /// Groups that go on in the next step.
    pub carried: usize,
    /// Groups that the step waited for, because they were as old as they may be.
    pub waited_for: usize,
    /// Prompts that began.
    pub joined: usize,
    /// Seconds of grading that ran while earlier steps did something else.
    pub seconds_ahead: f64,
    /// Seconds of a tick in this rank's tail, if there was one.
    pub tail_tick_s: Option<f64>,
}

impl CarryReport {
    /// Returns what is reported of the step, by the names of metrics.
    pub(in crate::supply) fn metrics(&self) -> Metrics {
        let mut metrics = self.counts.metrics();
        for (name, value) in [
            ("rollout/carried", self.carried as f64),
            ("rollout/waited_for", self.waited_for as f64),
            ("time/reward_hidden", self.seconds_ahead),
        ] {
            metrics.insert(name.to_string(), value);
        }
        metrics.extend(self.tail_tick_s.map(|seconds| ("time/tail_tick".to_string(), seconds)));
        metrics
    }

    /// Estimates the seconds that a rollout of the trained groups alone would have taken beyond this one's `rollout_s`:
    /// its longest response has as many ticks as tokens, most of them a tail. A step that drew nothing has no measure.
    pub fn saved_s(&self, longest: usize, rollout_s: f64) -> f64 {
        match self.counts.ticks {
            0 => 0.0,
            ticks => longest as f64 * self.tail_tick_s.unwrap_or(rollout_s / ticks as f64) - rollout_s,
        }
    }

    /// True if the step had no choice among its groups, although prompts began.
    pub fn waits_for_all(&self, prompts: usize) -> bool {
        self.joined > 0 && self.waited_for >= prompts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_counted_in_ticks_of_the_tail() {
        let mut report = CarryReport::default();
        assert_eq!(report.saved_s(90, 2.0), 0.0);
        report.counts.ticks = 40;
        assert_eq!(report.saved_s(90, 2.0), 90.0 * (2.0 / 40.0) - 2.0);
        report.tail_tick_s = Some(0.03125);
        assert_eq!(report.saved_s(96, 2.0), 1.0);
        assert_eq!(report.saved_s(32, 2.0), -1.0);
    }
}
