//! Writes a model as one GGUF file, streamed: version 3, little-endian, the keys and tensor names of llama.cpp's
//! converter. Matrices are stored in the checkpoint's dtype, vectors as f32; rows of q and k in the stored family's
//! order. Refuses a model that would be read back as a different one.
//!
//! Source: convert_hf_to_gguf.py and gguf-py of llama.cpp.

use crate::config::TokenIds;
use crate::gguf::model::GgufTokenizer;
use crate::gguf::names::{
    ALIGNMENT, MAGIC, ROPE_FREQS, Stored, VERSION, added, attention, interval, key, kind, row_order, stored,
    stored_as,
};
use crate::gguf::{experts, rope};
use crate::pieces::FileRecord;
use crate::stream::{Stream, each_stored};
use crate::tensors::RowOrder;
use plimsoll_arch::{CONV_TAPS, LayerSet, LayersWith, ModelSpec, ParamKind, RopeScaling, Windows};
use plimsoll_base::{Bytes, DType, Encoding, Error, Result};
use std::path::Path;

/// `general.file_type` of files whose matrices are f32 and bf16.
const ALL_F32: u32 = 0;
const MOSTLY_BF16: u32 = 32;

/// The contents of a file besides the values of its tensors.
#[derive(Clone, Copy, Debug)]
pub struct GgufDecl<'a> {
    pub name: &'a str,
    pub spec: &'a ModelSpec,
    /// Dtype of matrices: f32 or bf16.
    pub dtype: DType,
    /// Its tokenizer, with one token per row of the embedding.
    pub tokenizer: &'a GgufTokenizer,
    pub ids: &'a TokenIds,
}

/// A tensor as the file lists it.
#[derive(Clone, Debug)]
struct Listed {
    /// Hugging Face names of its parts: one per expert, none for the divisor table.
    parts: Vec<String>,
    gguf: String,
    shape: Vec<u64>,
    dtype: DType,
    order: RowOrder,
    /// Constant added to each element.
    added: f32,
    bytes: u64,
}

/// A GGUF file being written, its tensors in the order of `gguf_order`.
#[derive(Debug)]
pub struct GgufWriter {
    stream: Stream,
    tensors: Vec<Listed>,
    /// Index of the due tensor, and its written bytes.
    due: usize,
    written_bytes: u64,
    /// Bytes of the due tensor, held if its rows are reordered across the whole of it; at most one tensor.
    held: Vec<u8>,
}

