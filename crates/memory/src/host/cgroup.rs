//! Control groups: this process's place in the hierarchies of v1 and v2, and the files of each group above it.

use super::parse::{self, Value};
use std::fs;
use std::path::{Path, PathBuf};

/// A group of this process with its mount and version.
#[derive(Clone, Debug)]
pub(crate) struct Cgroup {
    dir: PathBuf,
    mount: PathBuf,
    pub version: u8,
}

/// One memory group: the process's own or one above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryGroup {
    /// The directory of its files.
    pub dir: PathBuf,
    pub version: u8,
}

impl Cgroup {
    /// Finds the group of a v1 controller, or of v2 if `controller` is empty, on the machine below `root`.
    pub fn find(root: &Path, controller: &str) -> Option<Cgroup> {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
        let path = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let ours = match controller {
                "" => id == "0" && controllers.is_empty(),
                c => controllers.split(',').any(|name| name == c),
            };
            ours.then_some(path)
        })?;
        let (mount, mount_root) = mount_of(root, controller)?;
        // In a container the mount shows a subtree, and the process's path is relative to the subtree's root. A path
        // that leads out of the namespace is not below the mount.
        let relative = path.strip_prefix(&mount_root).unwrap_or(path).trim_start_matches('/');
        let dir =
            if relative.split('/').any(|part| part == "..") { mount.clone() } else { mount.join(relative) };
        let dir = if dir.is_dir() { dir } else { mount.clone() };
        Some(Cgroup { dir, mount, version: if controller.is_empty() { 2 } else { 1 } })
    }

    /// Returns the group's directory and those above it, up to the mount.
    pub fn ancestors(&self) -> Vec<PathBuf> {
        self.dir.ancestors().take_while(|dir| dir.starts_with(&self.mount)).map(Path::to_path_buf).collect()
    }
}

/// Returns the memory groups that limit this process, its own first.
pub(crate) fn memory_groups(root: &Path) -> Vec<MemoryGroup> {
    let group = Cgroup::find(root, "memory").or_else(|| Cgroup::find(root, ""));
    let Some(group) = group else { return Vec::new() };
    let of = |dir| MemoryGroup { dir, version: group.version };
    group.ancestors().into_iter().map(of).collect()
}

/// Returns where the hierarchy is mounted, and which of its directories is the mount's root.
fn mount_of(root: &Path, controller: &str) -> Option<(PathBuf, String)> {
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (fs_type, options) = (right.next()?, right.nth(1)?);
        let ours = match controller {
            "" => fs_type == "cgroup2",
            c => fs_type == "cgroup" && options.split(',').any(|o| o == c),
        };
        let mut left = left.split(' ').skip(3);
        let (subtree, mount) = (left.next()?, left.next()?);
        let subtree = if subtree == "/" { "" } else { subtree };
        ours.then(|| (root.join(mount.trim_start_matches('/')), subtree.to_string()))
    })
}

impl MemoryGroup {
    /// Returns the files that set a limit on memory, and their values.
    pub fn limits(&self) -> Vec<(&'static str, Value)> {
        let files: &[&'static str] = match self.version {
            2 => &["memory.max", "memory.high"],
            _ => &["memory.limit_in_bytes"],
        };
        files.iter().map(|&file| (file, parse::limit(self.read(file).as_deref()))).collect()
    }

    /// Returns the limit on swap (v2) or on memory and swap together (v1).
    pub fn swap_limit(&self) -> (&'static str, Value) {
        let file = if self.version == 2 { "memory.swap.max" } else { "memory.memsw.limit_in_bytes" };
        (file, parse::limit(self.read(file).as_deref()))
    }

    /// Returns everything charged to the group now, including page cache.
    pub fn usage(&self) -> Option<u64> {
        let file = if self.version == 2 { "memory.current" } else { "memory.usage_in_bytes" };
        parse::number(self.read(file).as_deref()).bytes()
    }

    /// Returns the highest charge so far; v2 has it since Linux 5.19.
    pub fn peak(&self) -> Option<u64> {
        let file = if self.version == 2 { "memory.peak" } else { "memory.max_usage_in_bytes" };
        parse::number(self.read(file).as_deref()).bytes()
    }

    /// Returns the anonymous and shared memory charged to the group and those below it, which cannot be reclaimed.
    pub fn anon_and_shmem(&self) -> Option<u64> {
        let stat = self.read("memory.stat")?;
        let field = |name: &str| parse::plain_field(&stat, name);
        match self.version {
            2 => Some(field("anon")?.saturating_add(field("shmem").unwrap_or(0))),
            _ => Some(field("total_rss")?.saturating_add(field("total_shmem").unwrap_or(0))),
        }
    }

