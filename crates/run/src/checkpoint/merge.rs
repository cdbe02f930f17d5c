//! Merging: an adapter added to the weights that it was trained on, as a model without adapters.
//!
//! W + scale B A is computed in f32 and rounded once, to the dtype of W. Rounding may undo small changes, so it is counted.

use super::{MANIFEST, Manifest, STATE, verbs};
use plimsoll_base::nf4::{CODES_OF_WORD, NF4_BLOCK, decode, encode};
use plimsoll_base::{Bytes, DType, Error, LoraTarget, Quantization, Result};
use plimsoll_files::{
    Adapter, AdapterConfig, Encoding, LoraPart, OpenModel, SafetensorsWriter, TensorDecl, TensorInfo,
    adapter_tensor_name, config_json, generation_config_json, stored, write_new,
};
use plimsoll_text::files_to_save;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Bytes of the buffers between files.
const BUFFER: Bytes = Bytes::mib(16);
/// Elements that become codes at a time: whole blocks.
const PIECE: usize = 1 << 12;

/// What a merge has made.
#[derive(Clone, Debug, Serialize)]
pub struct Merged {
    /// The checkpoint or the adapter's folder.
    pub from: PathBuf,
    /// The model that it was trained on.
    pub base: String,
    /// How its linear layers were stored then, if not in full: what they stood for is what the adapter is added to.
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
}

/// Adds the adapter of a run's newest checkpoint, of a checkpoint, or in a folder of peft's, to its base model. The folder `to` gets
/// its name when it is complete.
///
/// Errors: `merge-refused` where there is no adapter, or the base is quantised; those of `export` and of opening.
pub fn export_merged(path: &Path, to: &Path) -> Result<Merged> {
    let folder = match path.join(plimsoll_files::ADAPTER_CONFIG).exists() {
        true => path.to_path_buf(),
        false => verbs::newest(path)?.path,
    };
    verbs::check_target(to)?;
    // A folder of peft's has no manifest; a checkpoint without one fails to read.
    if folder.join(MANIFEST).exists() || folder.join(STATE).exists() {
        Manifest::read(&folder)?.verify(&folder)?;
    }
    let model = OpenModel::open(&folder.display().to_string(), None, false)?;
    let Some(adapter) = &model.adapter else {
        let message = format!("{}: it holds a whole model, and no adapter to merge", folder.display());
        return Err(Error::usage("merge-refused", message).hint("leave out --merge"));
    };
    let dtype = dtype_of(&model)?;
    let mut merged = Merged {
        from: folder,
        base: adapter.config.base.clone().unwrap_or_default(),
        quantize: adapter.config.quantize,
        tensors: 0,
        elements: 0,
        undone: 0,
        rounding_max: 0.0,
        change_max: 0.0,
    };
    verbs::fill_folder(to, |part| {
        let ids = model.token_ids();
        let pretty = |value: &serde_json::Value| {
            serde_json::to_vec_pretty(value).expect("it is the JSON that was just written")
        };
        write_new(&part.join("config.json"), &pretty(&config_json(&model.spec, dtype, &ids)))?;
        write_new(&part.join("generation_config.json"), &pretty(&generation_config_json(&ids)))?;
        for (name, bytes) in files_to_save(&model.tokenizer)? {
            write_new(&part.join(name), &bytes)?;
        }
        write_weights(&model, adapter, dtype, &part.join(super::WEIGHTS), &mut merged)
    })?;
    Ok(merged)
}

/// Returns the dtype of the merged weights: bf16 if all of the base's are, else f32.
///
/// Errors: `merge-refused` for a quantised base.
fn dtype_of(model: &OpenModel) -> Result<DType> {
    let is_plain = |t: &&TensorInfo| matches!(t.encoding, Encoding::F32 | Encoding::F16 | Encoding::Bf16);
    if let Some(tensor) = model.tensors.iter().find(|tensor| !is_plain(tensor)) {
        let (name, encoding) = (&tensor.name, tensor.encoding.name());
        let message =
            format!("the base model is quantised: `{name}` is {encoding}, so a sum would be rounded twice");
        return Err(Error::new("merge-refused", message)
            .hint("set base_model_name_or_path in adapter_config.json to the model before it was quantised")
            .hint("or export the adapter alone: leave out --merge"));
    }
    if model.tensors.is_empty() {
        let message = "the base model is random: it has no files to add to";
        return Err(Error::new("merge-refused", message).hint("export the adapter alone: leave out --merge"));
    }
    let is_bf16 = model.tensors.iter().all(|tensor| tensor.encoding == Encoding::Bf16);
    Ok(if is_bf16 { DType::Bf16 } else { DType::F32 })
}

