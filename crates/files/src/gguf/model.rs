//! A GGUF file's model: shape, Hugging Face names, tokenizer tables. Mistral and SmolLM2 are stored as `llama`.

use crate::config::{TokenIds, check_shape, either, short, unsupported, unsupported_family};
use crate::gguf::header::{Gguf, GgufTensor, GgufValue};
use crate::gguf::names::{EMBEDDING, HEAD, ROPE_FREQS, Stored, added, attention, key, row_order, stored};
use crate::gguf::rope;
use crate::storage::Storage;
use crate::tensors::{RowOrder, TensorInfo};
use plimsoll_arch::{
    ARCHITECTURES, Architecture, Attention, CONV_TAPS, DeltaSpec, FileShape, LayerEncodings, LayerSet,
    LayersWith, ModelSpec, Multipliers, ParamKind, RopeScaling, Window, Windows,
};
use plimsoll_base::{Encoding, Error, Result, blocks};
use serde_json::json;
use std::collections::HashMap;

/// llama.cpp's defaults.
const WINDOW_ROPE_BASE: f64 = 1e4;
const SCORE_CAP: f32 = 50.0;
const LOGIT_CAP: f32 = 30.0;
/// The interval of layers with full attention.
const INTERVAL: u32 = 4;

/// Most numbers of a list shown in a message.
const LAYERS_SHOWN: usize = 8;

/// The tokenizer tables of a GGUF file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufTokenizer {
    /// `gpt2` (byte-level BPE), `llama` (SentencePiece), ...
    pub model: String,
    /// The rule that splits text into words before BPE: `smollm`, `qwen2`, `llama-bpe`, ...
    pub pre: String,
    /// Text of each token, by id.
    pub tokens: Vec<String>,
    /// 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; by id.
    pub token_types: Vec<i64>,
    /// Score of each token, by id; SentencePiece only.
    pub scores: Vec<f32>,
    /// `left right`, in order of priority.
    pub merges: Vec<String>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// Token for text outside the vocabulary.
    pub unknown: Option<u32>,
    pub pad: Option<u32>,
    /// True if programs put the BOS token before an encoded text.
    pub add_bos: Option<bool>,
    /// SentencePiece puts a space before the text unless this is false.
    pub add_space_prefix: Option<bool>,
    pub chat_template: Option<String>,
}

/// The parts of a GGUF file that `OpenModel` needs.
pub(crate) struct GgufModel {
    pub(crate) spec: ModelSpec,
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) tokenizer: GgufTokenizer,
    pub(crate) ids: TokenIds,
    pub(crate) encodings: LayerEncodings,
}

/// Reads spec, tensors and tokenizer from a parsed header.
pub(crate) fn read(mut gguf: Gguf, storage: &Storage) -> Result<GgufModel> {
    let meta = Meta { gguf: &gguf, arch: gguf.text(key::ARCHITECTURE)?.to_string() };
    let mut shape = meta.shape()?;
    // Layers are counted before they are marked.
    check_shape(&shape, &gguf.file)?;
    (shape.attention, shape.multipliers) = (meta.attention(&shape)?, meta.multipliers(&shape)?);
    (shape.experts, shape.delta) = (meta.experts(&shape)?, meta.delta(&shape)?);
    if let Some(freqs) = gguf.tensors.iter().find(|t| t.name == ROPE_FREQS) {
        shape.rope_scaling = meta.llama3_scaling(&shape, freqs, storage)?;
    }
    check_shape(&shape, &gguf.file)?;
    let spec = shape.spec();
    let tensors = hf_tensors(&gguf, &shape)?;
    let tokenizer = gguf.take_tokenizer(spec.vocab)?;
    // A chat model may end a turn with a separate token.
    let mut eos: Vec<u32> = tokenizer.eos.into_iter().collect();
    for id in key::MORE_EOS.iter().filter_map(|key| gguf.id(key)) {
        if !eos.contains(&id) {
            eos.push(id);
        }
    }
    let ids = TokenIds { eos, bos: tokenizer.bos, pad: tokenizer.pad };
    let encodings = encodings(&spec, &tensors);
    Ok(GgufModel { spec, tensors, tokenizer, ids, encodings })
}

