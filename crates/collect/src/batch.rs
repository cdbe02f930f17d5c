//! A batch as a learner sees it, and the pool that its rows come from and return to.

use crate::{Row, RowLayout};
use plimsoll_worker::Stop;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Longest time until a thread that waits for rows notices a stop.
pub(crate) const STOP_POLL: Duration = Duration::from_millis(50);

/// Rows of T frames, one per environment in the synchronous modes. Its memory returns to the collector when it is
/// dropped; environments wait while all batches are held.
#[derive(Debug)]
pub struct Batch {
    /// Counted from 0.
    pub index: u64,
    /// Byte ranges of the columns of each row.
    pub layout: Arc<RowLayout>,
    /// The oldest and the newest policy version of a delivered frame; `None` without frames.
    pub versions: Option<(u64, u64)>,
    /// Frames that are neither invalid nor resets.
    pub num_frames: u64,
    rows: Vec<Row>,
    pool: Arc<RowPool>,
}

impl Batch {
    pub(crate) fn new(index: u64, layout: Arc<RowLayout>, rows: Vec<Row>, pool: Arc<RowPool>) -> Batch {
        let mut batch = Batch { index, layout, versions: None, num_frames: 0, rows, pool };
        batch.num_frames = batch.rows.iter().map(|row| row.count_frames(&batch.layout)).sum();
        batch.versions = batch.version_range();
        batch
    }

    /// Returns the rows: by environment in the synchronous modes, where row `e` is `MappedRow::stride` bytes after row
    /// `e - 1`; in the order in which they filled in `async`, where `Row::env_index` names the environment.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    fn version_range(&self) -> Option<(u64, u64)> {
        let ranges = self.rows.iter().filter_map(|row| row.version_range(&self.layout));
        ranges.reduce(|(low, high), (a, b)| (low.min(a), high.max(b)))
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.rows));
    }
}

/// Rows that are neither filled nor read.
#[derive(Debug, Default)]
pub(crate) struct RowPool {
    free: Mutex<VecDeque<Row>>,
    returned: Condvar,
}

impl RowPool {
    pub fn give(&self, rows: Vec<Row>) {
        self.lock().extend(rows);
        self.returned.notify_all();
    }

    /// Takes exactly `count` rows in the order in which they returned; `None` if there are fewer.
    pub fn take_all(&self, count: usize) -> Option<Vec<Row>> {
        let mut free = self.lock();
        (free.len() >= count).then(|| free.drain(..count).collect())
    }

    /// Takes up to `count` rows, a multiple of `unit`. If `waits`, waits for the first `unit` until `stop` is set.
    pub fn take(&self, count: usize, unit: usize, waits: bool, stop: &Stop) -> Vec<Row> {
        let mut free = self.lock();
        while waits && free.len() < unit && !stop.is_set() {
            free = match self.returned.wait_timeout(free, STOP_POLL) {
                Ok((free, _)) => free,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        let count = count.min(free.len());
        free.drain(..count - count % unit).collect()
    }

    /// Locks the rows. They are valid at any instant, even after a panic of the thread that held the lock.
    fn lock(&self) -> MutexGuard<'_, VecDeque<Row>> {
        self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
