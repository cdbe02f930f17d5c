//! What this kernel offers to keep workers within their bounds.

use crate::groups::GroupHome;
use crate::{landlock, sandbox};
use plimsoll_memory::host::Host;
use rustix::thread::CapabilitySet;

/// What there is here; what is missing is described in `docs/errors/machine-workers.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Seccomp filters: no network, no GPU, no signals to others.
    pub filters: bool,
    /// Filters that ask the keeper (Linux 5.5).
    pub answers: bool,
    /// The version of Landlock; 0 without it.
    pub landlock: i64,
    /// Memory groups for workers.
    pub groups: bool,
    /// The right to give a worker a `/dev/shm` of its own.
    pub mounts: bool,
}

/// Looks, and changes nothing.
pub fn offered() -> Offered {
    let held = rustix::thread::capabilities(None).map(|sets| sets.effective);
    Offered {
        filters: sandbox::is_there(),
        answers: sandbox::can_ask(),
        landlock: landlock::version(),
        groups: GroupHome::is_likely(&Host::this()),
        mounts: held.is_ok_and(|held| held.contains(CapabilitySet::SYS_ADMIN)),
    }
}
