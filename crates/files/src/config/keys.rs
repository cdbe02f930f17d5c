//! Reads the keys of a configuration, or refuses them by name and value.

use super::defaults::{self, NULL_IS_A_VALUE, WRITTEN};
use plimsoll_arch::{ARCHITECTURES, Architecture};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value};

/// Keys of caps: of scores, and of logits.
pub(super) const SCORE_CAP: &str = "attn_logit_softcapping";
pub(super) const LOGIT_CAP: &str = "final_logit_softcapping";
/// The key of an expert's width, in families that name it apart.
pub(super) const EXPERT_WIDTH: &str = "moe_intermediate_size";
/// The name in `layer_types` of a layer with full attention.
pub(super) const FULL: &str = "full_attention";
pub(crate) const LAYERS_MAX: u64 = plimsoll_arch::LAYERS_MAX as u64;
pub(crate) const VOCAB_MAX: u64 = 1 << 22;
pub(crate) const WIDTH_MAX: u64 = 1 << 17; // hidden, heads * head_dim
pub(crate) const HEADS_MAX: u64 = 1 << 12;
pub(super) const POSITIONS_MAX: u64 = 1 << 30;
pub(crate) const FFN_MAX: u64 = 1 << 20;

/// A configuration, or an object in one.
pub(crate) struct Config<'a> {
    pub(super) map: &'a Map<String, Value>,
    pub(crate) file: &'a str,
    /// Defaults of missing keys.
    pub(super) defaults: &'static Map<String, Value>,
}

impl<'a> Config<'a> {
    /// Makes a configuration without defaults.
    pub(crate) fn bare(map: &'a Map<String, Value>, file: &'a str) -> Config<'a> {
        Config { map, file, defaults: defaults::none() }
    }

    /// Adds the defaults of a family.
    pub(super) fn of(self, architecture: &Architecture) -> Config<'a> {
        Config { defaults: defaults::of(architecture), ..self }
    }

    /// Returns a key's value. If absent or null it is the family's default, unless null has a meaning.
    pub(crate) fn present(&self, key: &str) -> Option<&Value> {
        match self.map.get(key) {
            Some(Value::Null) if NULL_IS_A_VALUE.contains(&key) => None,
            None | Some(Value::Null) if WRITTEN.contains(&key) => None,
            None | Some(Value::Null) => self.defaults.get(key),
            Some(value) => Some(value),
        }
    }

    /// Reads a positive integer up to `limit`.
    pub(crate) fn size(&self, key: &str, limit: u64) -> Result<u32> {
        let value = self.present(key).ok_or_else(|| self.invalid(format!("`{key}` is absent")))?;
        match value.as_u64() {
            Some(n) if n > 0 && n <= limit => Ok(n as u32), // every limit is below 2^32
            Some(n) => Err(out_of_range(self.file, key, n, limit)),
            None => Err(self.invalid(format!("{key} = {}, expected a positive integer", brief(value)))),
        }
    }

    pub(crate) fn size_or(&self, key: &str, limit: u64, default: u32) -> Result<u32> {
        if self.present(key).is_some() { self.size(key, limit) } else { Ok(default) }
    }

    pub(super) fn divide(&self, key: &str, n: u32, by_key: &str, by: u32) -> Result<u32> {
        if n.is_multiple_of(by) {
            return Ok(n / by);
        }
        Err(self.invalid(format!("{key} = {n} is not a multiple of {by_key} = {by}, and head_dim is absent")))
    }

    pub(crate) fn positive(&self, key: &str, default: f64) -> Result<f64> {
        if self.present(key).is_some() { self.required_positive(key) } else { Ok(default) }
    }

    pub(crate) fn required_positive(&self, key: &str) -> Result<f64> {
        let value = self.present(key).ok_or_else(|| self.invalid(format!("`{key}` is absent")))?;
        // The number must stay finite and positive as f32: kernels see no other.
        let number = value.as_f64().filter(|n| *n > 0.0 && (*n as f32).is_finite() && *n as f32 > 0.0);
        number.ok_or_else(|| self.invalid(format!("{key} = {}, expected a positive number", brief(value))))
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool> {
        self.flag_or(key, false)
    }

    pub(crate) fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        match self.present(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => Err(self.invalid(format!("{key} = {}, expected true or false", brief(value)))),
        }
    }

    pub(crate) fn invalid(&self, what: String) -> Error {
        Error::new("model-config-invalid", format!("{}: {what}", self.file))
            .hint("fetch the model's config.json again")
    }
}

