//! Descriptors that were left open where a process was started. Other people's code gets none of them: a shell's `exec 3<`, the
//! jobserver of `make`, a lock. A trainer gets the listener that its supervisor opened for it.

use plimsoll_base::{Error, Result};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::sockopt::socket_acceptconn;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd};
use std::os::raw::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the listener was taken: it has one owner.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the listener that the supervisor left this process at descriptor `number`, once.
///
/// Errors: `ranks-environment` where none is.
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
    // SAFETY: it is asked about alone; a number without a descriptor is an error of the calls below.
    let there = unsafe { BorrowedFd::borrow_raw(number) };
    match socket_acceptconn(there) {
        Ok(true) => {}
        _ => return Err(refused()),
    }
    fcntl_setfd(there, FdFlags::CLOEXEC).map_err(|_| refused())?;
    // SAFETY: it was open when this process began, as a listener, which no value here owns; the flag above gives it one owner.
    Ok(unsafe { TcpListener::from_raw_fd(number) })
}

// SAFETY: this is the C library's declaration; arguments are machine words, of which a call may use fewer.
unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
}

/// The same number on every architecture; kernels before 5.9 do not have the call.
const CLOSE_RANGE: i64 = 436;
/// The first after the standard three.
const FIRST: usize = 3;

/// Closes all descriptors above stderr. For processes that this program starts with the standard three alone, as their first
/// act: nothing in them owns another one yet.
pub(crate) fn close() {
    // SAFETY: no value in this process owns a descriptor above stderr. An older kernel refuses, and what is open stays open.
    let _ = unsafe { syscall(CLOSE_RANGE, FIRST, c_int::MAX as usize, 0usize) };
}
