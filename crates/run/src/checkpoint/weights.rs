//! Streams weights into a file: rows as f32, in bounded memory, with an adapter added. W + scale B A is computed in f32
//! and rounded once, to the file's dtype; W is decoded, in the run's dtype. Rounding may undo changes: it is counted.

use plimsoll_arch::{
    LoraTarget, LoraTargets, Quantization, TOWER_PREFIX, TowerSpec, is_kept_in_f32, tower_adapted,
};
use plimsoll_base::nf4::{CODES_OF_WORD, NF4_BLOCK, decode, encode};
use plimsoll_base::{Bytes, DType, Encoding, Error, Result};
use plimsoll_files::{
    ADAPTER_SCORE, Adapter, AdapterConfig, Head, LoraPart, OpenModel, SCORE, TensorInfo, adapter_tensor_name,
    stored, tower_adapter_name,
};
use std::ops::Range;

/// Bytes of buffers between files.
const BUFFER: Bytes = Bytes::mib(16);
/// Elements encoded at a time: whole blocks.
const PIECE: usize = 1 << 12;

/// Reports the progress of an export: bytes done, bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(Bytes, Bytes);

/// Returns the dtype of a tensor in a file of weights in `dtype`.
pub(super) fn dtype_of(name: &str, dtype: DType) -> DType {
    if is_kept_in_f32(name) { DType::F32 } else { dtype }
}

/// Statistics of adding an adapter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    /// Tensors that the adapter changes.
    pub(super) tensors: usize,
    /// Elements of those tensors.
    pub(super) elements: u64,
    /// Elements that rounding returned to the base's value.
    pub(super) undone: u64,
    /// Largest rounding error of an element.
    pub(super) rounding_max: f32,
    /// Largest change of an element by the adapter, before rounding.
    pub(super) change_max: f32,
}

/// The dtypes of weights on their way into a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dtypes {
    /// Dtype an adapter is added in: the base's own if in full; the run's if it was decoded or packed.
    pub(super) base: DType,
    /// Dtype of the file.
    pub(super) written: DType,
}

impl Dtypes {
    /// Returns the dtypes for a model. Unless `asked`, the file has the base's dtype, bf16 if all of it is; the run's,
    /// `trained`, if it decoded a quantised file or trained on its blocks; else f32.
    ///
    /// Errors: `merge-refused` for an adapter of a random base.
    pub(super) fn of(model: &OpenModel, trained: Option<DType>, asked: Option<DType>) -> Result<Dtypes> {
        let is_bf16 = (model.tensors.iter().filter(|tensor| !is_kept_in_f32(&tensor.name)))
            .all(|tensor| tensor.encoding == Encoding::Bf16);
        if model.tensors.is_empty() && model.adapter.is_some() {
            let message = "the base model is random: it has no files to add to";
            return Err(
                Error::new("merge-refused", message).hint("export the adapter alone: leave out --merge")
            );
        }
        let base = if is_packed(model) {
            trained.unwrap_or(DType::Bf16)
        } else if is_bf16 {
            DType::Bf16
        } else {
            DType::F32
        };
        let written = asked.unwrap_or(base);
        // Without an adapter nothing was computed: values are rounded once.
        Ok(Dtypes { base: if model.adapter.is_some() { base } else { written }, written })
    }
}

/// Returns true if the model's file is quantised: a run decodes it, or trains on its blocks.
pub(super) fn is_packed(model: &OpenModel) -> bool {
    let is_full = |t: &TensorInfo| matches!(t.encoding, Encoding::F32 | Encoding::F16 | Encoding::Bf16);
    quantization(model) == Some(Quantization::Gguf) || !model.tensors.iter().all(is_full)
}

/// Fills rows of a tensor of a `random:` model, from a row on.
pub type Made<'a> = &'a dyn Fn(&str, u64, &mut [f32]);

