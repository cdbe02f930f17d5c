//! Gemma 4: two kinds of heads, each with a rotary rule of its own; keys of earlier layers, and inputs of layers.

use super::keys::{Config, FULL, HEADS_MAX, VOCAB_MAX, WIDTH_MAX, brief, out_of_range, unsupported};
use super::layers::SLIDING;
use super::rope::{ROTARY_FACTOR, Rope};
use plimsoll_arch::{Architecture, Family, FileShape, GlobalHeads, RopeScaling, SharedKeys, Window};
use plimsoll_base::Result;
use serde_json::{Map, Value, json};

const HEAD_DIM: &str = "global_head_dim";
const KV_HEADS: &str = "num_global_key_value_heads";
const KEYS_ARE_VALUES: &str = "attention_k_eq_v";
/// The same numbers by layer, as transformers writes them.
const BY_LAYER: &str = "per_layer_config";
/// Source: transformers `configuration_gemma4.py`, which takes these from the keywords.
const HEAD_DIM_DEFAULT: u32 = 512;
/// Source: as above; the key of the width of per-layer inputs.
const INPUTS: (&str, u32) = ("hidden_size_per_layer_input", 256);
const VOCAB: &str = "vocab_size";
const TABLE_VOCAB: &str = "vocab_size_per_layer_input";
const TABLE_VOCAB_DEFAULT: u32 = 262_144;
const WIDE: &str = "use_double_wide_mlp";
const SHARED: &str = "num_kv_shared_layers";
/// The rule of full attention.
const PROPORTIONAL: &str = "proportional";

