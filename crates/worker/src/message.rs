//! Whole messages over a socket between processes, optionally with descriptors. It does not know what they mean.

use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// Longest message; the default buffer of a socket is larger.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Most descriptors with a message: standard input, output and error.
const DESCRIPTORS_MAX: usize = 3;

#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A message of this many bytes.
    Message(usize),
    Later,
    /// The other end is closed.
    Closed,
}

/// Sends one message. Errors: the other end is closed, or its buffer is full.
pub fn send(socket: BorrowedFd<'_>, message: &[u8]) -> std::io::Result<()> {
    // Without SIGPIPE: a dead worker is a value and must not end this process.
    rustix::net::send(socket, message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// Sends one message and a descriptor with it.
pub fn send_with(socket: BorrowedFd<'_>, message: &[u8], fd: BorrowedFd<'_>) -> std::io::Result<()> {
    send_with_all(socket, message, &[fd])
}

/// Sends one message and up to three descriptors with it.
pub(crate) fn send_with_all(
    socket: BorrowedFd<'_>,
    message: &[u8],
    fds: &[BorrowedFd<'_>],
) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags)?;
    Ok(())
}

/// Receives the descriptor of a message; `None` without a message, or without a descriptor in it.
pub(crate) fn receive_descriptor(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let (_, fds) = receive_with_descriptors(socket, &mut [0]).ok()?;
    fds.into_iter().next()
}

/// Receives a message and its descriptors. Returns length 0 if closed. Errors: no message, or it does not fit.
pub(crate) fn receive_with_descriptors(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> std::io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        Err(Errno::MSGSIZE.into())
    } else {
        Ok((received.bytes, fds))
    }
}

/// Receives a message if there is one; one longer than `buffer` counts as closed, because its rest is lost.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Received {
    receive_with(socket, buffer, RecvFlags::DONTWAIT)
}

/// Receives a message, waiting as long as `limit_waits` set.
pub fn receive_waiting(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Received {
    receive_with(socket, buffer, RecvFlags::empty())
}

/// Limits how long `receive_waiting` waits.
pub fn limit_waits(socket: BorrowedFd<'_>, limit: Duration) -> std::io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_timeout(socket, Timeout::Recv, Some(limit))?)
}

fn receive_with(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: RecvFlags) -> Received {
    loop {
        match rustix::net::recv(socket, &mut *buffer, flags | RecvFlags::TRUNC) {
            Ok((_, 0)) => return Received::Closed,
            Ok((_, length)) if length > buffer.len() => return Received::Closed,
            Ok((_, length)) => return Received::Message(length),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Received::Later,
            Err(_) => return Received::Closed,
        }
    }
}
