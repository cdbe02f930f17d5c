//! Decides what the kernel refuses a worker: signals and other calls that reach processes outside it, objects that
//! would outlive it, sockets beyond this machine's own processes, and the GPU driver. A program that a model wrote is
//! also refused changes to files other than writing, and everything that a program for a test does not need.
//!
//! A seccomp filter, set between fork and exec and inherited by all children. It needs no privilege or namespace, so it
//! works in containers. The keeper answers what numbers cannot decide (`broker.rs`). It is no virtual machine.

use crate::calls::{self, *};
use crate::filter::{Check, Condition, Filter, Instruction, Verdict};
use serde::{Deserialize, Serialize};
use std::io::Error;
use std::os::fd::{FromRawFd, OwnedFd};

/// Network access of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Only sockets between processes of this machine (`AF_UNIX`).
    #[default]
    Deny,
    Allow,
}

/// GPU access of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gpu {
    /// No call of the NVIDIA driver succeeds.
    #[default]
    Deny,
    /// Unrestricted, for environments that render on it.
    Allow,
}

/// Who wrote the code of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Author {
    /// The user: it has the user's rights, except over processes outside the worker, and leaves nothing.
    User,
    /// A model, to be rewarded for it: it may compute, and write in its folder.
    Model,
}

/// Holds what a worker may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rules {
    pub author: Author,
    pub network: Network,
    pub gpu: Gpu,
}

/// Who answers what the filter cannot decide.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answers<'a> {
    Keeper,
    /// No keeper: these processes get no signals from user code; a model's code reaches only itself.
    None(&'a [u32]),
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

const SECCOMP: i64 = if cfg!(target_arch = "x86_64") { 317 } else { 277 };
const PR_SET_SECCOMP: i32 = 22;
const SECCOMP_MODE_FILTER: usize = 2;
const SET_MODE_FILTER: usize = 1;
const NEW_LISTENER: usize = 1 << 3;
/// While the keeper decides, only a kill interrupts the caller (Linux 5.19).
const WAIT_KILLABLE: usize = 1 << 5;

/// First kernel version that executes a call the keeper allows.
const ANSWERS_SINCE: (u32, u32) = (5, 5);

const EPERM: u16 = 1;
const EACCES: u16 = 13;
const ENOTTY: u16 = 25;
const ENOSYS: u16 = 38;
const ENOTSUP: u16 = 95;
const EFAULT: i32 = 14;

const AF_UNIX: u32 = 1;
const PTRACE_ATTACHES: [u32; 2] = [16, 0x4206];
const PRIORITY_OF_USER: u32 = 2;
const IO_PRIORITY_OF_USER: u32 = 3;
/// `F_SETOWN` and `F_SETOWN_EX`: signals of a descriptor go to its owner.
const OWNERS: [u32; 2] = [8, 15];
/// ioctls that set a descriptor's owner, type into a terminal or signal its processes.
const OWNERS_AND_TERMINALS: [u32; 5] = [0x8901, 0x8902, 0x5412, 0x541c, 0x4004_5436];
/// Every NVIDIA driver call has this type in its number; without calls no context exists on the card.
const NVIDIA_TYPE: (u32, u32) = (0xff00, (b'F' as u32) << 8);
/// Lists what a program asks of its pipes: is it a terminal, its width, bytes to read, non-blocking, close on exec.
const IOCTLS_OF_PIPES: [u32; 6] = [0x5401, 0x5413, 0x541b, 0x5421, 0x5450, 0x5451];
const CLONE_NAMESPACES: u32 = 0x7e02_0000;
const CLONE_THREAD: u32 = 0x1_0000;
/// First negative number: a group of processes, or all of them.
const NEGATIVE: u32 = 1 << 31;

/// Calls that name a process, and the argument that does.
const OF_PROCESS: [(u32, u32); 16] = [
    (KILL, 0),
    (TKILL, 0),
    (TGKILL, 0),
    (RT_SIGQUEUEINFO, 0),
    (RT_TGSIGQUEUEINFO, 0),
    (PIDFD_OPEN, 0),
    (PRLIMIT64, 0),
    (SCHED_SETPARAM, 0),
    (SCHED_SETSCHEDULER, 0),
    (SCHED_SETAFFINITY, 0),
    (SCHED_SETATTR, 0),
    (MIGRATE_PAGES, 0),
    (MOVE_PAGES, 0),
    (PROCESS_VM_READV, 0),
    (PROCESS_VM_WRITEV, 0),
    // The calls below name a kind of target first; one kind is a process.
    (SETPRIORITY, 1),
];

/// Returns true if this kernel supports filters.
pub(crate) fn is_supported() -> bool {
    // SAFETY: the filter is at address 0, so the call fails and sets nothing. A kernel without filters returns EINVAL.
    let refused = unsafe { prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0, 0, 0) };
    calls::MACHINE.is_some() && refused == -1 && Error::last_os_error().raw_os_error() == Some(EFAULT)
}

