//! Latent attention: keys and values of all heads are products of one latent row, which alone is kept.
//!
//! Products with the latent are moved to the other side of the sums (DeepSeek-V2, arXiv 2405.04434, section 2.1.2): a
//! head's query goes through the transposed key rows and meets latents; the sum of latents goes through the value rows.
//! Rollout, scoring and training compute this form, and no other.

use super::{AttentionSpec, Values};
use crate::param::ParamKind as Kind;
use crate::tensor_row::{TensorRow, matrix, vector};
use crate::{Cache, LoraTarget, Site};

/// Rows of a head's keys and of its values, and of a latent, are multiples of this: a head's part begins a panel.
pub const LATENT_STEP: u32 = 16;

/// What chooses the keys that a row of latent attention sees: a small attention of its own (DeepSeek-V3.2, arXiv
/// 2512.02556). It is planned, and not computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexSpec {
    /// Heads, each with a query from the latent of queries.
    pub heads: u32,
    /// Elements of a head, and of the one key of all heads.
    pub width: u32,
    /// Keys that a row sees.
    pub keys: u32,
}

/// Latent attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentSpec {
    /// N: heads.
    pub heads: u32,
    /// P: elements of a head's key that are not rotated.
    pub key_dim: u32,
    /// R: elements of a head's query, and of the one key of all heads, that are rotated, in adjacent pairs.
    pub rotated: u32,
    /// V: elements of a head's value.
    pub value_dim: u32,
    /// L: elements of the latent of keys and values.
    pub latent: u32,
    /// Elements of the latent of queries; none if queries are a product of the input.
    pub query_latent: Option<u32>,
    /// Epsilon of the norms of latents.
    pub eps: f32,
    /// Factor on scores.
    pub scale: f32,
    /// `mscale_all_dim` of YaRN, from which files have the factor; 0 if they have none.
    pub stretch: f32,
    /// What chooses a row's keys; none if it sees all before it.
    pub index: Option<IndexSpec>,
}

impl IndexSpec {
    /// Calls `add` with each tensor; `h` is the model's width, and queries come from `latent` elements.
    fn rows(&self, h: u32, latent: u32, add: &mut impl FnMut(TensorRow)) {
        let queries = self.heads * self.width;
        add(matrix(Kind::IndexQuery, ("self_attn.indexer.wq_b", "indexer.attn_q_b"), [queries, latent]));
        add(matrix(Kind::IndexKey, ("self_attn.indexer.wk", "indexer.attn_k"), [self.width, h]));
        for (kind, leaf) in [(Kind::IndexNorm, "weight"), (Kind::IndexNormBias, "bias")] {
            add(vector(kind, ("self_attn.indexer.k_norm", "indexer.k_norm", leaf), self.width));
        }
        add(matrix(Kind::IndexWeights, ("self_attn.indexer.weights_proj", "indexer.proj"), [self.heads, h]));
    }
}

impl LatentSpec {
    /// Returns D = R + L, the width of a key: its rotated part, then the latent.
    pub const fn key_width(&self) -> u32 {
        self.rotated + self.latent
    }

    /// Returns N (P + R), the width of all queries.
    pub const fn query_width(&self) -> u32 {
        self.heads * (self.key_dim + self.rotated)
    }

    /// Returns N V, the width of all heads' outputs.
    pub const fn value_width(&self) -> u32 {
        self.heads * self.value_dim
    }

    /// Returns the outputs of the input projection that queries come from.
    pub const fn query_inputs(&self) -> u32 {
        match self.query_latent {
            Some(width) => width,
            None => self.query_width(),
        }
    }

    /// Returns the outputs of the input projection: queries or their latent, the latent of keys, the rotated key.
    pub const fn input_width(&self) -> u32 {
        self.query_inputs() + self.key_width()
    }

    /// Returns the softmax attention over latents: each head has a query for the one key of all.
    pub const fn over_latents(&self) -> AttentionSpec {
        AttentionSpec {
            heads: self.heads,
            kv_heads: 1,
            head_dim: self.key_width(),
            qkv_bias: false,
            output_bias: false,
            qk_norms: None,
            window: None,
            is_rotated: true,
            own_theta: None,
            rotated: Some(self.rotated),
            scale: Some(self.scale),
            score_cap: None,
            gated: false,
            values: Values::Own,
            sinks: false,
            over_latents: true,
        }
    }

    /// Returns the products, in the order of their tensors.
    pub(super) const fn sites(&self) -> &'static [Site] {
        match self.query_latent {
            Some(_) => &[Site::Qkv, Site::QueryUp, Site::LatentUp, Site::Output],
            None => &[Site::Qkv, Site::LatentUp, Site::Output],
        }
    }

    /// Returns the FLOPs of a row with `context` keys between its products with the model's width.
    pub(super) fn flops(&self, context: u64) -> u64 {
        let [n, p, v, l, d] = [self.heads, self.key_dim, self.value_dim, self.latent, self.key_width()];
        let up = self.query_latent.map_or(0, |width| u64::from(width) * u64::from(self.query_width()));
        let index = |index: IndexSpec| 2 * u64::from(index.heads * index.width) * context;
        let (choice, context) =
            (self.index.map_or(0, index), self.index.map_or(context, |index| context.min(index.keys.into())));
        choice + 2 * up + 2 * u64::from(n) * (u64::from(p + v) * u64::from(l) + u64::from(d + l) * context)
    }

    /// Returns the cache for sequences of up to `keys` keys, and its elements per token.
    pub(super) fn cache(&self, keys: usize) -> (Cache, u64) {
        let (cache, elements) = self.over_latents().cache(keys);
        (cache, elements + u64::from(self.index.map_or(0, |index| index.width)))
    }

    /// Calls `add` with each tensor.
    pub(super) fn rows(&self, h: u32, add: &mut impl FnMut(TensorRow)) {
        let (queries, keys) = (self.query_width(), self.key_width());
        match self.query_latent {
            Some(width) => {
                let down = matrix(Kind::Weight(Site::Qkv), ("self_attn.q_a_proj", "attn_q_a"), [width, h]);
                add(down.of(LoraTarget::QueryDown));
            }
            None => {
                let product = matrix(Kind::Weight(Site::Qkv), ("self_attn.q_proj", "attn_q"), [queries, h]);
                add(product.of(LoraTarget::Q));
            }
        }
        let down = ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa");
        add(matrix(Kind::Weight(Site::Qkv), down, [keys, h]).of(LoraTarget::LatentDown));
        if let Some(width) = self.query_latent {
            add(vector(Kind::QNorm, ("self_attn.q_a_layernorm", "attn_q_a_norm", "weight"), width));
            let up =
                matrix(Kind::Weight(Site::QueryUp), ("self_attn.q_b_proj", "attn_q_b"), [queries, width]);
            add(up.of(LoraTarget::QueryUp));
        }
        add(vector(Kind::KNorm, ("self_attn.kv_a_layernorm", "attn_kv_a_norm", "weight"), self.latent));
        let up = [self.heads * (self.key_dim + self.value_dim), self.latent];
        let up = matrix(Kind::Weight(Site::LatentUp), ("self_attn.kv_b_proj", "attn_kv_b"), up);
        add(up.of(LoraTarget::LatentUp));
        let output =
            matrix(Kind::Weight(Site::Output), ("self_attn.o_proj", "attn_output"), [h, self.value_width()]);
        add(output.of(LoraTarget::O));
        if let Some(index) = self.index {
            index.rows(h, self.query_latent.unwrap_or(h), add);
        }
    }
}
