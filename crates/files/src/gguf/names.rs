//! What things are called in a GGUF file. The reader and the writer use these tables, so that neither knows a name that the
//! other does not.

use crate::tensors::{RowOrder, ValueHeads, expected_tensors};
use plimsoll_base::{
    ARCHITECTURES, Architecture, Attention, DeltaSpec, Encoding, Family, LayerSet, ModelSpec, Window, Windows,
};

/// The first bytes of a file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
/// The version that is written; 2 differs in nothing that is read.
pub(crate) const VERSION: u32 = 3;
/// Tensors begin on multiples of this where the metadata gives no other number.
pub(crate) const ALIGNMENT: u64 = 32;

/// Numbers of the types of metadata values that are written.
pub(crate) mod kind {
    pub(crate) const U32: u32 = 4;
    pub(crate) const I32: u32 = 5;
    pub(crate) const F32: u32 = 6;
    pub(crate) const BOOL: u32 = 7;
    pub(crate) const STRING: u32 = 8;
    pub(crate) const ARRAY: u32 = 9;
}

/// Keys of the metadata. Those of a model follow the name of its architecture and a dot.
pub(crate) mod key {
    pub(crate) const ARCHITECTURE: &str = "general.architecture";
    pub(crate) const ALIGNMENT: &str = "general.alignment";
    pub(crate) const CONTEXT: &str = "context_length";
    pub(crate) const HIDDEN: &str = "embedding_length";
    pub(crate) const LAYERS: &str = "block_count";
    pub(crate) const FFN: &str = "feed_forward_length";
    /// Of the experts of a layer: how many, how many compute a token, and their width.
    pub(crate) const EXPERTS: &str = "expert_count";
    pub(crate) const EXPERTS_USED: &str = "expert_used_count";
    pub(crate) const EXPERT_FFN: &str = "expert_feed_forward_length";
    pub(crate) const HEADS: &str = "attention.head_count";
    pub(crate) const KV_HEADS: &str = "attention.head_count_kv";
    pub(crate) const KEY_LENGTH: &str = "attention.key_length";
    pub(crate) const VALUE_LENGTH: &str = "attention.value_length";
    pub(crate) const RMS_EPS: &str = "attention.layer_norm_rms_epsilon";
    pub(crate) const ROPE_DIM: &str = "rope.dimension_count";
    pub(crate) const ROPE_BASE: &str = "rope.freq_base";
    pub(crate) const ROPE_SCALING: &str = "rope.scaling.type";
    pub(crate) const ROPE_FACTOR: &str = "rope.scaling.factor";
    /// Parts of a head that are rotated by each axis of a position.
    pub(crate) const ROPE_SECTIONS: &str = "rope.dimension_sections";
    /// Of linear attention: inputs of the convolution, elements of a head, heads of keys and of values, elements of all heads of values, and
    /// every how many layers one attends to keys.
    pub(crate) const CONV: &str = "ssm.conv_kernel";
    pub(crate) const STATE: &str = "ssm.state_size";
    pub(crate) const KEY_HEADS: &str = "ssm.group_count";
    pub(crate) const VALUE_HEADS: &str = "ssm.time_step_rank";
    pub(crate) const VALUES: &str = "ssm.inner_size";
    pub(crate) const INTERVAL: &str = "full_attention_interval";
    /// Layers after the others that predict further tokens.
    pub(crate) const NEXT_LAYERS: &str = "nextn_predict_layers";
    pub(crate) const WINDOW: &str = "attention.sliding_window";
    /// Base of the rotary rule of layers with windows, 10,000 where it is not said.
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
    /// Further tokens that end a response: of a turn, and of a message.
    pub(crate) const MORE_EOS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
    pub(crate) const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
    pub(crate) const PAD: &str = "tokenizer.ggml.padding_token_id";
    pub(crate) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
    pub(crate) const SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
    pub(crate) const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
}

/// The table of divisors for Llama 3's rule, which is no weight.
pub(crate) const ROPE_FREQS: &str = "rope_freqs.weight";
pub(crate) const EMBEDDING: &str = "token_embd.weight";
pub(crate) const HEAD: &str = "output.weight";

