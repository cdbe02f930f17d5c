//! The machine's limits that can end a run, with their sources. Only reads; the plan compares.

use super::parse::{self, Value, kib_field};
use super::{Host, cgroup};
use plimsoll_base::Bytes;
use serde_json::{Value as Json, json};
use std::path::Path;

/// Most other processes to name.
const NAMED_MAX: usize = 3;
/// Most processes to read names of.
const PROCESSES_MAX: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub name: &'static str,
    pub value: Value,
    /// The file or call that it was read from.
    pub source: String,
}

impl Reading {
    fn new(name: &'static str, value: Value, source: impl Into<String>) -> Reading {
        Reading { name, value, source: source.into() }
    }

    /// Makes a reading of bytes from another source.
    pub fn of_bytes(name: &'static str, bytes: Bytes, source: impl Into<String>) -> Reading {
        Reading::new(name, Value::Bytes(bytes.0), source)
    }

    pub fn shown(&self) -> String {
        match &self.value {
            Value::Bytes(bytes) => Bytes(*bytes).to_string(),
            Value::Count(count) => count.to_string(),
            Value::Word(word) => word.clone(),
            Value::NoLimit => "no limit".into(),
            Value::Unknown => "unknown".into(),
            Value::Malformed(text) => format!("malformed: {text:?}"),
        }
    }

    /// Returns an entry of `limits` in `plan --json`: `value` is a number or null, and `state` says why.
    pub fn to_json(&self) -> Json {
        let (value, state) = match &self.value {
            Value::Bytes(bytes) => (json!(bytes), "bytes"),
            Value::Count(count) => (json!(count), "count"),
            Value::Word(word) => (json!(word), "word"),
            Value::NoLimit => (Json::Null, "no limit"),
            Value::Unknown => (Json::Null, "unknown"),
            Value::Malformed(text) => (json!(text), "malformed"),
        };
        json!({ "name": self.name, "value": value, "state": state, "source": self.source })
    }
}

impl Host {
    /// Reads every limit for a run that writes below `dir`. Unreadable ones are listed as unknown.
    pub fn readings(&self, dir: &Path) -> Vec<Reading> {
        let mut all = self.container_readings();
        let meminfo = self.read("proc/meminfo");
        let field = |name: &str| match meminfo.as_deref() {
            None => Value::Unknown,
            Some(text) => kib_field(text, name).map_or_else(|| Value::Malformed(String::new()), Value::Bytes),
        };
        all.push(Reading::new("free memory", field("MemAvailable:"), "/proc/meminfo MemAvailable"));
        all.push(Reading::new("free swap", field("SwapFree:"), "/proc/meminfo SwapFree, not planned with"));
        all.push(self.overcommit());
        let disk = super::free_disk_above(dir);
        let place = disk.as_ref().map_or_else(|| dir.to_path_buf(), |(_, place)| place.clone());
        let bytes = |bytes: Option<Bytes>| bytes.map_or(Value::Unknown, |bytes| Value::Bytes(bytes.0));
        all.push(Reading::new("free disk", bytes(disk.map(|(free, _)| free)), place.display().to_string()));
        let shm = self.root.join("dev/shm");
        let size = rustix::fs::statvfs(&shm).ok().map(|s| Bytes(s.f_blocks.saturating_mul(s.f_frsize)));
        all.push(Reading::new("shared memory", bytes(size), "/dev/shm, its size"));
        all.push(Reading::new("free shared memory", bytes(super::free_disk(&shm)), "/dev/shm"));
        let limits = self.read("proc/self/limits");
        for (name, key, words) in [
            ("address space", "Max address space", "ulimit -v"),
            ("locked memory", "Max locked memory", "ulimit -l"),
            ("file size", "Max file size", "ulimit -f"),
            ("open files", "Max open files", "ulimit -n"),
            ("processes", "Max processes", "ulimit -u"),
        ] {
            all.push(Reading::new(name, parse::rlimit(limits.as_deref(), key), words));
        }
        let (pids, file) = cgroup::pids_max(&self.root);
        let source = file.map_or_else(|| "pids.max".into(), |file| file.display().to_string());
        all.push(Reading::new("processes of the container", pids, source));
        all
    }