pub(super) struct Meta<'a> {
    pub(super) gguf: &'a Gguf,
    arch: String,
}

impl Meta<'_> {
    fn shape(&self) -> Result<FileShape> {
        let file = &self.gguf.file;
        let Some(architecture) = ARCHITECTURES.iter().find(|row| row.gguf == Some(&self.arch)) else {
            let built = either(ARCHITECTURES.iter().filter_map(|row| row.gguf));
            return Err(unsupported_family(file, key::ARCHITECTURE, &json!(self.arch), &built));
        };
        self.refuse_what_is_not_built(architecture)?;
        let embedding = self.gguf.tensor(EMBEDDING)?;
        if embedding.shape.len() != 2 {
            return Err(self.invalid(format!("token_embd.weight has shape {:?}", embedding.shape)));
        }
        let hidden = self.size(key::HIDDEN)?;
        let heads = self.size(key::HEADS)?;
        let head_dim = match self.int(key::KEY_LENGTH) {
            Some(_) => self.size(key::KEY_LENGTH)?,
            None => hidden / heads,
        };
        let is_rotated_in_part = is_rotated_in_part(architecture);
        for key in [key::VALUE_LENGTH, key::ROPE_DIM].into_iter().take(2 - usize::from(is_rotated_in_part)) {
            if let Some(n) = self.int(key).filter(|n| *n != i64::from(head_dim)) {
                let built = format!("{head_dim}, the length of a key");
                return Err(unsupported(file, &self.key(key), &json!(n), &built));
            }
        }
        let is_there = |name| self.gguf.tensor(name).is_ok();
        Ok(FileShape {
            family: architecture.family,
            vocab: u32::try_from(embedding.shape[0]).unwrap_or(u32::MAX), // check_shape refuses it
            hidden,
            layers: self.layers(architecture)?,
            heads,
            kv_heads: match self.int(key::KV_HEADS) {
                Some(_) => self.size(key::KV_HEADS)?,
                None => heads,
            },
            head_dim,
            ffn: match self.int(key::FFN) {
                None if architecture.has_experts_alone => self.size(key::EXPERT_FFN)?,
                _ => self.size(key::FFN)?,
            },
            rms_eps: self.positive(key::RMS_EPS)?.unwrap_or(1e-5) as f32,
            rope_theta: short(self.positive(key::ROPE_BASE)?.unwrap_or(10_000.0) as f32),
            rope_scaling: self.rope_scaling()?,
            tied: self.gguf.tensor(HEAD).is_err(),
            qkv_bias: architecture.qkv_bias || architecture.has_plain_output && is_there("blk.0.attn_q.bias"),
            qk_norms: architecture
                .qk_norms
                .filter(|_| architecture.qk_norms_key.is_none() || is_there("blk.0.attn_q_norm.weight")),
            max_positions: self.size(key::CONTEXT)?,
            ..FileShape::PLAIN
        })
    }

    /// Returns the number of layers without those for multi-token prediction, which are not read.
    fn layers(&self, row: &Architecture) -> Result<u32> {
        let (all, next) = (self.size(key::LAYERS)?, self.int(key::NEXT_LAYERS).filter(|_| has_further(row)));
        match u32::try_from(next.unwrap_or(0)) {
            Ok(next) if next < all => Ok(all - next),
            _ => {
                let built = format!("fewer than the {all} layers");
                Err(unsupported(&self.gguf.file, &self.key(key::NEXT_LAYERS), &json!(next), &built))
            }
        }
    }

    fn delta(&self, shape: &FileShape) -> Result<Option<LayersWith<DeltaSpec>>> {
        if !shape.architecture().has_delta {
            return Ok(None);
        }
        let interval = if self.int(key::INTERVAL).is_some() { self.size(key::INTERVAL)? } else { INTERVAL };
        let (dim, values) = (self.size(key::STATE)?, self.size(key::VALUES)?);
        let (key_heads, value_heads) = (self.size(key::KEY_HEADS)?, self.size(key::VALUE_HEADS)?);
        let width = u64::from(dim) * u64::from(value_heads);
        for (key, said, built) in
            [(key::CONV, self.size(key::CONV)?, CONV_TAPS.into()), (key::VALUES, values, width)]
        {
            if u64::from(said) != built {
                let built = built.to_string();
                return Err(unsupported(&self.gguf.file, &self.key(key), &json!(said), &built));
            }
        }
        let layers = LayerSet::all_but_every(interval, shape.layers);
        let each = DeltaSpec { key_heads, value_heads, key_dim: dim, value_dim: dim };
        Ok(Some(LayersWith { layers, each }))
    }

    /// Returns the rotated elements of a head, if it may be a part.
    fn rotated(&self, shape: &FileShape) -> Result<Option<u32>> {
        if !is_rotated_in_part(shape.architecture()) {
            return Ok(None);
        }
        let width = self.size(key::ROPE_DIM)?;
        if width > shape.head_dim || !width.is_multiple_of(2) {
            let built = format!("an even number up to {}", shape.head_dim);
            return Err(unsupported(&self.gguf.file, &self.key(key::ROPE_DIM), &json!(width), &built));
        }
        let is_part = shape.architecture().has_delta || width < shape.head_dim;
        Ok(Some(width).filter(|_| is_part))
    }

    /// Reads a file's attention by the rules of its architecture.
    fn attention(&self, shape: &FileShape) -> Result<Attention> {
        let row = shape.architecture();
        let keys = match (self.int(key::WINDOW), row.windows) {
            (_, Windows::No | Windows::All | Windows::Asked) => None,
            (None, _) if row.gguf_window.is_some() => row.gguf_window,
            _ => Some(self.size(key::WINDOW)?),
        };
        let rope_theta = Some(self.positive(key::WINDOW_ROPE_BASE)?.unwrap_or(WINDOW_ROPE_BASE));
        let window = keys.map(|keys| Window { keys, layers: LayerSet::default(), rope_theta });
        let scale = if row.has_multipliers { self.factor(key::SCORE_SCALE)? } else { None };
        let score_cap = self.cap(row, (key::SCORE_CAP, SCORE_CAP))?;
        let rotated = self.rotated(shape)?;
        Ok(attention(shape, Attention { window, scale, score_cap, rotated, ..Attention::default() }))
    }

    fn multipliers(&self, shape: &FileShape) -> Result<Multipliers> {
        let row = shape.architecture();
        let logit_cap = self.cap(row, (key::LOGIT_CAP, LOGIT_CAP))?;
        if !row.has_multipliers {
            return Ok(Multipliers { logit_cap, ..Multipliers::default() });
        }
        let or_one = |key| Ok::<f32, Error>(self.factor(key)?.unwrap_or(1.0));
        Ok(Multipliers {
            embedding: or_one(key::EMBEDDING_SCALE)?,
            residual: or_one(key::RESIDUAL_SCALE)?,
            logits: or_one(key::LOGIT_SCALE)?,
            logit_cap,
        })
    }

    pub(super) fn factor(&self, key: &str) -> Result<Option<f32>> {
        Ok(self.positive(key)?.map(|factor| factor as f32))
    }

    fn cap(&self, row: &Architecture, (key, unset): (&str, f32)) -> Result<Option<f32>> {
        if row.has_soft_caps { Ok(Some(self.factor(key)?.unwrap_or(unset))) } else { Ok(None) }
    }

    fn refuse_what_is_not_built(&self, row: &Architecture) -> Result<()> {
        let file = &self.gguf.file;
        let refuse = |key: &str| match self.gguf.metadata.get(&self.key(key)) {
            Some(value) => Err(unsupported(file, &self.key(key), &json!(value.to_string()), "none")),
            None => Ok(()),
        };
        if !row.has_soft_caps {
            refuse(key::SCORE_CAP)?;
            refuse(key::LOGIT_CAP)?;
        }
        // Layers by a rule other than the family's.
        refuse("attention.sliding_window_pattern")?;
        refuse("attention.recurrent_layers")?;
        if let Some(tensor) = self.gguf.tensors.iter().find(|tensor| tensor.name.starts_with("rope_factors"))
        {
            return Err(unsupported(file, &tensor.name, &json!(tensor.shape), "a model without longrope"));
        }
        if let Some(n) = self.int(key::EXPERTS).filter(|n| *n != 0 && !row.has_experts) {
            return Err(unsupported(file, &self.key(key::EXPERTS), &json!(n), "a dense model"));
        }
        self.refuse_other_experts(row)?;
        let context = self.int(key::CONTEXT).unwrap_or(0);
        let has_rule = matches!(row.windows, Windows::AllButEvery { .. });
        if let Some(n) = self.int(key::WINDOW).filter(|n| !has_rule && *n != 0 && *n < context) {
            return Err(unsupported(file, &self.key(key::WINDOW), &json!(n), "none"));
        }
        Ok(())
    }

    fn rope_scaling(&self) -> Result<RopeScaling> {
        let kind = match self.gguf.metadata.get(&self.key(key::ROPE_SCALING)) {
            None => return Ok(RopeScaling::None),
            Some(GgufValue::Str(kind)) => kind.as_str(),
            Some(_) => "",
        };
        match kind {
            "none" => Ok(RopeScaling::None),
            "linear" => match self.positive(key::ROPE_FACTOR)? {
                Some(factor) => Ok(RopeScaling::Linear { factor: short(factor as f32) }),
                None => Err(self.invalid("rope.scaling.factor is absent".into())),
            },
            other => Err(unsupported(
                &self.gguf.file,
                &self.key(key::ROPE_SCALING),
                &json!(other),
                "none, linear, or Llama 3's table of factors",
            )),
        }
    }

    /// Returns Llama 3's rule from the divisor table that a GGUF stores, if a published rule gives exactly this table.
    fn llama3_scaling(
        &self,
        shape: &FileShape,
        freqs: &GgufTensor,
        storage: &Storage,
    ) -> Result<RopeScaling> {
        let half = shape.head_dim as usize / 2;
        let refuse = || unsupported(&self.gguf.file, ROPE_FREQS, &json!(freqs.shape), "a rule of Llama 3");
        if freqs.encoding != Encoding::F32 || freqs.shape != [half as u64] {
            return Err(refuse());
        }
        let mut bytes = vec![0; half * 4];
        storage.read_exact_at(&mut bytes, freqs.offset)?;
        let mut stored = vec![0.0; half];
        blocks::decode(Encoding::F32, &bytes, &[], &mut stored);
        rope::rule_of(shape, &stored).ok_or_else(refuse)
    }

    pub(super) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    pub(super) fn int(&self, key: &str) -> Option<i64> {
        match self.gguf.metadata.get(&self.key(key)) {
            Some(GgufValue::Int(n)) => Some(*n),
            _ => None,
        }
    }

    pub(super) fn size(&self, key: &str) -> Result<u32> {
        let found = self.gguf.metadata.get(&self.key(key));
        match found {
            Some(GgufValue::Int(n)) if *n > 0 && *n <= i64::from(i32::MAX) => Ok(*n as u32),
            // A list has one number per layer: layers of several shapes.
            Some(GgufValue::Ints(list)) => {
                let first = json!(list[..list.len().min(LAYERS_SHOWN)]);
                Err(unsupported(&self.gguf.file, &self.key(key), &first, "one number for all layers"))
            }
            Some(other) => {
                Err(self.invalid(format!("{} = {other}, expected an integer from 1 to 2^31", self.key(key))))
            }
            None => Err(self.invalid(format!("`{}` is absent", self.key(key)))),
        }
    }

    pub(super) fn positive(&self, key: &str) -> Result<Option<f64>> {
        match self.gguf.metadata.get(&self.key(key)) {
            None => Ok(None),
            Some(GgufValue::Float(x)) if *x > 0.0 && (*x as f32).is_finite() => Ok(Some(*x)),
            Some(other) => {
                Err(self.invalid(format!("{} = {other}, expected a positive number", self.key(key))))
            }
        }
    }

    fn invalid(&self, what: String) -> Error {
        Error::new("model-config-invalid", format!("{}: {what}", self.gguf.file)).hint("fetch the file again")
    }
}

