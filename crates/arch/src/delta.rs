//! Layers with linear attention: Gated DeltaNet, in place of attention over keys.

use crate::LayerSet;
use serde::{Deserialize, Serialize};

/// Inputs that the convolution before queries, keys and values reads: a row's own and those of the rows before it.
pub const CONV_TAPS: u32 = 4;
/// Elements of a head of queries, keys or values, at most; a multiple of `DELTA_HEAD_STEP`.
pub const DELTA_HEAD_MAX: u32 = 128;
/// What elements of such a head are a multiple of.
pub const DELTA_HEAD_STEP: u32 = 16;

/// The layers of a decoder with linear attention, and their heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeltaSpec {
    /// The layers. The others have attention over keys.
    pub layers: LayerSet,
    /// Heads of queries and keys.
    pub key_heads: u32,
    /// Heads of values, a multiple.
    pub value_heads: u32,
    /// Elements of a head of queries or keys.
    pub key_dim: u32,
    /// Elements of a head of values.
    pub value_dim: u32,
}

impl DeltaSpec {
    /// Elements of all heads of queries, or of keys.
    pub const fn key_width(&self) -> u32 {
        self.key_heads * self.key_dim
    }

    /// Elements of all heads of values.
    pub const fn value_width(&self) -> u32 {
        self.value_heads * self.value_dim
    }

    /// Elements of queries, keys and values, over which a convolution goes.
    pub const fn conv_width(&self) -> u32 {
        2 * self.key_width() + self.value_width()
    }

    /// What the products of a row give: those, a gate for each value, and two numbers for each head of values.
    pub const fn input_width(&self) -> u32 {
        self.conv_width() + self.value_width() + 2 * self.value_heads
    }

    /// Elements of a layer's state of a sequence.
    pub const fn state(&self) -> u32 {
        self.value_heads * self.key_dim * self.value_dim
    }
}
