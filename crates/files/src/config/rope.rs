//! Rotary rules: base, stretching, and the rule of layers with windows.

use super::keys::{Config, POSITIONS_MAX, unsupported};
use plimsoll_base::{Architecture, Result, RopeScaling, Windows, math};
use serde_json::{Value, json};

/// What a file says of rotation.
pub(super) struct Rope {
    pub(super) theta: f64,
    pub(super) scaling: RopeScaling,
    /// Base of the layers with windows, if they have a rule of their own.
    pub(super) local_theta: Option<f64>,
}

impl Config<'_> {
    /// Reads it; transformers 5 writes base and stretching into `rope_parameters`, there by the layers' types where they differ.
    pub(super) fn rope(&self, architecture: &Architecture, max_positions: u32) -> Result<Rope> {
        let (key, nested) = match self.present("rope_parameters") {
            Some(value) => ("rope_parameters", Some(value)),
            None => ("rope_scaling", self.present("rope_scaling")),
        };
        let theta = self.positive("rope_theta", architecture.rope_theta)?;
        let own_rope = matches!(architecture.windows, Windows::AllButEvery { own_rope: true, .. });
        let mut rope = Rope { theta, scaling: RopeScaling::None, local_theta: None };
        if let Some(nested) = nested {
            let nested = self.nested(key, nested)?;
            // One rule for each type of layer; one rule for all has no objects in it.
            let full = nested.present("full_attention").filter(|_| own_rope);
            if let Some(local) = nested.present("sliding_attention").filter(|_| full.is_some()) {
                let local = self.nested("sliding_attention", local)?;
                let (theta, scaling) = local.rule(theta, max_positions)?;
                if scaling != RopeScaling::None {
                    let kind = local.present("rope_type").unwrap_or(&Value::Null);
                    return Err(unsupported(self.file, "sliding_attention: rope_type", kind, "default"));
                }
                rope.local_theta = Some(theta);
            }
            let rule = match full {
                Some(full) => self.nested("full_attention", full)?,
                None => nested,
            };
            (rope.theta, rope.scaling) = rule.rule(theta, max_positions)?;
        }
        if own_rope && rope.local_theta.is_none() {
            rope.local_theta = Some(self.positive("rope_local_base_freq", rope.theta)?);
        }
        Ok(rope)
    }

    fn nested<'a>(&'a self, key: &str, value: &'a Value) -> Result<Config<'a>> {
        let map = value.as_object().ok_or_else(|| unsupported(self.file, key, value, "an object"))?;
        Ok(Config { map, file: self.file })
    }

    /// Base and stretching of one rule; `theta` is the base if it names none.
    fn rule(&self, theta: f64, max_positions: u32) -> Result<(f64, RopeScaling)> {
        let theta = self.positive("rope_theta", theta)?;
        if let Some(value) = self.present("partial_rotary_factor").filter(|v| v.as_f64() != Some(1.0)) {
            return Err(unsupported(self.file, "partial_rotary_factor", value, "1"));
        }
        let kind = self.present("rope_type").or_else(|| self.present("type"));
        let scaling = match kind.map(|k| (k, k.as_str())) {
            None if self.map.values().any(Value::is_object) => {
                let value = Value::Object(self.map.clone());
                return Err(unsupported(self.file, "rope_parameters", &value, "one rule for all layers"));
            }
            None | Some((_, Some("default"))) => RopeScaling::None,
            Some((_, Some("linear"))) => RopeScaling::Linear { factor: self.required_positive("factor")? },
            Some((_, Some("llama3"))) => self.llama3()?,
            Some((_, Some("yarn"))) => self.yarn(max_positions)?,
            Some((value, _)) => {
                return Err(unsupported(self.file, "rope_type", value, "default, linear, llama3 or yarn"));
            }
        };
        Ok((theta, scaling))
    }

    fn llama3(&self) -> Result<RopeScaling> {
        let [factor, low_freq_factor, high_freq_factor] =
            ["factor", "low_freq_factor", "high_freq_factor"].map(|key| self.required_positive(key));
        let (low_freq_factor, high_freq_factor) = (low_freq_factor?, high_freq_factor?);
        if high_freq_factor <= low_freq_factor {
            return Err(self.invalid(format!(
                "high_freq_factor = {high_freq_factor} is not above low_freq_factor = {low_freq_factor}"
            )));
        }
        let original_max_position_embeddings =
            self.size("original_max_position_embeddings", POSITIONS_MAX)?;
        let factor = factor?;
        Ok(RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        })
    }

    /// Source: transformers `modeling_rope_utils.py`, `_compute_yarn_parameters`.
    fn yarn(&self, max_positions: u32) -> Result<RopeScaling> {
        let factor = self.required_positive("factor")?;
        let (beta_fast, beta_slow) = (self.positive("beta_fast", 32.0)?, self.positive("beta_slow", 1.0)?);
        if beta_fast <= beta_slow {
            return Err(self.invalid(format!("beta_fast = {beta_fast} is not above beta_slow = {beta_slow}")));
        }
        let scale = |mscale: f64| if factor > 1.0 { 0.1 * mscale * math::ln(factor) + 1.0 } else { 1.0 };
        let named = [self.present("mscale"), self.present("mscale_all_dim")];
        let attention_factor = match self.present("attention_factor") {
            Some(_) => self.required_positive("attention_factor")?,
            None if named.iter().all(Option::is_some) => {
                scale(self.required_positive("mscale")?) / scale(self.required_positive("mscale_all_dim")?)
            }
            None => scale(1.0),
        };
        Ok(RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: self.size_or(
                "original_max_position_embeddings",
                POSITIONS_MAX,
                max_positions,
            )?,
            beta_fast,
            beta_slow,
            attention_factor,
            truncate: self.flag_or("truncate", true)?,
        })
    }
}

/// `rope_scaling` of a written file.
pub(super) fn json(scaling: &RopeScaling) -> Value {
    match scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_position_embeddings,
        }),
        RopeScaling::Yarn {
            factor,
            original_max_position_embeddings,
            beta_fast,
            beta_slow,
            attention_factor,
            truncate,
        } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original_max_position_embeddings,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            "attention_factor": attention_factor,
            "truncate": truncate,
        }),
    }
}
