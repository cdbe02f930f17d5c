//! Landlock: rules on files and on outside processes that a process puts itself under. It needs no privilege.

use rustix::fs::{Mode, OFlags};
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

// SAFETY: this is the C library's declaration; arguments are machine words, of which a call may use fewer.
unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
}

// The same numbers on every architecture.
const CREATE_RULESET: i64 = 444;
const ADD_RULE: i64 = 445;
const RESTRICT_SELF: i64 = 446;
const RULE_PATH_BENEATH: usize = 1;

const WRITE_FILE: u64 = 1 << 1;
/// Writing, removing and creating files of every kind.
const WRITES_1: u64 = WRITE_FILE | 0x1ff0;
/// (Since version, right): moving between folders 2, truncating 3, device ioctls 5.
const WRITES: [(i64, u64); 3] = [(2, 1 << 13), (3, 1 << 14), (5, 1 << 15)];
/// First version with scopes.
const SCOPES_SINCE: i64 = 6;
const SCOPE_ABSTRACT_SOCKETS: u64 = 1;
const SCOPE_SIGNALS: u64 = 2;

/// Accesses that a ruleset handles, as the kernel reads it. Older kernels accept it if fields unknown to them are 0.
#[repr(C)]
#[derive(Default)]
struct Handled {
    files: u64,
    network: u64,
    scopes: u64,
}

/// A path of a ruleset, and what is allowed below it.
#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    folder: i32,
}

/// Returns this kernel's Landlock version; 0 without it.
pub(crate) fn version() -> i64 {
    // SAFETY: with these arguments the call returns the version and accesses no memory.
    unsafe { syscall(CREATE_RULESET, 0usize, 0usize, 1usize) }.max(0)
}

/// Returns true if this kernel can confine signals.
pub(crate) fn scopes_signals() -> bool {
    version() >= SCOPES_SINCE
}

/// Returns rules that confine file writes to `folder`, and signals and named connections; `None` without Landlock.
pub(crate) fn writes_in(folder: &Path) -> Option<OwnedFd> {
    let version = version();
    if version < 1 {
        return None;
    }
    let later = WRITES.iter().filter(|(since, _)| version >= *since).map(|(_, right)| right);
    let files = later.fold(WRITES_1, |known, right| known | right);
    let scopes = if version >= SCOPES_SINCE { SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS } else { 0 };
    let rules = ruleset(&Handled { files, network: 0, scopes })?;
    for (path, allowed) in [(folder, files), (Path::new("/dev/null"), WRITE_FILE)] {
        let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let rule = PathBeneath { allowed, folder: place.as_raw_fd() };
        // SAFETY: the kernel reads `rule`, which outlives the call, as does its open descriptor.
        let added = unsafe {
            syscall(ADD_RULE, rules.as_raw_fd() as usize, RULE_PATH_BENEATH, &raw const rule, 0usize)
        };
        if added != 0 {
            return None;
        }
    }
    Some(rules)
}

/// Returns rules that confine signals and memory access; `None` on a kernel without them: the keeper still answers.
pub(crate) fn signals_inside() -> Option<OwnedFd> {
    if !scopes_signals() {
        return None;
    }
    ruleset(&Handled { scopes: SCOPE_SIGNALS, ..Handled::default() })
}

fn ruleset(handled: &Handled) -> Option<OwnedFd> {
    // SAFETY: the kernel reads the bytes of `handled`, which outlive the call.
    let rules = unsafe { syscall(CREATE_RULESET, std::ptr::from_ref(handled), size_of::<Handled>(), 0usize) };
    let rules = i32::try_from(rules).ok().filter(|&fd| fd >= 0)?;
    // SAFETY: the call returned this descriptor, which nothing else owns.
    Some(unsafe { OwnedFd::from_raw_fd(rules) })
}

/// Puts this process and its children under rules. Makes only system calls.
pub(crate) fn confine(rules: &OwnedFd) -> std::io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    // SAFETY: the call takes a descriptor and accesses no memory.
    let set = unsafe { syscall(RESTRICT_SELF, rules.as_raw_fd() as usize, 0usize) };
    if set == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}