/// Passes the rows of these tensors to `write`, in order and in whole heads, with the model's adapter added. `made`
/// supplies those of a random model. `write` gets the name, the values and a buffer for their stored form.
///
/// Errors: those of reading and of `write`.
pub(super) fn each_rows(
    model: &OpenModel,
    made: Option<Made<'_>>,
    dtypes: Dtypes,
    tensors: &[(String, Vec<u64>)],
    progress: Progress<'_>,
    mut write: impl FnMut(&str, &[f32], &mut [u8]) -> Result<()>,
) -> Result<Sums> {
    let (mut sums, mut done) = (Sums::default(), 0);
    let elements = |shape: &[u64]| shape.iter().product::<u64>();
    let Dtypes { base, written: dtype } = dtypes;
    let all = Bytes(tensors.iter().map(|(_, shape)| elements(shape)).sum::<u64>() * dtype.bytes());
    let how = quantization(model);
    let (mut stored, mut values) = (vec![0; BUFFER.0 as usize], vec![0.0f32; BUFFER.0 as usize / 4]);
    for (name, shape) in tensors {
        let factors = match &model.adapter {
            Some(adapter) => Factors::of(model, adapter, name)?,
            None => None,
        };
        sums.tensors += usize::from(factors.is_some());
        let width = elements(&shape[1..]) as usize;
        // All matrices of a layer's experts are rows that no head is in.
        let head = if shape.len() > 2 { 1 } else { u64::from(model.spec.file_shape().head_dim) };
        let rows_max = ((values.len() / width.max(1)) as u64 / head).max(1) * head;
        values.resize(values.len().max(rows_max as usize * width), 0.0);
        for first in (0..shape[0]).step_by(rows_max as usize) {
            let rows = first..shape[0].min(first + rows_max);
            let out = &mut values[..(rows.end - rows.start) as usize * width];
            match made {
                Some(made) => made(name, first, out),
                None => read_rows(model, name, rows, &mut stored, out)?,
            }
            match how.filter(|_| is_linear(name)) {
                Some(Quantization::Nf4) => through_codes(out, base),
                // A reward model's head is the adapter's own.
                None if name == SCORE => {}
                _ if is_kept_in_f32(name) => {}
                // Decoded blocks, which a run rounds.
                _ => round(out, base),
            }
            if let Some(factors) = &factors {
                factors.add(first as usize, out, dtype, &mut sums);
            }
            write(name, out, &mut stored)?;
            done += out.len() as u64 * dtype.bytes();
            progress(Bytes(done), all);
        }
    }
    Ok(sums)
}

/// Returns the quantization of the weights that the model's adapter was trained on.
fn quantization(model: &OpenModel) -> Option<Quantization> {
    model.adapter.as_ref().and_then(|adapter| adapter.config.quantize)
}

/// Reads rows of a tensor; a reward model's head comes from its adapter, if that has it.
fn read_rows(
    model: &OpenModel,
    name: &str,
    rows: Range<u64>,
    stored: &mut [u8],
    out: &mut [f32],
) -> Result<()> {
    match &model.adapter {
        Some(adapter) if name == SCORE && adapter.config.head == Head::Score => {
            adapter.read(ADAPTER_SCORE, 0, stored, out)
        }
        _ => model.read_rows(name, rows, stored, out),
    }
}

/// Returns true for weights of a linear layer of a decoder layer or an expert, but not of a router.
fn is_linear(tensor: &str) -> bool {
    // Several layers in one tensor, as in Phi-3.
    const FUSED: [&str; 2] = ["self_attn.qkv_proj", "mlp.gate_up_proj"];
    if tensor.starts_with(TOWER_PREFIX) {
        return false;
    }
    let module = tensor.strip_suffix(".weight").unwrap_or_default();
    let is_of_layer = |linear: &str| module.strip_suffix(linear).is_some_and(|rest| rest.ends_with('.'));
    let is_of_expert = |linear: &str| {
        let number = linear
            .strip_prefix("mlp.")
            .and_then(|matrix| module.strip_suffix(matrix)?.strip_suffix('.')?.rsplit_once(".mlp.experts."));
        number.is_some_and(|(_, number)| number.parse::<u32>().is_ok())
    };
    // All experts of a layer in one tensor, as in Qwen3.5.
    if [".experts.gate_up_proj", ".experts.down_proj"].iter().any(|all| tensor.ends_with(all)) {
        return true;
    }
    let own = LoraTarget::ALL.iter().filter(|target| !target.is_of_all_experts());
    let mut modules = own.map(|target| target.module()).chain(FUSED);
    modules.any(|linear| is_of_layer(linear) || is_of_expert(linear))
}

/// Replaces weights by their decoded codes, as products read them.
fn through_codes(rows: &mut [f32], dtype: DType) {
    let (mut words, mut scales) = ([0; PIECE / CODES_OF_WORD], [0.0; PIECE / NF4_BLOCK]);
    for rows in rows.chunks_mut(PIECE) {
        let words = &mut words[..rows.len() / CODES_OF_WORD];
        let scales = &mut scales[..rows.len() / NF4_BLOCK];
        encode(rows, words, scales);
        decode(words, scales, rows);
        round(rows, dtype);
    }
}

fn round(values: &mut [f32], dtype: DType) {
    values.iter_mut().for_each(|x| *x = stored(dtype, *x));
}

