//! Bytes of checkpoints: of one being written, and of those in a run directory.

use crate::facts::line_bytes_max;
use crate::roles::RoleShape;
use crate::shape::{RunShape, Training};
use plimsoll_base::{Bytes, DType};
use plimsoll_model::saved_bytes;
use std::fs;
use std::path::Path;

/// Configuration, tokenizer, run file and manifest together are smaller; a tokenizer of 150,000 tokens has 11 MB.
const SMALL_FILES_BYTES: u64 = 16 << 20;

/// Returns an upper bound of the bytes of one checkpoint on disk.
pub fn checkpoint_bytes(shape: &RunShape, training: &Training) -> Bytes {
    let roles = shape.roles().into_iter().filter(|role| role.update.is_some());
    let of = |role: RoleShape| {
        let (table, dtypes) = (role.trained(), role.update.map_or(training.dtypes, |update| update.dtypes));
        // Adapters are saved in the dtype that they are trained in.
        let weights = if role.lora.is_some() { DType::F32 } else { shape.weights };
        saved_bytes(&table, &[weights]) + saved_bytes(&table, &dtypes.stored())
    };
    let of_tower = shape.sight.as_ref().map_or(0, |sight| {
        let table = sight.table(shape.target, shape.weights);
        let update = shape.tower_update();
        let is_saved = update.is_some() || shape.saves_whole();
        let weights = if is_saved { saved_bytes(&table, &[shape.weights]) } else { 0 };
        weights + update.map_or(0, |(dtypes, _)| saved_bytes(&table, &dtypes.stored()))
    });
    // A waiting token is its id and the bits of its log-probability, shorter than its line in the samples.
    let waiting = (training.sequences * (training.policy_lag + training.ahead) + training.carried) as u64;
    let held = waiting.saturating_mul(line_bytes_max(training.response_tokens as u64));
    Bytes(roles.map(of).sum::<u64>().saturating_add(held) + of_tower + SMALL_FILES_BYTES)
}

/// Returns the bytes of the checkpoints below a run directory, which a resumed run already occupies.
pub(crate) fn bytes_on_disk(run_dir: &Path) -> Bytes {
    fn below(folder: &Path, depth: u32) -> u64 {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let of = |entry: fs::DirEntry| match entry.metadata() {
            Ok(meta) if meta.is_dir() && depth > 0 => below(&entry.path(), depth - 1),
            Ok(meta) if meta.is_file() => meta.len(),
            _ => 0,
        };
        entries.map(of).sum()
    }
    // step-N, and state/ in it.
    Bytes(below(&run_dir.join("checkpoints"), 2))
}
