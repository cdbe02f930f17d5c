//! Shapes of models by the names that launch files give them. Nothing is fetched: a name that is no known shape is asked for.

use crate::options::Options;
use plimsoll_base::{Error, ModelSpec, Result};

pub use plimsoll_base::preset_of;

/// Finds the shape of a model by its name or path.
pub type ModelOf<'a> = dyn Fn(&str) -> Result<ModelSpec> + 'a;

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
