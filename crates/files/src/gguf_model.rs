//! What a GGUF file says about its model: shape, names of tensors as Hugging Face has them, tokenizer tables.
//! Architectures `llama` (Mistral and SmolLM2 are stored as it), `qwen2` and `qwen3`.

use crate::config::{TokenIds, check_spec, either, short, unsupported};
use crate::dequant;
use crate::gguf::{Gguf, GgufTensor, GgufValue};
use crate::storage::Storage;
use crate::tensors::{Encoding, RowOrder, TensorInfo};
use plimsoll_base::{ARCHITECTURES, Error, ModelSpec, Result, RopeScaling};
use serde_json::json;

/// Numbers of a list that a message shows.
const LAYERS_SHOWN: usize = 8;

/// The tokenizer tables of a GGUF file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufTokenizer {
    /// `gpt2` (byte-level BPE), `llama` (SentencePiece), ...
    pub model: String,
    /// Which rule cuts text into words before BPE: `smollm`, `qwen2`, `llama-bpe`, ...
    pub pre: String,
    /// Text of each token, by id.
    pub tokens: Vec<String>,
    /// 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; by id.
    pub token_types: Vec<i64>,
    /// Score of each token, by id; SentencePiece only.
    pub scores: Vec<f32>,
    /// `left right`, in order of priority.
    pub merges: Vec<String>,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Token for what is not in the vocabulary.
    pub unknown: Option<u32>,
    /// Fills a batch.
    pub pad: Option<u32>,
    /// SentencePiece puts a space before the text unless this says no.
    pub add_space_prefix: Option<bool>,
    /// Jinja source.
    pub chat_template: Option<String>,
}

/// Everything that `OpenModel` needs of a GGUF file.
pub(crate) struct GgufModel {
    pub(crate) spec: ModelSpec,
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) tokenizer: GgufTokenizer,
    pub(crate) ids: TokenIds,
}

/// Reads spec, tensors and tokenizer from a parsed header.
pub(crate) fn read(mut gguf: Gguf, storage: &Storage) -> Result<GgufModel> {
    let meta = Meta { gguf: &gguf, arch: gguf.text("general.architecture")?.to_string() };
    let mut spec = meta.spec()?;
    if let Some(freqs) = gguf.tensors.iter().find(|t| t.name == "rope_freqs.weight") {
        spec.rope_scaling = meta.llama3_scaling(&spec, freqs, storage)?;
    }
    check_spec(&spec, &gguf.file)?;
    let tensors = hf_tensors(&gguf, &spec)?;
    let tokenizer = gguf.take_tokenizer(spec.vocab)?;
    // A chat model may end a turn with a token of its own.
    let mut eos: Vec<u32> = tokenizer.eos.into_iter().collect();
    if let Some(eot) = gguf.id("tokenizer.ggml.eot_token_id").filter(|id| !eos.contains(id)) {
        eos.push(eot);
    }
    let ids = TokenIds { eos, bos: tokenizer.bos, pad: tokenizer.pad };
    Ok(GgufModel { spec, tensors, tokenizer, ids })
}

struct Meta<'a> {
    gguf: &'a Gguf,
    arch: String,
}

