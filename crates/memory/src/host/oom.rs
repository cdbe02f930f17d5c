//! Evidence of out-of-memory kills: changes in the container's and the kernel's counters, and the kernel's log lines.

use super::Host;
use super::cgroup::MemoryGroup;
use super::parse::{Value, plain_field};
use plimsoll_base::Bytes;
use serde::Serialize;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;

/// Longest record of /dev/kmsg; the kernel refuses a shorter buffer.
const RECORD_BYTES: usize = 8 << 10;
/// Most records to read: a kernel that floods its log must not hold up the reader.
const RECORDS_MAX: usize = 65_536;
/// Most kill lines to keep.
const KILL_LINES_MAX: usize = 64;

/// The counters at the start of the watch, and the kernel's log since.
#[derive(Debug)]
pub struct OomWatch {
    host: Host,
    groups: Vec<(MemoryGroup, Counters)>,
    kernel_kills: Option<u64>,
    log: Option<File>,
    /// The kernel's lines about kills so far.
    lines: Vec<KernelLine>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    oom_kills: Option<u64>,
    limit_hits: Option<u64>,
}

/// How one memory group changed during the watch.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GroupChange {
    /// The directory of its files.
    pub dir: PathBuf,
    pub version: u8,
    /// False if the group has disappeared.
    #[serde(rename = "is_there")]
    pub exists: bool,
    /// Kills by the kernel in the group itself, not below it; `None` if unreadable.
    pub oom_kills: Option<u64>,
    /// Times that its limit was hit.
    pub limit_hits: Option<u64>,
    pub limit: Option<Bytes>,
    /// The highest charge ever.
    pub peak: Option<Bytes>,
    /// Its current anonymous and shared memory.
    pub held: Option<Bytes>,
}

/// A kernel line about a process killed for lack of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelLine {
    /// True if a container's limit was reached, false if the machine ran out of memory.
    pub container: bool,
    /// The process id in the kernel's numbering.
    pub pid: u32,
    /// Its name, at most 15 characters.
    pub name: String,
    /// Its anonymous memory when it was killed.
    pub anon: Option<Bytes>,
    pub text: String,
}

/// Changes since the start of the watch.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OomEvidence {
    /// The process's own memory group first, then those above it.
    pub groups: Vec<GroupChange>,
    /// Kills by the machine's count in /proc/vmstat.
    pub kernel_kills: Option<u64>,
    /// Kernel lines since the start, oldest first; `None` if its log is unreadable.
    pub kernel_lines: Option<Vec<KernelLine>>,
    /// True if the kernel's process ids are those of this process: it is in the first process namespace.
    pub same_pids: bool,
}

impl OomWatch {
    /// Begins to watch this process's groups and the machine.
    pub fn begin(host: &Host) -> OomWatch {
        let groups = host.memory_groups().into_iter().map(|group| {
            let counters = Counters { oom_kills: group.own_oom_kills(), limit_hits: group.limit_hits() };
            (group, counters)
        });
        OomWatch {
            host: host.clone(),
            groups: groups.collect(),
            kernel_kills: kernel_kills(host),
            log: open_log(host),
            lines: Vec::new(),
        }
    }

    /// Returns the changes since the start.
    pub fn evidence(&mut self) -> OomEvidence {
        self.lines.extend(self.log.as_mut().map(read_kills).into_iter().flatten());
        let surplus = self.lines.len().saturating_sub(KILL_LINES_MAX);
        self.lines.drain(..surplus);
        let rise = |before: Option<u64>, now: Option<u64>| Some(now?.saturating_sub(before?));
        let change = |(group, before): &(MemoryGroup, Counters)| GroupChange {
            dir: group.dir.clone(),
            version: group.version,
            exists: group.dir.is_dir(),
            oom_kills: rise(before.oom_kills, group.own_oom_kills()),
            limit_hits: rise(before.limit_hits, group.limit_hits()),
            limit: group.limits().iter().filter_map(|(_, value)| Value::bytes(value)).min().map(Bytes),
            peak: group.peak().map(Bytes),
            held: group.anon_and_shmem().map(Bytes),
        };
        OomEvidence {
            groups: self.groups.iter().map(change).collect(),
            kernel_kills: rise(self.kernel_kills, kernel_kills(&self.host)),
            kernel_lines: self.log.is_some().then(|| self.lines.clone()),
            same_pids: self.host.is_first_pid_namespace(),
        }
    }
}

fn kernel_kills(host: &Host) -> Option<u64> {
    plain_field(&host.read("proc/vmstat")?, "oom_kill")
}

/// Opens the kernel's log from now on. Non-blocking: a read at its end returns.
fn open_log(host: &Host) -> Option<File> {
    use rustix::fs::{Mode, OFlags};
    let path = host.root.join("dev/kmsg");
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut log = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    log.seek(SeekFrom::End(0)).ok()?;
    // Some systems allow opening the log but not reading it.
    match log.read(&mut [0; RECORD_BYTES]) {
        Err(err) if err.kind() == ErrorKind::PermissionDenied => None,
        _ => Some(log),
    }
}

