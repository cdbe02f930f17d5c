//! Layers with linear attention: Gated DeltaNet, instead of attention over keys.

use crate::LayerSet;

/// Inputs that the convolution of queries, keys and values reads: its own row and the three before it.
pub const CONV_TAPS: u32 = 4;
/// Maximum elements of a head of queries, keys or values; a multiple of `DELTA_HEAD_STEP`.
pub const DELTA_HEAD_MAX: u32 = 128;
/// Divisor of the elements of a linear-attention head.
pub const DELTA_HEAD_STEP: u32 = 16;

/// The heads of a layer with linear attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSpec {
    /// Heads of queries and keys.
    pub key_heads: u32,
    /// Heads of values, a multiple of `key_heads`.
    pub value_heads: u32,
    /// Elements of a head of queries or keys.
    pub key_dim: u32,
    /// Elements of a head of values.
    pub value_dim: u32,
}

/// Linear attention as files describe it: the same in each layer that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaLayers {
    /// The layers. The others have attention over keys.
    pub layers: LayerSet,
    /// Heads of queries and keys.
    pub key_heads: u32,
    /// Heads of values, a multiple of `key_heads`.
    pub value_heads: u32,
    /// Elements of a head of queries or keys.
    pub key_dim: u32,
    /// Elements of a head of values.
    pub value_dim: u32,
}

impl DeltaLayers {
    /// Returns the heads of each of the layers.
    pub const fn each(&self) -> DeltaSpec {
        let DeltaLayers { key_heads, value_heads, key_dim, value_dim, .. } = *self;
        DeltaSpec { key_heads, value_heads, key_dim, value_dim }
    }

    /// Returns heads with the layers that have them.
    pub const fn of(each: DeltaSpec, layers: LayerSet) -> DeltaLayers {
        let DeltaSpec { key_heads, value_heads, key_dim, value_dim } = each;
        DeltaLayers { layers, key_heads, value_heads, key_dim, value_dim }
    }
}

impl DeltaSpec {
    /// Returns the elements of all heads of queries, or of keys.
    pub const fn key_width(&self) -> u32 {
        self.key_heads * self.key_dim
    }

    /// Returns the elements of all heads of values.
    pub const fn value_width(&self) -> u32 {
        self.value_heads * self.value_dim
    }

    /// Returns the elements of queries, keys and values together, which the convolution reads.
    pub const fn conv_width(&self) -> u32 {
        2 * self.key_width() + self.value_width()
    }

    /// Returns the outputs per row of the input products: q, k, v, a gate per value, and two numbers per value head.
    pub const fn input_width(&self) -> u32 {
        self.conv_width() + self.value_width() + 2 * self.value_heads
    }

    /// Returns the elements of one layer's state of a sequence.
    pub const fn state(&self) -> u32 {
        self.value_heads * self.key_dim * self.value_dim
    }
}
