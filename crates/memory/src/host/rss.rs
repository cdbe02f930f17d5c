//! Resident memory of a process, by kind.

use super::parse::kib_field;
use plimsoll_base::Bytes;
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Resident memory of a process by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rss {
    pub now: Bytes,
    /// Highest since the process started.
    pub peak: Bytes,
    pub anon: Bytes,
    /// Pages of files: the binary and its libraries.
    pub file: Bytes,
    pub shmem: Bytes,
}

impl Rss {
    /// Returns the growth since `before`, by kind.
    pub fn since(self, before: Rss) -> Rss {
        let grown = |now: Bytes, then: Bytes| Bytes(now.0.saturating_sub(then.0));
        Rss {
            now: grown(self.now, before.now),
            peak: grown(self.peak, before.peak),
            anon: grown(self.anon, before.anon),
            file: grown(self.file, before.file),
            shmem: grown(self.shmem, before.shmem),
        }
    }

    /// Parses a /proc/PID/status; missing values are 0.
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

/// Reads this process's memory repeatedly, through open files and one buffer.
#[derive(Debug)]
pub struct RssReader {
    status: Option<File>,
    statm: Option<File>,
    buffer: Vec<u8>,
}

impl RssReader {
    /// Opens the files of this process. Without /proc every reading is 0.
    pub fn new() -> RssReader {
        let open = |name: &str| File::open(format!("/proc/self/{name}")).ok();
        RssReader { status: open("status"), statm: open("statm"), buffer: vec![0; STATUS_BYTES] }
    }

    pub fn read(&mut self) -> Rss {
        let Some(file) = &self.status else { return Rss::default() };
        let length = file.read_at(&mut self.buffer, 0).unwrap_or(0);
        std::str::from_utf8(&self.buffer[..length]).map_or_else(|_| Rss::default(), Rss::parse)
    }

    /// Reads again at a tenth of the cost: assumes that shared memory is as in `last`, and the peak no lower.
    pub fn read_again(&mut self, last: &Rss) -> Rss {
        let Some(file) = &self.statm else { return self.read() };
        let length = file.read_at(&mut self.buffer, 0).unwrap_or(0);
        let text = std::str::from_utf8(&self.buffer[..length]).unwrap_or_default();
        let page = rustix::param::page_size() as u64;
        let mut pages = text.split_ascii_whitespace().skip(1).map_while(|n| n.parse::<u64>().ok());
        let (Some(now), Some(shared)) = (pages.next(), pages.next()) else { return self.read() };
        let (now, shared) = (Bytes(now * page), Bytes(shared * page));
        Rss {
            now,
            peak: last.peak.max(now),
            anon: Bytes(now.0.saturating_sub(shared.0)),
            file: Bytes(shared.0.saturating_sub(last.shmem.0)),
            shmem: last.shmem,
        }
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
        let again = reader.read_again(&after);
        assert!(again.now.0.abs_diff(after.now.0) < 1 << 20, "{again:?} {after:?}");
        assert!(again.anon.0.abs_diff(after.anon.0) < 1 << 20 && again.shmem == after.shmem, "{again:?}");
        assert_eq!(again.anon + again.file + again.shmem, again.now);
    }
}
