//! A decoder: its shape, its weights, how its layers compute, and where a pass gets these layers from.

use crate::rope;
use crate::weights::{LayerParams, Params};
use plimsoll_arch::{ModelSpec, Multipliers};
use plimsoll_base::DType;
use plimsoll_device::{ALL_KEYS, Device, Logits, Norm, Rotation, Scores};
use plimsoll_memory::Buf;

/// A decoder: its shape, one role's weights, and the rotary table.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    pub spec: ModelSpec,
    /// Storage of weights and of the activations that products read.
    pub dtype: DType,
    pub params: Params<'a>,
    /// Filled by `rope::fill`.
    pub rope: Buf<'a>,
}

/// The way of a pass through the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The first layer first.
    Forward,
    /// The last layer first.
    Backward,
}

/// Gives a decoder to passes layer by layer, wherever its weights lie.
pub trait Layers<'a> {
    /// Returns what is there during the whole pass: the shape, the embedding, the last norm and the head.
    fn decoder(&self) -> &Decoder<'a>;

    /// Returns the weights of layer `index`. A pass asks for its layers one after the other, each when the operations
    /// of the one before are under way; these weights are there until it asks for the next.
    fn layer(&self, dev: &dyn Device, index: usize, way: Way) -> LayerParams<'a>;
}

impl<'a> Layers<'a> for Decoder<'a> {
    fn decoder(&self) -> &Decoder<'a> {
        self
    }

    fn layer(&self, _: &dyn Device, index: usize, _: Way) -> LayerParams<'a> {
        self.params.layers[index]
    }
}

impl<'a> Layers<'a> for &Decoder<'a> {
    fn decoder(&self) -> &Decoder<'a> {
        self
    }

    fn layer(&self, dev: &dyn Device, index: usize, way: Way) -> LayerParams<'a> {
        (**self).layer(dev, index, way)
    }
}

impl<'a> Decoder<'a> {
    /// A norm of the residual stream, which here is 1 / `multipliers.residual` of the one that the family's formulas
    /// have: what parts add is then not multiplied, and a norm of the same weights with an epsilon so much larger gives
    /// the same.
    pub(crate) fn norm<'w>(&self, w: Buf<'w>) -> Norm<'w> {
        let residual = self.spec.multipliers.residual;
        let eps = self.spec.rms_eps / (residual * residual);
        Norm { w, eps, offset: self.spec.architecture().norm_offset }
    }

    /// Factor on embeddings, if it is not 1.
    pub(crate) fn embedding_factor(&self) -> Option<f32> {
        let root = match (self.spec.architecture().scales_embedding, self.dtype) {
            (false, _) => 1.0,
            // As the reference has it: rounded to the weights' dtype.
            (true, DType::Bf16) => half::bf16::from_f32((self.spec.hidden as f32).sqrt()).to_f32(),
            (true, _) => (self.spec.hidden as f32).sqrt(),
        };
        let factor = root * self.spec.multipliers.embedding / self.spec.multipliers.residual;
        (factor != 1.0).then_some(factor)
    }

    /// How logits are bent and multiplied, besides the factor of a temperature.
    pub(crate) fn logits(&self) -> Logits {
        let Multipliers { logits, logit_cap, .. } = self.spec.multipliers;
        Logits { factor: 1.0 / logits, cap: logit_cap }
    }

    pub(crate) fn rotation(&self, layer: u32) -> Rotation<'a> {
        // Attention divides scores by the root of d.
        let q_scale =
            self.spec.attention.scale.map_or(1.0, |scale| scale * (self.spec.head_dim as f32).sqrt());
        let width = self.spec.attention.rotated.map(|width| width as usize);
        Rotation { angles: rope::of_layer(&self.spec, self.rope, layer), width, q_scale }
    }

    /// What rows of a layer see, and how.
    pub(crate) fn scores(&self, layer: u32) -> Scores {
        let window = self.spec.attention.window_of(layer).map_or(ALL_KEYS, |keys| keys as usize);
        Scores { window, cap: self.spec.attention.score_cap }
    }
}