fn read_kills(log: &mut File) -> Vec<KernelLine> {
    let (mut record, mut lines) = ([0u8; RECORD_BYTES], Vec::new());
    for _ in 0..RECORDS_MAX {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => {
                let text = String::from_utf8_lossy(&record[..length]);
                lines.extend(text.lines().filter_map(KernelLine::parse));
            }
            // Records were overwritten before they were read: continue with the oldest left.
            Err(err) if err.kind() == ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    let surplus = lines.len().saturating_sub(KILL_LINES_MAX);
    lines.drain(..surplus);
    lines
}

impl KernelLine {
    /// Reads a line of the kernel's log; `None` if it is not about such a kill.
    pub fn parse(line: &str) -> Option<KernelLine> {
        let at = line.to_ascii_lowercase().find("out of memory")?;
        let text = line.rsplit_once(';').map_or(line, |(_, text)| text);
        let container = line[..at].ends_with("Memory cgroup ");
        let victim =
            line[at..].split_once("illed process ").or_else(|| line[at..].split_once("ill process "))?.1;
        let (pid, rest) = victim.split_once(' ')?;
        let name = rest.strip_prefix('(')?.split_once(')')?.0;
        let anon = rest.split_once("anon-rss:").and_then(|(_, rest)| rest.split_once("kB"));
        Some(KernelLine {
            container,
            pid: pid.trim_end_matches(',').parse().ok()?,
            name: name.to_string(),
            anon: anon.and_then(|(kib, _)| kib.parse::<u64>().ok()?.checked_mul(1024)).map(Bytes),
            text: text.trim().to_string(),
        })
    }
}

impl OomEvidence {
    /// Returns the kernel's line about a process. If the kernel numbers processes differently, the name decides.
    pub fn line_about(&self, pid: u32, name: &str) -> Option<&KernelLine> {
        let is_ours = |line: &&KernelLine| if self.same_pids { line.pid == pid } else { line.name == name };
        self.kernel_lines.as_ref()?.iter().rev().find(is_ours)
    }

    /// Returns the innermost group whose limit was hit.
    pub fn hit_group(&self) -> Option<&GroupChange> {
        self.groups
            .iter()
            .find(|group| group.limit_hits.is_some_and(|hits| hits > 0) && group.limit.is_some())
    }

    /// Returns the increase of kills over the groups; `None` if no group has a count.
    pub fn group_kills(&self) -> Option<u64> {
        self.groups.iter().filter_map(|group| group.oom_kills).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_says_who_and_why() {
        let line = "4,1042,9001,-;Memory cgroup out of memory: Killed process 4711 (plimsoll) total-vm:102400kB, anon-rss:40960kB, file-rss:10240kB, shmem-rss:0kB, UID:0 pgtables:200kB oom_score_adj:10";
        let kill = KernelLine::parse(line).expect("a kill");
        assert_eq!((kill.container, kill.pid, kill.name.as_str()), (true, 4711, "plimsoll"));
        assert_eq!(kill.anon, Some(Bytes::mib(40)));
        assert!(kill.text.starts_with("Memory cgroup out of memory"));
        let global =
            "Out of memory: Killed process 12 (python3) total-vm:1kB, anon-rss:18446744073709551615kB";
        let kill = KernelLine::parse(global).expect("a kill");
        assert_eq!((kill.container, kill.pid, kill.anon), (false, 12, None));
        for other in [
            "",
            "Out of memory",
            "oom_reaper: reaped process 4711 (plimsoll)",
            "Out of memory: Killed process x (a)",
        ] {
            assert_eq!(KernelLine::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_group_that_vanishes_leaves_no_numbers() {
        let root = std::env::temp_dir().join(format!("plimsoll-oom-{}", std::process::id()));
        let dir = root.join("sys/fs/cgroup/a");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::create_dir_all(root.join("proc/self")).unwrap();
        std::fs::write(root.join("proc/self/cgroup"), "0::/a\n").unwrap();
        std::fs::write(
            root.join("proc/self/mountinfo"),
            "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        )
        .unwrap();
        std::fs::write(dir.join("memory.events"), "low 0\nmax 3\noom 1\noom_kill 1\n").unwrap();
        std::fs::write(dir.join("memory.max"), "4096\n").unwrap();
        let mut watch = OomWatch::begin(&Host::below(&root));
        std::fs::write(dir.join("memory.events"), "low 0\nmax 9\noom 2\noom_kill 3\n").unwrap();
        let seen = watch.evidence();
        assert_eq!(
            (seen.group_kills(), seen.kernel_kills, seen.kernel_lines.is_none()),
            (Some(2), None, true)
        );
        assert_eq!(seen.hit_group().and_then(|group| group.limit), Some(Bytes(4096)));
        std::fs::remove_dir_all(&dir).unwrap();
        let gone = watch.evidence();
        assert_eq!((gone.group_kills(), gone.groups[0].exists), (None, false));
        let _ = std::fs::remove_dir_all(&root);
    }
}
