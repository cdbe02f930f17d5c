//! Converts Hugging Face's `config.json` to a `ModelSpec` and back. Refuses what is not computed here by key and value:
//! ignoring experts or soft-caps of a family without them, or another activation, would give wrong numbers.

mod biased;
pub(crate) mod defaults;
mod delta;
mod experts;
mod gemma4;
mod joined;
mod keys;
mod latent;
mod layers;
mod rope;
mod routed;

use crate::wrapped;
pub(crate) use keys::{Config, FFN_MAX, HEADS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX};
use keys::{LOGIT_CAP, POSITIONS_MAX, SCORE_CAP, out_of_range};
pub(crate) use keys::{either, short, unsupported, unsupported_family};
use plimsoll_arch::{ARCHITECTURES, Architecture, Compute, FileShape, Gate, ModelSpec, Multipliers, QkNorms};
use plimsoll_base::{DType, Error, Result};
use serde_json::{Map, Value, json};

/// Returns the name of the gates' activation.
fn activation(architecture: &Architecture) -> &'static str {
    match architecture.gate {
        Gate::Silu | Gate::ClampedSilu => "silu",
        Gate::GeluTanh => "gelu_pytorch_tanh",
    }
}

/// Returns the key of the activation's name.
fn activation_key(architecture: &Architecture) -> &'static str {
    match architecture.gate {
        Gate::Silu | Gate::ClampedSilu => "hidden_act",
        Gate::GeluTanh => "hidden_activation",
    }
}

/// Special token ids from `config.json` and `generation_config.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenIds {
    /// Ids that end a response.
    pub eos: Vec<u32>,
    pub bos: Option<u32>,
    pub pad: Option<u32>,
}

/// The head on a decoder's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// Logits over the vocabulary: a causal language model.
    #[default]
    Vocabulary,
    /// `score.weight`, one linear map of the last token: a model for sequence classification.
    Score,
}

/// Reads the shape of a causal language model; messages call the configuration `file`.
///
/// Errors: `model-config-invalid` (absent, of the wrong type, out of range), `model-unsupported`.
pub fn spec_from_config(config: &Value, file: &str) -> Result<ModelSpec> {
    match model_from_config(config, file)? {
        (spec, Head::Vocabulary) => Ok(spec),
        (spec, Head::Score) => {
            let built = spec.family.architecture().causal_lm;
            Err(unsupported(file, "architectures", &config["architectures"], built))
        }
    }
}

/// Returns the shape and the head, of either kind, for a `config.json`.
pub(crate) fn model_from_config(config: &Value, file: &str) -> Result<(ModelSpec, Head)> {
    let text = wrapped::text_config(config, file)?;
    let config = text.as_ref().unwrap_or(config);
    let map = config.as_object().ok_or_else(|| {
        Error::new("model-config-invalid", format!("{file}: expected a JSON object, got {}", kind_of(config)))
            .hint("fetch the model again")
    })?;
    let config = Config::bare(map, file);
    let (architecture, head) = config.architecture()?;
    let config = config.of(architecture);
    config.refuse_what_is_not_built(architecture)?;
    let hidden = config.size("hidden_size", WIDTH_MAX)?;
    let heads = config.size("num_attention_heads", HEADS_MAX)?;
    let kv_heads = if architecture.has_latent {
        heads // All have one key, whatever the file says.
    } else {
        config.size_or("num_key_value_heads", HEADS_MAX, heads)?
    };
    let head_dim = match config.present("head_dim") {
        _ if architecture.has_latent => config.size(latent::ROTATED, WIDTH_MAX)?,
        Some(_) => config.size("head_dim", WIDTH_MAX)?,
        None => config.divide("hidden_size", hidden, "num_attention_heads", heads)?,
    };
    let max_positions = config.size("max_position_embeddings", POSITIONS_MAX)?;
    let layers = config.size("num_hidden_layers", LAYERS_MAX)?;
    let rope = config.rope(architecture, head_dim, max_positions)?;
    let biases = config.biases(architecture)?;
    let shape = FileShape {
        family: architecture.family,
        vocab: config.size("vocab_size", VOCAB_MAX)?,
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        ffn: config.dense_width(architecture)?,
        rms_eps: config.required_positive("rms_norm_eps")? as f32,
        rope_theta: rope.theta,
        rope_scaling: rope.scaling,
        tied: config.flag("tie_word_embeddings")?,
        qkv_bias: architecture.qkv_bias || biases.attention,
        output_bias: biases.attention && !architecture.has_plain_output,
        mlp_bias: biases.mlp,
        qk_norms: config.qk_norms(architecture)?,
        max_positions,
        attention: config.attention(architecture, (layers, kv_heads, head_dim), max_positions, &rope)?,
        experts: config.experts(architecture, layers)?,
        multipliers: config.multipliers(architecture)?,
        is_wrapped: text.is_some(),
        delta: config.delta(architecture, layers)?,
        latent: config.latent(architecture, heads, &rope)?,
        shared: config.shared_keys(architecture, layers)?,
        inputs: config.inputs(architecture)?,
    };
    check_shape(&shape, file)?;
    Ok((shape.spec(), head))
}

