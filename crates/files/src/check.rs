//! Checks that an open model has the tensors of its spec, and a reward model its head.

use std::collections::HashMap;

use plimsoll_arch::{ModelSpec, is_kept_in_f32};
use plimsoll_base::{Encoding, Error, Result, slugs};

use crate::Head;
use crate::open::OpenModel;
use crate::tensors::{SCORE, TensorInfo};
use plimsoll_arch::expected_tensors;

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";
/// Rows of a tied head compared with the embedding; a head trained apart from it differs in nearly all rows.
const ROWS_COMPARED: u64 = 1024;

/// Requires that the model holds exactly the tensors of its spec, in their shapes.
///
/// A random model has no tensors and passes. Rotary tables, a tied head's copy and multi-token prediction are ignored.
pub fn check_against(model: &OpenModel) -> Result<()> {
    if model.random {
        return Ok(());
    }
    let mut wanted: HashMap<String, Vec<u64>> = expected_tensors(&model.spec).into_iter().collect();
    if model.head == Head::Score {
        wanted.remove(HEAD);
        if !has_own_score(model) {
            check_score(model)?;
        }
    }
    let mut unexpected = Vec::new();
    for tensor in &model.tensors {
        match wanted.remove(&tensor.name) {
            Some(shape) if shape == tensor.shape => check_exact(model, tensor)?,
            Some(shape) => return Err(bad_shape(model, tensor, &shape)),
            None if is_ignorable(&tensor.name, &model.spec) => {}
            None if model.head == Head::Score && tensor.name == SCORE => {
                let own = [1, u64::from(model.spec.hidden)];
                if tensor.shape != own {
                    return Err(bad_shape(model, tensor, &own));
                }
            }
            // The base of a reward model's adapter is usually a language model.
            None if has_own_score(model) && tensor.name == HEAD => {}
            None => unexpected.push(tensor.name.as_str()),
        }
    }
    if !wanted.is_empty() {
        return Err(missing(model, wanted));
    }
    check_tied(model)?;
    if let Some(first) = unexpected.first() {
        let message = format!(
            "{}: tensor `{first}` is not part of {:?} ({} such tensors)",
            model.source,
            model.spec.family,
            unexpected.len()
        );
        return Err(Error::new("model-tensor-unexpected", message).hint(
            "config.json does not describe this file; an adapter must be merged into its model first",
        ));
    }
    Ok(())
}

/// Requires that a tied head in a file equals the embedding.
///
/// transformers 4 dropped a head that differs; transformers 5 keeps it.
fn check_tied(model: &OpenModel) -> Result<()> {
    let (true, Some(head), Some(embedding)) =
        (model.spec.tied && model.head == Head::Vocabulary, model.tensor(HEAD), model.tensor(EMBEDDING))
    else {
        return Ok(());
    };
    if head.shape != embedding.shape {
        return Err(bad_shape(model, head, &embedding.shape));
    }
    let rows = head.shape[0];
    let mut staging = vec![0; 1 << 16];
    let [mut ours, mut theirs] = [(); 2].map(|()| vec![0f32; model.spec.hidden as usize]);
    for row in (0..rows).step_by((rows / ROWS_COMPARED).max(1) as usize).chain([rows - 1]) {
        model.read_rows(HEAD, row..row + 1, &mut staging, &mut ours)?;
        model.read_rows(EMBEDDING, row..row + 1, &mut staging, &mut theirs)?;
        if ours.iter().zip(&theirs).any(|(a, b)| a.to_bits() != b.to_bits()) {
            let message = format!(
                "{}: `{HEAD}` differs from the embedding in row {row}, and tie_word_embeddings is true",
                model.source
            );
            return Err(Error::new("model-tensor-unexpected", message).hint(
                "set tie_word_embeddings to false in config.json to keep the head, or remove the tensor",
            ));
        }
    }
    Ok(())
}

/// Returns true if a reward model's adapter has the head, which was checked when it was opened.
fn has_own_score(model: &OpenModel) -> bool {
    model.adapter.as_ref().is_some_and(|adapter| adapter.config.head == Head::Score)
}

