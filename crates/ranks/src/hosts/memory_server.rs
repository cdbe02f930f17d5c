//! A thread that serves reads of this rank's memory to ranks of other hosts. The kernel sends a file in memory without
//! a copy in this process; a card's memory comes through its device.

use super::dial::Callers;
use super::{AddressBook, Caller};
use crate::errors::lost;
use crate::message::Way;
use plimsoll_base::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::sendfile;
use rustix::io::Errno;
use std::fmt::Debug;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::thread;

/// A request: offset in the memory, then number of bytes.
const REQUEST_BYTES: usize = 16;
/// In place of an offset: the request is for the number that the rank has posted.
pub(super) const POSTED: u64 = u64::MAX;
pub(super) const POSTED_BYTES: usize = 8;
/// Connections served at once; more are refused.
const GUESTS_MAX: usize = 4096;
/// Bytes sent to one guest before the next has its turn.
const TURN_BYTES: usize = 1 << 20;
const STACK_BYTES: usize = 256 << 10;

/// A rank's memory that is not a file.
pub trait Shown: Debug + Send {
    /// Returns bytes starting at `at`, all within the memory: at least one, at most `len`.
    ///
    /// Errors: why they cannot be read, also once the device is gone.
    fn read(&mut self, at: u64, len: usize) -> Result<&[u8]>;
}

/// A rank's memory, as ranks of other hosts read it.
#[derive(Debug)]
pub enum Memory {
    /// A file in memory.
    File(File),
    Shown(Box<dyn Shown>),
}

/// Returns the number that a rank has posted last.
pub(crate) type ReadPosted = Box<dyn Fn() -> u64 + Send>;

/// The network's failure that ended a guest's connection, if one did.
type Failed = Arc<OnceLock<Error>>;

/// A handle that ends the thread when dropped.
#[derive(Debug)]
pub(crate) struct MemoryServer {
    wake: UnixStream,
    failed: Failed,
    thread: Option<thread::JoinHandle<()>>,
}

impl MemoryServer {
    /// Starts the thread over `bytes` bytes of `memory`, and a number, which ranks of this host read directly.
    ///
    /// Errors: `thread-not-started`.
    pub(crate) fn open(
        callers: Callers,
        book: Arc<AddressBook>,
        (memory, bytes): (Memory, u64),
        posted: ReadPosted,
    ) -> Result<MemoryServer> {
        let refused = |err: std::io::Error| {
            Error::new("thread-not-started", format!("the thread that answers ranks of other hosts: {err}"))
                .hint("check the limits on threads and open files: ulimit -u, ulimit -n")
        };
        let (wake, woken) = UnixStream::pair().map_err(refused)?;
        let failed = Failed::default();
        let (guests, kept) = (Vec::new(), Arc::clone(&failed));
        let inside = Inside { callers, book, memory, bytes, posted, guests, failed: kept, woken };
        let thread = thread::Builder::new().name("door".into()).stack_size(STACK_BYTES);
        let thread = Some(thread.spawn(move || inside.run()).map_err(refused)?);
        Ok(MemoryServer { wake, failed, thread })
    }

