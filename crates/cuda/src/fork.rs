//! Operations in parallel to those that follow.

use super::CudaDevice;
use super::side::Side;
use std::sync::atomic::Ordering;

impl CudaDevice {
    /// Runs `op` in parallel to the operations until `join_fork`, after those so far; in line if checked or profiled.
    pub(crate) fn fork(&self, op: impl FnOnce()) {
        if self.checked || self.profile.is_some() {
            return op();
        }
        let Side { stream, begun, done, is_on, is_open } = &self.side;
        self.record(begun, self.gpu.stream);
        self.follow(stream.0, begun);
        is_on.store(true, Ordering::Relaxed);
        op();
        is_on.store(false, Ordering::Relaxed);
        self.record(done, stream.0);
        is_open.store(true, Ordering::Relaxed);
    }

    /// Makes later operations wait for the last of `fork`.
    pub(crate) fn join_fork(&self) {
        if self.side.is_open.swap(false, Ordering::Relaxed) {
            self.follow(self.gpu.stream, &self.side.done);
        }
    }
}
