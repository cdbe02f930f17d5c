//! Model shapes by the names in launch files. Nothing is fetched: the user is asked for an unknown name's shape.

use crate::options::Options;
use plimsoll_arch::{AttentionSpec, ModelSpec};
use plimsoll_base::{Error, Result};

pub use plimsoll_arch::preset_of;

/// Finds the shape of a model by its name or path.
pub type ModelOf<'a> = dyn Fn(&str) -> Result<ModelSpec> + 'a;

/// Finds the shape of the model that the setting `name` refers to, if any.
pub(crate) fn model(options: &Options, name: &str, models: &ModelOf<'_>) -> Result<Option<ModelSpec>> {
    options.text(name)?.filter(|text| !text.is_empty()).map(models).transpose()
}

/// Finds the shape of a model required for a plan; `shown` is the spelling of its setting.
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

/// The numbers of a shape that determine bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub spec: ModelSpec,
    /// Softmax attention, which the modelled stacks have in every layer.
    pub heads: AttentionSpec,
    /// All parameters; for a critic those of its body and its value head.
    pub params: u64,
}

impl Shape {
    pub fn policy(spec: ModelSpec) -> Shape {
        Shape { spec, heads: heads(&spec), params: spec.parameters() }
    }

    /// Returns this shape with a head of one row: P - V h (untied) + h.
    pub fn value(spec: ModelSpec) -> Shape {
        let head = if spec.tied { 0 } else { u64::from(spec.vocab) * u64::from(spec.hidden) };
        Shape { spec, heads: heads(&spec), params: spec.parameters() - head + u64::from(spec.hidden) }
    }

    pub fn embedding(&self) -> u64 {
        u64::from(self.spec.vocab) * u64::from(self.spec.hidden)
    }

    /// Returns the parameters of the largest tensor: the embedding, or a feed-forward matrix.
    pub fn largest(&self) -> u64 {
        self.ffn().into_iter().flat_map(|part| part.matrices()).fold(self.embedding(), u64::max)
    }

    /// Returns the parameters of a layer; if layers differ, the largest.
    pub fn layer(&self) -> u64 {
        let h = u64::from(self.spec.hidden);
        let (q, kv) = (u64::from(self.heads.q_width()), u64::from(self.heads.kv_width()));
        let ffn = self.ffn().into_iter().map(|part| part.parameters());
        2 * h * q + 2 * h * kv + 2 * h + ffn.fold(0, u64::max)
    }

    /// Returns the kinds of feed-forward parts in the layers.
    pub fn ffn(&self) -> Vec<Ffn> {
        Ffn::of(&self.spec)
    }

    /// Returns the bytes of keys and values per token in bf16: 2 L k d 2.
    pub fn kv_token(&self) -> u64 {
        4 * u64::from(self.spec.layers.len()) * u64::from(self.heads.kv_width())
    }
}

/// Returns the softmax attention of the first layer that has it.
pub(crate) fn heads(spec: &ModelSpec) -> AttentionSpec {
    spec.attentions().next().expect("every model has a layer with softmax attention")
}

/// A kind of feed-forward part: dense, or experts with their router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ffn {
    pub layers: u64,
    pub hidden: u64,
    /// Width, of each expert if there are some.
    pub width: u64,
    /// (experts per layer, experts per token).
    pub experts: Option<(u64, u64)>,
}

impl Ffn {
    pub fn of(spec: &ModelSpec) -> Vec<Ffn> {
        let hidden = u64::from(spec.hidden);
        let with = u64::from(spec.expert_layers());
        let without = u64::from(spec.layers.len()) - with;
        let width = spec.each_layer().find_map(|layer| layer.dense()).map_or(0, |dense| dense.width);
        let dense = Ffn { layers: without, hidden, width: width.into(), experts: None };
        let experts = spec.each_layer().find_map(|layer| layer.experts()).map(|experts| Ffn {
            layers: with,
            width: experts.ffn.into(),
            experts: Some((experts.count.into(), experts.chosen.into())),
            ..dense
        });
        [Some(dense), experts].into_iter().flatten().filter(|part| part.layers > 0).collect()
    }

    /// Returns the elements of its tensors, the router last. A layer's experts are two tensors, gate with up and down,
    /// in transformers since 5 (`models/qwen3_moe/modeling_qwen3_moe.py`, `Qwen3MoeExperts`) and in vLLM
    /// (`fused_moe/layer.py`, `w13_weight`, `w2_weight`); transformers 4 had three per expert: less at a time.
    pub fn matrices(&self) -> Vec<u64> {
        let one = self.hidden * self.width;
        match self.experts {
            None => vec![one; 3],
            Some((count, _)) => vec![2 * count * one, count * one, count * self.hidden],
        }
    }

    pub fn parameters(&self) -> u64 {
        self.matrices().iter().sum()
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

    #[test]
    fn experts_count_with_all_of_their_weights() {
        let (_, spec) = preset_of("qwen3-30b-a3b").unwrap();
        let shape = Shape::policy(spec);
        // 128 experts of three [768, 2048] and a router, 32 heads for queries and 4 for keys of 128, two norms.
        let layer = 128 * 3 * 768 * 2048 + 128 * 2048 + 2 * 2048 * 4096 + 2 * 2048 * 512 + 2 * 2048;
        assert_eq!(shape.layer(), layer);
        assert_eq!(shape.largest(), 128 * 2 * 768 * 2048);
        // With embedding, head and the norms of heads: as published.
        assert_eq!(shape.params, 48 * (layer + 2 * 128) + 2 * 151_936 * 2048 + 2048);
        assert_eq!(shape.params, 30_532_122_624);
        let (_, dense) = preset_of("qwen2.5-7b").unwrap();
        assert_eq!(
            Shape::policy(dense).layer(),
            2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18_944 + 2 * 3584
        );
    }
}
