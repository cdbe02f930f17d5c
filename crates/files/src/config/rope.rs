//! RoPE rules: base, scaling, and the rule of layers with windows.

use super::keys::{Config, POSITIONS_MAX, brief, unsupported};
use plimsoll_arch::{Architecture, FileShape, RopeFactors, RopeScaling};
use plimsoll_base::{Result, math};
use serde_json::{Map, Value, json};

/// A file's RoPE settings.
pub(super) struct Rope {
    pub(super) theta: f64,
    pub(super) scaling: RopeScaling,
    /// Base of the layers with windows, if they have their own rule.
    pub(super) local_theta: Option<f64>,
    /// Elements of a head that are rotated, if not all.
    pub(super) rotated: Option<u32>,
    /// `mscale_all_dim` of YaRN; 0 if absent.
    pub(super) stretch: f64,
}

/// The context in which a rule is read.
#[derive(Clone, Copy)]
struct Shape {
    /// Original context of a rule that does not name it.
    max_positions: u32,
    /// Original context written next to the rule, which overrides the one in it.
    original: Option<u32>,
    /// For a family with `longrope`: rotated pairs of a head.
    longrope: Option<u32>,
    /// True if queries grow with their position.
    grows: bool,
}

/// The context length before scaling.
const ORIGINAL: &str = "original_max_position_embeddings";

/// The base of layers with windows in Gemma's files.
pub(super) const LOCAL_BASE: &str = "rope_local_base_freq";

/// The base that transformers 5 gives OLMo's layers with windows for a file with one base, whatever that is.
const OLMO3_BASE: f64 = 500_000.0;

/// How far YaRN stretches scores of latent attention.
pub(super) const STRETCH: &str = "mscale_all_dim";

/// How fast queries grow with their position.
const GROWTH: &str = "llama_4_scaling_beta";

/// The share of a head that is rotated.
pub(super) const ROTARY_FACTOR: &str = "partial_rotary_factor";

