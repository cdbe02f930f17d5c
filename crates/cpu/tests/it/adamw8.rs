//! AdamW with moments of 8 bits: against f64 over many steps, and what does not depend on cuts, threads or layouts.

use crate::both::{Rig, bits, get, numbers, paths, stored};
use plimsoll_base::DType;
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::{AdamW, AdamWBufs, CODE_BLOCK, Coded, Device, MatrixLayout};
use plimsoll_memory::Resident;

const HOW: AdamW = AdamW {
    lr: 1e-2,
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-8,
    weight_decay: 0.1,
    step: 1,
    grad_scale: 0.5,
    seed: 42,
    first_element: 0,
};

fn rig(isa: Isa, threads: usize, w: DType, n: usize) -> Rig {
    let blocks = n.div_ceil(CODE_BLOCK);
    Rig::new(
        isa,
        threads,
        &[
            ("w", w, n),
            ("g", DType::F32, n),
            ("m", DType::E4M3, n),
            ("v", DType::E5M3, n),
            ("m_scales", DType::F32, blocks),
            ("v_scales", DType::F32, blocks),
        ],
    )
}

fn coded<'a>(r: Resident<'a>, moment: &str) -> Coded<'a> {
    Coded { codes: r.buf(moment), scales: r.buf(&format!("{moment}_scales")) }
}

fn moment(dev: &CpuDevice, r: Resident<'_>, name: &str) -> Vec<f32> {
    let mut out = vec![0.0; r.buf(name).len()];
    dev.read_codes(coded(r, name), 1, MatrixLayout::Rows, 0, &mut out);
    out
}

