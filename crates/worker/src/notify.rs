//! Questions of a seccomp filter: calls that wait until the owner of the listener answers.

use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::Error;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

// SAFETY: this is the C library's declaration; the third argument is a pointer to what the request names.
unsafe extern "C" {
    fn ioctl(fd: i32, request: u64, argument: usize) -> i32;
}

// ioctl request numbers: direction, size of the argument, type '!', number.
const RECEIVE: u64 = 0xc050_2100;
const SEND: u64 = 0xc018_2101;
const IS_VALID: u64 = 0x4008_2102;
const GO_ON: u32 = 1;

/// A call that waits for its answer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Question {
    id: u64,
    /// Thread that makes the call.
    pub thread: u32,
    flags: u32,
    pub number: i32,
    machine: u32,
    instruction: u64,
    pub arguments: [u64; 6],
}

#[repr(C)]
struct Reply {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The kernel executes it.
    GoOn,
    /// It returns this value, and the kernel does nothing.
    Value(i64),
    /// It fails with this error number.
    Fail(i32),
}

/// The end of a filter that delivers its questions.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

impl Listener {
    pub(crate) fn new(fd: OwnedFd) -> Listener {
        Listener(fd)
    }

    /// Returns the next question; `None` if no call waits.
    pub(crate) fn next(&self) -> Option<Question> {
        let mut fds = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&at_once)).ok().filter(|_| fds[0].revents() == PollFlags::IN)?;
        let mut question = Question::default();
        // SAFETY: the kernel writes a `Question`, laid out as `seccomp_notif`. It fails if the caller was killed.
        let got = unsafe { ioctl(self.0.as_raw_fd(), RECEIVE, &raw mut question as usize) };
        (got == 0).then_some(question)
    }

    /// Returns true if the caller still waits, so its thread id is still its own.
    pub(crate) fn is_valid(&self, question: &Question) -> bool {
        // SAFETY: the kernel reads eight bytes, the id, which outlive the call.
        unsafe { ioctl(self.0.as_raw_fd(), IS_VALID, &raw const question.id as usize) == 0 }
    }

    /// Answers a question. Errors: the caller is gone, which is fine.
    pub(crate) fn answer(&self, question: &Question, answer: Answer) -> std::io::Result<()> {
        let (value, error, flags) = match answer {
            Answer::GoOn => (0, 0, GO_ON),
            Answer::Value(value) => (value, 0, 0),
            Answer::Fail(error) => (0, -error, 0),
        };
        let reply = Reply { id: question.id, value, error, flags };
        // SAFETY: the kernel reads a `Reply`, laid out as its `seccomp_notif_resp`, which outlives the call.
        let sent = unsafe { ioctl(self.0.as_raw_fd(), SEND, &raw const reply as usize) };
        if sent == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<Question>(), size_of::<Reply>()), (80, 24));
    }
}
