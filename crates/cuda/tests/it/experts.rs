//! Experts on a card against f64, and bits that must not depend on how many pairs there are.

use crate::both::bits;
use crate::both::experts::{CASES, Case, Load, check_backward, check_forward, check_rows_are_their_own};
use crate::both::experts_adapter::{self, Adapted, check_pairs_are_their_own};
use crate::both::experts_route::{check_route_backward, check_routing};
use crate::both::experts_shared::check_shared;
use crate::rig::{Card, on_card};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_device::{Device, RowsOf};

const fn case(m: usize, h: usize, f: usize, [experts, chosen]: [usize; 2], load: Load) -> Case {
    Case { m, h, f, experts, chosen, normalizes: true, load, sigmoid: None }
}

/// Tiles of each kernel, full and with few pairs; widths of several tiles, and odd ones; more steps than buffers.
const WIDE: &[Case] = &[
    case(64, 520, 200, [128, 8], Load::Even),
    case(70, 136, 264, [8, 2], Load::Even),
    case(300, 320, 136, [20, 3], Load::Skewed),
    case(500, 264, 72, [4, 2], Load::Skewed),
    Case { normalizes: false, ..case(90, 72, 40, [300, 4], Load::Even) },
    case(40, 50, 27, [6, 2], Load::Even),
    Case { sigmoid: Some([1, 1]), ..case(300, 72, 40, [384, 8], Load::Even) },
    Case { sigmoid: Some([32, 4]), ..case(90, 72, 40, [512, 8], Load::Skewed) },
];

fn open(case: &Case, e: DType, g: DType) -> Option<Card> {
    on_card(&case.buffers(&plimsoll_cuda::LAYOUTS, e, g))
}

fn each(check: impl Fn(&Case, &mut Card, DType, &str)) {
    for case in CASES.iter().chain(WIDE) {
        for e in [Bf16, F32] {
            let Some(mut gpu) = open(case, e, F32) else { return };
            check(case, &mut gpu, e, "a card");
        }
    }
}

#[test]
fn rows_go_to_the_experts_with_the_largest_logits() {
    each(check_routing);
}

/// Both sides of the rows that one block routes, and of the experts that a lane has.
#[test]
fn every_number_of_rows_and_experts_is_routed() {
    for m in [1, 2, 31, 32, 33, 63, 64, 65, 500, 1111] {
        for [experts, chosen] in [[1, 1], [7, 7], [127, 8], [128, 8], [129, 10], [512, 10], [511, 32]] {
            let case = case(m, 8, 8, [experts, chosen], Load::Even);
            let Some(mut gpu) = open(&case, F32, F32) else { return };
            check_routing(&case, &mut gpu, F32, "a card");
        }
    }
}

#[test]
fn experts_agree_with_f64() {
    each(check_forward);
}

#[test]
fn shared_experts_agree_with_f64() {
    each(check_shared);
}

#[test]
fn bits_of_a_pair_do_not_depend_on_what_its_expert_got() {
    each(check_rows_are_their_own);
}

#[test]
fn gradients_of_experts_agree_with_f64() {
    for add in [true, false] {
        each(|case, gpu, e, how| check_backward(case, gpu, e, add, how));
    }
    for case in CASES.iter().chain(WIDE) {
        for add in [true, false] {
            let Some(mut gpu) = open(case, Bf16, Bf16) else { return };
            check_backward(case, &mut gpu, Bf16, add, "bf16 gradients");
        }
    }
}

#[test]
fn gradients_of_routing_agree_with_f64_with_balance_and_without() {
    each(check_route_backward);
}

/// Takes widths of the layers of Qwen3-30B-A3B, and rows for every kernel of products.
#[test]
fn bits_of_a_row_do_not_depend_on_m() {
    let deep = case(1024, 2048, 96, [8, 2], Load::Even);
    for case in [deep, Case { load: Load::Skewed, ..deep }, case(600, 256, 128, [16, 4], Load::Even)] {
        for e in [Bf16, F32] {
            let Some(gpu) = open(&case, e, F32) else { return };
            case.fill(&gpu, e);
            let run = |m: usize| {
                case.forward(&gpu, e, m);
                let part = |name: &str, len: usize| gpu.buf(name).slice(0, len);
                let (routes, dy) = (case.routes(&gpu, m), part("dy", m * case.h));
                let to = part("d_product", m * case.chosen * case.f);
                gpu.dev.matmul_experts_dx(dy, RowsOf::Rows, case.all(&gpu, "w2", e), routes, to);
                let (out, dx) = (bits(&gpu.get("out")), bits(&gpu.get("d_product")));
                // In the order of rows, which is the same for any number of them.
                let places = &gpu.get_u32("places")[..m * case.chosen];
                let pair = |&place: &u32| &dx[place as usize * case.f..][..case.f];
                (out[..m * case.h].to_vec(), places.iter().flat_map(pair).copied().collect::<Vec<_>>())
            };
            let (out, dx) = run(case.m);
            for m in [1, 2, 7, 16, 31, 60, 64, 100, 150, 191, 333, 512, 600] {
                let (out_m, dx_m) = run(m);
                assert!(out_m == out[..m * case.h], "out of {m} rows of {case:?}, {}", e.name());
                assert!(dx_m == dx[..dx_m.len()], "dx of {m} rows of {case:?}, {}", e.name());
            }
        }
    }
}

#[test]
fn gradients_of_experts_repeat_to_the_bit() {
    for case in [WIDE[0], WIDE[3]] {
        for e in [Bf16, F32] {
            let Some(gpu) = open(&case, e, F32) else { return };
            let run = || {
                case.fill(&gpu, e);
                case.forward(&gpu, e, case.m);
                case.backward(&gpu, e, true, Some(0.3));
                ["gate_up", "d_product", "d_weights", "dx", "dw1", "dw2", "d_logits", "rows"]
                    .map(|name| bits(&gpu.get(name)))
            };
            assert!(run() == run(), "{case:?}, {}", e.name());
        }
    }
}

#[test]
fn adapters_of_experts_agree_with_f64() {
    for cases in [CASES, WIDE] {
        experts_adapter::each(cases, |of| {
            for (e, g, add) in [(Bf16, F32, true), (F32, F32, false), (Bf16, Bf16, false)] {
                let buffers = of.buffers(&plimsoll_cuda::LAYOUTS, e, g);
                let Some(mut gpu) = on_card(&Adapted::sized(&buffers)) else { return };
                experts_adapter::check(of, &mut gpu, e, "a card");
                experts_adapter::check_gradients(of, &mut gpu, e, add, "a card");
            }
        });
    }
}

#[test]
fn bits_of_a_pairs_adapters_do_not_depend_on_what_its_expert_got() {
    for cases in [CASES, WIDE] {
        experts_adapter::each(cases, |of| {
            for e in [Bf16, F32] {
                let buffers = of.buffers(&plimsoll_cuda::LAYOUTS, e, F32);
                let Some(mut gpu) = on_card(&Adapted::sized(&buffers)) else { return };
                check_pairs_are_their_own(of, &mut gpu, e, "a card");
            }
        });
    }
}
