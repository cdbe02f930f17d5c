//! Memory shared by a worker and its parent: a sealed memfd, mapped.
//!
//! The other side may write at any time, so no reference into it is lent: bytes are copied out, then validated.

use plimsoll_base::{Bytes, Error, Result};
use plimsoll_memory::host::Host;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::OwnedFd;

/// A mapping shared with one worker.
#[derive(Debug)]
pub struct SharedMemory {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: a mapping is plain memory at an address that is valid on every thread; only this value unmaps it.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// Maps `bytes` zeros, allocated at once. The descriptor is for the worker. The size is sealed: no access past it.
    ///
    /// Errors: `env-shared-memory-full`, checked first: a full kernel kills a process instead of refusing a page.
    pub fn new(bytes: Bytes) -> Result<(SharedMemory, OwnedFd)> {
        let full = |why: String| {
            Error::new("env-shared-memory-full", format!("{bytes} of shared memory for one worker: {why}"))
                .hint("lower `num_envs`, or observations may be smaller: fewer elements, or uint8 instead of float32")
        };
        let no_room = |err: rustix::io::Errno| full(err.to_string());
        if let Some(limit) = Host::this().memory_limit().filter(|limit| bytes > limit.bytes) {
            return Err(full(format!("{} are left ({})", limit.bytes, limit.source)));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("plimsoll-env-slots", flags).map_err(no_room)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes.0).map_err(no_room)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(no_room)?;
        let length = bytes.0 as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of a new mapping, which overlaps no other.
        let mapped = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &fd, 0) };
        Ok((SharedMemory { base: mapped.map_err(no_room)?.cast(), bytes: length }, fd))
    }

    /// Copies `from` to `offset`.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        // SAFETY: the range is inside the mapping (asserted), which cannot shrink; `from` is not shared: no overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.base.add(offset), from.len()) };
    }

    /// Copies the current bytes at `offset` to `to`.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        // SAFETY: the range is inside the mapping (asserted), which cannot shrink, and every byte value is valid.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(offset), to.as_mut_ptr(), to.len()) };
    }

    fn check(&self, offset: usize, length: usize) {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.bytes), "{offset} + {length} of {} bytes", self.bytes);
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mmap returned base and bytes, and no reference into the mapping was ever lent.
        let _ = unsafe { munmap(self.base.cast::<c_void>(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_same_bytes_and_neither_can_resize() {
        let (memory, fd) = SharedMemory::new(Bytes(5000)).unwrap();
        memory.write(4990, b"0123456789");
        let mut other = [0; 10];
        assert_eq!(rustix::io::pread(&fd, &mut other, 4990), Ok(10));
        assert_eq!(&other, b"0123456789");
        rustix::io::pwrite(&fd, b"x", 4999).unwrap();
        memory.read(4999, &mut other[..1]);
        assert_eq!(other[0], b'x');
        assert!(rustix::fs::ftruncate(&fd, 100).is_err() && rustix::fs::ftruncate(&fd, 9000).is_err());
    }

    #[test]
    fn more_than_there_is_is_a_named_error() {
        let error = SharedMemory::new(Bytes(1 << 60)).unwrap_err();
        assert_eq!(error.slug, "env-shared-memory-full", "{error}");
        assert!(error.message.contains("are left"), "refused before any of it is taken: {error}");
    }
}