/// Requires the assumptions of the decoder's arithmetic, for a shape from any file.
pub(crate) fn check_shape(shape: &FileShape, file: &str) -> Result<()> {
    let limits = [
        ("vocab_size", u64::from(shape.vocab), VOCAB_MAX),
        ("hidden_size", u64::from(shape.hidden), WIDTH_MAX),
        ("num_hidden_layers", u64::from(shape.layers), LAYERS_MAX),
        ("num_attention_heads", u64::from(shape.heads), HEADS_MAX),
        ("num_key_value_heads", u64::from(shape.kv_heads), HEADS_MAX),
        ("head_dim", u64::from(shape.head_dim), WIDTH_MAX),
        ("intermediate_size", u64::from(shape.ffn), FFN_MAX),
        ("max_position_embeddings", u64::from(shape.max_positions), POSITIONS_MAX),
        ("num_attention_heads * head_dim", u64::from(shape.heads) * u64::from(shape.head_dim), WIDTH_MAX),
        ("num_key_value_heads * head_dim", u64::from(shape.kv_heads) * u64::from(shape.head_dim), WIDTH_MAX),
    ];
    for (key, value, limit) in limits {
        if value == 0 || value > limit {
            return Err(out_of_range(file, key, value, limit));
        }
    }
    if shape.attention.window.is_some_and(|window| window.keys == 0) {
        return Err(out_of_range(file, "sliding_window", 0, POSITIONS_MAX));
    }
    if !shape.head_dim.is_multiple_of(2) {
        return Err(unsupported(
            file,
            "head_dim",
            &json!(shape.head_dim),
            "an even number of elements a head",
        ));
    }
    if !shape.heads.is_multiple_of(shape.kv_heads) {
        let message = format!(
            "{file}: num_attention_heads = {} is not a multiple of num_key_value_heads = {}",
            shape.heads, shape.kv_heads
        );
        return Err(Error::new("model-config-invalid", message));
    }
    delta::check(shape, file)?;
    gemma4::check(shape, file)?;
    latent::check(shape, file)?;
    experts::check(shape, file)
}

/// Returns the ids of special tokens; `generation_config.json` takes precedence. What either says ends a response does.
pub fn token_ids(config: &Value, generation_config: Option<&Value>) -> TokenIds {
    let ends = |of: &Value| of.get("eos_token_id").map(id_list).unwrap_or_default();
    let mut eos: Vec<u32> = Vec::new();
    for id in generation_config.map(ends).into_iter().flatten().chain(ends(config)) {
        if !eos.contains(&id) {
            eos.push(id);
        }
    }
    let ids = |key: &str| {
        let from = |v: &Value| v.get(key).map(id_list).filter(|ids| !ids.is_empty());
        generation_config.and_then(from).or_else(|| from(config)).unwrap_or_default()
    };
    TokenIds { eos, bos: ids("bos_token_id").first().copied(), pad: ids("pad_token_id").first().copied() }
}

/// Returns a `config.json` for transformers.
pub fn config_json(spec: &ModelSpec, dtype: DType, ids: &TokenIds) -> Value {
    let (architecture, shape) = (spec.architecture(), &spec.file_shape());
    let mut config = json!({
        "architectures": [architecture.causal_lm],
        "model_type": architecture.family.name(),
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        activation_key(architecture): activation(architecture),
        "rms_norm_eps": short(shape.rms_eps),
        "rope_theta": shape.rope_theta,
        "rope_scaling": rope::json(&shape.rope_scaling),
        "max_position_embeddings": shape.max_positions,
        "attention_dropout": 0.0,
        "tie_word_embeddings": shape.tied,
        "initializer_range": 0.02,
        "torch_dtype": if dtype == DType::Bf16 { "bfloat16" } else { "float32" },
        "use_cache": true,
    });
    let map = config.as_object_mut().expect("the literal above is an object");
    for (key, value) in architecture.config_keys {
        map.insert((*key).into(), value.map_or(Value::Null, Value::Bool));
    }
    if architecture.reads_attention_bias {
        let has_bias = if architecture.has_plain_output { shape.qkv_bias } else { shape.output_bias };
        map.insert("attention_bias".into(), has_bias.into());
    }
    if let Some(key) = architecture.qk_norms_key {
        map.insert(key.into(), shape.qk_norms.is_some().into());
    }
    if architecture.reads_mlp_bias {
        map.insert("mlp_bias".into(), shape.mlp_bias.into());
    }
    layers::write(shape, map);
    experts::write(shape, map);
    delta::write(shape, map);
    rope::write(shape, map);
    gemma4::write(shape, map);
    latent::write(shape, map);
    insert_ids(map, ids);
    // Without the key transformers pads with a token of the family's, which a text may have.
    map.entry("pad_token_id").or_insert(Value::Null);
    config
}

