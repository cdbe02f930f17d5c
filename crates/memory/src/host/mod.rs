//! The host's limits and readings: /proc, cgroup v1 and v2 of this process and all its ancestors.
//!
//! Reads below a root directory, so tests can make up a machine. An unreadable file is no limit: none is guessed.

mod cgroup;
mod limits;
mod oom;
pub mod parse;
mod rss;

pub use cgroup::{MemoryGroup, TaskGroup};
pub use limits::Reading;
pub use oom::{GroupChange, KernelLine, OomEvidence, OomWatch};
pub use rss::{Rss, RssReader};

use crate::plan::{Limit, Limits};
use parse::kib_field;
use plimsoll_base::Bytes;
use std::fs;
use std::path::{Path, PathBuf};

/// Readings of one host, below a root directory.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

/// Most processes of a run to read; more would be thousands of workers.
const RUN_PIDS_MAX: usize = 4096;

impl Host {
    pub fn this() -> Host {
        Host { root: PathBuf::from("/") }
    }

    /// Returns a machine of files below `root`, for tests.
    pub fn below(root: &Path) -> Host {
        Host { root: root.to_path_buf() }
    }

    /// Returns the host memory that this run may use, and the source of the number.
    ///
    /// In a container: the smallest, over its group and all above it, of the limit less the anonymous and shared memory
    /// of processes outside the run. At most the machine's free memory, without swap, plus what the run holds.
    pub fn memory_limit(&self) -> Option<Limit> {
        let own = self.run_bytes();
        match (self.container_limit(own), self.free_memory(own)) {
            (Some(container), Some(free)) if container.bytes <= free.bytes => Some(container),
            (container, None) => container,
            (_, free) => free,
        }
    }

    /// Returns the limits of all pools for a run that writes below `dir`.
    pub fn limits(&self, dir: &Path) -> Limits {
        let disk = free_disk_above(dir)
            .map(|(bytes, place)| Limit { bytes, source: format!("free disk at {}", place.display()) });
        let shm = free_disk(&self.root.join("dev/shm"))
            .map(|bytes| Limit { bytes, source: "free space of /dev/shm".into() });
        Limits { host: self.memory_limit(), device: None, disk, shm }
    }

    /// Returns the memory groups that limit this process, its own first; empty without cgroups.
    pub fn memory_groups(&self) -> Vec<MemoryGroup> {
        cgroup::memory_groups(&self.root)
    }

    /// Returns the groups that limit processes and threads, this process's own first.
    pub fn task_groups(&self) -> Vec<TaskGroup> {
        cgroup::task_groups(&self.root)
    }

    /// Returns the processes and threads of this process's user, and whether `RLIMIT_NPROC` applies to them: the kernel
    /// exempts the machine's root and processes that may raise limits.
    pub fn tasks_of_user(&self) -> (u64, bool) {
        let own = self.read("proc/self/status").unwrap_or_default();
        let field = |status: &str, name: &str, at: usize| {
            let line = status.lines().find_map(|line| line.strip_prefix(name).map(str::to_string))?;
            line.split_ascii_whitespace().nth(at).map(str::to_string)
        };
        let user = field(&own, "Uid:", 0);
        let capable = field(&own, "CapEff:", 0).and_then(|bits| u64::from_str_radix(&bits, 16).ok());
        // CAP_SYS_ADMIN and CAP_SYS_RESOURCE.
        let is_spared =
            user.as_deref() == Some("0") || capable.is_some_and(|bits| bits & (1 << 21 | 1 << 24) != 0);
        let Ok(entries) = fs::read_dir(self.root.join("proc")) else { return (0, is_spared) };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let tasks = pids.filter_map(|pid| {
            let status = self.read(&format!("proc/{pid}/status"))?;
            let is_ours = field(&status, "Uid:", 0) == user;
            is_ours.then(|| field(&status, "Threads:", 0)?.parse::<u64>().ok()).flatten()
        });
        (tasks.sum(), is_spared)
    }