impl Config<'_> {
    /// Reads RoPE settings. transformers 5 nests them in `rope_parameters`, per layer type if they differ.
    pub(super) fn rope(
        &self,
        architecture: &Architecture,
        head_dim: u32,
        max_positions: u32,
    ) -> Result<Rope> {
        if architecture.has_global_heads {
            return self.global_rope();
        }
        let (key, nested) = match self.present("rope_parameters") {
            Some(value) => ("rope_parameters", Some(value)),
            None => ("rope_scaling", self.present("rope_scaling")),
        };
        let theta = self.required_positive("rope_theta")?;
        if nested.is_none() && architecture.has_sinks {
            // The reference then has a rule of its own, YaRN.
            return Err(self.invalid("`rope_parameters` and `rope_scaling` are absent".into()));
        }
        let own_rope = architecture.has_own_rope();
        let factor = self.rotary_factor(architecture)?;
        let rotated = self.rotated(factor, head_dim)?;
        let mut rope = Rope { theta, scaling: RopeScaling::None, local_theta: None, rotated, stretch: 0.0 };
        if let Some(nested) = nested {
            let nested = self.nested(key, nested)?;
            rope.rotated = self.rotated(nested.rotary_factor(architecture)?.or(factor), head_dim)?;
            let width = rope.rotated.unwrap_or(head_dim);
            // Rules per layer type ignore the keys next to them.
            let original = self.present(ORIGINAL).filter(|_| !own_rope);
            let original = original.map(|_| self.size(ORIGINAL, POSITIONS_MAX)).transpose()?;
            let longrope = architecture.has_longrope.then_some(width / 2);
            let shape = Shape { max_positions, original, longrope, grows: architecture.grows_queries };
            // One rule per layer type; a common rule contains no objects.
            let full = nested.present("full_attention").filter(|_| own_rope);
            if let Some(local) = nested.present("sliding_attention").filter(|_| full.is_some()) {
                let local = self.nested("sliding_attention", local)?;
                local.rotary_factor(architecture)?;
                let (theta, scaling) = local.rule(self.local_theta(theta)?, shape)?;
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
            rule.rotary_factor(architecture)?;
            (rope.theta, rope.scaling) = rule.rule(theta, shape)?;
            rope.stretch = rule.present(STRETCH).and_then(Value::as_f64).unwrap_or(0.0);
        }
        let has_base = |map: &Map<String, Value>| map.contains_key("rope_theta");
        if architecture.grows_queries
            && !nested.is_some_and(|nested| has_base(self.map) || nested.as_object().is_some_and(has_base))
        {
            return Err(self.invalid(format!("`rope_theta` of {key} is absent")));
        }
        if own_rope && rope.local_theta.is_none() {
            rope.local_theta = Some(self.local_theta(rope.theta)?);
        }
        Ok(rope)
    }

    /// Returns the base of layers with windows: Gemma 3 has a separate one, others use that of all layers.
    fn local_theta(&self, theta: f64) -> Result<f64> {
        self.positive(LOCAL_BASE, theta)
    }

    pub(super) fn nested<'a>(&'a self, key: &str, value: &'a Value) -> Result<Config<'a>> {
        let map = value.as_object().ok_or_else(|| unsupported(self.file, key, value, "an object"))?;
        Ok(Config::bare(map, self.file))
    }

    /// Reads the share of a head that is rotated, if present.
    fn rotary_factor(&self, architecture: &Architecture) -> Result<Option<f64>> {
        let Some(value) = self.present(ROTARY_FACTOR) else { return Ok(None) };
        match value.as_f64() {
            Some(1.0) => Ok(Some(1.0)),
            _ if !(architecture.has_longrope
                || architecture.has_delta
                || architecture.has_partial_rotary) =>
            {
                Err(unsupported(self.file, ROTARY_FACTOR, value, "1"))
            }
            Some(factor) if factor > 0.0 && factor < 1.0 => Ok(Some(factor)),
            _ => {
                let what =
                    format!("{ROTARY_FACTOR} = {}, expected a number above 0, at most 1", brief(value));
                Err(self.invalid(what))
            }
        }
    }

    /// Returns the rotated elements of a head, if not all.
    fn rotated(&self, factor: Option<f64>, head_dim: u32) -> Result<Option<u32>> {
        let Some(factor) = factor.filter(|factor| *factor < 1.0) else { return Ok(None) };
        // Truncated to an integer, as in the reference.
        let rotated = (f64::from(head_dim) * factor) as u32;
        if rotated == 0 || !rotated.is_multiple_of(2) {
            return Err(self.invalid(format!(
                "{ROTARY_FACTOR} = {factor} rotates {rotated} of {head_dim} elements of a head, expected an even number"
            )));
        }
        Ok((rotated < head_dim).then_some(rotated))
    }

    /// Reads the original context. Source: transformers `modeling_rope_utils.py`, `standardize_rope_params`.
    fn original(&self, shape: Shape) -> Result<u32> {
        match shape.original {
            Some(positions) => Ok(positions),
            None => self.size_or(ORIGINAL, POSITIONS_MAX, shape.max_positions),
        }
    }

    /// Reads base and scaling of one rule; `theta` is the default base.
    fn rule(&self, theta: f64, shape: Shape) -> Result<(f64, RopeScaling)> {
        let theta = self.positive("rope_theta", theta)?;
        let kind = self.present("rope_type").or_else(|| self.present("type"));
        let scaling = match kind.map(|k| (k, k.as_str())) {
            kind if shape.grows && !matches!(kind, Some((_, Some("yarn")))) => {
                let value = kind.map_or(&Value::Null, |(value, _)| value);
                return Err(unsupported(self.file, "rope_type", value, "yarn"));
            }
            None if self.map.values().any(Value::is_object) => {
                let value = Value::Object(self.map.clone());
                return Err(unsupported(self.file, "rope_parameters", &value, "one rule for all layers"));
            }
            None | Some((_, Some("default"))) => RopeScaling::None,
            Some((value, name)) if let Some(pairs) = shape.longrope => match name {
                // The reference maps these names in older files.
                Some("longrope" | "su" | "yarn") => self.longrope(pairs, self.original(shape)?)?,
                _ => return Err(unsupported(self.file, "rope_type", value, "default or longrope")),
            },
            Some((_, Some("dynamic"))) => RopeScaling::Dynamic { factor: self.required_positive("factor")? },
            Some((_, Some("linear"))) => RopeScaling::Linear { factor: self.required_positive("factor")? },
            Some((_, Some("llama3"))) => self.llama3(shape)?,
            Some((_, Some("yarn"))) => self.yarn(shape)?,
            Some((value, _)) => {
                let built = "default, linear, dynamic, llama3 or yarn";
                return Err(unsupported(self.file, "rope_type", value, built));
            }
        };
        Ok((theta, scaling))
    }

    /// Reads longrope; `Phi3Config` has no other keys. Source: transformers `_compute_longrope_parameters`.
    fn longrope(&self, pairs: u32, original_max_position_embeddings: u32) -> Result<RopeScaling> {
        for key in ["attention_factor", "short_mscale", "long_mscale"] {
            if let Some(value) = self.present(key) {
                return Err(unsupported(self.file, key, value, "the factor that follows from the positions"));
            }
        }
        if original_max_position_embeddings < 2 {
            let what =
                "original_max_position_embeddings = 1, expected 2 at least: its logarithm is a divisor";
            return Err(self.invalid(what.into()));
        }
        let factors = |key: &str| {
            let value = self.present(key).ok_or_else(|| self.invalid(format!("`{key}` is absent")))?;
            let list: Option<Vec<f64>> =
                value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
            let list = list.filter(|list| list.len() == pairs as usize);
            list.and_then(|list| RopeFactors::new(&list)).ok_or_else(|| {
                let what = format!("{key} = {}, expected {pairs} positive numbers", brief(value));
                self.invalid(what)
            })
        };
        let (short_factor, long_factor) = (factors("short_factor")?, factors("long_factor")?);
        Ok(RopeScaling::LongRope { short_factor, long_factor, original_max_position_embeddings })
    }

    fn llama3(&self, shape: Shape) -> Result<RopeScaling> {
        let [factor, low_freq_factor, high_freq_factor] =
            ["factor", "low_freq_factor", "high_freq_factor"].map(|key| self.required_positive(key));
        let (low_freq_factor, high_freq_factor) = (low_freq_factor?, high_freq_factor?);
        if high_freq_factor <= low_freq_factor {
            return Err(self.invalid(format!(
                "high_freq_factor = {high_freq_factor} is not above low_freq_factor = {low_freq_factor}"
            )));
        }
        let original_max_position_embeddings = self.original(shape)?;
        let factor = factor?;
        Ok(RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        })
    }

    /// Reads YaRN. Source: transformers `modeling_rope_utils.py`, `_compute_yarn_parameters`.
    fn yarn(&self, shape: Shape) -> Result<RopeScaling> {
        let factor = self.required_positive("factor")?;
        let (beta_fast, beta_slow) = (self.positive("beta_fast", 32.0)?, self.positive("beta_slow", 1.0)?);
        // Both are 1 in Kimi-K2.
        if beta_fast < beta_slow {
            return Err(self.invalid(format!("beta_fast = {beta_fast} is below beta_slow = {beta_slow}")));
        }
        let query_growth = match self.present(GROWTH) {
            _ if shape.grows => self.required_positive(GROWTH)?,
            // The reference does not read it; a file that has it is of another model.
            Some(value) => return Err(unsupported(self.file, GROWTH, value, "none")),
            None => 0.0,
        };
        let scale = |mscale: f64| if factor > 1.0 { 0.1 * mscale * math::ln(factor) + 1.0 } else { 1.0 };
        let named = [self.present("mscale"), self.present(STRETCH)];
        let attention_factor = match self.present("attention_factor") {
            Some(_) => self.required_positive("attention_factor")?,
            None if named.iter().all(Option::is_some) => {
                scale(self.required_positive("mscale")?) / scale(self.required_positive(STRETCH)?)
            }
            None => scale(1.0),
        };
        Ok(RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: self.original(shape)?,
            beta_fast,
            beta_slow,
            attention_factor,
            truncate: self.flag_or("truncate", true)?,
            query_growth,
        })
    }
}

