//! A connection between trainers, and the names of its failures.

use super::path::Path;
use crate::errors::{lost, unreachable};
use plimsoll_base::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// The kernel ends no connection before this: supervisors notice a lost host, and a rank that waits asks (`path.rs`).
const KERNEL_MAX: Duration = Duration::from_secs(24 * 3600);
/// An idle connection is probed at this interval, so that what lies between keeps it.
const IDLE: Duration = Duration::from_secs(3);
/// How long a wait sleeps before it checks whether the run is over.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Stream {
    socket: TcpStream,
    /// Bytes that have already arrived.
    ahead: Vec<u8>,
    /// The trainer at the other end, in words.
    pub(crate) who: String,
    path: Option<Path>,
}

impl Stream {
    pub(crate) fn new((socket, ahead): (TcpStream, Vec<u8>), who: &str) -> Stream {
        // Best effort: an ended connection is noticed in any case, later.
        let _ = socket.set_nodelay(true);
        let _ = socket.set_nonblocking(true);
        let _ = sockopt::set_socket_keepalive(&socket, true);
        let _ = sockopt::set_tcp_keepidle(&socket, IDLE);
        let _ = sockopt::set_tcp_keepintvl(&socket, IDLE);
        // It takes the place of the number of probes, too.
        let _ = sockopt::set_tcp_user_timeout(&socket, KERNEL_MAX.as_millis() as u32);
        Stream { socket, ahead, who: who.into(), path: None }
    }

    /// Lets waits for this connection ask whether packets pass to `address`, where its peer listens.
    pub(crate) fn to(self, address: Option<SocketAddr>) -> Stream {
        let path = address.map(|address| Path::new(address, &self.who, Instant::now()));
        Stream { path, ..self }
    }

    /// Looks whether packets still pass, for one that has waited since `begun`. Only the side that dialled can.
    ///
    /// Errors: `ranks-unreachable`.
    pub(crate) fn look(&mut self, begun: Instant) -> Result<()> {
        self.path.as_mut().map_or(Ok(()), |path| path.look(begun, Instant::now()))
    }

    fn moves(&mut self, length: usize) -> usize {
        if let Some(path) = self.path.as_mut().filter(|_| length > 0) {
            path.moves(Instant::now());
        }
        length
    }

    /// Reads available bytes into `to`. Returns their number; 0 if nothing has arrived.
    ///
    /// Errors: `rank-lost`, `ranks-unreachable`.
    pub(crate) fn read(&mut self, to: &mut [u8]) -> Result<usize> {
        if !self.ahead.is_empty() {
            let length = to.len().min(self.ahead.len());
            to[..length].copy_from_slice(&self.ahead[..length]);
            self.ahead.drain(..length);
            return Ok(length);
        }
        loop {
            match self.socket.read(to) {
                Ok(0) if !to.is_empty() => return Err(self.closed()),
                Ok(length) => return Ok(self.moves(length)),
                Err(err) if err.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) => return Err(self.failed(&err)),
            }
        }
    }

    /// Writes as much of `from` as fits. Returns the number of bytes.
    ///
    /// Errors: as `read`.
    pub(crate) fn write(&mut self, from: &[u8]) -> Result<usize> {
        loop {
            match self.socket.write(from) {
                Ok(length) => return Ok(self.moves(length)),
                Err(err) if err.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) => return Err(self.failed(&err)),
            }
        }
    }

    pub(crate) fn interest(&self, reads: bool, writes: bool) -> PollFd<'_> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, reads);
        flags.set(PollFlags::OUT, writes);
        PollFd::from_borrowed_fd(self.socket.as_fd(), flags)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn closed(&self) -> Error {
        lost(format!("{} closed its connection; its supervisor says why", self.who))
    }

    fn failed(&self, err: &std::io::Error) -> Error {
        if err.kind() != ErrorKind::TimedOut {
            return lost(format!("the connection to {} broke: {err}", self.who));
        }
        unreachable(&format!("nothing passes to {} any more: {err}", self.who))
    }
}

/// Sleeps until one of `fds` is ready or it is time to check whether the run is over.
pub(crate) fn sleep(fds: &mut [PollFd<'_>]) {
    let look = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
    // An interrupted poll is fine: callers check everything anyway.
    let _ = rustix::event::poll(fds, Some(&look));
}
