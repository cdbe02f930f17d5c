//! Resident memory of a process, by kind.

use super::parse::kib_field;
use plimsoll_base::Bytes;
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Resident memory of a process by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rss {
    /// Now.
    pub now: Bytes,
    /// Highest since the process started.
    pub peak: Bytes,
    /// Anonymous pages.
    pub anon: Bytes,
    /// Pages of files: the binary and its libraries.
    pub file: Bytes,
    /// Shared memory.
    pub shmem: Bytes,
}

impl Rss {
    /// Reads a /proc/PID/status; what it does not say is 0.
    pub fn parse(status: &str) -> Rss {
        let field = |name: &str| Bytes(kib_field(status, name).unwrap_or(0));
        Rss {
            now: field("VmRSS:"),
            peak: field("VmHWM:"),
            anon: field("RssAnon:"),
            file: field("RssFile:"),
            shmem: field("RssShmem:"),
        }
    }
}

/// Bytes of a /proc/self/status: about 1.5 KiB, more with many CPUs.
const STATUS_BYTES: usize = 16 << 10;

/// Reads this process's memory again and again, through one open file and one buffer.
#[derive(Debug)]
pub struct RssReader {
    file: Option<File>,
    buffer: Vec<u8>,
}

impl RssReader {
    /// For this process. Without /proc every reading is 0.
    pub fn new() -> RssReader {
        RssReader { file: File::open("/proc/self/status").ok(), buffer: vec![0; STATUS_BYTES] }
    }

    /// Now.
    pub fn read(&mut self) -> Rss {
        let Some(file) = &self.file else { return Rss::default() };
        let length = file.read_at(&mut self.buffer, 0).unwrap_or(0);
        std::str::from_utf8(&self.buffer[..length]).map_or_else(|_| Rss::default(), Rss::parse)
    }
}

impl Default for RssReader {
    fn default() -> Self {
        RssReader::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_this_process_grow() {
        let mut reader = RssReader::new();
        let before = reader.read();
        let held = vec![1u8; 8 << 20];
        let after = reader.read();
        assert!(after.anon.0 >= before.anon.0 + (7 << 20), "{before:?} {after:?} {}", held[4096]);
        assert!(after.peak >= after.now && after.file > Bytes(0));
    }
}
