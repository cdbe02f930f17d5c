//! Writing a checkpoint: small files at once, tensors streamed through the planned staging buffer by whoever runs the
//! job, in this thread or beside the next rollout.

use super::{
    MANIFEST, Manifest, OPTIMIZER, RUN_FILE, Retention, RunState, STATE, STATE_JSON, Store, WEIGHTS,
};
use crate::shape::{RunShape, Training};
use crate::trainer::Trainer;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_device::{Device, MatrixLayout};
use plimsoll_files::{OpenModel, config_json, fsync_dir, generation_config_json, write_new};
use plimsoll_memory::{Buf, ReadLease};
use plimsoll_model::{FlatTensors, ParamTable, save, saved_bytes};
use plimsoll_text::files_to_save;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Configuration, tokenizer, run file and manifest together are smaller; a tokenizer of 150,000 tokens has 11 MB.
const SMALL_FILES_BYTES: u64 = 16 << 20;

/// What is saved beside the weights.
#[derive(Clone, Copy)]
pub enum What<'s> {
    /// Weights alone: a run cannot go on from them.
    Weights,
    /// Everything that the next step depends on.
    Everything {
        /// The counters.
        state: &'s RunState,
        /// The run file as resolved.
        run_file: &'s str,
    },
}

/// A checkpoint whose small files are written and whose tensors are to be read.
#[derive(Debug)]
pub struct SaveJob<'a, D: ?Sized> {
    dev: &'a D,
    table: ParamTable,
    layout: MatrixLayout,
    weights: Buf<'a>,
    states: Vec<FlatTensors<'a>>,
    lease: ReadLease<'a>,
    staging: Bytes,
    part: PathBuf,
    store: Store,
    retention: Retention,
    manifest: Manifest,
}

/// Makes the folder of a checkpoint and writes its small files. Resident regions are leased until the job has read them.
///
/// Errors: `disk-full`, `write-failed`, `run-dir-unwritable`; nothing half-written is left.
pub fn prepare<'a, D: Device + ?Sized>(
    trainer: &Trainer<'a, D>,
    model: &OpenModel,
    store: &Store,
    step: u32,
    what: What<'_>,
    retention: Retention,
) -> Result<SaveJob<'a, D>> {
    check_space(trainer.shape, store.folder())?;
    let part = store.begin(step)?;
    let files = write_small(trainer.shape, model, &part, what).inspect_err(|_| store.abandon(step))?;
    let states = match (&what, &trainer.roles.optimizer) {
        (What::Everything { .. }, Some(optimizer)) => optimizer.states(),
        _ => Vec::new(),
    };
    let actor = &trainer.roles.actor.params;
    Ok(SaveJob {
        dev: trainer.dev,
        table: trainer.table.clone(),
        layout: actor.embed.layout,
        weights: actor.all,
        states,
        lease: trainer.lease(),
        staging: trainer.shape.host.staging,
        part,
        store: store.clone(),
        retention,
        manifest: Manifest {
            format: super::FORMAT,
            step,
            resumable: matches!(what, What::Everything { .. }),
            source: model.source.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            files,
        },
    })
}

impl<D: Device + ?Sized> SaveJob<'_, D> {
    /// Steps done.
    pub fn step(&self) -> u32 {
        self.manifest.step
    }

    /// Where it saves.
    pub fn store(&self) -> Store {
        self.store.clone()
    }

    /// Writes the tensors and gives the checkpoint its name.
    ///
    /// Errors: as `prepare`; nothing half-written is left.
    pub fn run(self) -> Result<PathBuf> {
        let (store, step) = (self.store.clone(), self.manifest.step);
        self.write().inspect_err(|_| store.abandon(step))
    }

    fn write(mut self) -> Result<PathBuf> {
        let weights = [FlatTensors::weights(self.weights)];
        let files = [(WEIGHTS, &weights[..]), (OPTIMIZER, &self.states)];
        for (name, sets) in files.into_iter().filter(|(_, sets)| !sets.is_empty()) {
            let path = self.part.join(name);
            let record = save(self.dev, &self.table, self.layout, sets, &path, self.staging)?;
            self.manifest.files.insert(name.into(), record);
        }
        drop(self.lease); // All tensors are read: the next update may begin.
        if self.manifest.resumable {
            fsync_dir(&self.part.join(STATE))?;
        }
        write_new(&self.part.join(MANIFEST), self.manifest.to_text().as_bytes())?;
        self.store.finish(self.manifest.step, &self.retention)
    }
}

/// Everything but tensors and manifest.
fn write_small(
    shape: &RunShape,
    model: &OpenModel,
    part: &Path,
    what: What<'_>,
) -> Result<BTreeMap<String, plimsoll_files::FileRecord>> {
    let ids = model.token_ids();
    let pretty =
        |value: &serde_json::Value| serde_json::to_vec_pretty(value).expect("JSON of our own making");
    let mut files = BTreeMap::new();
    let mut write = |name: &str, bytes: &[u8]| -> Result<()> {
        files.insert(name.to_string(), write_new(&part.join(name), bytes)?);
        Ok(())
    };
    write("config.json", &pretty(&config_json(&shape.spec, shape.weights, &ids)))?;
    write("generation_config.json", &pretty(&generation_config_json(&ids)))?;
    for (name, bytes) in files_to_save(&model.tokenizer)? {
        write(name, &bytes)?;
    }
    if let What::Everything { state, run_file } = what {
        let folder = part.join(STATE);
        std::fs::create_dir(&folder).map_err(|err| crate::run_dir::unwritable(&folder, &err))?;
        write(STATE_JSON, state.to_text().as_bytes())?;
        write(RUN_FILE, run_file.as_bytes())?;
    }
    Ok(files)
}

/// Bytes of one checkpoint on the disk, from above.
pub fn checkpoint_bytes(table: &ParamTable, weights: plimsoll_base::DType, training: &Training) -> Bytes {
    let states = saved_bytes(table, &training.dtypes.stored());
    Bytes(saved_bytes(table, &[weights]) + states + SMALL_FILES_BYTES)
}

/// The disk of `dir` must hold a checkpoint before its first byte is written.
///
/// Errors: `disk-full`.
pub fn check_space(shape: &RunShape, dir: &Path) -> Result<()> {
    let training = shape.training.as_ref().expect("only training saves");
    let needed = checkpoint_bytes(&shape.table(), shape.weights, training);
    let Some(free) = plimsoll_memory::host::free_disk(dir) else { return Ok(()) };
    if free >= needed {
        return Ok(());
    }
    let message = format!("{}: a checkpoint needs {needed}, {free} are free", dir.display());
    Err(Error::new("disk-full", message).hint("free some space, or set run.dir to another disk"))
}
