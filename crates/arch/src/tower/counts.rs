//! What follows from a tower's tensors: parameters and arithmetic.

use super::spec::TowerSpec;
use super::tensors::{TowerParam, TowerTensor, tower_tensors};

impl TowerSpec {
    /// Returns the shapes [n, k] of the matrices that rows are multiplied by. Tensors of one parameter are one matrix.
    pub fn products(&self) -> Vec<(u64, u64)> {
        let tensors = tower_tensors(self);
        let of_one = tensors.chunk_by(|a, b| (a.param, a.index) == (b.param, b.index));
        let products = of_one.filter(|parts| parts[0].cols > 0 && parts[0].param != TowerParam::Positions);
        let shape = |parts: &[TowerTensor]| {
            (parts.iter().map(|part| u64::from(part.rows)).sum(), u64::from(parts[0].cols))
        };
        products.map(shape).collect()
    }

    /// Returns the width of the widest vector that is added to rows, or multiplies them.
    pub fn widest_vector(&self) -> u64 {
        let tensors = tower_tensors(self);
        let of_one = tensors.chunk_by(|a, b| (a.param, a.index) == (b.param, b.index));
        let vectors = of_one.filter(|parts| parts[0].cols == 0);
        vectors.map(|parts| parts.iter().map(|part| u64::from(part.rows)).sum()).max().unwrap_or(0)
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
        let of_window = self.window_side().map_or(patches, |side| {
            let vectors = u64::from(side) * u64::from(side);
            patches.min(vectors * u64::from(self.rows_per_vector()))
        });
        let keys = |layer| if self.sees_windows(layer) { of_window } else { patches };
        products + (0..self.depth).map(|layer| 4 * h * patches * keys(layer)).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeepLayers, Gate, Gelu, TowerMlp, TowerNorm, TowerWindow};

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
    fn windows_are_of_few_patches_and_cost_as_much() {
        let spec = qwen2_5_vl_7b();
        assert_eq!((spec.window_side(), spec.sees_windows(6), spec.sees_windows(7)), (Some(4), true, false));
        // An image of one row of vectors has most windows of its patches.
        assert_eq!(spec.windows_max(4 * 9, 1), 1 + 2);
        let (patches, whole) = (4096, TowerSpec { window: None, ..spec });
        let less = 28 * 4 * 1280 * patches * (patches - 64);
        assert_eq!(whole.forward_flops(patches) - spec.forward_flops(patches), less);
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
