//! Differences between layers: windows, layers without rotation, and the scale of scores.

use super::keys::{Config, FULL, LOGIT_CAP, POSITIONS_MAX, SCORE_CAP, brief, short, unsupported};
use super::rope::{LOCAL_BASE, Rope};
use plimsoll_arch::{Architecture, Attention, FileShape, LayerSet, ScoreScale, Window, Windows};
use plimsoll_base::Result;
use serde_json::{Map, Value, json};

pub(super) const SLIDING: &str = "sliding_attention";

impl Config<'_> {
    /// Reads the attention of a decoder of `layers` layers.
    pub(super) fn attention(
        &self,
        architecture: &Architecture,
        (layers, kv_heads, head_dim): (u32, u32, u32),
        max_positions: u32,
        rope: &Rope,
    ) -> Result<Attention> {
        let window = self.window(architecture, layers, max_positions)?;
        let window = window.map(|(keys, layers)| Window { keys, layers, rope_theta: rope.local_theta });
        let global = self.global_heads(architecture, (layers, kv_heads, head_dim), window.as_ref())?;
        Ok(Attention {
            window,
            unrotated: self.unrotated(architecture, layers)?,
            scale: self.scale(architecture)?,
            rotated: rope.rotated,
            score_cap: self.cap(architecture, SCORE_CAP)?,
            gated: architecture.has_delta,
            global,
            sinks: architecture.has_sinks,
        })
    }

    /// Reads the window and its layers.
    fn window(
        &self,
        architecture: &Architecture,
        layers: u32,
        max_positions: u32,
    ) -> Result<Option<(u32, LayerSet)>> {
        if self.flag("use_sliding_window")? && !matches!(architecture.windows, Windows::Asked) {
            return Err(unsupported(self.file, "use_sliding_window", &json!(true), "false"));
        }
        if architecture.has_delta {
            return Ok(None); // Its `layer_types` are read with the layers that have linear attention.
        }
        let is_on = match architecture.windows {
            Windows::No => false,
            Windows::Asked => self.flag("use_sliding_window")? && self.present("sliding_window").is_some(),
            // A window as long as the context is none; a missing key means the family's, null means none.
            Windows::All => {
                let keys = self.present("sliding_window");
                keys.is_some_and(|keys| keys.as_u64().is_none_or(|keys| keys < max_positions.into()))
            }
            Windows::AllButEvery { .. } => true,
        };
        let listed = self.layer_types(layers)?;
        if !is_on {
            return if listed.is_none_or(|set| set.is_empty()) {
                Ok(None)
            } else {
                let types = self.present("layer_types").unwrap_or(&Value::Null);
                Err(unsupported(self.file, "layer_types", types, "full_attention in every layer"))
            };
        }
        let of_rule = match architecture.windows {
            Windows::No | Windows::All => LayerSet::of(layers, |_| true),
            Windows::Asked => {
                let first = self.count("max_window_layers")?;
                LayerSet::of(layers, |layer| layer >= first)
            }
            Windows::AllButEvery { .. } => {
                LayerSet::all_but_every(self.size("sliding_window_pattern", POSITIONS_MAX)?, layers)
            }
        };
        let set = listed.unwrap_or(of_rule);
        if set.is_empty() {
            return Ok(None);
        }
        Ok(Some((self.size("sliding_window", POSITIONS_MAX)?, set)))
    }

    /// Returns the layers with windows in `layer_types`.
    fn layer_types(&self, layers: u32) -> Result<Option<LayerSet>> {
        let Some(value) = self.present("layer_types") else { return Ok(None) };
        let types = value.as_array().map_or(&[][..], Vec::as_slice);
        if types.len() != layers as usize {
            return Err(self
                .invalid(format!("layer_types names {} layers, num_hidden_layers = {layers}", types.len())));
        }
        let is_known = |kind: &&Value| [FULL, SLIDING].iter().any(|known| **kind == **known);
        match types.iter().find(|kind| !is_known(kind)) {
            Some(kind) => {
                Err(unsupported(self.file, "layer_types", kind, "full_attention or sliding_attention"))
            }
            None => Ok(Some(LayerSet::of(layers, |layer| types[layer as usize] == SLIDING))),
        }
    }

    /// Reads the layers without rotation.
    fn unrotated(&self, architecture: &Architecture, layers: u32) -> Result<LayerSet> {
        if architecture.unrotated_every.is_none() {
            return Ok(LayerSet::default());
        }
        let Some(value) = self.present("no_rope_layers") else {
            return Ok(LayerSet::every(self.size("no_rope_layer_interval", POSITIONS_MAX)?, layers));
        };
        // A 1 is a rotated layer, in spite of the key's name.
        let list = value.as_array().map_or(&[][..], Vec::as_slice);
        if list.len() != layers as usize || list.iter().any(|v| !matches!(v.as_u64(), Some(0 | 1))) {
            return Err(self.invalid(format!(
                "no_rope_layers = {}, expected a 0 or a 1 for each of {layers} layers",
                brief(value)
            )));
        }
        Ok(LayerSet::of(layers, |layer| list[layer as usize] == 0))
    }

    fn scale(&self, architecture: &Architecture) -> Result<Option<f32>> {
        Ok(match architecture.score_scale {
            ScoreScale::HeadDim => None,
            ScoreScale::One => Some(1.0),
            ScoreScale::Factor(key) => Some(self.required_positive(key)? as f32),
            ScoreScale::Root { key, .. } => Some(1.0 / (self.required_positive(key)? as f32).sqrt()),
        })
    }

    /// Reads an integer that may be 0.
    fn count(&self, key: &str) -> Result<u32> {
        let value = self.present(key).unwrap_or(&Value::Null);
        match value.as_u64() {
            Some(n) if n <= POSITIONS_MAX => Ok(n as u32), // the limit is below 2^32
            _ => Err(self.invalid(format!("{key} = {}, expected a number of layers", brief(value)))),
        }
    }
}

