//! Descriptors that were open where a process was started: a shell's `exec 3<`, the jobserver of `make`, a lock. Other
//! people's code gets none. A trainer gets the listener that its supervisor opened for it.

use plimsoll_base::{Error, Result};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::sockopt::socket_acceptconn;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd};
use std::os::raw::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

/// True once the listener is taken: it has one owner.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the listener that the supervisor left at descriptor `number`, once.
///
/// Errors: `ranks-environment` if there is none.
pub fn inherited_listener(number: i32) -> Result<TcpListener> {
    let refused = || {
        Error::usage(
            "ranks-environment",
            format!("descriptor {number} is no listener of this process's supervisor"),
        )
        .hint("unset PLIMSOLL_RANK_LETTER: supervisors set it for their trainers")
    };
    if number <= 2 || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Err(refused());
    }
    // SAFETY: only queried here; a number without a descriptor makes the calls below fail.
    let there = unsafe { BorrowedFd::borrow_raw(number) };
    match socket_acceptconn(there) {
        Ok(true) => {}
        _ => return Err(refused()),
    }
    fcntl_setfd(there, FdFlags::CLOEXEC).map_err(|_| refused())?;
    // SAFETY: open as a listener since this process began, owned by no value; the flag gives it one owner.
    Ok(unsafe { TcpListener::from_raw_fd(number) })
}

// SAFETY: this is the C library's declaration; arguments are machine words, of which a call may use fewer.
unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
}

/// Number of `close_range` on every architecture; kernels before 5.9 lack the call.
const CLOSE_RANGE: i64 = 436;
/// First descriptor after the standard three.
const FIRST: usize = 3;

/// Closes all descriptors above stderr. Processes started with only three call it first: no value owns others.
pub(crate) fn close() {
    // SAFETY: no value in this process owns a descriptor above stderr. An older kernel refuses; then they stay open.
    let _ = unsafe { syscall(CLOSE_RANGE, FIRST, c_int::MAX as usize, 0usize) };
}
