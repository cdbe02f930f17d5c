//! Merging: adds an adapter to the weights it was trained on, giving a model without adapters.

use super::weights::{Dtypes, Sums, is_packed};
use super::{MANIFEST, Manifest, STATE, verbs};
use plimsoll_arch::Quantization;
use plimsoll_base::{Error, Result};
use plimsoll_files::{ADAPTER_CONFIG, Head, OpenModel, SCORE, TensorInfo, is_of_further_tokens};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Serialize)]
pub struct Merged {
    /// The checkpoint or the adapter's folder.
    pub from: PathBuf,
    /// The model that the adapter was trained on.
    pub base: String,
    /// Quantization of its linear layers in training, if any: the adapter is added to the decoded codes.
    pub quantize: Option<Quantization>,
    /// Dtype the base was decoded to, as its run did, if its file is quantised and the run held it in full.
    pub decoded: Option<&'static str>,
    /// Tensors that the adapter changes.
    pub tensors: usize,
    /// Elements of those tensors.
    pub elements: u64,
    /// Elements that rounding returned to the base's value.
    pub undone: u64,
    /// Largest rounding error of an element.
    pub rounding_max: f32,
    /// Largest change of an element by the adapter, before rounding.
    pub change_max: f32,
    /// Tensors of the base not written: multi-token prediction reads outputs of the layers before the merge.
    pub left_out: usize,
}

/// Returns true for multi-token prediction, which is neither trained nor merged.
pub(super) fn is_left_out(tensor: &TensorInfo, model: &OpenModel) -> bool {
    is_of_further_tokens(&tensor.name, &model.spec)
}

/// Returns names and shapes of the tensors to write. A reward model has its score head in place of the vocabulary's.
pub(super) fn tensors_of(model: &OpenModel) -> Vec<(String, Vec<u64>)> {
    let is_scored = model.head == Head::Score;
    let is_head = |t: &TensorInfo| is_scored && [SCORE, "lm_head.weight"].contains(&t.name.as_str());
    let stays = |t: &&TensorInfo| !is_left_out(t, model) && !is_head(t);
    let body = model.tensors.iter().filter(stays).map(|t| (t.name.clone(), t.shape.clone()));
    let score = is_scored.then(|| (SCORE.to_string(), vec![1, u64::from(model.spec.hidden)]));
    body.chain(score).collect()
}

/// Opens an adapter: a run's newest checkpoint, the checkpoint at `path`, or a peft folder, after checking its files,
/// on the base that it names or on `base`. Also returns its folder.
///
/// Errors: `merge-refused` if there is no adapter; those of `export` and of opening.
pub(super) fn open_adapted(path: &Path, base: Option<&str>) -> Result<(PathBuf, OpenModel)> {
    let folder =
        if path.join(ADAPTER_CONFIG).exists() { path.to_path_buf() } else { verbs::newest(path)?.path };
    // A peft folder has no manifest; a checkpoint without one fails to read.
    if folder.join(MANIFEST).exists() || folder.join(STATE).exists() {
        Manifest::read(&folder)?.verify(&folder)?;
    }
    let model = match base {
        Some(base) if folder.join(ADAPTER_CONFIG).exists() => OpenModel::open_on(&folder, base)?,
        _ => OpenModel::open(&folder.display().to_string(), None, false).map_err(or_another_base)?,
    };
    if model.adapter.is_some() {
        return Ok((folder, model));
    }
    Err(nothing_to_merge(&folder.display().to_string()))
}

/// Adds the hint at `--base` to an error about a missing base.
fn or_another_base(error: Error) -> Error {
    match error.slug {
        "model-file-missing" | "model-not-local" | "checkpoint-missing" => {
            error.hint("or give the model that it was trained on: --base MODEL")
        }
        _ => error,
    }
}

pub(super) fn merged(from: PathBuf, model: &OpenModel, dtypes: Dtypes, sums: Sums) -> Merged {
    let config = model.adapter.as_ref().map(|adapter| &adapter.config);
    let base = config.and_then(|config| config.base.clone()).unwrap_or_default();
    let quantize = config.and_then(|config| config.quantize);
    let decoded = (quantize.is_none() && is_packed(model)).then(|| dtypes.base.name());
    let Sums { tensors, elements, undone, rounding_max, change_max } = sums;
    let left_out = model.tensors.iter().filter(|tensor| is_left_out(tensor, model)).count();
    Merged { from, base, quantize, decoded, tensors, elements, undone, rounding_max, change_max, left_out }
}

pub(super) fn nothing_to_merge(name: &str) -> Error {
    let message = format!("{name}: it holds a whole model, and no adapter to merge");
    Error::usage("merge-refused", message).hint("leave out --merge")
}
