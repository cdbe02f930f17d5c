//! Limits on all of a worker's processes: memory, and disk in its folder. The keeper counts where the kernel does not.

use crate::folder::{FolderUsage, Room};
use crate::procs;
use crate::sandbox::Author;
use plimsoll_base::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Disk space of a model's program.
pub(crate) const PROGRAM_ROOM: Room = Room { bytes: 64 << 20, files: 4096 };
/// Most processes of a model's program.
pub(crate) const PROGRAM_PROCESSES_MAX: usize = 64;
/// Most files in the temporary folder of the user's code; the worker's memory limit bounds its bytes.
const FILES_MAX: u64 = 1 << 17;
/// How often a model's program is checked, and the user's code.
const PROGRAM_TICK: Duration = Duration::from_millis(20);
const TICK: Duration = Duration::from_millis(250);
/// Checks take at most 1 / `SHARE` of the time.
const SHARE: u32 = 10;

/// A limit that a worker exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Over {
    /// Bytes of memory: (held, limit); held is 0 if the kernel counted.
    Memory(u64, u64),
    /// Bytes on the disk: (held, limit).
    Disk(u64, u64),
    /// Files: (held, limit); held is the largest number if folders are nested more than 64 deep.
    Files(u64, u64),
}

/// The limits of one worker, and when it is next checked.
pub(crate) struct Budget {
    /// Memory limit, unless the kernel enforces it.
    memory: Option<u64>,
    folder: Option<PathBuf>,
    room: Room,
    tick: Duration,
    next: Instant,
}

impl Budget {
    /// `memory`: the limit; `is_held`: true if a memory group makes the kernel enforce it.
    pub(crate) fn new(author: Author, folder: Option<PathBuf>, memory: u64, is_held: bool) -> Budget {
        let (room, tick) = match author {
            Author::Model => (PROGRAM_ROOM, PROGRAM_TICK),
            Author::User => (Room { bytes: memory, files: FILES_MAX }, TICK),
        };
        Budget { memory: (!is_held).then_some(memory), folder, room, tick, next: Instant::now() + tick }
    }

    /// Returns the time until the next check.
    pub(crate) fn wait(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Checks if it is time. Returns the limit that is exceeded.
    pub(crate) fn look(&mut self) -> Option<Over> {
        let start = Instant::now();
        if start < self.next {
            return None;
        }
        let pids = procs::descendants();
        let over = self.memory(&pids).or_else(|| self.disk(&pids));
        self.next = Instant::now() + self.tick.max(start.elapsed() * SHARE);
        over
    }

    fn memory(&self, pids: &[u32]) -> Option<Over> {
        // One process alone is under its own limit, which is the same.
        let limit = self.memory.filter(|_| pids.len() > 1)?;
        // This sum is quick but counts shared pages once per process; the proportional sum is exact.
        let exceeds = |held: &Bytes| held.0 > limit;
        let held = Some(procs::own_bytes(pids)).filter(exceeds).map(|_| procs::proportional_bytes(pids));
        held.filter(exceeds).map(|held| Over::Memory(held.0, limit))
    }

    fn disk(&self, pids: &[u32]) -> Option<Over> {
        let folder = self.folder.as_ref()?;
        let mut held = FolderUsage::count(folder, self.room);
        held.add_removed(folder, pids);
        match () {
            () if held.files > self.room.files => Some(Over::Files(held.files, self.room.files)),
            () if held.bytes > self.room.bytes => Some(Over::Disk(held.bytes, self.room.bytes)),
            () => None,
        }
    }
}

impl fmt::Display for Over {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Over::Memory(0, limit) => write!(out, "all of its {} of memory", Bytes(limit)),
            Over::Memory(held, limit) => {
                write!(out, "{} of memory in all its processes, of {}", Bytes(held), Bytes(limit))
            }
            Over::Disk(held, limit) => {
                write!(out, "{} in its temporary folder, of {}", Bytes(held), Bytes(limit))
            }
            Over::Files(u64::MAX, _) => write!(out, "folders in folders without end"),
            Over::Files(held, limit) => write!(out, "{held} files in its temporary folder, of {limit}"),
        }
    }
}
