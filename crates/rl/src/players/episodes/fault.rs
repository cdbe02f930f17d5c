//! A fault of an environment as a run reports it: the first of a round, and the error where there are too many.

use plimsoll_base::Error;
use serde::{Deserialize, Serialize};

/// An error that ended an episode, in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::players) struct Fault {
    slug: String,
    pub(in crate::players) message: String,
    facts: Vec<String>,
    hints: Vec<String>,
}

impl Fault {
    pub(in crate::players) fn of(error: &Error) -> Fault {
        let Error { slug, message, facts, hints, .. } = error.clone();
        Fault { slug: slug.to_string(), message, facts, hints }
    }

    /// Adds the rank on which it happened.
    pub(in crate::players) fn on_rank(mut self, rank: usize) -> Fault {
        self.facts.push(format!("it was on rank {rank}"));
        self
    }

    /// Returns the error of a round of `env` in which `faults` episodes failed, this one first.
    pub(in crate::players) fn too_many(&self, env: &str, faults: u64, most: u32) -> Error {
        let message =
            format!("{env}: {faults} episodes of one rollout failed, environment.restarts_max is {most}");
        let error = self.as_cause_of(Error::new("text-environment-failing", message));
        error.hint("environment.restarts_max is how many may fail; such episodes are counted and not trained")
    }

    /// Adds this fault, the first of a round, to the error that it led to.
    pub(in crate::players) fn as_cause_of(&self, error: Error) -> Error {
        let error = error.fact(format!("the first, {}: {}", self.slug, self.message));
        let error = self.facts.iter().fold(error, |error, fact| error.fact(fact.clone()));
        self.hints.iter().fold(error, |error, hint| error.hint(hint.clone()))
    }
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
