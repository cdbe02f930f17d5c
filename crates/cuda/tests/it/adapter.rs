//! Adapters on a card against f64, by the library and by our own kernels, and bits that must not depend on M.

use crate::both::adapter::{
    CASES, Case, check_codes, check_gradients, check_merge, check_outputs, check_zeros,
};
use crate::both::bits;
use crate::rig::{Card, on_card};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_device::{Backend, Device};

/// Shapes that cuBLASLt takes: all outputs, blocks with gaps between them, and q, k and v of SmolLM2.
const WHOLE: &[Case] = &[
    Case { m: 77, n: 192, k: 320, r: 16, blocks: &[(0, 192)] },
    Case { m: 130, n: 256, k: 64, r: 8, blocks: &[(64, 64), (136, 96)] },
    Case { m: 600, n: 960, k: 576, r: 32, blocks: &[(0, 576), (576, 192), (768, 192)] },
];

fn open(case: &Case, [e, out, g]: [DType; 3]) -> Option<Card> {
    let card = on_card(&case.buffers(&plimsoll_cuda::LAYOUTS, e, out, g))?;
    case.fill(&card, e);
    Some(card)
}

#[test]
fn adapters_agree_with_f64() {
    for case in CASES.iter().chain(WHOLE) {
        for (e, out) in [(Bf16, Bf16), (Bf16, F32), (F32, F32)] {
            let Some(mut gpu) = open(case, [e, out, F32]) else { return };
            check_outputs(case, &mut gpu, e, "a card");
        }
    }
}

/// Cases as deep as the layers of models are.
const DEEP: &[Case] = &[
    Case { m: 70, n: 64, k: 4864, r: 16, blocks: &[(0, 64)] },
    Case { m: 70, n: 64, k: 8960, r: 16, blocks: &[(0, 64)] },
    Case { m: 200, n: 128, k: 14336, r: 16, blocks: &[(0, 128)] },
];

#[test]
fn adapters_of_zeros_change_no_bit() {
    for case in CASES.iter().chain(WHOLE).chain(DEEP) {
        for (e, out) in [(Bf16, Bf16), (Bf16, F32), (F32, F32)] {
            let Some(gpu) = open(case, [e, out, F32]) else { return };
            check_zeros(case, &gpu, e);
        }
    }
}

/// Few rows of wide layers are multiplied by codes that the product itself widens; ranks around its kernels' room.
#[test]
fn codes_give_the_bits_of_the_widened_matrix() {
    const HALVES: &[(usize, usize)] = &[(0, 6400), (6400, 6400)];
    let wide = |k, r| Case { m: 130, n: 12_800, k, r, blocks: HALVES };
    let gaps = Case { blocks: &[(0, 6400), (6600, 200)], ..wide(128, 16) };
    let narrow = Case { n: 192, blocks: &[(0, 96), (96, 96)], ..wide(320, 16) };
    for case in [wide(64, 8), wide(320, 32), wide(896, 40), wide(576, 64), wide(128, 72), gaps, narrow] {
        for [e, out] in [[Bf16, Bf16], [Bf16, F32], [F32, F32]] {
            let buffers =
                [case.buffers(&plimsoll_cuda::LAYOUTS, e, out, F32), case.code_buffers().to_vec()].concat();
            let Some(card) = on_card(&buffers) else { return };
            case.fill(&card, e);
            check_codes(&case, &card, e, &[1, 7, 37, 64, 65, 130]);
        }
    }
}

#[test]
fn merged_weights_agree_with_f64() {
    for case in CASES.iter().chain(WHOLE) {
        for e in [Bf16, F32] {
            let Some(mut gpu) = open(case, [e, e, F32]) else { return };
            check_merge(case, &mut gpu, e, "a card");
        }
    }
}

#[test]
fn gradients_of_adapters_agree_with_f64() {
    for case in CASES.iter().chain(WHOLE) {
        for types in [[Bf16, Bf16, F32], [Bf16, F32, Bf16], [F32, F32, F32], [F32, F32, Bf16]] {
            for add in [true, false] {
                let Some(mut gpu) = open(case, types) else { return };
                check_gradients(case, &mut gpu, types[0], add, "a card");
            }
        }
    }
}

/// Layers so wide that Hopper's kernel cuts rows into four, two and one run, each of more steps than it has buffers.
const WIDE: &[Case] = &[
    Case { m: 2500, n: 4864, k: 896, r: 32, blocks: &[(0, 4864)] },
    Case { m: 2500, n: 9728, k: 896, r: 32, blocks: &[(0, 4864), (4864, 4864)] },
    Case { m: 700, n: 20480, k: 256, r: 8, blocks: &[(0, 20480)] },
];

