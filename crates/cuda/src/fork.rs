//! Operations that run next to those after them.

use super::CudaDevice;
use super::side::Side;
use std::sync::atomic::Ordering;

impl CudaDevice {
    /// Runs `op` after the operations so far, next to those that follow until `join_fork`. In place where each is waited for or timed.
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

    /// Makes the operations from here on wait for the last of `fork`.
    pub(crate) fn join_fork(&self) {
        if self.side.is_open.swap(false, Ordering::Relaxed) {
            self.follow(self.gpu.stream, &self.side.done);
        }
    }
}
