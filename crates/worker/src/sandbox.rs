//! What the kernel refuses a worker: sockets that reach beyond this machine's own processes, and the GPU driver.
//!
//! A seccomp filter, set between fork and exec and inherited by all child processes. It needs no privilege and no
//! namespace, so it works in containers too. A program with its own folder may write only there, if the
//! kernel has Landlock. Nothing else changes: a worker is limited, but not a virtual machine.

use rustix::fs::{Mode, OFlags};
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Network access of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Only sockets between processes of this machine (`AF_UNIX`).
    #[default]
    Deny,
    Allow,
}

/// Whether a worker may use a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gpu {
    /// No call of the NVIDIA driver succeeds.
    #[default]
    Deny,
    /// As for any process, for environments that render on it.
    Allow,
}

/// One instruction of the kernel's filter machine.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    operand: u32,
}

#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

// SAFETY: these are the C library's declarations; arguments are machine words, of which a call may use fewer.
unsafe extern "C" {
    fn prctl(option: i32, a: usize, b: usize, c: usize, d: usize) -> i32;
    fn syscall(number: i64, ...) -> i64;
}

// Landlock has the same numbers on every architecture.
const LANDLOCK_CREATE_RULESET: i64 = 444;
const LANDLOCK_ADD_RULE: i64 = 445;
const LANDLOCK_RESTRICT_SELF: i64 = 446;
const RULE_PATH_BENEATH: usize = 1;
const WRITE_FILE: u64 = 1 << 1;
/// Writing, removing and making files of every kind (bits 1 and 4 to 12), moving between folders, truncating.
const WRITES: u64 = WRITE_FILE | 0x1ff0 | 1 << 13 | 1 << 14;

/// A path of a ruleset and what is allowed below it.
#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    folder: i32,
}

const PR_SET_SECCOMP: i32 = 22;
const SECCOMP_MODE_FILTER: usize = 2;
const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

// Offsets of the call's number, the architecture, and the low words of the first two arguments.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;
const ARGUMENT_0: u32 = 16;
const ARGUMENT_1: u32 = 24;

const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;
const REFUSE: u32 = 0x0005_0000;
const EPERM: u32 = 1;
const EACCES: u32 = 13;
const ENOSYS: u32 = 38;
const EFAULT: i32 = 14;

const AF_UNIX: u32 = 1;
/// Every call of the NVIDIA driver has this type in its number; without calls there is no context on the card.
const NVIDIA_IOCTL_TYPE: u32 = (b'F' as u32) << 8;
/// Numbers from here on are the x32 calls of x86-64, which would bypass the checked numbers.
const X32_CALLS: u32 = 0x4000_0000;

#[cfg(target_arch = "x86_64")]
const CALLS: Option<Calls> = Some(Calls { machine: 0xc000_003e, socket: 41, ioctl: 16, io_uring_setup: 425 });
#[cfg(target_arch = "aarch64")]
const CALLS: Option<Calls> =
    Some(Calls { machine: 0xc000_00b7, socket: 198, ioctl: 29, io_uring_setup: 425 });
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CALLS: Option<Calls> = None;

/// Numbers of system calls on one architecture.
struct Calls {
    machine: u32,
    socket: u32,
    ioctl: u32,
    io_uring_setup: u32,
}

/// Whether this kernel supports filters.
pub(crate) fn is_there() -> bool {
    // SAFETY: the filter is at address 0, so the call fails and sets nothing. A kernel without filters returns EINVAL.
    let refused = unsafe { prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0, 0, 0) };
    CALLS.is_some() && refused == -1 && Error::last_os_error().raw_os_error() == Some(EFAULT)
}