impl GgufDecl<'_> {
    /// Returns the length of the file.
    ///
    /// Errors: those of `GgufWriter::create`.
    pub fn file_bytes(&self) -> Result<Bytes> {
        let (header, tensors) = self.parts()?;
        let data = tensors.iter().map(|tensor| tensor.bytes.next_multiple_of(ALIGNMENT)).sum::<u64>();
        Ok(Bytes(header.len() as u64 + data))
    }

    fn parts(&self) -> Result<(Vec<u8>, Vec<Listed>)> {
        // A model that cannot be stored has no tensor names either.
        let mut meta = Metadata::default();
        self.describe(&mut meta)?;
        let tensors = self.tensors()?;
        let mut out = [&MAGIC[..], &VERSION.to_le_bytes(), &(tensors.len() as u64).to_le_bytes()].concat();
        out.extend(meta.keys.to_le_bytes());
        out.append(&mut meta.bytes);
        let mut offset = 0u64;
        for tensor in &tensors {
            put_text(&mut out, &tensor.gguf);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            // The fastest axis first.
            tensor.shape.iter().rev().for_each(|length| out.extend(length.to_le_bytes()));
            let number = encoding(tensor.dtype).gguf_number().expect("a plain encoding has a number");
            out.extend(number.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += tensor.bytes.next_multiple_of(ALIGNMENT);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
        Ok((out, tensors))
    }

    fn tensors(&self) -> Result<Vec<Listed>> {
        let model = &self.spec.file_shape();
        assert!(matches!(self.dtype, DType::F32 | DType::Bf16), "weights are written as f32 or bf16");
        let mut tensors: Vec<Listed> = Vec::new();
        if let RopeScaling::Llama3 { .. } = model.rope_scaling {
            tensors.push(Listed {
                parts: Vec::new(),
                gguf: ROPE_FREQS.into(),
                shape: vec![u64::from(model.head_dim / 2)],
                dtype: DType::F32,
                order: RowOrder::Stored,
                added: 0.0,
                bytes: u64::from(model.head_dim / 2) * 4,
            });
        }
        for Stored { gguf, parts, mut shape, kind, has_experts } in stored(self.spec) {
            // As in llama.cpp: its kernels add biases, multiply by norms and choose experts in f32.
            let is_f32 = shape.len() == 1
                || matches!(kind, ParamKind::Router | ParamKind::SharedGate | ParamKind::DeltaConv);
            let dtype = if is_f32 { DType::F32 } else { self.dtype };
            if has_experts {
                shape.insert(0, parts.len() as u64);
            } else if kind == ParamKind::DeltaConv {
                // Files omit its middle axis of 1.
                shape.remove(1);
            }
            let bytes = Bytes::checked(&shape, dtype.bytes())?.0;
            let (added, order) = (added(model, &parts[0]), row_order(model, &parts[0]));
            tensors.push(Listed { parts, gguf, shape, dtype, order, added, bytes });
        }
        Ok(tensors)
    }

    /// Refuses what a file cannot express. Errors: `model-unsupported`.
    fn refuse_what_has_no_form(&self, arch: &str) -> Result<()> {
        let (shape, row) = (&self.spec.file_shape(), self.spec.architecture());
        if shape.attention != attention(shape, shape.attention) {
            let message = "windows, layers without rotation or a scale of scores that llama.cpp does not know of this family have no GGUF form";
            return Err(refused(message.into()));
        }
        // A reader replaces an absent key by the family's default.
        let caps = [shape.attention.score_cap, shape.multipliers.logit_cap];
        if row.has_soft_caps && caps.contains(&None) {
            return Err(refused(format!("a {arch} without soft-caps has no GGUF form")));
        }
        if matches!(row.windows, Windows::AllButEvery { .. }) && shape.attention.window.is_none() {
            return Err(refused(format!("a {arch} without windows has no GGUF form")));
        }
        let of_all = LayerSet::of(shape.layers, |_| true);
        let by_softmax = shape.experts.filter(|experts| experts.each.sigmoid.is_none());
        if by_softmax.is_some_and(|experts| experts.layers != of_all) {
            return Err(refused(format!("a {arch} with layers without experts has no GGUF form")));
        }
        if by_softmax.is_some_and(|experts| !experts.each.normalizes) {
            let message = "has no GGUF form: llama.cpp divides the weights of a token's experts by their sum";
            return Err(refused(format!("a {arch} with norm_topk_prob = false {message}")));
        }
        if let Some(LayersWith { each: delta, .. }) = shape.delta {
            if interval(shape).is_none() {
                let message =
                    format!("a {arch} whose layers do not attend to keys at even distances has no GGUF form");
                return Err(refused(message));
            }
            if delta.key_dim != delta.value_dim {
                let message = format!(
                    "a {arch} with heads of {} and {} has no GGUF form",
                    delta.key_dim, delta.value_dim
                );
                return Err(refused(message));
            }
        }
        if shape.output_bias || shape.mlp_bias {
            return Err(refused("attention_bias and mlp_bias have no GGUF form here".into()));
        }
        Ok(())
    }

    fn describe(&self, meta: &mut Metadata) -> Result<()> {
        let shape = &self.spec.file_shape();
        let no_form = || refused(format!("{} has no GGUF form here", shape.family.architecture().causal_lm));
        let arch = stored_as(shape.family).and_then(|row| row.gguf).ok_or_else(no_form)?;
        self.refuse_what_has_no_form(arch)?;
        meta.text(key::ARCHITECTURE, arch);
        meta.text("general.type", "model");
        meta.text("general.name", self.name);
        meta.u32("general.file_type", if self.dtype == DType::F32 { ALL_F32 } else { MOSTLY_BF16 });
        meta.u32("general.quantization_version", 2);
        let of = |key: &str| format!("{arch}.{key}");
        for (key, number) in [
            (key::LAYERS, shape.layers),
            (key::CONTEXT, shape.max_positions),
            (key::HIDDEN, shape.hidden),
            (key::FFN, shape.ffn),
            (key::HEADS, shape.heads),
            (key::KV_HEADS, shape.kv_heads),
            (key::KEY_LENGTH, shape.head_dim),
            (key::VALUE_LENGTH, shape.head_dim),
            (key::ROPE_DIM, shape.rotary_width()),
            ("vocab_size", shape.vocab),
        ] {
            meta.u32(&of(key), number);
        }
        self.describe_mixers_and_experts(&of, meta);
        meta.f32(&of(key::ROPE_BASE), shape.rope_theta as f32);
        meta.f32(&of(key::RMS_EPS), shape.rms_eps);
        if let Some(window) = shape.attention.window {
            meta.u32(&of(key::WINDOW), window.keys);
            window.rope_theta.iter().for_each(|&base| meta.f32(&of(key::WINDOW_ROPE_BASE), base as f32));
        }
        let (row, factors) = (shape.architecture(), shape.multipliers);
        let scale = shape.attention.scale.filter(|_| row.has_multipliers);
        let granite = |factor| row.has_multipliers.then_some(factor);
        for (key, factor) in [
            (key::SCORE_CAP, shape.attention.score_cap),
            (key::LOGIT_CAP, factors.logit_cap),
            (key::SCORE_SCALE, scale),
            (key::EMBEDDING_SCALE, granite(factors.embedding)),
            (key::RESIDUAL_SCALE, granite(factors.residual)),
            (key::LOGIT_SCALE, granite(factors.logits)),
        ] {
            factor.into_iter().for_each(|factor| meta.f32(&of(key), factor));
        }
        match shape.rope_scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => {
                meta.text(&of(key::ROPE_SCALING), "linear");
                meta.f32(&of(key::ROPE_FACTOR), factor as f32);
            }
            RopeScaling::Llama3 { .. } => drop(self.divisors()?),
            RopeScaling::Yarn { .. } => return Err(refused("YaRN has no GGUF form here".into())),
            RopeScaling::Dynamic { .. } | RopeScaling::LongRope { .. } | RopeScaling::Proportional { .. } => {
                return Err(refused("dynamic, longrope and proportional have no GGUF form here".into()));
            }
        }
        self.describe_tokenizer(meta)
    }

    fn describe_mixers_and_experts(&self, of: &impl Fn(&str) -> String, meta: &mut Metadata) {
        let shape = &self.spec.file_shape();
        if let Some((LayersWith { each: delta, .. }, interval)) = shape.delta.zip(interval(shape)) {
            meta.u32(&of(key::CONV), CONV_TAPS);
            meta.u32(&of(key::STATE), delta.key_dim);
            meta.u32(&of(key::KEY_HEADS), delta.key_heads);
            meta.u32(&of(key::VALUE_HEADS), delta.value_heads);
            meta.u32(&of(key::VALUES), delta.value_width());
            meta.u32(&of(key::INTERVAL), interval);
            // All axes of a text have one position: any sections mean the same, but readers need some.
            let (half, third) = (shape.rotary_width() / 2, shape.rotary_width().div_ceil(6));
            let sections = [third, third, half - 2 * third, 0].map(u32::to_le_bytes).concat();
            meta.array(&of(key::ROPE_SECTIONS), kind::I32, 4, sections);
        }
        experts::numbers(shape).into_iter().for_each(|(key, number)| meta.u32(&of(key), number));
        if let Some((sigmoid, each)) = shape.experts.and_then(|of| Some((of.each.sigmoid?, of.each))) {
            meta.f32(&of(key::EXPERT_SCALE), sigmoid.factor);
            meta.bool(&of(key::NORMALIZES), each.normalizes);
        }
    }

    /// Returns the table of divisors of Llama 3's rule: [d/2].
    ///
    /// Errors: `model-unsupported` if the rule does not follow from its table.
    fn divisors(&self) -> Result<Vec<f32>> {
        let RopeScaling::Llama3 { factor, .. } = self.spec.rope_scaling else { return Ok(Vec::new()) };
        let shape = &self.spec.file_shape();
        let table: Vec<f32> = rope::divisors(shape, factor).into_iter().map(|x| x as f32).collect();
        if rope::rule_of(shape, &table) == Some(self.spec.rope_scaling) {
            return Ok(table);
        }
        let message = format!(
            "{:?} has no GGUF form: a file holds the published rule of Llama 3",
            self.spec.rope_scaling
        );
        Err(refused(message))
    }

    fn describe_tokenizer(&self, meta: &mut Metadata) -> Result<()> {
        let tables = self.tokenizer;
        let tokens = tables.tokens.len();
        assert_eq!(tokens as u64, u64::from(self.spec.vocab), "one token for each row of the embedding");
        assert_eq!(tables.token_types.len(), tokens, "each token has a type");
        meta.text(key::TOKENIZER, &tables.model);
        meta.text(key::PRE, &tables.pre);
        meta.texts(key::TOKENS, &tables.tokens);
        let bytes = tables.token_types.iter().flat_map(|&number| (number as i32).to_le_bytes()).collect();
        meta.array(key::TOKEN_TYPES, kind::I32, tokens, bytes);
        if tables.scores.is_empty() {
            meta.texts(key::MERGES, &tables.merges)
        } else {
            let bytes = tables.scores.iter().flat_map(|score| score.to_le_bytes()).collect();
            meta.array(key::SCORES, kind::F32, tokens, bytes);
        }
        let eos =
            tables.eos.into_iter().chain(self.ids.eos.iter().copied().filter(|id| Some(*id) != tables.eos));
        let eos_keys = std::iter::once(key::EOS).chain(key::MORE_EOS);
        if eos.clone().count() > 1 + key::MORE_EOS.len() {
            let ids = eos.map(|id| id.to_string()).collect::<Vec<_>>().join(", ");
            return Err(refused(format!("tokens {ids} end a response; a GGUF file names three at most")));
        }
        for (key, id) in eos_keys.zip(eos) {
            meta.u32(key, id);
        }
        for (key, id) in [(key::BOS, tables.bos), (key::UNKNOWN, tables.unknown), (key::PAD, tables.pad)] {
            id.into_iter().for_each(|id| meta.u32(key, id));
        }
        for (key, flag) in [(key::ADD_BOS, tables.add_bos), (key::SPACE_PREFIX, tables.add_space_prefix)] {
            flag.into_iter().for_each(|flag| meta.bool(key, flag));
        }
        tables.chat_template.iter().for_each(|template| meta.text(key::CHAT_TEMPLATE, template));
        Ok(())
    }
}

