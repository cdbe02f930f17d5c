//! A decoder layer as a value: what mixes its rows, and what follows.

use crate::{Cache, DeltaSpec, ExpertsSpec, ModelSpec};

/// What a decoder layer consists of, besides its norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// What lets a row see the rows before it.
    pub mixer: Mixer,
    /// What a row goes through by itself.
    pub ffn: Ffn,
}

/// What lets a row see the rows before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mixer {
    /// Attention over keys, in the model's widths.
    Attention,
    /// Linear attention: a state that each row changes.
    Delta(DeltaSpec),
}

/// What a row goes through by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ffn {
    /// One gated part of the model's width.
    Dense,
    /// Some of many such parts, which a router chooses.
    Experts(ExpertsSpec),
}

impl LayerSpec {
    /// Returns its linear attention, if it has that.
    pub fn delta(&self) -> Option<DeltaSpec> {
        match self.mixer {
            Mixer::Delta(delta) => Some(delta),
            Mixer::Attention => None,
        }
    }

    /// Returns its experts, if it has any.
    pub fn experts(&self) -> Option<ExpertsSpec> {
        match self.ffn {
            Ffn::Experts(experts) => Some(experts),
            Ffn::Dense => None,
        }
    }
}

impl ModelSpec {
    /// Returns what a layer consists of.
    pub fn layer(&self, layer: u32) -> LayerSpec {
        let delta = self.delta.filter(|delta| delta.layers.contains(layer));
        let experts = self.experts.filter(|experts| experts.layers.contains(layer));
        LayerSpec {
            mixer: delta.map_or(Mixer::Attention, Mixer::Delta),
            ffn: experts.map_or(Ffn::Dense, Ffn::Experts),
        }
    }

    /// Returns its layers, the first one first.
    pub fn each_layer(&self) -> impl Iterator<Item = LayerSpec> {
        (0..self.layers).map(|layer| self.layer(layer))
    }

    /// Returns whether a sequence has a state in some layer.
    pub fn has_states(&self) -> bool {
        self.delta_layers() > 0
    }

    /// Returns whether rows go to experts in some layer.
    pub fn has_experts(&self) -> bool {
        self.expert_layers() > 0
    }

    /// Outputs of a layer's first product.
    pub fn first_width(&self, layer: u32) -> u32 {
        self.layer(layer).delta().map_or(self.qkv_width(), |delta| delta.input_width())
    }

    /// Inputs of the product that ends a layer's attention.
    pub fn mixed_width(&self, layer: u32) -> u32 {
        self.layer(layer).delta().map_or(self.q_width(), |delta| delta.value_width())
    }

    /// Floating-point operations of a row with `context` keys between these two products.
    pub(crate) fn mixer_flops(&self, layer: u32, context: u64) -> u64 {
        match self.layer(layer).mixer {
            // A state is decayed, read twice and added to.
            Mixer::Delta(delta) => 8 * u64::from(delta.state()),
            Mixer::Attention => {
                let window = self.attention.window_of(layer);
                let keys = window.map_or(context, |keys| context.min(u64::from(keys)));
                4 * u64::from(self.q_width()) * keys
            }
        }
    }

    /// Returns what a layer keeps of sequences of up to `keys` keys, and its elements of a token, or of a state.
    pub(crate) fn cache_of(&self, layer: u32, keys: usize) -> (Cache, u64) {
        let window =
            self.attention.window_of(layer).map(|window| window as usize).filter(|window| *window < keys);
        match self.layer(layer).mixer {
            Mixer::Delta(delta) => (Cache::State, delta.state().into()),
            Mixer::Attention => {
                let cache = window.map_or(Cache::Paged, |keys| Cache::Ring { keys });
                (cache, 2 * u64::from(self.kv_width()))
            }
        }
    }
}
