//! Files of models that have no slot, which come back from them bit for bit.

use plimsoll_base::{Error, Result, read_small_text};
use plimsoll_files::{TensorFile, digest};
use plimsoll_model::SlotFile;
use std::path::{Path, PathBuf};

/// Most bytes of what is written down besides tensors.
pub const ABOUT_BYTES_MAX: u64 = 1 << 16;

/// The optimizer's states of a store.
#[derive(Clone, Copy)]
pub struct StateSets<'x> {
    pub m: SlotFile<'x>,
    pub v: SlotFile<'x>,
    /// Updates that made them.
    pub updates: u64,
}

/// The file of a model that has no slot. It is read by this process alone, and gone with it.
#[derive(Clone, Debug)]
pub struct Parked {
    pub path: PathBuf,
}

/// A parked model's file.
pub struct OpenParked {
    file: TensorFile,
}

impl OpenParked {
    /// Returns the tensors whose names have a prefix.
    pub fn set<'x>(&'x self, prefix: &'x str) -> SlotFile<'x> {
        SlotFile { file: &self.file, prefix }
    }
}

impl Parked {
    pub fn new(folder: &Path, model: &str) -> Parked {
        // A model's name comes from a client.
        Parked { path: folder.join(format!("{}.safetensors", digest(model.as_bytes()))) }
    }

    fn notes(&self) -> PathBuf {
        self.path.with_extension("json")
    }

    /// Writes down what is no tensor: the updates that made the states, and whether there are gradients.
    ///
    /// Errors: `write-failed`.
    pub fn note(&self, updates: u64, has_sums: bool) -> Result<()> {
        let text = serde_json::to_vec(&(updates, has_sums)).expect("two values");
        std::fs::write(self.notes(), text).map_err(|err| Error::io("write-failed", &self.notes(), &err))
    }

    /// Opens the file. Returns it with what was written down.
    ///
    /// Errors: those of reading.
    pub fn open(&self) -> Result<(OpenParked, u64, bool)> {
        let notes = self.notes();
        let text = read_small_text(&notes, ABOUT_BYTES_MAX);
        let text = text.map_err(|err| Error::io("model-file-unreadable", &notes, &err))?;
        let (updates, has_sums) = serde_json::from_str(&text)
            .map_err(|err| Error::new("adapter-damaged", format!("{}: {err}", notes.display())))?;
        Ok((OpenParked { file: TensorFile::open(&self.path)? }, updates, has_sums))
    }

    /// Removes the file, if it is there.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_file(self.notes());
    }
}
