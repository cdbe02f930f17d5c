//! The shape of a decoder: its two ends, what all layers share, and the layers one by one.
//!
//! Legend: V vocab, L layers, h hidden.

use crate::architecture::Architecture;
use crate::{
    AttentionSpec, Cache, CacheSpec, Family, LayerList, LayerSpec, Multipliers, RopeFactors, TokenRun, Values,
};

/// Maximum tokens that a device lists of a row of the head: with a tile they are sorted in one block of a card.
pub const LISTED_MAX: u32 = 1024;

/// How rotary frequencies are scaled beyond the trained context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3's rule: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of pretraining.
        original_max_position_embeddings: u32,
    },
    /// YaRN: pairs that turn rarely within the first context are divided by `factor`, those that turn often are kept,
    /// with a ramp between; cosines and sines are multiplied by `attention_factor`.
    Yarn {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Context length of pretraining.
        original_max_position_embeddings: u32,
        /// Turns within that context above which a pair is kept.
        beta_fast: f64,
        /// Turns within that context below which a pair is divided.
        beta_slow: f64,
        /// Factor on cosines and sines; scores grow by its square.
        attention_factor: f64,
        /// True if the ends of the ramp are rounded to whole pairs.
        truncate: bool,
        /// b: queries at position p are multiplied by 1 + b ln(1 + floor(p / `original_max_position_embeddings`)); 0 in
        /// most families.
        query_growth: f64,
    },
    /// The base grows once a sequence is longer than `max_positions`; shorter ones are not scaled.
    Dynamic {
        /// How fast the base grows.
        factor: f64,
    },
    /// Of each head only the pairs that turn fastest are rotated, at the speeds that they have in the whole head.
    Proportional {
        /// The share of the pairs.
        share: f64,
        /// Divisor of their frequencies.
        factor: f64,
    },
    /// One divisor per frequency; cosines and sines are multiplied by a factor computed from the model's positions.
    LongRope {
        /// Divisors for sequences of up to `original_max_position_embeddings` tokens.
        short_factor: RopeFactors,
        /// Divisors for longer sequences.
        long_factor: RopeFactors,
        /// Context length of pretraining.
        original_max_position_embeddings: u32,
    },
}

/// The shape of one decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelSpec {
    /// Architecture family, which decides names on disk.
    pub family: Family,
    /// V: rows of the embedding.
    pub vocab: u32,
    /// h: width of the residual stream.
    pub hidden: u32,
    /// The decoder layers, first to last.
    pub layers: LayerList,
    /// Epsilon of all RMS norms.
    pub rms_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// True if the head shares the embedding's weights.
    pub tied: bool,
    /// Longest sequence that the model supports.
    pub max_positions: u32,
    /// w: elements of a layer's own input of each token, if layers have such inputs.
    pub inputs: Option<u32>,
    /// Constant factors.
    pub multipliers: Multipliers,
    /// True if it is the language model of a vision-language model, whose names its adapters use.
    pub is_wrapped: bool,
    /// Feed-forward width that files name: that of dense layers, or a number that no layer has.
    pub named_width: u32,
    /// Tokens that are never sampled and have no probability: the placeholders of a model that sees.
    pub suppressed: TokenRun,
}

impl ModelSpec {
    /// Returns the parts of a layer. Panics if there is none with this index.
    pub fn layer(&self, layer: u32) -> LayerSpec {
        *self.layers.get(layer)
    }

    /// Iterates over the layers, first to last.
    pub fn each_layer(&self) -> impl Iterator<Item = LayerSpec> {
        self.layers.iter().copied()
    }

    /// Iterates over the softmax attention of the layers that have it, first to last.
    pub fn attentions(&self) -> impl Iterator<Item = AttentionSpec> {
        self.layers.iter().filter_map(LayerSpec::attention)
    }

    /// Returns the layer whose keys and values a layer has, if it has none of its own: the last one of the same kind.
    pub fn donor(&self, layer: u32) -> Option<u32> {
        let of = |layer: u32| self.layer(layer).attention();
        let own = of(layer).filter(|own| own.values == Values::Shared)?;
        let is_donor =
            |layer: &u32| of(*layer).is_some_and(|of| of.values != Values::Shared && of.window == own.window);
        (0..layer).rev().find(is_donor)
    }

    /// Returns the largest number that `of` gives for a layer; 0 without layers.
    pub fn most(&self, of: impl Fn(&LayerSpec) -> u32) -> u32 {
        self.layers.iter().map(of).max().unwrap_or(0)
    }

    /// Returns whether any layer keeps a state per sequence.
    pub fn has_states(&self) -> bool {
        self.delta_layers() > 0
    }

    /// Returns whether any layer has experts.
    pub fn has_experts(&self) -> bool {
        self.expert_layers() > 0
    }

    /// Returns the number of layers with linear attention.
    pub fn delta_layers(&self) -> u32 {
        self.layers.iter().filter(|layer| layer.delta().is_some()).count() as u32
    }

    /// Returns the number of layers with experts.
    pub fn expert_layers(&self) -> u32 {
        self.layers.iter().filter(|layer| layer.experts().is_some()).count() as u32
    }

    /// Returns the most outputs of an input projection, and the most inputs of an output projection, of all layers.
    pub fn widest(&self) -> (u32, u32) {
        (self.most(|layer| layer.mixer.input_width()), self.most(|layer| layer.mixer.mixed_width()))
    }

    /// Returns the most rotated elements of a head.
    pub fn rotary_width(&self) -> u32 {
        self.attentions().map(|attention| attention.rotary_width()).max().unwrap_or(0)
    }

    /// Returns the greatest common divisor of all down projections' inputs.
    pub fn ffn_inputs(&self) -> u32 {
        self.layers.iter().map(|layer| layer.ffn.down_width()).fold(0, |mut a, mut b| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        })
    }

    /// Returns the family's row of the table of architectures.
    pub const fn architecture(&self) -> &'static Architecture {
        self.family.architecture()
    }

    /// Returns the caches of this model for sequences of up to `keys` keys. Windowed layers use the paged cache if no
    /// sequence is longer than the window; every model has the paged cache.
    pub fn caches(&self, keys: usize) -> Vec<CacheSpec> {
        let mut all = vec![CacheSpec { cache: Cache::Paged, elements: 0 }];
        for (cache, elements) in self.layers.iter().map(|layer| layer.mixer.cache(keys)) {
            match all.iter_mut().find(|one| one.cache == cache) {
                Some(one) => one.elements += elements,
                None => all.push(CacheSpec { cache, elements }),
            }
        }
        all
    }
}
