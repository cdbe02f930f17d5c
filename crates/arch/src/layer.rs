//! One decoder layer as a value: its norms, its mixer and its feed-forward part, each with all of its sizes.

use crate::architecture::{Norms, QkNorms};
use crate::{Cache, DeltaSpec, ExpertsSpec, Site};

/// The parts of a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// Where the layer has norms.
    pub norms: &'static Norms,
    /// Lets a row see the rows before it.
    pub mixer: Mixer,
    /// Processes each row by itself.
    pub ffn: Ffn,
}

/// The part of a layer that lets a row see the rows before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention over keys.
    Attention(AttentionSpec),
    /// Linear attention: a state that each row updates.
    Delta(DeltaSpec),
}

/// The part of a layer that processes each row by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ffn {
    /// One gated MLP.
    Dense(DenseSpec),
    /// Several smaller ones; a router chooses which of them a row goes to.
    Experts(ExpertsSpec),
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
}

/// The dense feed-forward part of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DenseSpec {
    /// f: outputs of the gate and of the up projection.
    pub width: u32,
    /// True if gate, up and down have a bias.
    pub bias: bool,
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

    /// Returns the outputs of the input projection: q, k, v, and output gates if heads have them.
    pub const fn input_width(&self) -> u32 {
        self.qkv_width() + if self.gated { self.q_width() } else { 0 }
    }

    /// Returns the number of rotated elements of a head.
    pub fn rotary_width(&self) -> u32 {
        self.rotated.unwrap_or(self.head_dim)
    }
}

impl Mixer {
    /// Returns the products, in the order in which they are computed.
    pub const fn sites(&self) -> &'static [Site] {
        match self {
            Mixer::Attention(_) | Mixer::Delta(_) => &[Site::Qkv, Site::Output],
        }
    }

    /// Returns the outputs of the input projection.
    pub fn input_width(&self) -> u32 {
        match self {
            Mixer::Attention(attention) => attention.input_width(),
            Mixer::Delta(delta) => delta.input_width(),
        }
    }

    /// Returns the inputs of the output projection.
    pub fn mixed_width(&self) -> u32 {
        match self {
            Mixer::Attention(attention) => attention.q_width(),
            Mixer::Delta(delta) => delta.value_width(),
        }
    }

    /// Returns the FLOPs of a row with `context` keys between the two projections.
    pub(crate) fn flops(&self, context: u64) -> u64 {
        match self {
            // A state is decayed, read twice and added to.
            Mixer::Delta(delta) => 8 * u64::from(delta.state()),
            Mixer::Attention(attention) => {
                let keys = attention.window.map_or(context, |keys| context.min(u64::from(keys)));
                4 * u64::from(attention.q_width()) * keys
            }
        }
    }

    /// Returns the cache for sequences of up to `keys` keys, and its elements per token or state.
    pub(crate) fn cache(&self, keys: usize) -> (Cache, u64) {
        match self {
            Mixer::Delta(delta) => (Cache::State, delta.state().into()),
            Mixer::Attention(attention) => {
                let window = attention.window.map(|window| window as usize).filter(|window| *window < keys);
                let cache = window.map_or(Cache::Paged, |keys| Cache::Ring { keys });
                (cache, 2 * u64::from(attention.kv_width()))
            }
        }
    }
}

impl Ffn {
    /// Returns the products without the router's, in the order in which they are computed.
    pub const fn sites(&self) -> &'static [Site] {
        match self {
            Ffn::Dense(_) | Ffn::Experts(_) => &[Site::GateUp, Site::Down],
        }
    }

    /// Returns the inputs per row of the down projections, over all experts of the row.
    pub fn product_width(&self) -> u32 {
        match self {
            Ffn::Dense(dense) => dense.width,
            Ffn::Experts(experts) => experts.product_width(),
        }
    }

    /// Returns the inputs of a down projection.
    pub fn down_width(&self) -> u32 {
        match self {
            Ffn::Dense(dense) => dense.width,
            Ffn::Experts(experts) => experts.ffn,
        }
    }
}

impl LayerSpec {
    /// Iterates over the products that adapters may extend, in the order in which they are computed.
    pub fn sites(&self) -> impl Iterator<Item = Site> {
        self.mixer.sites().iter().chain(self.ffn.sites()).copied()
    }

    /// Returns whether the layer has a product.
    pub fn has(&self, site: Site) -> bool {
        self.mixer.sites().contains(&site) || self.ffn.sites().contains(&site)
    }

    /// Returns the layer's softmax attention, if it has it.
    pub fn attention(&self) -> Option<AttentionSpec> {
        match self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::Delta(_) => None,
        }
    }

    /// Returns the layer's linear attention, if it has it.
    pub fn delta(&self) -> Option<DeltaSpec> {
        match self.mixer {
            Mixer::Delta(delta) => Some(delta),
            Mixer::Attention(_) => None,
        }
    }

    /// Returns the layer's dense feed-forward part, if it has one.
    pub fn dense(&self) -> Option<DenseSpec> {
        match self.ffn {
            Ffn::Dense(dense) => Some(dense),
            Ffn::Experts(_) => None,
        }
    }

    /// Returns the layer's experts, if it has any.
    pub fn experts(&self) -> Option<ExpertsSpec> {
        match self.ffn {
            Ffn::Experts(experts) => Some(experts),
            Ffn::Dense(_) => None,
        }
    }
}
