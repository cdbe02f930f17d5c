//! Adapters against f64, for every path of the machine, odd shapes, and bits that must not depend on M or threads.

use crate::both::{Rig, bits, check_close, matrix_len, normal, paths, round};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_base::ModelSpec;
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::sizes::cpu::pack_elements;
use plimsoll_device::{ADAPTER_BLOCKS_MAX, AdaptBackward, Adapter, AdapterBlock, Device};

/// A layer, and its adapter's blocks: (first, n).
#[derive(Clone, Copy, Debug)]
struct Case {
    m: usize,
    n: usize,
    k: usize,
    r: usize,
    blocks: &'static [(usize, usize)],
}

/// Single rows and more rows than a block, odd widths, ranks below, at and above a panel, and outputs that no block has.
const CASES: &[Case] = &[
    Case { m: 1, n: 20, k: 7, r: 1, blocks: &[(0, 20)] },
    Case { m: 3, n: 50, k: 33, r: 3, blocks: &[(5, 17)] },
    Case { m: 9, n: 40, k: 17, r: 5, blocks: &[(1, 3), (10, 7), (30, 10)] },
    Case { m: 65, n: 100, k: 50, r: 8, blocks: &[(0, 33), (40, 31)] },
    Case { m: 70, n: 112, k: 83, r: 32, blocks: &[(0, 48), (48, 16), (80, 31)] },
];
const SCALE: f32 = 1.7;
const B: [&str; 3] = ["b0", "b1", "b2"];
const DB: [&str; 3] = ["db0", "db1", "db2"];

impl Case {
    fn sr(&self) -> usize {
        self.blocks.len() * self.r
    }

    /// A rig whose x, dy, out, dx, A and B hold numbers.
    fn rig(&self, isa: Isa, threads: usize, e: DType, out: DType, g: DType) -> Rig {
        let &Case { m, n, k, r, blocks } = self;
        let pack = |n, k| pack_elements(m as u64, n as u64, k as u64, e) as usize;
        let packs = blocks.iter().map(|&(_, n)| pack(n, r)).chain([pack(self.sr(), k)]);
        let mut sizes = vec![
            ("x", e, m * k),
            ("a", e, matrix_len(self.sr(), k, e)),
            ("u", e, m * self.sr()),
            ("out", out, m * n),
            ("dy", e, m * n),
            ("du", e, m * self.sr()),
            ("dx", out, m * k),
            ("da", g, matrix_len(self.sr(), k, e)),
            ("pack", e, packs.max().expect("a product at least")),
            ("scratch", e, threads * 48 * (n.max(self.sr()) + 1)),
        ];
        for (i, &(_, n)) in blocks.iter().enumerate() {
            sizes.extend([(B[i], e, matrix_len(n, r, e)), (DB[i], g, matrix_len(n, r, e))]);
        }
        let rig = Rig::new(isa, threads, &sizes);
        rig.set("x", &normal(1, m * k, 1.0, e));
        rig.set("out", &normal(2, m * n, 1.0, out));
        rig.set("dy", &normal(3, m * n, 1.0, e));
        rig.set("dx", &normal(4, m * k, 1.0, out));
        rig.set_matrix("a", self.sr(), k, e, &self.a(e));
        rig.set_matrix("da", self.sr(), k, e, &normal(5, self.sr() * k, 1.0, g));
        for (i, &(_, n)) in blocks.iter().enumerate() {
            rig.set_matrix(B[i], n, r, e, &self.b(i, e));
            rig.set_matrix(DB[i], n, r, e, &normal(6, n * r, 1.0, g));
        }
        rig
    }

    fn a(&self, e: DType) -> Vec<f32> {
        normal(10, self.sr() * self.k, 1.0, e)
    }

    fn b(&self, block: usize, e: DType) -> Vec<f32> {
        normal(11 + block as u64, self.blocks[block].1 * self.r, 1.0, e)
    }

