//! A tiny model on disk, as safetensors and as GGUF, made by writers that check nothing, so that they can lie.

#![allow(dead_code)] // the tests of `plimsoll` use a part

use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// vocab 6, hidden 4, one layer, two heads of 2, one key-value head, feed-forward 8, tied.
pub fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 6, "hidden_size": 4,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 16, "tie_word_embeddings": true,
        "eos_token_id": 1,
    })
}

/// Names and shapes of that model.
pub fn shapes() -> Vec<(String, Vec<u64>)> {
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    vec![
        ("model.embed_tokens.weight".into(), vec![6, 4]),
        (layer("input_layernorm"), vec![4]),
        (layer("self_attn.q_proj"), vec![4, 4]),
        (layer("self_attn.k_proj"), vec![2, 4]),
        (layer("self_attn.v_proj"), vec![2, 4]),
        (layer("self_attn.o_proj"), vec![4, 4]),
        (layer("post_attention_layernorm"), vec![4]),
        (layer("mlp.gate_proj"), vec![8, 4]),
        (layer("mlp.up_proj"), vec![8, 4]),
        (layer("mlp.down_proj"), vec![4, 8]),
        ("model.norm.weight".into(), vec![4]),
    ]
}

/// Value `i` of a tensor of that model.
pub fn value(tensor: usize, i: usize) -> f32 {
    tensor as f32 + i as f32 / 64.0
}

/// A header for these tensors, laid out one after the other, and all values as f32.
pub fn header_and_data(tensors: &[(String, Vec<u64>)]) -> (Map<String, Value>, Vec<u8>) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (number, (name, shape)) in tensors.iter().enumerate() {
        let start = data.len();
        for i in 0..shape.iter().product::<u64>() as usize {
            data.extend(value(number, i).to_le_bytes());
        }
        header.insert(
            name.clone(),
            json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] }),
        );
    }
    (header, data)
}

/// A safetensors file of a header's text and its data.
pub fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// The whole model in one file.
pub fn valid_safetensors() -> Vec<u8> {
    let (header, data) = header_and_data(&shapes());
    safetensors(&Value::Object(header).to_string(), &data)
}

/// A model directory with these weights.
pub fn directory(dir: &Path, weights: &[u8]) -> PathBuf {
    std::fs::write(dir.join("config.json"), config().to_string()).unwrap();
    std::fs::write(dir.join("model.safetensors"), weights).unwrap();
    dir.to_path_buf()
}

/// A GGUF value: type number and bytes.
pub enum Meta {
    U32(u32),
    F32(f32),
    Str(&'static str),
    Strs(Vec<String>),
    Ints(Vec<i32>),
    Raw(u32, Vec<u8>),
}

/// One GGUF tensor as it is listed: shape slowest axis first, type, offset.
pub struct Listed {
    pub name: String,
    pub shape: Vec<u64>,
    pub kind: u32,
    pub offset: u64,
}

pub fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A GGUF file; counts and offsets are written as they are given.
pub fn gguf(meta: &[(&str, Meta)], tensors: &[Listed], data: &[u8]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((meta.len() as u64).to_le_bytes());
    for (key, value) in meta {
        string(&mut out, key);
        let (kind, bytes) = match value {
            Meta::U32(n) => (4, n.to_le_bytes().to_vec()),
            Meta::F32(x) => (6, x.to_le_bytes().to_vec()),
            Meta::Raw(kind, bytes) => (*kind, bytes.clone()),
            Meta::Str(text) => {
                let mut bytes = Vec::new();
                string(&mut bytes, text);
                (8, bytes)
            }
            Meta::Strs(list) => {
                let mut bytes =
                    [8u32.to_le_bytes().to_vec(), (list.len() as u64).to_le_bytes().to_vec()].concat();
                list.iter().for_each(|text| string(&mut bytes, text));
                (9, bytes)
            }
            Meta::Ints(list) => {
                let mut bytes =
                    [5u32.to_le_bytes().to_vec(), (list.len() as u64).to_le_bytes().to_vec()].concat();
                list.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
                (9, bytes)
            }
        };
        out.extend(u32::to_le_bytes(kind));
        out.extend(bytes);
    }
    for tensor in tensors {
        string(&mut out, &tensor.name);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(tensor.kind.to_le_bytes());
        out.extend(tensor.offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
}

/// Metadata of the tiny model.
pub fn gguf_meta(arch: &'static str) -> Vec<(&'static str, Meta)> {
    let mut meta = vec![("general.architecture", Meta::Str(arch))];
    let keys: &[(&'static str, &'static str, u32)] = &[
        ("llama.embedding_length", "qwen2.embedding_length", 4),
        ("llama.block_count", "qwen2.block_count", 1),
        ("llama.feed_forward_length", "qwen2.feed_forward_length", 8),
        ("llama.attention.head_count", "qwen2.attention.head_count", 2),
        ("llama.attention.head_count_kv", "qwen2.attention.head_count_kv", 1),
        ("llama.context_length", "qwen2.context_length", 16),
    ];
    for (llama, qwen2, n) in keys {
        meta.push((if arch == "qwen2" { qwen2 } else { llama }, Meta::U32(*n)));
    }
    let eps = if arch == "qwen2" {
        "qwen2.attention.layer_norm_rms_epsilon"
    } else {
        "llama.attention.layer_norm_rms_epsilon"
    };
    meta.push((eps, Meta::F32(1e-5)));
    meta.push(("tokenizer.ggml.model", Meta::Str("gpt2")));
    meta.push(("tokenizer.ggml.pre", Meta::Str("gpt-2")));
    meta.push((
        "tokenizer.ggml.tokens",
        Meta::Strs(["a", "b", "c", "ab", "<e>", "d"].map(String::from).to_vec()),
    ));
    meta.push(("tokenizer.ggml.token_type", Meta::Ints(vec![1, 1, 1, 1, 3, 1])));
    meta.push(("tokenizer.ggml.merges", Meta::Strs(vec!["a b".into()])));
    meta.push(("tokenizer.ggml.eos_token_id", Meta::U32(4)));
    meta
}

/// GGUF names of the tensors of `shapes`, in the same order.
pub const GGUF_NAMES: [&str; 11] = [
    "token_embd.weight",
    "blk.0.attn_norm.weight",
    "blk.0.attn_q.weight",
    "blk.0.attn_k.weight",
    "blk.0.attn_v.weight",
    "blk.0.attn_output.weight",
    "blk.0.ffn_norm.weight",
    "blk.0.ffn_gate.weight",
    "blk.0.ffn_up.weight",
    "blk.0.ffn_down.weight",
    "output_norm.weight",
];

/// Tensors of the tiny model as f32, each on a multiple of 32 bytes.
pub fn gguf_tensors() -> (Vec<Listed>, Vec<u8>) {
    let (mut listed, mut data) = (Vec::new(), Vec::<u8>::new());
    for (number, (_, shape)) in shapes().into_iter().enumerate() {
        data.resize(data.len().next_multiple_of(32), 0);
        listed.push(Listed {
            name: GGUF_NAMES[number].into(),
            kind: 0,
            offset: data.len() as u64,
            shape: shape.clone(),
        });
        for i in 0..shape.iter().product::<u64>() as usize {
            data.extend(value(number, i).to_le_bytes());
        }
    }
    (listed, data)
}

/// The whole tiny model as one GGUF file.
pub fn valid_gguf() -> Vec<u8> {
    let (tensors, data) = gguf_tensors();
    gguf(&gguf_meta("llama"), &tensors, &data)
}
