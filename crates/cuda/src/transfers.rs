//! Page-locked host memory for offloaded regions, and the streams and events of its copies.

use crate::driver::{self, Gpu, Mark, Pinned};
use cudarc::driver::{result, sys};
use plimsoll_base::{Bytes, Result};
use plimsoll_device::{INPUT_SLOTS, OFFLOAD_SLOTS};
use plimsoll_memory::Buf;

/// The memory, the streams and the events of copies.
#[derive(Debug)]
pub(crate) struct Transfers {
    pub(crate) memory: Option<Pinned>,
    pub(crate) incoming: Stream,
    pub(crate) outgoing: Stream,
    pub(crate) slots: Vec<Slot>,
}

#[derive(Debug)]
pub(crate) struct Slot {
    /// Copies into it may begin.
    pub(crate) free: Mark,
    /// Copies into it have arrived.
    pub(crate) arrived: Mark,
    /// Operations on it have ended.
    pub(crate) done: Mark,
}

#[derive(Debug)]
pub(crate) struct Stream(pub(crate) sys::CUstream);

// SAFETY: a stream may be used from any thread whose context is current.
unsafe impl Send for Stream {}
// SAFETY: a stream may be used from several threads: the driver serialises calls on it.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(gpu: &Gpu) -> Result<Stream> {
        gpu.bind();
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        stream.map(Stream).map_err(|e| driver::failed("making a stream", e))
    }

    /// Returns a stream whose kernels start before those of others that wait for room on the card.
    pub(crate) fn served_first(gpu: &Gpu) -> Result<Stream> {
        gpu.bind();
        let highest = result::stream::get_priority_range().map(|(_, highest)| highest);
        let stream = highest.and_then(|highest| {
            result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, highest)
        });
        stream.map(Stream).map_err(|e| driver::failed("making a stream", e))
    }

    /// Waits for everything on the stream. The caller has bound the context.
    pub(crate) fn wait(&self) -> std::result::Result<(), result::DriverError> {
        // SAFETY: made in `new`, and lives as long as `self`.
        unsafe { result::stream::synchronize(self.0) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made in `new`; the device that owned it waited first.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}

impl Transfers {
    /// Errors: `cuda-failed`.
    pub(crate) fn new(gpu: &Gpu) -> Result<Transfers> {
        let slot = || -> Result<Slot> {
            Ok(Slot { free: Mark::new(gpu)?, arrived: Mark::new(gpu)?, done: Mark::new(gpu)? })
        };
        let (incoming, outgoing) = (Stream::new(gpu)?, Stream::new(gpu)?);
        let slots = (0..OFFLOAD_SLOTS + INPUT_SLOTS).map(|_| slot()).collect::<Result<_>>()?;
        Ok(Transfers { memory: None, incoming, outgoing, slots })
    }

    /// Errors: `host-allocation-failed`.
    pub(crate) fn take(&mut self, gpu: &Gpu, bytes: Bytes) -> Result<()> {
        self.memory = Some(Pinned::new(gpu, bytes.0 as usize)?);
        Ok(())
    }

    /// Returns the address of an offloaded buffer, the same on the host and on the card.
    pub(crate) fn address(&self, buf: Buf<'_>) -> u64 {
        let memory = self.memory.as_ref().expect("`take_offloaded` comes before offloaded buffers");
        let end = buf.offset() + buf.bytes();
        assert!(end <= memory.len() as u64, "bytes {}..{end} of {} offloaded", buf.offset(), memory.len());
        memory.address() + buf.offset()
    }

    pub(crate) fn wait(&self) -> std::result::Result<(), result::DriverError> {
        [&self.incoming, &self.outgoing].into_iter().try_for_each(Stream::wait)
    }
}
