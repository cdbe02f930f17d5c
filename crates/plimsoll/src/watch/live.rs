//! The thread that reads the runs, and what requests see. Each log is read once, however many pages show it.

use super::folder::{self, DEPTH_MAX};
use super::run::Run;
use super::series::BUCKETS_MAX;
use plimsoll_base::{Error, Result};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Runs on one page. The first `FINE_RUNS` may take a few megabytes each, the others a quarter of that.
pub const RUNS_MAX: usize = 64;
/// Runs whose curves have all points.
const FINE_RUNS: usize = 16;
/// Interval at which files are checked.
const LOOK: Duration = Duration::from_millis(250);
/// Interval at which folders are searched for new runs.
const SEARCH: Duration = Duration::from_secs(5);

pub struct Runs {
    /// Filled one by one and never emptied: pages know a run by its index.
    slots: [OnceLock<Mutex<Run>>; RUNS_MAX],
    /// Folders in which runs may begin.
    folders: Vec<PathBuf>,
    /// Runs found in folders that have no slot.
    left_out: AtomicUsize,
    /// Incremented with each change; pages wait for it.
    changes: watch::Sender<u64>,
}

impl Runs {
    /// Takes directories of runs, and of folders the runs below them; reads no log yet.
    ///
    /// Errors: `run-dir-unreadable`, `bad-usage`.
    pub fn open(dirs: &[PathBuf]) -> Result<Runs> {
        let (mut known, mut folders, mut found): (Vec<PathBuf>, Vec<PathBuf>, Vec<PathBuf>) =
            Default::default();
        for dir in dirs {
            let whole = dir.canonicalize().map_err(|err| unreadable(dir, &err.to_string()))?;
            if folder::is_run(&whole) {
                push_new(&mut known, whole);
                continue;
            }
            let below = folder::runs_below(&whole);
            if below.is_empty() {
                let what =
                    format!("there is no events.jsonl in it, nor in a folder below it ({DEPTH_MAX} deep)");
                return Err(unreadable(dir, &what));
            }
            below.into_iter().for_each(|run| push_new(&mut found, run));
            push_new(&mut folders, whole);
        }
        if known.len() > RUNS_MAX {
            let message = format!("{} runs are too many for one page, it shows {RUNS_MAX}", known.len());
            return Err(Error::usage("bad-usage", message).hint("watch the others on a second port"));
        }
        found.retain(|run| !known.contains(run));
        let all = known.len() + found.len();
        known.extend(folder::latest(found, RUNS_MAX - known.len()));
        let runs = Runs {
            slots: [const { OnceLock::new() }; RUNS_MAX],
            folders,
            left_out: AtomicUsize::new(all - known.len()),
            changes: watch::channel(0).0,
        };
        names(&known).into_iter().zip(&known).for_each(|(name, dir)| runs.add(name, dir));
        Ok(runs)
    }

    fn add(&self, name: String, dir: &Path) {
        let index = self.len();
        let buckets_max = if index < FINE_RUNS { BUCKETS_MAX } else { BUCKETS_MAX / 4 };
        if let Some(slot) = self.slots.get(index) {
            // The one thread that adds runs is the only one that sets a slot.
            let _ = slot.set(Mutex::new(Run::new(name, dir, buckets_max)));
        }
    }

    pub fn len(&self) -> usize {
        self.slots.iter().take_while(|slot| slot.get().is_some()).count()
    }

    /// Returns the number of runs that were found and are not shown.
    pub fn left_out(&self) -> usize {
        self.left_out.load(Ordering::Relaxed)
    }

