//! Reads what the processes of a worker's session hold: memory and GPU devices. Reads /proc, makes no decisions.

use plimsoll_base::Bytes;
use plimsoll_memory::host::Host;
use rustix::process::{Pid, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Prefixes of the paths of GPU devices.
pub const GPU_DEVICES: [&str; 2] = ["/dev/nvidia", "/dev/kfd"];

/// Most generations searched for an ancestor.
pub(crate) const DEPTH_MAX: usize = 4096;

/// A process's use of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuUse {
    /// A device file that it has open or mapped.
    pub device: Option<String>,
    /// The driver's library, if mapped; without a device it holds no context.
    pub library: Option<String>,
}

/// Lists the processes of sessions: (session, process).
pub fn of_sessions(sessions: &[u32]) -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let session = session_of(&stat)?;
        sessions.contains(&session).then_some((session, pid))
    })
    .collect()
}

/// Lists the living processes that descend from `roots`, including the roots: (root, process).
pub fn below(roots: &[u32]) -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut living = BTreeSet::new();
    for pid in pids {
        let Some((parent, is_alive)) = parent_of(pid) else { continue };
        children.entry(parent).or_default().push(pid);
        living.extend(is_alive.then_some(pid));
    }
    let mut found = Vec::new();
    for &root in roots {
        let mut next = vec![root];
        // The process tree changes while it is read; each pid is visited once, so the walk ends.
        while let Some(pid) = next.pop() {
            next.extend(children.remove(&pid).unwrap_or_default());
            found.extend(living.contains(&pid).then_some((root, pid)));
        }
    }
    found
}

/// Lists the threads of process `pid` and of its descendants, as far as they can be read.
pub fn tasks_below(pid: u32) -> Vec<u32> {
    let number = |name: &str| name.parse::<u32>().ok();
    let (mut found, mut next) = (Vec::new(), vec![pid]);
    while let Some(pid) = next.pop() {
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            found.extend(task.file_name().to_str().and_then(number));
            // Only kernels built without process checkpoints lack this file.
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            next.extend(children.split_ascii_whitespace().filter_map(number));
        }
    }
    found
}

/// Lists the processes below this one, including zombies.
pub(crate) fn descendants() -> Vec<u32> {
    let own = std::process::id();
    let (mut found, mut next) = (Vec::new(), vec![own]);
    while let Some(pid) = next.pop() {
        match children_of(pid) {
            Some(children) => {
                found.extend_from_slice(&children);
                next.extend(children);
            }
            // It has ended, or this kernel was built without process checkpoints.
            None if pid == own => {
                return below(&[own]).into_iter().map(|(_, pid)| pid).filter(|&pid| pid != own).collect();
            }
            None => {}
        }
    }
    found
}

/// Lists the children of a process; `None` if they cannot be read.
fn children_of(pid: u32) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let children = fs::read_to_string(task.path().join("children")).ok()?;
        found.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    Some(found)
}

/// Lists the processes of a process group.
pub(crate) fn of_group(group: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_ascii_whitespace().nth(2));
        fields.flatten().and_then(|group| group.parse().ok()) == Some(group)
    })
    .collect()
}

/// Returns the parent of a process, and whether the process lives.
pub(crate) fn parent_of(pid: u32) -> Option<(u32, bool)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    Some((fields.next()?.parse().ok()?, state != "Z" && state != "X"))
}

/// Kills processes, ignoring those that are gone.
pub fn kill_all(pids: impl IntoIterator<Item = u32>) {
    for pid in pids.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Returns the session of a living process from its /proc/PID/stat; the name may have spaces and brackets.
fn session_of(stat: &str) -> Option<u32> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let session = fields.nth(2)?.parse().ok()?;
    (state != "Z" && state != "X").then_some(session)
}

/// Sums the anonymous memory of processes.
pub fn anonymous_bytes(pids: &[u32]) -> Bytes {
    resident_bytes(pids).0
}

/// Sums the memory of processes, except file pages. Shared pages count once per process.
pub(crate) fn own_bytes(pids: &[u32]) -> Bytes {
    let host = Host::this();
    Bytes(pids.iter().filter_map(|&pid| host.rss_of(pid)).map(|rss| rss.anon.0 + rss.shmem.0).sum())
}

