//! Descriptors that were left open where the run was started: a shell's `exec 3<`, the jobserver of `make`, a lock. Other people's code
//! gets none of them.

use std::os::raw::c_int;

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
