//! What a model file says about each tensor, and what a model of a given shape must contain.
//! Names are Hugging Face's, whatever the file calls them.
//!
//! Legend: V vocab, h hidden, a query heads, k key-value heads, d head dim, f feed-forward, of an expert where there are E.

use plimsoll_base::{CONV_TAPS, Encoding, ModelSpec, QkNorms};

/// In which order the rows lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// As the model wants them.
    Stored,
    /// GGUF's order for q and k of Llama: rows i and i + d/2 of a head are neighbours 2i and 2i + 1.
    RopePairs {
        /// d: rows of one head.
        head_dim: u32,
    },
    /// GGUF's order of heads of values of linear attention: those that are first of their head of keys, then those that are second, ..
    ValueHeads {
        /// Rows before these heads, which lie as the model wants them.
        from: u32,
        heads: ValueHeads,
    },
    /// That order for the columns of a matrix.
    ValueColumns(ValueHeads),
    /// That order for numbers x, each stored as -e^x.
    Decays(ValueHeads),
}

/// Heads of values that share heads of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueHeads {
    /// Heads of keys.
    pub keys: u32,
    /// Heads of values that share one.
    pub each: u32,
    /// Rows, or columns, of a head of values.
    pub width: u32,
}

impl ValueHeads {
    /// Returns where the file keeps a row or column.
    fn stored(self, at: u64) -> u64 {
        let [keys, each, width] = [self.keys, self.each, self.width].map(u64::from);
        let (head, within) = (at / width, at % width);
        (head % each * keys + head / each) * width + within
    }
}

impl RowOrder {
    /// Returns where the file keeps row `row`.
    pub(crate) fn stored_row(self, row: u64) -> u64 {
        match self {
            RowOrder::Stored | RowOrder::ValueColumns(_) => row,
            RowOrder::ValueHeads { from, heads } => match row.checked_sub(from.into()) {
                Some(row) => u64::from(from) + heads.stored(row),
                None => row,
            },
            RowOrder::Decays(heads) => heads.stored(row),
            RowOrder::RopePairs { head_dim } => {
                let head_dim = u64::from(head_dim);
                let (head, within, half) = (row / head_dim, row % head_dim, head_dim / 2);
                head * head_dim + 2 * (within % half) + within / half
            }
        }
    }

    /// Turns values of a row that were read into the model's.
    pub(crate) fn read(self, row: &mut [f32]) {
        match self {
            RowOrder::ValueColumns(heads) => {
                let stored = row.to_vec();
                (0..).zip(row).for_each(|(at, x)| *x = stored[heads.stored(at) as usize]);
            }
            RowOrder::Decays(_) => row.iter_mut().for_each(|x| *x = (-f64::from(*x)).ln() as f32),
            _ => {}
        }
    }

    /// The inverse of `read`.
    pub(crate) fn write(self, row: &mut [f32]) {
        match self {
            RowOrder::ValueColumns(heads) => {
                let own = row.to_vec();
                (0..).zip(own).for_each(|(at, x)| row[heads.stored(at) as usize] = x);
            }
            RowOrder::Decays(_) => row.iter_mut().for_each(|x| *x = -f64::from(*x).exp() as f32),
            _ => {}
        }
    }
}

/// One tensor of an open model, checked to lie inside its file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Hugging Face name.
    pub name: String,
    /// Slowest axis first.
    pub shape: Vec<u64>,
    /// How elements are stored.
    pub encoding: Encoding,
    /// Which file of the model.
    pub file: usize,
    /// First byte within that file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Order of the rows in the file.
    pub row_order: RowOrder,
    /// What the file has added to each element.
    pub added: f32,
}

/// The head of a model for sequence classification.
pub const SCORE: &str = "score.weight";