    /// Returns the resident memory of this process.
    pub fn rss(&self) -> Rss {
        self.read("proc/self/status").map_or_else(Rss::default, |status| Rss::parse(&status))
    }

    /// Returns the resident memory of another process; `None` once it has ended.
    pub fn rss_of(&self, pid: u32) -> Option<Rss> {
        self.read(&format!("proc/{pid}/status")).map(|status| Rss::parse(&status))
    }

    /// Returns the processes of this run: this one, its descendants, and its supervisor, which is the same program.
    pub fn run_pids(&self) -> Vec<u32> {
        let mut pids = vec![std::process::id()];
        pids.extend(self.supervisor());
        let mut next = self.children("self");
        while let Some(pid) = next.pop() {
            // The process tree changes while it is read; this bounds the walk.
            if pids.len() >= RUN_PIDS_MAX {
                break;
            }
            next.extend(self.children(&pid.to_string()));
            pids.push(pid);
        }
        pids
    }

    /// Returns the parent if it runs the same program: the supervisor of this run.
    pub fn supervisor(&self) -> Option<u32> {
        let status = self.read("proc/self/status")?;
        let parent: u32 = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
        let program = |who: &str| fs::read_link(self.root.join(format!("proc/{who}/exe"))).ok();
        (program("self").is_some() && program("self") == program(&parent.to_string())).then_some(parent)
    }

    fn children(&self, who: &str) -> Vec<u32> {
        let Ok(tasks) = fs::read_dir(self.root.join(format!("proc/{who}/task"))) else { return Vec::new() };
        let of_task =
            |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let lists: Vec<String> = tasks.flatten().map(of_task).collect();
        lists
            .iter()
            .flat_map(|list| list.split_ascii_whitespace())
            .filter_map(|pid| pid.parse().ok())
            .collect()
    }

    /// Returns the anonymous and shared memory of the run's processes.
    fn run_bytes(&self) -> u64 {
        let of = |pid: &u32| if *pid == std::process::id() { Some(self.rss()) } else { self.rss_of(*pid) };
        self.run_pids().iter().filter_map(of).map(|rss| rss.anon.0 + rss.shmem.0).sum()
    }

    /// Returns the mapped bytes of the binary and its libraries, a bound on their pages; without a card's driver.
    pub fn image_bytes(&self) -> Bytes {
        let maps = self.read("proc/self/maps").unwrap_or_default();
        let bytes = maps.lines().filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let (range, path) = (fields.next()?, fields.nth(4)?);
            let (start, end) = range.split_once('-')?;
            let size = u64::from_str_radix(end, 16).ok()? - u64::from_str_radix(start, 16).ok()?;
            let drivers = ["libcuda", "libnvidia", "libnvrtc", "libcublas"];
            let name = path.rsplit('/').next()?;
            (path.starts_with('/') && !drivers.iter().any(|of| name.starts_with(of))).then_some(size)
        });
        Bytes(bytes.sum())
    }

    /// Returns the number of usable CPUs: this process's affinity, limited by the container's CPU quota; at least 1.
    pub fn threads(&self) -> usize {
        let affinity = std::thread::available_parallelism().map_or(1, |n| n.get());
        match self.cpu_quota() {
            Some(quota) => affinity.min((quota.floor() as usize).max(1)),
            None => affinity,
        }
    }

    /// Returns the number of CPUs' time that the container may use.
    pub fn cpu_quota(&self) -> Option<f64> {
        cgroup::cpu_quota(&self.root)
    }

    fn free_memory(&self, own: u64) -> Option<Limit> {
        let available = kib_field(&self.read("proc/meminfo")?, "MemAvailable:")?;
        Some(Limit {
            bytes: Bytes(available.saturating_add(own)),
            source: "free memory of the machine".into(),
        })
    }

    /// Returns the tightest limit of all memory groups, less what other processes use in each.
    fn container_limit(&self, own: u64) -> Option<Limit> {
        let mut best: Option<Limit> = None;
        for group in self.memory_groups() {
            let others = group.anon_and_shmem().unwrap_or(0).saturating_sub(own);
            for (file, value) in group.limits() {
                let Some(bytes) = value.bytes() else { continue };
                let left = Bytes(bytes.saturating_sub(others));
                if best.as_ref().is_some_and(|least| least.bytes <= left) {
                    continue;
                }
                let used = match others {
                    0 => String::new(),
                    _ => format!(", less {} of other processes", Bytes(others)),
                };
                let source = format!("cgroup v{} {file} {}{used}", group.version, Bytes(bytes));
                best = Some(Limit { bytes: left, source });
            }
        }
        best
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }
}