/// Writes the settings that `rope_theta` and `rope_scaling` do not express: a rule for each type of layer, and partly
/// rotated heads.
pub(super) fn write(shape: &FileShape, map: &mut Map<String, Value>) {
    let architecture = shape.architecture();
    if architecture.has_global_heads {
        return; // Each kind of heads has a rule, which are written together.
    }
    write_by_type(shape, map);
    if architecture.has_delta || architecture.grows_queries || architecture.has_sinks {
        // The reference has no other place for these, or another rule where there is none.
        let (scaling, theta) = (map.shift_remove("rope_scaling"), map.shift_remove("rope_theta"));
        let mut rule = match scaling {
            Some(Value::Object(rule)) => rule,
            _ => Map::from_iter([("rope_type".to_string(), "default".into())]),
        };
        rule.extend(theta.map(|theta| ("rope_theta".to_string(), theta)));
        if architecture.has_delta {
            rule.insert(ROTARY_FACTOR.into(), rotary_factor(shape).into());
        }
        if let RopeScaling::Yarn { query_growth, attention_factor, .. } = shape.rope_scaling
            && architecture.grows_queries
        {
            rule.insert(GROWTH.into(), query_growth.into());
            // As published, for readers that do not know the factor's own key.
            let keys = ["mscale", STRETCH].into_iter().filter(|_| attention_factor == 1.0);
            rule.extend(keys.map(|key| (key.to_string(), json!(1.0))));
        }
        map.insert("rope_parameters".into(), rule.into());
    }
    if !(architecture.has_longrope || architecture.has_partial_rotary) {
        return;
    }
    map.insert(ROTARY_FACTOR.into(), rotary_factor(shape).into());
    if let RopeScaling::LongRope { original_max_position_embeddings, .. } = shape.rope_scaling {
        map.insert("original_max_position_embeddings".into(), original_max_position_embeddings.into());
    }
}