impl GgufWriter {
    /// Creates the file and writes its header.
    ///
    /// Errors: `model-unsupported` for what a file cannot express, `size-overflow`, `disk-full`, `write-failed`.
    pub fn create(path: &Path, decl: &GgufDecl<'_>) -> Result<GgufWriter> {
        let (header, tensors) = decl.parts()?;
        let mut writer =
            GgufWriter { stream: Stream::create(path)?, tensors, due: 0, written_bytes: 0, held: Vec::new() };
        writer.stream.put(&header)?;
        if writer.tensors[0].parts.is_empty() {
            let bytes: Vec<u8> = decl.divisors()?.into_iter().flat_map(f32::to_le_bytes).collect();
            writer.put(&bytes)?;
        }
        Ok(writer)
    }

    /// Appends rows of the due tensor, in the model's order: whole heads of q and k. `scratch` may be small.
    ///
    /// Errors: `disk-full`, `write-failed`.
    pub fn write_rows(&mut self, name: &str, values: &[f32], scratch: &mut [u8]) -> Result<()> {
        let Some(Listed { parts, shape, dtype, order, added, bytes, .. }) = self.tensors.get(self.due) else {
            panic!("`{name}` after the last tensor");
        };
        let due = (self.written_bytes / (bytes / parts.len() as u64)) as usize;
        assert_eq!(parts[due], name, "tensors come in the order of their list");
        if *added != 0.0 {
            let (dtype, whole) = (*dtype, values.iter().map(|x| x + added).collect::<Vec<_>>());
            return each_stored(dtype, &whole, scratch, |bytes| self.put(bytes));
        }
        if let RowOrder::ValueHeads { .. } | RowOrder::ValueColumns(_) | RowOrder::Decays(_) = order {
            return self.write_heads(values.to_vec(), scratch);
        }
        let (order, dtype, width) = (*order, *dtype, shape[1..].iter().product::<u64>() as usize);
        let RowOrder::RopePairs { head_dim } = order else {
            return each_stored(dtype, values, scratch, |bytes| self.put(bytes));
        };
        let head_dim = head_dim as usize;
        assert_eq!(values.len() % (head_dim * width), 0, "`{name}` comes in whole heads");
        let mut from = vec![0; head_dim];
        (0..head_dim).for_each(|row| from[order.stored_row(row as u64) as usize] = row);
        for head in values.chunks_exact(head_dim * width) {
            for row in &from {
                each_stored(dtype, &head[row * width..][..width], scratch, |bytes| self.put(bytes))?;
            }
        }
        Ok(())
    }

