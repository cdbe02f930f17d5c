//! What things are called in a GGUF file. The reader and the writer use these tables, so that neither knows a name that the
//! other does not.

use crate::tensors::RowOrder;
use plimsoll_base::{ARCHITECTURES, Architecture, Encoding, Family, ModelSpec};

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
    pub(crate) const HEADS: &str = "attention.head_count";
    pub(crate) const KV_HEADS: &str = "attention.head_count_kv";
    pub(crate) const KEY_LENGTH: &str = "attention.key_length";
    pub(crate) const VALUE_LENGTH: &str = "attention.value_length";
    pub(crate) const RMS_EPS: &str = "attention.layer_norm_rms_epsilon";
    pub(crate) const ROPE_DIM: &str = "rope.dimension_count";
    pub(crate) const ROPE_BASE: &str = "rope.freq_base";
    pub(crate) const ROPE_SCALING: &str = "rope.scaling.type";
    pub(crate) const ROPE_FACTOR: &str = "rope.scaling.factor";
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
const LAYER_NAMES: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

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

/// Returns the Hugging Face name of a tensor; none of one that no built architecture has.
pub(crate) fn hf_name(name: &str) -> Option<String> {
    if let Some((_, hf)) = MODEL_NAMES.iter().find(|(gguf, _)| *gguf == name) {
        return Some((*hf).into());
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let (part, kind) = rest.rsplit_once('.')?;
    let (_, hf) = LAYER_NAMES.iter().find(|(gguf, _)| *gguf == part)?;
    Some(format!("model.layers.{layer}.{hf}.{kind}"))
}

/// Returns the GGUF name of a tensor: the inverse of `hf_name`.
pub(crate) fn gguf_name(name: &str) -> Option<String> {
    if let Some((gguf, _)) = MODEL_NAMES.iter().find(|(_, hf)| *hf == name) {
        return Some((*gguf).into());
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    let (part, kind) = rest.rsplit_once('.')?;
    let (gguf, _) = LAYER_NAMES.iter().find(|(_, hf)| *hf == part)?;
    Some(format!("blk.{layer}.{gguf}.{kind}"))
}

/// Returns the architecture under whose name GGUF files hold a family, if they are read and written: Mistral is stored as Llama.
pub(crate) fn stored_as(family: Family) -> Option<&'static Architecture> {
    let name = family.architecture().gguf?;
    ARCHITECTURES.iter().find(|row| row.gguf == Some(name))
}

/// Returns the order of the rows of a tensor, by its Hugging Face name, in a file of the stored family.
pub(crate) fn row_order(spec: &ModelSpec, name: &str) -> RowOrder {
    let rotated = name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight");
    match stored_as(spec.family).is_some_and(|row| row.gguf_rope_pairs) && rotated {
        true => RowOrder::RopePairs { head_dim: spec.head_dim },
        false => RowOrder::Stored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::expected_tensors;
    use plimsoll_base::QkNorms;

    #[test]
    fn names_and_numbers_are_their_own_inverse() {
        for (number, encoding) in ENCODINGS {
            assert_eq!((encoding_of(number), number_of(encoding)), (Some(encoding), number));
        }
        let mut spec = ModelSpec::preset("qwen2.5-0.5b").expect("a preset");
        (spec.qk_norms, spec.tied) = (Some(QkNorms::Heads), false);
        for (name, _) in expected_tensors(&spec) {
            let gguf = gguf_name(&name).unwrap_or_else(|| panic!("{name} has no name"));
            assert_eq!(hf_name(&gguf), Some(name));
        }
        assert_eq!(gguf_name("model.layers.0.mlp.experts.weight"), None);
    }
}
