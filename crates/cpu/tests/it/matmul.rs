//! Products against f64, for every path of the machine, odd shapes, and bits that must not depend on M or threads.

use crate::both::{Rig, check_close, matrix_len, normal, paths, round};
use plimsoll_arch::ModelSpec;
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_cpu::layouts::pack_elements;
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::Device;

/// (M, N, K): tiny, one output (value head), odd K, N that fills no panel, many panel groups, more rows than a block.
const SHAPES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (1, 15, 128),
    (130, 1, 64),
    (3, 17, 7),
    (7, 48, 33),
    (9, 49, 64),
    (64, 96, 20),
    (65, 100, 31),
    (130, 33, 65),
    (300, 40, 50),
];

fn bench(isa: Isa, threads: usize, (m, n, k): (usize, usize, usize), e: DType, out: DType) -> Rig {
    let scratch = threads * (n + 1) * 48;
    Rig::new(
        isa,
        threads,
        &[
            ("x", e, m * k),
            ("w", e, matrix_len(n, k, e)),
            ("bias", e, n),
            ("y", out, m * n),
            ("dy", e, m * n),
            ("dx", out, m * k),
            ("grad", out, matrix_len(n, k, e)),
            ("pack", e, pack_elements(m as u64, n as u64, k as u64, e) as usize),
            ("scratch", e, scratch),
        ],
    )
}

/// Sum of products over the middle index, and of their absolute values: the scale of rounding errors.
fn product(
    rows: usize,
    cols: usize,
    len: usize,
    term: impl Fn(usize, usize, usize) -> f64,
) -> (Vec<f64>, Vec<f64>) {
    let all = |f: &dyn Fn(f64) -> f64| {
        let one = |i: usize| (0..len).map(|j| f(term(i / cols, i % cols, j))).sum::<f64>();
        (0..rows * cols).map(one).collect::<Vec<f64>>()
    };
    (all(&|x| x), all(&f64::abs))
}

/// Rounding of the chain in f32 and of the result.
fn tolerance(len: usize, out: DType) -> f64 {
    len as f64 * 1.2e-7 + if out == Bf16 { 4.0e-3 } else { 1.2e-7 }
}

#[test]
fn products_agree_with_f64_on_every_path() {
    for isa in paths() {
        for &shape in SHAPES {
            for (e, out) in [(Bf16, Bf16), (Bf16, F32), (F32, F32)] {
                check_shape(isa, shape, e, out);
            }
        }
    }
}

fn check_shape(isa: Isa, (m, n, k): (usize, usize, usize), e: DType, out: DType) {
    let what = |op: &str| format!("{op} [{m}, {n}, {k}] {} to {} on {}", e.name(), out.name(), isa.name());
    let mut b = bench(isa, 2, (m, n, k), e, out);
    let (x, w, bias) = (normal(1, m * k, 1.0, e), normal(2, n * k, 1.0, e), normal(3, n, 1.0, e));
    let dy = normal(4, m * n, 1.0, e);
    b.set("x", &x);
    b.set("dy", &dy);
    b.set("bias", &bias);
    b.set_matrix("w", n, k, e, &w);
    let matrix = b.matrix("w", n, k, e);
    let at = |x: &[f32], i: usize| f64::from(x[i]);

    let (y, scale) = product(m, n, k, |i, j, l| at(&x, i * k + l) * at(&w, j * k + l));
    b.dev.matmul(b.buf("x"), matrix, None, b.buf("y"), false);
    check_close(&b.get("y"), &y, &scale, tolerance(k, out), &what("forward"));

    b.dev.matmul(b.buf("x"), matrix, Some(b.buf("bias")), b.buf("y"), false);
    let biased: Vec<f64> = y.iter().enumerate().map(|(i, y)| y + at(&bias, i % n)).collect();
    let scale_biased: Vec<f64> = scale.iter().enumerate().map(|(i, s)| s + at(&bias, i % n).abs()).collect();
    check_close(&b.get("y"), &biased, &scale_biased, tolerance(k, out), &what("bias"));

    let (dx, scale_dx) = product(m, k, n, |i, j, l| at(&dy, i * n + l) * at(&w, l * k + j));
    b.dev.matmul_dx(b.buf("dy"), matrix, b.buf("dx"), false);
    check_close(&b.get("dx"), &dx, &scale_dx, tolerance(n, out), &what("dx"));

    let start = normal(5, n * k, 1.0, out);
    b.set_matrix("grad", n, k, e, &start);
    b.dev.matmul_dw(b.buf("dy"), b.buf("x"), b.matrix("grad", n, k, e), true, b.buf("pack"));
    let (dw, scale_dw) = product(n, k, m, |i, j, l| at(&dy, l * n + i) * at(&x, l * k + j));
    let dw: Vec<f64> = dw.iter().enumerate().map(|(i, d)| d + at(&start, i)).collect();
    let scale_dw: Vec<f64> = scale_dw.iter().enumerate().map(|(i, d)| d + at(&start, i).abs()).collect();
    let (got, padding_is_zero) = b.get_matrix("grad", n, k, e);
    check_close(&got, &dw, &scale_dw, tolerance(m, out), &what("dw"));
    assert!(padding_is_zero, "{}: padding", what("dw"));

    if out == F32 {
        let old = normal(6, m * n, 1.0, F32);
        b.set("y", &old);
        b.dev.matmul(b.buf("x"), matrix, None, b.buf("y"), true);
        let sum: Vec<f64> = y.iter().zip(&old).map(|(y, &o)| y + f64::from(o)).collect();
        let scale: Vec<f64> = scale.iter().zip(&old).map(|(s, &o)| s + f64::from(o).abs()).collect();
        check_close(&b.get("y"), &sum, &scale, tolerance(k, out), &what("forward, added"));
        let once = b.get("dx");
        b.dev.matmul_dx(b.buf("dy"), matrix, b.buf("dx"), true);
        let twice: Vec<f32> = once.iter().map(|x| x + x).collect();
        assert_eq!(b.get("dx"), twice, "{}", what("dx, added"));
    }
    b.check_guards();
}

