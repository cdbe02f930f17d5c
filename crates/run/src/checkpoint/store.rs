//! The folder `checkpoints/`: names, complete checkpoints, `latest` and `best`, and removal. Names appear and disappear
//! by rename, so at any instant every `step-N` in it is a complete checkpoint.

use super::{MANIFEST, Manifest, Retention};
use crate::run_dir::{step_name, unwritable};
use plimsoll_base::Result;
use plimsoll_files::fsync_dir;
use std::fs;
use std::path::{Path, PathBuf};

const LATEST: &str = "latest";
/// The checkpoint with the highest evaluation.
const BEST: &str = "best";
/// Suffix of a checkpoint that was found damaged and skipped.
const DAMAGED: &str = ".damaged";

#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    pub fn of_run(run_dir: &Path) -> Store {
        Store { folder: run_dir.join("checkpoints") }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder of a step, whether it exists or not.
    pub fn path(&self, step: u32) -> PathBuf {
        self.folder.join(step_name(step))
    }

    /// Returns the steps that have a folder, ascending; empty without `checkpoints`.
    pub fn steps(&self) -> Vec<u32> {
        let names = self.names().into_iter();
        let mut steps: Vec<u32> = names.filter_map(|name| step_of(&name)).collect();
        steps.sort_unstable();
        steps
    }

    /// Makes an empty folder under a temporary name, to be filled and passed to `finish`.
    pub fn begin(&self, step: u32) -> Result<PathBuf> {
        let part = self.part(step);
        if part.symlink_metadata().is_ok() {
            fs::remove_dir_all(&part).map_err(|err| unwritable(&part, &err))?;
        }
        fs::create_dir(&part).map_err(|err| unwritable(&part, &err))?;
        Ok(part)
    }

    /// Renames the folder of `begin` to its final name, updates `best` and `latest`, and removes checkpoints that
    /// `retention` does not keep. Its files must already be synced to disk.
    pub fn finish(&self, step: u32, retention: &Retention) -> Result<PathBuf> {
        let (part, whole) = (self.part(step), self.path(step));
        fsync_dir(&part)?;
        if whole.symlink_metadata().is_ok() {
            self.remove(&step_name(step))?;
        }
        fs::rename(&part, &whole).map_err(|err| unwritable(&whole, &err))?;
        fsync_dir(&self.folder)?;
        self.point_best(retention.best)?;
        self.point_latest(step)?;
        self.prune(step, retention)?;
        Ok(whole)
    }

    /// Removes the folder of a checkpoint that could not be written.
    pub fn abandon(&self, step: u32) {
        let _ = fs::remove_dir_all(self.part(step));
    }

    /// Removes the temporary names that a killed run left.
    pub(crate) fn clear_leftovers(&self) -> Result<()> {
        for name in self.names().iter().filter(|name| name.starts_with('.')) {
            let path = self.folder.join(name);
            let is_dir = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
            let removed = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(|err| unwritable(&path, &err))?;
        }
        Ok(())
    }

    /// Renames a damaged checkpoint; it is removed once a newer one is complete.
    pub(crate) fn set_aside(&self, step: u32) -> Result<()> {
        let (from, to) = (self.path(step), self.folder.join(format!("{}{DAMAGED}", step_name(step))));
        if to.symlink_metadata().is_ok() {
            self.remove(&format!("{}{DAMAGED}", step_name(step)))?;
        }
        fs::rename(&from, &to).map_err(|err| unwritable(&to, &err))?;
        fsync_dir(&self.folder)
    }

    pub(crate) fn point_latest(&self, step: u32) -> Result<()> {
        self.point(LATEST, step)
    }

    /// Points `best` at a checkpoint, or removes it if there is no best or its folder is gone.
    pub(crate) fn point_best(&self, step: Option<u32>) -> Result<()> {
        match step.filter(|step| self.path(*step).is_dir()) {
            Some(step) => self.point(BEST, step),
            None => {
                let _ = fs::remove_file(self.folder.join(BEST));
                Ok(())
            }
        }
    }

    /// Makes the link under a temporary name and renames it, so that a name always points at a complete checkpoint.
    fn point(&self, name: &str, step: u32) -> Result<()> {
        let (part, link) = (self.folder.join(format!(".{name}.part")), self.folder.join(name));
        let _ = fs::remove_file(&part);
        std::os::unix::fs::symlink(step_name(step), &part)
            .and_then(|()| fs::rename(&part, &link))
            .map_err(|err| unwritable(&link, &err))?;
        fsync_dir(&self.folder)
    }

    fn prune(&self, newest: u32, retention: &Retention) -> Result<()> {
        // A run resumed from an earlier checkpoint passes its old steps again: the last one written is the newest.
        let bytes = |step: u32| Manifest::read(&self.path(step)).map_or(0, |manifest| manifest.bytes());
        let whole: Vec<(u32, u64)> =
            self.steps().into_iter().filter(|step| *step <= newest).map(|step| (step, bytes(step))).collect();
        for step in retention.superfluous(&whole) {
            self.remove(&step_name(step))?;
        }
        for name in self.names() {
            if name.strip_suffix(DAMAGED).and_then(step_of).is_some_and(|step| step <= newest) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Removes the name first, then the bytes: a half-removed folder never has a complete one's name.
    fn remove(&self, name: &str) -> Result<()> {
        let (path, hidden) = (self.folder.join(name), self.folder.join(format!(".{name}.old")));
        let _ = fs::remove_dir_all(&hidden);
        if path.symlink_metadata().is_ok_and(|meta| !meta.is_dir()) {
            return fs::remove_file(&path).map_err(|err| unwritable(&path, &err));
        }
        // The manifest goes with the name, so the rest is not mistaken for a checkpoint even if copied.
        let gone = fs::rename(&path, &hidden)
            .and_then(|()| match fs::remove_file(hidden.join(MANIFEST)) {
                Err(err) if err.kind() != std::io::ErrorKind::NotFound => Err(err),
                _ => Ok(()),
            })
            .and_then(|()| fs::remove_dir_all(&hidden));
        gone.map_err(|err| unwritable(&path, &err))
    }

    fn part(&self, step: u32) -> PathBuf {
        self.folder.join(format!(".{}.part", step_name(step)))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

/// Returns the step of a name such as `step-000010`.
fn step_of(name: &str) -> Option<u32> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP_2: Retention = Retention { keep: 2, keep_bytes: None, best: None };

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::of_run(folder.path());
        fs::create_dir(store.folder()).unwrap();
        (folder, store)
    }

    fn names(store: &Store) -> Vec<String> {
        let mut names = store.names();
        names.sort();
        names
    }

    fn save(store: &Store, step: u32, retention: &Retention) {
        let part = store.begin(step).unwrap();
        fs::write(part.join("w"), step.to_string()).unwrap();
        store.finish(step, retention).unwrap();
    }

    #[test]
    fn latest_names_the_last_whole_checkpoint_and_old_ones_go() {
        let (_folder, store) = store();
        for step in [5, 10, 15] {
            save(&store, step, &KEEP_2);
        }
        let part = store.begin(20).unwrap();
        fs::write(part.join("w"), "torn").unwrap();
        assert_eq!(fs::read_to_string(store.folder().join("latest/w")).unwrap(), "15");
        assert_eq!(store.steps(), [10, 15]);
        store.abandon(20);
        assert_eq!(names(&store), ["latest", "step-000010", "step-000015"]);
        // Saving the same step again replaces it.
        save(&store, 15, &KEEP_2);
        assert_eq!(names(&store), ["latest", "step-000010", "step-000015"]);
        assert_eq!(store.steps(), [10, 15]);
    }

    #[test]
    fn best_names_the_best_which_stays() {
        let (_folder, store) = store();
        for (step, best) in [(5, None), (10, Some(10)), (15, Some(10)), (20, Some(10)), (25, Some(10))] {
            save(&store, step, &Retention { keep: 1, best, ..KEEP_2 });
        }
        assert_eq!(names(&store), ["best", "latest", "step-000010", "step-000025"]);
        let best = || fs::read_to_string(store.folder().join("best/w")).ok();
        assert_eq!(best().as_deref(), Some("10"));
        // A run that resumed from before the best has another.
        store.point_best(Some(25)).unwrap();
        assert_eq!(best().as_deref(), Some("25"));
        store.point_best(Some(7)).unwrap();
        assert_eq!(best(), None);
        assert_eq!(names(&store), ["latest", "step-000010", "step-000025"]);
    }

    #[test]
    fn a_damaged_one_is_set_aside_until_a_newer_one_is_whole() {
        let (_folder, store) = store();
        for step in [5, 10] {
            save(&store, step, &KEEP_2);
        }
        store.set_aside(10).unwrap();
        assert_eq!(store.steps(), [5]);
        save(&store, 9, &KEEP_2);
        assert!(names(&store).contains(&"step-000010.damaged".to_string()));
        save(&store, 10, &KEEP_2);
        assert_eq!(names(&store), ["latest", "step-000009", "step-000010"]);
    }

    #[test]
    fn what_a_killed_run_left_is_cleared_and_other_names_are_no_checkpoints() {
        let (_folder, store) = store();
        save(&store, 5, &KEEP_2);
        for name in ["step-7", "step-", "step-00000x", "notes"] {
            fs::create_dir(store.folder().join(name)).unwrap();
        }
        store.begin(6).unwrap();
        fs::write(store.folder().join(".latest.part"), "").unwrap();
        assert_eq!(store.steps(), [5]);
        store.clear_leftovers().unwrap();
        assert!(names(&store).iter().all(|name| !name.starts_with('.')), "{:?}", names(&store));
        save(&store, 1_234_567, &KEEP_2);
        assert_eq!(store.steps(), [5, 1_234_567]);
    }
}
