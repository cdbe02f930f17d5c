//! How a GGUF file encodes the linear layers of each decoder layer.

use crate::{LAYERS_MAX, LoraTarget, ModelSpec};
use plimsoll_base::Encoding;

/// The encodings of the linear layers of a model's file, by decoder layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerEncodings([u32; LAYERS_MAX]);

/// Bits per target in the word of a layer.
const ENCODING_BITS: u32 = 4;

const _: () = assert!(Encoding::ALL.len() <= 1 << ENCODING_BITS && LoraTarget::ALL.len() * 4 <= 32);

impl LayerEncodings {
    /// Collects the encodings that `of` returns. Panics above `LAYERS_MAX` layers.
    pub fn of(layers: u32, of: impl Fn(u32, LoraTarget) -> Encoding) -> LayerEncodings {
        let mut all = LayerEncodings([0; LAYERS_MAX]);
        for (layer, word) in (0..layers).zip(&mut all.0[..layers as usize]) {
            let bits = |target| (of(layer, target) as u32) << (target as u32 * ENCODING_BITS);
            *word = LoraTarget::ALL.into_iter().map(bits).sum();
        }
        all
    }

    /// Returns the encoding of a linear layer; that of the whole tensor if it is fused.
    pub fn get(&self, layer: u32, target: LoraTarget) -> Encoding {
        let number = self.0[layer as usize] >> (target as u32 * ENCODING_BITS) & ((1 << ENCODING_BITS) - 1);
        Encoding::ALL[number as usize]
    }

    /// Returns the bytes of all linear layers of the model.
    pub fn bytes(&self, model: &ModelSpec) -> u64 {
        let of = |layer, target: LoraTarget| {
            let ((inputs, outputs), encoding) = (target.widths(model, layer), self.get(layer, target));
            let row = u64::from(inputs) / encoding.block_values() * encoding.block_bytes();
            target.of_experts(model, layer).count() as u64 * u64::from(outputs) * row
        };
        (0..model.layers.len()).flat_map(|layer| LoraTarget::ALL.map(|target| of(layer, target))).sum()
    }
}
