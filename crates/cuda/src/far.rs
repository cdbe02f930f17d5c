//! Ranks of other hosts: their cards' memory comes over the network into host memory, and from there through
//! page-locked memory onto this card; and a thread shows them what they ask of this one's.

use super::driver::{self, Gpu, Mark, Pinned};
use cudarc::driver::result;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_memory::Mapping;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of each of two parts of memory between host and card: one is filled while the card takes the other.
pub(crate) const PART_BYTES: usize = 4 << 20;
/// Bytes shown at once: more than a connection takes.
pub(crate) const SHOWN_BYTES: usize = 512 << 10;

/// Page-locked host memory that a rank takes to exchange with ranks of other hosts.
pub const FAR_BYTES: Bytes = Bytes((2 * PART_BYTES + SHOWN_BYTES) as u64);

/// The memory of ranks on other hosts.
#[derive(Debug)]
pub(crate) struct Far {
    /// Copies of their arenas, by rank, as far as they were brought; none for ranks of this host.
    pub(crate) views: Vec<Option<Mapping>>,
    pub(crate) staging: Mutex<Staging>,
}

#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) parts: [Pinned; 2],
    /// The card has taken a part.
    pub(crate) taken: [Mark; 2],
    pub(crate) turn: usize,
}

/// An arena that another thread reads.
#[derive(Debug)]
pub struct ShownArena {
    /// Address of the arena, until its device is gone.
    pub(crate) arena: Arc<Mutex<Option<u64>>>,
    pub(crate) bytes: u64,
    // Dropped before the context that it belongs to.
    pub(crate) memory: Pinned,
    pub(crate) gpu: Gpu,
}

impl ShownArena {
    /// Returns bytes from `at` on: at least one, at most `len`.
    ///
    /// Errors: `cuda-failed`, which every read is once the device is gone.
    pub fn read(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        let arena = lock(&self.arena);
        let len = len.min(self.memory.len());
        let inside = at.checked_add(len as u64).is_some_and(|end| end <= self.bytes);
        let Some(arena) = arena.filter(|_| inside && len > 0) else {
            return Err(Error::new("cuda-failed", format!("{len} bytes at {at} of the arena are not there")));
        };
        self.gpu.bind();
        // SAFETY: inside the arena, which is not freed while its address is locked; the wait precedes use of the bytes.
        let read = unsafe {
            result::memcpy_dtoh_async(&mut self.memory.bytes()[..len], arena + at, self.gpu.stream)
        };
        read.and_then(|()| self.gpu.wait()).map_err(|err| driver::failed("reading for another host", err))?;
        Ok(&self.memory[..len])
    }
}

/// Locks; nothing under these locks leaves them half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
