//! A stream for an operation that runs next to those after it: small ones, which leave most of the card to others.

use super::CudaDevice;
use super::driver::{Gpu, Mark};
use super::transfers::Stream;
use cudarc::driver::sys;
use plimsoll_base::Result;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
pub(crate) struct Beside {
    stream: Stream,
    /// Before it, on the device's stream.
    begun: Mark,
    /// After it, on its own.
    done: Mark,
    /// Whether operations are put there now.
    is_on: AtomicBool,
    /// Whether the device's stream has not waited for it yet.
    is_open: AtomicBool,
}

impl Beside {
    /// Errors: `cuda-failed`.
    pub(crate) fn new(gpu: &Gpu) -> Result<Beside> {
        let (begun, done) = (Mark::new(gpu)?, Mark::new(gpu)?);
        let (is_on, is_open) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Beside { stream: Stream::new(gpu)?, begun, done, is_on, is_open })
    }

    pub(crate) fn stream_if_on(&self) -> Option<sys::CUstream> {
        self.is_on.load(Ordering::Relaxed).then_some(self.stream.0)
    }

    pub(crate) fn wait(&self) -> std::result::Result<(), cudarc::driver::result::DriverError> {
        self.stream.wait()
    }
}

impl CudaDevice {
    /// Runs `op` after the operations so far, next to those that follow until `join_beside`. In place where each is waited for or timed.
    pub(crate) fn beside(&self, op: impl FnOnce()) {
        if self.checked || self.profile.is_some() {
            return op();
        }
        let Beside { stream, begun, done, is_on, is_open } = &self.beside;
        self.record(begun, self.gpu.stream);
        self.follow(stream.0, begun);
        is_on.store(true, Ordering::Relaxed);
        op();
        is_on.store(false, Ordering::Relaxed);
        self.record(done, stream.0);
        is_open.store(true, Ordering::Relaxed);
    }

    /// Makes the operations from here on wait for the last of `beside`.
    pub(crate) fn join_beside(&self) {
        if self.beside.is_open.swap(false, Ordering::Relaxed) {
            self.follow(self.gpu.stream, &self.beside.done);
        }
    }
}
