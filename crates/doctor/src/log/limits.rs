//! Limits on reading: a log may be a stream without an end, or unpack to one. Counts bytes, not time: the same logs
//! give the same answer on an idle and on a busy machine.

use plimsoll_base::Bytes;
use std::time::Duration;

/// Longest line. Progress bars without line ends have carriage returns.
pub const LINE_BYTES_MAX: u64 = 1 << 30;
/// Bytes to read of a stream that is mostly not text.
pub const BINARY_BYTES_MAX: u64 = 256 << 20;
/// Share of the limit, one part in 8, kept for the end of a file that is larger than the limit.
const TAIL_PARTS: u64 = 8;

/// Limits of `diagnose`. The logs of a week fit; a stream without an end does not.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of text, after unpacking.
    pub bytes: u64,
    /// Total time that pipes may pause.
    pub pauses: Duration,
}

impl Default for Limits {
    /// At 0.3 GB/s, 16 GiB take a minute.
    fn default() -> Limits {
        Limits { bytes: 16 << 30, pauses: Duration::from_secs(120) }
    }
}

impl Limits {
    /// Returns the bytes to read at a file's end if it is larger than the limit.
    pub fn tail_bytes(&self) -> u64 {
        self.bytes / TAIL_PARTS
    }
}

#[derive(Debug)]
pub struct Budget {
    limits: Limits,
    left: u64,
}

impl Budget {
    pub fn new(limits: Limits) -> Budget {
        Budget { limits, left: limits.bytes }
    }

    /// Returns why reading stops; `None` while the limit is not reached.
    pub fn spent(&self) -> Option<String> {
        let bytes = Bytes(self.limits.bytes);
        (self.left == 0).then(|| format!("cut after {bytes} of text (--bytes-max), the rest was not read"))
    }

    /// Returns how many of `bytes` may be read at once.
    pub fn room(&self, bytes: usize) -> usize {
        bytes.min(usize::try_from(self.left).unwrap_or(usize::MAX))
    }

    pub fn take(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes as u64);
    }
}
