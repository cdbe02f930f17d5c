//! Stores on the disk: what clients have saved, and what a restart needs.

use crate::adapter::{ALPHA, seeded};
use crate::parked::{ABOUT_BYTES_MAX, StateSets};
use crate::slots::TrainedSlots;
use plimsoll_arch::{Compute, LoraTargets};
use plimsoll_base::{Error, Result, read_small_text};
use plimsoll_files::{
    ADAPTER_CONFIG, ADAPTER_WEIGHTS, Adapter, AdapterConfig, Head, OpenModel, TensorFile, adapter_base,
    adapter_config_json, fsync_dir, write_new,
};
use plimsoll_model::SlotFile;
use plimsoll_tinker::{AdapterChoice, SaveKind, StoreFolders, StoreId};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A store's file of the optimizer's states.
const STATES: &str = "optimizer.safetensors";
/// A store's file of what is no tensor.
const ABOUT: &str = "store.json";

/// What a store says of itself.
#[derive(Serialize, Deserialize)]
struct About {
    adapter: AdapterChoice,
    /// Updates that made the optimizer's states; none if the store has no states.
    updates: Option<u64>,
}

/// The folder of all stores.
#[derive(Clone, Debug)]
pub struct Stores {
    folder: PathBuf,
}

/// A store that was opened.
pub struct OpenStore {
    pub files: Adapter,
    states: Option<(TensorFile, u64)>,
}

impl OpenStore {
    /// Returns the optimizer's states; none if it has none.
    pub fn states(&self) -> Option<StateSets<'_>> {
        let (file, updates) = self.states.as_ref()?;
        let of = |prefix| SlotFile { file, prefix };
        Some(StateSets { m: of("adam_m."), v: of("adam_v."), updates: *updates })
    }
}

/// Refuses a server's folder that has what a server would remove, and no journal of one: it is somebody else's.
///
/// Errors: `bad-value`.
pub fn check_folder(folder: &Path, journal: &str, own: &[&str]) -> Result<()> {
    if folder.join(journal).exists() {
        return Ok(());
    }
    let is_full = |name: &str| std::fs::read_dir(folder.join(name)).is_ok_and(|mut all| all.next().is_some());
    match own.iter().find(|name| is_full(name)) {
        None => Ok(()),
        Some(name) => {
            let message =
                format!("--train {}: it has files in {name}, and no {journal} of a server", folder.display());
            Err(Error::usage("bad-value", message)
                .hint("name a folder that is empty or not there, or one of a server"))
        }
    }
}

impl Stores {
    /// Takes a folder of stores, and removes all that is none of those that are known.
    ///
    /// Errors: `write-failed`.
    pub fn open(folder: PathBuf, known: &[StoreId]) -> Result<Stores> {
        let failed = |err: std::io::Error| Error::io("write-failed", &folder, &err);
        std::fs::create_dir_all(&folder).map_err(failed)?;
        for entry in std::fs::read_dir(&folder).map_err(failed)?.flatten() {
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.parse::<StoreId>().ok());
            if id.is_none_or(|id| !known.contains(&id)) {
                std::fs::remove_dir_all(entry.path()).map_err(failed)?;
            }
        }
        Ok(Stores { folder })
    }

    /// Returns what says in which folder of `all` a store is.
    pub fn folders(all: PathBuf) -> StoreFolders {
        StoreFolders(Arc::new(move |store| all.join(store.to_string())))
    }

    /// Returns a store's folder.
    pub fn path(&self, store: StoreId) -> PathBuf {
        self.folder.join(store.to_string())
    }

    /// Writes a model to a store, which is on the disk when this returns. Returns its bytes.
    ///
    /// Errors: `disk-full`, `write-failed`; no part of a store is left.
    pub fn save(
        &self,
        slots: &mut TrainedSlots<'_, '_>,
        base: &OpenModel,
        (model, store, kind): (&str, StoreId, SaveKind),
    ) -> Result<u64> {
        let (part, path) = (self.folder.join(format!("{store}.part")), self.path(store));
        let failed = |err: std::io::Error| Error::io("write-failed", &part, &err);
        let _ = std::fs::remove_dir_all(&part);
        std::fs::create_dir(&part).map_err(failed)?;
        let written = write_store(&part, slots, base, (model, kind)).and_then(|bytes| {
            fsync_dir(&part)?;
            std::fs::rename(&part, &path).map_err(failed)?;
            fsync_dir(&self.folder)?;
            Ok(bytes)
        });
        written.inspect_err(|_| _ = std::fs::remove_dir_all(&part))
    }

    /// Opens a store of a model with this base.
    ///
    /// Errors: those of reading.
    pub fn read(&self, base: &OpenModel, store: StoreId) -> Result<OpenStore> {
        let path = self.path(store);
        let files = Adapter::open(&path, &base.spec)?;
        let about = about(&path)?;
        let states = match about.updates {
            Some(updates) => Some((TensorFile::open(&path.join(STATES))?, updates)),
            None => None,
        };
        Ok(OpenStore { files, states })
    }

    /// Removes a store; one that is not there is no error.
    ///
    /// Errors: `write-failed`.
    pub fn remove(&self, store: StoreId) -> Result<()> {
        let path = self.path(store);
        match std::fs::remove_dir_all(&path) {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("write-failed", &path, &err))
            }
            _ => Ok(()),
        }
    }
}

