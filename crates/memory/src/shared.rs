//! A small memory of 64-bit words that several processes read and write at once.

use crate::Mapping;
use plimsoll_base::{Bytes, Error, Result};
use std::fs::File;
use std::sync::atomic::AtomicU64;

/// Makes an in-memory file that other processes of this user may open at `/proc/PID/fd/N`.
///
/// Errors: `host-allocation-failed`.
pub fn shared_file(name: &str) -> Result<File> {
    match rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC) {
        Ok(fd) => Ok(File::from(fd)),
        Err(err) => {
            Err(Error::new("host-allocation-failed", format!("a file in memory for `{name}`: {err}"))
                .hint("check the limit on open files: ulimit -n"))
        }
    }
}

/// A shared in-memory file as atomic words, so no access is a data race.
#[derive(Debug)]
pub struct SharedWords {
    mapping: Mapping,
}

impl SharedWords {
    /// Maps `words` words of an in-memory file and makes it that long. Its contents stay.
    ///
    /// Errors: `host-allocation-failed`.
    pub fn map(file: &File, words: usize) -> Result<SharedWords> {
        Ok(SharedWords { mapping: Mapping::shared_as_it_is(file, Bytes(words as u64 * 8))? })
    }

    pub fn words(&self) -> &[AtomicU64] {
        let len = self.mapping.len() / 8;
        // SAFETY: the mapping is `len` words long, aligned to a page, and lives as long as the slice. Every process
        // uses it through atomics alone.
        unsafe { std::slice::from_raw_parts(self.mapping.base().cast(), len) }
    }
}