#[test]
fn bf16_outputs_are_the_rounded_f32_ones() {
    for isa in paths() {
        let shape = (11, 50, 37);
        let run = |out: DType| {
            let b = bench(isa, 2, shape, Bf16, out);
            b.set("x", &normal(1, 11 * 37, 1.0, Bf16));
            b.set_matrix("w", 50, 37, Bf16, &normal(2, 50 * 37, 1.0, Bf16));
            b.dev.matmul(b.buf("x"), b.matrix("w", 50, 37, Bf16), None, b.buf("y"), false);
            b.get("y")
        };
        let rounded: Vec<f32> = run(F32).into_iter().map(|x| round(x, Bf16)).collect();
        assert_eq!(run(Bf16), rounded, "{}", isa.name());
    }
}

#[test]
fn bits_of_a_row_do_not_depend_on_m_or_threads() {
    let (n, k, most) = (112, 83, 200);
    for isa in paths() {
        for e in [Bf16, F32] {
            let (x, w) = (normal(1, most * k, 1.0, e), normal(2, n * k, 1.0, e));
            let dy = normal(3, most * n, 1.0, e);
            let run = |threads: usize, first: usize, m: usize| {
                let b = bench(isa, threads, (m, n, k), e, F32);
                b.set("x", &x[first * k..][..m * k]);
                b.set("dy", &dy[first * n..][..m * n]);
                b.set_matrix("w", n, k, e, &w);
                b.dev.matmul(b.buf("x"), b.matrix("w", n, k, e), None, b.buf("y"), false);
                b.dev.matmul_dx(b.buf("dy"), b.matrix("w", n, k, e), b.buf("dx"), false);
                (b.get("y"), b.get("dx"))
            };
            let (y, dx) = run(1, 0, most);
            for m in 1..=70 {
                let (first, threads) = (m * 37 % (most - m), 1 + m % 2);
                let (part_y, part_dx) = run(threads, first, m);
                assert!(part_y == y[first * n..][..m * n], "{} {}: forward, M = {m}", isa.name(), e.name());
                assert!(part_dx == dx[first * k..][..m * k], "{} {}: dx, M = {m}", isa.name(), e.name());
            }
        }
    }
}

/// One chain of fused multiply-adds along the middle index, from zero: what a path without a dot product of pairs does.
fn chain(rows: usize, cols: usize, len: usize, term: impl Fn(usize, usize, usize) -> (f32, f32)) -> Vec<f32> {
    let one = |i: usize| {
        (0..len).fold(0.0f32, |sum, j| {
            let (a, b) = term(i / cols, i % cols, j);
            a.mul_add(b, sum)
        })
    };
    (0..rows * cols).map(one).collect()
}

