//! The thread that reads the runs, and what requests see. Each log is read once, however many pages show it.

use super::run::Run;
use plimsoll_base::{Error, Result};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;

/// Runs on one page; each may take a few megabytes.
pub const RUNS_MAX: usize = 16;
/// Interval at which files are checked.
const LOOK: Duration = Duration::from_millis(250);

pub struct Runs {
    runs: Vec<Mutex<Run>>,
    /// Incremented with each change; pages wait for it.
    changes: watch::Sender<u64>,
}

impl Runs {
    /// Reads nothing yet.
    ///
    /// Errors: `run-dir-unreadable`, `bad-usage`.
    pub fn open(dirs: &[PathBuf]) -> Result<Runs> {
        let mut known: Vec<PathBuf> = Vec::new();
        for dir in dirs {
            let whole = dir.canonicalize().map_err(|err| unreadable(dir, &err.to_string()))?;
            if !whole.join("events.jsonl").is_file() {
                return Err(unreadable(dir, "there is no events.jsonl in it"));
            }
            if !known.contains(&whole) {
                known.push(whole);
            }
        }
        if known.len() > RUNS_MAX {
            let message = format!("{} runs are too many for one page, it shows {RUNS_MAX}", known.len());
            return Err(Error::usage("bad-usage", message).hint("watch the others on a second port"));
        }
        let runs = names(&known).into_iter().zip(&known).map(|(name, dir)| Mutex::new(Run::new(name, dir)));
        Ok(Runs { runs: runs.collect(), changes: watch::channel(0).0 })
    }

    pub fn len(&self) -> usize {
        self.runs.len()
    }

    pub fn get(&self, index: usize) -> Option<MutexGuard<'_, Run>> {
        // A reader that panicked left every field of the run intact.
        self.runs.get(index).map(|run| run.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Locks each run in turn.
    pub fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Run>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Returns the part that every page shows.
    pub fn brief(&self) -> Value {
        json!({ "runs": self.each().map(|run| run.brief()).collect::<Vec<Value>>() })
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub fn read_all(&self) {
        for mut run in self.each() {
            while run.turn() {}
        }
    }

    /// Reads additions, forever.
    pub fn follow(&self) {
        loop {
            let mut more = false;
            for mut run in self.each() {
                let version = run.version;
                more |= run.turn();
                if run.version != version {
                    self.changes.send_modify(|change| *change += 1);
                }
            }
            if !more {
                std::thread::sleep(LOOK);
            }
        }
    }
}

/// Returns the last parts of the paths, as many as needed to tell them apart.
fn names(dirs: &[PathBuf]) -> Vec<String> {
    let tail = |dir: &Path, count: usize| {
        let parts: Vec<String> = dir.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        parts[parts.len().saturating_sub(count)..].join("/")
    };
    let depth = dirs.iter().map(|dir| dir.iter().count()).max().unwrap_or(1);
    for count in 1..=depth {
        let names: Vec<String> = dirs.iter().map(|dir| tail(dir, count)).collect();
        if (1..names.len()).all(|i| !names[..i].contains(&names[i])) {
            return names;
        }
    }
    dirs.iter().map(|dir| dir.display().to_string()).collect()
}

fn unreadable(dir: &Path, what: &str) -> Error {
    Error::new("run-dir-unreadable", format!("{}: {what}", dir.display()))
        .hint("give a run directory that `plimsoll train` made, the one that holds events.jsonl")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn names_are_as_short_as_they_can_be() {
        let check = |dirs: &[&str], expect: &[&str]| {
            assert_eq!(names(&dirs.iter().map(PathBuf::from).collect::<Vec<_>>()), expect);
        };
        check(&["/a/b/first"], &["first"]);
        check(&["/a/x/first", "/a/y/first"], &["x/first", "y/first"]);
        check(&["/a/first", "/a/second"], &["first", "second"]);
    }

    #[test]
    fn a_directory_that_is_no_run_is_named_and_twice_the_same_is_once() {
        let folder = tempfile::tempdir().unwrap();
        let error = Runs::open(&[folder.path().to_path_buf()]).err().unwrap();
        assert_eq!(error.slug, "run-dir-unreadable");
        fs::write(folder.path().join("events.jsonl"), "").unwrap();
        let twice = [folder.path().to_path_buf(), folder.path().join(".")];
        assert_eq!(Runs::open(&twice).unwrap().len(), 1);
    }

    fn step(step: u32) -> String {
        format!(
            "{{\"event\":\"step\",\"step\":{step},\"steps\":9,\"reward\":0.{step},\"seconds_since_start\":{step},\
             \"metrics\":{{\"kl\":null,\"entropy\":0.5}}}}\n"
        )
    }

    #[test]
    fn a_run_is_followed_through_a_cut_log_its_end_and_its_removal() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("events.jsonl");
        fs::write(&log, step(1) + &step(2) + "no event\n" + &step(3)).unwrap();
        let runs = Runs::open(&[folder.path().to_path_buf()]).unwrap();
        let brief = || {
            runs.read_all();
            runs.brief()["runs"][0].clone()
        };
        let first = brief();
        assert_eq!(
            (&first["step"], &first["state"], &first["reward"]),
            (&json!(3), &json!("stopped"), &json!(0.3))
        );
        assert_eq!(runs.get(0).unwrap().detail()["unreadable_lines"], 1);
        assert_eq!(runs.get(0).unwrap().zoom(2, 3, 1 << 20).len(), 2);
        // A resumed run cuts its log back to a checkpoint.
        fs::write(&log, step(1) + "{\"event\":\"resumed\",\"step\":1,\"notes\":[\"<b>\"]}\n" + &step(2))
            .unwrap();
        let second = brief();
        assert_eq!(second["step"], 2);
        assert!(second["version"].as_u64() > first["version"].as_u64());
        assert!(second["epoch"].as_u64() > first["epoch"].as_u64());
        fs::write(folder.path().join("summary.json"), "{\"steps\":2}").unwrap();
        assert_eq!(brief()["state"], "finished");
        fs::write(folder.path().join("crash.json"), "{\"slug\":\"disk-full\"}").unwrap();
        assert_eq!(brief()["state"], "failed");
        assert_eq!(runs.get(0).unwrap().slugs(), ["disk-full"]);
        fs::remove_dir_all(folder.path()).unwrap();
        assert_eq!(brief()["state"], "gone");
    }
}
