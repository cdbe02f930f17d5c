//! A stream for an operation in parallel to those after it: a small one, which leaves most of the card to others.

use super::driver::{Gpu, Mark};
use super::transfers::Stream;
use cudarc::driver::sys;
use plimsoll_base::Result;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) stream: Stream,
    /// Before the operation, on the device's stream.
    pub(crate) begun: Mark,
    /// After the operation, on its own stream.
    pub(crate) done: Mark,
    /// True while operations are put there.
    pub(crate) is_on: AtomicBool,
    /// True until the device's stream waits for it.
    pub(crate) is_open: AtomicBool,
}

impl Side {
    /// Errors: `cuda-failed`.
    pub(crate) fn new(gpu: &Gpu) -> Result<Side> {
        let (begun, done) = (Mark::new(gpu)?, Mark::new(gpu)?);
        let (is_on, is_open) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Side { stream: Stream::new(gpu)?, begun, done, is_on, is_open })
    }

    pub(crate) fn stream_if_on(&self) -> Option<sys::CUstream> {
        self.is_on.load(Ordering::Relaxed).then_some(self.stream.0)
    }

    pub(crate) fn wait(&self) -> std::result::Result<(), cudarc::driver::result::DriverError> {
        self.stream.wait()
    }
}
