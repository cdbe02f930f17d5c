//! Collects what a process knows of its host without measuring: limits and shared memory.

use plimsoll_base::Bytes;
use plimsoll_memory::host::parse::{Value, rlimit};
use serde::{Deserialize, Serialize};
use std::fs;

/// The soft limits of a process; `None` if there is no limit, or it cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub open_files: Option<u64>,
    pub processes: Option<u64>,
    pub locked_bytes: Option<u64>,
}

/// The file system of shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SharedMemory {
    pub bytes: Option<u64>,
    pub free_bytes: Option<u64>,
}

impl Limits {
    pub(crate) fn of_this_process() -> Limits {
        let text = fs::read_to_string("/proc/self/limits").ok();
        let value = |key: &str| match rlimit(text.as_deref(), key) {
            Value::Count(count) => Some(count),
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        };
        Limits {
            open_files: value("Max open files"),
            processes: value("Max processes"),
            locked_bytes: value("Max locked memory"),
        }
    }
}

impl SharedMemory {
    pub(crate) fn of_this_host() -> SharedMemory {
        let stat = rustix::fs::statvfs("/dev/shm").ok();
        let bytes = |blocks: u64, size: u64| blocks.saturating_mul(size);
        SharedMemory {
            bytes: stat.as_ref().map(|stat| bytes(stat.f_blocks, stat.f_frsize)),
            free_bytes: stat.as_ref().map(|stat| bytes(stat.f_bavail, stat.f_frsize)),
        }
    }

    /// Returns `11.6 GiB, 11.5 GiB free`.
    pub fn words(&self) -> String {
        match (self.bytes, self.free_bytes) {
            (Some(bytes), Some(free)) => format!("{}, {} free", Bytes(bytes), Bytes(free)),
            _ => "none".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_limits() {
        assert!(Limits::of_this_process().open_files.is_none_or(|count| count > 0));
        let SharedMemory { bytes, free_bytes } = SharedMemory::of_this_host();
        assert!(bytes >= free_bytes);
    }
}
