//! Failures of a reward and their outcomes, counted by cause.

use plimsoll_base::{Error, slugs};
use serde::{Deserialize, Serialize};

/// Counters of one reward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Workers that died, or could not be started again.
    pub crashes: u64,
    /// Batches that were not answered in time.
    pub timeouts: u64,
    /// Python functions that raised.
    pub exceptions: u64,
    /// Workers that exceeded their memory.
    pub over_budget: u64,
    /// Replies that were no scores, or not finite.
    pub bad_replies: u64,
    /// Connections that failed, and statuses other than success.
    pub http_errors: u64,
    /// Batches that were retried.
    pub retries: u64,
    /// Samples without a score, because the reward gave none or failed.
    pub none: u64,
}

impl Tally {
    /// Counts a failure by its slug.
    pub(crate) fn count(&mut self, error: &Error) {
        *match error.slug {
            slugs::REWARD_WORKER_TIMEOUT | slugs::REWARD_HTTP_TIMEOUT => &mut self.timeouts,
            slugs::REWARD_FUNCTION_RAISED => &mut self.exceptions,
            slugs::REWARD_WORKER_OVER_BUDGET => &mut self.over_budget,
            slugs::REWARD_BAD_REPLY | slugs::REWARD_NOT_FINITE => &mut self.bad_replies,
            slugs::REWARD_HTTP_FAILED => &mut self.http_errors,
            _ => &mut self.crashes,
        } += 1;
    }

    /// Adds the counters of another part of the work.
    pub fn add(&mut self, other: &Tally) {
        let mut other = *other;
        for (mine, theirs) in self.fields().into_iter().zip(other.fields()) {
            *mine += *theirs;
        }
    }

    /// Returns every counter with its metric's name.
    pub fn named(&self) -> [(&'static str, u64); 8] {
        let mut this = *self;
        let names = [
            "crashes",
            "timeouts",
            "exceptions",
            "over_budget",
            "bad_replies",
            "http_errors",
            "retries",
            "none",
        ];
        let values = this.fields().map(|value| *value);
        std::array::from_fn(|i| (names[i], values[i]))
    }

    fn fields(&mut self) -> [&mut u64; 8] {
        [
            &mut self.crashes,
            &mut self.timeouts,
            &mut self.exceptions,
            &mut self.over_budget,
            &mut self.bad_replies,
            &mut self.http_errors,
            &mut self.retries,
            &mut self.none,
        ]
    }
}
