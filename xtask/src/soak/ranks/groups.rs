//! Groups of processes (cgroups v1) that limit memory or freeze. They need root; without it, skipped with a message.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::super::process::{children, send};

pub struct Group {
    dir: PathBuf,
}

impl Group {
    /// Makes a group of `controller`; `None` if that is not possible.
    pub fn new(controller: &str, proof: &str) -> Option<Group> {
        let name = format!("plimsoll-soak-ranks-{}", std::process::id());
        let dir = Path::new("/sys/fs/cgroup").join(controller).join(name);
        fs::create_dir(&dir).ok()?;
        let group = Group { dir };
        group.dir.join(proof).exists().then_some(group)
    }

    /// Returns command words that put the command after them into the group.
    pub fn enter(&self) -> Vec<String> {
        let join = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.dir.display());
        ["sh", "-c", &join, "sh"].map(String::from).to_vec()
    }

    pub fn take(&self, pid: u32) -> Result<(), String> {
        self.set("cgroup.procs", &pid.to_string())
    }

    pub fn set(&self, file: &str, value: &str) -> Result<(), String> {
        let path = self.dir.join(file);
        fs::write(&path, value).map_err(|err| format!("{}: {err}", path.display()))
    }

    pub fn number(&self, file: &str) -> Result<u64, String> {
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