#[test]
fn fused_sums_are_one_chain_in_ascending_order() {
    // Every number of rows of a tile; K, N and M that are odd, and longer than what is widened at once.
    let mut shapes: Vec<_> = (1..=17).map(|m| (m, 50, 261)).collect();
    shapes.extend([(33, 20, 512), (30, 261, 17), (517, 18, 35)]);
    for (isa, e) in [(Isa::Avx2, Bf16), (Isa::Avx2, F32), (Isa::Avx512Bf16, F32)] {
        for &(m, n, k) in shapes.iter().filter(|_| isa.is_available()) {
            let b = bench(isa, 2, (m, n, k), e, F32);
            let (x, w) = (normal(1, m * k, 1.0, e), normal(2, n * k, 1.0, e));
            let dy = normal(3, m * n, 1.0, e);
            b.set("x", &x);
            b.set("dy", &dy);
            b.set_matrix("w", n, k, e, &w);
            b.set_matrix("grad", n, k, e, &vec![0.0; n * k]);
            let matrix = b.matrix("w", n, k, e);
            b.dev.matmul(b.buf("x"), matrix, None, b.buf("y"), false);
            b.dev.matmul_dx(b.buf("dy"), matrix, b.buf("dx"), false);
            b.dev.matmul_dw(b.buf("dy"), b.buf("x"), b.matrix("grad", n, k, e), true, b.buf("pack"));
            let what = format!("[{m}, {n}, {k}] {} on {}", e.name(), isa.name());
            let y = chain(m, n, k, |i, j, l| (x[i * k + l], w[j * k + l]));
            assert!(b.get("y") == y, "forward {what}");
            let dx = chain(m, k, n, |i, j, l| (dy[i * n + l], w[l * k + j]));
            assert!(b.get("dx") == dx, "dx {what}");
            let dw = chain(n, k, m, |i, j, l| (dy[l * n + i], x[l * k + j]));
            assert!(b.get_matrix("grad", n, k, e).0 == dw, "dw {what}");
        }
    }
}

/// The sums of `amx`: of every 32 products one sum over the even ones and one over the odd ones, each from zero, then
/// the two added, and that to the output. A subnormal number is taken as zero, and zero is given for it.
fn tiled(rows: usize, cols: usize, len: usize, term: impl Fn(usize, usize, usize) -> (f32, f32)) -> Vec<f32> {
    let flush = |x: f32| if x.is_subnormal() { 0.0f32.copysign(x) } else { x };
    let one = |i: usize| {
        let step = |sum: f32, start: usize| {
            let mut parts = [0.0f32; 2];
            for j in start..len.min(start + 32) {
                let (a, b) = term(i / cols, i % cols, j);
                parts[j % 2] = flush(flush(a).mul_add(flush(b), parts[j % 2]));
            }
            flush(sum + flush(parts[0] + parts[1]))
        };
        (0..len).step_by(32).fold(0.0, step)
    };
    (0..rows * cols).map(one).collect()
}

/// Numbers of bf16 of every size up to 2^`most`, some of them subnormal, whose products are often so.
fn of_all_sizes(seed: u64, len: usize, most: i32) -> Vec<f32> {
    let sizes = normal(seed + 100, len, 1.0, F32);
    let scale = |x: f32| 2.0f32.powi((x * 40.0) as i32).min(2.0f32.powi(most));
    let all: Vec<f32> = normal(seed, len, 1.0, F32).iter().zip(sizes).map(|(x, s)| x * scale(s)).collect();
    all.into_iter().map(|x| round(x, Bf16)).collect()
}

