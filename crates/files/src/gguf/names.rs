//! Names of keys and tensors in a GGUF file. Reader and writer share these tables, so they know the same names.

use crate::tensors::{RowOrder, ValueHeads};
use plimsoll_arch::{
    ARCHITECTURES, Architecture, Attention, DeltaSpec, Family, FileShape, LayerSet, ModelSpec, ParamKind,
    ScoreScale, Window, Windows, gguf_rows,
};

/// The first bytes of a file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
/// The written version; 2 differs in nothing that is read.
pub(crate) const VERSION: u32 = 3;
/// Default alignment of tensors, if the metadata gives none.
pub(crate) const ALIGNMENT: u64 = 32;

/// Type numbers of written metadata values.
pub(crate) mod kind {
    pub(crate) const U32: u32 = 4;
    pub(crate) const I32: u32 = 5;
    pub(crate) const F32: u32 = 6;
    pub(crate) const BOOL: u32 = 7;
    pub(crate) const STRING: u32 = 8;
    pub(crate) const ARRAY: u32 = 9;
}

/// Metadata keys. A model's keys have its architecture's name and a dot before them.
pub(crate) mod key {
    pub(crate) const ARCHITECTURE: &str = "general.architecture";
    pub(crate) const ALIGNMENT: &str = "general.alignment";
    pub(crate) const CONTEXT: &str = "context_length";
    pub(crate) const HIDDEN: &str = "embedding_length";
    pub(crate) const LAYERS: &str = "block_count";
    pub(crate) const FFN: &str = "feed_forward_length";
    /// Experts of a layer: their number, the number that compute a token, and their width.
    pub(crate) const EXPERTS: &str = "expert_count";
    pub(crate) const EXPERTS_USED: &str = "expert_used_count";
    pub(crate) const EXPERT_FFN: &str = "expert_feed_forward_length";
    /// The width of the shared expert, or how many experts of a layer's width it is as wide as.
    pub(crate) const SHARED_FFN: &str = "expert_shared_feed_forward_length";
    pub(crate) const SHARED: &str = "expert_shared_count";
    /// Layers without experts, which come first.
    pub(crate) const DENSE: &str = "leading_dense_block_count";
    /// How experts are scored, whether their weights are divided by their sum, and the factor on them.
    pub(crate) const GATING: &str = "expert_gating_func";
    pub(crate) const NORMALIZES: &str = "expert_weights_norm";
    pub(crate) const EXPERT_SCALE: &str = "expert_weights_scale";
    /// Groups of neighbouring experts, and those that a token chooses in.
    pub(crate) const GROUPS: &str = "expert_group_count";
    pub(crate) const GROUPS_USED: &str = "expert_group_used_count";
    pub(crate) const HEADS: &str = "attention.head_count";
    pub(crate) const KV_HEADS: &str = "attention.head_count_kv";
    pub(crate) const KEY_LENGTH: &str = "attention.key_length";
    pub(crate) const VALUE_LENGTH: &str = "attention.value_length";
    pub(crate) const RMS_EPS: &str = "attention.layer_norm_rms_epsilon";
    pub(crate) const ROPE_DIM: &str = "rope.dimension_count";
    pub(crate) const ROPE_BASE: &str = "rope.freq_base";
    pub(crate) const ROPE_SCALING: &str = "rope.scaling.type";
    pub(crate) const ROPE_FACTOR: &str = "rope.scaling.factor";
    /// Parts of a head rotated by each axis of a position.
    pub(crate) const ROPE_SECTIONS: &str = "rope.dimension_sections";
    /// Linear attention: inputs of the convolution, elements of a head, heads of keys and of values, elements of all
    /// heads of values, and the interval of layers that attend to keys.
    pub(crate) const CONV: &str = "ssm.conv_kernel";
    pub(crate) const STATE: &str = "ssm.state_size";
    pub(crate) const KEY_HEADS: &str = "ssm.group_count";
    pub(crate) const VALUE_HEADS: &str = "ssm.time_step_rank";
    pub(crate) const VALUES: &str = "ssm.inner_size";
    pub(crate) const INTERVAL: &str = "full_attention_interval";
    /// Number of layers after the others for multi-token prediction.
    pub(crate) const NEXT_LAYERS: &str = "nextn_predict_layers";
    pub(crate) const WINDOW: &str = "attention.sliding_window";
    /// RoPE base of layers with windows; default 10,000.
    pub(crate) const WINDOW_ROPE_BASE: &str = "rope.freq_base_swa";
    pub(crate) const SCORE_CAP: &str = "attn_logit_softcapping";
    pub(crate) const LOGIT_CAP: &str = "final_logit_softcapping";
    /// The four factors of Granite.
    pub(crate) const SCORE_SCALE: &str = "attention.scale";
    pub(crate) const EMBEDDING_SCALE: &str = "embedding_scale";
    pub(crate) const RESIDUAL_SCALE: &str = "residual_scale";
    pub(crate) const LOGIT_SCALE: &str = "logit_scale";
    pub(crate) const TOKENIZER: &str = "tokenizer.ggml.model";
    pub(crate) const PRE: &str = "tokenizer.ggml.pre";
    pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
    pub(crate) const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
    pub(crate) const SCORES: &str = "tokenizer.ggml.scores";
    pub(crate) const MERGES: &str = "tokenizer.ggml.merges";
    pub(crate) const BOS: &str = "tokenizer.ggml.bos_token_id";
    pub(crate) const EOS: &str = "tokenizer.ggml.eos_token_id";
    /// More tokens that end a response: of a turn, and of a message.
    pub(crate) const MORE_EOS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
    pub(crate) const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
    pub(crate) const PAD: &str = "tokenizer.ggml.padding_token_id";
    pub(crate) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
    pub(crate) const SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
    pub(crate) const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
}