/// Writes the keys that `attention` and `multipliers` read.
pub(super) fn write(shape: &FileShape, map: &mut Map<String, Value>) {
    let mut put = |key: &str, value: Value| map.insert(key.into(), value);
    let architecture = shape.architecture();
    if let Some(window) = shape.attention.window {
        put("sliding_window", window.keys.into());
        if architecture.windows == Windows::Asked {
            put("use_sliding_window", true.into());
            put("max_window_layers", window.layers.iter().next().unwrap_or(shape.layers).into());
        }
        if !matches!(architecture.windows, Windows::All) {
            let kind = |layer| if window.layers.contains(layer) { SLIDING } else { FULL };
            put("layer_types", (0..shape.layers).map(kind).collect::<Vec<_>>().into());
        }
        if let Some(theta) = window.rope_theta.filter(|_| architecture.has_local_base) {
            put(LOCAL_BASE, theta.into());
        }
    }
    if shape.attention.window.is_none() && matches!(architecture.windows, Windows::AllButEvery { .. }) {
        // Without the list the family's rule holds, which has windows.
        put("layer_types", vec![FULL; shape.layers as usize].into());
    }
    if architecture.has_soft_caps {
        let caps = [(SCORE_CAP, shape.attention.score_cap), (LOGIT_CAP, shape.multipliers.logit_cap)];
        caps.into_iter()
            .for_each(|(key, cap)| drop(put(key, cap.map_or(Value::Null, |cap| short(cap).into()))));
    }
    if architecture.caps_logits {
        put(LOGIT_CAP, shape.multipliers.logit_cap.map_or(Value::Null, |cap| short(cap).into()));
    }
    if architecture.unrotated_every.is_some() {
        let is_rotated = |layer| u32::from(!shape.attention.unrotated.contains(layer));
        put("no_rope_layers", (0..shape.layers).map(is_rotated).collect::<Vec<_>>().into());
    }
    if architecture.has_multipliers {
        put("embedding_multiplier", short(shape.multipliers.embedding).into());
        put("residual_multiplier", short(shape.multipliers.residual).into());
        put("logits_scaling", short(shape.multipliers.logits).into());
    }
    match (architecture.score_scale, shape.attention.scale) {
        (ScoreScale::Factor(key), Some(scale)) => drop(put(key, short(scale).into())),
        // The reference requires an integer.
        (ScoreScale::Root { key, .. }, Some(scale)) => {
            drop(put(key, ((1.0 / scale.powi(2)).round() as u64).into()));
        }
        (ScoreScale::HeadDim | ScoreScale::One, _) | (_, None) => {}
    }
}
