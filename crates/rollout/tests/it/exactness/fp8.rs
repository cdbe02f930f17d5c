//! Products of numbers of eight bits, in every family that has some.

use super::*;

#[test]
fn with_products_of_eight_bits() {
    for (source, dtype) in [
        ("builtin:nano", DType::F32),
        ("builtin:nano", DType::Bf16),
        ("qwen2", DType::Bf16),
        ("llama", DType::F32),
        ("gemma3", DType::Bf16),
        ("olmo3", DType::F32),
        ("llama_bias", DType::Bf16),
        ("qwen3_moe_mixed", DType::Bf16),
        ("qwen3_5", DType::Bf16),
        ("deepseek_v3", DType::Bf16),
        ("gemma4_e", DType::Bf16),
    ] {
        let plain = Ask::new(source, dtype, Machine::detect(), &[1, 7, 16, 31, 40], 3);
        let drawn = Ask { fp8: true, ..plain.clone() }.check_everything();
        let (without, _) = plain.draw(plain.engine(4, 64, plain.blocks()), OnFull::WorstCase, 1);
        let differs = (0..drawn.len()).any(|s| !same_bits(drawn.logprobs(s), without.logprobs(s)));
        assert!(differs, "{source}: the rounding takes part");
    }
}

/// Adapters on such products.
#[test]
fn with_adapters_on_products_of_eight_bits() {
    let lora = Some((LoraShape { rank: 8, targets: LoraTargets::ALL }, 2.0));
    for (source, dtype) in [
        ("builtin:nano", DType::F32),
        ("qwen2", DType::Bf16),
        ("qwen3_moe", DType::Bf16),
        ("qwen3_5", DType::Bf16),
    ] {
        let plain = Ask {
            lora,
            eos: Vec::new(),
            ..Ask::new(source, dtype, Machine::detect(), &[1, 7, 16, 31, 40], 3)
        };
        let drawn = Ask { fp8: true, ..plain.clone() }.check_everything();
        let (without, _) = plain.draw(plain.engine(4, 64, plain.blocks()), OnFull::WorstCase, 1);
        let differs = (0..drawn.len()).any(|s| !same_bits(drawn.logprobs(s), without.logprobs(s)));
        assert!(differs, "{source}: the rounding takes part");
    }
}
