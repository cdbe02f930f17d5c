//! Gemma 4: two kinds of heads, each with a rotary rule of its own. Refuses what its smaller models have.

use super::keys::{Config, FULL, HEADS_MAX, WIDTH_MAX, brief, out_of_range, unsupported};
use super::layers::SLIDING;
use super::rope::{ROTARY_FACTOR, Rope};
use plimsoll_arch::{Architecture, Family, FileShape, GlobalHeads, RopeScaling, Window};
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
const INPUTS: (&str, u64) = ("hidden_size_per_layer_input", 256);
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

    /// Refuses per-layer inputs and layers that share keys.
    pub(super) fn refuse_what_gemma4_lacks(&self, architecture: &Architecture) -> Result<()> {
        if !architecture.has_global_heads {
            return Ok(());
        }
        // Gemma 4 without encoders has none.
        let has_inputs = architecture.family == Family::Gemma4;
        let (inputs, default) = (INPUTS.0, json!(if has_inputs { INPUTS.1 } else { 0 }));
        let value = self.present(inputs).unwrap_or(&default);
        if *value != json!(0) {
            return Err(unsupported(self.file, inputs, value, "0"));
        }
        if let Some(value) = self.present(SHARED).filter(|value| **value != json!(0)) {
            return Err(unsupported(self.file, SHARED, value, "0"));
        }
        Ok(())
    }
}

/// Requires heads that the decoder computes.
pub(super) fn check(shape: &FileShape, file: &str) -> Result<()> {
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
        map.insert(INPUTS.0.into(), 0.into());
    }
    map.insert(SHARED.into(), 0.into());
}