/// Requires that a reward model gives one number: `score.weight` is there, with one row.
///
/// Errors: `reward-model-head-missing`, `reward-model-labels`.
fn check_score(model: &OpenModel) -> Result<()> {
    let Some(tensor) = model.tensor(SCORE) else {
        let message = format!("{}: a model for sequence classification without `{SCORE}`", model.source);
        return Err(Error::new(slugs::REWARD_MODEL_HEAD_MISSING, message)
            .hint("fetch the model again; a head in a file of its own must be merged into the model"));
    };
    let shape = &tensor.shape;
    if shape.len() == 2 && shape[1] != u64::from(model.spec.hidden) {
        return Err(bad_shape(model, tensor, &[1, u64::from(model.spec.hidden)]));
    }
    if shape.len() != 2 || shape[0] != 1 {
        let labels = shape[0];
        let message =
            format!("{}: num_labels = {labels}, a reward model has 1 (`{SCORE}` is {shape:?})", model.source);
        return Err(Error::new(slugs::REWARD_MODEL_LABELS, message)
            .hint("take a reward model: a classifier of several labels has no score to learn from"));
    }
    Ok(())
}

/// Returns true for tensors that add nothing to the spec.
fn is_ignorable(name: &str, spec: &ModelSpec) -> bool {
    is_of_no_use(name, spec)
        || name.ends_with("rotary_emb.inv_freq")
        || (name == HEAD && spec.tied)
        || is_of_further_tokens(name, spec)
}

/// Returns whether a tensor is of keys or values of a layer that has those of another.
fn is_of_no_use(name: &str, spec: &ModelSpec) -> bool {
    let of_layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once(".self_attn."));
    let Some((layer, module)) = of_layer else { return false };
    let is_of_keys = ["k_proj.", "v_proj.", "k_norm.", "v_norm."].iter().any(|own| module.starts_with(own));
    let layer = layer.parse().ok().filter(|layer| *layer < spec.layers.len());
    is_of_keys && layer.is_some_and(|layer| spec.donor(layer).is_some())
}

/// Returns true for tensors of multi-token prediction, which is neither trained nor written: `mtp.*`, or layers after
/// the decoder's last.
pub fn is_of_further_tokens(name: &str, spec: &ModelSpec) -> bool {
    let layer =
        name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')?.0.parse::<u32>().ok());
    if spec.architecture().has_sigmoid_router {
        layer.is_some_and(|layer| layer >= spec.layers.len())
    } else {
        name.starts_with("mtp.") && spec.architecture().has_delta
    }
}

/// Requires that a tensor that is never trained is in f32: in bf16 a router's corrections choose other experts.
fn check_exact(model: &OpenModel, tensor: &TensorInfo) -> Result<()> {
    if !is_kept_in_f32(&tensor.name) || tensor.encoding == Encoding::F32 {
        return Ok(());
    }
    let (name, encoding) = (&tensor.name, tensor.encoding.name());
    let message = format!("{}: tensor `{name}` is in {encoding}, built is f32", model.source);
    Err(Error::new("model-unsupported", message)
        .fact("it is added to scores that differ by less than bf16 can tell apart: other experts would be chosen")
        .hint("fetch the model again in its published dtypes, or convert it with this tensor in f32"))
}

fn bad_shape(model: &OpenModel, tensor: &TensorInfo, expect: &[u64]) -> Error {
    let message = format!(
        "{}: tensor `{}` has shape {:?}, the config gives {expect:?}",
        model.source, tensor.name, tensor.shape
    );
    Error::new("model-tensor-shape", message).hint("config.json and the weights are of different models")
}

fn missing(model: &OpenModel, wanted: HashMap<String, Vec<u64>>) -> Error {
    let mut names: Vec<String> = wanted.into_keys().collect();
    names.sort();
    let message = format!("{}: no tensor `{}` ({} missing)", model.source, names[0], names.len());
    Error::new("model-tensor-missing", message)
        .hint("fetch the model again, or check num_hidden_layers in config.json")
}
