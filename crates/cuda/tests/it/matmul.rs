//! Products by cuBLASLt: right against f64, and the same bits for every number of rows.

use crate::both::{bits, check_norm, normal};
use crate::rig::on_card;
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_device::{Backend, Device};

/// ||out - ref|| / ||ref|| of bf16 outputs: half a unit in the last of 8 bits is 2^-9; of f32 outputs, only the sum's
/// own rounding.
const BF16_OUT: f64 = 4e-3;
const F32_OUT: f64 = 1e-5;

#[test]
fn the_three_products_agree_with_f64() {
    let (m, n, k) = (77, 192, 320);
    for out in [Bf16, F32] {
        let buffers = [
            ("x", Bf16, m * k),
            ("w", Bf16, n * k),
            ("dy", Bf16, m * n),
            ("bias", Bf16, n),
            ("out", out, m * n),
            ("sum", F32, m * n),
            ("dx", out, m * k),
            ("dw", out, n * k),
        ];
        let Some(mut gpu) = on_card(&buffers) else { return };
        let (x, w, dy) =
            (normal(1, m * k, 1.0, Bf16), normal(2, n * k, 0.1, Bf16), normal(3, m * n, 1.0, Bf16));
        let (bias, dw) = (normal(4, n, 1.0, Bf16), normal(5, n * k, 1.0, out));
        for (name, x) in [("x", &x), ("w", &w), ("dy", &dy), ("bias", &bias), ("dw", &dw)] {
            gpu.set(name, x);
        }
        let weights = gpu.rows("w", n, k);
        gpu.dev.matmul(gpu.buf("x"), weights, Some(gpu.buf("bias")), gpu.buf("out"), false);
        gpu.dev.matmul_dx(gpu.buf("dy"), weights, gpu.buf("dx"), false);
        gpu.dev.matmul_dw(
            gpu.buf("dy"),
            gpu.buf("x"),
            gpu.rows("dw", n, k),
            true,
            gpu.buf("bias").slice(0, 0),
        );
        let f = |a: &[f32], i: usize| f64::from(a[i]);
        let sum = |len: usize, term: &dyn Fn(usize) -> f64| (0..len).map(term).sum::<f64>();
        let want_out: Vec<f64> = (0..m * n)
            .map(|i| f(&bias, i % n) + sum(k, &|j| f(&x, i / n * k + j) * f(&w, i % n * k + j)))
            .collect();
        let want_dx: Vec<f64> =
            (0..m * k).map(|i| sum(n, &|j| f(&dy, i / k * n + j) * f(&w, j * k + i % k))).collect();
        let want_dw: Vec<f64> = (0..n * k)
            .map(|i| f(&dw, i) + sum(m, &|j| f(&dy, j * n + i / k) * f(&x, j * k + i % k)))
            .collect();
        let tolerance = if out == Bf16 { BF16_OUT } else { F32_OUT };
        check_norm("out", &gpu.get("out"), &want_out, tolerance);
        check_norm("dx", &gpu.get("dx"), &want_dx, tolerance);
        check_norm("dw", &gpu.get("dw"), &want_dw, tolerance);
        gpu.set("dw", &vec![f32::NAN; n * k]);
        let none = gpu.buf("bias").slice(0, 0);
        gpu.dev.matmul_dw(gpu.buf("dy"), gpu.buf("x"), gpu.rows("dw", n, k), false, none);
        let written: Vec<f64> = want_dw.iter().zip(&dw).map(|(sum, &dw)| sum - f64::from(dw)).collect();
        check_norm("dw written", &gpu.get("dw"), &written, tolerance);
        if out == F32 {
            gpu.dev.matmul(gpu.buf("x"), weights, None, gpu.buf("out"), true);
            let twice: Vec<f64> = (0..m * n).map(|i| 2.0 * want_out[i] - f(&bias, i % n)).collect();
            check_norm("out added to", &gpu.get("out"), &twice, tolerance);
            gpu.dev.matmul_add(gpu.buf("x"), weights, gpu.buf("out"), gpu.buf("sum"));
            let thrice: Vec<f64> = (0..m * n).map(|i| 3.0 * want_out[i] - 2.0 * f(&bias, i % n)).collect();
            check_norm("a sum next to it", &gpu.get("sum"), &thrice, tolerance);
            check_norm("what it was added to", &gpu.get("out"), &twice, tolerance);
        }
        gpu.check_guards();
    }
}

/// Values whose second half along each row is the first half times `sign`: with both signs every term of a product has
/// its negative, so that nothing but the rounding of partial sums is left and another order of additions shows.
fn cancelling(seed: u64, rows: usize, k: usize, std: f32, sign: f32) -> Vec<f32> {
    let half = normal(seed, rows * k / 2, std, Bf16);
    half.chunks_exact(k / 2).flat_map(|row| row.iter().copied().chain(row.iter().map(|x| sign * x))).collect()
}

