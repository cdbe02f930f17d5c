//! Writes a checkpoint: small files at once; tensors stream through the planned staging buffer on the thread that runs
//! the job, which may do so during the next rollout. Several ranks write them together, at once.

pub mod export;
mod tensors_of;
mod whole;

use crate::roles::{Role, Trainer};
use crate::supply::Supply;
use plimsoll_base::{Bytes, Result};
use plimsoll_device::{Device, MatrixLayout};
use plimsoll_files::{
    ADAPTER_CONFIG, AdapterConfig, Head, OpenModel, adapter_base, adapter_config_json, add_compute,
    config_json, fsync_dir, generation_config_json, score_config_json, write_new,
};
use plimsoll_memory::ReadLease;
use plimsoll_model::{SpreadFile, SpreadTensors, Together, save, save_together};
use plimsoll_plan::{Lora, RoleName, RunShape, checkpoint_bytes};
use plimsoll_ranks::Group;
use plimsoll_run::checkpoint::{
    FORMAT, MANIFEST, Manifest, RUN_FILE, Retention, RunState, STATE, STATE_JSON, Store,
};
use plimsoll_run::lead::{Savers, Saving};
use plimsoll_run::opening::check_space;
use plimsoll_text::files_to_save;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tensors_of::TensorsOf;
use whole::{small_files, tensors_of_tower};

/// A checkpoint whose small files are written and whose tensors are still to be read.
pub struct SaveJob<'a> {
    dev: &'a dyn Device,
    tensors: Vec<TensorsOf<'a>>,
    layout: MatrixLayout,
    lease: ReadLease<'a>,
    staging: Bytes,
    part: PathBuf,
    store: Store,
    retention: Retention,
    manifest: Manifest,
}

/// Makes a checkpoint's folder and writes its small files. Resident regions are leased until the job has read them.
///
/// Errors: `disk-full`, `write-failed`, `run-dir-unwritable`; no partial folder is left.
pub fn prepare<'a>(
    trainer: &Trainer<'a>,
    model: &OpenModel,
    supply: &dyn Supply,
    saving: Saving<'_>,
) -> Result<SaveJob<'a>> {
    let Saving { step, store, retention, everything, .. } = saving;
    check_space(checkpoint_size(trainer.sampler.shape), store.folder())?;
    let part = store.begin(step)?;
    let files =
        write_small(trainer, model, supply, &part, everything).inspect_err(|_| store.abandon(step))?;
    Ok(SaveJob {
        dev: trainer.sampler.dev,
        tensors: files_of(trainer, everything.is_some())
            .into_iter()
            .map(|(role, file, is_weights)| tensors(role, file, is_weights))
            .chain(tensors_of_tower(trainer, everything.is_some()))
            .collect(),
        layout: trainer.first().layout(),
        lease: trainer.sampler.resident.lease(),
        staging: trainer.sampler.shape.host.staging,
        part,
        store,
        retention,
        manifest: Manifest {
            format: FORMAT,
            step,
            resumable: everything.is_some(),
            source: model.source.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            files,
        },
    })
}

impl SaveJob<'_> {
    /// Adds a small file to the checkpoint.
    ///
    /// Errors: those of writing; no partial folder is left.
    pub(crate) fn add_file(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let (store, step) = (&self.store, self.manifest.step);
        let record = write_new(&self.part.join(name), bytes).inspect_err(|_| store.abandon(step))?;
        self.manifest.files.insert(name.to_string(), record);
        Ok(())
    }

    /// Writes the tensors and gives the checkpoint its name.
    ///
    /// Errors: as `prepare`; no partial folder is left.
    pub fn run(self) -> Result<PathBuf> {
        let (store, step) = (self.store.clone(), self.manifest.step);
        self.write().inspect_err(|_| store.abandon(step))
    }

    fn write(mut self) -> Result<PathBuf> {
        let tensors = std::mem::take(&mut self.tensors);
        self.write_tensors(tensors)?;
        self.finish()
    }

    fn write_tensors(&mut self, tensors: Vec<TensorsOf<'_>>) -> Result<()> {
        for TensorsOf { file, table, sets } in tensors {
            let path = self.part.join(file);
            let record = save(self.dev, &table, self.layout, &sets, &path, self.staging)?;
            self.manifest.files.insert(file.into(), record);
        }
        Ok(())
    }

    fn finish(self) -> Result<PathBuf> {
        drop(self.lease); // All tensors are read: the next update may begin.
        if self.manifest.resumable {
            fsync_dir(&self.part.join(STATE))?;
        }
        write_new(&self.part.join(MANIFEST), self.manifest.to_text().as_bytes())?;
        self.store.finish(self.manifest.step, &self.retention)
    }
}