impl Config<'_> {
    /// Reads the heads of the layers without windows.
    pub(super) fn global_heads(
        &self,
        architecture: &Architecture,
        (layers, kv_heads, head_dim): (u32, u32, u32),
        window: Option<&Window>,
    ) -> Result<Option<GlobalHeads>> {
        if !architecture.has_global_heads {
            return Ok(None);
        }
        let is_full = |layer: u32| window.is_none_or(|window| !window.layers.contains(layer));
        if !is_full(layers - 1) {
            // The reference makes it one.
            let types = self.present("layer_types").unwrap_or(&Value::Null);
            return Err(unsupported(self.file, "layer_types", types, "full_attention in the last layer"));
        }
        let keys_are_values = self.flag(KEYS_ARE_VALUES)?;
        if let Some(by_layer) = self.present(BY_LAYER) {
            let (kv_heads, head_dim) = self.by_layer(by_layer, layers, is_full, (kv_heads, head_dim))?;
            return Ok(Some(GlobalHeads { kv_heads, head_dim, keys_are_values }));
        }
        let head_dim = self.size_or(HEAD_DIM, WIDTH_MAX, HEAD_DIM_DEFAULT)?;
        // Without the flag the reference does not read the number.
        let kv_heads = if keys_are_values { self.size_or(KV_HEADS, HEADS_MAX, kv_heads)? } else { kv_heads };
        Ok(Some(GlobalHeads { kv_heads, head_dim, keys_are_values }))
    }

    /// Reads the numbers by layer: the same in all layers without windows, and none in the others.
    fn by_layer(
        &self,
        value: &Value,
        layers: u32,
        is_full: impl Fn(u32) -> bool,
        (kv_heads, head_dim): (u32, u32),
    ) -> Result<(u32, u32)> {
        let refused = || unsupported(self.file, BY_LAYER, value, "one entry for each layer without a window");
        let map = value.as_object().ok_or_else(refused)?;
        let mut found = None;
        for layer in 0..layers {
            let own = match map.get(&layer.to_string()) {
                None => (kv_heads, head_dim),
                Some(own) => {
                    let own = own.as_object().ok_or_else(refused)?;
                    if own.keys().any(|key| !["head_dim", "num_key_value_heads"].contains(&key.as_str())) {
                        return Err(refused());
                    }
                    let own = Config::bare(own, self.file);
                    (
                        own.size_or("num_key_value_heads", HEADS_MAX, kv_heads)?,
                        own.size_or("head_dim", WIDTH_MAX, head_dim)?,
                    )
                }
            };
            let is_built =
                if is_full(layer) { *found.get_or_insert(own) == own } else { own == (kv_heads, head_dim) };
            if !is_built {
                return Err(refused());
            }
        }
        let is_layer = |key: &String| key.parse::<u32>().is_ok_and(|layer| layer < layers);
        if !map.keys().all(is_layer) {
            return Err(refused());
        }
        Ok(found.unwrap_or((kv_heads, head_dim)))
    }

    /// Reads the two rules of rotation, or those that the reference has for a file without any.
    pub(super) fn global_rope(&self) -> Result<Rope> {
        // The reference reads no keys of rotation but those of `rope_parameters`.
        if let Some(value) = self.present("rope_scaling") {
            return Err(unsupported(self.file, "rope_scaling", value, "none"));
        }
        let (full, local) =
            (json!({ "rope_type": PROPORTIONAL, ROTARY_FACTOR: 0.25, "rope_theta": 1e6 }), 1e4);
        let rule = |theta: f64, scaling: RopeScaling, local: f64| Rope {
            theta,
            scaling,
            local_theta: Some(local),
            rotated: None,
            stretch: 0.0,
        };
        let Some(value) = self.present("rope_parameters") else {
            let full = full.as_object().expect("the literal above is an object");
            let full = Config::bare(full, self.file);
            return Ok(rule(full.required_positive("rope_theta")?, full.proportional()?, local));
        };
        let rules = self.nested("rope_parameters", value)?;
        let (full, local) = (self.rule_of(&rules, FULL)?, self.rule_of(&rules, SLIDING)?);
        if let Some(kind) = local.rope_type().filter(|kind| **kind != "default") {
            return Err(unsupported(self.file, "sliding_attention: rope_type", kind, "default"));
        }
        local.whole_heads()?;
        let scaling = match full.rope_type() {
            Some(kind) if *kind == PROPORTIONAL => full.proportional()?,
            Some(kind) if *kind == "default" => {
                full.whole_heads()?;
                RopeScaling::None
            }
            kind => {
                let kind = kind.unwrap_or(&Value::Null);
                return Err(unsupported(
                    self.file,
                    "full_attention: rope_type",
                    kind,
                    "proportional or default",
                ));
            }
        };
        Ok(rule(full.required_positive("rope_theta")?, scaling, local.required_positive("rope_theta")?))
    }

    /// Returns the rule of a kind of layers.
    fn rule_of<'b>(&'b self, rules: &'b Config<'_>, kind: &str) -> Result<Config<'b>> {
        let value = rules.present(kind).ok_or_else(|| rules.invalid(format!("`{kind}` is absent")))?;
        self.nested(kind, value)
    }

    fn rope_type(&self) -> Option<&Value> {
        self.present("rope_type").or_else(|| self.present("type"))
    }

    /// Refuses a part of a head.
    fn whole_heads(&self) -> Result<()> {
        match self.present(ROTARY_FACTOR).filter(|value| value.as_f64() != Some(1.0)) {
            Some(value) => Err(unsupported(self.file, ROTARY_FACTOR, value, "1")),
            None => Ok(()),
        }
    }

    fn proportional(&self) -> Result<RopeScaling> {
        let share = self.positive(ROTARY_FACTOR, 1.0)?;
        if share > 1.0 {
            return Err(
                self.invalid(format!("{ROTARY_FACTOR} = {share}, expected a number above 0, at most 1"))
            );
        }
        Ok(RopeScaling::Proportional { share, factor: self.positive("factor", 1.0)? })
    }

    /// Reads how many of the last layers have keys and values of earlier ones.
    pub(super) fn shared_keys(&self, architecture: &Architecture, layers: u32) -> Result<Option<SharedKeys>> {
        if !architecture.has_global_heads {
            return Ok(None);
        }
        let value = self.present(SHARED).cloned().unwrap_or(json!(0));
        match value.as_u64() {
            Some(0) => Ok(None),
            Some(n) if n < u64::from(layers) => {
                let wide = self.flag(WIDE)?;
                Ok(Some(SharedKeys { layers: n as u32, wide })) // Below the number of layers.
            }
            _ => Err(self.invalid(format!(
                "{SHARED} = {}, expected a number below num_hidden_layers = {layers}",
                brief(&value)
            ))),
        }
    }

    /// Reads the width of the layers' own inputs, if they have them.
    pub(super) fn inputs(&self, architecture: &Architecture) -> Result<Option<u32>> {
        // Gemma 4 without encoders has none.
        if architecture.family != Family::Gemma4 {
            let value = self.present(INPUTS.0).filter(|value| **value != json!(0));
            let of_gemma = value.filter(|_| architecture.has_global_heads);
            return of_gemma.map_or(Ok(None), |value| Err(unsupported(self.file, INPUTS.0, value, "0")));
        }
        if self.present(INPUTS.0).is_some_and(|value| *value == json!(0)) {
            return Ok(None);
        }
        let width = self.size_or(INPUTS.0, WIDTH_MAX, INPUTS.1)?;
        let (vocab, of_table) =
            (self.size(VOCAB, VOCAB_MAX)?, self.size_or(TABLE_VOCAB, VOCAB_MAX, TABLE_VOCAB_DEFAULT)?);
        if vocab != of_table {
            return Err(unsupported(
                self.file,
                TABLE_VOCAB,
                &json!(of_table),
                &format!("vocab_size = {vocab}"),
            ));
        }
        Ok(Some(width))
    }
}

