//! One safetensors file of optimizer states or an adapter, checked like a model's. Values pass through a buffer.

use crate::safetensors_dir;
use crate::storage::Storage;
use crate::tensors::TensorInfo;
use plimsoll_base::{Error, Result, blocks};
use std::collections::HashMap;
use std::path::Path;

/// An open safetensors file.
#[derive(Debug)]
pub struct TensorFile {
    storage: Storage,
    tensors: HashMap<String, TensorInfo>,
}

impl TensorFile {
    /// Returns the file and the tensors in it, in no order.
    pub(crate) fn stored(&self) -> (&Storage, Vec<&TensorInfo>) {
        (&self.storage, self.tensors.values().collect())
    }

    /// Opens a regular file and reads its header.
    ///
    /// Errors: `model-file-missing`, `model-file-unreadable`, `model-file-corrupt`, `model-file-truncated`.
    pub fn open(path: &Path) -> Result<TensorFile> {
        let storage = Storage::open(path)?;
        let tensors = safetensors_dir::read_header(&storage, 0)?;
        Ok(TensorFile { storage, tensors: tensors.into_iter().map(|t| (t.name.clone(), t)).collect() })
    }

    /// Renames the tensors.
    ///
    /// Errors: `model-file-corrupt` for two of one name.
    pub(crate) fn renamed(self, name: impl Fn(&str) -> String) -> Result<TensorFile> {
        let TensorFile { storage, tensors } = self;
        let mut named = HashMap::with_capacity(tensors.len());
        for (from, mut tensor) in tensors {
            tensor.name = name(&from);
            if let Some(other) = named.insert(tensor.name.clone(), tensor) {
                let message = format!("{}: two tensors are `{}`", storage.name(), other.name);
                return Err(Error::new("model-file-corrupt", message));
            }
        }
        Ok(TensorFile { storage, tensors: named })
    }

    pub fn num_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Returns every tensor, in no particular order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.values()
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Reads `out.len()` values of a tensor from value `first` on. `staging` holds stored bytes in transit.
    ///
    /// Errors: `model-tensor-missing`, `model-file-truncated`.
    pub fn read(&self, name: &str, first: u64, staging: &mut [u8], out: &mut [f32]) -> Result<()> {
        let tensor = self.tensor(name).ok_or_else(|| {
            Error::new("model-tensor-missing", format!("{}: no tensor `{name}`", self.storage.name()))
        })?;
        let width = tensor.encoding.block_bytes();
        let values: u64 = tensor.shape.iter().product(); // checked with the header
        assert!(first + out.len() as u64 <= values, "values {first}..+{} of `{name}` of {values}", out.len());
        let mut offset = tensor.offset + first * width;
        for out in out.chunks_mut(staging.len() / width as usize) {
            let bytes = &mut staging[..out.len() * width as usize];
            self.storage.read_exact_at(bytes, offset)?;
            blocks::decode(tensor.encoding, bytes, &[], out);
            offset += bytes.len() as u64;
        }
        Ok(())
    }
}
