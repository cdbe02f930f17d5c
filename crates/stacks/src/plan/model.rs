//! Shapes of models by the names that launch files give them. Nothing is fetched: a name that is no known shape is asked for.

use crate::options::Options;
use plimsoll_base::{Error, ModelSpec, PRESETS, Result};

/// Finds the shape of a model by its name or path.
pub type ModelOf<'a> = dyn Fn(&str) -> Result<ModelSpec> + 'a;

/// The preset with the shape of a model on the hub, by its published name.
///
/// Fine-tuned kin of the same shape count as it: `Qwen2.5-Math-7B-Instruct` is `qwen2.5-7b`.
pub fn preset_of(name: &str) -> Option<(&'static str, ModelSpec)> {
    let last = name.trim_end_matches('/').rsplit('/').next()?.to_ascii_lowercase();
    let mut base = last.as_str();
    for suffix in ["-hf", "-chat", "-instruct", "-base", "-it"] {
        base = base.strip_suffix(suffix).unwrap_or(base);
    }
    let base = base.strip_prefix("meta-").unwrap_or(base);
    // (what a name begins with, what the preset's does); shapes are those of the published config.json.
    const KIN: [(&str, &str); 9] = [
        ("qwen2.5-math-", "qwen2.5-"),
        ("qwen2.5-coder-", "qwen2.5-"),
        ("deepseek-r1-distill-qwen-7b", "qwen2.5-7b"),
        ("deepseek-r1-distill-qwen-14b", "qwen2.5-14b"),
        ("deepseek-r1-distill-qwen-32b", "qwen2.5-32b"),
        ("qwen2-", "qwen2.5-"),
        ("llama-3.1-", "llama-3-"),
        ("llama-3.3-70b", "llama-3-70b"),
        ("mistral-7b-v0.3", "mistral-7b"),
    ];
    let kin = KIN.iter().find_map(|(from, to)| base.strip_prefix(from).map(|rest| format!("{to}{rest}")));
    let wanted = kin.as_deref().unwrap_or(base);
    // Mistral 7B before v0.3 has another vocabulary.
    if wanted.starts_with("mistral") && kin.is_none() {
        return None;
    }
    PRESETS.iter().find(|(preset, _)| *preset == wanted).copied()
}

/// Finds the shape of the model that the setting `name` names, if it names one.
pub(crate) fn model(options: &Options, name: &str, models: &ModelOf<'_>) -> Result<Option<ModelSpec>> {
    options.text(name)?.filter(|text| !text.is_empty()).map(models).transpose()
}

/// Finds the shape of the model that a run cannot be planned without; `shown` is how its setting is written.
///
/// Errors: `run-model-unknown`.
pub(crate) fn named_model(
    options: &Options,
    name: &str,
    shown: &str,
    models: &ModelOf<'_>,
) -> Result<ModelSpec> {
    let none = || {
        Error::usage("run-model-unknown", format!("the file names no model: {shown}"))
            .hint(format!("add it with --set {name}=NAME"))
    };
    options.text(name)?.ok_or_else(none).and_then(models)
}

/// Numbers of a shape that bytes depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub spec: ModelSpec,
    /// All parameters; of a critic those of its body and its value head.
    pub params: u64,
}

impl Shape {
    pub fn policy(spec: ModelSpec) -> Shape {
        Shape { spec, params: spec.parameters() }
    }

    /// Returns this shape with a head of one row: P - V h (untied) + h.
    pub fn value(spec: ModelSpec) -> Shape {
        let head = if spec.tied { 0 } else { u64::from(spec.vocab) * u64::from(spec.hidden) };
        Shape { spec, params: spec.parameters() - head + u64::from(spec.hidden) }
    }

    /// Parameters of the largest tensor: the embedding, or a feed-forward matrix.
    pub fn largest(&self) -> u64 {
        let (h, f) = (u64::from(self.spec.hidden), u64::from(self.spec.ffn));
        (u64::from(self.spec.vocab) * h).max(h * f)
    }

    /// Parameters of one decoder layer.
    pub fn layer(&self) -> u64 {
        let (h, f) = (u64::from(self.spec.hidden), u64::from(self.spec.ffn));
        let (q, kv) = (u64::from(self.spec.q_width()), u64::from(self.spec.kv_width()));
        2 * h * q + 2 * h * kv + 3 * h * f + 2 * h
    }

    /// Bytes of keys and values of a token in bf16: 2 L k d 2.
    pub fn kv_token(&self) -> u64 {
        4 * u64::from(self.spec.layers) * u64::from(self.spec.kv_width())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_names_find_their_shape() {
        for (name, expect) in [
            ("Qwen/Qwen2.5-7B", Some("qwen2.5-7b")),
            ("Qwen/Qwen2.5-Math-7B-Instruct", Some("qwen2.5-7b")),
            ("Qwen/Qwen2-1.5B", Some("qwen2.5-1.5b")),
            ("meta-llama/Llama-2-13b-chat-hf", Some("llama-2-13b")),
            ("meta-llama/Meta-Llama-3-8B-Instruct", Some("llama-3-8b")),
            ("meta-llama/Llama-3.1-70B", Some("llama-3-70b")),
            ("baichuan-inc/Baichuan-13B-Base", Some("baichuan-13b")),
            ("/models/Qwen2.5-0.5B/", Some("qwen2.5-0.5b")),
            ("Qwen/Qwen3-8B-Base", Some("qwen3-8b")),
            ("mistralai/Mistral-7B-v0.3", Some("mistral-7b")),
            ("mistralai/Mistral-7B-v0.1", None),
            ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", None),
            ("somebody/else", None),
            ("", None),
        ] {
            assert_eq!(preset_of(name).map(|(preset, _)| preset), expect, "{name}");
        }
    }

    #[test]
    fn a_value_model_loses_its_head() {
        let (_, spec) = preset_of("baichuan-13b").unwrap();
        // 13 264 901 120 - 64 000 x 5 120 + 5 120.
        assert_eq!(Shape::value(spec).params, 12_937_226_240);
        let (_, tied) = preset_of("qwen2.5-0.5b").unwrap();
        assert_eq!(Shape::value(tied).params, 494_032_768 + 896);
        let (_, seven) = preset_of("qwen2.5-7b").unwrap();
        assert_eq!(
            (Shape::policy(seven).kv_token(), Shape::policy(seven).largest()),
            (57_344, 152_064 * 3584)
        );
    }
}