/// Saves a checkpoint of several ranks: rank 0 makes the folder and small files, and each rank of its host writes its
/// pieces of the tensors. The files are those that one rank writes. Rank 0 can save alone, because it reads the other
/// ranks' memory; so ranks of other hosts only wait, and need not see the folder.
///
/// Errors: as `prepare`; `rank-lost`; no partial folder is left.
pub fn save_of_ranks(
    trainer: &mut Trainer<'_>,
    group: &Group,
    model: &OpenModel,
    supply: &dyn Supply,
    saving: Saving<'_>,
) -> Result<PathBuf> {
    let (step, store, everything) = (saving.step, saving.store.clone(), saving.everything.is_some());
    let (path, is_alone) = (store.path(step), saving.savers == Savers::ThisRank);
    if is_alone && group.rank() > 0 {
        return Ok(path);
    }
    let near = group.near();
    if near[0] > 0 {
        return group.barrier().map(|()| path);
    }
    let mut job = if group.rank() == 0 { Some(prepare(trainer, model, supply, saving)?) } else { None };
    let part = job.as_ref().map_or(PathBuf::new(), |job| job.part.clone());
    let mut write = || -> Result<()> {
        let of = |(role, file, is_weights): (&Role<'_>, _, _)| (role.shape.name, file, is_weights);
        let files: Vec<(RoleName, &str, bool)> = files_of(trainer, everything).into_iter().map(of).collect();
        for (role, file, is_weights) in files {
            let (path, staging) = (part.join(file), trainer.sampler.shape.host.staging);
            let record = trainer.with_passage(role, |dev, role, passage| {
                let (named, layout) = (role.saved_table(), role.layout());
                let table = if is_weights { &*named } else { role.learned().0 };
                let sets = tensors_of_ranks(role, is_weights);
                let ranks = if is_alone { 1 } else { near.len() };
                let exchange =
                    &mut |own: &[u8]| if is_alone { Ok(vec![own.to_vec()]) } else { group.near_gather(own) };
                let rank = near.iter().position(|rank| *rank == group.rank()).expect("a rank of its host");
                let with = Together { rank, ranks, exchange };
                save_together(
                    dev,
                    SpreadFile { path: &path, table, layout, sets: &sets, staging },
                    passage,
                    with,
                )
            })?;
            if let Some((job, record)) = job.as_mut().zip(record) {
                job.manifest.files.insert(file.into(), record);
            }
        }
        if let Some(job) = &mut job {
            // All ranks have the whole tower.
            job.write_tensors(tensors_of_tower(trainer, everything))?;
        }
        Ok(())
    };
    let saved = match (write(), job) {
        (written, Some(job)) => written.and_then(|()| job.finish()).inspect_err(|_| store.abandon(step)),
        (written, None) => written.map(|()| path),
    }?;
    // No rank reports the save, or ends, before the checkpoint has its name.
    if is_alone { Ok(saved) } else { group.barrier().map(|()| saved) }
}

/// Returns the tensor files, each with its role and whether it holds weights (or states): the first role's weights, or
/// with `everything` the weights and states of all trained roles.
fn files_of<'t, 'a>(trainer: &'t Trainer<'a>, everything: bool) -> Vec<(&'t Role<'a>, &'static str, bool)> {
    let mut files = Vec::new();
    for role in trainer.trained() {
        let (weights, states) = role.files();
        files.push((role, weights, true));
        if !everything {
            break;
        }
        files.push((role, states, false));
    }
    files
}

/// Returns the tensors of a file, as one rank has them.
fn tensors<'a>(role: &Role<'a>, file: &'static str, is_weights: bool) -> TensorsOf<'a> {
    let sets = match (is_weights, &role.optimizer) {
        (false, Some(optimizer)) => optimizer.states(),
        _ => vec![role.saved()],
    };
    let table = if is_weights { role.saved_table().into_owned() } else { role.learned().0.clone() };
    TensorsOf { file, table, sets }
}

/// Returns the tensors of a file, with their places on several ranks.
fn tensors_of_ranks<'a>(role: &Role<'a>, is_weights: bool) -> Vec<SpreadTensors<'a>> {
    match (is_weights, &role.optimizer) {
        (false, Some(optimizer)) => optimizer.spread_states(role.learned().0, true),
        _ => vec![role.saved_together()],
    }
}

