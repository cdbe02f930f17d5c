//! Adapters against f64, for every path of the machine, odd shapes, and bits that must not depend on M or threads.

use crate::both::adapter::{
    CASES, Case, check_codes, check_gradients, check_merge, check_outputs, check_zeros,
};
use crate::both::{Rig, Sized, bits, paths, round};
use plimsoll_arch::{FileShape, ModelSpec};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::Device;

/// A rig with room to transpose, and numbers in its buffers.
fn open(case: &Case, isa: Isa, threads: usize, types: [DType; 3]) -> Rig {
    open_with(case, isa, threads, types, &[])
}

fn open_with(case: &Case, isa: Isa, threads: usize, [e, out, g]: [DType; 3], more: &[Sized<'static>]) -> Rig {
    let mut buffers = case.buffers(&plimsoll_cpu::LAYOUTS, e, out, g);
    buffers.extend(more);
    buffers.push(("scratch", e, threads * 48 * (case.n.max(case.sr()) + 1)));
    let rig = Rig::new(isa, threads, &buffers);
    case.fill(&rig, e);
    rig
}

#[test]
fn adapters_agree_with_f64_on_every_path() {
    for isa in paths() {
        for case in CASES {
            for (e, out) in [(Bf16, Bf16), (Bf16, F32), (F32, F32)] {
                check_outputs(case, &mut open(case, isa, 2, [e, out, F32]), e, isa.name());
            }
        }
    }
}

#[test]
fn gradients_of_adapters_agree_with_f64_on_every_path() {
    for isa in paths() {
        for case in CASES {
            for types in [[Bf16, Bf16, F32], [Bf16, F32, Bf16], [F32, F32, F32], [F32, F32, Bf16]] {
                for add in [true, false] {
                    check_gradients(case, &mut open(case, isa, 2, types), types[0], add, isa.name());
                }
            }
        }
    }
}

#[test]
fn adapters_of_zeros_change_no_bit() {
    for isa in paths() {
        for case in CASES {
            for (e, out) in [(Bf16, Bf16), (Bf16, F32), (F32, F32)] {
                check_zeros(case, &open(case, isa, 2, [e, out, F32]), e);
            }
        }
    }
}

#[test]
fn codes_give_the_bits_of_the_widened_matrix() {
    let case = Case { m: 9, n: 48, k: 128, r: 3, blocks: &[(0, 20), (24, 16)] };
    for isa in paths() {
        for types in [[Bf16, Bf16, F32], [Bf16, F32, F32], [F32, F32, F32]] {
            let rig = open_with(&case, isa, 2, types, &case.code_buffers());
            check_codes(&case, &rig, types[0], &[1, 9]);
        }
    }
}

#[test]
fn merged_weights_agree_with_f64_on_every_path() {
    for isa in paths() {
        for case in CASES {
            for e in [Bf16, F32] {
                check_merge(case, &mut open(case, isa, 2, [e, e, F32]), e, isa.name());
            }
        }
    }
}

#[test]
fn what_an_adapter_adds_is_added_and_rounded_once() {
    for isa in paths() {
        for case in CASES {
            for e in [Bf16, F32] {
                let (exact, sum) = (open(case, isa, 1, [e, F32, F32]), open(case, isa, 2, [e, e, F32]));
                // Over weights of zero is what the adapter adds alone.
                exact.set_matrix("w", case.n, case.k, e, &vec![0.0; case.n * case.k]);
                let (w, [x, dy, out, dx]) =
                    (case.layer(&sum, e).w, ["x", "dy", "out", "dx"].map(|name| sum.buf(name)));
                sum.dev.matmul(x, w, None, out, false);
                sum.dev.matmul_dx(dy, w, dx, false);
                let before = ["out", "dx"].map(|name| sum.get(name));
                for rig in [&exact, &sum] {
                    case.adapt(rig, e);
                    case.backward(rig, e, false);
                }
                for (name, before) in ["out", "dx"].into_iter().zip(before) {
                    let added = before.iter().zip(exact.get(name)).map(|(x, y)| round(x + y, e));
                    let want: Vec<f32> = added.collect();
                    assert_eq!(sum.get(name), want, "{name} of {case:?}, {}, {isa:?}", e.name());
                }
            }
        }
    }
}

#[test]
fn bits_of_a_row_do_not_depend_on_m_or_threads() {
    const MOST: usize = 140;
    const NAMES: [&str; 4] = ["u", "out", "du", "dx"];
    for isa in paths() {
        for e in [Bf16, F32] {
            let case = Case { m: MOST, ..CASES[4] };
            let run = |threads: usize, first: usize, m: usize| {
                let rig = open(&case, isa, threads, [e, e, F32]);
                let part = |name: &str| {
                    let width = rig.buf(name).len() / MOST;
                    rig.buf(name).slice(first * width, m * width)
                };
                let layer = case.layer(&rig, e);
                rig.dev.adapted(part("x"), layer, None, part("u"), part("out"));
                rig.dev.adapt_backward_u(part("dy"), layer.adapter, part("du"));
                rig.dev.adapted_dx(part("dy"), layer, part("du"), part("dx"));
                NAMES.map(|name| {
                    let width = rig.buf(name).len() / MOST;
                    bits(&rig.get(name)[first * width..(first + m) * width])
                })
            };
            let all = run(1, 0, MOST);
            for m in (1..=70).step_by(if isa == Isa::detect() { 1 } else { 23 }) {
                let (first, threads) = (m * 37 % (MOST - m), 1 + m % 2);
                for ((part, all), name) in run(threads, first, m).iter().zip(&all).zip(NAMES) {
                    let width = all.len() / MOST;
                    assert!(
                        part[..] == all[first * width..][..m * width],
                        "{name}, {isa:?}, {}, {m}",
                        e.name()
                    );
                }
            }
        }
    }
}

#[test]
fn bits_of_gradients_do_not_depend_on_threads() {
    for isa in paths() {
        for (e, g) in [(Bf16, F32), (Bf16, Bf16), (F32, F32)] {
            for case in CASES {
                let run = |threads: usize| {
                    let rig = open(case, isa, threads, [e, F32, g]);
                    case.adapt(&rig, e);
                    case.backward(&rig, e, true);
                    ["da", "db0"].map(|name| bits(&rig.get(name)))
                };
                assert!(run(1) == run(2) && run(1) == run(5), "{case:?} {isa:?} {} {}", e.name(), g.name());
            }
        }
    }
}

#[test]
fn gradients_over_no_rows_are_zero_or_what_they_were() {
    let case = &CASES[3];
    let rig = open(case, Isa::detect(), 2, [Bf16, F32, F32]);
    let before = rig.get("da");
    for add in [true, false] {
        let mut args = case.args(&rig, Bf16, add);
        for buf in [&mut args.x, &mut args.u, &mut args.dy, &mut args.du] {
            *buf = buf.slice(0, 0);
        }
        let (layer, none) = (case.layer(&rig, Bf16), rig.buf("out").slice(0, 0));
        rig.dev.adapted(args.x, layer, None, args.u, none);
        rig.dev.adapt_backward_u(args.dy, layer.adapter, args.du);
        rig.dev.adapt_backward_w(args);
        let want = if add { before.clone() } else { vec![0.0; before.len()] };
        assert_eq!(rig.get("da"), want, "added: {add}");
    }
}

/// A model that is narrower than a group of panels needs more for its adapters than for its own matrices.
#[test]
fn the_scratch_holds_what_gradients_of_adapters_transpose() {
    let nano = ModelSpec::preset("nano").unwrap().file_shape();
    let shape = FileShape { hidden: 16, ffn: 20, heads: 2, kv_heads: 1, head_dim: 16, vocab: 20, ..nano };
    let spec = shape.spec();
    for (rank, e) in [(1, Bf16), (8, F32), (40, Bf16), (256, F32)] {
        let layout = CpuDevice::scratch_of_adapters(&spec, e, 1, rank).unwrap();
        let elements = layout.regions[0].shape.iter().product::<u64>() as usize;
        let own = CpuDevice::scratch_layout(&spec, e, 1, true).unwrap().regions[0].shape[1] as usize;
        assert_eq!(elements > own, rank > 8, "rank {rank}: {elements} elements, {own} without adapters");
        for (n, k, blocks) in [
            (64, 16, [(0, 32), (32, 16), (48, 16)].as_slice()),
            (16, 32, &[(0, 16)]),
            (40, 16, &[(0, 20), (20, 20)]),
            (16, 20, &[(0, 16)]),
        ] {
            let case = Case { m: 2, n, k, r: rank as usize, blocks: Box::leak(blocks.into()) };
            let mut rig = open(&case, Isa::detect(), 1, [e, F32, F32]);
            rig.dev.bind_scratch(rig.buf("scratch").slice(0, elements.min(rig.buf("scratch").len())));
            case.adapt(&rig, e);
            case.backward(&rig, e, false);
            rig.check_guards();
        }
    }
}
