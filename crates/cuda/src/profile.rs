//! Time on the card by kernel and product, for `bench --profile`: each is waited for, so the whole is slower than
//! without, and each part takes what it takes alone.

use super::driver::{Gpu, Mark};
use cudarc::driver::result;
use plimsoll_base::Result;
use plimsoll_device::{Timed, Work};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Times so far: launches, seconds and work by name.
#[derive(Debug)]
pub(crate) struct Profile {
    begin: Mark,
    end: Mark,
    times: Mutex<BTreeMap<String, (u64, f64, Work)>>,
    /// The operation that the next kernel begins: the sizes of a product, and its work.
    next: Mutex<(Option<[usize; 3]>, Work)>,
}

impl Profile {
    /// Errors: `cuda-failed`.
    pub(crate) fn new(gpu: &Gpu) -> Result<Profile> {
        Ok(Profile {
            begin: Mark::new(gpu)?,
            end: Mark::new(gpu)?,
            times: Mutex::default(),
            next: Mutex::default(),
        })
    }

    /// Notes an operation: its first kernel gets the work.
    pub(crate) fn begin(&self, product: Option<[usize; 3]>, work: Work) {
        *self.next.lock().unwrap_or_else(|e| e.into_inner()) = (product, work);
    }

    /// Times what `put` queues on the stream.
    pub(crate) fn time<T>(&self, gpu: &Gpu, name: impl FnOnce() -> String, put: impl FnOnce() -> T) -> T {
        let mut times = self.times.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the event and the stream are alive.
        let _ = unsafe { result::event::record(self.begin.0, gpu.stream) };
        let done = put();
        // SAFETY: the event and the stream are alive.
        let _ = unsafe { result::event::record(self.end.0, gpu.stream) };
        let (product, work) = std::mem::take(&mut *self.next.lock().unwrap_or_else(|e| e.into_inner()));
        let name = match product {
            Some([m, n, k]) => format!("{} {m} x {n} x {k}", name()),
            None => name(),
        };
        let entry = times.entry(name).or_default();
        entry.0 += 1;
        entry.1 += self.end.seconds_since(&self.begin).unwrap_or(0.0);
        entry.2 = Work { bytes: entry.2.bytes + work.bytes, flops: entry.2.flops + work.flops };
        done
    }

    /// Takes the times, longest first.
    pub(crate) fn take(&self) -> Vec<Timed> {
        let times = std::mem::take(&mut *self.times.lock().unwrap_or_else(|e| e.into_inner()));
        let timed = |(kernel, (launches, seconds, work))| Timed { kernel, launches, seconds, work };
        let mut times: Vec<_> = times.into_iter().map(timed).collect();
        times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        times
    }
}
