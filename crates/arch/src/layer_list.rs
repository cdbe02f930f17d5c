//! The layers of a decoder, first to last: the few kinds that there are, and which of them each layer is.

use crate::{DenseSpec, Ffn, LAYERS_MAX, LayerSpec, Mixer};
use std::fmt;

/// Maximum kinds of layers of a model: windowed or not, rotated or not, or linear; each dense or with experts.
pub const LAYER_KINDS_MAX: usize = 10;

/// The layers of a decoder. Equal lists compare equal however they were made; a copy is about a KiB.
#[derive(Clone, Copy, PartialEq)]
pub struct LayerList {
    /// In the order of their first layers; the rest are `UNUSED`.
    kinds: [LayerSpec; LAYER_KINDS_MAX],
    /// The kind of each layer; the rest are 0.
    of: [u8; LAYERS_MAX],
    num_kinds: usize,
    len: u32,
}

/// A place in `LayerList::kinds` that no layer uses.
const UNUSED: LayerSpec = LayerSpec {
    norms: &crate::Family::Llama.architecture().norms,
    mixer: Mixer::Delta(crate::DeltaSpec { key_heads: 0, value_heads: 0, key_dim: 0, value_dim: 0 }),
    ffn: Ffn::Dense(DenseSpec { width: 0, bias: false }),
};

impl LayerList {
    /// A list without layers.
    pub(crate) const EMPTY: LayerList =
        LayerList { kinds: [UNUSED; LAYER_KINDS_MAX], of: [0; LAYERS_MAX], num_kinds: 0, len: 0 };

    /// Returns L, the number of layers.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// True if there is no layer.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a layer. Panics if there is none with this index.
    pub fn get(&self, layer: u32) -> &LayerSpec {
        assert!(layer < self.len, "layer {layer} of {}", self.len);
        &self.kinds[self.of[layer as usize] as usize]
    }

    /// Iterates over the layers, first to last.
    pub fn iter(&self) -> impl Iterator<Item = &LayerSpec> {
        self.of[..self.len as usize].iter().map(|&kind| &self.kinds[kind as usize])
    }

    /// Iterates over runs of equal layers, first to last, each with its number of layers.
    pub fn runs(&self) -> impl Iterator<Item = (u32, &LayerSpec)> {
        let runs = self.of[..self.len as usize].chunk_by(|a, b| a == b);
        runs.map(|run| (run.len() as u32, &self.kinds[run[0] as usize]))
    }

    /// Adds a layer of the kind at `index`, which is `kind` if no layer had that index before.
    pub(crate) const fn push(&mut self, index: usize, kind: LayerSpec) {
        if index == self.num_kinds {
            self.kinds[index] = kind;
            self.num_kinds += 1;
        }
        self.of[self.len as usize] = index as u8;
        self.len += 1;
    }

    /// Returns the number of kinds that layers have.
    pub(crate) const fn num_kinds(&self) -> usize {
        self.num_kinds
    }
}

/// Panics above `LAYERS_MAX` layers or `LAYER_KINDS_MAX` kinds.
impl FromIterator<LayerSpec> for LayerList {
    fn from_iter<I: IntoIterator<Item = LayerSpec>>(layers: I) -> LayerList {
        let mut list = LayerList::EMPTY;
        for layer in layers {
            let known = &list.kinds[..list.num_kinds];
            let index = known.iter().position(|kind| *kind == layer).unwrap_or(list.num_kinds);
            list.push(index, layer);
        }
        list
    }
}

/// Formats as the runs of equal layers.
impl fmt::Debug for LayerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.runs()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSpec;

    #[test]
    fn equal_layers_are_one_kind_and_runs_are_their_neighbours() {
        let list = ModelSpec::preset("gemma-3-1b").unwrap().layers;
        assert_eq!((list.len(), list.num_kinds()), (26, 2));
        // Five layers with a window and one without, four times, and two more.
        let runs: Vec<u32> = list.runs().map(|(count, _)| count).collect();
        assert_eq!(runs, [5, 1, 5, 1, 5, 1, 5, 1, 2]);
        assert_eq!(list.iter().copied().collect::<LayerList>(), list);
        assert_ne!(list.iter().take(25).copied().collect::<LayerList>(), list);
    }

    /// Heads and dense parts of two widths.
    #[test]
    fn layers_may_differ_in_every_width() {
        let nano = ModelSpec::preset("nano").unwrap();
        let wide = |layer: &LayerSpec| {
            let attention = layer.attention().expect("attention");
            let ffn = Ffn::Dense(DenseSpec { width: 512, bias: false });
            LayerSpec {
                mixer: Mixer::Attention(crate::AttentionSpec { head_dim: 128, ..attention }),
                ffn,
                ..*layer
            }
        };
        let layers = nano.layers.iter().enumerate();
        let layers = layers.map(|(i, layer)| if i % 2 == 0 { *layer } else { wide(layer) }).collect();
        let mixed = ModelSpec { layers, ..nano };
        // q, k, v and o of 128 x 128 become 128 x 256, and three matrices of 128 x 384 become 128 x 512, in two layers.
        let more = 2 * (4 * 128 * 128 + 3 * 128 * 128);
        assert_eq!(mixed.parameters(), nano.parameters() + more);
        assert_eq!(mixed.caches(9)[0].elements, nano.caches(9)[0].elements * 3 / 2);
        assert_eq!(mixed.widest(), (3 * 256, 256));
    }
}
