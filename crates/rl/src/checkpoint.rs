//! Saving a model that transformers opens: weights, configuration, tokenizer, and a manifest with checksums.
//! A folder appears under its name only when every file in it is on the disk.

use crate::run_dir::RunDir;
use crate::shape::RunShape;
use crate::trainer::Trainer;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_device::Device;
use plimsoll_files::{OpenModel, config_json, generation_config_json, write_atomic};
use plimsoll_model::save;
use plimsoll_text::files_to_save;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Writes `checkpoints/step-N` and points `latest` at it.
///
/// Errors: `disk-full`, `write-failed`, `run-dir-unwritable`; nothing half-written is left.
pub fn save_checkpoint<D: Device + ?Sized>(
    trainer: &Trainer<'_, D>,
    model: &OpenModel,
    dir: &RunDir,
    step: u32,
    keep: u32,
) -> Result<PathBuf> {
    check_space(trainer.shape, dir.path())?;
    let part = dir.begin_checkpoint(step)?;
    match write_model(trainer, model, &part, step) {
        Ok(()) => dir.finish_checkpoint(step, keep),
        Err(error) => {
            dir.abandon_checkpoint(step);
            Err(error)
        }
    }
}

/// Writes a Hugging Face model folder.
fn write_model<D: Device + ?Sized>(
    trainer: &Trainer<'_, D>,
    model: &OpenModel,
    folder: &Path,
    step: u32,
) -> Result<()> {
    let shape = trainer.shape;
    let weights = folder.join("model.safetensors");
    let params = &trainer.roles.actor.params;
    let sha256 = save(trainer.dev, &trainer.table, params, shape.weights, &weights, shape.host.staging)?;
    let ids = model.token_ids();
    let pretty =
        |value: &serde_json::Value| serde_json::to_vec_pretty(value).expect("JSON of our own making");
    write_atomic(&folder.join("config.json"), &pretty(&config_json(&shape.spec, shape.weights, &ids)))?;
    write_atomic(&folder.join("generation_config.json"), &pretty(&generation_config_json(&ids)))?;
    for (name, bytes) in files_to_save(&model.tokenizer)? {
        write_atomic(&folder.join(name), &bytes)?;
    }
    let manifest = json!({
        "step": step, "source": model.source, "version": env!("CARGO_PKG_VERSION"),
        "files": { "model.safetensors": { "sha256": sha256 } },
    });
    write_atomic(&folder.join("manifest.json"), &pretty(&manifest))
}

/// The disk of `dir` must hold the weights before the first byte is written.
///
/// Errors: `disk-full`.
pub fn check_space(shape: &RunShape, dir: &Path) -> Result<()> {
    let needed = Bytes(shape.spec.parameters() * shape.weights.bytes() + (16 << 20));
    let Some(free) = plimsoll_memory::host::free_disk(dir) else { return Ok(()) };
    if free >= needed {
        return Ok(());
    }
    let message = format!("{}: a checkpoint needs {needed}, {free} are free", dir.display());
    Err(Error::new("disk-full", message).hint("free some space, or set run.dir to another disk"))
}
