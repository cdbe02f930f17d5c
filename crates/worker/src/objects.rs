//! System V objects of a worker: shared memory, semaphores and message queues. They belong to no process and outlive
//! all, so the keeper creates them for the worker and removes them when it has ended.

use crate::notify::Answer;
use std::io::Error;

// SAFETY: these are the C library's declarations.
unsafe extern "C" {
    fn shmget(key: i32, size: usize, flags: i32) -> i32;
    fn semget(key: i32, count: i32, flags: i32) -> i32;
    fn msgget(key: i32, flags: i32) -> i32;
    fn shmctl(id: i32, command: i32, buffer: usize) -> i32;
    fn semctl(id: i32, number: i32, command: i32, ...) -> i32;
    fn msgctl(id: i32, command: i32, buffer: usize) -> i32;
}

const PRIVATE: i32 = 0;
const CREATE: i32 = 0o1000;
const EXCLUSIVE: i32 = 0o2000;
const REMOVE: i32 = 0;
const ENOENT: i32 = 2;
const ENOMEM: i32 = 12;
const ENOSPC: i32 = 28;
/// Most objects of one worker.
const OBJECTS_MAX: usize = 1024;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Memory,
    Semaphores,
    Queue,
}

/// The objects created for one worker, removed on drop.
#[derive(Debug)]
pub(crate) struct Objects {
    made: Vec<(Kind, i32)>,
    /// Bytes of shared memory that may still be created.
    bytes_left: usize,
}

impl Objects {
    pub(crate) fn new(bytes_max: u64) -> Objects {
        Objects { made: Vec::new(), bytes_left: usize::try_from(bytes_max).unwrap_or(usize::MAX) }
    }

    pub(crate) fn shared_memory(&mut self, key: i32, size: usize, flags: i32) -> Answer {
        let (before, left) = (self.made.len(), self.bytes_left);
        let answer = self.get(Kind::Memory, key, flags, |flags| {
            if flags & CREATE != 0 && size > left {
                Err(ENOMEM)
            } else {
                // SAFETY: the call takes numbers and accesses no memory of this process.
                made(unsafe { shmget(key, size, flags) })
            }
        });
        self.bytes_left -= if self.made.len() > before { size } else { 0 };
        answer
    }

    pub(crate) fn semaphores(&mut self, key: i32, count: i32, flags: i32) -> Answer {
        // SAFETY: as in `shared_memory`.
        self.get(Kind::Semaphores, key, flags, |flags| made(unsafe { semget(key, count, flags) }))
    }

    pub(crate) fn queue(&mut self, key: i32, flags: i32) -> Answer {
        // SAFETY: as in `shared_memory`.
        self.get(Kind::Queue, key, flags, |flags| made(unsafe { msgget(key, flags) }))
    }

    /// Finds the object of `key`, or creates and records it as `flags` say.
    fn get(&mut self, kind: Kind, key: i32, flags: i32, call: impl Fn(i32) -> Result<i32, i32>) -> Answer {
        let is_new = key == PRIVATE || flags & (CREATE | EXCLUSIVE) == CREATE | EXCLUSIVE;
        if !is_new {
            match call(flags & !(CREATE | EXCLUSIVE)) {
                Ok(id) => return Answer::Value(i64::from(id)),
                Err(ENOENT) if flags & CREATE != 0 => {}
                Err(error) => return Answer::Fail(error),
            }
        }
        if self.made.len() >= OBJECTS_MAX {
            return Answer::Fail(ENOSPC);
        }
        // Exclusive, so that an object another process creates now is not taken for this worker's.
        match call(flags | CREATE | EXCLUSIVE) {
            Ok(id) => {
                self.made.push((kind, id));
                Answer::Value(i64::from(id))
            }
            Err(error) => Answer::Fail(error),
        }
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        for &(kind, id) in &self.made {
            // Fails if the worker has removed it.
            // SAFETY: to remove, the calls take numbers and access no memory of this process.
            unsafe {
                match kind {
                    Kind::Memory => shmctl(id, REMOVE, 0),
                    Kind::Semaphores => semctl(id, 0, REMOVE),
                    Kind::Queue => msgctl(id, REMOVE, 0),
                }
            };
        }
    }
}

/// Reads the result of a call: an id, or -1 with an error number.
fn made(id: i32) -> Result<i32, i32> {
    if id < 0 { Err(Error::last_os_error().raw_os_error().unwrap_or(ENOSPC)) } else { Ok(id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(id: i64) -> bool {
        let list = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
        list.lines().any(|line| line.split_ascii_whitespace().nth(1) == Some(&id.to_string()))
    }

    #[test]
    fn what_was_made_is_removed_and_what_was_found_is_not() {
        let (mut mine, mut other) = (Objects::new(8192), Objects::new(8192));
        let key = 0x5057_0000 | (std::process::id() & 0xffff) as i32;
        assert_eq!(mine.shared_memory(key, 4096, 0o600), Answer::Fail(ENOENT));
        let Answer::Value(id) = mine.shared_memory(key, 4096, 0o600 | CREATE) else {
            eprintln!("skipped: no System V shared memory here");
            return;
        };
        assert_eq!(other.shared_memory(key, 4096, 0o600 | CREATE), Answer::Value(id));
        assert!(matches!(other.shared_memory(key, 4096, CREATE | EXCLUSIVE), Answer::Fail(_)));
        drop(other);
        assert!(listed(id));
        for made in [mine.semaphores(PRIVATE, 1, 0o600 | CREATE), mine.queue(PRIVATE, 0o600 | CREATE)] {
            assert!(matches!(made, Answer::Value(_)), "{made:?}");
        }
        assert_eq!((mine.made.len(), mine.bytes_left), (3, 4096));
        assert_eq!(mine.shared_memory(PRIVATE, 4097, CREATE), Answer::Fail(ENOMEM));
        drop(mine);
        assert!(!listed(id));
    }
}