/// GGUF name -> Hugging Face name, of tensors outside the layers.
const MODEL_NAMES: [(&str, &str); 3] = [
    (EMBEDDING, "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    (HEAD, "lm_head.weight"),
];

/// GGUF name inside a block -> Hugging Face name inside a layer.
const LAYER_NAMES: [(&str, &str); 9] = [
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Of fused tensors: llama.cpp cuts `ffn_up` in halves where there is no `ffn_gate`.
const FUSED_NAMES: [(&str, &str); 2] = [("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")];

/// The tensor that chooses experts.
const ROUTER_NAMES: [(&str, &str); 1] = [("ffn_gate_inp", "mlp.gate")];

/// Of experts: a tensor holds the matrices of all experts of a layer, one after the other.
const EXPERT_NAMES: [(&str, &str); 3] =
    [("ffn_gate_exps", "gate_proj"), ("ffn_up_exps", "up_proj"), ("ffn_down_exps", "down_proj")];

/// Of linear attention.
const DELTA_NAMES: [(&str, &str); 7] = [
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

/// Whole names of linear attention.
const DELTA_WHOLE: [(&str, &str); 2] =
    [("ssm_a", "linear_attn.A_log"), ("ssm_dt.bias", "linear_attn.dt_bias")];

/// Of the second norm before a part of a family with linear attention.
const DELTA_NORM: (&str, &str) = ("post_attention_norm", "post_attention_layernorm");

/// The end of the name of a convolution, whose middle axis of 1 no file has.
pub(crate) const CONVOLUTION: &str = "linear_attn.conv1d.weight";

/// Norms before the parts of a layer, and after them.
const NORM_NAMES: [[&str; 2]; 2] = [["attn_norm", "ffn_norm"], ["post_attention_norm", "post_ffw_norm"]];

/// Returns the names inside a layer of an architecture, the more special ones first.
fn layer_names(row: &Architecture) -> impl Iterator<Item = (&'static str, &'static str)> {
    let fused = FUSED_NAMES.into_iter().filter(|_| row.is_fused);
    let norms = NORM_NAMES.into_iter().zip([row.norms.before, row.norms.after]);
    let norms = norms.filter_map(|(gguf, hf)| Some(gguf.into_iter().zip(hf?))).flatten();
    let routers = ROUTER_NAMES.into_iter().filter(|_| row.has_experts);
    let delta = std::iter::once(DELTA_NORM).chain(DELTA_NAMES).filter(|_| row.has_delta);
    fused.chain(delta).chain(norms).chain(routers).chain(LAYER_NAMES)
}

/// Numbers of the encodings.
const ENCODINGS: [(u32, Encoding); 11] = [
    (0, Encoding::F32),
    (1, Encoding::F16),
    (2, Encoding::Q4_0),
    (3, Encoding::Q4_1),
    (6, Encoding::Q5_0),
    (7, Encoding::Q5_1),
    (8, Encoding::Q8_0),
    (12, Encoding::Q4K),
    (13, Encoding::Q5K),
    (14, Encoding::Q6K),
    (30, Encoding::Bf16),
];

/// Returns the encoding of a number.
pub(crate) fn encoding_of(number: u32) -> Option<Encoding> {
    ENCODINGS.iter().find(|(listed, _)| *listed == number).map(|(_, encoding)| *encoding)
}

/// Returns the number of an encoding.
pub(crate) fn number_of(encoding: Encoding) -> u32 {
    let row = ENCODINGS.iter().find(|(_, listed)| *listed == encoding);
    row.expect("every encoding has a row").0
}

/// Returns the Hugging Face name of a tensor; none of one that the architecture does not have.
pub(crate) fn hf_name(row: &Architecture, name: &str) -> Option<String> {
    if let Some((_, hf)) = MODEL_NAMES.iter().find(|(gguf, _)| *gguf == name) {
        return Some((*hf).into());
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    if let Some((_, hf)) = DELTA_WHOLE.iter().find(|(gguf, _)| row.has_delta && *gguf == rest) {
        return Some(format!("model.layers.{layer}.{hf}"));
    }
    let (part, kind) = rest.rsplit_once('.')?;
    let (_, hf) = layer_names(row).find(|(gguf, _)| *gguf == part)?;
    Some(format!("model.layers.{layer}.{hf}.{kind}"))
}

/// Returns the Hugging Face name of an expert's matrix in a tensor that holds those of all; none of any other tensor.
pub(crate) fn hf_expert_name(row: &Architecture, name: &str) -> Option<impl Fn(u32) -> String> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let part = rest.strip_suffix(".weight").filter(|_| row.has_experts)?;
    let (_, hf) = EXPERT_NAMES.iter().find(|(gguf, _)| *gguf == part)?;
    Some(move |expert| format!("model.layers.{layer}.mlp.experts.{expert}.{hf}.weight"))
}

/// True of a matrix of an expert, by its Hugging Face name.
pub(crate) fn is_of_expert(name: &str) -> bool {
    name.contains(".mlp.experts.")
}

/// Returns the tensors of a model as `expected_tensors` does, in the order of a GGUF file: of a layer's experts all gates, then all ups,
/// then all downs.
pub fn gguf_order(spec: &ModelSpec) -> Vec<(String, Vec<u64>)> {
    let mut list = expected_tensors(spec);
    let place = |name: &str| EXPERT_NAMES.iter().position(|(_, hf)| name.contains(&format!(".{hf}.")));
    for run in list.chunk_by_mut(|(a, _), (b, _)| is_of_expert(a) && is_of_expert(b)) {
        run.sort_by_key(|(name, _)| place(name));
    }
    list
}

/// Returns the GGUF name of a tensor: the inverse of `hf_name` and `hf_expert_name`.
pub(crate) fn gguf_name(row: &Architecture, name: &str) -> Option<String> {
    if let Some((gguf, _)) = MODEL_NAMES.iter().find(|(_, hf)| *hf == name) {
        return Some((*gguf).into());
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    if let Some((gguf, _)) = DELTA_WHOLE.iter().find(|(_, hf)| row.has_delta && *hf == rest) {
        return Some(format!("blk.{layer}.{gguf}"));
    }
    let (part, kind) = rest.rsplit_once('.')?;
    let gguf = match part.strip_prefix("mlp.experts.").and_then(|rest| rest.split_once('.')) {
        Some((_, part)) => EXPERT_NAMES.into_iter().find(|(_, hf)| row.has_experts && *hf == part)?.0,
        None => layer_names(row).find(|(_, hf)| *hf == part)?.0,
    };
    Some(format!("blk.{layer}.{gguf}.{kind}"))
}

/// Returns the architecture under whose name GGUF files hold a family, if they are read and written: Mistral is stored as Llama.
pub(crate) fn stored_as(family: Family) -> Option<&'static Architecture> {
    let name = family.architecture().gguf?;
    ARCHITECTURES.iter().find(|row| row.gguf == Some(name))
}

/// Returns what a file of the stored family adds to a tensor: norms are whole there, where the model has their distance from 1.
pub(crate) fn added(spec: &ModelSpec, name: &str) -> f32 {
    let is_whole = name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight");
    if is_whole { spec.architecture().norm_offset } else { 0.0 }
}

/// How a decoder attends of which a file says the keys of its windows and little else: llama.cpp has the rest in its code. `spec`: the
/// shape; `said`: what the file says, with no layers in its window.
pub(crate) fn attention(spec: &ModelSpec, said: Attention) -> Attention {
    let windows = spec.architecture().windows;
    let window = said.window.and_then(|window| match windows {
        Windows::AllButEvery { n, own_rope } => Some(Window {
            layers: LayerSet::all_but_every(n, spec.layers),
            rope_theta: window.rope_theta.filter(|_| own_rope),
            ..window
        }),
        _ => None,
    });
    let root = |width: u32| Some(1.0 / (width as f32).sqrt());
    let scale = match (spec.family, spec.layers) {
        // Those of 27B.
        (Family::Gemma2, 46) | (Family::Gemma3, 62) => root(spec.hidden / spec.heads),
        (Family::Gemma2 | Family::Gemma3, _) => root(spec.head_dim),
        _ => said.scale,
    };
    let unrotated = match spec.family {
        Family::SmolLm3 => LayerSet::every(4, spec.layers),
        _ => LayerSet::default(),
    };
    let gated = spec.architecture().has_delta;
    Attention {
        window,
        unrotated,
        scale,
        rotated: said.rotated.filter(|_| gated),
        score_cap: said.score_cap,
        gated,
    }
}

/// Returns the order of the rows of a tensor, by its Hugging Face name, in a file of the stored family.
pub(crate) fn row_order(spec: &ModelSpec, name: &str) -> RowOrder {
    if let Some((delta, name)) =
        spec.delta.zip(name.split_once(".linear_attn.")).map(|(delta, (_, name))| (delta, name))
    {
        return delta_order(delta, name);
    }
    let rotated = name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight");
    match stored_as(spec.family).is_some_and(|row| row.gguf_rope_pairs) && rotated {
        true => RowOrder::RopePairs { head_dim: spec.head_dim },
        false => RowOrder::Stored,
    }
}

/// Returns that of a tensor of linear attention, by its name there.
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

/// Returns every how many layers one attends to keys, if all others have linear attention.
pub(crate) fn interval(spec: &ModelSpec) -> Option<u32> {
    let delta = spec.delta?;
    (2..=spec.layers).find(|&n| delta.layers == LayerSet::all_but_every(n, spec.layers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{ExpertsSpec, QkNorms};

    #[test]
    fn names_and_numbers_are_their_own_inverse() {
        for (number, encoding) in ENCODINGS {
            assert_eq!((encoding_of(number), number_of(encoding)), (Some(encoding), number));
        }
        let mut spec = ModelSpec::preset("qwen2.5-0.5b").expect("a preset");
        (spec.qk_norms, spec.tied) = (Some(QkNorms::Heads), false);
        let layers = LayerSet::of(spec.layers, |_| true);
        let of = ExpertsSpec { count: 3, chosen: 2, ffn: 16, normalizes: true, layers, balance: 0.0 };
        for family in Family::ALL.into_iter().filter(|family| family.architecture().gguf.is_some()) {
            let row = family.architecture();
            let delta = ModelSpec::preset("qwen3.5-0.8b").unwrap().delta.filter(|_| row.has_delta);
            let spec = ModelSpec { family, delta, experts: row.has_experts.then_some(of), ..spec };
            for (name, _) in expected_tensors(&spec) {
                let gguf = gguf_name(row, &name).unwrap_or_else(|| panic!("{family}: {name} has no name"));
                match hf_expert_name(row, &gguf) {
                    Some(each) => assert!((0..3).any(|expert| each(expert) == name), "{family}: {gguf}"),
                    None => assert_eq!(hf_name(row, &gguf), Some(name), "{family}"),
                }
            }
            assert_eq!(gguf_name(row, "model.layers.0.mlp.experts.weight"), None);
        }
    }
}