/// Elements start..end.
fn bufs(r: Resident<'_>, start: usize, end: usize) -> AdamWBufs<'_> {
    let part = |name: &str| coded(r, name).slice(start, end - start);
    AdamWBufs {
        weights: r.buf("w").slice(start, end - start),
        grad: r.buf("g").slice(start, end - start),
        m: part("m").codes,
        v: part("v").codes,
        scales: Some([part("m").scales, part("v").scales]),
        master: None,
    }
}

fn start(dev: &CpuDevice, r: Resident<'_>, w: &[f32]) {
    dev.write_f32(r.buf("w"), 0, w);
    ["m", "v", "m_scales", "v_scales"].into_iter().for_each(|name| dev.zero(r.buf(name)));
}

#[test]
fn bits_do_not_depend_on_threads_or_cuts() {
    let n = 40_003;
    for isa in paths() {
        for dtype in [DType::F32, DType::Bf16] {
            let w = stored(dtype, &numbers(1, n));
            let run = |threads: usize, ends: &[usize]| {
                let rig = rig(isa, threads, dtype, n);
                let (dev, r) = rig.bufs();
                start(dev, r, &w);
                for step in 1..=3 {
                    dev.write_f32(r.buf("g"), 0, &numbers(10 + step, n));
                    let mut from = 0;
                    for &end in ends {
                        // Counters around a carry into the high word.
                        let first_element = (1 << 32) - 20_001 + from as u64;
                        dev.adamw(AdamW { first_element, step, ..HOW }, bufs(r, from, end));
                        from = end;
                    }
                }
                [get(dev, r.buf("w")), moment(dev, r, "m"), moment(dev, r, "v")].map(|x| bits(&x))
            };
            assert_eq!(run(2, &[n]), run(1, &[256, 1536, 20_224, n]), "{isa:?} {dtype:?}");
        }
    }
}

/// The ratio of what is stored and what f64 holds: mean less 1, and deviation.
fn ratio(ours: &[f32], exact: &[f64]) -> (f64, f64) {
    let ratios: Vec<f64> = ours.iter().zip(exact).map(|(&x, &y)| f64::from(x) / y).collect();
    let n = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / n;
    (mean - 1.0, (ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / n).sqrt())
}

#[test]
fn moments_follow_f64_over_400_steps_where_gradients_of_a_block_differ_a_thousandfold() {
    let n = 64 * CODE_BLOCK;
    let sizes: Vec<f32> = numbers(1, n).iter().map(|x| 10f32.powf(1.5 * (x - 1.0))).collect();
    for (beta2, deviation) in [(0.95, 0.15), (0.999, 0.20)] {
        let rig = rig(Isa::detect(), 2, DType::F32, n);
        let (dev, r) = rig.bufs();
        start(dev, r, &vec![1.0; n]);
        let (mut m, mut v) = (vec![0.0; n], vec![0.0; n]);
        for step in 1..=400 {
            let noise = numbers(1000 + step, n);
            let g: Vec<f32> = noise.iter().zip(&sizes).map(|(x, size)| size * (x + 0.3)).collect();
            dev.write_f32(r.buf("g"), 0, &g);
            dev.adamw(AdamW { beta2, step, grad_scale: 1.0, ..HOW }, bufs(r, 0, n));
            for i in 0..n {
                let g = f64::from(g[i]);
                m[i] = f64::from(HOW.beta1) * m[i] + f64::from(1.0 - HOW.beta1) * g;
                v[i] = f64::from(beta2) * v[i] + f64::from(1.0 - beta2) * g * g;
            }
        }
        let (bias, spread) = ratio(&moment(dev, r, "v"), &v);
        println!("beta2 {beta2}: v {bias:+.4} in the mean, {spread:.4} about it");
        // 16,384 elements: the mean's own deviation is a thousandth.
        assert!(bias.abs() < 0.006 && spread < deviation, "v of beta2 {beta2}: {bias:+.4}, {spread:.4}");
        // m crosses zero, so it is held against the size of the gradients.
        let correction = 1.0 - f64::from(beta2).powi(400);
        let m_ours = moment(dev, r, "m");
        let error = |i: usize| (f64::from(m_ours[i]) - m[i]) / (v[i] / correction).sqrt();
        let errors: Vec<f64> = (0..n).map(error).collect();
        let mean = errors.iter().sum::<f64>() / n as f64;
        let rms = (errors.iter().map(|e| e * e).sum::<f64>() / n as f64).sqrt();
        println!("beta2 {beta2}: m {mean:+.4} of the gradients' size in the mean, {rms:.4} about it");
        assert!(mean.abs() < 2e-3 && rms < 0.06, "m of beta2 {beta2}: {mean:+.4}, {rms:.4}");
    }
}

/// Loss of a noisy quadratic after 1,000 steps, with moments of 8 bits or of bf16.
fn quadratic(codes: bool) -> f64 {
    let n = 16 * CODE_BLOCK;
    let curvature: Vec<f32> = numbers(5, n).iter().map(|x| 10f32.powf(1.5 * (x - 1.0))).collect();
    let rig8 = rig(Isa::detect(), 1, DType::F32, n);
    let rig16 = Rig::new(
        Isa::detect(),
        1,
        &[("w", DType::F32, n), ("g", DType::F32, n), ("m", DType::Bf16, n), ("v", DType::Bf16, n)],
    );
    let (dev, r) = if codes { rig8.bufs() } else { rig16.bufs() };
    dev.write_f32(r.buf("w"), 0, &numbers(6, n));
    ["m", "v"].into_iter().for_each(|name| dev.zero(r.buf(name)));
    let bufs = if codes {
        ["m_scales", "v_scales"].into_iter().for_each(|name| dev.zero(r.buf(name)));
        bufs(r, 0, n)
    } else {
        AdamWBufs {
            weights: r.buf("w"),
            grad: r.buf("g"),
            m: r.buf("m"),
            v: r.buf("v"),
            scales: None,
            master: None,
        }
    };
    let steps = 1000;
    for step in 1..=steps {
        let (w, noise) = (get(dev, r.buf("w")), numbers(100 + step, n));
        let g: Vec<f32> = (0..n).map(|i| curvature[i] * (w[i] + noise[i])).collect();
        dev.write_f32(r.buf("g"), 0, &g);
        let lr = 2e-2 * (1.0 - step as f32 / steps as f32);
        dev.adamw(AdamW { lr, beta2: 0.999, weight_decay: 0.0, grad_scale: 1.0, step, ..HOW }, bufs);
    }
    let w = get(dev, r.buf("w"));
    (0..n).map(|i| f64::from(curvature[i]) * f64::from(w[i]).powi(2)).sum::<f64>() / n as f64
}

#[test]
fn a_noisy_quadratic_ends_where_bf16_moments_end() {
    let (ours, peer) = (quadratic(true), quadratic(false));
    println!("loss {ours:.4e}, with bf16 moments {peer:.4e}: {:+.2} %", 100.0 * (ours / peer - 1.0));
    assert!((ours / peer - 1.0).abs() < 0.05, "{ours:e} against {peer:e}");
}

#[test]
fn codes_read_out_as_rows_and_come_back_as_the_same_numbers() {
    let (rows, k) = (40, 33);
    for layout in [MatrixLayout::Rows, MatrixLayout::Single, MatrixLayout::Pairs] {
        let n = match layout {
            MatrixLayout::Rows => rows * k,
            MatrixLayout::Single => 48 * k,
            MatrixLayout::Pairs => 48 * (k + 1),
        };
        let rig = rig(Isa::detect(), 2, DType::F32, n);
        let (dev, r) = rig.bufs();
        start(dev, r, &vec![0.0; n]);
        for step in 1..=20 {
            dev.write_f32(r.buf("g"), 0, &numbers(step, n));
            dev.adamw(AdamW { step, ..HOW }, bufs(r, 0, n));
        }
        for name in ["m", "v"] {
            let flat = moment(dev, r, name);
            let mut some = vec![0.0; 17 * k];
            dev.read_codes(coded(r, name), k, layout, 5, &mut some);
            for (i, x) in some.iter().enumerate() {
                assert_eq!(
                    x.to_bits(),
                    flat[layout.index(k, 5 + i / k, i % k)].to_bits(),
                    "{layout:?} {name} {i}"
                );
            }
            dev.write_f32(r.buf("g"), 0, &flat);
            dev.zero(r.buf(name));
            dev.write_codes(r.buf("g"), coded(r, name));
            assert_eq!(bits(&moment(dev, r, name)), bits(&flat), "{layout:?} {name}");
        }
    }
}
