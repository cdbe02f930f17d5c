//! Memory cgroups of workers: where groups can be made below this process's, each worker has one and the kernel
//! enforces its limit. It needs no privilege; where groups cannot be made, readings enforce the limit.
//!
//! A group is removed when its worker has ended. If its maker was killed, the worker's keeper removes it; leftovers are
//! removed by the next process that makes groups in the same place.

use crate::procs;
use plimsoll_base::Bytes;
use plimsoll_memory::host::{Host, MemoryGroup};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The child group that this process moves to in a delegated group, so that it can have siblings.
const OWN: &str = "plimsoll";
/// Prefix of group names; process namespace, process id, its start time and a number follow.
const PREFIX: &str = "plimsoll-env-";
/// Charges are batched: the peak of a full group may be slightly below its limit.
const PEAK_SLACK: u64 = 1 << 20;
/// Time for a group to become empty after its last process has ended.
const REMOVE_TIME: Duration = Duration::from_millis(500);
const REMOVE_TICK: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub struct GroupHome {
    dir: PathBuf,
    /// This process's group; a keeper returns to it before it removes its own.
    own: PathBuf,
    version: u8,
}

/// The group of one worker, removed on drop.
#[derive(Debug)]
pub struct WorkerGroup {
    group: MemoryGroup,
    own: PathBuf,
}

/// Processes of a group that the kernel killed.
#[derive(Clone, Debug)]
pub struct GroupKill {
    /// The group's numbers, in words.
    pub fact: String,
    /// True if the group's own limit was hit, not one above it.
    pub by_own_limit: bool,
}

/// A group, as its keeper sees it.
pub(crate) struct Joined {
    dir: PathBuf,
    own: PathBuf,
}

impl GroupHome {
    /// Finds a place where groups with limits can be made, and removes groups of dead processes. In a version 2 group
    /// that systemd delegates to this process alone (`Delegate=yes`), moves this process to a child group.
    pub fn find(host: &Host) -> Option<GroupHome> {
        let own = host.memory_groups().into_iter().next()?;
        if own.version == 2 && is_delegated(&own.dir) && processes(&own.dir) == [std::process::id()] {
            // Best effort: failures leave the groups unchanged.
            let _ = make_room(&own.dir);
        }
        let home = candidates(&host.memory_groups())?;
        if home.version == 2 && !may_write(&home.dir.join("cgroup.procs")) {
            return None;
        }
        home.sweep();
        // Shows whether the kernel accepts a group with a limit.
        home.make(Bytes::mib(64)).ok()?;
        Some(home)
    }

    /// Returns true if `find` would try a place here. Makes and moves nothing.
    pub(crate) fn is_likely(host: &Host) -> bool {
        let groups = host.memory_groups();
        let Some(own) = groups.first() else { return false };
        let home = candidates(&groups).map(|home| home.dir);
        let dir = home.or_else(|| (own.version == 2 && is_delegated(&own.dir)).then(|| own.dir.clone()));
        dir.is_some_and(|dir| may_write(&dir) && may_write(&dir.join("cgroup.procs")))
    }

    /// Describes the place, with its path.
    pub fn describe(&self) -> String {
        format!("memory group (cgroup v{}) below {}", self.version, self.dir.display())
    }

    /// Makes a group whose processes hold at most `memory` together.
    pub fn make(&self, memory: Bytes) -> std::io::Result<WorkerGroup> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (identity(std::process::id())?, NUMBER.fetch_add(1, Ordering::Relaxed));
        let dir = self.dir.join(format!("{PREFIX}{process}-{number}"));
        fs::create_dir(&dir)?;
        let group = MemoryGroup { dir, version: self.version };
        let made = WorkerGroup { own: self.own.clone(), group };
        let set = |file: &str, value: String| write_to(&made.group.dir.join(file), &value);
        if self.version == 2 {
            set("memory.max", memory.0.to_string())?;
            // No swap, so the limit covers all memory; the file may be missing. No worker outlives a killed process.
            let _ = set("memory.swap.max", "0".into());
            let _ = set("memory.oom.group", "1".into());
        } else {
            set("memory.limit_in_bytes", memory.0.to_string())?;
            let _ = set("memory.memsw.limit_in_bytes", memory.0.to_string());
        }
        Ok(made)
    }

    /// Removes groups whose makers are gone.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(maker) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
            // Process ids of another namespace mean nothing here.
            let Some((maker, _)) = maker.rsplit_once('-') else { continue };
            let is_ours = namespace().is_ok_and(|own| maker.split('-').next() == Some(&own.to_string()));
            let pid = maker.split('-').nth(1).and_then(|pid| pid.parse().ok());
            if let (true, Some(pid)) = (is_ours, pid)
                && identity(pid).ok().as_deref() != Some(maker)
            {
                procs::kill_all(processes(&entry.path()));
                remove(&entry.path());
            }
        }
    }
}

