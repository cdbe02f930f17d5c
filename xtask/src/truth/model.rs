//! A model folder of a drawn shape: `config.json` and `model.safetensors` with small random weights.

/// Model families, by `model_type`.
pub const FAMILIES: [&str; 4] = ["llama", "qwen2", "qwen3", "mistral"];

pub struct Shape {
    pub family: &'static str,
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ffn: usize,
    /// True if the head is the embedding.
    pub tied: bool,
}

impl Shape {
    pub fn words(&self) -> String {
        let Shape { family, vocab, hidden, layers, heads, kv_heads, head_dim, ffn, tied } = self;
        let tied = if *tied { " tied" } else { "" };
        format!("{family} V{vocab} h{hidden} L{layers} {heads}/{kv_heads}x{head_dim} f{ffn}{tied}")
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (h, q, kv) = (self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut all = vec![("model.embed_tokens.weight".to_string(), vec![self.vocab, h])];
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: &[usize]| {
                all.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
            };
            add("input_layernorm.weight", &[h]);
            add("post_attention_layernorm.weight", &[h]);
            for (name, width) in [("q", q), ("k", kv), ("v", kv)] {
                add(&format!("self_attn.{name}_proj.weight"), &[width, h]);
                if self.family == "qwen2" {
                    add(&format!("self_attn.{name}_proj.bias"), &[width]);
                }
            }
            if self.family == "qwen3" {
                add("self_attn.q_norm.weight", &[self.head_dim]);
                add("self_attn.k_norm.weight", &[self.head_dim]);
            }
            add("self_attn.o_proj.weight", &[h, q]);
            add("mlp.gate_proj.weight", &[self.ffn, h]);
            add("mlp.up_proj.weight", &[self.ffn, h]);
            add("mlp.down_proj.weight", &[h, self.ffn]);
        }
        all.push(("model.norm.weight".to_string(), vec![h]));
        if !self.tied {
            all.push(("lm_head.weight".to_string(), vec![self.vocab, h]));
        }
        all
    }
}

pub fn config_json(shape: &Shape) -> String {
    let Shape { family, vocab, hidden, layers, heads, kv_heads, head_dim, ffn, tied } = shape;
    format!(
        "{{\"model_type\": \"{family}\", \"vocab_size\": {vocab}, \"hidden_size\": {hidden}, \"num_hidden_layers\": {layers}, \
         \"num_attention_heads\": {heads}, \"num_key_value_heads\": {kv_heads}, \"head_dim\": {head_dim}, \
         \"intermediate_size\": {ffn}, \"tie_word_embeddings\": {tied}, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, \
         \"hidden_act\": \"silu\", \"max_position_embeddings\": 2048, \"eos_token_id\": 257, \"bos_token_id\": 256}}\n"
    )
}

/// Returns `model.safetensors` in bf16: norms are 1, everything else is uniform below 1/32.
pub fn safetensors(shape: &Shape) -> Vec<u8> {
    let tensors = shape.tensors();
    let (mut entries, mut end) = (Vec::new(), 0usize);
    for (name, dims) in &tensors {
        let start = end;
        end += 2 * dims.iter().product::<usize>();
        let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
        let dims = dims.join(",");
        entries.push(format!(
            "\"{name}\":{{\"dtype\":\"BF16\",\"shape\":[{dims}],\"data_offsets\":[{start},{end}]}}"
        ));
    }
    let mut header = format!("{{{}}}", entries.join(","));
    // Tensors must begin at a multiple of eight.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    let mut state = 1u32;
    for (name, dims) in &tensors {
        for _ in 0..dims.iter().product::<usize>() {
            let value = if name.ends_with("norm.weight") {
                1.0f32
            } else {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 8) as f32 / (1u32 << 24) as f32 - 0.5) / 16.0
            };
            bytes.extend(((value.to_bits() >> 16) as u16).to_le_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_as_long_as_its_header_says() {
        let shape = Shape {
            family: "qwen3",
            vocab: 300,
            hidden: 32,
            layers: 2,
            heads: 2,
            kv_heads: 1,
            head_dim: 16,
            ffn: 64,
            tied: false,
        };
        let bytes = safetensors(&shape);
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let elements: usize = shape.tensors().iter().map(|(_, dims)| dims.iter().product::<usize>()).sum();
        assert_eq!(bytes.len(), 8 + header + 2 * elements);
        assert!(std::str::from_utf8(&bytes[8..8 + header]).unwrap().contains("lm_head.weight"));
    }
}
