//! The trait for stepping environments, in threads of this process or in worker processes.
//!
//! A stepper owns groups of environments. A group gets a request by `submit` and answers through `wait`: a collector's
//! thread computes the actions of one group while others step. A failure of an environment is a value
//! (`flags::ABORTED` in its result, and a `Fault`); an `Err` ends the run.

use crate::Fault;
use plimsoll_base::{Error, Result};
use plimsoll_env::Spec;
use plimsoll_worker::Stop;
use std::ops::Range;

/// Tells an environment of a group what to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ask {
    /// Nothing: its part of the results stays unchanged.
    #[default]
    Skip = 0,
    /// Take its action; if that ends its episode, begin the next one with its seed.
    Step = 1,
    /// Begin an episode with its seed, even within another one.
    Reset = 2,
}

/// A request to a group of k environments; every list has one entry per environment.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Order for each environment.
    pub asks: &'a [Ask],
    /// Action slots, [k, action bytes]; within their space. Read where the ask is `Step`.
    pub actions: &'a [u8],
    /// The seed of each one's next episode, in this request or a later one: for a `Reset`, for the episode
    /// after one that ends (SameStep), and for the episode after an aborted one.
    pub seeds: &'a [u64],
}

/// The answer of a group; every list has one entry per environment. Skipped ones keep their last values.
#[derive(Clone, Copy, Debug)]
pub struct Results<'a> {
    /// Observation slots, [k, observation bytes]: the input of the next action. After an episode's end the first of the
    /// new episode.
    pub observations: &'a [u8],
    /// Observation slots, [k, observation bytes]: the last of the old episode where a flag of `flags::DONE` is set.
    pub final_observations: &'a [u8],
    /// Rewards of the steps; finite or infinite, never NaN.
    pub rewards: &'a [f64],
    /// Bits of `plimsoll_env::flags`: `TERMINATED`, `TRUNCATED`, `RESET_ROW`, `ABORTED`.
    /// With `ABORTED` the step was discarded, the environment works again, and its observation is the first of a new
    /// episode; a `Reset` that took several attempts has no flag.
    pub flags: &'a [u8],
}

/// Steps groups of environments.
///
/// A group has at most one request under way. Environments of a group are numbered over the whole run
/// (`env_index`), and the answers do not depend on how they are grouped.
pub trait Stepper: Send {
    /// Returns the description of the environments, the same for all.
    fn spec(&self) -> &Spec;

    /// Returns the environments of each group, ascending and without gaps.
    fn groups(&self) -> &[Range<u32>];

    /// Submits a request to a group with none under way. Returns at once if others do the stepping.
    ///
    /// Errors: those that end the run, such as `env-failing-repeatedly`.
    fn submit(&mut self, group: usize, request: Request<'_>) -> Result<()>;

    /// Waits for the next answer and returns its group; `None` once `stop` is set. Each answer is returned once.
    /// A failed environment is made again meanwhile, within its limits.
    ///
    /// Errors: those that end the run, such as `env-failing-repeatedly`.
    fn wait(&mut self, stop: &Stop) -> Result<Option<usize>>;

    /// Returns the last answer of a group with no request under way.
    fn results(&self, group: usize) -> Results<'_>;

    /// Returns how many consecutive environments step and reset as one: 1 unless they are vector
    /// environments. All of a unit get the same ask.
    fn unit(&self) -> usize {
        1
    }

    /// Takes the failures since the last call.
    fn take_faults(&mut self) -> Vec<Fault>;

    /// Takes the warnings since the last call: allowed but rarely intended behaviour of environments.
    fn take_warnings(&mut self) -> Vec<Error> {
        Vec::new()
    }
}
