//! A decoder layer as a value: what mixes its rows, and what follows.

use crate::{DeltaSpec, ExpertsSpec, ModelSpec};

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
}
