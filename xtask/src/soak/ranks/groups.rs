//! Groups of processes (cgroups) that limit memory or freeze. They need root; without it, skipped with a message.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::super::process::{children, send};

pub struct Group {
    dir: PathBuf,
    files: &'static [&'static str; 2],
}

/// The purpose of a group.
pub enum Does {
    Freezes,
    /// Limits memory.
    Limits,
}

impl Does {
    /// Returns the controller and the files of the first version of cgroups, then of the second: the one that is set,
    /// and the one that is read.
    fn files(&self) -> (&'static str, [&'static [&'static str; 2]; 2]) {
        match self {
            Does::Freezes => {
                ("freezer", [&["freezer.state", "freezer.state"], &["cgroup.freeze", "cgroup.events"]])
            }
            Does::Limits => (
                "memory",
                [&["memory.limit_in_bytes", "memory.usage_in_bytes"], &["memory.max", "memory.current"]],
            ),
        }
    }
}

impl Group {
    /// Makes a group; `None` if that is not possible.
    pub fn new(does: Does) -> Option<Group> {
        let name = format!("plimsoll-soak-ranks-{}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let (controller, [first, second]) = does.files();
        let is_second = root.join("cgroup.controllers").exists();
        if is_second {
            // A group without it has no such files.
            let _ = fs::write(root.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        let (dir, files) =
            if is_second { (root.join(name), second) } else { (root.join(controller).join(name), first) };
        fs::create_dir(&dir).ok()?;
        let group = Group { dir, files };
        group.dir.join(files[0]).exists().then_some(group)
    }

    /// Stops all processes of the group where they are, or lets them go on. By the first version of cgroups they cannot
    /// be killed meanwhile.
    pub fn freeze(&self, is_frozen: bool) -> Result<(), String> {
        let value = match (self.files[0], is_frozen) {
            ("freezer.state", true) => "FROZEN",
            ("freezer.state", false) => "THAWED",
            (_, true) => "1",
            (_, false) => "0",
        };
        self.set(self.files[0], value)
    }

    pub fn limit(&self, bytes: u64) -> Result<(), String> {
        self.set(self.files[0], &bytes.to_string())
    }

    pub fn usage(&self) -> Result<u64, String> {
        self.number(self.files[1])
    }

    /// Returns command words that put the command after them into the group.
    pub fn enter(&self) -> Vec<String> {
        let join = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.dir.display());
        ["sh", "-c", &join, "sh"].map(String::from).to_vec()
    }

    pub fn take(&self, pid: u32) -> Result<(), String> {
        self.set("cgroup.procs", &pid.to_string())
    }

    fn set(&self, file: &str, value: &str) -> Result<(), String> {
        let path = self.dir.join(file);
        fs::write(&path, value).map_err(|err| format!("{}: {err}", path.display()))
    }

    fn number(&self, file: &str) -> Result<u64, String> {
        let path = self.dir.join(file);
        let text = fs::read_to_string(&path).map_err(|err| format!("{}: {err}", path.display()))?;
        text.trim().parse().map_err(|err| format!("{}: {err}", path.display()))
    }

    /// Lets a process outside the run take memory of the group until `victim` is gone.
    pub fn eat_until_gone(&self, victim: u32) -> Result<(), String> {
        let words = self.enter();
        let eater =
            std::process::Command::new(&words[0]).args(&words[1..]).args(["tail", "/dev/zero"]).spawn();
        let mut eater = eater.map_err(|err| format!("tail: {err}"))?;
        let end = Instant::now() + Duration::from_secs(60);
        while Path::new(&format!("/proc/{victim}/exe")).exists() && Instant::now() < end {
            // The kernel may kill it before its victim.
            if let Ok(Some(_)) = eater.try_wait() {
                let again = std::process::Command::new(&words[0])
                    .args(&words[1..])
                    .args(["tail", "/dev/zero"])
                    .spawn();
                eater = again.map_err(|err| format!("tail: {err}"))?;
            }
            thread::sleep(Duration::from_micros(200));
        }
        let _ = eater.kill();
        let _ = eater.wait();
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let procs = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()) {
            children(pid).into_iter().chain([pid]).for_each(|pid| send("KILL", pid));
        }
        let end = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.dir).is_err() && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
        }
    }
}