/// The divisor table of Llama 3's rule, which is not a weight.
pub(crate) const ROPE_FREQS: &str = "rope_freqs.weight";
pub(crate) const EMBEDDING: &str = "token_embd.weight";
const NORM: &str = "output_norm.weight";
pub(crate) const HEAD: &str = "output.weight";

/// A tensor of a model in a GGUF file.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) gguf: String,
    /// Hugging Face names of its parts: a matrix per expert, or one for all.
    pub(crate) parts: Vec<String>,
    /// Shape of one part, slowest axis first.
    pub(crate) shape: Vec<u64>,
    pub(crate) kind: ParamKind,
    pub(crate) has_experts: bool,
}

/// Returns a model's tensors in the order of a GGUF file: of a layer's experts, all gates, then ups, then downs.
pub(crate) fn stored(spec: &ModelSpec) -> Vec<Stored> {
    let (v, h) = (u64::from(spec.vocab), u64::from(spec.hidden));
    let end = |kind, gguf: &str, name: &str, shape: &[u64]| {
        let (gguf, parts, shape) = (gguf.to_string(), vec![name.to_string()], shape.to_vec());
        Stored { gguf, parts, shape, kind, has_experts: false }
    };
    let mut all = vec![end(ParamKind::Embed, EMBEDDING, "model.embed_tokens.weight", &[v, h])];
    for layer in 0..spec.layers.len() {
        all.extend(gguf_rows(spec, layer).into_iter().map(|row| {
            let name = |expert| format!("model.layers.{layer}.{}", row.name(expert));
            Stored {
                gguf: format!("blk.{layer}.{}", row.gguf_name()),
                parts: match row.experts.filter(|_| !row.is_of_all_experts) {
                    Some(count) => (0..count).map(|expert| name(Some(expert))).collect(),
                    None => vec![name(None)],
                },
                shape: row.shape(),
                kind: row.kind,
                has_experts: row.experts.is_some() && !row.is_of_all_experts,
            }
        }));
    }
    all.push(end(ParamKind::FinalNorm, NORM, "model.norm.weight", &[h]));
    if !spec.tied {
        all.push(end(ParamKind::Head, HEAD, "lm_head.weight", &[v, h]));
    }
    all
}

/// Returns the names and shapes of `expected_tensors`, in the order of a GGUF file.
pub fn gguf_order(spec: &ModelSpec) -> Vec<(String, Vec<u64>)> {
    let each = |of: Stored| of.parts.into_iter().map(move |name| (name, of.shape.clone()));
    stored(spec).into_iter().flat_map(each).collect()
}

/// Returns the architecture whose name a family has in GGUF files, if it is read and written: Llama for Mistral.
pub(crate) fn stored_as(family: Family) -> Option<&'static Architecture> {
    let name = family.architecture().gguf?;
    ARCHITECTURES.iter().find(|row| row.gguf == Some(name))
}

/// Returns the constant that a file adds to a tensor: 1 for norms that the model stores as their distance from 1.
pub(crate) fn added(shape: &FileShape, name: &str) -> f32 {
    let is_whole = name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight");
    if is_whole { shape.architecture().norm_offset } else { 0.0 }
}