/// Sets the filter for this process and its children. Only makes system calls: it may run between fork and exec.
pub(crate) fn enter(network: Network, gpu: Gpu) -> std::io::Result<()> {
    let Some(calls) = CALLS else { return Ok(()) };
    // Without it the filter would need a privilege; with it set-user-id programs give none.
    rustix::thread::set_no_new_privs(true)?;
    let filter = filter(&calls, network, gpu);
    let program = Program { length: filter.len() as u16, instructions: filter.as_ptr() };
    // SAFETY: `program` and its instructions live until the call returns; the kernel copies them.
    let set = unsafe { prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &raw const program as usize, 0, 0) };
    if set == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Returns a ruleset that allows writing files only in `folder`; `None` if the kernel has no Landlock.
pub(crate) fn writes_in(folder: &Path) -> Option<OwnedFd> {
    // SAFETY: with these arguments the call returns the version and accesses no memory.
    let version = unsafe { syscall(LANDLOCK_CREATE_RULESET, 0usize, 0usize, 1usize) };
    // Version 2 added moves between folders, version 3 truncation.
    let known = match version {
        ..1 => return None,
        1 => WRITES & ((1 << 13) - 1),
        2 => WRITES & ((1 << 14) - 1),
        _ => WRITES,
    };
    // SAFETY: the kernel reads the eight bytes of `known`, which outlive the call.
    let rules = unsafe { syscall(LANDLOCK_CREATE_RULESET, &raw const known, size_of::<u64>(), 0usize) };
    let rules = i32::try_from(rules).ok().filter(|&fd| fd >= 0)?;
    // SAFETY: the call returned this descriptor, which nothing else owns.
    let rules = unsafe { OwnedFd::from_raw_fd(rules) };
    for (path, allowed) in [(folder, known), (Path::new("/dev/null"), WRITE_FILE)] {
        let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let rule = Beneath { allowed, folder: place.as_raw_fd() };
        // SAFETY: the kernel reads `rule`, which outlives the call, as does its open descriptor.
        let added = unsafe {
            syscall(LANDLOCK_ADD_RULE, rules.as_raw_fd() as usize, RULE_PATH_BENEATH, &raw const rule, 0usize)
        };
        if added != 0 {
            return None;
        }
    }
    Some(rules)
}

/// Puts this process and its children under a ruleset. Only makes system calls.
pub(crate) fn confine(rules: i32) -> std::io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    // SAFETY: the call takes a descriptor and accesses no memory.
    let set = unsafe { syscall(LANDLOCK_RESTRICT_SELF, rules as usize, 0usize) };
    if set == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Returns the filter. Jumps count instructions from the next one on.
fn filter(calls: &Calls, network: Network, gpu: Gpu) -> [Instruction; 19] {
    let load = |operand| Instruction { code: LOAD, jump_true: 0, jump_false: 0, operand };
    let stop = |operand| Instruction { code: RETURN, jump_true: 0, jump_false: 0, operand };
    let test = |code, operand, jump_true, jump_false| Instruction { code, jump_true, jump_false, operand };
    // To allow something, its test below gets a number that no call has.
    let socket = if network == Network::Deny { calls.socket } else { u32::MAX };
    let ioctl = if gpu == Gpu::Deny { calls.ioctl } else { u32::MAX };
    [
        load(MACHINE),
        test(JUMP_EQUAL, calls.machine, 1, 0),
        stop(KILL),
        load(NUMBER),
        test(JUMP_AT_LEAST, X32_CALLS, 0, 1),
        stop(REFUSE | ENOSYS),
        // A ring makes calls that bypass this filter.
        test(JUMP_EQUAL, calls.io_uring_setup, 0, 1),
        stop(REFUSE | ENOSYS),
        test(JUMP_EQUAL, socket, 0, 3),
        load(ARGUMENT_0),
        test(JUMP_EQUAL, AF_UNIX, 1, 0),
        stop(REFUSE | EACCES),
        load(NUMBER),
        test(JUMP_EQUAL, ioctl, 0, 3),
        load(ARGUMENT_1),
        test(AND, 0xff00, 0, 0),
        test(JUMP_EQUAL, NVIDIA_IOCTL_TYPE, 1, 0),
        stop(ALLOW),
        stop(REFUSE | EPERM),
    ]
}
