//! A connection to another rank: frames of at most `FRAME_BYTES_MAX`, bounded buffers, and no blocking call.
//!
//! It reads at most one buffer ahead: what a peer sends beyond it stays in the kernel's bounded buffer.

use crate::message::Message;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Longest message: a welcome to 64 ranks is about 6 KiB, a hello with its run file about 10.
pub(crate) const FRAME_BYTES_MAX: usize = 64 << 10;
const HEAD_BYTES: usize = 4;
/// Bytes received and not yet taken; a whole frame fits.
const INBOX_BYTES_MAX: usize = HEAD_BYTES + FRAME_BYTES_MAX;
/// Bytes not yet sent. A peer that accepts none for longer is lost.
const OUTBOX_BYTES_MAX: usize = 4 * FRAME_BYTES_MAX;
const CHUNK_BYTES: usize = 4 << 10;

#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Why nothing more will arrive.
    over: Option<String>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> std::io::Result<Wire> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Wire { stream, inbox: Vec::new(), outbox: Vec::new(), over: None })
    }

    /// Sends and receives what is possible now.
    pub(crate) fn pump(&mut self) {
        while !self.outbox.is_empty() && self.over.is_none() {
            match self.stream.write(&self.outbox) {
                Ok(0) => self.end("it takes nothing more"),
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(err) if err.kind() == ErrorKind::WouldBlock => break,
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) => self.end(&err.to_string()),
            }
        }
        let mut chunk = [0; CHUNK_BYTES];
        while self.over.is_none() && self.inbox.len() < INBOX_BYTES_MAX {
            let room = CHUNK_BYTES.min(INBOX_BYTES_MAX - self.inbox.len());
            match self.stream.read(&mut chunk[..room]) {
                Ok(0) => self.end("its connection closed"),
                Ok(length) => self.inbox.extend_from_slice(&chunk[..length]),
                Err(err) if err.kind() == ErrorKind::WouldBlock => break,
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) => self.end(&err.to_string()),
            }
        }
    }

    /// Puts bytes into the outbox.
    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) {
        if self.outbox.len() + bytes.len() > OUTBOX_BYTES_MAX {
            return self.end("it takes no messages");
        }
        self.outbox.extend_from_slice(bytes);
    }

    pub(crate) fn put(&mut self, message: &Message) {
        let text = serde_json::to_vec(message).expect("plain data has a JSON form");
        debug_assert!(text.len() <= FRAME_BYTES_MAX, "a message of {} bytes", text.len());
        self.put_bytes(&(text.len() as u32).to_le_bytes());
        self.put_bytes(&text);
    }

    /// Takes `N` bytes once they have arrived.
    pub(crate) fn take_bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = self.inbox.get(..N)?.try_into().expect("the slice has N bytes");
        self.inbox.drain(..N);
        Some(bytes)
    }

    /// Returns what has arrived without taking it.
    pub(crate) fn peek(&self) -> &[u8] {
        &self.inbox
    }

    /// Takes a message once it has arrived. A frame that is too long or not a message ends the connection.
    pub(crate) fn take(&mut self) -> Option<Message> {
        let head = self.inbox.get(..HEAD_BYTES)?.try_into().expect("the slice has four bytes");
        let length = u32::from_le_bytes(head) as usize;
        if length > FRAME_BYTES_MAX {
            self.inbox.clear();
            self.end(&format!("it sent a message of {length} bytes, and at most {FRAME_BYTES_MAX} are read"));
            return None;
        }
        let text = self.inbox.get(HEAD_BYTES..HEAD_BYTES + length)?;
        let message = serde_json::from_slice(text);
        self.inbox.drain(..HEAD_BYTES + length);
        match message {
            Ok(message) => Some(message),
            Err(err) => {
                self.inbox.clear();
                self.end(&format!("it sent what is no message of this version: {err}"));
                None
            }
        }
    }

    /// Returns why nothing more will arrive. Earlier messages may still be waiting to be taken.
    pub(crate) fn over(&self) -> Option<&str> {
        self.over.as_deref()
    }

    /// Sends what is left, for at most `limit`.
    pub(crate) fn flush(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        self.pump();
        while !self.outbox.is_empty() && self.over.is_none() && Instant::now() < until {
            wait(&[&*self], &[], Duration::from_millis(20));
            self.pump();
        }
    }

    pub(crate) fn local_addr(&self) -> Option<std::net::SocketAddr> {
        self.stream.local_addr().ok()
    }

    pub(crate) fn peer_addr(&self) -> Option<std::net::SocketAddr> {
        self.stream.peer_addr().ok()
    }

    /// Gives up the protocol: returns the socket, and the bytes received after the last message.
    pub(crate) fn into_parts(self) -> (TcpStream, Vec<u8>) {
        (self.stream, self.inbox)
    }

    pub(crate) fn interest(&self) -> PollFd<'_> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.inbox.len() < INBOX_BYTES_MAX);
        flags.set(PollFlags::OUT, !self.outbox.is_empty());
        PollFd::from_borrowed_fd(self.stream.as_fd(), flags)
    }

    fn end(&mut self, why: &str) {
        self.over.get_or_insert_with(|| why.into());
    }
}

/// Sleeps until one of `wires` or `others` is ready, or `limit` has passed.
pub(crate) fn wait(wires: &[&Wire], others: &[BorrowedFd<'_>], limit: Duration) {
    // A closed connection would always be ready.
    let live = wires.iter().filter(|wire| wire.over.is_none()).map(|wire| wire.interest());
    let others = others.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    let mut fds: Vec<PollFd<'_>> = live.chain(others).collect();
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    // An interrupted poll is fine: callers check everything anyway.
    let _ = rustix::event::poll(&mut fds, Some(&limit));
}