/// Writes everything but tensors and manifest.
fn write_small(
    trainer: &Trainer<'_>,
    model: &OpenModel,
    supply: &dyn Supply,
    part: &Path,
    everything: Option<(&RunState, &str)>,
) -> Result<BTreeMap<String, plimsoll_files::FileRecord>> {
    let (shape, ids) = (trainer.sampler.shape, model.token_ids());
    let pretty = |value: &serde_json::Value| {
        serde_json::to_vec_pretty(value).expect("it is the JSON that was just written")
    };
    let mut files = BTreeMap::new();
    let mut write = |name: &str, bytes: &[u8]| -> Result<()> {
        files.insert(name.to_string(), write_new(&part.join(name), bytes)?);
        Ok(())
    };
    match &adapter_config(trainer, model) {
        // The base model that it names has the configuration, but not the end that the adapter may have learnt.
        Some(adapter) => {
            write(ADAPTER_CONFIG, &pretty(&adapter_config_json(adapter, &shape.spec)))?;
            if shape.head == Head::Vocabulary && !ids.eos.is_empty() {
                write("generation_config.json", &pretty(&generation_config_json(&ids)))?;
            }
        }
        None => {
            let whole = small_files(trainer, model)?;
            if whole.is_empty() {
                let mut config = match shape.head {
                    Head::Vocabulary => config_json(&shape.spec, shape.weights, &ids),
                    Head::Score => score_config_json(&shape.spec, shape.weights, &ids),
                };
                add_compute(&mut config, shape.compute());
                write("config.json", &pretty(&config))?;
            }
            whole.iter().try_for_each(|(name, file)| write(name, &pretty(file)))?;
            write("generation_config.json", &pretty(&generation_config_json(&ids)))?;
        }
    }
    for (name, bytes) in files_to_save(&model.tokenizer)? {
        write(name, &bytes)?;
    }
    if let Some((state, run_file)) = everything {
        let folder = part.join(STATE);
        std::fs::create_dir(&folder).map_err(|err| plimsoll_run::run_dir::unwritable(&folder, &err))?;
        write(STATE_JSON, state.to_text().as_bytes())?;
        write(RUN_FILE, run_file.as_bytes())?;
        files.extend(supply.write(part)?);
    }
    Ok(files)
}

/// Returns the peft configuration of the adapters that a run trains.
fn adapter_config(trainer: &Trainer<'_>, model: &OpenModel) -> Option<AdapterConfig> {
    let Lora { shape, alpha, rslora, quantize, tower, .. } = trainer.sampler.shape.lora?;
    let base =
        model.adapter.as_ref().map_or(Some(model.source.clone()), |adapter| adapter.config.base.clone());
    Some(AdapterConfig {
        rank: shape.rank,
        alpha,
        rslora,
        targets: shape.targets,
        base: base.map(|base| adapter_base(&base)),
        head: trainer.sampler.shape.head,
        quantize,
        compute: trainer.sampler.shape.compute(),
        tower,
    })
}

pub(crate) fn checkpoint_size(shape: &RunShape) -> Bytes {
    checkpoint_bytes(shape, shape.training.as_ref().expect("only training saves"))
}