/// Writes `rope_parameters` by type of layer in place of `rope_theta` and `rope_scaling`, where a reader of these would
/// rotate the layers with windows by another base.
fn write_by_type(shape: &FileShape, map: &mut Map<String, Value>) {
    let window = shape.attention.window.filter(|_| shape.architecture().has_own_rope());
    let Some(local) = window.and_then(|window| window.rope_theta) else { return };
    // Gemma's files have a key of its own for this base.
    if map.contains_key(LOCAL_BASE) || (local == shape.rope_theta && local == OLMO3_BASE) {
        return;
    }
    map.shift_remove("rope_theta");
    let mut full = match map.shift_remove("rope_scaling") {
        Some(Value::Object(rule)) => rule,
        _ => Map::from_iter([("rope_type".to_string(), "default".into())]),
    };
    full.insert("rope_theta".into(), shape.rope_theta.into());
    let sliding = json!({ "rope_type": "default", "rope_theta": local });
    map.insert("rope_parameters".into(), json!({ "full_attention": full, "sliding_attention": sliding }));
}

/// Returns the factor from which `rotated` computes the width.
fn rotary_factor(shape: &FileShape) -> f64 {
    let (width, d) = (f64::from(shape.rotary_width()), f64::from(shape.head_dim));
    // Half an element is added if the product would be truncated to one less.
    if (width / d * d) as u32 == shape.rotary_width() { width / d } else { (width + 0.5) / d }
}

/// Returns `rope_scaling` for a written file.
pub(super) fn json(scaling: &RopeScaling) -> Value {
    match scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Dynamic { factor } => json!({ "rope_type": "dynamic", "factor": factor }),
        RopeScaling::Proportional { share, factor } => json!({
            "rope_type": "proportional",
            ROTARY_FACTOR: share,
            "factor": factor,
        }),
        // The reference accepts these three keys and no others.
        RopeScaling::LongRope { short_factor, long_factor, .. } => json!({
            "type": "longrope",
            "short_factor": short_factor.as_slice(),
            "long_factor": long_factor.as_slice(),
        }),
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
            query_growth: _, // Written with the base.
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