/// The key of what other frameworks do not know of, and of what products are computed with.
const OWN: &str = "plimsoll";
const COMPUTE: &str = "compute";

/// Adds what products were computed with to a `config.json`, if others would compute them with something else.
pub fn add_compute(config: &mut Value, compute: Compute) {
    if compute != Compute::default() {
        config[OWN] = json!({ COMPUTE: compute.name() });
    }
}

/// Returns what a model's products were computed with when it was trained.
pub(crate) fn compute_of(config: &Value) -> Compute {
    let name = config[OWN][COMPUTE].as_str();
    Compute::ALL.into_iter().find(|compute| Some(compute.name()) == name).unwrap_or_default()
}

/// Returns the `config.json` of a reward model: sequence classification with one label. transformers reads the score at
/// the last token that is not padding, so padding is never a token that ends a text.
pub fn score_config_json(spec: &ModelSpec, dtype: DType, ids: &TokenIds) -> Value {
    let pad = ids.pad.filter(|pad| !ids.eos.contains(pad));
    let mut config = config_json(spec, dtype, &TokenIds { pad, ..ids.clone() });
    let map = config.as_object_mut().expect("a configuration is an object");
    map.insert("architectures".into(), json!([spec.family.architecture().classifier]));
    map.insert("num_labels".into(), 1.into());
    map.insert("id2label".into(), json!({ "0": "LABEL_0" }));
    map.insert("label2id".into(), json!({ "LABEL_0": 0 }));
    config
}

/// Returns a `generation_config.json` for transformers.
pub fn generation_config_json(ids: &TokenIds) -> Value {
    let mut map = Map::new();
    insert_ids(&mut map, ids);
    Value::Object(map)
}

/// Optional biases of a file.
struct Biases {
    /// Bias of q, k, v and o.
    attention: bool,
    /// Bias of gate, up and down.
    mlp: bool,
}

