//! One decoder layer as a value: its mixer and its feed-forward part.

use crate::{Cache, DeltaSpec, ExpertsSpec, ModelSpec};

/// The parts of a decoder layer, excluding norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// Lets a row see the rows before it.
    pub mixer: Mixer,
    /// Processes each row by itself.
    pub ffn: Ffn,
}

/// The part of a layer that lets a row see the rows before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention over keys, in the model's widths.
    Attention,
    /// Linear attention: a state that each row updates.
    Delta(DeltaSpec),
}

/// The part of a layer that processes each row by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ffn {
    /// One gated MLP of the model's width.
    Dense,
    /// Several smaller ones; a router chooses which of them a row goes to.
    Experts(ExpertsSpec),
}

impl LayerSpec {
    /// Returns the layer's linear attention, if it has it.
    pub fn delta(&self) -> Option<DeltaSpec> {
        match self.mixer {
            Mixer::Delta(delta) => Some(delta),
            Mixer::Attention => None,
        }
    }

    /// Returns the layer's experts, if it has any.
    pub fn experts(&self) -> Option<ExpertsSpec> {
        match self.ffn {
            Ffn::Experts(experts) => Some(experts),
            Ffn::Dense => None,
        }
    }
}

impl ModelSpec {
    /// Returns the parts of a layer.
    pub fn layer(&self, layer: u32) -> LayerSpec {
        let delta = self.delta.filter(|delta| delta.layers.contains(layer));
        let experts = self.experts.filter(|experts| experts.layers.contains(layer));
        LayerSpec {
            mixer: delta.map_or(Mixer::Attention, Mixer::Delta),
            ffn: experts.map_or(Ffn::Dense, Ffn::Experts),
        }
    }

    /// Iterates over the layers, first to last.
    pub fn each_layer(&self) -> impl Iterator<Item = LayerSpec> {
        (0..self.layers).map(|layer| self.layer(layer))
    }

    /// Returns whether any layer keeps a state per sequence.
    pub fn has_states(&self) -> bool {
        self.delta_layers() > 0
    }

    /// Returns whether any layer has experts.
    pub fn has_experts(&self) -> bool {
        self.expert_layers() > 0
    }

    /// Returns the outputs of a layer's input projection.
    pub fn first_width(&self, layer: u32) -> u32 {
        self.layer(layer).delta().map_or(self.qkv_width(), |delta| delta.input_width())
    }

    /// Returns the inputs of a layer's attention output projection.
    pub fn mixed_width(&self, layer: u32) -> u32 {
        self.layer(layer).delta().map_or(self.q_width(), |delta| delta.value_width())
    }

    /// Returns the FLOPs of a row with `context` keys between the two projections.
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

    /// Returns a layer's cache for sequences of up to `keys` keys, and its elements per token or state.
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
