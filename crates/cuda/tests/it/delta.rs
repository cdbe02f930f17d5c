//! Linear attention on a card against f64, and bits that must not depend on cuts or on other rows.

use crate::both::bits;
use crate::both::delta::checks::{check_backward, check_forward};
use crate::both::delta::cuts::check_cuts;
use crate::both::delta::{CASES, Case, GRADIENTS, LONG};
use crate::rig::{Card, on_card};
use plimsoll_base::DType::{self, Bf16, F32};

fn open(case: &Case, e: DType, g: DType) -> Option<Card> {
    on_card(&case.buffers(e, g))
}

fn each(check: impl Fn(&Case, &mut Card, DType, &str)) {
    for case in CASES.iter().chain(LONG) {
        for e in [Bf16, F32] {
            let Some(mut gpu) = open(case, e, F32) else { return };
            check(case, &mut gpu, e, "a card");
        }
    }
}

#[test]
fn delta_sequences_have_the_same_bits_however_they_are_cut() {
    each(check_cuts);
}

#[test]
fn delta_agrees_with_f64() {
    each(check_forward);
}

#[test]
fn gradients_of_delta_agree_with_f64() {
    for add in [true, false] {
        each(|case, gpu, e, how| check_backward(case, gpu, e, add, how));
    }
    for case in CASES {
        let Some(mut gpu) = open(case, Bf16, Bf16) else { return };
        check_backward(case, &mut gpu, Bf16, true, "bf16 gradients");
    }
}

#[test]
fn gradients_of_delta_repeat_to_the_bit() {
    for case in CASES.iter().chain(LONG) {
        for e in [Bf16, F32] {
            let Some(gpu) = open(case, e, F32) else { return };
            let run = || {
                case.fill(&gpu, e);
                let pass = case.whole(true);
                case.forward(&gpu, &case.x(e), &pass);
                case.backward(&gpu, e, &pass, true);
                GRADIENTS.map(|name| bits(&case.written(&gpu, name, &pass)))
            };
            assert!(run() == run(), "{case:?}, {}", e.name());
        }
    }
}
