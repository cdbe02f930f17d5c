//! A small model that sees, whose weights are drawn at random: for first runs and tests.

use super::sight::{RopeAxes, SightSpec};
use super::spec::{DeepLayers, Gelu, TowerMlp, TowerNorm, TowerSpec};

/// How the preset `tiny-vl` of `ModelSpec::preset` takes images. Its tokens are bytes, three tokens of texts, and those
/// of images.
pub(super) const TINY_VL: SightSpec = SightSpec {
    tower: TowerSpec {
        depth: 2,
        hidden: 64,
        heads: 4,
        ffn: 192,
        patch: 16,
        merge: 2,
        frames: 2,
        out: 64,
        positions: Some(8),
        patch_bias: true,
        norm: TowerNorm::Layer,
        eps: 1e-6,
        mlp: TowerMlp::Plain(Gelu::Tanh),
        window: None,
        rope_theta: 1e4,
        deep: DeepLayers::NONE,
    },
    axes: RopeAxes::Woven([4, 2, 2]),
    image_token: 260,
    around: [259, 261],
};
