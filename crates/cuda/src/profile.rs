//! Time on the card by kernel and product, for `bench --profile`: each is waited for, so the whole is slower than
//! without, and each part takes what it takes alone.

use super::driver::{Gpu, Mark};
use cudarc::driver::result;
use plimsoll_base::Result;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Times so far: launches and seconds by name.
#[derive(Debug)]
pub(crate) struct Profile {
    begin: Mark,
    end: Mark,
    times: Mutex<BTreeMap<String, (u64, f64)>>,
}

impl Profile {
    /// Errors: `cuda-failed`.
    pub(crate) fn new(gpu: &Gpu) -> Result<Profile> {
        Ok(Profile { begin: Mark::new(gpu)?, end: Mark::new(gpu)?, times: Mutex::default() })
    }

    /// Times what `put` queues on the stream.
    pub(crate) fn time<T>(&self, gpu: &Gpu, name: impl FnOnce() -> String, put: impl FnOnce() -> T) -> T {
        let mut times = self.times.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the event and the stream are alive.
        let _ = unsafe { result::event::record(self.begin.0, gpu.stream) };
        let done = put();
        // SAFETY: the event and the stream are alive.
        let _ = unsafe { result::event::record(self.end.0, gpu.stream) };
        let entry = times.entry(name()).or_default();
        entry.0 += 1;
        entry.1 += self.end.seconds_since(&self.begin).unwrap_or(0.0);
        done
    }

    /// Takes the times: (name, launches, seconds), longest first.
    pub(crate) fn take(&self) -> Vec<(String, u64, f64)> {
        let times = std::mem::take(&mut *self.times.lock().unwrap_or_else(|e| e.into_inner()));
        let mut times: Vec<_> =
            times.into_iter().map(|(name, (count, seconds))| (name, count, seconds)).collect();
        times.sort_by(|a, b| b.2.total_cmp(&a.2));
        times
    }
}