    /// Appends rows of a tensor of linear attention.
    fn write_heads(&mut self, mut values: Vec<f32>, scratch: &mut [u8]) -> Result<()> {
        let Listed { shape, dtype, order, bytes, .. } = &self.tensors[self.due];
        let (order, dtype, rows, bytes) = (*order, *dtype, shape[0], *bytes as usize);
        let width = shape[1..].iter().product::<u64>() as usize;
        values.chunks_exact_mut(width).for_each(|row| order.write(row));
        if let RowOrder::ValueColumns(_) = order {
            return each_stored(dtype, &values, scratch, |bytes| self.put(bytes));
        }
        let mut held = std::mem::take(&mut self.held);
        each_stored(dtype, &values, scratch, |bytes| {
            held.extend_from_slice(bytes);
            Ok(())
        })?;
        if held.len() < bytes {
            self.held = held;
            return Ok(());
        }
        let mut from = vec![0; rows as usize];
        (0..rows).for_each(|row| from[order.stored_row(row) as usize] = row as usize);
        let row_bytes = bytes / rows as usize;
        from.iter().try_for_each(|row| self.put(&held[row * row_bytes..][..row_bytes]))
    }

    /// Requires that every tensor was written, flushes to the disk and returns the file's record.
    pub fn finish(self) -> Result<FileRecord> {
        assert_eq!(self.due, self.tensors.len(), "all tensors are written");
        self.stream.finish()
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.put(bytes)?;
        self.written_bytes += bytes.len() as u64;
        let tensor = &self.tensors[self.due];
        assert!(self.written_bytes <= tensor.bytes, "`{}` has {} bytes", tensor.gguf, tensor.bytes);
        if self.written_bytes == tensor.bytes {
            (self.due, self.written_bytes) = (self.due + 1, 0);
            let padding = self.stream.bytes().next_multiple_of(ALIGNMENT) - self.stream.bytes();
            self.stream.put(&[0; ALIGNMENT as usize][..padding as usize])?;
        }
        Ok(())
    }
}