impl Config<'_> {
    fn architecture(&self) -> Result<(&'static Architecture, Head)> {
        let built = either(ARCHITECTURES.iter().map(|row| row.family.name()));
        let key = if self.present("model_type").is_some() { "model_type" } else { "architectures" };
        let absent = || self.invalid(format!("`model_type` is absent; expected {built}"));
        let value = self.present(key).ok_or_else(absent)?;
        let name = value.as_str().or_else(|| value.get(0).and_then(Value::as_str)).unwrap_or_default();
        let is_named =
            |row: &&Architecture| [row.family.name(), row.causal_lm, row.classifier].contains(&name);
        let Some(row) = ARCHITECTURES.iter().find(is_named) else {
            return Err(unsupported_family(self.file, key, value, &built));
        };
        let Some(list) = self.present("architectures") else { return Ok((row, Head::Vocabulary)) };
        // A classifier has the same model_type but another head.
        match list.get(0).and_then(Value::as_str) {
            Some(name) if name == row.causal_lm => Ok((row, Head::Vocabulary)),
            Some(name) if name == row.classifier => Ok((row, Head::Score)),
            _ => Err(unsupported(self.file, "architectures", list, row.causal_lm)),
        }
    }

    /// Reads c of c tanh(x / c): a missing key means the family's, null means none.
    fn cap(&self, architecture: &Architecture, key: &str) -> Result<Option<f32>> {
        let is_read = architecture.has_soft_caps || (architecture.caps_logits && key == LOGIT_CAP);
        let is_read = is_read && self.present(key).is_some();
        is_read.then(|| self.required_positive(key).map(|cap| cap as f32)).transpose()
    }

    /// Reads Granite's constant factors and the logit cap.
    fn multipliers(&self, architecture: &Architecture) -> Result<Multipliers> {
        let logit_cap = self.cap(architecture, LOGIT_CAP)?;
        if !architecture.has_multipliers {
            return Ok(Multipliers { logit_cap, ..Multipliers::default() });
        }
        Ok(Multipliers {
            embedding: self.required_positive("embedding_multiplier")? as f32,
            residual: self.required_positive("residual_multiplier")? as f32,
            logits: self.required_positive("logits_scaling")? as f32,
            logit_cap,
        })
    }

    /// Returns how q and k are normalised: as in the family, unless its key says that they are not.
    fn qk_norms(&self, architecture: &Architecture) -> Result<Option<QkNorms>> {
        let is_on = architecture.qk_norms_key.map_or(Ok(true), |key| self.flag(key))?;
        Ok(architecture.qk_norms.filter(|_| is_on))
    }

    /// Returns which projections have a bias by the file's keys.
    fn biases(&self, architecture: &Architecture) -> Result<Biases> {
        let read = |key: &str, is_read: bool| match (is_read, self.present(key)) {
            (true, _) => self.flag(key),
            // The reference has no such bias; a file that sets it is of another model.
            (false, Some(value)) if *value != Value::Bool(false) => {
                Err(unsupported(self.file, key, value, "false"))
            }
            (false, _) => Ok(false),
        };
        // Qwen2 always has its q, k and v bias and ignores this key.
        let attention = !architecture.qkv_bias && read("attention_bias", architecture.reads_attention_bias)?;
        Ok(Biases { attention, mlp: read("mlp_bias", architecture.reads_mlp_bias)? })
    }

    fn refuse_what_is_not_built(&self, architecture: &Architecture) -> Result<()> {
        let is_count = |key: &str| {
            if architecture.has_routed_keys {
                key == routed::ROUTED
            } else if architecture.joins_dense {
                key == joined::COUNT
            } else {
                experts::COUNT.contains(&key)
            }
        };
        let of_experts = |key: &str| is_count(key) || key == "moe_intermediate_size";
        let has_experts = architecture.has_experts && self.asks_for_experts(architecture)?;
        let is_built = |key: &str| has_experts && of_experts(key);
        for key in ["num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size"] {
            if let Some(value) = self.present(key).filter(|v| v.as_u64() != Some(0) && !is_built(key)) {
                return Err(unsupported(self.file, key, value, "a dense model"));
            }
        }
        let is_built = |value: &Value| {
            *value == Value::Bool(false) || (architecture.has_biased_experts && says_mxfp4(value))
        };
        if let Some(value) = self.present("quantization_config").filter(|value| !is_built(value)) {
            return Err(unsupported(self.file, "quantization_config", value, "none"));
        }
        self.refuse_other_clamps(architecture)?;
        for key in ["hidden_act", "hidden_activation"] {
            let is_built = |v: &Value| {
                v == activation(architecture) || (v == "swish" && activation(architecture) == "silu")
            };
            if let Some(value) = self.present(key).filter(|v| !is_built(v)) {
                return Err(unsupported(self.file, key, value, activation(architecture)));
            }
        }
        for key in [SCORE_CAP, LOGIT_CAP, "use_bidirectional_attention"] {
            let is_bidirectional = key == "use_bidirectional_attention";
            if (architecture.has_soft_caps && !is_bidirectional)
                || (architecture.caps_logits && key == LOGIT_CAP)
            {
                continue;
            }
            // Rows of images alone see those after them.
            let is_built = |v: &Value| {
                *v == Value::Bool(false)
                    || (is_bidirectional && architecture.has_global_heads && *v == "vision")
            };
            if let Some(value) = self.present(key).filter(|v| !is_built(v)) {
                return Err(unsupported(self.file, key, value, "none"));
            }
        }
        Ok(())
    }
}

/// Returns whether a configuration says that experts are in MXFP4.
pub(crate) fn is_in_mxfp4(config: &Value) -> bool {
    config.get("quantization_config").is_some_and(says_mxfp4)
}

fn says_mxfp4(value: &Value) -> bool {
    value.get("quant_method").and_then(Value::as_str) == Some("mxfp4")
}

fn insert_ids(map: &mut Map<String, Value>, ids: &TokenIds) {
    if let Some(bos) = ids.bos {
        map.insert("bos_token_id".into(), bos.into());
    }
    match ids.eos.as_slice() {
        [] => {}
        [one] => {
            map.insert("eos_token_id".into(), (*one).into());
        }
        many => {
            map.insert("eos_token_id".into(), many.into());
        }
    }
    if let Some(pad) = ids.pad {
        map.insert("pad_token_id".into(), pad.into());
    }
}

fn id_list(value: &Value) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Value::Array(list) => list.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
