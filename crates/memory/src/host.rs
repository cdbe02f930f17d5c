//! What the host allows and what it holds: /proc, cgroup v1 and v2 of this process and all its ancestors.
//!
//! Everything is read through a root directory, so that tests can show a machine of their own making. A file that
//! cannot be read is no limit; a limit is never guessed.

use crate::plan::Limit;
use plimsoll_base::Bytes;
use std::fs;
use std::path::{Path, PathBuf};

/// cgroup v1's "no limit": i64::MAX rounded down to a page.
const V1_NO_LIMIT: u64 = 0x7FFF_FFFF_FFFF_F000;

/// Resident memory of this process by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    /// Now.
    pub now: Bytes,
    /// Highest since the process started.
    pub peak: Bytes,
    /// Anonymous pages.
    pub anon: Bytes,
    /// Pages of files: the binary and its libraries.
    pub file: Bytes,
    /// Shared memory.
    pub shmem: Bytes,
}

/// Readings of one host, below a root directory.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

/// One memory cgroup and its version.
#[derive(Debug)]
struct Cgroup {
    dir: PathBuf,
    mount: PathBuf,
    version: u8,
}

impl Host {
    /// This machine.
    pub fn this() -> Host {
        Host { root: PathBuf::from("/") }
    }

    /// A machine made of files below `root`, for tests.
    pub fn below(root: &Path) -> Host {
        Host { root: root.to_path_buf() }
    }

    /// Host memory that this process may come to use, and where the number comes from.
    ///
    /// Within a container: its limit (the smallest of all ancestors) less anonymous and shared memory of other
    /// processes in it. Never more than what is free on the machine, swap left out, plus what we hold already.
    pub fn memory_limit(&self) -> Option<Limit> {
        let free = self.free_memory();
        match (self.container_limit(), free) {
            (Some(container), Some(free)) if container.bytes <= free.bytes => Some(container),
            (container, None) => container,
            (_, free) => free,
        }
    }

    /// Resident memory of this process.
    pub fn rss(&self) -> Rss {
        let Some(status) = self.read("proc/self/status") else { return Rss::default() };
        let field = |name: &str| Bytes(kib_field(&status, name).unwrap_or(0));
        Rss {
            now: field("VmRSS:"),
            peak: field("VmHWM:"),
            anon: field("RssAnon:"),
            file: field("RssFile:"),
            shmem: field("RssShmem:"),
        }
    }

    /// Bytes of the binary and its libraries as mapped: the most that their pages can come to hold.
    pub fn image_bytes(&self) -> Bytes {
        let maps = self.read("proc/self/maps").unwrap_or_default();
        let bytes = maps.lines().filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let (range, path) = (fields.next()?, fields.nth(4)?);
            let (start, end) = range.split_once('-')?;
            let size = u64::from_str_radix(end, 16).ok()? - u64::from_str_radix(start, 16).ok()?;
            path.starts_with('/').then_some(size)
        });
        Bytes(bytes.sum())
    }

    /// Processors that this process may use: its affinity, cut by the container's CPU quota; at least 1.
    pub fn threads(&self) -> usize {
        let affinity = std::thread::available_parallelism().map_or(1, |n| n.get());
        match self.cpu_quota() {
            Some(quota) => affinity.min((quota.floor() as usize).max(1)),
            None => affinity,
        }
    }

    /// Processors' worth of time that the container may use.
    pub fn cpu_quota(&self) -> Option<f64> {
        let mut smallest: Option<f64> = None;
        for controller in ["cpu", ""] {
            let Some(group) = self.cgroup(controller) else { continue };
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

    fn free_memory(&self) -> Option<Limit> {
        let available = kib_field(&self.read("proc/meminfo")?, "MemAvailable:")?;
        let own = self.rss();
        Some(Limit {
            bytes: Bytes(available + own.anon.0 + own.shmem.0),
            source: "free memory of the machine".into(),
        })
    }

    fn container_limit(&self) -> Option<Limit> {
        let group = self.cgroup("memory").or_else(|| self.cgroup(""))?;
        let mut best: Option<(u64, PathBuf, &'static str)> = None;
        for dir in group.ancestors() {
            let files: &[&'static str] =
                if group.version == 2 { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
            for &file in files {
                let Some(bytes) = limit_in(&dir.join(file)) else { continue };
                if best.as_ref().is_none_or(|(least, ..)| bytes < *least) {
                    best = Some((bytes, dir.clone(), file));
                }
            }
        }
        let (bytes, dir, file) = best?;
        let others = self.used_by_others(&dir, group.version);
        let left = bytes.saturating_sub(others);
        let used =
            if others > 0 { format!(", less {} of other processes", Bytes(others)) } else { String::new() };
        let source = format!("cgroup v{} {file} {}{used}", group.version, Bytes(bytes));
        Some(Limit { bytes: Bytes(left), source })
    }

    /// Anonymous and shared memory charged to a cgroup, less our own.
    fn used_by_others(&self, dir: &Path, version: u8) -> u64 {
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let field = |name: &str| plain_field(&stat, name).unwrap_or(0);
        let charged = match version {
            2 => field("anon") + field("shmem"),
            _ => field("total_rss") + field("total_shmem"),
        };
        let own = self.rss();
        charged.saturating_sub(own.anon.0 + own.shmem.0)
    }

    /// The cgroup of this process for a v1 controller, or of v2 when `controller` is empty.
    fn cgroup(&self, controller: &str) -> Option<Cgroup> {
        let groups = self.read("proc/self/cgroup")?;
        let path = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let ours = match controller {
                "" => id == "0" && controllers.is_empty(),
                c => controllers.split(',').any(|name| name == c),
            };
            ours.then(|| path.to_string())
        })?;
        let (mount, mount_root) = self.cgroup_mount(controller)?;
        // Within a container the mount shows a subtree: the process's path is relative to the subtree's root.
        let relative = path.strip_prefix(&mount_root).unwrap_or(&path).trim_start_matches('/').to_string();
        let dir = mount.join(relative);
        let dir = if dir.is_dir() { dir } else { mount.clone() };
        Some(Cgroup { dir, mount, version: if controller.is_empty() { 2 } else { 1 } })
    }

    /// Where the hierarchy is mounted, and which of its directories is the mount's root.
    fn cgroup_mount(&self, controller: &str) -> Option<(PathBuf, String)> {
        let mounts = self.read("proc/self/mountinfo")?;
        mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            let (fs_type, options) = (right.next()?, right.nth(1)?);
            let ours = match controller {
                "" => fs_type == "cgroup2",
                c => fs_type == "cgroup" && options.split(',').any(|o| o == c),
            };
            let mut left = left.split(' ').skip(3);
            let (root, mount) = (left.next()?, left.next()?);
            let root = if root == "/" { "" } else { root };
            ours.then(|| (self.root.join(mount.trim_start_matches('/')), root.to_string()))
        })
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }
}