/// Rows of a product are the same bits whatever the number of rows.
fn check_rows(n: usize, k: usize, out: DType, bias: bool) -> Option<()> {
    const MOST: usize = 4096;
    let gpu = on_card(&[
        ("x", Bf16, MOST * k),
        ("w", Bf16, n * k),
        ("bias", Bf16, n),
        ("out", out, MOST * n),
        ("part", out, MOST * n),
    ])?;
    gpu.set("x", &cancelling(1, MOST, k, 1.0, 1.0));
    gpu.set("w", &cancelling(2, n, k, 0.05, -1.0));
    gpu.set("bias", &normal(3, n, 1e-6, Bf16));
    let w = gpu.rows("w", n, k);
    let bias = bias.then(|| gpu.buf("bias"));
    gpu.dev.matmul(gpu.buf("x"), w, bias, gpu.buf("out"), false);
    let all = bits(&gpu.get("out"));
    for m in [1, 2, 3, 8, 15, 16, 17, 31, 32, 48, 64, 100, 128, 192, 256, 300, 512, 777, 1024, 2048] {
        let part = gpu.buf("part").slice(0, m * n);
        gpu.dev.matmul(gpu.buf("x").slice(0, m * k), w, bias, part, false);
        let mut got = vec![0.0; m * n];
        gpu.dev.read_f32(part, 0, &mut got);
        gpu.dev.check().unwrap();
        let differ = bits(&got).iter().zip(&all).filter(|(a, b)| a != b).count();
        assert_eq!(differ, 0, "[{m}, {k}] x [{n}, {k}], {} out: elements that differ", out.name());
    }
    assert!(all.iter().any(|&bits| bits << 1 != 0), "no rounding to see");
    Some(())
}

#[test]
fn rows_of_smollm2_do_not_depend_on_their_number() {
    for (n, k, out) in
        [(960, 576, Bf16), (576, 576, F32), (3072, 576, Bf16), (576, 1536, F32), (8192, 576, F32)]
    {
        if check_rows(n, k, out, false).is_none() {
            return;
        }
    }
}

#[test]
fn rows_of_narrow_models_do_not_depend_on_their_number() {
    for (n, k) in
        [(64, 64), (128, 64), (96, 64), (176, 64), (64, 176), (96, 96), (512, 96), (64, 128), (320, 64)]
    {
        for out in [Bf16, F32] {
            if check_rows(n, k, out, false).is_none() {
                return;
            }
        }
    }
}

#[test]
fn rows_of_qwen2_do_not_depend_on_their_number() {
    for (n, k, out, bias) in [
        (1152, 896, Bf16, true),
        (896, 896, F32, false),
        (9728, 896, Bf16, false),
        (896, 4864, F32, false),
        (1536, 8960, F32, false),
        (4608, 3584, Bf16, true),
        (3584, 18944, F32, false),
    ] {
        if check_rows(n, k, out, bias).is_none() {
            return;
        }
    }
}

#[test]
fn the_peak_is_a_rate() {
    let Some(gpu) = on_card(&[]) else { return };
    let rate = gpu.dev.peak_flops(0.0);
    gpu.dev.check().unwrap();
    println!(
        "{} {}: {:.0} TFLOP/s; {:?}",
        gpu.dev.versions(),
        gpu.dev.machine_type(),
        rate * 1e-12,
        gpu.dev.memory()
    );
    assert!(rate > 1e12, "{rate:e}");
}

/// Shows what lets ranks sum a gradient part by part: a product is rounded to the gradient's dtype and added once.
#[test]
fn a_product_of_any_number_of_rows_is_added_to_a_gradient_as_it_is_written_alone() {
    let (most, mut all) = (520, Vec::new());
    for (n, k) in [(384, 128), (128, 128), (15, 128), (96, 64), (1152, 896), (896, 4864)] {
        for to in [F32, Bf16] {
            let buffers = [
                ("x", Bf16, most * k),
                ("dy", Bf16, most * n),
                ("sum", to, n * k),
                ("grad", to, n * k),
                ("want", to, n * k),
            ];
            let Some(gpu) = on_card(&buffers) else { return };
            if let Err(error) = gpu.dev.require_equal_parts(to) {
                eprintln!("skipped for {}: {}", to.name(), error.message);
                continue;
            }
            let before = normal(5, n * k, 1.0, to);
            gpu.set("x", &normal(1, most * k, 1.0, Bf16));
            gpu.set("dy", &normal(3, most * n, 1.0, Bf16));
            let mut differ = Vec::new();
            for m in (1..=20).chain([31, 32, 33, 48, 63, 64, 65, 100, 128, 129, 256, 300, 512, 513]) {
                gpu.set("grad", &before);
                gpu.set("want", &before);
                let none = gpu.buf("x").slice(0, 0);
                let (dy, x) = (gpu.buf("dy").slice(0, m * n), gpu.buf("x").slice(0, m * k));
                gpu.dev.matmul_dw(dy, x, gpu.rows("grad", n, k), true, none);
                gpu.dev.matmul_dw(dy, x, gpu.rows("sum", n, k), false, none);
                gpu.dev.accumulate(gpu.buf("sum"), gpu.buf("want"), true);
                gpu.dev.check().unwrap();
                let (grad, want) = (bits(&gpu.get("grad")), bits(&gpu.get("want")));
                let count = grad.iter().zip(&want).filter(|(a, b)| a != b).count();
                if count > 0 {
                    differ.push((m, count));
                }
            }
            if !differ.is_empty() {
                all.push(format!("[{n}, {k}] in {to:?}: (rows, elements) that differ: {differ:?}"));
            }
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}
