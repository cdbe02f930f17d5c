//! The kernel's means to confine workers.

use crate::groups::GroupHome;
use crate::{landlock, sandbox};
use plimsoll_memory::host::Host;
use rustix::thread::CapabilitySet;

/// Holds what this kernel offers; `docs/errors/machine-workers.md` describes what is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Seccomp filters: no network, no GPU, no signals to others.
    pub filters: bool,
    /// Filters that ask the keeper (Linux 5.5).
    pub answers: bool,
    /// Landlock version; 0 without it.
    pub landlock: i64,
    /// Memory groups for workers can be made.
    pub groups: bool,
    /// The privilege to give a worker its own `/dev/shm`.
    pub mounts: bool,
}

/// Checks what there is, and changes nothing.
pub fn offered() -> Offered {
    let held = rustix::thread::capabilities(None).map(|sets| sets.effective);
    Offered {
        filters: sandbox::is_supported(),
        answers: sandbox::can_ask(),
        landlock: landlock::version(),
        groups: GroupHome::is_likely(&Host::this()),
        mounts: held.is_ok_and(|held| held.contains(CapabilitySet::SYS_ADMIN)),
    }
}
