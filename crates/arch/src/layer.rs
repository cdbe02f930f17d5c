//! One decoder layer as a value: its norms, its mixer and its feed-forward part, each with all of its sizes.
//!
//! Each part has a file: its sizes, what follows from them, and its tensors. A new kind adds a file, and its arms here.

mod attention;
mod delta;
mod dense;
mod experts;
mod latent;

use crate::architecture::{Architecture, Norms};
use crate::tensor_row::TensorRow;
use crate::{Cache, Site};
pub use attention::{AttentionSpec, Values};
pub use delta::{CONV_TAPS, DELTA_HEAD_MAX, DELTA_HEAD_STEP, DeltaSpec};
pub use dense::DenseSpec;
pub use experts::{EXPERT_GROUPS_MAX, EXPERTS_CHOSEN_MAX, EXPERTS_MAX, ExpertsSpec, SigmoidSpec};
pub use latent::{IndexSpec, LATENT_STEP, LatentSpec};

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
    /// Softmax attention over latents of keys and values.
    Latent(LatentSpec),
}

/// The part of a layer that processes each row by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ffn {
    /// One gated MLP.
    Dense(DenseSpec),
    /// Several smaller ones; a router chooses which of them a row goes to.
    Experts(ExpertsSpec),
}

impl Mixer {
    /// Returns the products, in the order in which they are computed.
    pub const fn sites(&self) -> &'static [Site] {
        match self {
            Mixer::Attention(_) => &[Site::Qkv, Site::Output],
            Mixer::Delta(_) => &[Site::Delta, Site::DeltaOutput],
            Mixer::Latent(latent) => latent.sites(),
        }
    }

    /// Returns the output projection.
    pub const fn output(&self) -> Site {
        match self {
            Mixer::Attention(_) | Mixer::Latent(_) => Site::Output,
            Mixer::Delta(_) => Site::DeltaOutput,
        }
    }

    /// Returns the outputs of the input projection.
    pub fn input_width(&self) -> u32 {
        match self {
            Mixer::Attention(attention) => attention.input_width(),
            Mixer::Delta(delta) => delta.input_width(),
            Mixer::Latent(latent) => latent.input_width(),
        }
    }

    /// Returns the inputs of the output projection.
    pub fn mixed_width(&self) -> u32 {
        match self {
            Mixer::Attention(attention) => attention.q_width(),
            Mixer::Delta(delta) => delta.value_width(),
            Mixer::Latent(latent) => latent.value_width(),
        }
    }

    /// Returns the FLOPs of a row with `context` keys between its products.
    pub(crate) fn flops(&self, context: u64) -> u64 {
        match self {
            Mixer::Attention(attention) => attention.flops(context),
            Mixer::Delta(delta) => delta.flops(),
            Mixer::Latent(latent) => latent.flops(context),
        }
    }

    /// Returns the cache for sequences of up to `keys` keys, and its elements per token or state.
    pub(crate) fn cache(&self, keys: usize) -> (Cache, u64) {
        match self {
            Mixer::Attention(attention) => attention.cache(keys),
            Mixer::Delta(delta) => (Cache::State, delta.state().into()),
            Mixer::Latent(latent) => latent.cache(keys),
        }
    }

    /// Calls `add` with each tensor; `h` is the model's width, and tensors are those of the family's files.
    pub(crate) fn rows(&self, h: u32, of: &Architecture, add: &mut impl FnMut(TensorRow)) {
        match self {
            Mixer::Attention(attention) => attention.rows(h, of.is_fused, add),
            Mixer::Delta(delta) => delta.rows(h, of.groups_delta, add),
            Mixer::Latent(latent) => latent.rows(h, add),
        }
    }
}

impl Ffn {
    /// Returns the products without the router's, in the order in which they are computed.
    pub const fn sites(&self) -> &'static [Site] {
        match self {
            Ffn::Experts(ExpertsSpec { shared: Some(_), .. }) => {
                &[Site::GateUp, Site::Down, Site::SharedGateUp, Site::SharedDown]
            }
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

    /// Calls `add` with each tensor; `h` is the model's width, and tensors are those of the family's files.
    pub(crate) fn rows(&self, h: u32, of: &Architecture, add: &mut impl FnMut(TensorRow)) {
        match self {
            Ffn::Dense(dense) => dense.rows(h, of.is_fused, add),
            Ffn::Experts(experts) if of.joins_dense => experts.joined_rows(h, add),
            Ffn::Experts(experts) => experts.rows(h, add),
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

    /// Returns the layer's softmax attention, if it has it: over keys, or over latents.
    pub fn attention(&self) -> Option<AttentionSpec> {
        match self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::Latent(latent) => Some(latent.over_latents()),
            Mixer::Delta(_) => None,
        }
    }

    /// Returns the layer's latent attention, if it has it.
    pub fn latent(&self) -> Option<LatentSpec> {
        match self.mixer {
            Mixer::Latent(latent) => Some(latent),
            Mixer::Attention(_) | Mixer::Delta(_) => None,
        }
    }

    /// Returns the layer's linear attention, if it has it.
    pub fn delta(&self) -> Option<DeltaSpec> {
        match self.mixer {
            Mixer::Delta(delta) => Some(delta),
            Mixer::Attention(_) | Mixer::Latent(_) => None,
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