    /// Errors: `ranks-unreachable` if the network ended a guest's connection.
    pub(crate) fn check(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

impl Drop for MemoryServer {
    fn drop(&mut self) {
        let _ = (&self.wake).write(&[1]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Inside {
    callers: Callers,
    book: Arc<AddressBook>,
    memory: Memory,
    bytes: u64,
    posted: ReadPosted,
    guests: Vec<Guest>,
    failed: Failed,
    woken: UnixStream,
}

/// A rank that reads.
struct Guest {
    stream: super::stream::Stream,
    request: [u8; REQUEST_BYTES],
    received: usize,
    /// The part of the request that is still to be answered.
    offset: u64,
    left: usize,
    /// The answer, if the request is for what was posted.
    number: [u8; POSTED_BYTES],
}

impl Inside {
    fn run(mut self) {
        loop {
            let guests =
                self.guests.iter().map(|guest| guest.stream.interest(guest.left == 0, guest.left > 0));
            let wake = PollFd::new(&self.woken, PollFlags::IN);
            let mut fds: Vec<PollFd<'_>> = guests.chain(self.callers.interest()).chain([wake]).collect();
            let long = Timespec { tv_sec: 1, tv_nsec: 0 };
            let _ = rustix::event::poll(&mut fds, Some(&long));
            if fds.last().is_some_and(|wake| !wake.revents().is_empty()) {
                return;
            }
            let (memory, bytes, posted) = (&mut self.memory, self.bytes, &*self.posted);
            let failed = &self.failed;
            // A guest that reads out of range or is gone is dropped silently: its supervisor says why it ended. That
            // the network failed is known here alone.
            self.guests.retain_mut(|guest| {
                let served = guest.serve(memory, bytes, posted);
                match served {
                    Err(error) if error.slug == "ranks-unreachable" => drop(failed.set(error)),
                    Err(_) => {}
                    Ok(()) => return true,
                }
                false
            });
            let book = &self.book;
            let is_full = self.guests.len() >= GUESTS_MAX;
            let expects = |rank: u32, way: Way| {
                let known = book.ranks.get(rank as usize).filter(|_| way == Way::Read && !is_full);
                known.map(|(_, who)| who.clone())
            };
            let guest = |Caller { stream, .. }: Caller| {
                let (request, number) = ([0; REQUEST_BYTES], [0; POSTED_BYTES]);
                Guest { stream, request, received: 0, offset: 0, left: 0, number }
            };
            self.guests.extend(self.callers.turn(&expects).into_iter().map(guest));
        }
    }
}

impl Guest {
    /// Answers its requests, as far as the connection accepts bytes.
    fn serve(&mut self, memory: &mut Memory, bytes: u64, posted: &dyn Fn() -> u64) -> Result<()> {
        let mut room = TURN_BYTES;
        while room > 0 {
            if self.left == 0 && !self.next(bytes, posted)? {
                return Ok(());
            }
            match self.send(memory, self.left.min(room))? {
                0 => return Ok(()),
                sent => (self.left, room) = (self.left - sent, room.saturating_sub(sent)),
            }
        }
        Ok(())
    }

    /// Sends at most `len` bytes from its offset. Returns how many the connection accepted: 0 if it is full.
    fn send(&mut self, memory: &mut Memory, len: usize) -> Result<usize> {
        if self.offset == POSTED {
            return self.stream.write(&self.number[POSTED_BYTES - self.left..]);
        }
        let file = match memory {
            Memory::File(file) => file,
            Memory::Shown(shown) => {
                let sent = self.stream.write(shown.read(self.offset, len)?)?;
                self.offset += sent as u64;
                return Ok(sent);
            }
        };
        loop {
            return match sendfile(self.stream.fd(), file.as_fd(), Some(&mut self.offset), len) {
                Ok(0) => Err(lost("its memory is shorter than its plan")),
                Ok(sent) => Ok(sent),
                Err(Errno::AGAIN) => Ok(0),
                Err(Errno::INTR) => continue,
                Err(err) => Err(lost(err.to_string())),
            };
        }
    }

    /// Reads the next request. Returns false if it has not arrived yet.
    fn next(&mut self, bytes: u64, posted: &dyn Fn() -> u64) -> Result<bool> {
        while self.received < REQUEST_BYTES {
            match self.stream.read(&mut self.request[self.received..])? {
                0 => return Ok(false),
                length => self.received += length,
            }
        }
        self.received = 0;
        let [offset, length] =
            [0, 8].map(|at| u64::from_le_bytes(*self.request[at..].first_chunk().expect("16 bytes")));
        if (offset, length) == (POSTED, POSTED_BYTES as u64) {
            (self.offset, self.left, self.number) = (POSTED, POSTED_BYTES, posted().to_le_bytes());
            return Ok(true);
        }
        if length == 0 || offset.checked_add(length).is_none_or(|end| end > bytes) {
            return Err(lost(format!("{} asked for {length} bytes at {offset} of {bytes}", self.stream.who)));
        }
        (self.offset, self.left) = (offset, length as usize);
        Ok(true)
    }
}