fn about(path: &Path) -> Result<About> {
    let path = path.join(ABOUT);
    let text = read_small_text(&path, ABOUT_BYTES_MAX);
    let text = text.map_err(|err| Error::io("model-file-unreadable", &path, &err))?;
    serde_json::from_str(&text)
        .map_err(|err| Error::new("adapter-damaged", format!("{}: {err}", path.display())))
}

fn write_store(
    part: &Path,
    slots: &mut TrainedSlots<'_, '_>,
    base: &OpenModel,
    (model, kind): (&str, SaveKind),
) -> Result<u64> {
    let adapter = slots.adapter(model)?;
    let mut bytes = slots.save_weights(model, kind, &part.join(ADAPTER_WEIGHTS))?;
    let mut updates = None;
    if kind == SaveKind::Training {
        let (states, made) = slots.save_states(model, &part.join(STATES))?;
        (bytes, updates) = (bytes + states, Some(made));
    }
    let config = config_of(&adapter, slots, base);
    let config = serde_json::to_vec_pretty(&adapter_config_json(&config, &base.spec)).expect("a JSON value");
    bytes += write_new(&part.join(ADAPTER_CONFIG), &config)?.bytes;
    let about = serde_json::to_vec(&About { adapter, updates }).expect("a JSON value");
    Ok(bytes + write_new(&part.join(ABOUT), &about)?.bytes)
}

/// Returns the configuration of an adapter's files, as peft and vLLM read it.
fn config_of(adapter: &AdapterChoice, slots: &TrainedSlots<'_, '_>, base: &OpenModel) -> AdapterConfig {
    let begin = seeded(adapter);
    let shape = slots.bound.shape.lora.expect("a plan with slots").shape;
    let targets = shape.targets.iter().filter(|target| begin.trains(&format!(".{}.", target.module())));
    AdapterConfig {
        rank: adapter.rank,
        alpha: ALPHA,
        rslora: false,
        targets: LoraTargets::new(targets).expect("an adapter trains some layers"),
        base: Some(adapter_base(&base.source)),
        head: Head::Vocabulary,
        quantize: None,
        compute: Compute::Full,
        tower: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_somebody_else_is_refused_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let check = || check_folder(folder.path(), "journal", &["stores", "parked"]);
        check().unwrap();
        let mine = folder.path().join("stores");
        std::fs::create_dir(&mine).unwrap();
        check().unwrap();
        std::fs::write(mine.join("mine"), "x").unwrap();
        let error = check().unwrap_err();
        assert!(error.slug == "bad-value" && error.message.contains("files in stores"), "{error}");
        assert!(mine.join("mine").exists());
        std::fs::write(folder.path().join("journal"), "").unwrap();
        check().unwrap();
    }
}
