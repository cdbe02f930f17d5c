//! Softmax attention over keys.

use crate::architecture::QkNorms;
use crate::param::ParamKind as Kind;
use crate::tensor_row::{TensorRow, matrix, vector};
use crate::{Cache, LoraTarget, Site};

/// Where the values of a layer come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// A product of the layer's input.
    Own,
    /// A product of the layer's input; each head is divided by the root of its mean square.
    Normed,
    /// Keys before their norm; each head is divided by the root of its mean square.
    OfKeys,
    /// Keys and values are those of an earlier layer: the last one of the same kind that has its own.
    Shared,
}

/// Softmax attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// a: query heads.
    pub heads: u32,
    /// k: key-value heads.
    pub kv_heads: u32,
    /// d: elements of a head.
    pub head_dim: u32,
    /// True if q, k and v have a bias.
    pub qkv_bias: bool,
    /// True if o has a bias.
    pub output_bias: bool,
    /// How q and k are normalised before rope.
    pub qk_norms: Option<QkNorms>,
    /// Keys that a row sees, including its own; none if it sees all before it.
    pub window: Option<u32>,
    /// True if heads are rotated.
    pub is_rotated: bool,
    /// Base of the layer's own unscaled rope; none if it has the model's.
    pub own_theta: Option<f64>,
    /// Elements at the start of a head that are rotated; none is all.
    pub rotated: Option<u32>,
    /// Factor on scores; none is 1/sqrt(d).
    pub scale: Option<f32>,
    /// Soft cap c: scaled scores become c tanh(x / c).
    pub score_cap: Option<f32>,
    /// True if each head has an output gate, computed by the query projection.
    pub gated: bool,
    /// Where values come from.
    pub values: Values,
    /// True if the softmax of each query head has a sink: a logit that takes part in its sum, and has no value.
    pub sinks: bool,
    /// True if values are the keys' rows without what is rotated: attention over latents.
    pub over_latents: bool,
}

impl AttentionSpec {
    /// Returns a*d, the width of all query heads.
    pub const fn q_width(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Returns k*d, the width of all key (or value) heads.
    pub const fn kv_width(&self) -> u32 {
        self.kv_heads * self.head_dim
    }

    /// Returns the elements of q, k and v of a row.
    pub const fn qkv_width(&self) -> u32 {
        self.q_width() + 2 * self.kv_width()
    }

    /// Returns the outputs of the input projection: q, k, v if it is not of keys, and output gates if heads have them.
    pub const fn input_width(&self) -> u32 {
        let of_keys = match self.values {
            Values::Own | Values::Normed => 2 * self.kv_width(),
            Values::OfKeys => self.kv_width(),
            Values::Shared => 0,
        };
        self.q_width() + of_keys + if self.gated { self.q_width() } else { 0 }
    }

    /// Returns the number of rotated elements of a head.
    pub fn rotary_width(&self) -> u32 {
        self.rotated.unwrap_or(self.head_dim)
    }

    /// Returns the FLOPs of a row with `context` keys between the two projections.
    pub(super) fn flops(&self, context: u64) -> u64 {
        let keys = self.window.map_or(context, |keys| context.min(u64::from(keys)));
        4 * u64::from(self.q_width()) * keys
    }

    /// Returns the cache for sequences of up to `keys` keys, and its elements per token.
    pub(super) fn cache(&self, keys: usize) -> (Cache, u64) {
        let window = self.window.map(|window| window as usize).filter(|window| *window < keys);
        let cache = window.map_or(Cache::Paged, |keys| Cache::Ring { keys });
        (cache, 2 * u64::from(self.kv_width()))
    }

    /// Calls `add` with each tensor.
    pub(super) fn rows(&self, h: u32, is_fused: bool, add: &mut impl FnMut(TensorRow)) {
        let (d, q, kv) = (self.head_dim, self.q_width(), self.kv_width());
        let of_q = if self.gated { 2 * q } else { q };
        let parts = [
            (LoraTarget::Q, "self_attn.q_proj", "attn_q", of_q),
            (LoraTarget::K, "self_attn.k_proj", "attn_k", kv),
            (LoraTarget::V, "self_attn.v_proj", "attn_v", kv),
        ];
        let parts = match self.values {
            Values::Own | Values::Normed => &parts[..],
            Values::OfKeys => &parts[..2],
            Values::Shared => &parts[..1],
        };
        for &(target, module, gguf, rows) in parts {
            let row = matrix(Kind::Weight(Site::Qkv), (module, gguf), [rows, h]).of(target);
            add(row.fused(is_fused, "self_attn.qkv_proj", "attn_qkv"));
        }
        if self.qkv_bias {
            for &(_, module, gguf, rows) in parts {
                let row = vector(Kind::Bias(Site::Qkv), (module, gguf, "bias"), rows);
                add(row.fused(is_fused, "self_attn.qkv_proj", "attn_qkv"));
            }
        }
        if let Some(norms) = self.qk_norms {
            let [q, k] = if norms == QkNorms::Rows { [q, kv] } else { [d, d] };
            add(vector(Kind::QNorm, ("self_attn.q_norm", "attn_q_norm", "weight"), q));
            if self.values != Values::Shared {
                add(vector(Kind::KNorm, ("self_attn.k_norm", "attn_k_norm", "weight"), k));
            }
        }
        if self.sinks {
            add(vector(Kind::Sinks, ("self_attn.sinks", "attn_sinks", ""), self.heads));
        }
        add(matrix(Kind::Weight(Site::Output), ("self_attn.o_proj", "attn_output"), [h, q]).of(LoraTarget::O));
        if self.output_bias {
            add(vector(Kind::Bias(Site::Output), ("self_attn.o_proj", "attn_output", "bias"), h));
        }
    }
}
