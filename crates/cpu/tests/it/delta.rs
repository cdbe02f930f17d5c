//! Linear attention against f64, for every path of the machine, and bits that must not depend on cuts, on other rows or on threads.

use crate::both::delta::checks::{check_backward, check_forward};
use crate::both::delta::cuts::check_cuts;
use crate::both::delta::{CASES, Case, GRADIENTS, LONG, differences};
use crate::both::{Rig, bits, paths};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_cpu::Isa;

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
        for e in [Bf16, F32] {
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