fn write_weights(
    model: &OpenModel,
    adapter: &Adapter,
    dtype: DType,
    path: &Path,
    merged: &mut Merged,
) -> Result<()> {
    let declared: Vec<TensorDecl> = model
        .tensors
        .iter()
        .map(|t| TensorDecl { name: t.name.clone(), dtype, shape: t.shape.clone() })
        .collect();
    let mut writer = SafetensorsWriter::create(path, &declared, &[])?;
    let (mut stored, mut values) = (vec![0; BUFFER.0 as usize], vec![0.0f32; BUFFER.0 as usize / 4]);
    for tensor in &model.tensors {
        let factors = Factors::of(model, adapter, &tensor.name)?;
        merged.tensors += usize::from(factors.is_some());
        let width = tensor.shape[1..].iter().product::<u64>() as usize;
        let rows_max = (values.len() / width.max(1)).max(1) as u64;
        values.resize(values.len().max(width), 0.0);
        for first in (0..tensor.shape[0]).step_by(rows_max as usize) {
            let rows = first..tensor.shape[0].min(first + rows_max);
            let out = &mut values[..(rows.end - rows.start) as usize * width];
            model.read_rows(&tensor.name, rows, &mut stored, out)?;
            if merged.quantize.is_some() && is_linear(&tensor.name) {
                through_codes(out, dtype);
            }
            if let Some(factors) = &factors {
                factors.add(first as usize, out, dtype, merged);
            }
            writer.write_f32_as(dtype, out, &mut stored)?;
        }
    }
    writer.finish().map(drop)
}

/// True for the weights of a linear layer of a decoder layer.
fn is_linear(tensor: &str) -> bool {
    let module = tensor.strip_suffix(".weight").unwrap_or_default();
    LoraTarget::ALL.iter().any(|target| module.ends_with(&format!(".{}", target.module())))
}

/// Makes weights what their codes stand for, as products read them.
fn through_codes(rows: &mut [f32], dtype: DType) {
    let (mut words, mut scales) = ([0; PIECE / CODES_OF_WORD], [0.0; PIECE / NF4_BLOCK]);
    for rows in rows.chunks_mut(PIECE) {
        let (words, scales) =
            (&mut words[..rows.len() / CODES_OF_WORD], &mut scales[..rows.len() / NF4_BLOCK]);
        encode(rows, words, scales);
        decode(words, scales, rows);
        rows.iter_mut().for_each(|x| *x = stored(dtype, *x));
    }
}

/// A and scale B of one linear layer.
struct Factors {
    /// [r, K].
    a: Vec<f32>,
    /// [N, r], times the scale.
    b: Vec<f32>,
    rank: usize,
}

impl Factors {
    /// Reads those of a weight; `None` of one that the adapter does not change.
    fn of(model: &OpenModel, adapter: &Adapter, weight: &str) -> Result<Option<Factors>> {
        let AdapterConfig { rank, targets, .. } = adapter.config;
        let place = |target: LoraTarget| {
            let layer = weight.strip_prefix("model.layers.")?.strip_suffix(".weight")?;
            let (layer, module) = layer.split_once('.')?;
            (module == target.module()).then(|| layer.parse::<u32>().ok()).flatten()
        };
        let Some((layer, target)) = targets.iter().find_map(|target| Some((place(target)?, target))) else {
            return Ok(None);
        };
        let (inputs, outputs) = target.widths(&model.spec);
        let read = |part, elements: u32| -> Result<Vec<f32>> {
            let mut out = vec![0.0; elements as usize * rank as usize];
            let mut staging = vec![0; 1 << 16];
            adapter.read(&adapter_tensor_name(layer, target, part), 0, &mut staging, &mut out)?;
            Ok(out)
        };
        let (a, mut b) = (read(LoraPart::A, inputs)?, read(LoraPart::B, outputs)?);
        let scale = adapter.config.scale() as f32;
        b.iter_mut().for_each(|value| *value *= scale);
        Ok(Some(Factors { a, b, rank: rank as usize }))
    }

    /// Adds rows `first..` of the product to `rows`, and counts what rounding does to the sums.
    fn add(&self, first: usize, rows: &mut [f32], dtype: DType, merged: &mut Merged) {
        let width = self.a.len() / self.rank;
        let mut change = vec![0.0f32; width];
        for (index, row) in rows.chunks_exact_mut(width).enumerate() {
            change.fill(0.0);
            let b = &self.b[(first + index) * self.rank..][..self.rank];
            for (b, a) in b.iter().zip(self.a.chunks_exact(width)) {
                change.iter_mut().zip(a).for_each(|(sum, a)| *sum += b * a);
            }
            for (weight, change) in row.iter_mut().zip(&change) {
                let sum = *weight + change;
                let rounded = stored(dtype, sum);
                merged.elements += 1;
                merged.undone += u64::from(rounded == *weight && *change != 0.0);
                merged.rounding_max = merged.rounding_max.max((rounded - sum).abs());
                merged.change_max = merged.change_max.max(change.abs());
                *weight = sum;
            }
        }
    }
}
