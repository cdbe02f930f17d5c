//! How published models take images, by the presets of their texts.

use super::sight::{RopeAxes, SightSpec};
use super::spec::{DeepLayers, Gelu, TowerMlp, TowerNorm, TowerSpec, TowerWindow};
use crate::{Gate, LayerSet, ModelSpec, TokenRun};

/// A tower of 24 layers, of Qwen3-VL's and Qwen3.5's smaller models.
const SMALL: TowerSpec = TowerSpec {
    depth: 24,
    hidden: 1024,
    heads: 16,
    ffn: 4096,
    patch: 16,
    merge: 2,
    frames: 2,
    out: 0,
    positions: Some(48),
    patch_bias: true,
    norm: TowerNorm::Layer,
    eps: 1e-6,
    mlp: TowerMlp::Plain(Gelu::Tanh),
    window: None,
    rope_theta: 1e4,
    deep: DeepLayers::NONE,
};
/// That of the smallest Qwen3.5.
const TINY: TowerSpec = TowerSpec { depth: 12, hidden: 768, heads: 12, ffn: 3072, ..SMALL };
/// That of the larger models of both.
const LARGE: TowerSpec = TowerSpec { depth: 27, hidden: 1152, ffn: 4304, ..SMALL };
/// That of Qwen2.5-VL, with windows in all layers but every eighth.
const WINDOWED: TowerSpec = TowerSpec {
    depth: 32,
    hidden: 1280,
    ffn: 3420,
    patch: 14,
    positions: None,
    patch_bias: false,
    norm: TowerNorm::Rms,
    mlp: TowerMlp::Gated(Gate::Silu),
    window: Some(TowerWindow { pixels: 112, whole: LayerSet::every(8, 32) }),
    ..SMALL
};
/// That of its larger models.
const WINDOWED_WIDE: TowerSpec = TowerSpec { ffn: 3456, ..WINDOWED };

/// A small model whose weights are drawn at random, for first runs and tests. Its tokens are bytes, three of texts, and
/// those of images.
const TINY_VL: SightSpec = SightSpec {
    tower: TowerSpec { depth: 2, hidden: 64, heads: 4, ffn: 192, out: 64, positions: Some(8), ..SMALL },
    axes: RopeAxes::Woven([4, 2, 2]),
    image_token: 260,
    around: [259, 261],
    placeholders: TokenRun::one(260),
};

/// Towers and their layers with further features, from the published `config.json` files.
const TOWERS: [(&str, TowerSpec, &[u32]); 17] = [
    ("qwen2.5-vl-3b", WINDOWED, &[]),
    ("qwen2.5-vl-7b", WINDOWED, &[]),
    ("qwen2.5-vl-32b", WINDOWED_WIDE, &[]),
    ("qwen2.5-vl-72b", WINDOWED_WIDE, &[]),
    ("qwen3-vl-2b", SMALL, &[5, 11, 17]),
    ("qwen3-vl-4b", SMALL, &[5, 11, 17]),
    ("qwen3-vl-8b", LARGE, &[8, 16, 24]),
    ("qwen3-vl-32b", LARGE, &[8, 16, 24]),
    ("qwen3-vl-30b-a3b", LARGE, &[8, 16, 24]),
    ("qwen3-vl-235b-a22b", LARGE, &[8, 16, 24]),
    ("qwen3.5-0.8b", TINY, &[]),
    ("qwen3.5-2b", SMALL, &[]),
    ("qwen3.5-4b", SMALL, &[]),
    ("qwen3.5-9b", LARGE, &[]),
    ("qwen3.5-27b", LARGE, &[]),
    ("qwen3.5-35b-a3b", LARGE, &[]),
    ("qwen3.5-122b-a10b", LARGE, &[]),
];

impl SightSpec {
    /// Returns how the published model of a preset of `ModelSpec::preset` takes images; none if it does not.
    pub fn preset(name: &str) -> Option<SightSpec> {
        if name == "tiny-vl" {
            return Some(TINY_VL);
        }
        let (_, tower, deep) = *TOWERS.iter().find(|(of, ..)| *of == name)?;
        let tower = TowerSpec { out: ModelSpec::preset(name)?.hidden, deep: DeepLayers::of(deep)?, ..tower };
        let (axes, image_token, around) = if name.starts_with("qwen2.5") {
            (RopeAxes::Runs([16, 24, 24]), 151_655, [151_652, 151_653])
        } else if name.starts_with("qwen3-vl") {
            (RopeAxes::Woven([24, 20, 20]), 151_655, [151_652, 151_653])
        } else {
            (RopeAxes::Woven([11, 11, 10]), 248_056, [248_053, 248_054])
        };
        // The token of videos follows.
        let placeholders = TokenRun { first: image_token, count: 2 };
        Some(SightSpec { tower, axes, image_token, around, placeholders })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_towers_have_the_parameters_of_published_models() {
        for (name, expect) in [
            ("qwen2.5-vl-3b", 3_754_622_976),
            ("qwen2.5-vl-7b", 8_292_166_656),
            ("qwen2.5-vl-32b", 33_452_718_336),
            ("qwen2.5-vl-72b", 73_410_777_344),
            ("qwen3-vl-2b", 2_127_532_032),
            ("qwen3-vl-4b", 4_437_815_808),
            ("qwen3-vl-8b", 8_767_123_696),
            ("qwen3-vl-32b", 33_357_390_064),
            ("qwen3-vl-30b-a3b", 31_070_754_032),
            // Published files also predict further tokens.
            ("qwen3.5-0.8b", 873_438_784 - 20_452_864),
            ("qwen3.5-2b", 2_274_069_824 - 60_828_160),
            ("qwen3.5-9b", 9_653_104_368 - 243_290_624),
            ("qwen3.5-27b", 27_781_427_952 - 424_699_392),
            ("qwen3.5-35b-a3b", 35_951_822_704 - 844_640_768),
        ] {
            let (text, sight) = (ModelSpec::preset(name).unwrap(), SightSpec::preset(name).unwrap());
            assert_eq!(text.parameters() + sight.tower.parameters(), expect, "{name}");
        }
    }

    #[test]
    fn every_tower_is_of_a_text_that_its_places_fit() {
        for (name, ..) in TOWERS {
            let (text, sight) = (ModelSpec::preset(name).unwrap(), SightSpec::preset(name).unwrap());
            assert_eq!(2 * sight.axes.pairs().iter().sum::<u32>(), text.rotary_width(), "{name}");
            assert!(sight.image_token < text.vocab && sight.tower.head_dim().is_multiple_of(4), "{name}");
        }
        assert_eq!(SightSpec::preset("qwen3-4b"), None);
    }
}
