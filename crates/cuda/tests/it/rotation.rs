//! Rotation, head norms and the cache on a card against the CPU.

use crate::both::rotation::{cases, plain};
use crate::both::{bits, check_norm, f64s, round};
use crate::rig::{on_card, twin};
use plimsoll_base::DType::F32;

#[test]
fn rope_backward_agrees_with_the_cpu() {
    for case in cases() {
        let Some(gpu) = on_card(&case.buffers()) else { return };
        let inputs = case.inputs();
        let (got, want) = (inputs.backward(&gpu), inputs.backward(&twin(&case.buffers())));
        // Two roundings to bf16 of numbers that differ in the last bits of f32: at most one unit apart.
        let tolerances = [if case.e == F32 { 1e-6 } else { 1e-3 }, 2e-6, 2e-6];
        for ((got, want), tolerance) in got.iter().zip(&want).zip(tolerances) {
            check_norm(&format!("{case:?}"), got, &f64s(want), tolerance);
        }
    }
}

#[test]
fn without_norms_the_bits_are_the_cpus() {
    for case in plain() {
        let Some(gpu) = on_card(&case.buffers()) else { return };
        let cpu = twin(&case.buffers());
        let inputs = case.inputs();
        inputs.fill(&gpu);
        inputs.fill(&cpu);
        case.forward(&gpu);
        case.forward(&cpu);
        assert_eq!(bits(&gpu.get("q")), bits(&cpu.get("q")), "{:?} {}", case.e, case.heads.head_dim);
        assert!(gpu.get("q").iter().all(|&x| x == round(x, case.e)));
    }
}