/// Returns true if this kernel lets a keeper answer a filter's questions.
pub(crate) fn can_ask() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
    let version = numbers.next().flatten().zip(numbers.next().flatten());
    is_supported() && version.is_some_and(|version| version >= ANSWERS_SINCE)
}

/// Sets the filter for this process and its children. Returns the listener for its questions, if it asks any.
pub(crate) fn enter(rules: Rules, answers: Answers<'_>) -> std::io::Result<Option<OwnedFd>> {
    let Some(machine) = calls::MACHINE else { return Ok(None) };
    // Without it the filter would need a privilege; with it set-user-id programs grant none.
    rustix::thread::set_no_new_privs(true)?;
    let own = std::process::id();
    let outside: &[u32] = match answers {
        Answers::Keeper if can_ask() => {
            let filter = filter(machine, rules, own, None);
            let asking = set(&filter, NEW_LISTENER | WAIT_KILLABLE).or_else(|_| set(&filter, NEW_LISTENER));
            if let Ok(Some(listener)) = asking {
                return Ok(Some(listener));
            }
            // An outer filter asks already.
            &[]
        }
        Answers::Keeper => &[],
        Answers::None(outside) => outside,
    };
    set(&filter(machine, rules, own, Some(outside)), 0)
}

fn set(filter: &[Instruction], flags: usize) -> std::io::Result<Option<OwnedFd>> {
    let program = Program { length: filter.len() as u16, instructions: filter.as_ptr() };
    // SAFETY: `program` and its instructions live until the call returns; the kernel copies them.
    let set = unsafe { syscall(SECCOMP, SET_MODE_FILTER, flags, &raw const program) };
    match i32::try_from(set) {
        // SAFETY: with this flag the call returned a new descriptor, which nothing else owns.
        Ok(fd @ 0..) if flags & NEW_LISTENER != 0 => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        Ok(0) => Ok(None),
        _ => Err(Error::last_os_error()),
    }
}

/// Returns the filter of process `own`. `outside`: processes to spare if no keeper answers.
fn filter(machine: u32, rules: Rules, own: u32, outside: Option<&[u32]>) -> Vec<Instruction> {
    let is_model = rules.author == Author::Model;
    // Without answers, a model's program is refused whatever needs one.
    let ask = match (outside, is_model) {
        (None, _) => Verdict::Ask,
        (Some(_), true) => Verdict::Fail(EPERM),
        (Some(_), false) => Verdict::Allow,
    };
    let mut filter = Filter::new(machine);
    processes(&mut filter, own, outside.unwrap_or_default(), ask);
    filter.calls(&[PIDFD_SEND_SIGNAL, MQ_OPEN, IO_URING_SETUP], Verdict::Fail(ENOSYS));
    filter.calls(&[PIDFD_GETFD], Verdict::Fail(EPERM));
    let owners = OWNERS.map(|command| check(1, Condition::Is(command), Verdict::Fail(EPERM)));
    filter.call(FCNTL, &owners, Verdict::Allow);
    if is_model {
        model(&mut filter, ask);
    } else {
        user(&mut filter, rules, ask);
    }
    filter.done()
}

fn check(argument: u32, condition: Condition, verdict: Verdict) -> Check {
    Check { argument, condition, verdict }
}

/// Filters calls that name a process: allowed for the process itself, and 0, which means it or its group.
fn processes(filter: &mut Filter, own: u32, outside: &[u32], ask: Verdict) {
    let allowed = |argument| {
        let mut checks: Vec<Check> =
            [0, own].map(|pid| check(argument, Condition::Is(pid), Verdict::Allow)).to_vec();
        if ask == Verdict::Allow {
            let refused = outside.iter().map(|&pid| Condition::Is(pid)).chain([Condition::AtLeast(NEGATIVE)]);
            checks.extend(refused.map(|condition| check(argument, condition, Verdict::Fail(EPERM))));
        }
        checks
    };
    for (number, argument) in OF_PROCESS {
        let mut checks = allowed(argument);
        if number == SETPRIORITY {
            checks.insert(0, check(0, Condition::Is(PRIORITY_OF_USER), Verdict::Fail(EPERM)));
        }
        filter.call(number, &checks, ask);
    }
    let mut io = allowed(1);
    io.insert(0, check(0, Condition::Is(IO_PRIORITY_OF_USER), Verdict::Fail(EPERM)));
    filter.call(IOPRIO_SET, &io, ask);
    let attach = if ask == Verdict::Ask { ask } else { Verdict::Fail(EPERM) };
    let attaches = PTRACE_ATTACHES.map(|request| check(0, Condition::Is(request), attach));
    filter.call(PTRACE, &attaches, Verdict::Allow);
}

/// Adds the refusals for the user's own code.
fn user(filter: &mut Filter, rules: Rules, ask: Verdict) {
    if rules.network == Network::Deny {
        let local = check(0, Condition::Is(AF_UNIX), Verdict::Allow);
        filter.call(SOCKET, &[local], Verdict::Fail(EACCES));
    }
    let mut ioctls =
        OWNERS_AND_TERMINALS.map(|request| check(1, Condition::Is(request), Verdict::Fail(EPERM))).to_vec();
    if rules.gpu == Gpu::Deny {
        let (mask, value) = NVIDIA_TYPE;
        ioctls.push(check(1, Condition::Masked(mask, value), Verdict::Fail(EPERM)));
    }
    filter.call(IOCTL, &ioctls, Verdict::Allow);
    // The keeper creates these objects, so that it can remove them.
    filter.calls(&[SHMGET, SEMGET, MSGGET], ask);
}