    /// Reads the limits of each memory group, its charge, and what other processes hold in it.
    fn container_readings(&self) -> Vec<Reading> {
        let groups = self.memory_groups();
        if groups.is_empty() {
            return vec![Reading::new("container memory", Value::Unknown, "no memory cgroup is visible")];
        }
        let own = self.run_bytes();
        let mut all = Vec::new();
        for group in &groups {
            let (swap_file, swap) = group.swap_limit();
            let limits = [group.limits(), vec![(swap_file, swap)]].concat();
            let is_limited =
                limits.iter().any(|(_, value)| !matches!(value, Value::NoLimit | Value::Unknown));
            for (file, value) in limits {
                let path = group.dir.join(file);
                // Ancestor groups without limits are omitted; the process's own is always shown.
                if is_limited && value != Value::Unknown || group == &groups[0] {
                    all.push(Reading::new(name_of(file), value, path.display().to_string()));
                }
            }
            if is_limited {
                let others = group.anon_and_shmem().map(|held| held.saturating_sub(own));
                let value = others.map_or(Value::Unknown, Value::Bytes);
                let who = others.filter(|&held| held > 0).map_or(String::new(), |_| self.largest_others());
                let source = format!("anon and shmem of {}{who}", group.dir.join("memory.stat").display());
                all.push(Reading::new("used by others", value, source));
            }
        }
        all
    }

    /// Formats the largest processes of the group outside the run: `: pid 77 (python3) 800.0 MiB, ...`.
    pub fn largest_others(&self) -> String {
        let run = self.run_pids();
        let group = self.read("proc/self/cgroup").unwrap_or_default();
        let Ok(entries) = std::fs::read_dir(self.root.join("proc")) else { return String::new() };
        let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        let mut held: Vec<(u64, u32)> = pids
            .take(PROCESSES_MAX)
            .filter(|pid| !run.contains(pid))
            .filter(|pid| self.read(&format!("proc/{pid}/cgroup")).is_some_and(|other| other == group))
            .filter_map(|pid| self.rss_of(pid).map(|rss| (rss.anon.0 + rss.shmem.0, pid)))
            .filter(|(bytes, _)| *bytes > 0)
            .collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        let name = |pid: u32| self.read(&format!("proc/{pid}/comm")).unwrap_or_default().trim().to_string();
        let named = held.iter().take(NAMED_MAX);
        let words: Vec<String> =
            named.map(|&(bytes, pid)| format!("pid {pid} ({}) {}", name(pid), Bytes(bytes))).collect();
        if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) }
    }

    fn overcommit(&self) -> Reading {
        let text = self.read("proc/sys/vm/overcommit_memory");
        let value = match text.as_deref().map(str::trim) {
            None => Value::Unknown,
            Some("0") => Value::Word("0: by estimate".into()),
            Some("1") => Value::Word("1: always".into()),
            Some("2") => Value::Word("2: never beyond the commit limit".into()),
            Some(other) => Value::Malformed(other.chars().take(40).collect()),
        };
        Reading::new("overcommit", value, "/proc/sys/vm/overcommit_memory")
    }

    /// Returns true if this process is in the first process namespace, whose number is fixed.
    pub(super) fn is_first_pid_namespace(&self) -> bool {
        let link = std::fs::read_link(self.root.join("proc/self/ns/pid"));
        link.is_ok_and(|name| name.to_str() == Some("pid:[4026531836]"))
    }
}

fn name_of(file: &str) -> &'static str {
    match file {
        "memory.high" => "container memory, throttled above",
        "memory.swap.max" => "container swap",
        "memory.memsw.limit_in_bytes" => "container memory and swap",
        _ => "container memory",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_machine_is_unknown_and_never_an_error() {
        let readings = Host::below(Path::new("/nonexistent")).readings(Path::new("/nonexistent/run"));
        let of = |name: &str| readings.iter().find(|r| r.name == name).expect("a row").shown();
        for name in
            ["container memory", "free memory", "overcommit", "open files", "processes of the container"]
        {
            assert_eq!(of(name), "unknown", "{name}");
        }
        // The disk is read at the nearest existing folder.
        assert_ne!(of("free disk"), "unknown");
    }

    #[test]
    fn every_group_with_a_limit_is_shown_and_a_bent_one_is_named() {
        let root = std::env::temp_dir().join(format!("plimsoll-limits-{}", std::process::id()));
        for (path, text) in [
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/self/mountinfo", "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("proc/sys/vm/overcommit_memory", "2\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/pids.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "8589934592\n"),
            ("sys/fs/cgroup/a/memory.high", "plenty\n"),
            ("sys/fs/cgroup/a/pids.max", "100\n"),
        ] {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let readings = Host::below(&root).readings(Path::new("/"));
        let shown = |at: &str| {
            readings
                .iter()
                .find(|r| r.source.ends_with(at))
                .unwrap_or_else(|| panic!("{at}: {readings:?}"))
                .shown()
        };
        assert_eq!(shown("/a/b/memory.max"), "no limit");
        assert_eq!(shown("/a/memory.max"), "8.0 GiB");
        assert_eq!(shown("/a/memory.high"), "malformed: \"plenty\"");
        assert_eq!(shown("/a/pids.max"), "100");
        assert_eq!(shown("overcommit_memory"), "2: never beyond the commit limit");
        assert_eq!(readings[0].to_json()["state"], "no limit");
        let _ = std::fs::remove_dir_all(&root);
    }
}
