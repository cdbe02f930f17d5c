//! Shapes of published models, for plans and for `random:PRESET`.

use crate::preset_shapes::*;
use crate::{Attention, Family, FileShape, LayerSet, ModelSpec, QkNorms, RopeScaling, SigmoidSpec};

/// Why presets are planned only: Baichuan's attention has position biases, and files of the others are not read.
const OTHER_FAMILY: &str = "this family is not trained here";
/// Why others are: keys are chosen by a small attention of its own.
const SPARSE: &str = "the indexer of sparse attention is not built";

/// Presets that are planned only, and why. Each has the family whose layers have its shape.
pub const PLAN_ONLY: &[(&str, &str)] = &[
    ("baichuan-13b", OTHER_FAMILY),
    ("mixtral-8x7b", OTHER_FAMILY),
    ("mixtral-8x22b", OTHER_FAMILY),
    ("olmoe-1b-7b", OTHER_FAMILY),
    ("minimax-m2", OTHER_FAMILY),
    ("deepseek-v3.2", SPARSE),
    ("glm-5", SPARSE),
];

/// Known shapes for `random:PRESET`, from the published `config.json` files.
#[rustfmt::skip]
pub static PRESETS: &[(&str, ModelSpec)] = &[
    ("nano", shape(Family::Llama, 15, 128, 4, 2, 2, 64, 384, 1e-6, 1e3, true, 64).spec()),
    ("nano-qwen3.5-moe", nano_with_both(Family::Qwen35Moe).spec()),
    ("nano-qwen3-next", nano_with_both(Family::Qwen3Next).spec()),
    ("nano-ministral-3", nano_ministral().spec()),
    ("nano-gpt-oss", nano_with_sinks().spec()),
    ("nano-glm-4.5", nano_glm().spec()),
    ("nano-deepseek-v2", nano_deepseek_v2().spec()),
    ("nano-deepseek-v3", nano_deepseek().spec()),
    ("nano-gemma-4", gemma_4(shape(Family::Gemma4, 15, 128, 6, 2, 1, 32, 256, 1e-6, 1e3, true, 64), 8, 1, 64).spec()),
    ("nano-gemma-4-moe", joined(gemma_4(shape(Family::Gemma4, 15, 128, 6, 2, 1, 32, 128, 1e-6, 1e3, true, 64), 8, 1, 64), 8, 64).spec()),
    ("tiny-vl", shape(Family::Qwen3, 262, 64, 2, 4, 2, 16, 192, 1e-6, 1e4, true, 512).spec()),
    ("smollm2-135m", shape(Family::Llama, 49152, 576, 30, 9, 3, 64, 1536, 1e-5, 1e5, true, 8192).spec()),
    ("smollm2-360m", shape(Family::Llama, 49152, 960, 32, 15, 5, 64, 2560, 1e-5, 1e5, true, 8192).spec()),
    ("smollm2-1.7b", shape(Family::Llama, 49152, 2048, 24, 32, 32, 64, 8192, 1e-5, 1.3e5, true, 8192).spec()),
    ("qwen2.5-0.5b", shape(Family::Qwen2, 151936, 896, 24, 14, 2, 64, 4864, 1e-6, 1e6, true, 32768).spec()),
    ("qwen2.5-1.5b", shape(Family::Qwen2, 151936, 1536, 28, 12, 2, 128, 8960, 1e-6, 1e6, true, 32768).spec()),
    ("qwen2.5-3b", shape(Family::Qwen2, 151936, 2048, 36, 16, 2, 128, 11008, 1e-6, 1e6, true, 32768).spec()),
    ("qwen2.5-7b", shape(Family::Qwen2, 152064, 3584, 28, 28, 4, 128, 18944, 1e-6, 1e6, false, 32768).spec()),
    ("qwen2.5-14b", shape(Family::Qwen2, 152064, 5120, 48, 40, 8, 128, 13824, 1e-6, 1e6, false, 131072).spec()),
    ("qwen2.5-32b", shape(Family::Qwen2, 152064, 5120, 64, 40, 8, 128, 27648, 1e-6, 1e6, false, 131072).spec()),
    ("qwen2.5-72b", shape(Family::Qwen2, 152064, 8192, 80, 64, 8, 128, 29568, 1e-6, 1e6, false, 131072).spec()),
    ("qwen2.5-vl-3b", shape(Family::Qwen2, 151936, 2048, 36, 16, 2, 128, 11008, 1e-6, 1e6, true, 128000).spec()),
    ("qwen2.5-vl-7b", shape(Family::Qwen2, 152064, 3584, 28, 28, 4, 128, 18944, 1e-6, 1e6, false, 128000).spec()),
    ("qwen2.5-vl-32b", shape(Family::Qwen2, 152064, 5120, 64, 40, 8, 128, 27648, 1e-6, 1e6, false, 128000).spec()),
    ("qwen2.5-vl-72b", shape(Family::Qwen2, 152064, 8192, 80, 64, 8, 128, 29568, 1e-6, 1e6, false, 128000).spec()),
    ("qwen3-0.6b", shape(Family::Qwen3, 151936, 1024, 28, 16, 8, 128, 3072, 1e-6, 1e6, true, 40960).spec()),
    ("qwen3-1.7b", shape(Family::Qwen3, 151936, 2048, 28, 16, 8, 128, 6144, 1e-6, 1e6, true, 40960).spec()),
    ("qwen3-4b", shape(Family::Qwen3, 151936, 2560, 36, 32, 8, 128, 9728, 1e-6, 1e6, true, 40960).spec()),
    ("qwen3-8b", shape(Family::Qwen3, 151936, 4096, 36, 32, 8, 128, 12288, 1e-6, 1e6, false, 40960).spec()),
    ("qwen3-14b", shape(Family::Qwen3, 151936, 5120, 40, 40, 8, 128, 17408, 1e-6, 1e6, false, 40960).spec()),
    ("qwen3-32b", shape(Family::Qwen3, 151936, 5120, 64, 64, 8, 128, 25600, 1e-6, 1e6, false, 40960).spec()),
    ("qwen3-30b-a3b", with_experts(shape(Family::Qwen3Moe, 151936, 2048, 48, 32, 4, 128, 6144, 1e-6, 1e6, false, 40960), 128, 8, 768).spec()),
    ("qwen3-235b-a22b", with_experts(shape(Family::Qwen3Moe, 151936, 4096, 94, 64, 4, 128, 12288, 1e-6, 1e6, false, 40960), 128, 8, 1536).spec()),
    ("qwen3-vl-2b", shape(Family::Qwen3, 151936, 2048, 28, 16, 8, 128, 6144, 1e-6, 5e6, true, 262144).spec()),
    ("qwen3-vl-4b", shape(Family::Qwen3, 151936, 2560, 36, 32, 8, 128, 9728, 1e-6, 5e6, true, 262144).spec()),
    ("qwen3-vl-8b", shape(Family::Qwen3, 151936, 4096, 36, 32, 8, 128, 12288, 1e-6, 5e6, false, 262144).spec()),
    ("qwen3-vl-32b", shape(Family::Qwen3, 151936, 5120, 64, 64, 8, 128, 25600, 1e-6, 5e6, false, 262144).spec()),
    ("qwen3-vl-30b-a3b", with_experts(shape(Family::Qwen3Moe, 151936, 2048, 48, 32, 4, 128, 6144, 1e-6, 5e6, false, 262144), 128, 8, 768).spec()),
    ("qwen3-vl-235b-a22b", with_experts(shape(Family::Qwen3Moe, 151936, 4096, 94, 64, 4, 128, 12288, 1e-6, 5e6, false, 262144), 128, 8, 1536).spec()),
    ("qwen3.5-0.8b", with_delta(shape(Family::Qwen35, 248320, 1024, 24, 8, 2, 256, 3584, 1e-6, 1e7, true, 262144), 16).spec()),
    ("qwen3.5-2b", with_delta(shape(Family::Qwen35, 248320, 2048, 24, 8, 2, 256, 6144, 1e-6, 1e7, true, 262144), 16).spec()),
    ("qwen3.5-4b", with_delta(shape(Family::Qwen35, 248320, 2560, 32, 16, 4, 256, 9216, 1e-6, 1e7, true, 262144), 32).spec()),
    ("qwen3.5-9b", with_delta(shape(Family::Qwen35, 248320, 4096, 32, 16, 4, 256, 12288, 1e-6, 1e7, false, 262144), 32).spec()),
    ("qwen3.5-27b", with_delta(shape(Family::Qwen35, 248320, 5120, 64, 24, 4, 256, 17408, 1e-6, 1e7, false, 262144), 48).spec()),
    ("qwen3.5-35b-a3b", with_experts(with_delta(shape(Family::Qwen35Moe, 248320, 2048, 40, 16, 2, 256, 512, 1e-6, 1e7, false, 262144), 32), 256, 8, 512).spec()),
    ("qwen3.5-122b-a10b", with_experts(with_delta(shape(Family::Qwen35Moe, 248320, 3072, 48, 32, 2, 256, 1024, 1e-6, 1e7, false, 262144), 64), 256, 8, 1024).spec()),
    ("qwen3-next-80b-a3b", with_experts(with_delta(shape(Family::Qwen3Next, 151936, 2048, 48, 16, 2, 256, 5120, 1e-6, 1e7, false, 262144), 32), 512, 10, 512).spec()),
    ("glm-4.5-air", with_sigmoid_experts(FileShape { qk_norms: None, ..shape(Family::Glm4Moe, 151552, 4096, 46, 96, 8, 128, 10944, 1e-5, 1e6, false, 131072) }, 128, 1408, 1, 1.0).spec()),
    ("glm-4.5", with_sigmoid_experts(shape(Family::Glm4Moe, 151552, 5120, 92, 96, 8, 128, 12288, 1e-5, 1e6, false, 131072), 160, 1536, 3, 2.5).spec()),
    ("deepseek-v2-lite", with_latent(FileShape { rope_scaling: DEEPSEEK_ROPE, ..shape(Family::DeepSeekV2, 102400, 2048, 27, 16, 16, 64, 10944, 1e-6, 1e4, false, 163840) }, latent(16, 128, 128, None, 0.114_721_39, 0.707), softmax_experts(27, 1, [64, 6, 1408, 2])).spec()),
    ("moonlight-16b-a3b", with_latent(shape(Family::DeepSeekV3, 163840, 2048, 27, 16, 16, 64, 11264, 1e-5, 5e4, false, 8192), latent(16, 128, 128, None, 0.072_168_78, 0.0), sigmoid_experts(27, 1, [64, 6, 1408, 2], ungrouped(2.446))).spec()),
    ("glm-4.7-flash", with_latent(shape(Family::Glm4MoeLite, 154880, 2048, 47, 20, 20, 64, 10240, 1e-5, 1e6, false, 202752), latent(20, 192, 256, Some(768), 0.0625, 0.0), sigmoid_experts(47, 1, [64, 4, 1536, 1], ungrouped(1.8))).spec()),
    ("deepseek-v3", with_latent(FileShape { rope_scaling: DEEPSEEK_ROPE, ..shape(Family::DeepSeekV3, 129280, 7168, 61, 128, 128, 64, 18432, 1e-6, 1e4, false, 163840) }, latent(128, 128, 128, Some(1536), 0.135_233_77, 1.0), sigmoid_experts(61, 3, [256, 8, 2048, 1], SigmoidSpec { groups: 8, groups_chosen: 4, factor: 2.5 })).spec()),
    ("kimi-k2", with_latent(FileShape { rope_scaling: KIMI_K2_ROPE, ..shape(Family::DeepSeekV3, 163840, 7168, 61, 64, 64, 64, 18432, 1e-6, 5e4, false, 131072) }, latent(64, 128, 128, Some(1536), 0.130_860_8, 1.0), sigmoid_experts(61, 1, [384, 8, 2048, 1], ungrouped(2.827))).spec()),
    ("deepseek-v3.2", with_latent(FileShape { rope_scaling: DEEPSEEK_ROPE, ..shape(Family::DeepSeekV3, 129280, 7168, 61, 128, 128, 64, 18432, 1e-6, 1e4, false, 163840) }, indexed(latent(128, 128, 128, Some(1536), 0.135_233_77, 1.0), 64), sigmoid_experts(61, 3, [256, 8, 2048, 1], SigmoidSpec { groups: 8, groups_chosen: 4, factor: 2.5 })).spec()),
    ("glm-5", with_latent(shape(Family::DeepSeekV3, 154880, 6144, 78, 64, 64, 64, 12288, 1e-5, 1e6, false, 202752), indexed(latent(64, 192, 256, Some(2048), 0.0625, 0.0), 32), sigmoid_experts(78, 3, [256, 8, 2048, 1], ungrouped(2.5))).spec()),
    ("gpt-oss-20b", gpt_oss(24, 32).spec()),
    ("gpt-oss-120b", gpt_oss(36, 128).spec()),
    ("llama-2-7b", shape(Family::Llama, 32000, 4096, 32, 32, 32, 128, 11008, 1e-5, 1e4, false, 4096).spec()),
    ("llama-2-13b", shape(Family::Llama, 32000, 5120, 40, 40, 40, 128, 13824, 1e-5, 1e4, false, 4096).spec()),
    ("llama-2-70b", shape(Family::Llama, 32000, 8192, 80, 64, 8, 128, 28672, 1e-5, 1e4, false, 4096).spec()),
    ("llama-3-8b", shape(Family::Llama, 128256, 4096, 32, 32, 8, 128, 14336, 1e-5, 5e5, false, 8192).spec()),
    ("llama-3-70b", shape(Family::Llama, 128256, 8192, 80, 64, 8, 128, 28672, 1e-5, 5e5, false, 8192).spec()),
    ("llama-3.1-8b", FileShape { rope_scaling: LLAMA_3_1_ROPE, ..shape(Family::Llama, 128256, 4096, 32, 32, 8, 128, 14336, 1e-5, 5e5, false, 131072) }.spec()),
    ("llama-3.1-70b", FileShape { rope_scaling: LLAMA_3_1_ROPE, ..shape(Family::Llama, 128256, 8192, 80, 64, 8, 128, 28672, 1e-5, 5e5, false, 131072) }.spec()),
    ("llama-3.2-1b", FileShape { rope_scaling: LLAMA_3_2_ROPE, ..shape(Family::Llama, 128256, 2048, 16, 32, 8, 64, 8192, 1e-5, 5e5, true, 131072) }.spec()),
    ("llama-3.2-3b", FileShape { rope_scaling: LLAMA_3_2_ROPE, ..shape(Family::Llama, 128256, 3072, 28, 24, 8, 128, 8192, 1e-5, 5e5, true, 131072) }.spec()),
    ("baichuan-13b", shape(Family::Llama, 64000, 5120, 40, 40, 40, 128, 13696, 1e-6, 1e4, false, 4096).spec()),
    ("smollm3-3b", FileShape { attention: Attention { unrotated: LayerSet::every(4, 36), ..Attention::PLAIN }, ..shape(Family::SmolLm3, 128256, 2048, 36, 16, 4, 128, 11008, 1e-6, 5e6, true, 65536) }.spec()),
    ("olmo-2-1b", shape(Family::Olmo2, 100352, 2048, 16, 16, 16, 128, 8192, 1e-6, 5e5, false, 4096).spec()),
    ("olmo-2-7b", shape(Family::Olmo2, 100352, 4096, 32, 32, 32, 128, 11008, 1e-6, 5e5, false, 4096).spec()),
    ("olmo-3-7b", with_windows(FileShape { rope_scaling: OLMO_3_ROPE, ..shape(Family::Olmo3, 100278, 4096, 32, 32, 32, 128, 11008, 1e-6, 5e5, false, 65536) }, 4096, 4, Some(5e5)).spec()),
    ("gemma-2-2b", with_windows(capped(scaled(shape(Family::Gemma2, 256000, 2304, 26, 8, 4, 256, 9216, 1e-6, 1e4, true, 8192), 0.0625, ONES), 50.0, 30.0), 4096, 2, None).spec()),
    ("gemma-2-9b", with_windows(capped(scaled(shape(Family::Gemma2, 256000, 3584, 42, 16, 8, 256, 14336, 1e-6, 1e4, true, 8192), 0.0625, ONES), 50.0, 30.0), 4096, 2, None).spec()),
    ("gemma-3-1b", with_windows(scaled(shape(Family::Gemma3, 262144, 1152, 26, 4, 1, 256, 6912, 1e-6, 1e6, true, 32768), 0.0625, ONES), 512, 6, Some(1e4)).spec()),
    ("gemma-3-4b", with_windows(FileShape { rope_scaling: RopeScaling::Linear { factor: 8.0 }, ..scaled(shape(Family::Gemma3, 262208, 2560, 34, 8, 4, 256, 10240, 1e-6, 1e6, true, 131072), 0.0625, ONES) }, 1024, 6, Some(1e4)).spec()),
    ("gemma-4-31b", gemma_4(shape(Family::Gemma4, 262144, 5376, 60, 32, 16, 256, 21504, 1e-6, 1e6, true, 262144), 1024, 4, 512).spec()),
    ("gemma-4-e2b", with_inputs(gemma_4_small(shape(Family::Gemma4, 262144, 1536, 35, 8, 1, 256, 6144, 1e-6, 1e6, true, 131072), 5), 20, true).spec()),
    ("gemma-4-e4b", with_inputs(gemma_4_small(shape(Family::Gemma4, 262144, 2560, 42, 8, 2, 256, 10240, 1e-6, 1e6, true, 131072), 6), 18, false).spec()),
    ("gemma-4-26b-a4b", joined(gemma_4(shape(Family::Gemma4, 262144, 2816, 30, 16, 8, 256, 2112, 1e-6, 1e6, true, 262144), 1024, 2, 512), 128, 704).spec()),
    ("granite-3.3-2b", scaled(shape(Family::Granite, 49159, 2048, 40, 32, 8, 64, 8192, 1e-5, 1e7, true, 131072), 0.015625, [12.0, 0.22, 8.0]).spec()),
    ("granite-3.3-8b", scaled(shape(Family::Granite, 49159, 4096, 40, 32, 8, 128, 12800, 1e-5, 1e7, true, 131072), 0.0078125, [12.0, 0.22, 16.0]).spec()),
    ("phi-4-mini", FileShape { rope_scaling: PHI_4_MINI_ROPE, attention: Attention { rotated: Some(96), ..Attention::PLAIN }, ..shape(Family::Phi3, 200064, 3072, 32, 24, 8, 128, 8192, 1e-5, 1e4, true, 131072) }.spec()),
    ("mixtral-8x7b", mixtral(shape(Family::Qwen3Moe, 32000, 4096, 32, 32, 8, 128, 14336, 1e-5, 1e6, false, 32768), 8, 2).spec()),
    ("mixtral-8x22b", mixtral(shape(Family::Qwen3Moe, 32000, 6144, 56, 48, 8, 128, 16384, 1e-5, 1e6, false, 65536), 8, 2).spec()),
    ("olmoe-1b-7b", FileShape { qk_norms: Some(QkNorms::Rows), ..with_experts(shape(Family::Qwen3Moe, 50304, 2048, 16, 16, 16, 128, 1024, 1e-5, 1e4, false, 4096), 64, 8, 1024) }.spec()),
    ("minimax-m2", minimax().spec()),
    ("mistral-small-24b", shape(Family::Mistral, 131072, 5120, 40, 32, 8, 128, 32768, 1e-5, 1e8, false, 32768).spec()),
    ("mistral-small-3.1-24b", shape(Family::Mistral, 131072, 5120, 40, 32, 8, 128, 32768, 1e-5, 1e9, false, 131072).spec()),
    ("ministral-3-3b", ministral(3072, 26, 9216, 1e6, true)),
    ("ministral-3-8b", ministral(4096, 34, 14336, 1e6, false)),
    ("ministral-3-14b", ministral(5120, 40, 16384, 1e9, false)),
    ("mistral-7b", shape(Family::Mistral, 32768, 4096, 32, 32, 8, 128, 14336, 1e-5, 1e6, false, 32768).spec()),
];