impl Meta<'_> {
    fn spec(&self) -> Result<ModelSpec> {
        let file = &self.gguf.file;
        let Some(architecture) = ARCHITECTURES.iter().find(|row| row.gguf == Some(&self.arch)) else {
            let built = either(ARCHITECTURES.iter().filter_map(|row| row.gguf));
            return Err(unsupported(file, "general.architecture", &json!(self.arch), &built));
        };
        self.refuse_what_is_not_built()?;
        let embedding = self.gguf.tensor("token_embd.weight")?;
        if embedding.shape.len() != 2 {
            return Err(self.invalid(format!("token_embd.weight has shape {:?}", embedding.shape)));
        }
        let hidden = self.size("embedding_length")?;
        let heads = self.size("attention.head_count")?;
        let head_dim = match self.int("attention.key_length") {
            Some(_) => self.size("attention.key_length")?,
            None => hidden / heads,
        };
        for key in ["attention.value_length", "rope.dimension_count"] {
            if let Some(n) = self.int(key).filter(|n| *n != i64::from(head_dim)) {
                let built = format!("{head_dim}, the length of a key");
                return Err(unsupported(file, &self.key(key), &json!(n), &built));
            }
        }
        Ok(ModelSpec {
            family: architecture.family,
            vocab: u32::try_from(embedding.shape[0]).unwrap_or(u32::MAX), // check_spec refuses it
            hidden,
            layers: self.size("block_count")?,
            heads,
            kv_heads: match self.int("attention.head_count_kv") {
                Some(_) => self.size("attention.head_count_kv")?,
                None => heads,
            },
            head_dim,
            ffn: self.size("feed_forward_length")?,
            rms_eps: self.positive("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5) as f32,
            rope_theta: short(self.positive("rope.freq_base")?.unwrap_or(10_000.0) as f32),
            rope_scaling: self.rope_scaling()?,
            tied: self.gguf.tensor("output.weight").is_err(),
            qkv_bias: architecture.qkv_bias,
            qk_norm: architecture.qk_norm,
            max_positions: self.size("context_length")?,
        })
    }

    fn refuse_what_is_not_built(&self) -> Result<()> {
        let file = &self.gguf.file;
        if let Some(n) = self.int("expert_count").filter(|n| *n != 0) {
            return Err(unsupported(file, &self.key("expert_count"), &json!(n), "a dense model"));
        }
        let context = self.int("context_length").unwrap_or(0);
        if let Some(n) = self.int("attention.sliding_window").filter(|n| *n != 0 && *n < context) {
            return Err(unsupported(file, &self.key("attention.sliding_window"), &json!(n), "none"));
        }
        Ok(())
    }

    fn rope_scaling(&self) -> Result<RopeScaling> {
        let kind = match self.gguf.metadata.get(&self.key("rope.scaling.type")) {
            None => return Ok(RopeScaling::None),
            Some(GgufValue::Str(kind)) => kind.as_str(),
            Some(_) => "",
        };
        match kind {
            "none" => Ok(RopeScaling::None),
            "linear" => match self.positive("rope.scaling.factor")? {
                Some(factor) => Ok(RopeScaling::Linear { factor: short(factor as f32) }),
                None => Err(self.invalid("rope.scaling.factor is absent".into())),
            },
            other => Err(unsupported(
                &self.gguf.file,
                &self.key("rope.scaling.type"),
                &json!(other),
                "none, linear, or Llama 3's table of factors",
            )),
        }
    }

    /// Llama 3's rule from the table of divisors that a GGUF stores for it, if a published rule gives this very table.
    fn llama3_scaling(&self, spec: &ModelSpec, freqs: &GgufTensor, storage: &Storage) -> Result<RopeScaling> {
        let half = spec.head_dim as usize / 2;
        let refuse =
            || unsupported(&self.gguf.file, "rope_freqs.weight", &json!(freqs.shape), "a rule of Llama 3");
        if freqs.encoding != Encoding::F32 || freqs.shape != [half as u64] {
            return Err(refuse());
        }
        let mut bytes = vec![0; half * 4];
        storage.read_exact_at(&mut bytes, freqs.offset)?;
        let mut stored = vec![0.0; half];
        dequant::decode(Encoding::F32, &bytes, &mut stored);
        let factor = f64::from(stored.iter().copied().fold(1.0, f32::max));
        // Llama 3.1 and later were all first trained with 8192 positions and these two bounds; only the factor differs.
        let (low, high, original) = (1.0, 4.0, 8192u32);
        for (i, &divisor) in stored.iter().enumerate() {
            let expect = llama3_divisor(spec, i, factor, low, high, f64::from(original));
            if (f64::from(divisor) - expect).abs() > 1e-4 * expect {
                return Err(refuse());
            }
        }
        if factor == 1.0 {
            return Ok(RopeScaling::None);
        }
        Ok(RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: original,
        })
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    fn int(&self, key: &str) -> Option<i64> {
        match self.gguf.metadata.get(&self.key(key)) {
            Some(GgufValue::Int(n)) => Some(*n),
            _ => None,
        }
    }

    fn size(&self, key: &str) -> Result<u32> {
        let found = self.gguf.metadata.get(&self.key(key));
        match found {
            Some(GgufValue::Int(n)) if *n > 0 && *n <= i64::from(i32::MAX) => Ok(*n as u32),
            // A list has one number a layer: layers of several shapes.
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

    fn positive(&self, key: &str) -> Result<Option<f64>> {
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

/// By what Llama 3's rule divides rotary frequency `i`.
fn llama3_divisor(spec: &ModelSpec, i: usize, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let exponent = 2.0 * i as f64 / f64::from(spec.head_dim);
    let frequency = plimsoll_base::math::exp(-exponent * plimsoll_base::math::ln(spec.rope_theta));
    let wavelength = std::f64::consts::TAU / frequency;
    if wavelength < original / high {
        1.0
    } else if wavelength > original / low {
        factor
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        1.0 / ((1.0 - smooth) / factor + smooth)
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

    /// Takes the tokenizer's tables out of the metadata: they are too large to be there twice.
    fn take_tokenizer(&mut self, vocab: u32) -> Result<GgufTokenizer> {
        let [model, pre, chat_template] =
            ["tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.chat_template"].map(|key| {
                match self.metadata.remove(key) {
                    Some(GgufValue::Str(text)) => Some(text),
                    _ => None,
                }
            });
        let [tokens, merges] =
            ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"].map(|key| match self.metadata.remove(key) {
                Some(GgufValue::Strs(list)) => list,
                _ => Vec::new(),
            });
        let tokenizer = GgufTokenizer {
            model: model.unwrap_or_default(),
            pre: pre.unwrap_or_default(),
            tokens,
            token_types: match self.metadata.remove("tokenizer.ggml.token_type") {
                Some(GgufValue::Ints(list)) => list,
                _ => Vec::new(),
            },
            scores: match self.metadata.remove("tokenizer.ggml.scores") {
                Some(GgufValue::Floats(list)) => list,
                _ => Vec::new(),
            },
            merges,
            bos: self.id("tokenizer.ggml.bos_token_id"),
            eos: self.id("tokenizer.ggml.eos_token_id"),
            unknown: self.id("tokenizer.ggml.unknown_token_id"),
            pad: self.id("tokenizer.ggml.padding_token_id"),
            add_space_prefix: match self.metadata.get("tokenizer.ggml.add_space_prefix") {
                Some(GgufValue::Bool(flag)) => Some(*flag),
                _ => None,
            },
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

/// GGUF name inside a block -> Hugging Face name inside a layer.
const LAYER_NAMES: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

fn hf_tensors(gguf: &Gguf, spec: &ModelSpec) -> Result<Vec<TensorInfo>> {
    let mut tensors = Vec::with_capacity(gguf.tensors.len());
    for tensor in &gguf.tensors {
        if tensor.name == "rope_freqs.weight" {
            continue; // read as the spec's rope scaling
        }
        let name = hf_name(&tensor.name).unwrap_or_else(|| tensor.name.clone());
        let rotated = name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight");
        let permuted = spec.family.architecture().gguf_rope_pairs && rotated;
        if permuted && tensor.shape[0] % u64::from(spec.head_dim) != 0 {
            let message = format!(
                "{}: tensor `{}` has {} rows, no multiple of head_dim = {}",
                gguf.file, tensor.name, tensor.shape[0], spec.head_dim
            );
            return Err(Error::new("model-tensor-shape", message).hint("fetch the file again"));
        }
        tensors.push(TensorInfo {
            name,
            shape: tensor.shape.clone(),
            encoding: tensor.encoding,
            file: 0,
            offset: tensor.offset,
            bytes: tensor.bytes,
            row_order: match permuted {
                true => RowOrder::RopePairs { head_dim: spec.head_dim },
                false => RowOrder::Stored,
            },
        });
    }
    Ok(tensors)
}

fn hf_name(name: &str) -> Option<String> {
    match name {
        "token_embd.weight" => return Some("model.embed_tokens.weight".into()),
        "output_norm.weight" => return Some("model.norm.weight".into()),
        "output.weight" => return Some("lm_head.weight".into()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let (part, kind) = rest.rsplit_once('.')?;
    let (_, hf) = LAYER_NAMES.iter().find(|(gguf, _)| *gguf == part)?;
    Some(format!("model.layers.{layer}.{hf}.{kind}"))
}