impl WorkerGroup {
    /// Returns the arguments with which a keeper joins.
    pub(crate) fn arguments(&self) -> [PathBuf; 2] {
        [self.group.dir.clone(), self.own.clone()]
    }

    /// Returns how many of its processes the kernel has killed for lack of memory.
    pub(crate) fn kills(&self) -> Option<u64> {
        self.group.oom_kills()
    }

    /// Returns the kernel's counts, if it killed processes in the group.
    pub fn killed(&self) -> Option<GroupKill> {
        let kills = self.group.oom_kills()?;
        if kills == 0 {
            return None;
        }
        let limits = self.group.limits();
        let limit = limits.iter().find_map(|(file, value)| Some((file, Bytes(value.bytes()?))));
        let mut words = Vec::new();
        words.extend(limit.map(|(file, bytes)| format!("{file} {bytes}")));
        words.extend(self.group.peak().map(|bytes| format!("peak {}", Bytes(bytes))));
        words.push(format!("{kills} processes killed by the kernel"));
        let fact = format!("{}: {}", self.group.dir.display(), words.join(", "));
        // Some version 1 kernels do not count hits of the limit on memory plus swap: the peak shows them.
        let is_full =
            limit.zip(self.group.peak()).is_some_and(|((_, limit), peak)| peak + PEAK_SLACK >= limit.0);
        let by_own_limit = self.group.limit_hits().is_none_or(|hits| hits > 0) || is_full;
        Some(GroupKill { fact, by_own_limit })
    }

    pub fn processes(&self) -> Vec<u32> {
        processes(&self.group.dir)
    }
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        procs::kill_all(self.processes());
        remove(&self.group.dir);
    }
}

impl Joined {
    /// Moves this process into the group, which from then on limits it and all its children.
    pub(crate) fn join(dir: &Path, own: &Path) -> std::io::Result<Joined> {
        write_to(&dir.join("cgroup.procs"), "0")?;
        Ok(Joined { dir: dir.to_path_buf(), own: own.to_path_buf() })
    }

    /// Moves back and removes the group. Best effort: the next process that makes groups removes leftovers.
    pub(crate) fn leave(&self) {
        if write_to(&self.own.join("cgroup.procs"), "0").is_ok() {
            remove(&self.dir);
        }
    }
}

/// Returns where groups might be made. `groups`: this process's and those above it, its own first.
fn candidates(groups: &[MemoryGroup]) -> Option<GroupHome> {
    let own = groups.first()?;
    let home =
        |dir: &Path| Some(GroupHome { dir: dir.to_path_buf(), own: own.dir.clone(), version: own.version });
    if own.version == 1 || hands_memory_on(&own.dir) {
        return home(&own.dir);
    }
    // Version 2 groups with processes pass no controllers on: new groups are siblings, so this one must have no limit.
    let is_unlimited = own.limits().iter().all(|(_, value)| value.bytes().is_none());
    let above = groups.get(1).filter(|_| is_unlimited)?;
    if !hands_memory_on(&above.dir) && is_delegated(&above.dir) {
        let _ = write_to(&above.dir.join("cgroup.subtree_control"), "+memory");
    }
    hands_memory_on(&above.dir).then(|| home(&above.dir)).flatten()
}

/// Lets this process's own group pass the memory controller on: it must be empty, so this process moves below.
fn make_room(dir: &Path) -> std::io::Result<()> {
    let below = dir.join(OWN);
    fs::create_dir_all(&below)?;
    write_to(&below.join("cgroup.procs"), "0")?;
    write_to(&dir.join("cgroup.subtree_control"), "+memory")
}

