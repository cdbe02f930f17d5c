//! A copy of parts of another process's memory, for processes on different hosts.

use crate::{Mapping, shared_file};
use plimsoll_base::{Bytes, Error, Result};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::ops::Range;

/// An in-memory file into which parts of another process's memory are copied, in place. Only those parts have pages.
#[derive(Debug)]
pub struct Mirror {
    file: File,
    bytes: Bytes,
    mapping: Mapping,
}

impl Mirror {
    /// Makes a mirror of `bytes` bytes.
    ///
    /// Errors: `host-allocation-failed`.
    pub fn new(name: &str, bytes: Bytes) -> Result<Mirror> {
        let file = shared_file(name)?;
        let mapping = Mapping::shared_as_it_is(&file, bytes)?;
        Ok(Mirror { file, bytes, mapping })
    }

    /// Maps the mirror for reading.
    ///
    /// Errors: `host-allocation-failed`.
    pub fn view(&self) -> Result<Mapping> {
        Mapping::of_another(&self.file, self.bytes)
    }

    /// Frees all its pages: it holds zeros again.
    ///
    /// Errors: `host-allocation-failed` when the system refuses.
    pub fn clear(&mut self) -> Result<()> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, how, 0, self.mapping.len() as u64).map_err(|err| {
            Error::new("host-allocation-failed", format!("giving back memory of {}: {err}", self.bytes))
        })
    }

    /// Returns bytes to write copies to. Readers of a view must not read them meanwhile. Panics beyond the end.
    pub fn part(&mut self, range: Range<u64>) -> &mut [u8] {
        let (start, len) = (range.start as usize, (range.end - range.start) as usize);
        assert!(start + len <= self.mapping.len(), "bytes {range:?} of {}", self.bytes);
        // SAFETY: inside the mapping by the assertion, and `&mut self` excludes another slice of it. Views are other
        // mappings: devices read only what has been brought there, and nothing is brought twice while it may be read.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base().add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_view_shows_what_was_copied() {
        let mut mirror = Mirror::new("plimsoll-test", Bytes::mib(8)).unwrap();
        let view = mirror.view().unwrap();
        mirror.part(5_000_000..5_000_003).copy_from_slice(&[1, 2, 3]);
        // SAFETY: the mapping is len bytes long and only this test uses it.
        let bytes = unsafe { std::slice::from_raw_parts(view.base(), view.len()) };
        assert_eq!((&bytes[4_999_999..5_000_004], bytes.len()), (&[0, 1, 2, 3, 0][..], 8 << 20));
        let kept = |mirror: &Mirror| mirror.file.metadata().map(|it| it.blocks()).unwrap();
        assert!((1..=4096).contains(&kept(&mirror)), "{} blocks", kept(&mirror));
        mirror.clear().unwrap();
        assert_eq!((kept(&mirror), bytes[5_000_000]), (0, 0));
        mirror.part(0..1)[0] = 7;
        assert_eq!(bytes[0], 7);
    }
}