#[test]
fn gradients_of_wide_layers_agree_with_f64() {
    for case in WIDE {
        for types in [[Bf16, Bf16, F32], [Bf16, F32, Bf16]] {
            let Some(mut gpu) = open(case, types) else { return };
            check_gradients(case, &mut gpu, types[0], true, "a card");
        }
    }
}

/// Ranks up to the largest, and blocks that begin at odd outputs.
#[test]
fn every_rank_is_taken() {
    for r in [1, 2, 4, 7, 8, 12, 16, 24, 40, 64, 100, 128, 255, 256] {
        for blocks in [&[(0, 16), (19, 24), (48, 32)], &[(0, 16), (24, 24), (48, 32)]] {
            let case = Case { m: 37, n: 80, k: 48, r, blocks };
            let Some(mut gpu) = open(&case, [Bf16, Bf16, F32]) else { return };
            check_outputs(&case, &mut gpu, Bf16, "a card");
            check_gradients(&case, &mut gpu, Bf16, true, "a card");
        }
    }
}

#[test]
fn bits_of_a_row_do_not_depend_on_m() {
    const NAMES: [&str; 4] = ["u", "out", "du", "dx"];
    let blocks = |r| Case { m: 2048, n: 960, k: 576, r, blocks: &[(0, 576), (576, 192), (768, 192)] };
    let down = Case { m: 2048, n: 576, k: 1536, r: 16, blocks: &[(0, 576)] };
    let gap = Case { blocks: &[(0, 576), (776, 104)], ..blocks(24) };
    let wider = |n, k| Case { m: 2048, n, k, r: 16, blocks: &[(0, 192)] };
    let cases = [blocks(8), blocks(16), blocks(32), blocks(40), blocks(64), blocks(72), blocks(3), down, gap];
    // Widths for which many rows are cut into tiles of 192 and of 256 columns.
    let widths = [wider(2432, 320), wider(2048, 320), wider(320, 2432), wider(320, 2048)];
    for case in cases.into_iter().chain(widths).chain([Case { m: 2048, ..CASES[4] }]) {
        for [e, out] in [[Bf16, Bf16], [Bf16, F32], [F32, F32]] {
            let Some(gpu) = open(&case, [e, out, F32]) else { return };
            let layer = case.layer(&gpu, e);
            let is_hopper = gpu.dev.machine_type().starts_with("cuda-sm90");
            let run = |m: usize| {
                let part = |name: &str| {
                    let width = gpu.buf(name).len() / case.m;
                    gpu.buf(name).slice(0, m * width)
                };
                gpu.dev.adapted(part("x"), layer, None, part("u"), part("out"));
                gpu.dev.adapt_backward_u(part("dy"), layer.adapter, part("du"));
                gpu.dev.adapted_dx(part("dy"), layer, part("du"), part("dx"));
                NAMES.map(|name| bits(&gpu.get(name)))
            };
            let all = run(case.m);
            for m in [1, 2, 3, 8, 15, 16, 17, 31, 48, 64, 100, 128, 257, 300, 512, 777, 1024] {
                for ((part, all), name) in run(m).iter().zip(&all).zip(NAMES) {
                    // By the library, whose gradients of inputs are those of M rounded up.
                    if name == "dx" && e == Bf16 && !(is_hopper && out == Bf16 && case.r % 8 == 0) {
                        continue;
                    }
                    let len = all.len() / case.m * m;
                    let differ = part[..len].iter().zip(&all[..len]).filter(|(a, b)| a != b).count();
                    assert_eq!(differ, 0, "{name} of {case:?}, {e:?} to {out:?}, {m} rows");
                }
            }
        }
    }
}

#[test]
fn gradients_over_no_rows_are_zero_or_what_they_were() {
    for case in [&CASES[3], &WHOLE[1]] {
        let Some(gpu) = open(case, [Bf16, F32, F32]) else { return };
        let before = gpu.get("da");
        for add in [true, false] {
            let mut args = case.args(&gpu, Bf16, add);
            for buf in [&mut args.x, &mut args.u, &mut args.dy, &mut args.du] {
                *buf = buf.slice(0, 0);
            }
            let (layer, none) = (case.layer(&gpu, Bf16), gpu.buf("out").slice(0, 0));
            gpu.dev.adapted(args.x, layer, None, args.u, none);
            gpu.dev.adapt_backward_u(args.dy, layer.adapter, args.du);
            gpu.dev.adapt_backward_w(args);
            let want = if add { before.clone() } else { vec![0.0; before.len()] };
            assert_eq!(gpu.get("da"), want, "added: {add}");
        }
    }
}
