//! Copies during the operations: between arena and offloaded regions (page-locked host memory), and from others'
//! arenas.
//!
//! Copies in and copies out have a stream each, so that both directions of the bus work at once. A slot is free when
//! the operations that read it have ended and its copies out have; both are events, so the host never waits.

use super::CudaDevice;
use super::driver::Mark;
use cudarc::driver::{result, sys};
use plimsoll_device::Transfer;
use plimsoll_memory::Buf;

pub(crate) fn begin(dev: &CudaDevice) {
    for slot in &dev.transfers.slots {
        dev.record(&slot.free, dev.gpu.stream);
    }
}

pub(crate) fn bring<'a, 'c>(
    dev: &CudaDevice,
    slot: usize,
    copies: &mut dyn Iterator<Item = Transfer<'a, 'c>>,
) {
    let (stream, slot) = (dev.transfers.incoming.0, &dev.transfers.slots[slot]);
    dev.follow(stream, &slot.free);
    copies.for_each(|transfer| copy(dev, transfer.src, transfer.dst, stream));
    dev.record(&slot.arrived, stream);
}

pub(crate) fn wait(dev: &CudaDevice, slot: usize) {
    dev.follow(dev.gpu.stream, &dev.transfers.slots[slot].arrived);
}

pub(crate) fn send_back<'a, 'c>(
    dev: &CudaDevice,
    slot: usize,
    copies: &mut dyn Iterator<Item = Transfer<'a, 'c>>,
) {
    let (stream, slot) = (dev.transfers.outgoing.0, &dev.transfers.slots[slot]);
    dev.record(&slot.done, dev.gpu.stream);
    dev.follow(stream, &slot.done);
    copies.for_each(|transfer| copy(dev, transfer.src, transfer.dst, stream));
    dev.record(&slot.free, stream);
}

fn copy(dev: &CudaDevice, src: Buf<'_>, dst: Buf<'_>, stream: sys::CUstream) {
    if src.is_empty() || dev.has_failed() {
        return;
    }
    dev.gpu.bind();
    let bytes = src.len() * src.dtype().bytes() as usize;
    if let Some(from) = dev.far_away(src) {
        return dev.copy_far(from, dev.address(dst), bytes as u64, stream);
    }
    let (from, to) = (dev.address(src), dev.address(dst));
    // SAFETY: both ends were checked to lie in an arena or in the page-locked memory, which live as long as the device;
    // events keep operations and other copies off them meanwhile.
    let copied = unsafe {
        match (src.is_offloaded(), dst.is_offloaded()) {
            (true, _) => sys::cuMemcpyHtoDAsync_v2(to, from as *const _, bytes, stream),
            (false, true) => sys::cuMemcpyDtoHAsync_v2(to as *mut _, from, bytes, stream),
            (false, false) => sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream),
        }
    };
    dev.keep(copied.result(), "copying weights or states");
}

impl CudaDevice {
    /// Sets the mark after all that is on the stream now.
    pub(crate) fn record(&self, mark: &Mark, stream: sys::CUstream) {
        if self.has_failed() {
            return;
        }
        self.gpu.bind();
        // SAFETY: the event and the stream live as long as the device.
        self.keep(unsafe { result::event::record(mark.0, stream) }, "ordering copies");
    }

    /// Makes all that the stream gets from here on wait for the mark.
    pub(crate) fn follow(&self, stream: sys::CUstream, mark: &Mark) {
        if self.has_failed() {
            return;
        }
        self.gpu.bind();
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event and the stream live as long as the device.
        self.keep(unsafe { result::stream::wait_event(stream, mark.0, flags) }, "ordering copies");
    }
}
