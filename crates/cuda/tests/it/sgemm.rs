//! Our own products: f32, and bf16 of shapes that cuBLASLt does not take; one chain of additions an element.

use crate::both::{bits, normal};
use crate::rig::{Card, on_card};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_device::Device;

/// (M, N, K): tiny, odd widths, one tile and several, a rest in every direction.
const SHAPES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (1, 15, 128),
    (130, 1, 64),
    (3, 17, 7),
    (7, 48, 33),
    (64, 64, 64),
    (65, 100, 31),
    (130, 33, 65),
    (300, 140, 50),
    (128, 257, 516),
];

fn bench((m, n, k): (usize, usize, usize), e: DType, out: DType) -> Option<Card> {
    on_card(&[
        ("x", e, m * k),
        ("w", e, n * k),
        ("bias", e, n),
        ("y", out, m * n),
        ("dy", e, m * n),
        ("dx", out, m * k),
        ("grad", out, n * k),
    ])
}

/// Panics unless each element is the sum of `start` and its terms, within rounding of the chain and of the result.
#[track_caller]
fn check(
    what: &str,
    got: &[f32],
    out: DType,
    len: usize,
    start: impl Fn(usize) -> f32,
    term: impl Fn(usize, usize) -> f32,
) {
    // A product is rounded, and once more where it is added to what is there.
    let tolerance = len as f64 * 1.2e-7 + if out == Bf16 { 8.0e-3 } else { 1.2e-7 };
    for (i, &got) in got.iter().enumerate() {
        let (mut sum, mut size) = (f64::from(start(i)), f64::from(start(i)).abs());
        for j in 0..len {
            // A product of two f32 rounds once here: a part of the tolerance's 2^-23 a term.
            sum += f64::from(term(i, j));
            size += f64::from(term(i, j)).abs();
        }
        assert!(
            (f64::from(got) - sum).abs() <= tolerance * size,
            "{what}: element {i} is {got}, wanted {sum}"
        );
    }
}

#[test]
fn products_of_every_shape_agree_with_f64() {
    for &shape in SHAPES {
        for (e, out) in [(F32, F32), (Bf16, F32), (Bf16, Bf16)] {
            if check_shape(shape, e, out).is_none() {
                return;
            }
        }
    }
}

fn check_shape((m, n, k): (usize, usize, usize), e: DType, out: DType) -> Option<()> {
    let what = |op: &str| format!("{op} [{m}, {n}, {k}] {} to {}", e.name(), out.name());
    let mut gpu = bench((m, n, k), e, out)?;
    let (x, w, bias) = (normal(1, m * k, 1.0, e), normal(2, n * k, 1.0, e), normal(3, n, 1.0, e));
    let (dy, start) = (normal(4, m * n, 1.0, e), normal(5, n * k, 1.0, out));
    for (name, x) in [("x", &x), ("w", &w), ("bias", &bias), ("dy", &dy), ("grad", &start)] {
        gpu.set(name, x);
    }
    let weights = gpu.rows("w", n, k);
    let y = |i: usize, j: usize| x[i / n * k + j] * w[i % n * k + j];
    let dx = |i: usize, j: usize| dy[i / k * n + j] * w[j * k + i % k];
    gpu.dev.matmul(gpu.buf("x"), weights, Some(gpu.buf("bias")), gpu.buf("y"), false);
    gpu.dev.matmul_dx(gpu.buf("dy"), weights, gpu.buf("dx"), false);
    gpu.dev.matmul_dw(gpu.buf("dy"), gpu.buf("x"), gpu.rows("grad", n, k), true, gpu.buf("bias").slice(0, 0));
    let (biased, once) = (gpu.get("y"), gpu.get("dx"));
    check(&what("forward"), &biased, out, k, |i| bias[i % n], y);
    check(&what("dx"), &once, out, n, |_| 0.0, dx);
    let dw = |i: usize, j: usize| dy[j * n + i / k] * x[j * k + i % k];
    check(&what("dw"), &gpu.get("grad"), out, m, |i| start[i], dw);
    if out == F32 {
        gpu.dev.matmul(gpu.buf("x"), weights, None, gpu.buf("y"), true);
        check(&what("forward, added"), &gpu.get("y"), out, k, |i| biased[i], y);
        gpu.dev.matmul_dx(gpu.buf("dy"), weights, gpu.buf("dx"), true);
        let twice: Vec<f32> = once.iter().map(|x| x + x).collect();
        assert_eq!(gpu.get("dx"), twice, "{}", what("dx, added"));
    }
    gpu.check_guards();
    Some(())
}

