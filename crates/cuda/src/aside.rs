//! A second stream, for the exchange with other ranks, and the marks by which streams of several processes wait for each other.

use super::CudaDevice;
use super::driver::{self, Gpu, Mark};
use super::transfer::{follow, record};
use super::transfers::Stream;
use cudarc::driver::sys;
use plimsoll_base::Result;
use plimsoll_device::Aside;
use std::sync::atomic::{AtomicBool, Ordering};

/// Marks in turn: one is set again when all ranks have waited for the one after it.
pub(crate) const MARKS: usize = 4;

/// The stream, and the marks of this rank.
#[derive(Debug)]
pub(crate) struct AsideStream {
    stream: Stream,
    pub(crate) marks: [Mark; MARKS],
    joined: Mark,
    /// Whether operations are being put aside now.
    is_on: AtomicBool,
}

impl AsideStream {
    /// Errors: `cuda-failed`.
    pub(crate) fn new(gpu: &Gpu) -> Result<AsideStream> {
        let marks = [Mark::shared(gpu)?, Mark::shared(gpu)?, Mark::shared(gpu)?, Mark::shared(gpu)?];
        let joined = Mark::new(gpu)?;
        Ok(AsideStream { stream: Stream::new(gpu)?, marks, joined, is_on: AtomicBool::new(false) })
    }

    pub(crate) fn wait(&self) -> std::result::Result<(), cudarc::driver::result::DriverError> {
        self.stream.wait()
    }
}

impl CudaDevice {
    /// The stream that operations are put on now.
    pub(crate) fn stream(&self) -> sys::CUstream {
        match &self.aside {
            Some(aside) if aside.is_on.load(Ordering::Relaxed) => aside.stream.0,
            _ => self.gpu.stream,
        }
    }

    fn aside_stream(&self) -> &AsideStream {
        self.aside.as_ref().expect("only a rank among others puts operations aside")
    }
}

impl Aside for CudaDevice {
    fn mark(&self, turn: usize) {
        record(self, &self.aside_stream().marks[turn % MARKS], self.gpu.stream);
    }

    fn run(&self, turn: usize, ops: &mut dyn FnMut()) {
        let aside = self.aside_stream();
        follow(self, aside.stream.0, &aside.marks[turn % MARKS]);
        for peer in self.peers.iter().flatten() {
            follow(self, aside.stream.0, &peer.marks[turn % MARKS]);
        }
        aside.is_on.store(true, Ordering::Relaxed);
        ops();
        aside.is_on.store(false, Ordering::Relaxed);
    }

    fn join(&self) {
        let aside = self.aside_stream();
        record(self, &aside.joined, aside.stream.0);
        follow(self, self.gpu.stream, &aside.joined);
    }
}

impl Mark {
    /// An event that other processes may open.
    fn shared(gpu: &Gpu) -> Result<Mark> {
        gpu.bind();
        let flags = sys::CUevent_flags::CU_EVENT_INTERPROCESS as u32
            | sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        let mut event = std::ptr::null_mut();
        // SAFETY: a valid place for a handle; `Mark` destroys what is made.
        let made = unsafe { sys::cuEventCreate(&mut event, flags) };
        made.result()
            .map(|()| Mark(event))
            .map_err(|err| driver::failed("making an event for other ranks", err))
    }
}
