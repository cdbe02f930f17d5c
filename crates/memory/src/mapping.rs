//! Host mappings: large buffers, unmapped when dropped. They are anonymous, or of a memory file that processes share.

use plimsoll_base::{Bytes, Error, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File;

const HUGE_PAGE: usize = 2 << 20;

/// An anonymous, private, writable mapping, aligned to a huge page and fully touched.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: usize,
    raw: *mut c_void,
    raw_len: usize,
}

// SAFETY: only this value owns the mapping, which is plain memory; the pointer is valid on every thread.
unsafe impl Send for Mapping {}
// SAFETY: sharing a `Mapping` only shares its address; the code that dereferences it must ensure exclusive access.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` zeros, asks for huge pages and touches every page, so resident memory is independent of later data.
    ///
    /// Errors: `host-allocation-failed` when the system refuses.
    pub fn touched(bytes: Bytes) -> Result<Mapping> {
        let len = page_bytes(bytes);
        let raw_len = len + HUGE_PAGE;
        // SAFETY: the kernel chooses the address of a new anonymous mapping, which overlaps no other.
        let mapped = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                raw_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let raw = mapped.map_err(|err| {
            Error::new("host-allocation-failed", format!("mapping {bytes} of host memory: {err}"))
                .hint("lower memory.host, or raise the address-space limit (ulimit -v)")
        })?;
        let base = (raw as usize).next_multiple_of(HUGE_PAGE) as *mut u8;
        let mapping = Mapping { base, len, raw, raw_len };
        // SAFETY: base..base+len is inside the mapping made above; advice never changes its contents.
        // Advice is best effort: without huge pages the run is slower, not wrong.
        let _ = unsafe { madvise(base.cast(), len, Advice::LinuxHugepage) };
        mapping.touch();
        Ok(mapping)
    }

    /// Makes an in-memory file `bytes` long, maps it, and touches every page.
    ///
    /// Errors: `host-allocation-failed` when the system refuses.
    pub fn shared(file: &File, bytes: Bytes) -> Result<Mapping> {
        let len = page_bytes(bytes);
        file.set_len(len as u64).map_err(|err| refused(bytes, &err))?;
        let mapping = Mapping::of_file(file, len, ProtFlags::READ | ProtFlags::WRITE)?;
        mapping.touch();
        Ok(mapping)
    }

    /// Maps an in-memory file in use by other processes: makes it `bytes` long, but touches no page.
    pub(crate) fn shared_as_it_is(file: &File, bytes: Bytes) -> Result<Mapping> {
        let len = page_bytes(bytes);
        file.set_len(len as u64).map_err(|err| refused(bytes, &err))?;
        Mapping::of_file(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps another process's shared file of `bytes` bytes for reading. A write through it would fault.
    ///
    /// Errors: `host-allocation-failed` when the system refuses, or the file is shorter.
    pub fn of_another(file: &File, bytes: Bytes) -> Result<Mapping> {
        let len = page_bytes(bytes);
        let there = file.metadata().map_err(|err| refused(bytes, &err))?.len();
        if there < len as u64 {
            return Err(refused(bytes, &format!("the other process shares {}", Bytes(there))));
        }
        Mapping::of_file(file, len, ProtFlags::READ)
    }

    fn of_file(file: &File, len: usize, access: ProtFlags) -> Result<Mapping> {
        // SAFETY: the kernel chooses the address of a new mapping, which overlaps no other.
        let mapped = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) };
        let raw = mapped.map_err(|err| refused(Bytes(len as u64), &err))?;
        Ok(Mapping { base: raw.cast(), len, raw, raw_len: len })
    }

    /// Returns the first byte, aligned to 2 MiB; of a shared mapping, aligned to a page.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the usable bytes: the request rounded up to a page.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    fn touch(&self) {
        for offset in (0..self.len).step_by(4096) {
            // SAFETY: offset is below len, and the address is not shared yet. Volatile, or it would be optimised away.
            unsafe { self.base.add(offset).write_volatile(0) };
        }
    }
}

fn page_bytes(bytes: Bytes) -> usize {
    (bytes.0 as usize).next_multiple_of(4096).max(4096)
}

fn refused(bytes: Bytes, err: &dyn std::fmt::Display) -> Error {
    Error::new("host-allocation-failed", format!("sharing {bytes} of host memory: {err}"))
        .hint("lower memory.host, or raise the container's limit: shared memory counts in it")
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mmap returned raw and raw_len; no handle outlives the device that owns this value.
        let _ = unsafe { munmap(self.raw, self.raw_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_aligned_zeroed_and_resident() {
        let mapping = Mapping::touched(Bytes::mib(8)).unwrap();
        assert_eq!(mapping.base() as usize % HUGE_PAGE, 0);
        assert_eq!(mapping.len(), 8 << 20);
        // SAFETY: the mapping is len bytes long and only this test uses it.
        let bytes = unsafe { std::slice::from_raw_parts(mapping.base(), mapping.len()) };
        assert!(bytes.iter().all(|&b| b == 0));
    }

    #[test]
    fn an_absurd_size_is_a_named_error() {
        assert_eq!(Mapping::touched(Bytes(1 << 62)).unwrap_err().slug, "host-allocation-failed");
    }
}