    /// Returns the kernel memory charged to the group: page tables, stacks, slabs.
    pub fn kernel(&self) -> Option<u64> {
        match self.version {
            2 => parse::plain_field(&self.read("memory.stat")?, "kernel"),
            _ => parse::number(self.read("memory.kmem.usage_in_bytes").as_deref()).bytes(),
        }
    }

    /// Returns the processes that the OOM killer ended, for any cause: in this group and, with v2, in those below it.
    pub fn oom_kills(&self) -> Option<u64> {
        let file = if self.version == 2 { "memory.events" } else { "memory.oom_control" };
        parse::plain_field(&self.read(file)?, "oom_kill")
    }

    /// Returns the processes that the OOM killer ended in this group alone.
    pub fn own_oom_kills(&self) -> Option<u64> {
        match self.version {
            2 => parse::plain_field(&self.own_events()?, "oom_kill"),
            _ => self.oom_kills(),
        }
    }

    /// Returns how often this group's own limit was hit: the `oom` events of v2, the failed charges of v1.
    pub fn limit_hits(&self) -> Option<u64> {
        match self.version {
            2 => parse::plain_field(&self.own_events()?, "oom"),
            _ => {
                // If memory and swap have a common limit, that one is hit.
                let hits = |file: &str| parse::number(self.read(file).as_deref()).bytes();
                Some(hits("memory.failcnt")?.saturating_add(hits("memory.memsw.failcnt").unwrap_or(0)))
            }
        }
    }

    /// Returns an event count of this group without those below it, which Linux distinguishes since 5.2.
    fn own_events(&self) -> Option<String> {
        self.read("memory.events.local").or_else(|| self.read("memory.events"))
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.dir.join(file)).ok()
    }
}

/// Returns the number of CPUs' time that the groups allow; `None` without a quota.
pub(crate) fn cpu_quota(root: &Path) -> Option<f64> {
    let mut smallest: Option<f64> = None;
    for controller in ["cpu", ""] {
        let Some(group) = Cgroup::find(root, controller) else { continue };
        for dir in group.ancestors() {
            let quota = if group.version == 2 { quota_v2(&dir) } else { quota_v1(&dir) };
            smallest = match (smallest, quota) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
    }
    smallest
}

/// Returns the smallest limit on processes and threads, and the file that sets it.
pub(crate) fn pids_max(root: &Path) -> (Value, Option<PathBuf>) {
    let group = Cgroup::find(root, "pids").or_else(|| Cgroup::find(root, ""));
    let files = group.iter().flat_map(Cgroup::ancestors).map(|dir| dir.join("pids.max"));
    let mut best = (Value::Unknown, None);
    for path in files {
        let value = match parse::number(fs::read_to_string(&path).ok().as_deref()) {
            Value::Bytes(count) => Value::Count(count),
            value => value,
        };
        let better = match (&value, &best.0) {
            (Value::Count(new), Value::Count(old)) => new < old,
            (Value::Count(_), _) | (Value::NoLimit | Value::Malformed(_), Value::Unknown) => true,
            _ => false,
        };
        if better {
            best = (value, Some(path));
        }
    }
    best
}

/// A group's limit on processes and threads, and their number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskGroup {
    /// The file that sets the limit.
    pub file: PathBuf,
    pub max: u64,
    /// Current processes and threads.
    pub now: u64,
}

/// Returns the groups that limit processes and threads, this process's own first.
pub(crate) fn task_groups(root: &Path) -> Vec<TaskGroup> {
    let group = Cgroup::find(root, "pids").or_else(|| Cgroup::find(root, ""));
    let number = |path: &Path| parse::number(fs::read_to_string(path).ok().as_deref()).bytes();
    let of = |dir: PathBuf| {
        let file = dir.join("pids.max");
        Some(TaskGroup { max: number(&file)?, now: number(&dir.join("pids.current"))?, file })
    };
    group.iter().flat_map(Cgroup::ancestors).filter_map(of).collect()
}

fn quota_v2(dir: &Path) -> Option<f64> {
    let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    parse::quota(quota, period)
}

fn quota_v1(dir: &Path) -> Option<f64> {
    let read = |file: &str| fs::read_to_string(dir.join(file)).ok();
    parse::quota(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?)
}
