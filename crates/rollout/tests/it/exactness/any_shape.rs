//! Drawn shapes: a request and a schedule of any size.

use super::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_gives_the_same_bits(
        (model, bf16) in (0usize..3, any::<bool>()),
        lens in prop::collection::vec(1usize..50, 1..4),
        group_size in 1usize..5,
        (new_tokens, sequences, rows, extra) in (1usize..30, 1usize..8, 1usize..40, 0usize..4),
        (cut, level, threads) in (0usize..60, 0usize..3, 1usize..3),
    ) {
        let source = ["qwen3", "llama", "qwen2"][model];
        let dtype = if bf16 { DType::Bf16 } else { DType::F32 };
        let ask = Ask { new_tokens, ..Ask::new(source, dtype, Machine::detect(), &lens, group_size) };
        let (drawn, _) = ask.draw(ask.engine(ask.samples(), 256, ask.blocks()), OnFull::WorstCase, 1);
        let limits = ask.engine(sequences, rows.max(sequences), ask.tight_blocks() + extra);
        let (other, count) = ask.draw(limits, OnFull::Preempt, threads);
        ask.check_same(&drawn, &other, &format!("{limits:?}, {count} preemptions"));
        let recompute = [Recompute::None, Recompute::Cheap, Recompute::Layer][level];
        ask.check_training(&drawn, ask.prompt_tokens() + new_tokens + cut, recompute, threads);
    }
}