/// The factors A and scale B of the linear layers in one tensor: one, or that of each expert.
struct Factors {
    /// [r, K] of each expert.
    a: Vec<f32>,
    /// [N, r] of each expert, multiplied by the scale.
    b: Vec<f32>,
    rank: usize,
    /// N: rows of an expert in the tensor.
    outputs: usize,
    /// Rows in an element of the tensor's first axis: N if that counts experts, else 1.
    rows_each: usize,
    /// True if the tensor has the matrices of its experts transposed, [K, N].
    is_transposed: bool,
}

/// What a tensor has of a target.
struct Of {
    layer: u32,
    target: LoraTarget,
    /// None for a linear layer that is no expert's.
    expert: Option<u32>,
    /// The rows of the target's product in an expert.
    rows: Range<u32>,
    /// True if it has those of all experts.
    has_all: bool,
}

impl Of {
    /// Returns what a weight has of an adapter's targets; `None` if the adapter does not change it.
    fn weight(weight: &str, targets: LoraTargets, model: &OpenModel) -> Option<Of> {
        let (layer, module) = weight.strip_prefix("model.layers.")?.split_once('.')?;
        let (layer, module) = (layer.parse().ok()?, module.strip_suffix(".weight").unwrap_or(module));
        let expert = module.strip_prefix("mlp.experts.").and_then(|rest| rest.split('.').next());
        let expert: Option<u32> = expert.and_then(|expert| expert.parse().ok());
        let rows = |target: LoraTarget| target.widths(&model.spec, layer).1;
        let of = |target: LoraTarget| {
            let all = Of { layer, target, expert, rows: 0..rows(target), has_all: false };
            if module == target.path_in(&model.spec, expert) {
                return Some(Of { has_all: target.is_of_all_experts(), ..all });
            }
            let mut first = 0;
            for span in expert.map_or(&[][..], |_| target.spans()) {
                let rows = first..first + rows(*span);
                if module == span.path(expert) {
                    return Some(Of { rows, ..all });
                }
                first = rows.end;
            }
            None
        };
        targets.iter().find_map(of)
    }
}

impl Factors {
    /// Reads the factors of a weight; `None` if the adapter does not change it.
    fn of(model: &OpenModel, adapter: &Adapter, weight: &str) -> Result<Option<Factors>> {
        let AdapterConfig { rank, targets, .. } = adapter.config;
        if let Some(tower) = adapter.config.tower.as_ref().filter(|_| weight.starts_with(TOWER_PREFIX)) {
            return Factors::of_tower(tower, adapter, weight);
        }
        let Some(of) = Of::weight(weight, targets, model) else { return Ok(None) };
        let (inputs, outputs) = of.target.widths(&model.spec, of.layer);
        let is_whole = of.target.is_of_all_experts();
        let count = if is_whole { of.target.of_experts(&model.spec, of.layer).count() as u32 } else { 1 };
        let experts = if of.has_all || !is_whole { 0..count } else { of.expert.map_or(0..0, |e| e..e + 1) };
        let read = |part, first: u32, elements: u32| -> Result<Vec<f32>> {
            let mut out = vec![0.0; elements as usize * rank as usize];
            let place = (of.layer, of.expert);
            let name = adapter_tensor_name(&model.spec, targets, place, of.target, part);
            adapter.read(&name, u64::from(first * rank), &mut vec![0; 1 << 16], &mut out)?;
            Ok(out)
        };
        let a = read(LoraPart::A, experts.start * inputs, experts.len() as u32 * inputs)?;
        // Of all experts in one, a row has the columns of a rank side by side.
        let columns = read(LoraPart::B, 0, outputs * count)?;
        let (rank, scale) = (rank as usize, adapter.config.scale() as f32);
        let of_rows = |expert: u32| of.rows.clone().map(move |row| (expert as usize, row as usize * rank));
        let at = |(expert, row): (usize, usize)| {
            (row..row + rank).map(move |column| column * count as usize + expert)
        };
        let b = experts.flat_map(of_rows).flat_map(at).map(|index| columns[index] * scale).collect();
        let rows_each = if of.has_all { outputs as usize } else { 1 };
        let is_transposed = of.target.row(&model.spec, of.layer).is_some_and(|row| row.is_transposed);
        Ok(Some(Factors { a, b, rank, outputs: of.rows.len(), rows_each, is_transposed }))
    }

