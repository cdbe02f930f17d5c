//! The small files next to the log: `plan.json`, `crash.json`, `summary.json`, `run.toml`, `ranks.json`, and whether a
//! process holds the directory. They are reread after a change, and never through a link.

use plimsoll_base::read_small_text;
use plimsoll_plan::svg;
use plimsoll_ranks::RANKS_MAX;
use plimsoll_run::linked::RANKS_FILE;
use plimsoll_run::shareable;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// A plan has a few hundred kilobytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// The pools of a plan that are memory.
const POOLS: [&str; 5] = ["host", "device", "pinned", "shm", "disk"];

/// A file that is replaced as a whole.
#[derive(Default)]
struct ReplacedFile {
    seen: Option<(u64, u64, Option<SystemTime>)>,
    text: Option<String>,
}

impl ReplacedFile {
    /// Reads the file. Returns true if it changed.
    fn look(&mut self, path: &Path) -> bool {
        let meta = fs::symlink_metadata(path).ok().filter(|m| m.is_file() && m.len() <= FILE_BYTES_MAX);
        let now = meta.map(|meta| (meta.ino(), meta.len(), meta.modified().ok()));
        if now == self.seen {
            return false;
        }
        self.seen = now;
        self.text = now.and_then(|_| read_small_text(path, FILE_BYTES_MAX).ok());
        true
    }

    fn json(&self) -> Option<Value> {
        serde_json::from_str(self.text.as_ref()?).ok()
    }
}

#[derive(Default)]
pub struct Files {
    files: [ReplacedFile; 4],
    ranks_file: ReplacedFile,
    /// Pools, regions and settings; null without a plan.
    pub plan: Value,
    pub crash: Option<Value>,
    pub summary: Option<Value>,
    /// Without secrets: a page may be shared.
    pub run_file: String,
    /// The keys of the run file with their values, without secrets.
    pub settings: Vec<(String, String)>,
    /// A row for each rank; `None` for a run of one.
    pub ranks: Option<Value>,
    /// True if a live process holds the directory; `None` if the kernel does not show it.
    pub is_held: Option<bool>,
}

impl Files {
    /// Reads changed files. Returns true if there was one.
    pub fn look(&mut self, dir: &Path) -> bool {
        let names = ["plan.json", "crash.json", "summary.json", "run.toml"];
        let mut changed = [false; 4];
        for ((file, name), changed) in self.files.iter_mut().zip(names).zip(&mut changed) {
            *changed = file.look(&dir.join(name));
        }
        let [plan, crash, summary, run_file] = &mut self.files;
        if changed[0] {
            self.plan = plan.json().map_or(Value::Null, |plan| condensed(&plan));
        }
        if changed[1] {
            self.crash = crash.json().filter(Value::is_object);
        }
        if changed[2] {
            self.summary = summary.json().filter(Value::is_object);
        }
        if changed[3] {
            let text = run_file.text.as_deref();
            self.run_file = text.map(shareable::shown).unwrap_or_default();
            self.settings = text.map(shareable::settings).unwrap_or_default();
        }
        // Only the parsed forms are kept.
        self.files.iter_mut().for_each(|file| file.text = None);
        let held = is_held(&dir.join("lock"));
        let other_holder = std::mem::replace(&mut self.is_held, held) != held;
        other_holder || changed.contains(&true)
    }

    /// Reads the state of all ranks, written every second. Returns true if it is new.
    pub fn look_at_ranks(&mut self, dir: &Path) -> bool {
        let is_new = self.ranks_file.look(&dir.join(RANKS_FILE));
        if is_new {
            self.ranks = of_ranks(self.ranks_file.json());
            self.ranks_file.text = None;
        }
        is_new
    }
}

/// Returns the rows of ranks, at most the largest number of ranks.
fn of_ranks(text: Option<Value>) -> Option<Value> {
    let mut ranks = text.filter(|ranks| ranks["rows"].is_array())?;
    ranks["rows"].as_array_mut()?.truncate(RANKS_MAX as usize);
    Some(ranks)
}