/// Sums like `own_bytes`, but divides each shared page among the processes that share it.
pub(crate) fn proportional_bytes(pids: &[u32]) -> Bytes {
    let kib = |line: &str| {
        let value = ["Pss_Anon:", "Pss_Shmem:"].iter().find_map(|name| line.strip_prefix(name))?;
        value.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    let one = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        // Kernels before 5.5 do not split it by kind.
        let held: Vec<u64> = text.lines().filter_map(kib).collect();
        if held.is_empty() { own_bytes(&[*pid]).0 } else { held.iter().sum::<u64>() << 10 }
    };
    Bytes(pids.iter().map(one).sum())
}

/// Sums the resident memory of processes: (anonymous, file). Shared file pages count once per process.
pub fn resident_bytes(pids: &[u32]) -> (Bytes, Bytes) {
    let host = Host::this();
    let all = pids.iter().filter_map(|&pid| host.rss_of(pid));
    let (anon, file) = all.fold((0, 0), |(anon, file), rss| (anon + rss.anon.0, file + rss.file.0));
    (Bytes(anon), Bytes(file))
}

/// Returns what a process holds of devices whose paths begin with one of `devices`.
pub fn gpu_use(pid: u32, devices: &[impl AsRef<str>]) -> GpuUse {
    let is_device = |path: &str| devices.iter().any(|device| path.starts_with(device.as_ref()));
    let mut found = GpuUse::default();
    for line in fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default().lines() {
        let Some(path) = line.split_ascii_whitespace().nth(5) else { continue };
        if is_device(path) {
            found.device.get_or_insert_with(|| path.to_string());
        } else if path.rsplit('/').next().is_some_and(|name| name.starts_with("libcuda.so")) {
            found.library.get_or_insert_with(|| path.to_string());
        }
    }
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let open = open.filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.to_str()?.to_string()));
    found.device = found.device.or_else(|| open.into_iter().find(|path| is_device(path)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_read_behind_any_name() {
        let stat = |name: &str, state: &str| format!("7 ({name}) {state} 1 7 5 0 -1");
        assert_eq!(session_of(&stat("python3", "S")), Some(5));
        assert_eq!(session_of(&stat("a) Z 1 (b", "R")), Some(5));
        assert_eq!((session_of(&stat("gone", "Z")), session_of("")), (None, None));
    }

    #[test]
    fn descendants_are_found_and_killed() {
        let shell = "sleep 1000 & echo $! && exec sleep 1000";
        let mut child = std::process::Command::new("sh")
            .args(["-c", shell])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        let grandchild: u32 = line.trim().parse().unwrap();
        let root = child.id();
        let mut found = below(&[root]);
        found.sort_unstable();
        let mut expect = vec![(root, root), (root, grandchild)];
        expect.sort_unstable();
        assert_eq!(found, expect);
        let mut tasks = tasks_below(root);
        tasks.sort_unstable();
        assert_eq!(tasks, [root.min(grandchild), root.max(grandchild)]);
        assert!(below(&[std::process::id()]).contains(&(std::process::id(), grandchild)));
        assert_eq!(parent_of(grandchild), Some((root, true)));
        kill_all([grandchild, root]);
        // Killed and not waited for: no longer alive.
        child.wait().unwrap();
        assert_eq!((below(&[root]), parent_of(root)), (Vec::new(), None));
    }

    #[test]
    fn an_open_device_and_a_mapped_library_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nvidia0");
        let prefix = dir.path().join("nvidia").display().to_string();
        let pid = std::process::id();
        assert_eq!(gpu_use(pid, &[&prefix]), GpuUse::default());
        let held = fs::File::create(&path).unwrap();
        assert_eq!(gpu_use(pid, &[&prefix]).device, Some(path.display().to_string()));
        drop(held);
        assert_eq!(gpu_use(pid, &[&prefix]), GpuUse::default());
    }

    #[test]
    fn memory_that_was_written_is_counted() {
        let pid = std::process::id();
        let held = vec![1u8; 64 << 20];
        assert!(anonymous_bytes(&[pid]) >= Bytes::mib(64), "{} bytes are held", held.len());
        let (whole, share) = (own_bytes(&[pid]), proportional_bytes(&[pid]));
        assert!(share >= Bytes::mib(64) && share.0 <= whole.0 + (1 << 20), "{share} of {whole}");
    }
}
