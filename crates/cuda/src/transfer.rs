//! Offloaded regions: page-locked host memory, and copies between it and the arena during the operations.
//!
//! Copies in and copies out have a stream each, so that both directions of the bus work at once. A slot is free when the
//! operations that read it have ended and what was to be copied out of it is out; both are events, so the host never waits.

use super::CudaDevice;
use super::driver::{self, Gpu, Mark, Pinned};
use cudarc::driver::{result, sys};
use plimsoll_base::{Bytes, Result};
use plimsoll_device::{OFFLOAD_SLOTS, Transfer};
use plimsoll_memory::Buf;

/// The memory, the streams and the events.
#[derive(Debug)]
pub(crate) struct Transfers {
    memory: Option<Pinned>,
    incoming: Stream,
    outgoing: Stream,
    slots: [Slot; OFFLOAD_SLOTS],
}

#[derive(Debug)]
struct Slot {
    /// Copies into it may begin.
    free: Mark,
    /// What was copied into it is there.
    arrived: Mark,
    /// Operations on it have ended.
    done: Mark,
}

#[derive(Debug)]
struct Stream(sys::CUstream);

// SAFETY: a stream may be used from any thread whose context is current.
unsafe impl Send for Stream {}
// SAFETY: a stream may be used from several threads: the driver serialises calls on it.
unsafe impl Sync for Stream {}

impl Stream {
    fn new(gpu: &Gpu) -> Result<Stream> {
        gpu.bind();
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        stream.map(Stream).map_err(|e| driver::failed("making a stream", e))
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
        Ok(Transfers { memory: None, incoming, outgoing, slots: [slot()?, slot()?, slot()?] })
    }

    /// Errors: `host-allocation-failed`.
    pub(crate) fn take(&mut self, gpu: &Gpu, bytes: Bytes) -> Result<()> {
        self.memory = Some(Pinned::new(gpu, bytes.0 as usize)?);
        Ok(())
    }

    /// The address of an offloaded buffer, the same on the host and on the card.
    pub(crate) fn address(&self, buf: Buf<'_>) -> u64 {
        let memory = self.memory.as_ref().expect("`take_offloaded` comes before offloaded buffers");
        let end = buf.offset() + buf.len() as u64 * buf.dtype().bytes();
        assert!(end <= memory.len() as u64, "bytes {}..{end} of {} offloaded", buf.offset(), memory.len());
        memory.address() + buf.offset()
    }

    pub(crate) fn wait(&self) -> std::result::Result<(), result::DriverError> {
        [&self.incoming, &self.outgoing].into_iter().try_for_each(|stream| {
            // SAFETY: the stream lives as long as `self`; the caller has bound the context.
            unsafe { result::stream::synchronize(stream.0) }
        })
    }
}

pub(crate) fn begin(dev: &CudaDevice) {
    for slot in &dev.transfers.slots {
        record(dev, &slot.free, dev.gpu.stream);
    }
}

pub(crate) fn bring<'a, 'c>(
    dev: &CudaDevice,
    slot: usize,
    copies: &mut dyn Iterator<Item = Transfer<'a, 'c>>,
) {
    let (stream, slot) = (dev.transfers.incoming.0, &dev.transfers.slots[slot]);
    follow(dev, stream, &slot.free);
    copies.for_each(|transfer| copy(dev, transfer.src, transfer.dst, stream));
    record(dev, &slot.arrived, stream);
}

pub(crate) fn wait(dev: &CudaDevice, slot: usize) {
    follow(dev, dev.gpu.stream, &dev.transfers.slots[slot].arrived);
}

pub(crate) fn send_back<'a, 'c>(
    dev: &CudaDevice,
    slot: usize,
    copies: &mut dyn Iterator<Item = Transfer<'a, 'c>>,
) {
    let (stream, slot) = (dev.transfers.outgoing.0, &dev.transfers.slots[slot]);
    record(dev, &slot.done, dev.gpu.stream);
    follow(dev, stream, &slot.done);
    copies.for_each(|transfer| copy(dev, transfer.src, transfer.dst, stream));
    record(dev, &slot.free, stream);
}

fn copy(dev: &CudaDevice, src: Buf<'_>, dst: Buf<'_>, stream: sys::CUstream) {
    if src.is_empty() || dev.has_failed() {
        return;
    }
    dev.gpu.bind();
    let bytes = src.len() * src.dtype().bytes() as usize;
    let (from, to) = (dev.address(src), dev.address(dst));
    // SAFETY: both ends were checked to lie in the arena or in the page-locked memory, which live as long as the device;
    // events keep operations and other copies off them meanwhile.
    let copied = unsafe {
        match src.is_offloaded() {
            true => sys::cuMemcpyHtoDAsync_v2(to, from as *const _, bytes, stream),
            false => sys::cuMemcpyDtoHAsync_v2(to as *mut _, from, bytes, stream),
        }
    };
    dev.keep(copied.result(), "copying offloaded memory");
}

/// What is on the stream now comes before what waits for the mark.
fn record(dev: &CudaDevice, mark: &Mark, stream: sys::CUstream) {
    if dev.has_failed() {
        return;
    }
    dev.gpu.bind();
    // SAFETY: the event and the stream live as long as the device.
    dev.keep(unsafe { result::event::record(mark.0, stream) }, "ordering copies");
}

/// What comes on the stream from here on waits for the mark.
fn follow(dev: &CudaDevice, stream: sys::CUstream, mark: &Mark) {
    if dev.has_failed() {
        return;
    }
    dev.gpu.bind();
    let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: the event and the stream live as long as the device.
    dev.keep(unsafe { result::stream::wait_event(stream, mark.0, flags) }, "ordering copies");
}
