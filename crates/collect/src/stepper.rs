//! The seam between a collector and those who step environments: threads of this process, or worker processes.
//!
//! A stepper owns groups of environments. A group is asked with `submit` and answers through `wait`: a collector's
//! thread computes the actions of one group while others step. What goes wrong in an environment is a value
//! (`flags::ABORTED` in its result, and a `Fault`), never an end of the run; an `Err` is.

use crate::Fault;
use plimsoll_base::{Error, Result};
use plimsoll_env::Spec;
use plimsoll_worker::Stop;
use std::ops::Range;

/// What an environment of a group is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ask {
    /// Nothing: its part of the results stays as it was.
    #[default]
    Skip = 0,
    /// To take its action; if its episode ends with that, to begin the next one with its seed.
    Step = 1,
    /// To begin an episode with its seed, whatever it was in.
    Reset = 2,
}

/// What a group is asked; every list has one entry an environment of the group.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What each is to do.
    pub asks: &'a [Ask],
    /// Action slots, [k, action bytes]; within their space. Read where the ask is `Step`.
    pub actions: &'a [u8],
    /// The seed with which each begins its next episode, in this request or a later one: of a `Reset`, of the episode
    /// after one that ends (SameStep), and of the episode after one that is aborted.
    pub seeds: &'a [u64],
}

/// What a group answered; every list has one entry an environment. Those that were skipped keep what they had.
#[derive(Clone, Copy, Debug)]
pub struct Results<'a> {
    /// Observation slots, [k, observation bytes]: what the next action answers. After an episode's end the first of the
    /// new episode.
    pub observations: &'a [u8],
    /// Observation slots, [k, observation bytes]: the last of the old episode where a flag of `flags::DONE` is set.
    pub final_observations: &'a [u8],
    /// Rewards of the steps; finite or infinite, never NaN.
    pub rewards: &'a [f64],
    /// Bits of `plimsoll_env::flags`: `TERMINATED`, `TRUNCATED`, `RESET_ROW`, `ABORTED`.
    /// With `ABORTED` the step was discarded, the environment is whole again, and its observation is the first of a new
    /// episode; a `Reset` that took several attempts has no flag.
    pub flags: &'a [u8],
}

/// Groups of environments that are stepped.
///
/// A group has at most one request under way. Environments of a group are numbered over the whole run
/// (`env_index`), and nothing that a stepper answers depends on how they are grouped.
pub trait Stepper: Send {
    /// What the environments are; one for all.
    fn spec(&self) -> &Spec;

    /// The environments of each group, ascending and without gaps.
    fn groups(&self) -> &[Range<u32>];

    /// Asks a group that has nothing under way. Returns at once where others do the stepping.
    ///
    /// Errors: what ends the run, for example `env-failing-repeatedly`.
    fn submit(&mut self, group: usize, request: Request<'_>) -> Result<()>;

    /// Waits until a group that was asked has answered, and names it; none once `stop` is set. Each answer is named once.
    /// An environment that fails is made again in here, within its limits.
    ///
    /// Errors: what ends the run, for example `env-failing-repeatedly`.
    fn wait(&mut self, stop: &Stop) -> Result<Option<usize>>;

    /// The last answer of a group that has nothing under way.
    fn results(&self, group: usize) -> Results<'_>;

    /// Environments that step and reset as one, in the order of their numbers: 1 unless environments are vector
    /// environments. All of a unit are asked the same.
    fn unit(&self) -> usize {
        1
    }

    /// What has failed since the last call.
    fn take_faults(&mut self) -> Vec<Fault>;

    /// What was done since the last call that is allowed and seldom meant.
    fn take_warnings(&mut self) -> Vec<Error> {
        Vec::new()
    }
}
