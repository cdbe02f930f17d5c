//! Failures of environments, as values: kinds, counters, and the limit on failures.

use plimsoll_base::{Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Names the way in which an environment failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Its process ended.
    Death,
    /// It did not answer within its time.
    Timeout,
    /// It raised an exception, or panicked.
    Exception,
    /// It exceeded its memory limit.
    OverBudget,
    /// Its answer violated its spaces or the protocol, or its reward was not a number.
    BadOutput,
}

/// One failure of one environment, or of a worker with all of its environments.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The environment; for a worker, its first one.
    pub env_index: u32,
    /// Way in which it failed.
    pub kind: FaultKind,
    /// Error in words.
    pub error: Error,
}

/// Counts of a collector since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Environments and workers made again.
    pub restarts: u64,
    /// Exceptions and panics.
    pub exceptions: u64,
    /// Steps and resets that took too long.
    pub timeouts: u64,
    /// Workers that took too much memory.
    pub over_budget: u64,
    /// Discarded frames: the step in flight of an environment that failed, and dropped ones.
    pub frames_aborted: u64,
    /// Episodes that terminated or were truncated.
    pub episodes: u64,
}

impl Counters {
    /// Counts a fault and the restart after it.
    pub fn add(&mut self, kind: FaultKind) {
        self.restarts += 1;
        match kind {
            FaultKind::Exception => self.exceptions += 1,
            FaultKind::Timeout => self.timeouts += 1,
            FaultKind::OverBudget => self.over_budget += 1,
            FaultKind::Death | FaultKind::BadOutput => {}
        }
    }

    /// Returns the sum of both.
    pub fn plus(self, other: Counters) -> Counters {
        Counters {
            restarts: self.restarts + other.restarts,
            exceptions: self.exceptions + other.exceptions,
            timeouts: self.timeouts + other.timeouts,
            over_budget: self.over_budget + other.over_budget,
            frames_aborted: self.frames_aborted + other.frames_aborted,
            episodes: self.episodes + other.episodes,
        }
    }
}

/// The limit on failures of one environment within a time.
#[derive(Debug)]
pub struct RestartLimit {
    restarts_max: u32,
    window: Duration,
    /// Times of the last failures, at most `restarts_max + 1` per environment.
    failures: BTreeMap<u32, VecDeque<Instant>>,
    first: Option<Error>,
}

impl RestartLimit {
    /// The default time over which failures are counted.
    pub const WINDOW: Duration = Duration::from_secs(600);

    /// Allows at most `restarts_max` failures of an environment within `window`.
    pub fn new(restarts_max: u32, window: Duration) -> RestartLimit {
        RestartLimit { restarts_max, window, failures: BTreeMap::new(), first: None }
    }

    /// Records that `env_index` failed at `now`.
    ///
    /// Errors: `env-failing-repeatedly`, with the first failure of the run, if it failed too often.
    pub fn note(&mut self, env_index: u32, now: Instant, error: &Error) -> Result<()> {
        let first = self.first.get_or_insert_with(|| error.clone());
        let times = self.failures.entry(env_index).or_default();
        while times.front().is_some_and(|&time| now.duration_since(time) > self.window) {
            times.pop_front();
        }
        times.push_back(now);
        if times.len() as u64 <= u64::from(self.restarts_max) {
            return Ok(());
        }
        let message = format!(
            "environment {env_index} failed {} times within {} s, and `restarts_max` is {}",
            times.len(),
            self.window.as_secs(),
            self.restarts_max
        );
        let mut stop = Error::new("env-failing-repeatedly", message);
        stop.facts.push(format!("the first failure of the run: {}: {}", first.slug, first.message));
        stop.facts.extend(first.facts.iter().cloned());
        Err(stop.hint("mend the environment, or raise `restarts_max` if its failures are known and rare"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_may_fail_so_often_within_the_window() {
        let mut limit = RestartLimit::new(2, Duration::from_secs(10));
        let start = Instant::now();
        let error = |n: u32| Error::new("env-bad-output", format!("failure {n}"));
        let mut fail = |env: u32, second: u64, n: u32| {
            limit.note(env, start + Duration::from_secs(second), &error(n)).err()
        };
        assert_eq!([fail(0, 0, 1), fail(0, 1, 2), fail(1, 1, 3)], [None, None, None]);
        // The first failure of environment 0 is too long ago by now.
        assert_eq!([fail(0, 11, 4), fail(1, 2, 5)], [None, None]);
        let stop = fail(0, 11, 6).expect("three failures within ten seconds");
        assert_eq!(stop.slug, "env-failing-repeatedly");
        assert!(stop.message.starts_with("environment 0 failed 3 times within 10 s"), "{stop}");
        assert!(stop.facts[0].ends_with("env-bad-output: failure 1"), "{stop}");
    }
}