/// Returns true if groups below this version 2 group may limit memory.
fn hands_memory_on(dir: &Path) -> bool {
    let control = fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap_or_default();
    control.split_ascii_whitespace().any(|name| name == "memory")
}

/// Returns true if systemd has delegated this group.
fn is_delegated(dir: &Path) -> bool {
    ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0u8; 8];
        rustix::fs::getxattr(dir, *name, &mut value[..]).is_ok_and(|length| &value[..length] == b"1")
    })
}

/// Returns the id of this process's PID namespace.
fn namespace() -> std::io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/pid")?.ino())
}

/// Identifies a process even if its pid is reused: namespace, pid and start time.
fn identity(pid: u32) -> std::io::Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Field 22 of the line, counted after the name.
    let start = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(19));
    let start = start.ok_or_else(|| std::io::Error::other("a process without a start"))?;
    Ok(format!("{}-{pid}-{start}", namespace()?))
}

fn processes(dir: &Path) -> Vec<u32> {
    let list = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    list.lines().filter_map(|pid| pid.parse().ok()).filter(|&pid| pid != 0).collect()
}

fn may_write(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Writes to an existing kernel file.
fn write_to(path: &Path, value: &str) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

/// Removes a group as soon as it is empty.
fn remove(dir: &Path) {
    let until = Instant::now() + REMOVE_TIME;
    while fs::remove_dir(dir).is_err() && dir.is_dir() && Instant::now() < until {
        std::thread::sleep(REMOVE_TICK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(root: &Path, dir: &str, files: &[(&str, &str)]) -> MemoryGroup {
        let dir = root.join(dir);
        fs::create_dir_all(&dir).unwrap();
        for (file, text) in files {
            fs::write(dir.join(file), text).unwrap();
        }
        MemoryGroup { dir, version: 2 }
    }

    #[test]
    fn siblings_are_made_only_where_memory_is_handed_on_and_ours_has_no_limit() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let above = group(root, "a", &[("cgroup.subtree_control", "cpu memory\n")]);
        let closed = group(root, "b", &[("cgroup.subtree_control", "cpu\n")]);
        let free = group(root, "a/free", &[("memory.max", "max\n"), ("cgroup.subtree_control", "")]);
        let bound = group(root, "a/bound", &[("memory.max", "1000000\n")]);
        let place = |groups: &[&MemoryGroup]| {
            let groups: Vec<MemoryGroup> = groups.iter().map(|&group| group.clone()).collect();
            candidates(&groups).map(|home| home.dir)
        };
        assert_eq!(place(&[&free, &above]), Some(above.dir.clone()));
        assert_eq!(place(&[&bound, &above]), None);
        assert_eq!(place(&[&free, &closed]), None);
        assert_eq!(place(&[&free]), None);
        assert_eq!(place(&[&above]), Some(above.dir.clone()));
        assert_eq!(place(&[&MemoryGroup { version: 1, ..bound.clone() }]), Some(bound.dir));
        // A tree of plain files accepts no group with a limit.
        assert!(GroupHome { dir: above.dir.clone(), own: above.dir, version: 2 }.make(Bytes(1)).is_err());
    }

    #[test]
    fn a_group_is_removed_with_its_owner_and_after_it() {
        let Some(home) = GroupHome::find(&Host::this()) else {
            eprintln!("skipped: memory groups cannot be made here");
            return;
        };
        let made = home.make(Bytes::mib(64)).unwrap();
        let dir = made.group.dir.clone();
        assert!(dir.is_dir() && made.killed().is_none() && made.processes().is_empty());
        assert_eq!(made.group.limits()[0].1.bytes(), Some(64 << 20));
        drop(made);
        assert!(!dir.is_dir());
        // A group of a dead process: this pid with another start.
        let left = home.dir.join(format!("{PREFIX}{}-{}-1-0", namespace().unwrap(), std::process::id()));
        fs::create_dir(&left).unwrap();
        home.sweep();
        assert!(!left.is_dir());
    }
}
