//! A memory cgroup that a test makes for itself, of whichever version the machine has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A memory cgroup with one limit on memory, and none of swap to go to; removed at the end.
pub struct Group {
    /// Where its files are.
    pub dir: PathBuf,
    limit: &'static str,
    usage: &'static str,
    kills: &'static str,
}

impl Group {
    /// `None`, aloud, where this user may not make one.
    pub fn new(name: &str, bytes: u64) -> Option<Group> {
        let root = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            "/sys/fs/cgroup"
        } else {
            "/sys/fs/cgroup/memory"
        };
        let group = Group::make(Path::new(root), name, bytes);
        if group.is_none() {
            eprintln!("skipped: this user may not make a memory cgroup");
        }
        group
    }

    /// One within this one.
    pub fn inner(&self, name: &str, bytes: u64) -> Option<Group> {
        Group::make(&self.dir, name, bytes)
    }

    fn make(above: &Path, name: &str, bytes: u64) -> Option<Group> {
        let dir = above.join(format!("plimsoll-test-{}-{name}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        let group = if dir.join("memory.max").exists() {
            Group { dir, limit: "memory.max", usage: "memory.current", kills: "memory.events" }
        } else {
            Group {
                dir,
                limit: "memory.limit_in_bytes",
                usage: "memory.usage_in_bytes",
                kills: "memory.oom_control",
            }
        };
        group.write("memory.swappiness", 0);
        group.write("memory.swap.max", 0);
        group.set_limit(bytes).then_some(group)
    }

    /// True if the kernel takes it.
    pub fn set_limit(&self, bytes: u64) -> bool {
        self.write(self.limit, bytes)
    }

    /// Everything charged to it.
    pub fn usage(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join(self.usage)).expect("its usage");
        text.trim().parse().expect("a number")
    }

    /// Processes that the kernel killed in it.
    pub fn oom_kills(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join(self.kills)).expect("its events");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.expect("a count since Linux 4.13").parse().expect("a number")
    }

    /// A program that starts in it: a shell that joins it and becomes the program.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.dir.join("cgroup.procs"));
        command.arg(program).args(args);
        command
    }

    /// The binary in it, not yet started.
    pub fn plimsoll(&self, args: &[&str]) -> Command {
        self.command(env!("CARGO_BIN_EXE_plimsoll"), args)
    }

    fn write(&self, file: &str, value: u64) -> bool {
        // Not `fs::write`: where there are no groups it would make a file.
        let path = self.dir.join(file);
        path.exists() && fs::write(path, value.to_string()).is_ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Processes leave a moment after they were waited for.
        for _ in 0..200 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
