//! Merging: an adapter added to the weights that it was trained on, as a model without adapters.

use super::weights::{Progress, Sums, dtype_of, each_rows};
use super::{MANIFEST, Manifest, STATE, verbs};
use plimsoll_base::{Bytes, Error, Quantization, Result};
use plimsoll_files::{
    Head, OpenModel, SCORE, SafetensorsWriter, TensorDecl, TensorInfo, check_against, config_json,
    generation_config_json, score_config_json, write_new,
};
use plimsoll_text::files_to_save;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What a merge has made.
#[derive(Clone, Debug, Serialize)]
pub struct Merged {
    /// The checkpoint or the adapter's folder.
    pub from: PathBuf,
    /// The model that it was trained on.
    pub base: String,
    /// How its linear layers were stored then, if not in full: the adapter is added to what their codes mean.
    pub quantize: Option<Quantization>,
    /// Tensors that the adapter changes.
    pub tensors: usize,
    /// Elements of those.
    pub elements: u64,
    /// Elements that are the base's again after rounding.
    pub undone: u64,
    /// The largest difference between an element and what it is rounded to.
    pub rounding_max: f32,
    /// The largest change of an element by the adapter, before it is rounded.
    pub change_max: f32,
    /// Tensors of the base that are not written: what predicts further tokens (`mtp.*`) reads what layers gave before they changed.
    pub left_out: usize,
}

/// Adds the adapter of a run's newest checkpoint, of a checkpoint, or in a folder of peft's, to its base model. The folder `to` gets
/// its name when it is complete.
///
/// Errors: `merge-refused` where there is no adapter, or the base is quantised; those of `export` and of opening.
pub fn export_merged(path: &Path, to: &Path, progress: Progress<'_>) -> Result<Merged> {
    verbs::check_target(to)?;
    let (from, model) = open_adapted(path)?;
    let dtype = dtype_of(&model)?;
    check_against(&model)?;
    let tensors = tensors_of(&model);
    let files = files_to_save(&model.tokenizer)?;
    let elements: u64 = tensors.iter().map(|(_, shape)| shape.iter().product::<u64>()).sum();
    let small: u64 = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    verbs::check_room(to, Bytes(elements * dtype.bytes() + small))?;
    let mut sums = Sums::default();
    verbs::fill_folder(to, |part| {
        let ids = model.token_ids();
        let pretty = |value: &serde_json::Value| {
            serde_json::to_vec_pretty(value).expect("it is the JSON that was just written")
        };
        let config = match model.head {
            Head::Vocabulary => config_json(&model.spec, dtype, &ids),
            Head::Score => score_config_json(&model.spec, dtype, &ids),
        };
        write_new(&part.join("config.json"), &pretty(&config))?;
        write_new(&part.join("generation_config.json"), &pretty(&generation_config_json(&ids)))?;
        for (name, bytes) in &files {
            write_new(&part.join(name), bytes)?;
        }
        let declared = tensors.iter().cloned().map(|(name, shape)| TensorDecl { name, dtype, shape });
        let declared: Vec<TensorDecl> = declared.collect();
        let mut writer = SafetensorsWriter::create(&part.join(super::WEIGHTS), &declared, &[])?;
        sums = each_rows(&model, dtype, &tensors, progress, |_, values, scratch| {
            writer.write_f32_as(dtype, values, scratch)
        })?;
        writer.finish().map(drop)
    })?;
    Ok(merged(from, &model, sums))
}

/// True of what predicts further tokens, which is not trained, and not merged.
fn is_left_out(tensor: &TensorInfo) -> bool {
    tensor.name.starts_with("mtp.")
}

/// Returns names and shapes of what a merge writes. A reward model has its head in place of one over the vocabulary.
fn tensors_of(model: &OpenModel) -> Vec<(String, Vec<u64>)> {
    let is_scored = model.head == Head::Score;
    let is_head = |t: &TensorInfo| is_scored && [SCORE, "lm_head.weight"].contains(&t.name.as_str());
    let stays = |t: &&TensorInfo| !is_left_out(t) && !is_head(t);
    let body = model.tensors.iter().filter(stays).map(|t| (t.name.clone(), t.shape.clone()));
    let score = is_scored.then(|| (SCORE.to_string(), vec![1, u64::from(model.spec.hidden)]));
    body.chain(score).collect()
}

/// Opens a run's newest checkpoint, a checkpoint, or a folder of peft's, after its files were compared with its manifest. Returns
/// its folder too.
///
/// Errors: `merge-refused` where there is no adapter; those of `export` and of opening.
pub(super) fn open_adapted(path: &Path) -> Result<(PathBuf, OpenModel)> {
    let folder = match path.join(plimsoll_files::ADAPTER_CONFIG).exists() {
        true => path.to_path_buf(),
        false => verbs::newest(path)?.path,
    };
    // A folder of peft's has no manifest; a checkpoint without one fails to read.
    if folder.join(MANIFEST).exists() || folder.join(STATE).exists() {
        Manifest::read(&folder)?.verify(&folder)?;
    }
    let model = OpenModel::open(&folder.display().to_string(), None, false)?;
    if model.adapter.is_some() {
        return Ok((folder, model));
    }
    let message = format!("{}: it holds a whole model, and no adapter to merge", folder.display());
    Err(Error::usage("merge-refused", message).hint("leave out --merge"))
}

/// Returns what a merge of these has made.
pub(super) fn merged(from: PathBuf, model: &OpenModel, sums: Sums) -> Merged {
    let config = model.adapter.as_ref().map(|adapter| &adapter.config);
    let base = config.and_then(|config| config.base.clone()).unwrap_or_default();
    let quantize = config.and_then(|config| config.quantize);
    let Sums { tensors, elements, undone, rounding_max, change_max } = sums;
    let left_out = model.tensors.iter().filter(|tensor| is_left_out(tensor)).count();
    Merged { from, base, quantize, tensors, elements, undone, rounding_max, change_max, left_out }
}
