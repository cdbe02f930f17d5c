//! Linear attention against f64, for every path of the machine, and bits that must not depend on cuts, on other rows or on threads.

use crate::both::delta::checks::{check_backward, check_forward};
use crate::both::delta::cuts::check_cuts;
use crate::both::delta::{CASES, Case};
use crate::both::{Rig, paths};
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
