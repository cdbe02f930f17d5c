//! Linear attention against f64 on every path of the machine, and bits that no cuts, other rows or threads may change.

use crate::both::delta::checks::{check_backward, check_forward};
use crate::both::delta::cuts::check_cuts;
use crate::both::delta::{CASES, Case, GRADIENTS, LONG, case, differences, group};
use crate::both::{Rig, bits, in_turn, paths};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_cpu::Isa;
use std::time::Instant;

fn open(case: &Case, isa: Isa, threads: usize, e: DType, g: DType) -> Rig {
    Rig::new(isa, threads, &case.buffers(e, g))
}

fn each(check: impl Fn(&Case, &mut Rig, DType, &str)) {
    for isa in paths() {
        for case in CASES {
            for e in [Bf16, F32] {
                check(case, &mut open(case, isa, 2, e, F32), e, isa.name());
            }
        }
    }
}

#[test]
fn delta_sequences_have_the_same_bits_however_they_are_cut() {
    each(check_cuts);
}

#[test]
fn delta_agrees_with_f64_on_every_path() {
    each(check_forward);
}

#[test]
fn gradients_of_delta_agree_with_f64_on_every_path() {
    for add in [true, false] {
        each(|case, rig, e, how| check_backward(case, rig, e, add, how));
    }
    for case in CASES {
        check_backward(case, &mut open(case, Isa::detect(), 2, Bf16, Bf16), Bf16, true, "bf16 gradients");
    }
}

#[test]
fn delta_of_long_sequences_agrees_with_f64() {
    for case in LONG {
        for e in in_turn([Bf16, F32]) {
            let mut rig = open(case, Isa::detect(), 2, e, F32);
            check_cuts(case, &mut rig, e, "long");
            check_forward(case, &mut rig, e, "long");
            check_backward(case, &mut rig, e, true, "long");
        }
    }
}

#[test]
fn the_gradients_of_the_reference_of_delta_are_differences() {
    differences::check_rule();
    differences::check_inputs();
    differences::check_norm();
}

#[test]
fn threads_change_no_bit_of_delta() {
    for (case, isa) in CASES.iter().flat_map(|case| paths().map(move |isa| (case, isa))) {
        for e in [Bf16, F32] {
            let run = |threads| {
                let rig = open(case, isa, threads, e, F32);
                case.fill(&rig, e);
                let pass = case.whole(true);
                case.forward(&rig, &case.x(e), &pass);
                let forward = ["qkv", "gates", "out", "rest", "y", "states"];
                let forward = forward.map(|name| bits(&case.written(&rig, name, &pass)));
                case.backward(&rig, e, &pass, true);
                let backward = GRADIENTS.map(|name| bits(&case.written(&rig, name, &pass)));
                [forward.to_vec(), backward.to_vec()].concat()
            };
            assert!(run(1) == run(3), "{case:?}, {}, {}", e.name(), isa.name());
        }
    }
}

/// Seconds of the fastest of several calls.
fn fastest(mut f: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    while begin.elapsed().as_secs_f64() < 1.0 {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// Speeds at Qwen3.5's heads: `cargo test --release -p plimsoll-cpu --test it -- --ignored --nocapture bench_delta`.
#[test]
#[ignore = "measures"]
fn bench_delta() {
    const PREFILL: Case = case([128, 128], [16, 32], &[group(0, &[512])]);
    const DECODE: Case = case([128, 128], [16, 32], &[group(0, &[1, 1, 1, 1, 1, 1, 1, 1])]);
    for (isa, threads) in paths().flat_map(|isa| [(isa, 1), (isa, 2)]) {
        for (name, case) in [("512 rows", &PREFILL), ("8 of 1 row", &DECODE)] {
            let rig = open(case, isa, threads, Bf16, F32);
            case.fill(&rig, Bf16);
            let (x, pass) = (case.x(Bf16), case.whole(true));
            case.forward(&rig, &x, &pass);
            case.backward(&rig, Bf16, &pass, false);
            let ms = |f: &dyn Fn()| 1e3 * fastest(f);
            println!(
                "{} {threads} threads, {name}: inputs {:.3} rule {:.3} norm {:.3}; back: norm {:.3} rule {:.3} inputs {:.3} ms",
                isa.name(),
                ms(&|| case.inputs(&rig, &pass)),
                ms(&|| case.rule(&rig, &pass)),
                ms(&|| case.norm(&rig, &pass)),
                ms(&|| case.norm_backward(&rig, false, true)),
                ms(&|| case.rule_backward(&rig, &pass)),
                ms(&|| case.inputs_backward(&rig, &pass, false, true)),
            );
        }
    }
}
