//! Tells models with other weights apart without reading all of them: ranks that train one model compare it.

use crate::adapter::Adapter;
use crate::mxfp4;
use crate::open::OpenModel;
use crate::storage::Storage;
use crate::tensors::TensorInfo;
use plimsoll_base::Result;
use sha2::{Digest, Sha256};

/// Bytes of a model that are read: a smaller one is read whole.
const READ_BYTES: u64 = 64 << 20;
/// Parts of a tensor that are read: its first, its middle and its last bytes.
const PARTS: u64 = 3;
/// The least of such a part: training moves a third of 16-bit weights or more, so some of these.
const PART_BYTES_MIN: u64 = 512;

impl OpenModel {
    /// Returns a SHA-256 in hex of all tensors' names, encodings, shapes and values, with those of an adapter on them.
    ///
    /// Of a model above 64 MiB only the first, middle and last bytes of each tensor are read, together about 64 MiB:
    /// models that differ in a trained tensor differ in some of them. `random:` models have no values, only a name.
    ///
    /// Errors: those of reading.
    pub fn weights_sha256(&self) -> Result<String> {
        let mut hash = Sha256::new();
        let part = part_bytes(self.tensors.len() as u64);
        let mut tensors: Vec<&TensorInfo> = self.tensors.iter().collect();
        // Whatever the files that they are spread over.
        tensors.sort_by(|one, other| one.name.cmp(&other.name));
        for tensor in tensors {
            add(&mut hash, &self.files[tensor.file], tensor, part)?;
            if let Some((file, offset, bytes)) = mxfp4::scales(tensor) {
                add(
                    &mut hash,
                    &self.files[file],
                    &TensorInfo { file, offset, bytes, ..tensor.clone() },
                    part,
                )?;
            }
        }
        if let Some(adapter) = &self.adapter {
            let (storage, mut tensors) = adapter.stored();
            tensors.sort_by(|one, other| one.name.cmp(&other.name));
            let part = part_bytes(tensors.len() as u64);
            tensors.iter().try_for_each(|tensor| add(&mut hash, storage, tensor, part))?;
        }
        if self.random {
            hash.update(self.source.as_bytes());
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl Adapter {
    /// Returns a SHA-256 of its tensors and its factor: adapters that compute alike have one hash.
    ///
    /// Errors: those of reading.
    pub fn content_sha256(&self) -> Result<[u8; 32]> {
        let mut hash = Sha256::new();
        let (storage, mut tensors) = self.stored();
        tensors.sort_by(|one, other| one.name.cmp(&other.name));
        tensors.iter().try_for_each(|tensor| add(&mut hash, storage, tensor, tensor.bytes))?;
        hash.update(self.config.scale().to_le_bytes());
        Ok(hash.finalize().into())
    }
}

fn part_bytes(num_tensors: u64) -> u64 {
    (READ_BYTES / (PARTS * num_tensors.max(1))).max(PART_BYTES_MIN)
}

/// Adds a tensor: whole, or three parts of `part` bytes.
fn add(hash: &mut Sha256, storage: &Storage, tensor: &TensorInfo, part: u64) -> Result<()> {
    hash.update(format!("{} {} {:?}\n", tensor.name, tensor.encoding.name(), tensor.shape));
    let last = tensor.bytes.saturating_sub(part);
    let parts: &[u64] = if tensor.bytes <= PARTS.saturating_mul(part) { &[0] } else { &[0, last / 2, last] };
    let bytes = if parts.len() == 1 { tensor.bytes } else { part };
    let mut buffer = vec![0; bytes as usize];
    for first in parts {
        storage.read_exact_at(&mut buffer, tensor.offset + first)?;
        hash.update(&buffer);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// Returns the hash of a small model whose file of weights was changed.
    fn sha256(folder: &Path, change: impl FnOnce(&mut Vec<u8>)) -> String {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/golden/llama");
        for file in fs::read_dir(&source).expect("a golden model").flatten() {
            fs::copy(file.path(), folder.join(file.file_name())).expect("a copy");
        }
        let weights = folder.join("model.safetensors");
        let mut bytes = fs::read(&weights).expect("weights");
        change(&mut bytes);
        fs::write(&weights, bytes).expect("a file");
        let folder = folder.to_str().expect("UTF-8");
        OpenModel::open(folder, None, false).expect("a model").weights_sha256().expect("a hash")
    }

    #[test]
    fn one_other_byte_of_a_small_model_is_another_model() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let one = sha256(folder.path(), |_| ());
        assert_eq!(one, sha256(folder.path(), |_| ()));
        assert_ne!(one, sha256(folder.path(), |bytes| *bytes.last_mut().expect("a byte") ^= 1));
    }

    #[test]
    fn of_a_large_tensor_three_parts_are_read() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a");
        let tensor = TensorInfo {
            name: "a".into(),
            shape: vec![250],
            encoding: plimsoll_base::Encoding::F32,
            file: 0,
            offset: 0,
            bytes: 1000,
            row_order: crate::tensors::RowOrder::Stored,
            added: 0.0,
        };
        let hash = |changed: usize| {
            let mut bytes = vec![0; 1000];
            bytes[changed] = 1;
            fs::write(&path, bytes).expect("a file");
            let mut hash = Sha256::new();
            add(&mut hash, &Storage::open(&path).expect("a file"), &tensor, 10).expect("it is read");
            hash.finalize()
        };
        let unread = hash(200);
        assert_eq!(unread, hash(300));
        for read in [0, 9, 495, 504, 990, 999] {
            assert_ne!(unread, hash(read), "{read}");
        }
    }
}