/// Adds the refusals for a model's program.
fn model(filter: &mut Filter, ask: Verdict) {
    filter.calls(&[SOCKET], Verdict::Fail(EACCES));
    let pipes = IOCTLS_OF_PIPES.map(|request| check(1, Condition::Is(request), Verdict::Allow));
    filter.call(IOCTL, &pipes, Verdict::Fail(ENOTTY));
    // The keeper counts processes. Stacks bound the threads.
    let fork = if ask == Verdict::Ask { ask } else { Verdict::Allow };
    let clones = [
        check(0, Condition::AnyBit(CLONE_NAMESPACES), Verdict::Fail(EPERM)),
        check(0, Condition::AnyBit(CLONE_THREAD), Verdict::Allow),
    ];
    filter.call(CLONE, &clones, fork);
    filter.calls(&[FORK, VFORK], fork);
    // Its flags are in memory, which a filter cannot read; the C library then uses the older call.
    filter.calls(&[CLONE3], Verdict::Fail(ENOSYS));
    filter.calls(&[UNSHARE, SETNS, OPEN_BY_HANDLE_AT], Verdict::Fail(EPERM));
    filter.calls(&[SHMGET, SEMGET, MSGGET, ADD_KEY, REQUEST_KEY, KEYCTL], Verdict::Fail(ENOSYS));
    // Memory that the address space limit does not count.
    filter.calls(&[MEMFD_CREATE, MEMFD_SECRET], Verdict::Fail(ENOSYS));
    filter.calls(&[PERF_EVENT_OPEN, BPF, USERFAULTFD], Verdict::Fail(ENOSYS));
    // The keeper makes changes of modes and times in the program's own folder.
    filter.calls(&[CHMOD, FCHMOD, FCHMODAT, FCHMODAT2, UTIMENSAT], ask);
    filter.calls(&[UTIME, UTIMES, FUTIMESAT], Verdict::Fail(EPERM));
    filter.calls(&[CHOWN, FCHOWN, LCHOWN, FCHOWNAT, FILE_SETATTR], Verdict::Fail(EPERM));
    let attributes = [SETXATTR, LSETXATTR, FSETXATTR, REMOVEXATTR, LREMOVEXATTR, FREMOVEXATTR];
    filter.calls(&attributes, Verdict::Fail(ENOTSUP));
    filter.calls(&[SETXATTRAT, REMOVEXATTRAT], Verdict::Fail(ENOTSUP));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::tests::verdict;

    const ALLOW: u32 = 0x7fff_0000;
    const ASK: u32 = 0x7fc0_0000;
    const REFUSE: u32 = 0x0005_0000 | EPERM as u32;

    #[test]
    fn without_a_keeper_a_model_reaches_only_itself_and_a_user_not_the_parents() {
        let machine = calls::MACHINE.expect("tests run where there are filters");
        let (own, parent, other) = (100, 50, 70);
        let code = |author| Rules { author, network: Network::Deny, gpu: Gpu::Deny };
        for (author, asks, number, arguments, expect) in [
            (Author::User, false, KILL, [own, 9], ALLOW),
            (Author::User, false, KILL, [0, 9], ALLOW),
            (Author::User, false, KILL, [parent, 9], REFUSE),
            (Author::User, false, KILL, [-1i64 as u64, 9], REFUSE),
            (Author::User, false, KILL, [other, 9], ALLOW),
            (Author::User, false, PTRACE, [16, parent], REFUSE),
            (Author::User, false, SHMGET, [0, 0], ALLOW),
            (Author::Model, false, KILL, [own, 9], ALLOW),
            (Author::Model, false, KILL, [other, 9], REFUSE),
            (Author::Model, false, CHMOD, [0, 0], REFUSE),
            (Author::Model, false, FORK, [0, 0], ALLOW),
            (Author::User, true, KILL, [own, 9], ALLOW),
            (Author::User, true, KILL, [other, 9], ASK),
            (Author::User, true, SETPRIORITY, [2, 0], REFUSE),
            (Author::User, true, CLONE, [0, 0], ALLOW),
            (Author::Model, true, CLONE, [0x11, 0], ASK),
            (Author::Model, true, CLONE, [0x1_0f00, 0], ALLOW),
            (Author::Model, true, CLONE, [0x1000_0011, 0], REFUSE),
        ] {
            let outside = [parent as u32];
            let outside = (!asks).then_some(&outside[..]);
            let filter = filter(machine, code(author), own as u32, outside);
            let found = verdict(&filter, machine, number, &arguments);
            assert_eq!(found, expect, "{author:?} {asks} {number} {arguments:?}");
        }
    }
}