/// Returns `model-unsupported` for a key, its value, and what is supported.
pub(crate) fn unsupported(file: &str, key: &str, value: &Value, built: &str) -> Error {
    let families = either(ARCHITECTURES.iter().map(|row| row.causal_lm.trim_end_matches("ForCausalLM")));
    let families = families.replace(" or ", " and ");
    Error::new("model-unsupported", format!("{file}: {key} = {}, built is {built}", brief(value))).hint(
        format!("{families} decoders are built; `plimsoll explain model-unsupported` lists what is not"),
    )
}

/// Returns `unsupported` for a family, with the supported family of the nearest name.
pub(crate) fn unsupported_family(file: &str, key: &str, value: &Value, built: &str) -> Error {
    let name = value.as_str().or_else(|| value.get(0).and_then(Value::as_str)).unwrap_or_default();
    let error = unsupported(file, key, value, built);
    let name_letters = letters(name);
    if let Some((_, preset)) = PLANNED.into_iter().find(|(of, _)| name_letters.starts_with(of)) {
        return error
            .fact("the indexer of sparse attention is not built")
            .hint(format!("`plimsoll plan --model random:{preset}` plans its published shape"));
    }
    match closest_family(name) {
        Some(family) => error.hint(format!("of what is built, {family} is closest by name")),
        None => error,
    }
}

/// Families of which published shapes are planned, by the letters of their names, and their presets.
const PLANNED: [(&str, &str); 2] = [("deepseekv32", "deepseek-v3.2"), ("glmmoedsa", "glm-5")];

fn letters(name: &str) -> String {
    name.to_ascii_lowercase().replace(['_', '-'], "")
}

/// Returns the family with the longest prefix in common, at least three letters: qwen3 for `Qwen3OmniMoe`.
fn closest_family(name: &str) -> Option<&'static str> {
    let wanted = letters(name);
    let alike =
        |family: &str| letters(family).bytes().zip(wanted.bytes()).take_while(|(a, b)| a == b).count();
    let names = ARCHITECTURES.iter().map(|row| row.family.name());
    // On a tie the shorter name is the plainer model, then the newer one.
    let best = names.map(|name| (alike(name), std::cmp::Reverse(name.len()), name)).max()?;
    (best.0 >= 3).then_some(best.2)
}

/// Lists names as a sentence does: `a, b or c`.
pub(crate) fn either(names: impl Iterator<Item = &'static str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

pub(super) fn out_of_range(file: &str, key: &str, value: u64, limit: u64) -> Error {
    Error::new("model-config-invalid", format!("{file}: {key} = {value}, wanted is 1 to {limit}"))
        .hint("fetch the model's config.json again")
}

/// Returns the shortest decimal that reads back as the same f32: 1e-5, not 9.99999974e-6.
pub(crate) fn short(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// Returns a value for a message, cut to a line.
pub(super) fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_that_is_not_built_has_a_closest_one_by_the_letters_it_begins_with() {
        for (name, expect) in [
            ("qwen4_exp", Some("qwen3")),
            ("Qwen3_5MoeForConditionalGeneration", Some("qwen3_5_moe_text")),
            ("qwen3_5_moe", Some("qwen3_5_moe_text")),
            ("Qwen2MoeForCausalLM", Some("qwen2")),
            ("gemma3n_text", Some("gemma3_text")),
            ("llama4_text", Some("llama")),
            ("phi4", Some("phi3")),
            ("granitemoe", Some("granite")),
            ("olmoe", Some("olmo3")),
            ("mixtral", None),
            ("gpt_oss", Some("gpt_oss")),
            ("gptj", Some("gpt_oss")),
            ("deepseek_v4", Some("deepseek_v3")),
            ("", None),
        ] {
            assert_eq!(closest_family(name), expect, "{name}");
        }
        let error = unsupported_family("config.json", "model_type", &serde_json::json!("qwen4_exp"), "llama");
        assert!(error.to_string().contains("qwen4_exp"), "{error}");
        assert!(error.hints.iter().any(|hint| hint.contains("qwen3 is closest")), "{:?}", error.hints);
        for (name, preset) in [("glm_moe_dsa", "glm-5"), ("DeepseekV32ForCausalLM", "deepseek-v3.2")] {
            let error = unsupported_family("config.json", "model_type", &serde_json::json!(name), "llama");
            assert!(error.to_string().contains("the indexer of sparse attention is not built"), "{error}");
            assert!(error.hints.iter().any(|hint| hint.contains(preset)), "{:?}", error.hints);
        }
    }
}
