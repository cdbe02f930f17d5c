//! The sizes of a tower, and what its parts may be.
//!
//! Legend: h hidden, f feed-forward, p pixels of a patch's side, s patches of a token's side.

use crate::{Gate, LayerSet};

/// Maximum sets of features that a tower gives in addition to its output.
pub const DEEP_FEATURES_MAX: usize = 4;
/// Elements to which heads are padded: attention takes whole vectors.
const HEAD_STEP: u32 = 16;
/// Colours of a pixel.
pub const PIXEL_CHANNELS: u32 = 3;

/// Activation function of an MLP without gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2.
    Tanh,
    /// x (1 + erf(x / sqrt 2)) / 2.
    Erf,
}

/// The norms of a tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TowerNorm {
    /// Mean and variance, with a weight and a bias.
    Layer,
    /// The root of the mean square, with a weight.
    Rms,
}

/// The feed-forward part of a tower's layer; its products have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TowerMlp {
    /// Two products with an activation between them.
    Plain(Gelu),
    /// Three products, one of which gates another.
    Gated(Gate),
}

/// Layers that see a part of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TowerWindow {
    /// Side of a window in pixels.
    pub pixels: u32,
    /// The layers whose rows see the whole image.
    pub whole: LayerSet,
}

/// The sizes of a tower.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TowerSpec {
    /// Number of layers.
    pub depth: u32,
    /// h: width of a row.
    pub hidden: u32,
    /// Attention heads; each has its own key.
    pub heads: u32,
    /// f: width of the feed-forward part.
    pub ffn: u32,
    /// p: side of a patch in pixels.
    pub patch: u32,
    /// s: patches of a token's side; s^2 rows become one vector.
    pub merge: u32,
    /// Frames of a patch; an image is as many equal ones.
    pub frames: u32,
    /// Width of the vectors that it gives: that of the text's residual stream.
    pub out: u32,
    /// Side of the square of learned positions; none if there are none.
    pub positions: Option<u32>,
    /// True if the product of patches has a bias.
    pub patch_bias: bool,
    /// The norms of layers and mergers.
    pub norm: TowerNorm,
    /// Epsilon of the norms.
    pub eps: f32,
    /// The feed-forward part of each layer.
    pub mlp: TowerMlp,
    /// Windows; none if all layers see whole images.
    pub window: Option<TowerWindow>,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Layers after which a merger of its own gives further features, ascending.
    pub deep: DeepLayers,
}

/// The layers of a tower that give further features, ascending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeepLayers {
    layers: [u32; DEEP_FEATURES_MAX],
    count: usize,
}

impl DeepLayers {
    /// No layers.
    pub const NONE: DeepLayers = DeepLayers { layers: [0; DEEP_FEATURES_MAX], count: 0 };

    /// Collects layers. None if there are more than `DEEP_FEATURES_MAX`, or if they do not ascend.
    pub fn of(layers: &[u32]) -> Option<DeepLayers> {
        let mut all = DeepLayers { count: layers.len(), ..DeepLayers::default() };
        all.layers.get_mut(..layers.len())?.copy_from_slice(layers);
        layers.is_sorted_by(|a, b| a < b).then_some(all)
    }

    /// Returns the layers.
    pub fn as_slice(&self) -> &[u32] {
        &self.layers[..self.count]
    }

    /// Returns the number of a layer's features; none if it gives none.
    pub fn index_of(&self, layer: u32) -> Option<usize> {
        self.as_slice().iter().position(|&one| one == layer)
    }
}

impl TowerSpec {
    /// Returns the elements of a head.
    pub const fn head_dim(&self) -> u32 {
        self.hidden / self.heads
    }

    /// Returns the elements of a head with its padding.
    pub const fn padded_head_dim(&self) -> u32 {
        self.head_dim().next_multiple_of(HEAD_STEP)
    }

    /// Returns the numbers of a patch: colours, frames and pixels.
    pub const fn patch_elements(&self) -> u32 {
        PIXEL_CHANNELS * self.frames * self.patch * self.patch
    }

    /// Returns the rows that become one vector.
    pub const fn rows_per_vector(&self) -> u32 {
        self.merge * self.merge
    }

    /// Returns the width of the rows that a merger joins.
    pub const fn merged(&self) -> u32 {
        self.hidden * self.rows_per_vector()
    }

    /// Returns the sets of vectors that it gives: those of tokens, and the further features of layers.
    pub const fn sets(&self) -> usize {
        1 + self.deep.count
    }

    /// Returns the vectors of a window's side; none if all layers see whole images.
    pub fn window_side(&self) -> Option<u32> {
        self.window.map(|window| window.pixels / (self.patch * self.merge))
    }

    /// True if the rows of a layer see a window alone.
    pub fn sees_windows(&self, layer: u32) -> bool {
        self.window.is_some_and(|window| !window.whole.contains(layer))
    }

    /// Returns the most windows of images of `patches` patches in all: each image has one, and any other one has a side
    /// of vectors at least.
    pub fn windows_max(&self, patches: usize, images: usize) -> usize {
        let vectors = patches / self.rows_per_vector() as usize;
        self.window_side().map_or(0, |side| images + vectors / side as usize)
    }

    /// Returns the vectors of an image of `rows` times `columns` patches.
    pub const fn vectors(&self, rows: u32, columns: u32) -> u32 {
        rows / self.merge * (columns / self.merge)
    }
}