/// Requires heads that the decoder computes.
pub(super) fn check(shape: &FileShape, file: &str) -> Result<()> {
    check_shared(shape, file)?;
    let Some(GlobalHeads { kv_heads, head_dim, .. }) = shape.attention.global else { return Ok(()) };
    for (key, value, limit) in [
        (KV_HEADS, u64::from(kv_heads), u64::from(shape.heads)),
        (HEAD_DIM, u64::from(head_dim), WIDTH_MAX / u64::from(shape.heads)),
    ] {
        if value == 0 || value > limit {
            return Err(out_of_range(file, key, value, limit));
        }
    }
    if !shape.heads.is_multiple_of(kv_heads) {
        let built = format!("a divisor of num_attention_heads = {}", shape.heads);
        return Err(unsupported(file, KV_HEADS, &json!(kv_heads), &built));
    }
    if !head_dim.is_multiple_of(2) {
        return Err(unsupported(file, HEAD_DIM, &json!(head_dim), "an even number of elements a head"));
    }
    if let RopeScaling::Proportional { share, .. } = shape.rope_scaling
        && (share * f64::from(head_dim) / 2.0) < 1.0
    {
        let value = json!(share);
        let built = format!("a pair of {head_dim} elements at least, not {}", brief(&value));
        return Err(unsupported(file, ROTARY_FACTOR, &value, &built));
    }
    Ok(())
}

/// Requires that each layer with keys of an earlier one has such a layer.
fn check_shared(shape: &FileShape, file: &str) -> Result<()> {
    let Some(shared) = shape.shared else { return Ok(()) };
    let first = shape.layers - shared.layers;
    let is_windowed = |layer: u32| shape.attention.window.is_some_and(|of| of.layers.contains(layer));
    let has_donor = |layer: u32| (0..first).any(|donor| is_windowed(donor) == is_windowed(layer));
    if !(first..shape.layers).all(has_donor) {
        let built = "a layer of each kind before those that share keys";
        return Err(unsupported(file, SHARED, &json!(shared.layers), built));
    }
    if shape.experts.is_some() {
        return Err(unsupported(file, SHARED, &json!(shared.layers), "0 where there are experts"));
    }
    Ok(())
}

/// Writes the keys that are read here, over those of rotation that other families have.
pub(super) fn write(shape: &FileShape, map: &mut Map<String, Value>) {
    if !shape.architecture().has_global_heads {
        return;
    }
    map.shift_remove("rope_theta");
    let mut full = match map.shift_remove("rope_scaling") {
        Some(Value::Object(rule)) => rule,
        _ => Map::from_iter([("rope_type".to_string(), "default".into())]),
    };
    full.insert("rope_theta".into(), shape.rope_theta.into());
    let local = shape.attention.window.and_then(|window| window.rope_theta).unwrap_or(1e4);
    let local = json!({ "rope_type": "default", "rope_theta": local });
    map.insert("rope_parameters".into(), json!({ FULL: full, SLIDING: local }));
    if let Some(global) = shape.attention.global {
        map.insert(KEYS_ARE_VALUES.into(), global.keys_are_values.into());
        map.insert(HEAD_DIM.into(), global.head_dim.into());
        let kv_heads = if global.keys_are_values { global.kv_heads.into() } else { Value::Null };
        map.insert(KV_HEADS.into(), kv_heads);
    }
    if shape.family == Family::Gemma4 {
        map.insert(INPUTS.0.into(), shape.inputs.unwrap_or(0).into());
    }
    if shape.inputs.is_some() {
        map.insert(TABLE_VOCAB.into(), shape.vocab.into());
    }
    map.insert(SHARED.into(), shape.shared.map_or(0, |shared| shared.layers).into());
    map.insert(WIDE.into(), shape.shared.is_some_and(|shared| shared.wide).into());
}
