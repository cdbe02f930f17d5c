//! Keeps what ranks are doing: the state of a trainer as its supervisor reports it, and one row per rank, kept by rank
//! 0's supervisor for those who watch the run. Plain data; the crate `run` writes it into the run directory.

use crate::hello::Member;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The state of a trainer, as its supervisor reads it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// Process id of the trainer; 0 before it is started.
    pub trainer: u32,
    /// State of the trainer in /proc: `R`, `S`, `D`, `T` stopped, `Z` zombie, `-` gone.
    pub state: char,
    /// The trainer's work, for example `in step 7 of 200, phase update`.
    pub doing: String,
    /// Milliseconds since it began to do that.
    pub since_ms: u64,
    /// Phase, step and number of steps of `doing`, as on the trainer's status page.
    pub phase: String,
    pub step: u32,
    pub steps: u32,
    /// Barriers that the trainer has reached.
    pub arrivals: u64,
    /// Milliseconds spent waiting for other ranks: in all, and now (0 while it computes).
    pub waited_ms: u64,
    pub waiting_ms: u64,
    /// The thing it waits for, from which rank and in which queue, if it says so; else empty.
    pub waits_for: String,
    /// Memory of the rank's processes, and what its plan allows them.
    pub held_bytes: u64,
    pub planned_bytes: u64,
    /// A worker process that the trainer has waited for unusually long; else empty.
    pub worker: String,
}

impl Beat {
    pub(crate) fn is_stopped(&self) -> bool {
        self.state == 'T'
    }

    /// Returns true if it is at work: started, not stopped, and waiting for no rank.
    pub(crate) fn computes(&self) -> bool {
        self.trainer > 0 && self.waiting_ms == 0 && !self.is_stopped()
    }
}

/// Says what a rank is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Its trainer has not reported yet.
    Starts,
    Computes,
    /// It waits for other ranks.
    Waits,
    /// A signal has stopped its trainer.
    Stopped,
    /// Its supervisor is silent, or its connection is closed.
    Lost,
    Finished,
    Interrupted,
    /// It ended in another way, or because another rank did.
    Ended,
}

/// One rank, as those who watch the run see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub rank: u32,
    pub host: String,
    /// Process ids; the trainer's is 0 before it is started.
    pub supervisor: u32,
    pub trainer: u32,
    pub state: State,
    pub phase: String,
    pub step: u32,
    pub steps: u32,
    /// Seconds since the phase began.
    pub seconds_in_phase: f64,
    /// Seconds spent waiting for other ranks since the trainer began.
    pub seconds_waited: f64,
    /// Memory of the rank's processes, and the load line that its plan sets them.
    pub held_bytes: u64,
    pub planned_bytes: u64,
}

impl Row {
    pub(crate) fn of(member: &Member, beat: &Beat, state: State) -> Row {
        Row {
            rank: member.rank,
            host: member.host.clone(),
            supervisor: member.pid,
            trainer: beat.trainer,
            state,
            phase: beat.phase.clone(),
            step: beat.step,
            steps: beat.steps,
            seconds_in_phase: beat.since_ms as f64 / 1e3,
            seconds_waited: beat.waited_ms as f64 / 1e3,
            held_bytes: beat.held_bytes,
            planned_bytes: beat.planned_bytes,
        }
    }
}

/// Returns the rank that the others waited for: the one that waited least. `None` if all waited equally long.
pub fn slowest(waited: impl IntoIterator<Item = Duration>) -> Option<usize> {
    let waited: Vec<Duration> = waited.into_iter().collect();
    let least = *waited.iter().min()?;
    waited.iter().any(|one| *one > least).then(|| waited.iter().position(|one| *one == least))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_is_the_one_that_waits_least() {
        for (waited, expect) in
            [(&[][..], None), (&[5], None), (&[3, 3], None), (&[3, 1, 2], Some(1)), (&[4, 9, 9, 9], Some(0))]
        {
            let found = slowest(waited.iter().map(|ms| Duration::from_millis(*ms)));
            assert_eq!(found, expect, "{waited:?}");
        }
    }
}