impl Gguf {
    fn text(&self, key: &str) -> Result<&str> {
        match self.metadata.get(key) {
            Some(GgufValue::Str(text)) => Ok(text),
            _ => {
                let message = format!("{}: metadata key `{key}` is absent or no string", self.file);
                Err(Error::new("model-config-invalid", message).hint("fetch the file again"))
            }
        }
    }

    fn tensor(&self, name: &str) -> Result<&GgufTensor> {
        self.tensors.iter().find(|t| t.name == name).ok_or_else(|| {
            Error::new("model-tensor-missing", format!("{}: no tensor `{name}`", self.file))
                .hint("fetch the file again")
        })
    }

    fn id(&self, key: &str) -> Option<u32> {
        match self.metadata.get(key) {
            Some(GgufValue::Int(n)) => u32::try_from(*n).ok(),
            _ => None,
        }
    }

    fn flag(&self, key: &str) -> Option<bool> {
        match self.metadata.get(key) {
            Some(GgufValue::Bool(flag)) => Some(*flag),
            _ => None,
        }
    }

    /// Moves the tokenizer's tables out of the metadata: they are too large to copy.
    fn take_tokenizer(&mut self, vocab: u32) -> Result<GgufTokenizer> {
        let [model, pre, chat_template] =
            [key::TOKENIZER, key::PRE, key::CHAT_TEMPLATE].map(|key| match self.metadata.remove(key) {
                Some(GgufValue::Str(text)) => Some(text),
                _ => None,
            });
        let [tokens, merges] = [key::TOKENS, key::MERGES].map(|key| match self.metadata.remove(key) {
            Some(GgufValue::Strs(list)) => list,
            _ => Vec::new(),
        });
        let tokenizer = GgufTokenizer {
            model: model.unwrap_or_default(),
            pre: pre.unwrap_or_default(),
            tokens,
            token_types: match self.metadata.remove(key::TOKEN_TYPES) {
                Some(GgufValue::Ints(list)) => list,
                _ => Vec::new(),
            },
            scores: match self.metadata.remove(key::SCORES) {
                Some(GgufValue::Floats(list)) => list,
                _ => Vec::new(),
            },
            merges,
            bos: self.id(key::BOS),
            eos: self.id(key::EOS),
            unknown: self.id(key::UNKNOWN),
            pad: self.id(key::PAD),
            add_bos: self.flag(key::ADD_BOS),
            add_space_prefix: self.flag(key::SPACE_PREFIX),
            chat_template,
        };
        let num_tokens = tokenizer.tokens.len();
        if num_tokens as u64 > u64::from(vocab) {
            let message = format!("{}: {num_tokens} tokens for an embedding of {vocab} rows", self.file);
            return Err(Error::new("model-file-corrupt", message).hint("fetch the file again"));
        }
        Ok(tokenizer)
    }
}