/// Returns the part of a plan that the page draws: regions of the memory pools with the classes of `plan --svg`.
fn condensed(plan: &Value) -> Value {
    let regions = plan["regions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let regions = svg::larger_turn(regions).map(|region| {
        let (name, place) =
            (region["name"].as_str().unwrap_or_default(), region["place"].as_str().unwrap_or_default());
        json!({
            "name": name,
            "pool": region["pool"],
            "kind": svg::kind(name, place),
            "phases": region["phases"],
            "bytes": region["bytes"],
            "place": place,
        })
    });
    let regions: Vec<Value> = regions.collect();
    let pools = POOLS.iter().filter(|pool| plan["pools"][**pool]["peak_bytes"].as_u64().unwrap_or(0) > 0);
    let entry = |pool: &&str| {
        let mut entry = json!({ "pool": pool });
        for key in ["limit_bytes", "limit_source", "peak_bytes", "peak_phase", "phase_bytes"] {
            entry[key] = plan["pools"][*pool][key].clone();
        }
        entry
    };
    let pools: Vec<Value> = pools.map(entry).collect();
    json!({ "pools": pools, "regions": regions, "resolved": plan["resolved"] })
}

/// Reads the kernel's list of locks. Trying to take the lock would be simpler but could keep a run from starting.
fn is_held(lock: &Path) -> Option<bool> {
    let Ok(meta) = fs::symlink_metadata(lock) else { return Some(false) };
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // `1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`; file systems may show other devices: only the inode counts.
    let inode = meta.ino().to_string();
    let is_it = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some("FLOCK")
            && words.nth(3).and_then(|id| id.rsplit(':').next()) == Some(inode.as_str())
    };
    Some(locks.lines().any(is_it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_held_while_its_lock_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        assert_eq!(is_held(&path), Some(false));
        let file = fs::File::create(&path).unwrap();
        if is_held(&path).is_none() {
            return eprintln!("skipped: /proc/locks cannot be read here");
        }
        file.lock().unwrap();
        assert_eq!(is_held(&path), Some(true));
        drop(file);
        assert_eq!(is_held(&path), Some(false));
    }

    #[test]
    fn files_are_read_again_when_they_changed() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::default();
        fs::write(folder.path().join("crash.json"), "{\"slug\":\"a\"}").unwrap();
        assert!(files.look(folder.path()));
        assert_eq!(files.crash.as_ref().unwrap()["slug"], "a");
        assert!(!files.look(folder.path()));
        fs::remove_file(folder.path().join("crash.json")).unwrap();
        assert!(files.look(folder.path()));
        assert_eq!(files.crash, None);
        let kind = "[[reward]]\nkind = \"command:g.py --api-key ZQ\"\n";
        fs::write(folder.path().join("run.toml"), kind).unwrap();
        files.look(folder.path());
        assert_eq!(files.run_file, kind.replace("ZQ", "(not shown)"));
        fs::remove_file(folder.path().join("run.toml")).unwrap();
        fs::write(folder.path().join("summary.json"), "{\"torn").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("run.toml")).unwrap();
        files.look(folder.path());
        assert_eq!((&files.summary, files.run_file.as_str()), (&None, ""));
    }

    #[test]
    fn rows_of_ranks_are_read_again_and_go_with_their_file() {
        let (folder, mut files) = (tempfile::tempdir().unwrap(), Files::default());
        let path = folder.path().join("ranks.json");
        assert!(!files.look_at_ranks(folder.path()) && files.ranks.is_none());
        let row = "{\"rank\":1},";
        fs::write(&path, format!("{{\"slowest\":1,\"rows\":[{}{{}}]}}", row.repeat(99))).unwrap();
        assert!(files.look_at_ranks(folder.path()) && !files.look_at_ranks(folder.path()));
        let ranks = files.ranks.as_ref().unwrap();
        assert_eq!((ranks["rows"].as_array().unwrap().len(), &ranks["slowest"]), (64, &json!(1)));
        for text in ["{\"rows\":[", "{\"rows\":7}", "[]"] {
            fs::write(&path, text).unwrap();
            assert!(files.look_at_ranks(folder.path()) && files.ranks.is_none(), "{text}");
        }
        fs::remove_file(&path).unwrap();
        assert!(files.look_at_ranks(folder.path()) && files.ranks.is_none());
    }

    #[test]
    fn a_plan_keeps_the_pools_that_hold_something() {
        let plan = json!({
            "pools": { "host": { "peak_bytes": 7, "limit_bytes": 9 }, "device": { "peak_bytes": 0 } },
            "regions": [
                { "name": "actor.weights", "pool": "host", "phases": ["resident"], "bytes": 4, "place": "arena" },
                { "name": "rollout.keys", "pool": "host", "phases": ["rollout"], "bytes": 3, "place": "arena" },
            ],
        });
        let got = condensed(&plan);
        assert_eq!(got["pools"].as_array().unwrap().len(), 1);
        assert_eq!(
            (&got["regions"][0]["kind"], &got["regions"][1]["kind"]),
            (&json!("weights"), &json!("kv"))
        );
    }
}
