//! The small files next to the log: `plan.json`, `crash.json`, `summary.json`, `run.toml`, and whether a process holds the
//! directory. They are read again after a change, and never through a link.

use plimsoll_plan::svg;
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
struct Whole {
    seen: Option<(u64, u64, Option<SystemTime>)>,
    text: Option<String>,
}

impl Whole {
    /// Reads the file. Returns true if it changed.
    fn look(&mut self, path: &Path) -> bool {
        let meta = fs::symlink_metadata(path).ok().filter(|m| m.is_file() && m.len() <= FILE_BYTES_MAX);
        let now = meta.map(|meta| (meta.ino(), meta.len(), meta.modified().ok()));
        if now == self.seen {
            return false;
        }
        self.seen = now;
        self.text = now.and_then(|_| fs::read_to_string(path).ok());
        true
    }

    fn json(&self) -> Option<Value> {
        serde_json::from_str(self.text.as_ref()?).ok()
    }
}

/// The files' contents.
#[derive(Default)]
pub struct Files {
    files: [Whole; 4],
    plan: Value,
    crash: Option<Value>,
    summary: Option<Value>,
    run_file: String,
    held: Option<bool>,
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
            self.run_file = run_file.text.clone().unwrap_or_default();
        }
        // Only the parsed forms are kept.
        self.files.iter_mut().for_each(|file| file.text = None);
        let held = is_held(&dir.join("lock"));
        let other_holder = std::mem::replace(&mut self.held, held) != held;
        other_holder || changed.contains(&true)
    }

    /// Returns the pools, regions and settings of the plan; null without one.
    pub fn plan(&self) -> &Value {
        &self.plan
    }

    pub fn crash(&self) -> Option<&Value> {
        self.crash.as_ref()
    }

    pub fn summary(&self) -> Option<&Value> {
        self.summary.as_ref()
    }

    pub fn run_file(&self) -> &str {
        &self.run_file
    }

    /// Whether a live process holds the directory; `None` if the kernel does not show it.
    pub fn is_held(&self) -> Option<bool> {
        self.held
    }
}

/// Returns what the page draws of a plan: regions of the memory pools with the classes of `plan --svg`.
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
    let pools: Vec<Value> = pools
        .map(|pool| {
            let entry = &plan["pools"][*pool];
            json!({
                "pool": pool,
                "limit_bytes": entry["limit_bytes"],
                "limit_source": entry["limit_source"],
                "peak_bytes": entry["peak_bytes"],
                "peak_phase": entry["peak_phase"],
                "phase_bytes": entry["phase_bytes"],
            })
        })
        .collect();
    json!({ "pools": pools, "regions": regions, "resolved": plan["resolved"] })
}

/// Reads the kernel's list of locks. Trying to take the lock would be simpler but could keep a run from starting meanwhile.
fn is_held(lock: &Path) -> Option<bool> {
    let Ok(meta) = fs::symlink_metadata(lock) else { return Some(false) };
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // `1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`; a file system may show another device, so only the inode is compared.
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
        assert_eq!(files.crash().unwrap()["slug"], "a");
        assert!(!files.look(folder.path()));
        fs::remove_file(folder.path().join("crash.json")).unwrap();
        assert!(files.look(folder.path()));
        assert_eq!(files.crash(), None);
        fs::write(folder.path().join("summary.json"), "{\"torn").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("run.toml")).unwrap();
        files.look(folder.path());
        assert_eq!((files.summary(), files.run_file()), (None, ""));
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