    /// The adapter, or its gradient.
    fn adapter(&self, rig: &Rig, a: &str, b: &[&str; 3], e: DType) -> Adapter<'static> {
        let mut blocks = [None; ADAPTER_BLOCKS_MAX];
        for (i, &(first, n)) in self.blocks.iter().enumerate() {
            blocks[i] = Some(AdapterBlock { b: rig.matrix(b[i], n, self.r, e), first });
        }
        Adapter { a: rig.matrix(a, self.sr(), self.k, e), blocks, scale: SCALE }
    }

    fn adapt(&self, rig: &Rig, e: DType) {
        rig.dev.adapt(rig.buf("x"), self.adapter(rig, "a", &B, e), rig.buf("u"), rig.buf("out"));
    }

    /// All of the gradients.
    fn backward(&self, rig: &Rig, e: DType, add: bool) {
        let (adapter, buf) = (self.adapter(rig, "a", &B, e), |name| rig.buf(name));
        rig.dev.adapt_backward_u(buf("dy"), adapter, buf("du"));
        rig.dev.adapt_backward_w(self.args(rig, e, add));
        rig.dev.matmul_dx(buf("du"), adapter.a, buf("dx"), true);
    }

    fn args(&self, rig: &Rig, e: DType, add: bool) -> AdaptBackward<'static> {
        let [x, u, dy, du, pack] = ["x", "u", "dy", "du", "pack"].map(|name| rig.buf(name));
        AdaptBackward { x, u, dy, du, pack, grads: self.adapter(rig, "da", &DB, e), add }
    }

    /// The block of an output, and the output's row of B.
    fn block_of(&self, output: usize) -> Option<(usize, usize)> {
        let block = self.blocks.iter().position(|&(first, n)| (first..first + n).contains(&output))?;
        Some((block, output - self.blocks[block].0))
    }
}

/// `start` plus `scale` times the sum of `len` terms, for each of `count` elements, within the rounding of a chain and of the result.
#[track_caller]
fn check(
    what: &str,
    got: &[f32],
    (len, dtype): (usize, DType),
    start: impl Fn(usize) -> f32,
    scale: f32,
    term: impl Fn(usize, usize) -> f64,
) {
    let of = |i: usize, f: &dyn Fn(f64) -> f64| {
        f(f64::from(start(i))) + (0..len).map(|j| f(f64::from(scale) * term(i, j))).sum::<f64>()
    };
    let want: Vec<f64> = (0..got.len()).map(|i| of(i, &|x| x)).collect();
    let size: Vec<f64> = (0..got.len()).map(|i| of(i, &f64::abs)).collect();
    let rounding = if dtype == Bf16 { 4.0e-3 } else { 2.4e-7 };
    check_close(got, &want, &size, len as f64 * 1.2e-7 + rounding, what);
}

fn at(x: &[f32], i: usize) -> f64 {
    x[i].into()
}

#[test]
fn adapters_agree_with_f64_on_every_path() {
    for isa in paths() {
        for case in CASES {
            for (e, out) in [(Bf16, Bf16), (Bf16, F32), (F32, F32)] {
                let what = |of: &str| format!("{of} of {case:?}, {} to {}, {isa:?}", e.name(), out.name());
                let &Case { n, k, r, .. } = case;
                let (sr, mut rig) = (case.sr(), case.rig(isa, 2, e, out, F32));
                let (x, a, before) = (rig.get("x"), case.a(e), rig.get("out"));
                case.adapt(&rig, e);
                let (u, got) = (rig.get("u"), rig.get("out"));
                let product = |i: usize, j: usize| at(&x, i / sr * k + j) * at(&a, i % sr * k + j);
                check(&what("u"), &u, (k, e), |_| 0.0, SCALE, product);
                let b: Vec<Vec<f32>> = (0..case.blocks.len()).map(|i| case.b(i, e)).collect();
                let product = |i: usize, j: usize| match case.block_of(i % n) {
                    Some((block, row)) => at(&u, i / n * sr + block * r + j) * at(&b[block], row * r + j),
                    None => 0.0,
                };
                check(&what("out"), &got, (r, out), |i| before[i], 1.0, product);
                for i in (0..got.len()).filter(|i| case.block_of(i % n).is_none()) {
                    assert_eq!(got[i].to_bits(), before[i].to_bits(), "{}", what("an output of no block"));
                }
                rig.check_guards();
            }
        }
    }
}

#[test]
fn gradients_of_adapters_agree_with_f64_on_every_path() {
    for isa in paths() {
        for case in CASES {
            for (e, out, g) in [(Bf16, Bf16, F32), (Bf16, F32, Bf16), (F32, F32, F32), (F32, F32, Bf16)] {
                for add in [true, false] {
                    check_gradients(case, isa, [e, out, g], add);
                }
            }
        }
    }
}

