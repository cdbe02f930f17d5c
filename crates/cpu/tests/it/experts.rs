//! Experts against f64, for every path of the machine, and bits that must not depend on other rows or on threads.

use crate::both::experts::{CASES, Case, check_backward, check_forward, check_rows_are_their_own};
use crate::both::experts_adapter::{self, Adapted, check_pairs_are_their_own};
use crate::both::experts_route::{check_route_backward, check_routing};
use crate::both::experts_shared::check_shared;
use crate::both::{Rig, bits, paths};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_cpu::Isa;

/// A rig with room to gather rows and to transpose.
fn open(case: &Case, isa: Isa, threads: usize, e: DType, g: DType) -> Rig {
    let mut buffers = case.buffers(&plimsoll_cpu::LAYOUTS, e, g);
    let width = case.h.max(2 * case.f);
    buffers.push(("scratch", e, threads * (32 + 48) * width));
    Rig::new(isa, threads, &buffers)
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
fn rows_go_to_the_experts_with_the_largest_logits() {
    each(check_routing);
}

#[test]
fn experts_agree_with_f64_on_every_path() {
    each(check_forward);
}

#[test]
fn shared_experts_agree_with_f64_on_every_path() {
    each(check_shared);
}

#[test]
fn bits_of_a_pair_do_not_depend_on_what_its_expert_got() {
    each(check_rows_are_their_own);
}

#[test]
fn gradients_of_experts_agree_with_f64_on_every_path() {
    for add in [true, false] {
        each(|case, rig, e, how| check_backward(case, rig, e, add, how));
    }
    for case in CASES {
        check_backward(case, &mut open(case, Isa::detect(), 2, Bf16, Bf16), Bf16, true, "bf16 gradients");
    }
}

#[test]
fn gradients_of_routing_agree_with_f64_with_balance_and_without() {
    each(check_route_backward);
}

#[test]
fn threads_change_no_bit_of_experts() {
    for case in CASES {
        for e in [Bf16, F32] {
            let run = |threads| {
                let rig = open(case, Isa::detect(), threads, e, F32);
                case.fill(&rig, e);
                case.forward(&rig, e, case.m);
                let forward = rig.get("out");
                case.backward(&rig, e, true, Some(0.3));
                let names = ["gate_up", "d_product", "d_weights", "dx", "dw1", "dw2", "d_logits", "rows"];
                [vec![bits(&forward)], names.map(|name| bits(&rig.get(name))).to_vec()].concat()
            };
            assert!(run(1) == run(3), "{case:?}, {}", e.name());
        }
    }
}

/// Works as `open`, for adapters.
fn open_adapted(of: &Adapted<'_>, isa: Isa, threads: usize, e: DType, g: DType) -> Rig {
    let mut buffers = of.buffers(&plimsoll_cpu::LAYOUTS, e, g);
    let width = of.case.h.max(2 * of.case.f).max(3 * of.rank);
    buffers.push(("scratch".into(), e, threads * (32 + 48) * width.next_multiple_of(2)));
    Rig::new(isa, threads, &Adapted::sized(&buffers))
}

#[test]
fn adapters_of_experts_agree_with_f64_on_every_path() {
    for isa in paths() {
        experts_adapter::each(CASES, |of| {
            for (e, g, add) in [(Bf16, F32, true), (F32, F32, false), (Bf16, Bf16, false)] {
                let mut rig = open_adapted(of, isa, 2, e, g);
                experts_adapter::check(of, &mut rig, e, isa.name());
                experts_adapter::check_gradients(of, &mut rig, e, add, isa.name());
            }
        });
    }
}

#[test]
fn bits_of_a_pairs_adapters_do_not_depend_on_what_its_expert_got() {
    experts_adapter::each(CASES, |of| {
        for (e, threads) in [(Bf16, 1), (F32, 3)] {
            let mut rig = open_adapted(of, Isa::detect(), threads, e, F32);
            check_pairs_are_their_own(of, &mut rig, e, "any threads");
        }
    });
}
