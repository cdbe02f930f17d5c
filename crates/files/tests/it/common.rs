//! A tiny model on disk, as safetensors and as GGUF, made by writers that check nothing, so that they can lie.

#![allow(dead_code)] // the tests of `plimsoll` use a part

use plimsoll_base::Encoding::{self, Bf16, F16, F32, Nf4, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
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

/// Encodings of q, k, v, output, gate, up and down, by layer: every one that is read.
pub const MIXED: [[Encoding; 7]; 2] =
    [[Q4K, Q5K, Q6K, Q4K, Q4K, Q4_1, Q6K], [Q4_0, Bf16, Q8_0, Q5_1, F16, F32, Q5_0]];

/// GGUF names and shapes of the seven: four heads of 64, two of keys.
const LAYER: [(&str, [u64; 2]); 7] = [
    ("attn_q", [256, 256]),
    ("attn_k", [128, 256]),
    ("attn_v", [128, 256]),
    ("attn_output", [256, 256]),
    ("ffn_gate", [512, 256]),
    ("ffn_up", [512, 256]),
    ("ffn_down", [256, 512]),
];

/// Llama with the tokens of `builtin:nano`, tied, with random matrices in these encodings, as one GGUF file.
pub fn coded_gguf(layers: &[[Encoding; 7]]) -> Vec<u8> {
    let mut meta = gguf_meta("llama");
    for (key, value) in &mut meta {
        let number = match key.rsplit_once('.').map(|(_, last)| last) {
            Some("embedding_length") => 256,
            Some("block_count") => layers.len() as u32,
            Some("feed_forward_length") => 512,
            Some("head_count") => 4,
            Some("head_count_kv") => 2,
            Some("context_length") => 64,
            Some("eos_token_id") => 1,
            _ => continue,
        };
        *value = Meta::U32(number);
    }
    say_tokens_of_nano(&mut meta);
    let (mut listed, mut data, mut state) = (Vec::new(), Vec::<u8>::new(), 1u32);
    let mut add = |name: String, shape: &[u64], bytes: Vec<u8>, encoding: Encoding| {
        data.resize(data.len().next_multiple_of(32), 0);
        let (shape, kind, offset) = (shape.to_vec(), kind_of(encoding), data.len() as u64);
        listed.push(Listed { name, shape, kind, offset });
        data.extend(bytes);
    };
    let ones = || (0..256).flat_map(|_| 1f32.to_le_bytes()).collect::<Vec<u8>>();
    add("token_embd.weight".into(), &[15, 256], blocks(Q8_0, 15 * 256, &mut state), Q8_0);
    for (layer, encodings) in layers.iter().enumerate() {
        for (encoding, (name, shape)) in encodings.iter().zip(LAYER) {
            let bytes = blocks(*encoding, shape[0] * shape[1], &mut state);
            add(format!("blk.{layer}.{name}.weight"), &shape, bytes, *encoding);
        }
        for name in ["attn_norm", "ffn_norm"] {
            add(format!("blk.{layer}.{name}.weight"), &[256], ones(), F32);
        }
    }
    add("output_norm.weight".into(), &[256], ones(), F32);
    gguf(&meta, &listed, &data)
}

/// Qwen3-MoE with the tokens of `builtin:nano`, tied: 3 experts of 256 in each layer, 2 of them for a token, with
/// gates, ups and downs in these encodings.
pub fn experts_gguf(layers: &[[Encoding; 3]]) -> Vec<u8> {
    let mut meta = vec![("general.architecture", Meta::Str("qwen3moe"))];
    meta.extend([
        ("qwen3moe.embedding_length", Meta::U32(256)),
        ("qwen3moe.block_count", Meta::U32(layers.len() as u32)),
        ("qwen3moe.feed_forward_length", Meta::U32(512)),
        ("qwen3moe.attention.head_count", Meta::U32(4)),
        ("qwen3moe.attention.head_count_kv", Meta::U32(2)),
        ("qwen3moe.attention.key_length", Meta::U32(64)),
        ("qwen3moe.context_length", Meta::U32(64)),
        ("qwen3moe.attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
        ("qwen3moe.expert_count", Meta::U32(3)),
        ("qwen3moe.expert_used_count", Meta::U32(2)),
        ("qwen3moe.expert_feed_forward_length", Meta::U32(256)),
        ("tokenizer.ggml.model", Meta::Str("gpt2")),
        ("tokenizer.ggml.pre", Meta::Str("gpt-2")),
        ("tokenizer.ggml.eos_token_id", Meta::U32(1)),
    ]);
    say_tokens_of_nano(&mut meta);
    let (mut listed, mut data, mut state) = (Vec::new(), Vec::<u8>::new(), 1u32);
    let mut add = |name: String, shape: &[u64], encoding: Option<Encoding>| {
        data.resize(data.len().next_multiple_of(32), 0);
        let (values, kind) = (shape.iter().product::<u64>(), kind_of(encoding.unwrap_or(F32)));
        listed.push(Listed { name, shape: shape.to_vec(), kind, offset: data.len() as u64 });
        data.extend(match encoding {
            Some(encoding) => blocks(encoding, values, &mut state),
            None => (0..values).flat_map(|_| 1f32.to_le_bytes()).collect(),
        });
    };
    add("token_embd.weight".into(), &[15, 256], Some(Q8_0));
    for (layer, [gate, up, down]) in layers.iter().enumerate() {
        let mut add = |name: &str, shape: &[u64], encoding| {
            add(format!("blk.{layer}.{name}.weight"), shape, encoding);
        };
        LAYER[..4].iter().for_each(|(name, shape)| add(name, shape, Some(Q4K)));
        add("ffn_gate_inp", &[3, 256], Some(F32));
        add("ffn_gate_exps", &[3, 256, 256], Some(*gate));
        add("ffn_up_exps", &[3, 256, 256], Some(*up));
        add("ffn_down_exps", &[3, 256, 256], Some(*down));
        [("attn_norm", 256), ("ffn_norm", 256), ("attn_q_norm", 64), ("attn_k_norm", 64)]
            .iter()
            .for_each(|(name, width)| add(name, &[*width], None));
    }
    add("output_norm.weight".into(), &[256], None);
    gguf(&meta, &listed, &data)
}

/// The tokens of `builtin:nano` instead of those that are there.
fn say_tokens_of_nano(meta: &mut Vec<(&'static str, Meta)>) {
    meta.retain(|(key, _)| !["tokens", "token_type", "merges"].iter().any(|end| key.ends_with(end)));
    let tokens = ["<pad>", "<eos>"].into_iter().map(String::from);
    let tokens: Vec<String> = tokens.chain("0123456789+=Ġ".chars().map(String::from)).collect();
    meta.push((
        "tokenizer.ggml.token_type",
        Meta::Ints((0..15).map(|id| if id < 2 { 3 } else { 1 }).collect()),
    ));
    meta.push(("tokenizer.ggml.tokens", Meta::Strs(tokens)));
    meta.push(("tokenizer.ggml.merges", Meta::Strs(Vec::new())));
}

/// The number of an encoding in GGUF files.
fn kind_of(encoding: Encoding) -> u32 {
    match encoding {
        F32 => 0,
        F16 => 1,
        Q4_0 => 2,
        Q4_1 => 3,
        Q5_0 => 6,
        Q5_1 => 7,
        Q8_0 => 8,
        Q4K => 12,
        Q5K => 13,
        Q6K => 14,
        Bf16 => 30,
        Nf4 | Encoding::Mxfp4 => panic!("files hold none"),
    }
}

/// Random blocks of `values` numbers of about 0.02, either sign.
fn blocks(encoding: Encoding, values: u64, state: &mut u32) -> Vec<u8> {
    let mut random = || {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *state >> 16
    };
    // Scales and minima with their places; a 16-bit number not below 2^-14 is an f32 without its lowest 13 bits.
    let halves: &[(usize, f32)] = match encoding {
        F32 | F16 | Bf16 | Nf4 | Encoding::Mxfp4 => &[],
        Q8_0 => &[(0, 3e-4)],
        Q4_0 => &[(0, 4e-3)],
        Q4_1 => &[(0, 4e-3), (2, -0.03)],
        Q5_0 => &[(0, 2e-3)],
        Q5_1 => &[(0, 2e-3), (2, -0.031)],
        Q4K => &[(0, 7e-5), (2, 5e-4)],
        Q5K => &[(0, 7e-5), (2, 1e-3)],
        Q6K => &[(208, 7e-5)],
    };
    let half = |x: f32| {
        (((x.to_bits() & 0x7fff_ffff) - (112 << 23)) >> 13) as u16 | (x.is_sign_negative() as u16) << 15
    };
    let mut bytes = Vec::new();
    for _ in 0..values / encoding.block_values() {
        let x = (random() as f32 / 32768.0 - 1.0) * 0.05;
        let start = bytes.len();
        match encoding {
            F32 => bytes.extend(x.to_le_bytes()),
            Bf16 => bytes.extend(&x.to_le_bytes()[2..]),
            F16 => bytes.extend(half(if x.abs() < 1e-4 { 1e-4 } else { x }).to_le_bytes()),
            _ => bytes.extend((0..encoding.block_bytes()).map(|_| random() as u8)),
        }
        for &(at, about) in halves {
            let x = about * (1.0 + random() as f32 / 65536.0);
            bytes[start + at..][..2].copy_from_slice(&half(x).to_le_bytes());
        }
    }
    bytes
}