fn check_gradients(case: &Case, isa: Isa, [e, out, g]: [DType; 3], add: bool) {
    let name = format!("{case:?}, {} to {}, {isa:?}", e.name(), g.name());
    let what = |of: &str| format!("{of} of {name}");
    let &Case { m, n, k, r, blocks } = case;
    let (sr, mut rig) = (case.sr(), case.rig(isa, 2, e, out, g));
    case.adapt(&rig, e);
    let [x, u, dy, before] = ["x", "u", "dy", "dx"].map(|name| rig.get(name));
    let (da, _) = rig.get_matrix("da", sr, k, e);
    case.backward(&rig, e, add);
    let (du, a) = (rig.get("du"), case.a(e));
    for (block, &(first, of)) in blocks.iter().enumerate() {
        let b = case.b(block, e);
        let got: Vec<f32> = (0..m * r).map(|i| du[i / r * sr + block * r + i % r]).collect();
        let product = |i: usize, j: usize| at(&dy, i / r * n + first + j) * at(&b, j * r + i % r);
        check(&what("du"), &got, (of, e), |_| 0.0, SCALE, product);
        let start = normal(6, of * r, 1.0, g);
        let start = |i: usize| if add { start[i] } else { 0.0 };
        let product =
            |i: usize, j: usize| at(&dy, j * n + first + i / r) * at(&u, j * sr + block * r + i % r);
        let (got, padding_is_zero) = rig.get_matrix(DB[block], of, r, e);
        check(&what("dB"), &got, (m, g), start, 1.0, product);
        assert!(padding_is_zero, "{}", what("padding of dB"));
    }
    let product = |i: usize, j: usize| at(&du, j * sr + i / k) * at(&x, j * k + i % k);
    let (got, padding_is_zero) = rig.get_matrix("da", sr, k, e);
    check(&what("dA"), &got, (m, g), |i| if add { da[i] } else { 0.0 }, 1.0, product);
    assert!(padding_is_zero, "{}", what("padding of dA"));
    let product = |i: usize, j: usize| at(&du, i / k * sr + j) * at(&a, j * k + i % k);
    check(&what("dx"), &rig.get("dx"), (sr, out), |i| before[i], 1.0, product);
    rig.check_guards();
}

#[test]
fn what_an_adapter_adds_is_added_and_rounded_once() {
    for isa in paths() {
        for case in CASES {
            for e in [Bf16, F32] {
                let (exact, sum) = (case.rig(isa, 1, e, F32, F32), case.rig(isa, 2, e, e, F32));
                exact.set("out", &vec![0.0; case.m * case.n]);
                exact.set("dx", &vec![0.0; case.m * case.k]);
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
                let rig = case.rig(isa, threads, e, e, F32);
                let part = |name: &str| {
                    let width = rig.buf(name).len() / MOST;
                    rig.buf(name).slice(first * width, m * width)
                };
                let adapter = case.adapter(&rig, "a", &B, e);
                rig.dev.adapt(part("x"), adapter, part("u"), part("out"));
                rig.dev.adapt_backward_u(part("dy"), adapter, part("du"));
                rig.dev.matmul_dx(part("du"), adapter.a, part("dx"), true);
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
                    let rig = case.rig(isa, threads, e, F32, g);
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
    let rig = case.rig(Isa::detect(), 2, Bf16, F32, F32);
    let before = rig.get("da");
    for add in [true, false] {
        let mut args = case.args(&rig, Bf16, add);
        for buf in [&mut args.x, &mut args.u, &mut args.dy, &mut args.du] {
            *buf = buf.slice(0, 0);
        }
        let (adapter, none) = (case.adapter(&rig, "a", &B, Bf16), rig.buf("out").slice(0, 0));
        rig.dev.adapt(args.x, adapter, args.u, none);
        rig.dev.adapt_backward_u(args.dy, adapter, args.du);
        rig.dev.adapt_backward_w(args);
        let want = if add { before.clone() } else { vec![0.0; before.len()] };
        assert_eq!(rig.get("da"), want, "added: {add}");
    }
}

/// A model that is narrower than a group of panels needs more for its adapters than for its own matrices.
#[test]
fn the_scratch_holds_what_gradients_of_adapters_transpose() {
    let nano = ModelSpec::preset("nano").unwrap();
    let spec = ModelSpec { hidden: 16, ffn: 20, heads: 2, kv_heads: 1, head_dim: 16, vocab: 20, ..nano };
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
            let mut rig = case.rig(Isa::detect(), 1, e, F32, F32);
            rig.dev.bind_scratch(rig.buf("scratch").slice(0, elements.min(rig.buf("scratch").len())));
            case.adapt(&rig, e);
            case.backward(&rig, e, false);
            rig.check_guards();
        }
    }
}