#[test]
fn an_f32_element_is_one_chain_of_fused_additions() {
    let (m, n, k) = (70, 75, 333);
    let Some(gpu) = bench((m, n, k), F32, F32) else { return };
    let (x, w) = (normal(1, m * k, 1.0, F32), normal(2, n * k, 1.0, F32));
    gpu.set("x", &x);
    gpu.set("w", &w);
    gpu.dev.matmul(gpu.buf("x"), gpu.rows("w", n, k), None, gpu.buf("y"), false);
    let chain = |i: usize| (0..k).fold(0.0f32, |sum, j| x[i / n * k + j].mul_add(w[i % n * k + j], sum));
    assert_eq!(bits(&gpu.get("y")), bits(&(0..m * n).map(chain).collect::<Vec<_>>()));
}

#[test]
fn gradients_of_f32_weights_may_be_kept_in_bf16() {
    let (m, n, k) = (40, 70, 66);
    let buffers = [("x", F32, m * k), ("dy", F32, m * n), ("grad", Bf16, n * k)];
    let Some(gpu) = on_card(&buffers) else { return };
    let (x, dy) = (normal(1, m * k, 1.0, F32), normal(2, m * n, 1.0, F32));
    gpu.set("x", &x);
    gpu.set("dy", &dy);
    gpu.dev.zero(gpu.buf("grad"));
    gpu.dev.matmul_dw(gpu.buf("dy"), gpu.buf("x"), gpu.rows("grad", n, k), true, gpu.buf("x").slice(0, 0));
    check("dw", &gpu.get("grad"), Bf16, m, |_| 0.0, |i, j| dy[j * n + i / k] * x[j * k + i % k]);
}

#[test]
fn bits_of_a_row_do_not_depend_on_m() {
    let (n, k, most) = (113, 83, 200);
    for e in [F32, Bf16] {
        let Some(gpu) = bench((most, n, k), e, F32) else { return };
        gpu.set("x", &normal(1, most * k, 1.0, e));
        gpu.set("w", &normal(2, n * k, 1.0, e));
        gpu.set("dy", &normal(3, most * n, 1.0, e));
        let w = gpu.rows("w", n, k);
        let run = |first: usize, m: usize| {
            let (y, dx) = (gpu.buf("y").slice(0, m * n), gpu.buf("dx").slice(0, m * k));
            gpu.dev.matmul(gpu.buf("x").slice(first * k, m * k), w, None, y, false);
            gpu.dev.matmul_dx(gpu.buf("dy").slice(first * n, m * n), w, dx, false);
            [bits(&gpu.get("y")[..m * n]), bits(&gpu.get("dx")[..m * k])]
        };
        let [y, dx] = run(0, most);
        for m in [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129] {
            let first = m * 37 % (most - m);
            let [part_y, part_dx] = run(first, m);
            assert!(part_y == y[first * n..][..m * n], "{}: forward, M = {m}", e.name());
            assert!(part_dx == dx[first * k..][..m * k], "{}: dx, M = {m}", e.name());
        }
    }
}

#[test]
fn nan_in_one_row_stays_in_it() {
    let (m, n, k) = (9, 20, 31);
    for e in [F32, Bf16] {
        let Some(gpu) = bench((m, n, k), e, F32) else { return };
        let mut x = normal(1, m * k, 1.0, e);
        x[4 * k] = f32::NAN;
        gpu.set("x", &x);
        gpu.set("w", &normal(2, n * k, 1.0, e));
        gpu.dev.matmul(gpu.buf("x"), gpu.rows("w", n, k), None, gpu.buf("y"), false);
        for (i, y) in gpu.get("y").into_iter().enumerate() {
            assert_eq!(y.is_nan(), i / n == 4, "{} element {i}", e.name());
        }
    }
}
