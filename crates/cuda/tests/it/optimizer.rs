//! AdamW and the sum of squares: the CPU's bits.

use crate::both::{bits, normal};
use crate::rig::{on_card, twin};
use plimsoll_base::DType;
use plimsoll_base::DType::{Bf16, E4M3, E5M3, F32};
use plimsoll_cpu::Isa;
use plimsoll_device::{AdamW, AdamWBufs, Backend, CODE_BLOCK, Coded, Device, MatrixLayout, Run};
use plimsoll_memory::Buf;

/// Not a multiple of eight, and more than one block of threads.
const N: usize = 40_003;
const NAMES: [&str; 5] = ["w", "g", "m", "v", "master"];

fn how() -> AdamW {
    AdamW {
        lr: 1e-2,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 3,
        grad_scale: 0.37,
        seed: 42,
        // The counter of stochastic rounding crosses into its high word among these elements.
        first_element: (1 << 32) - 20_001,
    }
}

fn buffers([w, g, m]: [DType; 3]) -> [(&'static str, DType, usize); 5] {
    [("w", w, N), ("g", g, N), ("m", m, N), ("v", m, N), ("master", F32, N)]
}

fn fill(set: &dyn Fn(&str, &[f32])) {
    set("w", &normal(1, N, 1.0, F32));
    set("g", &normal(2, N, 0.1, F32));
    set("m", &normal(3, N, 0.1, F32));
    // Zeros and numbers below the smallest normal one are second moments too.
    let size = |i: usize| [1.0, 1.0, 1e-38, 0.0][i % 4];
    let v = normal(4, N, 0.01, F32).iter().enumerate().map(|(i, x)| x.abs() * size(i)).collect::<Vec<_>>();
    set("v", &v);
    set("master", &normal(5, N, 1.0, F32));
}

fn bufs(buf: &dyn Fn(&str) -> Buf<'static>, master: bool, start: usize, end: usize) -> AdamWBufs<'static> {
    let part = |name| buf(name).slice(start, end - start);
    AdamWBufs {
        weights: part("w"),
        grad: part("g"),
        m: part("m"),
        v: part("v"),
        master: master.then(|| part("master")),
        scales: None,
    }
}

/// True where the CPU rounds a fused multiply-add once, as the card does.
fn cpu_fuses() -> bool {
    Isa::detect() != Isa::Scalar
}

#[test]
fn adamw_gives_the_bits_of_the_cpu_however_it_is_cut() {
    for w in [F32, Bf16] {
        for g in [F32, Bf16] {
            for m in [F32, Bf16] {
                let Some(gpu) = on_card(&buffers([w, g, m])) else { return };
                let cpu = twin(&buffers([w, g, m]));
                for master in [false, true] {
                    fill(&|name, x| cpu.set(name, x));
                    cpu.dev.adamw(how(), bufs(&|name| cpu.buf(name), master, 0, N));
                    // The second cut leaves parts that are not aligned to 16 bytes.
                    for ends in [vec![N], vec![16, 1601, 20_002, N]] {
                        fill(&|name, x| gpu.set(name, x));
                        let mut start = 0;
                        for &end in &ends {
                            let how = AdamW { first_element: how().first_element + start as u64, ..how() };
                            gpu.dev.adamw(how, bufs(&|name| gpu.buf(name), master, start, end));
                            start = end;
                        }
                        for name in NAMES {
                            let (ours, twin) = (bits(&gpu.get(name)), bits(&cpu.get(name)));
                            let what = format!("{w:?} {g:?} {m:?} master {master} cuts {ends:?}: {name}");
                            assert!(!cpu_fuses() || ours == twin, "{what}");
                        }
                    }
                }
            }
        }
    }
}

const NAMES8: [&str; 6] = ["w", "g", "m", "v", "m_scales", "v_scales"];

fn buffers8([w, g]: [DType; 2]) -> [(&'static str, DType, usize); 6] {
    let blocks = N.div_ceil(CODE_BLOCK);
    [
        ("w", w, N),
        ("g", g, N),
        ("m", E4M3, N),
        ("v", E5M3, N),
        ("m_scales", F32, blocks),
        ("v_scales", F32, blocks),
    ]
}

/// Four updates from zero moments, each in parts that end at `ends`; weights, moments and scales.
fn run8(dev: &dyn Device, buf: &dyn Fn(&str) -> Buf<'static>, ends: &[usize]) -> Vec<Vec<u32>> {
    dev.write_f32(buf("w"), 0, &normal(1, N, 1.0, F32));
    NAMES8[2..].iter().for_each(|name| dev.zero(buf(name)));
    let coded = |name: &str| Coded { codes: buf(name), scales: buf(&format!("{name}_scales")) };
    for step in 1..=4 {
        // A thousandfold between neighbours.
        let size = |i: usize| [1.0, 0.03, 1e-3, 0.0][i % 4];
        let g: Vec<f32> =
            normal(10 + step, N, 0.1, F32).iter().enumerate().map(|(i, x)| x * size(i)).collect();
        dev.write_f32(buf("g"), 0, &g);
        let mut start = 0;
        for &end in ends {
            let (n, part) = (end - start, |name| coded(name).slice(start, end - start));
            let bufs = AdamWBufs {
                weights: buf("w").slice(start, n),
                grad: buf("g").slice(start, n),
                m: part("m").codes,
                v: part("v").codes,
                scales: Some([part("m").scales, part("v").scales]),
                master: None,
            };
            dev.adamw(AdamW { step, first_element: how().first_element + start as u64, ..how() }, bufs);
            start = end;
        }
    }
    let mut all = [vec![0.0; N], vec![0.0; N], vec![0.0; N], vec![0.0; N.div_ceil(CODE_BLOCK)]];
    dev.read_f32(buf("w"), 0, &mut all[0]);
    dev.read_codes(coded("m"), 1, MatrixLayout::Rows, 0, &mut all[1]);
    dev.read_codes(coded("v"), 1, MatrixLayout::Rows, 0, &mut all[2]);
    dev.read_f32(buf("v_scales"), 0, &mut all[3]);
    dev.check().unwrap();
    all.iter().map(|x| bits(x)).collect()
}

#[test]
fn adamw_with_8_bit_moments_gives_the_bits_of_the_cpu_however_it_is_cut() {
    for w in [F32, Bf16] {
        for g in [F32, Bf16] {
            let Some(mut gpu) = on_card(&buffers8([w, g])) else { return };
            let cpu = twin(&buffers8([w, g]));
            let twin = run8(&cpu.dev, &|name| cpu.buf(name), &[N]);
            for ends in [vec![N], vec![256, 2048, 20_224, N]] {
                let ours = run8(&gpu.dev, &|name| gpu.buf(name), &ends);
                assert!(!cpu_fuses() || ours == twin, "{w:?} {g:?} cuts {ends:?}");
            }
            gpu.check_guards();
        }
    }
}

#[test]
fn codes_come_back_as_the_numbers_that_were_read() {
    let Some(gpu) = on_card(&buffers8([F32, F32])) else { return };
    let before = run8(&gpu.dev, &|name| gpu.buf(name), &[N]);
    for (i, name) in ["m", "v"].into_iter().enumerate() {
        let coded = Coded { codes: gpu.buf(name), scales: gpu.buf(&format!("{name}_scales")) };
        let mut numbers = vec![0.0; N];
        gpu.dev.read_codes(coded, 1, MatrixLayout::Rows, 0, &mut numbers);
        // A part that starts and ends within blocks.
        let mut part = vec![0.0; 20_000];
        gpu.dev.read_codes(coded, 100, MatrixLayout::Rows, 77, &mut part);
        assert_eq!(bits(&part), bits(&numbers[7_700..27_700]), "{name}");
        gpu.set("g", &numbers);
        gpu.dev.zero(gpu.buf(name));
        gpu.dev.write_codes(gpu.buf("g"), coded);
        gpu.dev.read_codes(coded, 1, MatrixLayout::Rows, 0, &mut numbers);
        assert_eq!(bits(&numbers), before[1 + i], "{name}");
    }
    gpu.dev.check().unwrap();
}

#[test]
fn a_sum_of_squares_is_exact_to_f64_and_keeps_nan() {
    for dtype in [F32, Bf16] {
        let Some(gpu) = on_card(&[("x", dtype, 5_000_011)]) else { return };
        let x = normal(6, 5_000_011, 3.0, dtype);
        gpu.set("x", &x);
        for (start, len) in [(0, 0), (0, 1), (1, 7), (0, 4096), (3, 100_003), (0, 5_000_011)] {
            let part = gpu.buf("x").slice(start, len);
            let want: f64 = x[start..start + len].iter().map(|&x| f64::from(x).powi(2)).sum();
            let got = gpu.dev.sum_squares(part);
            // Sums of positive terms: 5e6 roundings of 1e-16, at worst one after the other.
            assert!((got - want).abs() <= 1e-9 * want, "{dtype:?} {len}: {got} against {want}");
            assert_eq!(got.to_bits(), gpu.dev.sum_squares(part).to_bits());
        }
        gpu.dev.write_f32(gpu.buf("x"), 77_777, &[f32::NAN]);
        assert!(gpu.dev.sum_squares(gpu.buf("x")).is_nan());
    }
}

#[test]
fn squares_of_runs_are_exact_to_f64_for_any_number_of_runs() {
    for dtype in [F32, Bf16] {
        let len = 5000 * 256;
        let Some(gpu) = on_card(&[("x", dtype, len), ("own", dtype, len)]) else { return };
        let x = normal(7, len, 3.0, dtype);
        gpu.set("x", &x);
        // More than a launch takes, some of them empty, and some that begin anywhere.
        let whole = (0..5000).map(|i| Run { start: i * 256, elements: i % 257 });
        let odd = (0..10).map(|i| Run { start: 3 + i, elements: 70_001 });
        for runs in [whole.clone().collect::<Vec<Run>>(), whole.chain(odd).collect()] {
            let sums = || {
                let mut sums = Vec::new();
                gpu.dev.squares_of(gpu.buf("x"), &mut runs.iter().copied(), &mut |sum| sums.push(sum));
                sums
            };
            let got = sums();
            assert_eq!(got.len(), runs.len());
            for (run, sum) in runs.iter().zip(&got) {
                let of = &x[run.start as usize..run.end() as usize];
                let want: f64 = of.iter().map(|&x| f64::from(x).powi(2)).sum();
                // At most 70,001 positive terms in another order: roundings of 1e-16 each.
                assert!((sum - want).abs() <= 1e-11 * want, "{dtype:?} {run:?}: {sum} against {want}");
            }
            assert_eq!(got, sums());
            // Elsewhere a run has the same bits.
            let of = runs[4242];
            gpu.dev.write_f32(gpu.buf("own"), 512, &x[of.start as usize..of.end() as usize]);
            let own = &mut std::iter::once(Run { start: 512, ..of });
            gpu.dev
                .squares_of(gpu.buf("own"), own, &mut |sum| assert_eq!(sum.to_bits(), got[4242].to_bits()));
            gpu.dev.check().unwrap();
        }
    }
}