/// Bytes that an ordinary user may still write at `path`.
pub fn free_disk(path: &Path) -> Option<Bytes> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(Bytes(stat.f_bavail.saturating_mul(stat.f_frsize)))
}

impl Cgroup {
    /// The group's directory and those above it, up to the mount.
    fn ancestors(&self) -> Vec<PathBuf> {
        let mut dirs = Vec::new();
        let mut dir = self.dir.as_path();
        loop {
            dirs.push(dir.to_path_buf());
            if dir == self.mount {
                return dirs;
            }
            match dir.parent() {
                Some(parent) if parent.starts_with(&self.mount) => dir = parent,
                _ => return dirs,
            }
        }
    }
}

/// A limit in a cgroup file; "max" and v1's sentinel are none.
fn limit_in(path: &Path) -> Option<u64> {
    let bytes = fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()?;
    (bytes < V1_NO_LIMIT).then_some(bytes)
}

fn quota_v2(dir: &Path) -> Option<f64> {
    let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    ratio(quota, period)
}

fn quota_v1(dir: &Path) -> Option<f64> {
    let read = |file: &str| fs::read_to_string(dir.join(file)).ok();
    ratio(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?)
}

/// quota / period; "max" and -1 do not parse as a positive number and are no quota.
fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.trim().parse::<f64>().ok()?, period.trim().parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// `Name:   123 kB` in bytes.
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|l| l.starts_with(name))?;
    line[name.len()..].trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `name 123` in a memory.stat.
fn plain_field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with 16 GiB free and the given files.
    fn machine(name: &str, files: &[(&str, &str)]) -> Host {
        let root = std::env::temp_dir().join(format!("plimsoll-host-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let base = [
            ("proc/meminfo", "MemTotal: 33554432 kB\nMemAvailable:   16777216 kB\n"),
            (
                "proc/self/status",
                "VmHWM:  2048 kB\nVmRSS:  1024 kB\nRssAnon:  1024 kB\nRssFile:  0 kB\nRssShmem: 0 kB\n",
            ),
        ];
        for (path, text) in base.iter().chain(files) {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Host::below(&root)
    }

    const V2: &str = "24 22 0:21 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const V1: &str = "30 22 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    #[test]
    fn the_smallest_limit_of_all_ancestors_counts() {
        let host = machine(
            "v2",
            &[
                ("proc/self/cgroup", "0::/a/b\n"),
                ("proc/self/mountinfo", V2),
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("sys/fs/cgroup/a/memory.max", "8589934592\n"),
                ("sys/fs/cgroup/a/memory.high", "4294967296\n"),
                ("sys/fs/cgroup/a/memory.stat", "anon 1074790400\nshmem 0\n"),
                ("sys/fs/cgroup/a/b/cpu.max", "150000 100000\n"),
            ],
        );
        let limit = host.memory_limit().unwrap();
        assert_eq!(limit.bytes, Bytes((4 << 30) - (1 << 30)), "{}", limit.source);
        assert!(
            limit.source.contains("memory.high") && limit.source.contains("other processes"),
            "{}",
            limit.source
        );
        assert_eq!(host.cpu_quota(), Some(1.5));
    }

    #[test]
    fn version_1_has_a_sentinel_for_no_limit() {
        let files = |limit: &'static str| {
            [
                ("proc/self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/\n"),
                ("proc/self/mountinfo", V1),
                ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", limit),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ]
        };
        let limit = machine("v1", &files("1073741824\n")).memory_limit().unwrap();
        assert_eq!(
            (limit.bytes, limit.source.as_str()),
            (Bytes(1 << 30), "cgroup v1 memory.limit_in_bytes 1.0 GiB")
        );
        let limit = machine("v1-none", &files("9223372036854771712\n")).memory_limit().unwrap();
        assert_eq!(limit.bytes, Bytes((16 << 30) + (1 << 20)));
    }

    #[test]
    fn a_container_that_shows_its_own_subtree_is_read_at_the_mount() {
        let host = machine(
            "subtree",
            &[
                ("proc/self/cgroup", "4:memory:/docker/abc\n"),
                (
                    "proc/self/mountinfo",
                    "30 22 0:30 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
                ),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
            ],
        );
        assert_eq!(host.memory_limit().unwrap().bytes, Bytes(2 << 30));
    }

    #[test]
    fn a_machine_that_hides_everything_has_no_limit() {
        let host = Host::below(Path::new("/nonexistent"));
        assert_eq!((host.memory_limit(), host.rss()), (None, Rss::default()));
        assert!(host.threads() >= 1);
    }
}
