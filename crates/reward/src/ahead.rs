//! Responses that are graded ahead of the round that asks for their scores, by the rewards that score each response by
//! itself. Every response is a call of its own, so its score is that of any other time; the order of calls and their
//! workers follow from the order in which responses are submitted.

use crate::grader::{Graded, Place};
use crate::tally::Tally;
use plimsoll_base::{Error, Result};
use plimsoll_worker::Scores;
use std::collections::BTreeMap;

/// Responses that are being graded ahead or have been, by key, until a round takes them.
#[derive(Default)]
pub(crate) struct Ahead {
    responses: BTreeMap<u64, Response>,
    /// Responses submitted so far.
    count: usize,
}

/// A response with an entry for each reward.
pub(crate) struct Response {
    /// Its number among those submitted, which picks its workers.
    number: usize,
    outcomes: Vec<Option<Outcome>>,
    missing: usize,
}

struct Outcome {
    scores: Result<Scores>,
    tally: Tally,
    seconds: f64,
}

/// Holds what a round takes from responses graded ahead.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) keys: BTreeMap<usize, u64>,
    /// Seconds of grading that were over when the samples were submitted, by reward and worker.
    seconds: BTreeMap<(usize, usize), f64>,
}

impl Taken {
    /// Returns the seconds of the worker that graded longest.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds.values().copied().fold(0.0, f64::max)
    }
}

impl Ahead {
    /// Returns the number of the next response, which picks its workers.
    pub(crate) fn next(&self) -> usize {
        self.count
    }

    /// Adds the next response, which `graders` of `rewards` rewards score.
    pub(crate) fn add(&mut self, key: u64, (graders, rewards): (usize, usize)) {
        let outcomes = (0..rewards).map(|_| None).collect();
        let before = self.responses.insert(key, Response { number: self.count, outcomes, missing: graders });
        assert!(before.is_none(), "response {key} is graded ahead twice");
        self.count += 1;
    }

    pub(crate) fn has(&self, key: u64) -> bool {
        self.responses.contains_key(&key)
    }

    /// Lets a round take a response as its sample. `workers`: how many each reward has.
    pub(crate) fn take(&self, taken: &mut Taken, sample: usize, key: u64, workers: impl Fn(usize) -> usize) {
        taken.keys.insert(sample, key);
        let response = &self.responses[&key];
        if response.missing > 0 {
            return;
        }
        for (reward, outcome) in response.outcomes.iter().enumerate() {
            let Some(outcome) = outcome else { continue };
            *taken.seconds.entry((reward, response.number % workers(reward))).or_default() += outcome.seconds;
        }
    }

    /// Keeps the outcome of a response graded ahead; returns any other.
    pub(crate) fn keep(&mut self, graded: Graded) -> Option<Graded> {
        let Place::Ahead(key) = graded.batch else { return Some(graded) };
        let response = self.responses.get_mut(&key).expect("a response waits for its outcomes");
        let Graded { reward, tally, seconds, outcome, .. } = graded;
        let scores = outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        response.outcomes[reward] = Some(Outcome { scores, tally, seconds });
        response.missing -= 1;
        None
    }

    /// Returns true if a response that a round takes is still being graded.
    pub(crate) fn awaits(&self, taken: &Taken) -> bool {
        taken.keys.values().any(|key| self.responses[key].missing > 0)
    }

    /// Removes the responses that a round takes.
    pub(crate) fn remove(&mut self, taken: &Taken) -> Vec<(usize, Response)> {
        let one = |(sample, key): (&usize, &u64)| Some((*sample, self.responses.remove(key)?));
        taken.keys.iter().filter_map(one).collect()
    }
}

impl Response {
    /// Takes the failure of a reward, if it failed.
    pub(crate) fn take_error(&mut self, reward: usize) -> Option<Error> {
        let failed = self.outcomes[reward].take_if(|outcome| outcome.scores.is_err());
        failed.and_then(|outcome| outcome.scores.err())
    }

    /// Takes the scores of a reward with its counters; `None` if it did not grade ahead.
    pub(crate) fn take(&mut self, reward: usize) -> Option<(Result<Scores>, Tally)> {
        self.outcomes[reward].take().map(|outcome| (outcome.scores, outcome.tally))
    }
}