impl ModelSpec {
    /// Returns the spec of a preset in `PRESETS`.
    pub fn preset(name: &str) -> Option<ModelSpec> {
        PRESETS.iter().find(|(n, _)| *n == name).map(|(_, spec)| *spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_one_by_one_are_what_files_say() {
        for (name, spec) in PRESETS {
            assert_eq!(spec.file_shape().spec(), *spec, "{name}");
            assert_eq!(spec.each_layer().collect::<crate::LayerList>(), spec.layers, "{name}");
        }
        let delta = ModelSpec::preset("qwen3.5-0.8b").unwrap();
        assert_eq!((delta.layers.runs().count(), delta.delta_layers()), (12, 18));
        assert!(delta.attentions().all(|attention| attention.gated && attention.head_dim == 256));
        let smol = ModelSpec::preset("smollm3-3b").unwrap();
        assert_eq!(smol.attentions().filter(|attention| !attention.is_rotated).count(), 9);
        let gemma = ModelSpec::preset("gemma-3-1b").unwrap();
        let own = gemma.attentions().filter(|attention| attention.own_theta == Some(1e4));
        assert_eq!(own.map(|attention| attention.window).collect::<Vec<_>>(), [Some(512); 22]);
    }

    #[test]
    fn parameter_counts_match_the_published_ones() {
        for (name, expect) in [
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen2.5-1.5b", 1_543_714_304),
            ("qwen2.5-7b", 7_615_616_512),
            ("smollm2-135m", 134_515_008),
            ("qwen3-0.6b", 596_049_920),
            ("llama-3.2-1b", 1_235_814_400),
            ("baichuan-13b", 13_264_901_120),
            ("qwen2.5-14b", 14_770_033_664),
            ("qwen2.5-32b", 32_763_876_352),
            ("qwen2.5-72b", 72_706_203_648),
            ("llama-2-7b", 6_738_415_616),
            ("llama-2-13b", 13_015_864_320),
            ("llama-2-70b", 68_976_648_192),
            ("llama-3-8b", 8_030_261_248),
            ("llama-3-70b", 70_553_706_496),
            ("llama-3.1-8b", 8_030_261_248),
            ("qwen3-14b", 14_768_307_200),
            ("qwen3-32b", 32_762_123_264),
            ("gemma-2-2b", 2_614_341_888),
            ("gemma-2-9b", 9_241_705_984),
            ("gemma-3-1b", 999_885_952),
            ("gemma-4-31b", 30_697_345_280),
            ("gemma-4-e2b", 4_628_569_344),
            ("gemma-4-e4b", 7_463_013_376),
            ("gemma-4-26b-a4b", 25_233_141_760),
            ("smollm3-3b", 3_075_098_624),
            ("olmo-2-1b", 1_484_916_736),
            ("olmo-2-7b", 7_298_617_344),
            ("granite-3.3-8b", 8_170_864_640),
            ("phi-4-mini", 3_836_021_760),
            ("qwen3-30b-a3b", 30_532_122_624),
            ("qwen3-235b-a22b", 235_093_634_560),
            // As transformers counts them.
            ("mixtral-8x7b", 46_702_792_704),
            ("mixtral-8x22b", 140_620_634_112),
            ("olmoe-1b-7b", 6_919_161_856),
            // Of the language models alone.
            ("qwen3.5-0.8b", 752_393_024),
            ("qwen3.5-2b", 1_881_825_088),
            ("qwen3.5-4b", 4_205_751_296),
            ("qwen3.5-9b", 8_953_803_264),
            ("qwen3.5-27b", 26_895_998_464),
            ("qwen3.5-35b-a3b", 34_660_610_688),
            ("qwen3.5-122b-a10b", 122_111_526_912),
            ("qwen3-next-80b-a3b", 79_674_391_296),
            ("deepseek-v2-lite", 15_706_484_224),
            ("moonlight-16b-a3b", 15_960_108_544),
            ("glm-4.7-flash", 29_943_390_976),
            ("deepseek-v3", 671_026_404_352),
            ("kimi-k2", 1_026_408_209_408),
            ("minimax-m2", 228_689_748_992),
            // As transformers counts them, with their indexers.
            ("deepseek-v3.2", 671_877_929_216),
            ("glm-5", 743_911_199_232),
            ("glm-4.5-air", 106_852_245_504),
            ("glm-4.5", 352_797_814_784),
            ("mistral-small-24b", 23_572_403_200),
            ("mistral-small-3.1-24b", 23_572_403_200),
            ("ministral-3-3b", 3_429_006_336),
            ("ministral-3-8b", 8_489_553_920),
            ("ministral-3-14b", 13_506_073_600),
            ("gpt-oss-20b", 20_914_757_184),
            ("gpt-oss-120b", 116_829_156_672),
        ] {
            assert_eq!(ModelSpec::preset(name).unwrap().parameters(), expect, "{name}");
        }
    }

    #[test]
    fn a_token_is_computed_by_its_experts_alone() {
        let spec = ModelSpec::preset("qwen3-30b-a3b").unwrap();
        // 48 layers lack 120 of 128 experts of 3 x 2,048 x 768.
        assert_eq!(spec.active_parameters(), 30_532_122_624 - 48 * 120 * 3 * 2048 * 768);
        let embeddings = 2 * 151_936 * 2048;
        let norms = 48 * (2 * 2048 + 2 * 128) + 2048;
        assert_eq!(spec.layer_flops(0), 2 * (spec.active_parameters() - embeddings - norms));
        let dense = ModelSpec::preset("qwen3-8b").unwrap();
        assert_eq!(dense.active_parameters(), dense.parameters());
        // Every second layer is as wide as the dense part, which is narrower than 8 experts.
        let mut shape = spec.file_shape();
        shape.experts.as_mut().unwrap().layers = LayerSet::every(2, 48);
        let mixed = shape.spec();
        assert_eq!(
            (mixed.expert_layers(), mixed.layer(0).experts(), mixed.layer(1).experts()),
            (24, None, spec.layer(0).experts())
        );
        assert_eq!([0, 1].map(|layer| mixed.layer(layer).ffn.product_width()), [6144; 2]);
        let lost = 24 * (128 * 2048 + 3 * 2048 * (128 * 768 - 6144));
        assert_eq!(mixed.parameters(), spec.parameters() - lost);
    }
}
