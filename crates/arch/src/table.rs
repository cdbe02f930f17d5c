//! The table of tensors: what a layer consists of, in the order of files and of the flat buffer, with all names.
//!
//! Each part of a layer lists its own (see `layer`); norms around the parts are listed here.

use crate::param::ParamKind as Kind;
use crate::tensor_row::{TensorRow, matrix, vector};
use crate::{LayerSpec, ModelSpec};

/// A matrix that a layer multiplies rows by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// The parameter with the weights.
    pub kind: Kind,
    /// Outputs (of one expert, if experts have it).
    pub n: u32,
    /// Inputs.
    pub k: u32,
    /// Number of experts that each have one.
    pub experts: Option<u32>,
}

/// Calls `add` with each tensor of a layer.
pub(crate) fn each_row(spec: &ModelSpec, layer: u32, mut add: impl FnMut(TensorRow)) {
    let LayerSpec { norms, mixer, ffn } = spec.layer(layer);
    let h = spec.hidden;
    let norm = |kind, names: Option<[&'static str; 2]>, part: usize, gguf| {
        names.map(|names| vector(kind, (names[part], gguf, "weight"), h))
    };
    let second = spec.architecture().gguf_ffn_norm;
    norm(Kind::AttnNorm, norms.before, 0, "attn_norm").into_iter().for_each(&mut add);
    mixer.rows(h, spec.architecture(), &mut add);
    norm(Kind::AttnPostNorm, norms.after, 0, "post_attention_norm").into_iter().for_each(&mut add);
    norm(Kind::FfnNorm, norms.before, 1, second).into_iter().for_each(&mut add);
    ffn.rows(h, spec.architecture(), &mut add);
    norm(Kind::FfnPostNorm, norms.after, 1, "post_ffw_norm").into_iter().for_each(&mut add);
    if let Some(width) = spec.inputs {
        add(matrix(Kind::InputGate, ("per_layer_input_gate", "inp_gate"), [width, h]));
        add(matrix(Kind::InputProjection, ("per_layer_projection", "proj"), [h, width]));
        add(vector(Kind::InputPostNorm, ("post_per_layer_input_norm", "post_norm", "weight"), h));
    }
    if spec.architecture().scales_layers {
        add(vector(Kind::LayerScale, ("layer_scalar", "layer_output_scale", ""), 1));
    }
}

/// Name of the table of the layers' own inputs.
pub const INPUT_TABLE: &str = "embed_tokens_per_layer";
/// Name of the product of embeddings that is added to them.
pub const INPUT_CONTEXT: &str = "per_layer_model_projection";
/// Name of the norm of that product.
pub const INPUT_NORM: &str = "per_layer_projection_norm";

/// Returns the tensors of a layer.
pub fn layer_rows(spec: &ModelSpec, layer: u32) -> Vec<TensorRow> {
    let mut rows = Vec::with_capacity(20);
    each_row(spec, layer, |row| rows.push(row));
    rows
}

/// Returns the tensors of a layer as files hold them, fused rows as one.
fn file_rows(spec: &ModelSpec, layer: u32) -> Vec<TensorRow> {
    let mut rows = layer_rows(spec, layer);
    rows.dedup_by(|next, row| {
        let is_one = row.is_fused && (row.kind, row.module) == (next.kind, next.module);
        if is_one {
            (row.rows, row.target) = (row.rows + next.rows, None);
        }
        is_one
    });
    rows
}

/// Returns the tensors of a layer as GGUF files hold them: gates and ups of all experts are one where the model's own
/// files have them so.
pub fn gguf_rows(spec: &ModelSpec, layer: u32) -> Vec<TensorRow> {
    let is_whole = spec.layer(layer).experts().is_some_and(|experts| experts.is_fused && !experts.biased);
    let mut stored = Vec::with_capacity(20);
    for rows in file_rows(spec, layer).chunk_by(|a, b| a.kind == b.kind) {
        match rows[0].experts {
            Some(_) if is_whole => stored.push(of_all_experts(rows)),
            _ => stored.extend(rows),
        }
    }
    stored
}

/// Returns the tensors of a layer as safetensors hold them, once per expert, grouped by expert, or once for all.
pub fn layer_tensors(spec: &ModelSpec, layer: u32) -> Vec<(TensorRow, Option<u32>)> {
    let mut tensors: Vec<(TensorRow, Option<u32>)> = Vec::with_capacity(20);
    let is_whole = spec.layer(layer).experts().is_some_and(|experts| experts.is_fused);
    for rows in file_rows(spec, layer).chunk_by(|a, b| a.kind == b.kind) {
        match rows[0].experts {
            Some(_) if rows[0].is_of_all_experts => tensors.push((rows[0], None)),
            Some(_) if is_whole => tensors.push((of_all_experts(rows), None)),
            Some(count) => {
                tensors
                    .extend((0..count).flat_map(|expert| rows.iter().map(move |row| (*row, Some(expert)))));
            }
            None => tensors.extend(rows.iter().map(|row| (*row, None))),
        }
    }
    tensors
}

/// Returns the tensor that holds these rows of all experts.
fn of_all_experts(rows: &[TensorRow]) -> TensorRow {
    let (module, gguf) = match rows {
        [_] => ("mlp.experts.down_proj", "ffn_down_exps.weight"),
        _ => ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    };
    TensorRow {
        module,
        gguf,
        leaf: "",
        rows: rows.iter().map(|row| row.rows).sum(),
        is_of_all_experts: true,
        ..rows[0]
    }
}

/// Returns the matrices that a layer multiplies rows by; those with a common input are one.
pub fn products(spec: &ModelSpec, layer: u32) -> Vec<Product> {
    let mut products: Vec<Product> = Vec::with_capacity(5);
    each_row(spec, layer, |TensorRow { kind, rows, cols, experts, .. }| {
        if let Some(product) = products.iter_mut().find(|product| product.kind == kind) {
            product.n += rows;
        } else if kind.is_product() {
            products.push(Product { kind, n: rows, k: cols, experts });
        }
    });
    products
}

/// Returns names and shapes of the tensors of a model with this spec, in the order in which they are saved.
///
/// A tied head is not listed: it is the embedding.
pub fn expected_tensors(spec: &ModelSpec) -> Vec<(String, Vec<u64>)> {
    let (v, h) = (u64::from(spec.vocab), u64::from(spec.hidden));
    let mut list = vec![("model.embed_tokens.weight".to_string(), vec![v, h])];
    for layer in 0..spec.layers.len() {
        let name = |(row, expert): (TensorRow, Option<u32>)| {
            (format!("model.layers.{layer}.{}", row.name(expert)), row.shape())
        };
        list.extend(layer_tensors(spec, layer).into_iter().map(name));
    }
    list.push(("model.norm.weight".to_string(), vec![h]));
    if let Some(width) = spec.inputs {
        let (width, all) = (u64::from(width), u64::from(spec.layers.len() * width));
        list.push((format!("model.{INPUT_TABLE}.weight"), vec![v, all]));
        list.push((format!("model.{INPUT_CONTEXT}.weight"), vec![all, h]));
        list.push((format!("model.{INPUT_NORM}.weight"), vec![width]));
    }
    if !spec.tied {
        list.push(("lm_head.weight".to_string(), vec![v, h]));
    }
    list
}