/// Returns whether a family's files may hold layers after the last that predict further tokens; they are not read.
fn has_further(row: &Architecture) -> bool {
    row.has_delta || row.has_sigmoid_router
}

fn is_rotated_in_part(row: &Architecture) -> bool {
    row.has_delta || row.has_partial_rotary
}

/// Returns a layer's expert matrices, which are contiguous, without their names.
fn of_experts(
    gguf: &Gguf,
    shape: &FileShape,
    tensor: &GgufTensor,
) -> Result<impl Iterator<Item = (u32, TensorInfo)>> {
    let count = shape.experts.map_or(0, |experts| experts.each.count);
    let [experts, rows, width] = tensor.shape[..] else { return Err(bad_experts(gguf, tensor, count)) };
    if experts != u64::from(count) {
        return Err(bad_experts(gguf, tensor, count));
    }
    let (bytes, encoding, first) = (tensor.bytes / experts, tensor.encoding, tensor.offset);
    Ok((0..count).map(move |expert| {
        let offset = first + u64::from(expert) * bytes;
        let (name, shape, row_order) = (String::new(), vec![rows, width], RowOrder::Stored);
        (expert, TensorInfo { name, shape, encoding, file: 0, offset, bytes, row_order, added: 0.0 })
    }))
}

fn bad_experts(gguf: &Gguf, tensor: &GgufTensor, count: u32) -> Error {
    let message = format!(
        "{}: tensor `{}` has shape {:?}, expected the matrices of {count} experts",
        gguf.file, tensor.name, tensor.shape
    );
    Error::new("model-tensor-shape", message).hint("fetch the file again")
}