    pub fn get(&self, index: usize) -> Option<MutexGuard<'_, Run>> {
        // A reader that panicked left every field of the run intact.
        let run = self.slots.get(index)?.get()?;
        Some(run.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Locks each run in turn.
    pub fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Run>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Returns the part that every page shows.
    pub fn brief(&self) -> Value {
        let runs: Vec<Value> = self.each().map(|run| run.brief()).collect();
        json!({ "runs": runs, "left_out": self.left_out() })
    }

    /// Takes the runs that have begun in the folders since. Returns true if there is one.
    fn search(&self) -> bool {
        let mut known: Vec<(PathBuf, String)> =
            self.each().map(|run| (run.dir.clone(), run.name.clone())).collect();
        let (before, mut left_out) = (known.len(), 0);
        for folder in &self.folders {
            for dir in folder::runs_below(folder) {
                if known.iter().any(|(other, _)| *other == dir) {
                    continue;
                }
                if known.len() == RUNS_MAX {
                    left_out += 1;
                    continue;
                }
                let short = dir.strip_prefix(folder).unwrap_or(&dir).display().to_string();
                let is_taken = known.iter().any(|(_, name)| *name == short);
                let name = if is_taken { dir.display().to_string() } else { short };
                self.add(name.clone(), &dir);
                known.push((dir, name));
            }
        }
        let other = self.left_out.swap(left_out, Ordering::Relaxed) != left_out;
        other || known.len() > before
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub fn read_all(&self) {
        for mut run in self.each() {
            while run.turn() {}
        }
    }

    pub fn follow(&self) {
        let mut searched = Instant::now();
        loop {
            let mut more = false;
            if !self.folders.is_empty() && searched.elapsed() >= SEARCH {
                if self.search() {
                    self.changes.send_modify(|change| *change += 1);
                }
                searched = Instant::now();
            }
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

fn push_new(known: &mut Vec<PathBuf>, dir: PathBuf) {
    if !known.contains(&dir) {
        known.push(dir);
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
        .hint("give a run directory that `plimsoll train` made, the one that holds events.jsonl, or a folder of such")
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

    #[test]
    fn a_folder_is_its_runs_with_those_that_begin_later() {
        let folder = tempfile::tempdir().unwrap();
        let begin = |name: &str| {
            fs::create_dir_all(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("events.jsonl"), step(1)).unwrap();
        };
        ["lr-1/seed-1", "lr-1/seed-2", "lr-2/seed-1"].iter().for_each(|name| begin(name));
        let alone = folder.path().join("lr-1/seed-2");
        let runs = Runs::open(&[alone, folder.path().to_path_buf()]).unwrap();
        let names = || runs.each().map(|run| run.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(), ["lr-1/seed-2", "lr-1/seed-1", "lr-2/seed-1"]);
        assert!(!runs.search());
        begin("lr-0/seed-1");
        assert!(runs.search() && !runs.search());
        assert_eq!(names()[3], "lr-0/seed-1");
        (0..RUNS_MAX).for_each(|i| begin(&format!("more/{i}")));
        assert!(runs.search());
        assert_eq!((runs.len(), runs.left_out()), (RUNS_MAX, 4));
        assert_eq!(runs.brief()["left_out"], 4);
        assert_eq!(Runs::open(&[folder.path().to_path_buf()]).unwrap().left_out(), 4);
    }

    #[test]
    fn best_values_and_the_rates_of_all_steps_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let step = |step: u32, reward: f64, loss: f64| {
            let event = json!({ "event": "step", "step": step, "reward": reward, "loss": loss,
                "tokens_per_second_rollout": 100.0 * f64::from(step), "tokens_per_second_update": 7.0,
                "metrics": { "tokens_per_second/rollout": 1.0, "tokens_per_second/update": 1.0 } });
            format!("{event}\n")
        };
        let eval =
            |step: u32, score: f64| format!("{}\n", json!({ "event": "eval", "step": step, "score": score }));
        let log = [
            step(1, 0.25, 2.0),
            eval(1, 0.5),
            step(2, 0.75, 1.0),
            eval(2, 0.875),
            step(3, 0.5, 1.5),
            eval(3, 0.75),
        ];
        fs::write(folder.path().join("events.jsonl"), log.concat()).unwrap();
        fs::write(folder.path().join("run.toml"), "seed = 7\n[train]\nlearning_rate = 0.1\n").unwrap();
        let runs = Runs::open(&[folder.path().to_path_buf()]).unwrap();
        runs.read_all();
        let brief = runs.brief()["runs"][0].clone();
        let got = [
            "reward",
            "reward_best",
            "loss",
            "loss_least",
            "eval_last",
            "eval_best",
            "rollout_rate",
            "update_rate",
        ]
        .map(|name| brief[name].as_f64().unwrap());
        // The rates are those that the terminal shows: means since the first step.
        assert_eq!(got, [0.5, 0.75, 1.5, 1.0, 0.75, 0.875, 300.0, 7.0]);
        let settings = runs.get(0).unwrap().detail()["settings"].clone();
        assert_eq!(settings, json!([["seed", "7"], ["train.learning_rate", "0.1"]]));
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