/// Returns the bytes that an ordinary user may still write at `path`.
pub fn free_disk(path: &Path) -> Option<Bytes> {
    let stat = rustix::fs::statvfs(path).ok()?;
    // A file system without blocks, such as /proc, cannot hold a run: making the directory will fail.
    (stat.f_blocks > 0).then(|| Bytes(stat.f_bavail.saturating_mul(stat.f_frsize)))
}

/// Returns `free_disk` at `path` or its nearest existing ancestor, and that folder.
pub fn free_disk_above(path: &Path) -> Option<(Bytes, PathBuf)> {
    let absolute = std::path::absolute(path).ok()?;
    absolute.ancestors().find_map(|place| Some((free_disk(place)?, place.to_path_buf())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a machine with 16 GiB free and the given files.
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

    /// Returns the limit of a machine whose groups have these files.
    fn limit_of(name: &str, files: &[(&str, &str)]) -> Limit {
        let at = [("proc/self/cgroup", "0::/a/b\n"), ("proc/self/mountinfo", V2)];
        machine(name, &[&at[..], files].concat()).memory_limit().expect("a limit")
    }

    #[test]
    fn what_neighbours_use_can_make_a_larger_limit_the_tighter_one() {
        let limit = limit_of(
            "siblings",
            &[
                ("sys/fs/cgroup/a/b/memory.max", "4294967296"),
                ("sys/fs/cgroup/a/b/memory.stat", "anon 1048576\n"),
                ("sys/fs/cgroup/a/memory.max", "8589934592"),
                ("sys/fs/cgroup/a/memory.stat", "anon 7517241344\nshmem 0\n"),
            ],
        );
        assert_eq!(limit.bytes, Bytes(1 << 30), "{}", limit.source);
        assert!(limit.source.contains("8.0 GiB, less 7.0 GiB of other processes"), "{}", limit.source);
    }

    #[test]
    fn a_group_may_be_bent_or_gone() {
        // For a limit that is not a number, one beyond 64 bits, or a group without files, free memory counts.
        for (name, text) in [("bent", "lots"), ("huge", "18446744073709551616"), ("empty", "")] {
            let limit = limit_of(name, &[("sys/fs/cgroup/a/b/memory.max", text)]);
            assert_eq!(limit.source, "free memory of the machine", "{name}");
        }
        let host = machine("gone", &[("proc/self/cgroup", "0::/gone\n"), ("proc/self/mountinfo", V2)]);
        assert_eq!(host.memory_limit().expect("free memory").source, "free memory of the machine");
        let climbing = [
            ("proc/self/cgroup", "0::/../../x\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/memory.max", "4096"),
        ];
        assert_eq!(machine("climbing", &climbing).memory_limit().expect("the mount's").bytes, Bytes(4096));
    }

    #[test]
    fn more_may_be_used_than_is_allowed() {
        let files = [
            ("sys/fs/cgroup/a/b/memory.max", "1048576"),
            ("sys/fs/cgroup/a/b/memory.stat", "anon 99999999\n"),
        ];
        assert_eq!(limit_of("over", &files).bytes, Bytes(0));
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