/// Keys and values in the file's format.
#[derive(Default)]
struct Metadata {
    keys: u64,
    bytes: Vec<u8>,
}

impl Metadata {
    fn value(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.keys += 1;
        put_text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(value);
    }

    fn u32(&mut self, key: &str, number: u32) {
        self.value(key, kind::U32, &number.to_le_bytes());
    }

    fn f32(&mut self, key: &str, number: f32) {
        self.value(key, kind::F32, &number.to_le_bytes());
    }

    fn bool(&mut self, key: &str, flag: bool) {
        self.value(key, kind::BOOL, &[u8::from(flag)]);
    }

    fn text(&mut self, key: &str, text: &str) {
        let mut bytes = Vec::with_capacity(text.len() + 8);
        put_text(&mut bytes, text);
        self.value(key, kind::STRING, &bytes);
    }

    fn texts(&mut self, key: &str, list: &[String]) {
        let mut bytes = Vec::new();
        list.iter().for_each(|text| put_text(&mut bytes, text));
        self.array(key, kind::STRING, list.len(), bytes);
    }

    fn array(&mut self, key: &str, element: u32, count: usize, bytes: Vec<u8>) {
        let head = [&element.to_le_bytes()[..], &(count as u64).to_le_bytes()].concat();
        self.value(key, kind::ARRAY, &[head, bytes].concat());
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

const fn encoding(dtype: DType) -> Encoding {
    match dtype {
        DType::F32 => Encoding::F32,
        _ => Encoding::Bf16,
    }
}

fn refused(message: String) -> Error {
    Error::new("model-unsupported", message).hint("export the model as a folder: --format folder")
}