/// Returns a decoder's attention from a file that says little but the keys of its windows; llama.cpp has the rest in
/// its code. `said` is what the file says, with no layers in its window.
pub(crate) fn attention(shape: &FileShape, said: Attention) -> Attention {
    let windows = shape.architecture().windows;
    let window = said.window.and_then(|window| match windows {
        Windows::AllButEvery { n, own_rope } => Some(Window {
            layers: LayerSet::all_but_every(n, shape.layers),
            rope_theta: window.rope_theta.filter(|_| own_rope),
            ..window
        }),
        _ => None,
    });
    let root = |width: u32| Some(1.0 / (width as f32).sqrt());
    let row = shape.architecture();
    let scale = match row.score_scale {
        ScoreScale::Root { gguf_wide, .. } if shape.layers == gguf_wide => root(shape.hidden / shape.heads),
        ScoreScale::Root { .. } => root(shape.head_dim),
        ScoreScale::HeadDim | ScoreScale::One | ScoreScale::Factor(_) => said.scale,
    };
    let unrotated = row.unrotated_every.map_or_else(LayerSet::default, |n| LayerSet::every(n, shape.layers));
    Attention {
        window,
        unrotated,
        scale,
        rotated: said.rotated.filter(|_| row.has_delta || row.has_partial_rotary),
        score_cap: said.score_cap,
        gated: row.has_delta,
        global: None,
        sinks: row.has_sinks,
    }
}

/// Returns the order of the rows of a tensor, by its Hugging Face name, in a file of the stored family.
pub(crate) fn row_order(shape: &FileShape, name: &str) -> RowOrder {
    if let Some((delta, name)) =
        shape.delta.zip(name.split_once(".linear_attn.")).map(|(delta, (_, name))| (delta.each, name))
    {
        return delta_order(delta, name);
    }
    let rotated = name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight");
    if stored_as(shape.family).is_some_and(|row| row.gguf_rope_pairs) && rotated {
        RowOrder::RopePairs { head_dim: shape.head_dim }
    } else {
        RowOrder::Stored
    }
}

/// Returns the order of a linear attention tensor, by its name in the layer.
fn delta_order(delta: DeltaSpec, name: &str) -> RowOrder {
    let (keys, each) = (delta.key_heads, delta.value_heads / delta.key_heads);
    let heads = |width| ValueHeads { keys, each, width };
    let rows = |from, width| RowOrder::ValueHeads { from, heads: heads(width) };
    match name {
        "A_log" => RowOrder::Decays(heads(1)),
        _ if each == 1 => RowOrder::Stored,
        "in_proj_qkv.weight" | "conv1d.weight" => rows(2 * delta.key_width(), delta.value_dim),
        "in_proj_z.weight" => rows(0, delta.value_dim),
        "in_proj_a.weight" | "in_proj_b.weight" | "dt_bias" => rows(0, 1),
        "out_proj.weight" => RowOrder::ValueColumns(heads(delta.value_dim)),
        _ => RowOrder::Stored,
    }
}

/// Returns the interval of layers with full attention, if all others have linear attention.
pub(crate) fn interval(shape: &FileShape) -> Option<u32> {
    let delta = shape.delta?;
    (2..=shape.layers).find(|&n| delta.layers == LayerSet::all_but_every(n, shape.layers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_arch::{ExpertsSpec, LayersWith, QkNorms, SigmoidSpec, expected_tensors};

    #[test]
    fn every_tensor_has_a_name_of_its_own() {
        let mut shape = ModelSpec::preset("qwen2.5-0.5b").expect("a preset").file_shape();
        (shape.qk_norms, shape.tied) = (Some(QkNorms::Heads), false);
        let layers = LayerSet::of(shape.layers, |_| true);
        let each = ExpertsSpec {
            count: 3,
            chosen: 2,
            ffn: 16,
            normalizes: true,
            sigmoid: None,
            balance: 0.0,
            shared: None,
            gates_shared: true,
            is_fused: false,
            biased: false,
        };
        for family in Family::ALL.into_iter().filter(|family| family.architecture().gguf.is_some()) {
            let row = family.architecture();
            let delta =
                ModelSpec::preset("qwen3.5-0.8b").unwrap().file_shape().delta.filter(|_| row.has_delta);
            let own = ExpertsSpec {
                sigmoid: row.has_sigmoid_router.then_some(SigmoidSpec {
                    groups: 1,
                    groups_chosen: 1,
                    factor: 1.0,
                }),
                shared: row.has_shared_expert.then_some(16),
                gates_shared: !row.has_sigmoid_router,
                is_fused: row.has_experts_alone,
                ..each
            };
            let experts = row.has_experts.then_some(LayersWith { layers, each: own });
            let spec = FileShape { family, delta, experts, ..shape }.spec();
            let mut names: Vec<String> = stored(&spec).into_iter().map(|tensor| tensor.gguf).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{family}: a name that two tensors have");
            let mut listed = gguf_order(&spec);
            let mut expected = expected_tensors(&spec);
            listed.sort_unstable();
            expected.sort_unstable();
            assert_eq!(listed, expected, "{family}");
        }
    }
}
