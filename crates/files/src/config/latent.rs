//! Latent attention: the sizes of latents and of heads, and the factor on scores.

use super::keys::{Config, HEADS_MAX, WIDTH_MAX, out_of_range, unsupported};
use super::rope::{Rope, STRETCH};
use plimsoll_arch::{Architecture, FileShape, LATENT_STEP, LatentSpec, RopeScaling};
use plimsoll_base::{Result, math};
use serde_json::{Map, Value, json};

/// The key of a head's rotated elements.
pub(super) const ROTATED: &str = "qk_rope_head_dim";
const KEYS: &str = "qk_nope_head_dim";
const VALUES: &str = "v_head_dim";
const LATENT: &str = "kv_lora_rank";
const QUERY_LATENT: &str = "q_lora_rank";

/// Epsilon of the norms of latents: that of transformers' classes and of the models' own code, whatever
/// `rms_norm_eps` is. vLLM and SGLang take `rms_norm_eps`, which differs in Moonlight and GLM-4.7-Flash.
const EPS: f32 = 1e-6;

/// Widest key: the rotated part and the latent.
const KEY_WIDTH_MAX: u32 = 576;

impl Config<'_> {
    /// Reads latent attention of `heads` heads.
    pub(super) fn latent(
        &self,
        architecture: &Architecture,
        heads: u32,
        rope: &Rope,
    ) -> Result<Option<LatentSpec>> {
        if !architecture.has_latent {
            return Ok(None);
        }
        if let Some(value) = self.present("rope_interleave").filter(|value| **value != Value::Bool(true)) {
            return Err(unsupported(self.file, "rope_interleave", value, "true"));
        }
        let (key_dim, rotated) = (self.size(KEYS, WIDTH_MAX)?, self.size(ROTATED, WIDTH_MAX)?);
        let query_latent = match self.present(QUERY_LATENT) {
            None | Some(Value::Null) => None,
            Some(_) => Some(self.size(QUERY_LATENT, WIDTH_MAX)?),
        };
        let stretch = match rope.scaling {
            RopeScaling::Yarn { factor, .. } if rope.stretch > 0.0 && factor > 1.0 => {
                0.1 * rope.stretch * math::ln(factor) + 1.0
            }
            RopeScaling::None | RopeScaling::Yarn { .. } => 1.0,
            _ => {
                let value = self.present("rope_parameters").or(self.present("rope_scaling"));
                let built = "default or yarn where attention is over latents";
                return Err(unsupported(self.file, "rope_type", value.unwrap_or(&Value::Null), built));
            }
        };
        Ok(Some(LatentSpec {
            heads,
            key_dim,
            rotated,
            value_dim: self.size(VALUES, WIDTH_MAX)?,
            latent: self.size(LATENT, WIDTH_MAX)?,
            query_latent,
            eps: EPS,
            scale: (stretch * stretch / f64::from(key_dim + rotated).sqrt()) as f32,
            stretch: if matches!(rope.scaling, RopeScaling::Yarn { .. }) { rope.stretch as f32 } else { 0.0 },
            index: None,
        }))
    }
}

/// Requires the assumptions of latent attention's arithmetic, for a shape from any file.
pub(super) fn check(shape: &FileShape, file: &str) -> Result<()> {
    let Some(latent) = shape.latent else { return Ok(()) };
    for (key, width) in [
        (
            "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)",
            latent.key_dim.saturating_add(latent.rotated),
        ),
        ("num_attention_heads * v_head_dim", latent.value_dim),
        (
            "num_attention_heads * (kv_lora_rank + qk_rope_head_dim)",
            latent.latent.saturating_add(latent.rotated),
        ),
    ] {
        let all = u64::from(latent.heads) * u64::from(width);
        if all == 0 || all > WIDTH_MAX * 2 || u64::from(latent.heads) > HEADS_MAX {
            return Err(out_of_range(file, key, all, WIDTH_MAX * 2));
        }
    }
    for (key, value) in [(KEYS, latent.key_dim), (VALUES, latent.value_dim)] {
        if !value.is_multiple_of(LATENT_STEP) {
            return Err(unsupported(file, key, &json!(value), "a multiple of 16"));
        }
    }
    let width = latent.rotated.saturating_add(latent.latent);
    if !width.is_multiple_of(LATENT_STEP) || width > KEY_WIDTH_MAX {
        let key = format!("{LATENT} + {ROTATED}");
        return Err(unsupported(file, &key, &json!(width), "a multiple of 16, at most 576"));
    }
    if shape.output_bias || shape.qkv_bias {
        return Err(unsupported(file, "attention_bias", &json!(true), "false"));
    }
    Ok(())
}

/// Writes the keys that `latent` reads.
pub(super) fn write(shape: &FileShape, map: &mut Map<String, Value>) {
    let Some(latent) = shape.latent else { return };
    for (key, value) in [
        (LATENT, latent.latent.into()),
        (QUERY_LATENT, latent.query_latent.map_or(Value::Null, Value::from)),
        (KEYS, latent.key_dim.into()),
        (ROTATED, latent.rotated.into()),
        (VALUES, latent.value_dim.into()),
        ("qk_head_dim", (latent.key_dim + latent.rotated).into()),
        ("rope_interleave", true.into()),
        ("attention_bias", false.into()),
    ] {
        map.insert(key.into(), value);
    }
    if let Some(Value::Object(rule)) = map.get_mut("rope_scaling").filter(|_| latent.stretch > 0.0) {
        rule.insert(STRETCH.into(), super::short(latent.stretch).into());
    }
}
