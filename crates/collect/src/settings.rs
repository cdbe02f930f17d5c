//! Holds the settings of a collector, and the account that it keeps.

use crate::Counters;

/// Says when a batch ends, and how old its actions may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// A batch ends when every environment gave T frames. One version per batch.
    Sync,
    /// A batch ends when this share of its frames is in; environments continue in the next. One version per batch.
    SemiSync {
        /// Above 0, at most 1.
        preemptive_threshold: f64,
    },
    /// A batch is the first rows that are full, as many as there are environments. The newest version at each step.
    Async {
        /// Frames whose version is older by more than this are counted instead of delivered.
        policy_lag_max: Option<u64>,
    },
}

/// Settings of a collector.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Every seed follows from it.
    pub run_seed: u64,
    /// Condition under which a batch ends.
    pub mode: Mode,
    /// Batches in memory: those being filled, and those that a learner holds.
    pub batches_in_flight: usize,
    /// Treatment of an episode whose environment failed.
    pub on_abort: OnAbort,
    /// Steps of each environment whose actions are random, at the beginning.
    pub random_steps: u64,
    /// Every batch begins with new episodes; those of the previous batch are truncated.
    pub reset_each_batch: bool,
}

/// The account of frames and of time since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Answered steps.
    pub produced: u64,
    /// Frames in returned batches.
    pub delivered: u64,
    /// Frames too old to be delivered.
    pub lagged: u64,
    /// Frames that are not in a batch yet.
    pub in_flight: u64,
    /// Rows that ended before their last frame because they had no room for another end of an episode.
    pub short_rows: u64,
    /// Failures and episodes.
    pub counters: Counters,
    /// Seconds of all threads in the policy.
    pub policy_seconds: f64,
    /// Seconds of all threads in environments or waiting for them.
    pub env_seconds: f64,
    /// Seconds of all threads waiting for a batch to fill.
    pub stalled_seconds: f64,
}

/// Says what to do with an episode whose environment failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnAbort {
    /// Keeps its frames, the last one cut.
    #[default]
    Keep,
    /// Removes its frames from this batch.
    Drop,
}

/// The episode that an environment was in when an earlier collector ended. Its reset seed and these actions restore the
/// environment's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Underway {
    /// The number of the episode, which determines its seed.
    pub episode: u32,
    /// The action slots given to the environment since its reset, concatenated.
    pub actions: Vec<u8>,
}
