//! Holds the state that the threads of a collector share, and the messages between them.

use crate::{Fault, Mode, Row, batch::RowPool, group::Tally};
use plimsoll_base::Error;
use plimsoll_worker::Stop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Failures kept until the collector takes them.
const FAULTS_KEPT: usize = 16;
/// Warnings kept: one for each worker, and no run has more workers.
const WARNINGS_KEPT: usize = 4096;

pub(crate) struct Shared {
    pub mode: Mode,
    pub stop: Stop,
    pub pool: Arc<RowPool>,
    /// Environments get clipped actions.
    pub clips: bool,
    /// Frames in the batch so far.
    pub frames_in: AtomicU64,
    /// Frames that end the batch.
    pub frames_wanted: u64,
    pub faults: FirstValues<Fault, FAULTS_KEPT>,
    pub warnings: FirstValues<Error, WARNINGS_KEPT>,
}

impl Shared {
    /// Counts frames of a batch. Returns true once it has enough.
    pub fn add_frames(&self, frames: u64) -> bool {
        let before = self.frames_in.fetch_add(frames, Ordering::Relaxed);
        matches!(self.mode, Mode::SemiSync { .. }) && before + frames >= self.frames_wanted
    }
}

/// The first `MAX` values since they were last taken.
pub(crate) struct FirstValues<T, const MAX: usize>(Mutex<Vec<T>>);

impl<T, const MAX: usize> Default for FirstValues<T, MAX> {
    fn default() -> Self {
        FirstValues(Mutex::default())
    }
}

impl<T, const MAX: usize> FirstValues<T, MAX> {
    pub fn add(&self, one: T) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX {
            kept.push(one);
        }
    }

    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Rows of a thread, with its report.
pub(crate) struct Message {
    pub rows: Vec<Row>,
    pub report: Report,
    /// The error that ended the run.
    pub ended: Option<Error>,
}

/// The work of a thread since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    pub lane: usize,
    pub tally: Tally,
    /// Frames in its open rows.
    pub open_frames: u64,
    pub policy_seconds: f64,
    pub env_seconds: f64,
    pub stalled_seconds: f64,
}