/// Names and shapes of the tensors that a model of this spec has, in the order in which they are saved.
///
/// A tied head is not listed: it is the embedding.
pub fn expected_tensors(spec: &ModelSpec) -> Vec<(String, Vec<u64>)> {
    let (v, h, f) = (u64::from(spec.vocab), u64::from(spec.hidden), u64::from(spec.ffn));
    let mut list = vec![("model.embed_tokens.weight".to_string(), vec![v, h])];
    let norms = spec.architecture().norms;
    for layer in 0..spec.layers {
        let mut add = |name: &str, shape: &[u64]| {
            list.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        };
        let norm =
            |names: Option<[&str; 2]>, part: usize| names.map(|names| format!("{}.weight", names[part]));
        norm(norms.before, 0).iter().for_each(|name| add(name, &[h]));
        if let Some(delta) = spec.delta_of(layer) {
            let (conv, v, heads) =
                (delta.conv_width().into(), delta.value_width().into(), delta.value_heads.into());
            for (part, rows) in [("qkv", conv), ("z", v), ("b", heads), ("a", heads)] {
                add(&format!("linear_attn.in_proj_{part}.weight"), &[rows, h]);
            }
            add("linear_attn.conv1d.weight", &[conv, 1, CONV_TAPS.into()]);
            add("linear_attn.A_log", &[heads]);
            add("linear_attn.dt_bias", &[heads]);
            add("linear_attn.norm.weight", &[delta.value_dim.into()]);
            add("linear_attn.out_proj.weight", &[h, v]);
        } else {
            attention(spec, &mut add);
        }
        norm(norms.after, 0).iter().for_each(|name| add(name, &[h]));
        norm(norms.before, 1).iter().for_each(|name| add(name, &[h]));
        if let Some(experts) = spec.experts_of(layer) {
            let f = u64::from(experts.ffn);
            add("mlp.gate.weight", &[experts.count.into(), h]);
            for expert in 0..experts.count {
                add(&format!("mlp.experts.{expert}.gate_proj.weight"), &[f, h]);
                add(&format!("mlp.experts.{expert}.up_proj.weight"), &[f, h]);
            }
            for expert in 0..experts.count {
                add(&format!("mlp.experts.{expert}.down_proj.weight"), &[h, f]);
            }
        } else if spec.architecture().is_fused {
            add("mlp.gate_up_proj.weight", &[2 * f, h]);
            add("mlp.down_proj.weight", &[h, f]);
        } else {
            add("mlp.gate_proj.weight", &[f, h]);
            add("mlp.up_proj.weight", &[f, h]);
            add("mlp.down_proj.weight", &[h, f]);
        }
        if spec.mlp_bias {
            add("mlp.gate_proj.bias", &[f]);
            add("mlp.up_proj.bias", &[f]);
            add("mlp.down_proj.bias", &[h]);
        }
        norm(norms.after, 1).iter().for_each(|name| add(name, &[h]));
    }
    list.push(("model.norm.weight".to_string(), vec![h]));
    if !spec.tied {
        list.push(("lm_head.weight".to_string(), vec![v, h]));
    }
    list
}

/// The tensors of a layer's attention over keys.
fn attention(spec: &ModelSpec, add: &mut impl FnMut(&str, &[u64])) {
    let (h, d) = (u64::from(spec.hidden), u64::from(spec.head_dim));
    let (q, kv) = (u64::from(spec.q_width()), u64::from(spec.kv_width()));
    let of_q = if spec.attention.gated { 2 * q } else { q };
    if spec.architecture().is_fused {
        add("self_attn.qkv_proj.weight", &[q + 2 * kv, h]);
    } else {
        add("self_attn.q_proj.weight", &[of_q, h]);
        add("self_attn.k_proj.weight", &[kv, h]);
        add("self_attn.v_proj.weight", &[kv, h]);
    }
    if spec.qkv_bias {
        add("self_attn.q_proj.bias", &[of_q]);
        add("self_attn.k_proj.bias", &[kv]);
        add("self_attn.v_proj.bias", &[kv]);
    }
    if let Some(norms) = spec.qk_norms {
        let [q, kv] = if norms == QkNorms::Rows { [q, kv] } else { [d, d] };
        add("self_attn.q_norm.weight", &[q]);
        add("self_attn.k_norm.weight", &[kv]);
    }
    add("self_attn.o_proj.weight", &[h, q]);
    if spec.output_bias {
        add("self_attn.o_proj.bias", &[h]);
    }
}
