//! How much is read, and for how long: a log may be a stream without an end, or unpack to one.

use plimsoll_base::Bytes;
use std::time::{Duration, Instant};

/// The most that `diagnose` reads. The logs of a week fit; a stream without an end does not.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of text, after unpacking.
    pub bytes: u64,
    pub time: Duration,
}

impl Default for Limits {
    /// At 1 GB/s, 64 GiB take half of the time.
    fn default() -> Limits {
        Limits { bytes: 64 << 30, time: Duration::from_secs(120) }
    }
}

/// What is left of the limits.
#[derive(Debug)]
pub struct Budget {
    limits: Limits,
    left: u64,
    /// The end of the time.
    pub until: Instant,
}

impl Budget {
    pub fn new(limits: Limits) -> Budget {
        Budget { limits, left: limits.bytes, until: Instant::now() + limits.time }
    }

    /// Returns why nothing more is read, or `None` while both limits leave something.
    pub fn spent(&self) -> Option<String> {
        let Limits { bytes, time } = self.limits;
        if self.left == 0 {
            return Some(format!("cut after {} of text (--bytes-max), the rest was not read", Bytes(bytes)));
        }
        let is_late = Instant::now() >= self.until;
        is_late.then(|| format!("cut after {} s (--seconds-max), the rest was not read", time.as_secs()))
    }

    /// Returns how much of `bytes` may be read at once.
    pub fn room(&self, bytes: usize) -> usize {
        bytes.min(usize::try_from(self.left).unwrap_or(usize::MAX))
    }

    pub fn take(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes as u64);
    }
}
