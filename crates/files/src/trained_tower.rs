//! A tower that was trained with an adapter of its text: a file next to the adapter's.

use crate::safetensors_dir::read_header;
use crate::storage::Storage;
use crate::tensors::TensorInfo;
use crate::wrapped::tower_tensors;
use plimsoll_base::Result;
use std::path::Path;

/// Its file.
pub const TRAINED_TOWER: &str = "tower.safetensors";

/// Opens the tower in an adapter's folder as file `index` of its model; none if there is none.
///
/// Errors: those of reading.
pub(crate) fn open_tower(folder: &Path, index: usize) -> Result<Option<(Storage, Vec<TensorInfo>)>> {
    let path = folder.join(TRAINED_TOWER);
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    let storage = Storage::open(&path)?;
    let tensors = tower_tensors(&read_header(&storage, index)?)?;
    Ok(Some((storage, tensors)))
}