/// Returns the encodings of the linear layers.
fn encodings(spec: &ModelSpec, tensors: &[TensorInfo]) -> LayerEncodings {
    let stored: HashMap<&str, Encoding> = tensors.iter().map(|t| (t.name.as_str(), t.encoding)).collect();
    LayerEncodings::of(spec.layers.len(), |layer, target| {
        // Experts of a layer share a tensor.
        let name = target.row(spec, layer).map(|row| row.name(row.experts.map(|_| 0)));
        let name = name.map_or(String::new(), |name| format!("model.layers.{layer}.{name}"));
        // A missing tensor is refused when the shape is checked.
        stored.get(name.as_str()).copied().unwrap_or(Encoding::F32)
    })
}

fn hf_tensors(gguf: &Gguf, shape: &FileShape) -> Result<Vec<TensorInfo>> {
    let of_model = stored(&shape.spec());
    let known: HashMap<&str, &Stored> = of_model.iter().map(|one| (one.gguf.as_str(), one)).collect();
    let mut tensors = Vec::with_capacity(gguf.tensors.len());
    for tensor in &gguf.tensors {
        if tensor.name == ROPE_FREQS {
            continue; // read as the spec's rope scaling
        }
        let known = known.get(tensor.name.as_str());
        if let Some(known) = known.filter(|known| known.has_experts) {
            let each = of_experts(gguf, shape, tensor)?.zip(&known.parts);
            tensors.extend(each.map(|((_, info), name)| TensorInfo { name: name.clone(), ..info }));
            continue;
        }
        let name = known.map_or(&tensor.name, |known| &known.parts[0]).clone();
        // Multi-token prediction comes after the layers, and is not read.
        let layer =
            tensor.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse::<u32>().ok());
        let is_next = has_further(shape.architecture()) && layer.is_some_and(|layer| layer >= shape.layers);
        let name = match tensor.name.strip_prefix("blk.") {
            Some(rest) if is_next && shape.delta.is_none() => format!("model.layers.{rest}"),
            Some(_) if is_next => format!("mtp.{}", tensor.name),
            _ => name,
        };
        let row_order = row_order(shape, &name);
        let is_pairs = matches!(row_order, RowOrder::RopePairs { .. });
        if is_pairs && tensor.shape[0] % u64::from(shape.head_dim) != 0 {
            let message = format!(
                "{}: tensor `{}` has {} rows, no multiple of head_dim = {}",
                gguf.file, tensor.name, tensor.shape[0], shape.head_dim
            );
            return Err(Error::new("model-tensor-shape", message).hint("fetch the file again"));
        }
        tensors.push(TensorInfo {
            added: added(shape, &name),
            shape: match tensor.shape[..] {
                [channels, taps] if known.is_some_and(|known| known.kind == ParamKind::DeltaConv) => {
                    vec![channels, 1, taps]
                }
                _ => tensor.shape.clone(),
            },
            name,
            encoding: tensor.encoding,
            file: 0,
            offset: tensor.offset,
            bytes: tensor.bytes,
            row_order,
        });
    }
    Ok(tensors)
}
