//! Does what the first process of a worker does to itself between fork and exec: session, limits, rules.
//!
//! A keeper forks, and it has one thread, so memory may be allocated here.

use crate::landlock;
use crate::message;
use crate::sandbox::{self, Answers, Author, Rules};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets, UnshareFlags};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// Out of memory, workers are killed before their parent.
const OOM_POINTS: i32 = 500;
/// Most files that a model's program may have open.
const OPEN_FILES_MAX: u64 = 256;
/// Where named shared memory is.
const SHARED_MEMORY: &str = "/dev/shm";

/// The limits of every process of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bounds {
    pub rules: Rules,
    /// Memory limit in bytes.
    pub memory: u64,
    /// True if `memory` bounds private memory (RLIMIT_DATA), false for the address space (RLIMIT_AS).
    pub is_private: bool,
    /// Largest file it may write, in bytes, if limited (RLIMIT_FSIZE).
    pub file: Option<u64>,
    /// The only folder in which a model's program may write.
    pub folder: Option<PathBuf>,
}

impl Bounds {
    /// Puts this process under the limits. `parent`: dies with it. `questions`: gets the descriptor from which the
    /// keeper reads the filter's questions; without it there are no answers, and `outside` gets no signals.
    pub(crate) fn enter(
        &self,
        parent: Option<Pid>,
        questions: Option<&OwnedFd>,
        outside: &[u32],
    ) -> std::io::Result<()> {
        rustix::process::setsid()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the signal was armed; then it would never arrive.
        if rustix::process::getppid() != parent {
            return Err(Errno::SRCH.into());
        }
        raise_oom_score();
        let is_model = self.rules.author == Author::Model;
        self.limit(is_model)?;
        if is_model {
            drop_capabilities()?;
        } else {
            // Best effort: it takes a privilege. `plimsoll doctor` reports whether it is granted.
            let _ = own_shared_memory(self.memory);
        }
        // Without filters nothing can be blocked; launches that depend on it were refused earlier.
        if !sandbox::is_supported() {
            return Ok(());
        }
        let rules = match &self.folder {
            Some(folder) => landlock::writes_in(folder),
            None => landlock::signals_inside(),
        };
        rules.map_or(Ok(()), |rules| landlock::confine(&rules))?;
        // Last, so that it cannot refuse the calls above.
        match questions {
            None => sandbox::enter(self.rules, Answers::None(outside)).map(drop),
            Some(socket) => match sandbox::enter(self.rules, Answers::Keeper)? {
                Some(listener) => message::send_with(socket.as_fd(), b"!", listener.as_fd()),
                None => Ok(()),
            },
        }
    }

    fn limit(&self, is_model: bool) -> std::io::Result<()> {
        let set = |resource, bytes: u64| {
            rustix::process::setrlimit(resource, Rlimit { current: Some(bytes), maximum: Some(bytes) })
        };
        set(if self.is_private { Resource::Data } else { Resource::As }, self.memory)?;
        // A worker's core file is useless and may be gigabytes.
        set(Resource::Core, 0)?;
        self.file.map_or(Ok(()), |bytes| set(Resource::Fsize, bytes))?;
        let open = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        if is_model { Ok(set(Resource::Nofile, open.min(OPEN_FILES_MAX))?) } else { Ok(()) }
    }
}

/// Raises this process's out-of-memory score. Best effort: without it the kernel chooses by size alone.
fn raise_oom_score() {
    const PATH: &str = "/proc/self/oom_score_adj";
    let own: i32 = std::fs::read_to_string(PATH).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let _ = std::fs::write(PATH, (own + OOM_POINTS).min(1000).to_string());
}

/// Drops every capability from every set, so a program that root starts reads no other user's private files either.
fn drop_capabilities() -> std::io::Result<()> {
    let held = rustix::thread::capabilities(None)?.permitted;
    if held.is_empty() {
        return Ok(());
    }
    // Otherwise a program that root starts would get them back. Both calls need this capability, so it goes last;
    // without it, the filter's `no_new_privs` has the same effect.
    if held.contains(CapabilitySet::SETPCAP) {
        let bits = CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED;
        rustix::thread::set_capabilities_secure_bits(bits)?;
        for bit in 0..u64::BITS {
            match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(
                1 << bit,
            )) {
                // Beyond this kernel's last capability.
                Err(Errno::INVAL) => break,
                dropped => dropped?,
            }
        }
    }
    let none = CapabilitySet::empty();
    // Ambient capabilities go with them: that set is never larger than these two.
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Gives this process and its children their own `/dev/shm`, which ends with them.
fn own_shared_memory(bytes: u64) -> std::io::Result<()> {
    // SAFETY: only the table of mounts is unshared; descriptors stay as they are.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    // Mounts made outside still show up inside, but not the reverse.
    let below = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", below)?;
    let size = CString::new(format!("size={bytes},mode=1777"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("plimsoll-worker", SHARED_MEMORY, "tmpfs", flags, &*size)?;
    Ok(())
}