    /// Reads the factors of a tower's weight; `None` for those without adapters.
    fn of_tower(tower: &TowerSpec, adapter: &Adapter, weight: &str) -> Result<Option<Factors>> {
        let adapted = tower_adapted(tower);
        let Some(layer) = adapted.iter().flatten().find(|layer| layer.name == weight) else {
            return Ok(None);
        };
        let (rank, outputs) = (adapter.config.rank as usize, layer.rows as usize);
        let read = |part, elements: usize| -> Result<Vec<f32>> {
            let mut out = vec![0.0; elements];
            adapter.read(&tower_adapter_name(weight, part), 0, &mut vec![0; 1 << 16], &mut out)?;
            Ok(out)
        };
        let a = read(LoraPart::A, rank * layer.cols as usize)?;
        let scale = adapter.config.scale() as f32;
        let b = read(LoraPart::B, outputs * rank)?.into_iter().map(|b| b * scale).collect();
        Ok(Some(Factors { a, b, rank, outputs, rows_each: 1, is_transposed: false }))
    }

    /// Adds rows `first..` of the product to `rows`, and counts the effects of rounding.
    fn add(&self, first: usize, rows: &mut [f32], dtype: DType, sums: &mut Sums) {
        let experts = self.b.len() / (self.outputs * self.rank);
        let width = self.a.len() / (experts * self.rank);
        if self.is_transposed {
            return self.add_transposed(first, width, rows, dtype, sums);
        }
        let mut change = vec![0.0f32; width];
        for (index, row) in rows.chunks_exact_mut(width).enumerate() {
            change.fill(0.0);
            let index = first * self.rows_each + index;
            let b = &self.b[index * self.rank..][..self.rank];
            let a = &self.a[index / self.outputs * self.rank * width..][..self.rank * width];
            for (b, a) in b.iter().zip(a.chunks_exact(width)) {
                change.iter_mut().zip(a).for_each(|(sum, a)| *sum += b * a);
            }
            sums.add(row, &change, dtype);
        }
    }

    /// Adds the products of experts from `first` on to their transposed matrices, as `add`.
    fn add_transposed(&self, first: usize, width: usize, rows: &mut [f32], dtype: DType, sums: &mut Sums) {
        let (n, r) = (self.outputs, self.rank);
        let mut change = vec![0.0f32; n];
        for (index, matrix) in rows.chunks_exact_mut(width * n).enumerate() {
            let a = &self.a[(first + index) * r * width..][..r * width];
            let b = &self.b[(first + index) * n * r..][..n * r];
            for (input, row) in matrix.chunks_exact_mut(n).enumerate() {
                change.fill(0.0);
                for (sum, b) in change.iter_mut().zip(b.chunks_exact(r)) {
                    b.iter().zip(a.iter().skip(input).step_by(width)).for_each(|(b, a)| *sum += b * a);
                }
                sums.add(row, &change, dtype);
            }
        }
    }
}

impl Sums {
    /// Adds a change to a row, and counts the effects of rounding.
    fn add(&mut self, row: &mut [f32], change: &[f32], dtype: DType) {
        for (weight, change) in row.iter_mut().zip(change) {
            let sum = *weight + change;
            let rounded = stored(dtype, sum);
            self.elements += 1;
            self.undone += u64::from(rounded == stored(dtype, *weight) && *change != 0.0);
            self.rounding_max = self.rounding_max.max((rounded - sum).abs());
            self.change_max = self.change_max.max(change.abs());
            *weight = sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_layers_are_those_that_codes_hold() {
        for module in [
            "self_attn.o_proj",
            "mlp.down_proj",
            "self_attn.qkv_proj",
            "mlp.gate_up_proj",
            "mlp.experts.7.gate_proj",
            "mlp.experts.0.up_proj",
            "mlp.experts.127.down_proj",
            "linear_attn.in_proj_qkv",
            "linear_attn.in_proj_a",
            "linear_attn.out_proj",
        ] {
            assert!(is_linear(&format!("model.layers.3.{module}.weight")), "{module}");
            assert!(!is_linear(&format!("model.layers.3.{module}.bias")), "{module}");
        }
        for tensor in [
            "model.embed_tokens.weight",
            "lm_head.weight",
            "model.layers.0.input_layernorm.weight",
            "model.layers.0.mlp.gate.weight",
            "model.layers.0.linear_attn.conv1d.weight",
            "model.layers.0.linear_attn.norm.weight",
            "model.layers.0.linear_attn.A_log",
            "model.layers.0.mlp.experts.weight",
            "model.layers.0.mlp.experts.down_proj.weight",
            "model.layers.0.mlp.experts.7.o_proj.weight",
        ] {
            assert!(!is_linear(tensor), "{tensor}");
        }
    }
}
