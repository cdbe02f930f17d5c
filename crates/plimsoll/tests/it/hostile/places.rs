//! Run directories that cannot be written, are taken or fill up, and a run that is interrupted.

use super::folder::{check_whole, folder};
use crate::common::{check_error, command, plimsoll, text};
use crate::run::{Started, kill, refs};
use std::path::Path;
use std::process::Command;

#[test]
fn a_directory_that_cannot_be_made_or_is_used() {
    let folder = folder();
    folder.write("file", "x");
    std::fs::create_dir(folder.path("used")).expect("a directory");
    folder.write("used/mine.txt", "x");
    for (dir, code, contains) in [
        (folder.text_path("file"), 1, "error[run-dir-unwritable]: "),
        (folder.text_path("file/below"), 1, "error[run-dir-unwritable]: "),
        ("/proc/plimsoll".into(), 1, "error[run-dir-unwritable]: "),
        (folder.text_path("used"), 2, "error[run-dir-not-empty]: "),
    ] {
        folder.check_train(&[&format!("run.dir={dir}")], code, &[contains, &dir, "hint: choose a"]);
    }
    assert_eq!(std::fs::read_to_string(folder.path("file")).expect("untouched"), "x");
    assert_eq!(std::fs::read_dir(folder.path("used")).expect("untouched").count(), 1);
}

#[test]
fn an_interrupted_run_leaves_a_model_and_holds_its_directory_until_then() {
    let folder = folder();
    let args = folder.train_args("out", &["train.steps=100000"]);
    let args = refs(&args);
    let run = Started::new(command(&args));
    let pid = run.child.id().to_string();
    check_error(&args, &plimsoll(&args), 1, &["error[run-dir-locked]: ", &pid, "hint: "]);
    kill("-INT", run.child.id());
    check_error(&args, &run.end(), 130, &["error[interrupted]: SIGINT after step ", "saved step "]);
    check_whole(&folder, "out");
    let latest = folder.text_path("out/checkpoints/latest");
    let answer = plimsoll(&["generate", "--model", &latest, "--prompt", "123+456=", "--max-new-tokens", "4"]);
    assert_eq!(answer.status.code(), Some(0), "{}", text(&answer.stderr));
    check_error(&args, &plimsoll(&args), 2, &["error[run-dir-not-empty]: ", "out-2"]);
}

/// A small file system in memory, gone when dropped.
struct Tmpfs(String);

impl Tmpfs {
    /// `None` where this process may not mount.
    fn mount(path: &str, size: &str) -> Option<Tmpfs> {
        std::fs::create_dir_all(path).expect("a directory");
        let size = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs", path]).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Tmpfs(path.into()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.0]).status();
    }
}

#[test]
fn a_disk_that_is_full_or_fills_up() {
    let folder = folder();
    let Some(_small) = Tmpfs::mount(&folder.text_path("small"), "1m") else {
        return eprintln!("skipped: a full disk, this process may not mount one");
    };
    // Too small for a checkpoint: refused before the first step.
    let args = folder.train_args("small/out", &[]);
    check_error(
        &refs(&args),
        &plimsoll(&refs(&args)),
        3,
        &["error[disk-pool-exceeded]: ", "checkpoint.files"],
    );
    assert_eq!(std::fs::read_dir(folder.path("small")).expect("readable").count(), 0);

    // Filled by others while the run goes on.
    let _large = Tmpfs::mount(&folder.text_path("large"), "96m").expect("the first one could be mounted");
    let args = folder.train_args("large/out", &["train.steps=1000"]);
    let run = Started::new(command(&refs(&args)));
    fill(&folder.path("large/filler"));
    check_error(&refs(&args), &run.end(), 1, &["error[disk-full]: ", "hint: make room"]);
    check_whole(&folder, "large");
    let events = std::fs::read_to_string(folder.path("large/out/events.jsonl")).expect("events");
    for line in events.lines() {
        serde_json::from_str::<serde_json::Value>(line).expect("whole lines only");
    }
    assert!(events.ends_with('\n'));
}

fn fill(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).expect("a file");
    for block in [1 << 20, 1 << 10, 1] {
        while file.write(&vec![0; block]).is_ok_and(|n| n > 0) {}
    }
}