#[test]
fn tiles_add_even_and_odd_products_of_32_at_a_time() {
    if !Isa::Amx.is_available() {
        return println!("skipped: this machine has no tiles of bf16, or its kernel does not give them");
    }
    // Every number of rows of a block; K, N and M that end inside a step, in an odd element, or with a step.
    let mut shapes: Vec<_> = (1..=33).map(|m| (m, 50, 67)).collect();
    shapes.extend([(1, 1, 1), (70, 16, 64), (64, 49, 8), (31, 96, 31), (97, 33, 32), (130, 100, 101)]);
    for (m, n, k) in shapes {
        for small in [false, true] {
            let numbers =
                |seed, len| if small { of_all_sizes(seed, len, 0) } else { normal(seed, len, 1.0, Bf16) };
            let b = bench(Isa::Amx, 2, (m, n, k), Bf16, F32);
            let (x, w, dy) = (numbers(1, m * k), numbers(2, n * k), numbers(3, m * n));
            b.set("x", &x);
            b.set("dy", &dy);
            b.set_matrix("w", n, k, Bf16, &w);
            b.set_matrix("grad", n, k, Bf16, &vec![0.0; n * k]);
            let matrix = b.matrix("w", n, k, Bf16);
            b.dev.matmul(b.buf("x"), matrix, None, b.buf("y"), false);
            b.dev.matmul_dx(b.buf("dy"), matrix, b.buf("dx"), false);
            b.dev.matmul_dw(b.buf("dy"), b.buf("x"), b.matrix("grad", n, k, Bf16), true, b.buf("pack"));
            let bits = |x: Vec<f32>| x.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let what = format!("[{m}, {n}, {k}], of all sizes: {small}");
            let y = tiled(m, n, k, |i, j, l| (x[i * k + l], w[j * k + l]));
            assert!(bits(b.get("y")) == bits(y), "forward {what}");
            let dx = tiled(m, k, n, |i, j, l| (dy[i * n + l], w[l * k + j]));
            assert!(bits(b.get("dx")) == bits(dx), "dx {what}");
            // Added to zero, by which the sign of a zero is lost.
            let dw = tiled(n, k, m, |i, j, l| (dy[l * n + i], x[l * k + j]));
            assert!(b.get_matrix("grad", n, k, Bf16).0 == dw, "dw {what}");
        }
    }
}

#[test]
fn bits_of_gradients_do_not_depend_on_threads() {
    let (m, n, k) = (77, 130, 75);
    for isa in paths() {
        for (e, g) in [(Bf16, F32), (Bf16, Bf16), (F32, F32)] {
            let run = |threads: usize| {
                let b = bench(isa, threads, (m, n, k), e, g);
                b.set("x", &normal(1, m * k, 1.0, e));
                b.set("dy", &normal(2, m * n, 1.0, e));
                b.dev.zero(b.buf("grad"));
                b.dev.matmul_dw(b.buf("dy"), b.buf("x"), b.matrix("grad", n, k, e), true, b.buf("pack"));
                b.get("grad")
            };
            assert!(run(1) == run(2) && run(1) == run(5), "{} {} {}", isa.name(), e.name(), g.name());
        }
    }
}

#[test]
fn nan_in_one_row_stays_in_it() {
    let (m, n, k) = (9, 20, 31);
    for isa in paths() {
        for e in [Bf16, F32] {
            let b = bench(isa, 1, (m, n, k), e, F32);
            let mut x = normal(1, m * k, 1.0, e);
            x[4 * k] = f32::NAN;
            b.set("x", &x);
            b.set_matrix("w", n, k, e, &normal(2, n * k, 1.0, e));
            b.dev.matmul(b.buf("x"), b.matrix("w", n, k, e), None, b.buf("y"), false);
            for (i, y) in b.get("y").into_iter().enumerate() {
                assert_eq!(y.is_nan(), i / n == 4, "{} {} element {i}", isa.name(), e.name());
            }
        }
    }
}

#[test]
fn scratch_is_three_panels_of_the_largest_transpose() {
    let layout = |name: &str, update: bool| {
        let spec = ModelSpec::preset(name).unwrap();
        CpuDevice::scratch_layout(&spec, Bf16, 2, update).unwrap()
    };
    assert!(layout("smollm2-135m", false).regions.is_empty());
    for (name, n) in [("smollm2-135m", 3072), ("nano", 768), ("qwen2.5-0.5b", 9728)] {
        assert_eq!(layout(name, true).regions[0].shape, [2, 48 * n], "{name}");
    }
    // A product with that matrix fills one thread's part.
    let (m, n, k) = (9, 3072, 576);
    let mut b = Rig::new(
        Isa::detect(),
        1,
        &[("dy", Bf16, m * n), ("w", Bf16, n * k), ("dx", Bf16, m * k), ("scratch", Bf16, 48 * n)],
    );
    b.set("dy", &normal(1, m * n, 1.0, Bf16));
    b.set_matrix("w", n, k, Bf16, &normal(2, n * k, 1.0, Bf16));
    b.dev.matmul_dx(b.buf("dy"), b.matrix("w", n, k, Bf16), b.buf("dx"), false);
    assert!(b.share_written("scratch") > 0.99);
}
