//! The tower of a model that sees: a transformer over the patches of an image, as a value.
//!
//! Patches become rows, layers let all rows of an image see each other, and a merger joins neighbours into the vectors
//! that stand for tokens of the image. `tensors` lists the tensors. Nothing reads files or computes here.
//!
//! Legend: h hidden, f feed-forward, p pixels of a patch's side, s patches of a token's side.

mod sight;
mod tensors;

use crate::{Gate, LayerSet};
pub use sight::{RopeAxes, SightSpec, image_places};
pub use tensors::{TOWER_PREFIX, TowerParam, TowerTensor, tower_tensors};

/// Maximum sets of features that a tower gives in addition to its output.
pub const DEEP_FEATURES_MAX: usize = 4;
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

    /// Returns the vectors of an image of `rows` times `columns` patches.
    pub const fn vectors(&self, rows: u32, columns: u32) -> u32 {
        rows / self.merge * (columns / self.merge)
    }

    /// Returns the number of parameters.
    pub fn parameters(&self) -> u64 {
        tower_tensors(self).iter().map(TowerTensor::elements).sum()
    }

    /// Returns the FLOPs of the forward pass over an image of `patches` patches: products and attention.
    pub fn forward_flops(&self, patches: u64) -> u64 {
        let h = u64::from(self.hidden);
        let of_rows = |tensor: &TowerTensor| match tensor.param {
            TowerParam::Positions => 0,
            of if of.is_merger() => patches / u64::from(self.rows_per_vector()),
            _ => patches,
        };
        let products = tower_tensors(self)
            .iter()
            .filter(|tensor| tensor.cols > 0)
            .map(|tensor| 2 * tensor.elements() * of_rows(tensor))
            .sum::<u64>();
        products + u64::from(self.depth) * 4 * h * patches * patches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As published.
    fn qwen3_vl_2b() -> TowerSpec {
        TowerSpec {
            depth: 24,
            hidden: 1024,
            heads: 16,
            ffn: 4096,
            patch: 16,
            merge: 2,
            frames: 2,
            out: 2048,
            positions: Some(48),
            patch_bias: true,
            norm: TowerNorm::Layer,
            eps: 1e-6,
            mlp: TowerMlp::Plain(Gelu::Tanh),
            window: None,
            rope_theta: 1e4,
            deep: DeepLayers::of(&[5, 11, 17]).unwrap(),
        }
    }

    /// As published in Qwen2.5-VL-7B.
    fn qwen2_5_vl_7b() -> TowerSpec {
        let whole = [7, 15, 23, 31].into_iter().collect();
        TowerSpec {
            depth: 32,
            hidden: 1280,
            ffn: 3420,
            patch: 14,
            out: 3584,
            positions: None,
            patch_bias: false,
            norm: TowerNorm::Rms,
            mlp: TowerMlp::Gated(Gate::Silu),
            window: Some(TowerWindow { pixels: 112, whole }),
            deep: DeepLayers::default(),
            ..qwen3_vl_2b()
        }
    }

    #[test]
    fn towers_have_the_parameters_of_published_models() {
        // 2,127,532,032 of Qwen3-VL-2B without the 1,720,574,976 of its text, and 8,292,166,656 of Qwen2.5-VL-7B
        // without 7,615,616,512.
        assert_eq!(qwen3_vl_2b().parameters(), 406_957_056);
        assert_eq!(qwen2_5_vl_7b().parameters(), 676_550_144);
        assert_eq!((qwen3_vl_2b().patch_elements(), qwen2_5_vl_7b().patch_elements()), (1536, 1176));
        assert_eq!((qwen3_vl_2b().head_dim(), qwen3_vl_2b().vectors(64, 64)), (64, 1024));
    }

    #[test]
    fn tensors_have_the_names_of_files_once() {
        for (spec, name, shape) in [
            (qwen3_vl_2b(), "model.visual.patch_embed.proj.weight", vec![1024, 3, 2, 16, 16]),
            (qwen3_vl_2b(), "model.visual.blocks.23.mlp.linear_fc2.weight", vec![1024, 4096]),
            (qwen3_vl_2b(), "model.visual.deepstack_merger_list.2.norm.bias", vec![4096]),
            (qwen3_vl_2b(), "model.visual.merger.norm.weight", vec![1024]),
            (qwen2_5_vl_7b(), "model.visual.blocks.0.mlp.up_proj.bias", vec![3420]),
            (qwen2_5_vl_7b(), "model.visual.merger.mlp.2.weight", vec![3584, 5120]),
        ] {
            let tensors = tower_tensors(&spec);
            let found: Vec<_> = tensors.iter().filter(|tensor| tensor.name == name).collect();
            assert_eq!(found.len(), 1, "{name}");
            assert_eq!(found[0].shape, shape, "{name}");
        }
    }

    #[test]
    fn deep_layers_ascend_and_are_few() {
        assert_eq!(DeepLayers::of(&[5, 11, 17]).unwrap().index_of(11), Some(1));
        assert!(
            [&[5, 5][..], &[2, 1], &[1, 2, 3, 4, 5]].iter().all(|layers| DeepLayers::of(layers).is_none())
        );
    }

    #[test]
    fn a_megapixel_costs_what_its_products_and_its_attention_do() {
        let (spec, patches) = (qwen3_vl_2b(), 4096);
        let attention = 24 * 4 * 1024 * patches * patches;
        let flops = spec.forward_flops(patches);
        // Products of about 2 x 0.3e9 x 4096, of which mergers have a quarter of the rows.
        assert!((flops - attention).abs_diff(2_690_000_000_000) < 60_000_000_000, "{flops}");
    }
}
