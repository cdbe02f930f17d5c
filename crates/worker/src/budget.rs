//! What all processes of a worker may hold together: memory, and disk in the folder that goes with it. Where the kernel
//! does not hold the limit, the keeper counts.

use crate::folder::{Held, Room};
use crate::procs;
use crate::sandbox::Author;
use plimsoll_base::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a model's program may hold on the disk.
pub(crate) const PROGRAM_ROOM: Room = Room { bytes: 64 << 20, files: 4096 };
/// Processes of a model's program.
pub(crate) const PROGRAM_PROCESSES_MAX: usize = 64;
/// Files in the temporary folder of the user's code; its bytes are bounded by the worker's memory.
const FILES_MAX: u64 = 1 << 17;
/// How often a model's program is looked at, and the user's code.
const PROGRAM_TICK: Duration = Duration::from_millis(20);
const TICK: Duration = Duration::from_millis(250);
/// Looking takes at most this share of the time.
const SHARE: u32 = 10;

/// What a worker held too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Over {
    /// Bytes of memory: (held, limit). What was held is 0 if the kernel counted.
    Memory(u64, u64),
    /// Bytes on the disk: (held, limit).
    Disk(u64, u64),
    /// Files: (held, limit); above 64 folders in each other their number is the largest there is.
    Files(u64, u64),
}

/// The limits of one worker, and when it is looked at next.
pub(crate) struct Budget {
    /// On memory, if the kernel does not hold it.
    memory: Option<u64>,
    folder: Option<PathBuf>,
    room: Room,
    tick: Duration,
    next: Instant,
}

impl Budget {
    /// `memory`: the limit; `is_held`: whether the kernel holds it, by a memory group.
    pub(crate) fn new(author: Author, folder: Option<PathBuf>, memory: u64, is_held: bool) -> Budget {
        let (room, tick) = match author {
            Author::Model => (PROGRAM_ROOM, PROGRAM_TICK),
            Author::User => (Room { bytes: memory, files: FILES_MAX }, TICK),
        };
        Budget { memory: (!is_held).then_some(memory), folder, room, tick, next: Instant::now() + tick }
    }

    /// Returns how long until the next look.
    pub(crate) fn wait(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Looks, if it is time. Returns what there is too much of.
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
        // One process is within its own limit, which is the same.
        let limit = self.memory.filter(|_| pids.len() > 1)?;
        // The sum counts pages that a fork shares once for each process, and is quick. The proportions are exact.
        let exceeds = |held: &Bytes| held.0 > limit;
        let held = Some(procs::own_bytes(pids)).filter(exceeds).map(|_| procs::proportional_bytes(pids));
        held.filter(exceeds).map(|held| Over::Memory(held.0, limit))
    }

    fn disk(&self, pids: &[u32]) -> Option<Over> {
        let folder = self.folder.as_ref()?;
        let mut held = Held::count(folder, self.room);
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
