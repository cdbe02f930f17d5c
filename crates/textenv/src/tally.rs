//! Counters of environment events.

use plimsoll_base::{Error, slugs};
use serde::{Deserialize, Serialize};

/// Counters of a round, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentTally {
    pub episodes: u64,
    /// Episodes that a fault ended; they are not trained.
    pub aborted: u64,
    /// Episodes that a limit on turns or tokens ended.
    pub truncated: u64,
    /// Turns whose reply was cut to `environment.turn_tokens_max`.
    pub cut: u64,
    pub crashes: u64,
    pub timeouts: u64,
    pub exceptions: u64,
    pub over_budget: u64,
    pub bad_replies: u64,
}

impl EnvironmentTally {
    /// Counts a fault by its slug.
    pub fn count(&mut self, error: &Error) {
        *match error.slug {
            slugs::TEXT_ENVIRONMENT_TIMEOUT => &mut self.timeouts,
            slugs::TEXT_ENVIRONMENT_RAISED => &mut self.exceptions,
            slugs::TEXT_ENVIRONMENT_OVER_BUDGET => &mut self.over_budget,
            slugs::TEXT_ENVIRONMENT_BAD_REPLY => &mut self.bad_replies,
            _ => &mut self.crashes,
        } += 1;
    }

    /// Adds the counters of another part of the round.
    pub fn add(&mut self, other: &EnvironmentTally) {
        self.episodes += other.episodes;
        self.aborted += other.aborted;
        self.truncated += other.truncated;
        self.cut += other.cut;
        self.crashes += other.crashes;
        self.timeouts += other.timeouts;
        self.exceptions += other.exceptions;
        self.over_budget += other.over_budget;
        self.bad_replies += other.bad_replies;
    }

    /// Returns the number of all faults.
    pub fn faults(&self) -> u64 {
        self.crashes + self.timeouts + self.exceptions + self.over_budget + self.bad_replies
    }

    /// Returns every counter with its metric's name.
    pub fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("episodes", self.episodes),
            ("aborted", self.aborted),
            ("truncated", self.truncated),
            ("cut", self.cut),
            ("crashes", self.crashes),
            ("timeouts", self.timeouts),
            ("exceptions", self.exceptions),
            ("over_budget", self.over_budget),
            ("bad_replies", self.bad_replies),
        ]
    }
}
