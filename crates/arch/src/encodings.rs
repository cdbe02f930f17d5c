//! How a GGUF file encodes the linear layers of each decoder layer.

use crate::{LAYERS_MAX, LoraTarget, ModelSpec};
use plimsoll_base::Encoding;

/// The encodings of the linear layers of a model's file, by decoder layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerEncodings([u32; LAYERS_MAX]);

/// Bits per target in the word of a layer.
const ENCODING_BITS: u32 = 4;

const _: () = {
    assert!(Encoding::ALL.len() <= 1 << ENCODING_BITS && Encoding::ALL[0] as u32 == Encoding::F32 as u32);
    let mut i = 0;
    while i < LoraTarget::ALL.len() {
        if let Some(shift) = shift(LoraTarget::ALL[i]) {
            assert!(shift + ENCODING_BITS <= u32::BITS);
        }
        i += 1;
    }
};

/// Returns where a target's bits begin; none if no GGUF file that is read has it. No layer has both of two that have
/// the same ones: it mixes rows by softmax attention or by linear attention, whose inputs are grouped by key heads or
/// not. Values of this type lie on stacks, so a layer has one small word.
const fn shift(target: LoraTarget) -> Option<u32> {
    let place = match target {
        LoraTarget::Q | LoraTarget::DeltaQkv | LoraTarget::DeltaQkvz => 0,
        LoraTarget::K | LoraTarget::DeltaZ => 1,
        LoraTarget::V | LoraTarget::DeltaB | LoraTarget::DeltaBa => 2,
        LoraTarget::O | LoraTarget::DeltaOut => 3,
        LoraTarget::DeltaA => 4,
        LoraTarget::Gate => 5,
        LoraTarget::Up => 6,
        LoraTarget::Down => 7,
        // GGUF files of models with these are not read.
        LoraTarget::SharedGate | LoraTarget::SharedUp | LoraTarget::SharedDown => return None,
        LoraTarget::SharedGates | LoraTarget::SharedUps | LoraTarget::SharedDowns => return None,
        LoraTarget::QueryDown | LoraTarget::QueryUp => return None,
        LoraTarget::LatentDown | LoraTarget::LatentUp => return None,
        // What they span has bits of its own.
        LoraTarget::ExpertsGateUp | LoraTarget::ExpertsDown => return None,
    };
    Some(place * ENCODING_BITS)
}

impl LayerEncodings {
    /// Collects the encodings that `of` returns. Panics above `LAYERS_MAX` layers.
    pub fn of(layers: u32, of: impl Fn(u32, LoraTarget) -> Encoding) -> LayerEncodings {
        let mut all = LayerEncodings([0; LAYERS_MAX]);
        for (layer, word) in (0..layers).zip(&mut all.0[..layers as usize]) {
            // What a layer does not have is F32, which is 0.
            let bits = |target| shift(target).map_or(0, |shift| (of(layer, target) as u32) << shift);
            *word = LoraTarget::ALL.into_iter().map(bits).fold(0, |word, bits| word | bits);
        }
        all
    }

    /// Returns the encoding of a linear layer; that of the whole tensor if it is fused.
    pub fn get(&self, layer: u32, target: LoraTarget) -> Encoding {
        let Some(shift) = shift(target) else { return Encoding::F32 };
        let number = self.0[layer as usize] >> shift & ((1 << ENCODING_BITS) - 1);
        Encoding::ALL[number as usize]
    }

    /// Returns the bytes of all linear layers of the model.
    pub fn bytes(&self, model: &ModelSpec) -> u64 {
        let of = |layer, target: LoraTarget| {
            let ((inputs, outputs), encoding) = (target.widths(model, layer), self.get(layer, target));
            let row = u64::from(inputs) / encoding.block_values() * encoding.block_bytes();
            target.of_experts(model, layer).count() as u64 * u64::from(outputs) * row
        };
        let own = LoraTarget::ALL.into_iter().filter(|target| !target.is_of_all_experts());
        let each = |layer| own.clone().map(move |target| of(layer, target));
        (0..model.layers.len()).flat_map(each).sum()
    }
}
