//! Products of numbers of eight bits against those numbers in f64.
#![allow(dead_code)] // Each binary uses its part.

use super::{Machine, Open, Rig, Sized, bits, check_close, normal, round};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_base::fp8::{largest, round_block, rounded, scale_of};
use plimsoll_device::{
    Adapted, Adapter, AdapterBlock, FP8_BLOCK, Fp8, Fp8Room, Rounded, fp8_dtype, fp8_elements,
    fp8_row_scales, fp8_turned, matrix_elements,
};

/// Less than a block, blocks that end early, several, and more steps than buffers.
const SHAPES: [(usize, usize); 5] = [(16, 16), (48, 144), (160, 336), (400, 896), (80, 4864)];
/// Rows of one tile and of more, whole or not.
const ROWS: [usize; 8] = [1, 3, 8, 64, 65, 128, 130, 201];
const MOST: usize = 201;

/// A card that does not multiply such numbers is refused before a run.
fn multiplies<D: Machine>(rig: &Rig<D>) -> bool {
    let machine = rig.dev.machine_type();
    !machine.starts_with("cuda") || machine.contains("sm90")
}

fn dtypes<D: Machine>() -> &'static [DType] {
    if D::KIND.multiplies_fp8 { &[Bf16] } else { &[Bf16, F32] }
}

fn buffers<D: Machine>((n, k): (usize, usize), e: DType) -> Vec<Sized<'static>> {
    let (codes, scales) = fp8_elements(D::KIND, n as u64, k as u64, e);
    let (kept, widest) = (fp8_dtype(D::KIND, e), n.max(k));
    vec![
        ("x", e, MOST * widest),
        ("w", e, matrix_elements(D::KIND, n as u64, k as u64, e) as usize),
        ("codes", kept, codes as usize),
        ("scales", F32, scales as usize),
        ("rows", kept, MOST * widest),
        ("row_scales", F32, fp8_row_scales(MOST as u64, widest as u64) as usize),
        ("turned", kept, fp8_turned(n as u64, k as u64) as usize),
        ("bias", e, n),
        ("out", e, MOST * widest),
        ("sums", F32, MOST * widest),
    ]
}

/// The rounded weights, and the memory of products with them.
fn parts<D: Machine>(rig: &Rig<D>, (n, k): (usize, usize), e: DType) -> Rounded<'static> {
    let scales = D::KIND.multiplies_fp8.then(|| rig.buf("scales"));
    let of = Fp8::new(D::KIND, e, (rig.buf("codes"), scales), n, k);
    let turned = D::KIND.multiplies_fp8.then(|| rig.buf("turned"));
    let room = Fp8Room { rows: rig.buf("rows"), scales: scales.map(|_| rig.buf("row_scales")), turned };
    Rounded { w: of, room }
}

fn rounded_rows(x: &[f32], width: usize) -> Vec<f32> {
    let mut x = x.to_vec();
    x.chunks_mut(width).for_each(|row| row.chunks_mut(FP8_BLOCK).for_each(round_block));
    x
}

fn rounded_weights(w: &[f32], n: usize, k: usize) -> Vec<f32> {
    let mut out = vec![0.0; n * k];
    for (first, left) in
        (0..n).step_by(FP8_BLOCK).flat_map(|row| (0..k).step_by(FP8_BLOCK).map(move |col| (row, col)))
    {
        let at = |row: usize, col: usize| row * k + col;
        let rows = first..(first + FP8_BLOCK).min(n);
        let columns = left..(left + FP8_BLOCK).min(k);
        let all: Vec<usize> = rows.flat_map(|row| columns.clone().map(move |col| at(row, col))).collect();
        let scale = scale_of(all.iter().fold(0, |most, &i| most.max(largest(&[w[i]]))));
        all.into_iter().for_each(|i| out[i] = rounded(w[i], scale));
    }
    out
}

/// x W^T in f64 and the sums of absolute values; x W if `is_turned`.
fn products(x: &[f32], w: &[f32], (n, k): (usize, usize), is_turned: bool) -> (Vec<f64>, Vec<f64>) {
    let (width, outputs) = if is_turned { (n, k) } else { (k, n) };
    let of = |row: &[f32], out: usize| {
        let term =
            |i: usize| f64::from(row[i]) * f64::from(w[if is_turned { i * k + out } else { out * k + i }]);
        (0..width).map(term).fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
    };
    x.chunks(width).flat_map(|row| (0..outputs).map(move |out| of(row, out))).unzip()
}

/// Numbers of which some columns are much larger than others, as activations are.
fn uneven(seed: u64, len: usize, width: usize, e: DType) -> Vec<f32> {
    let scale = |i: usize| if (i % width).is_multiple_of(61) { 20.0 } else { 1.0 };
    normal(seed, len, 1.0, F32).into_iter().enumerate().map(|(i, x)| round(x * scale(i), e)).collect()
}

/// Hopper keeps some 13 bits of the numbers that it adds at a time; what is stored is rounded once.
fn tolerance(e: DType) -> f64 {
    if e == Bf16 { 1.0 / 1024.0 + 1.0 / 256.0 } else { 1.0 / 1024.0 }
}

pub fn products_of_rounded_numbers_are_close_and_rows_are_their_own<D: Machine>(open: Open<D>) {
    for (shape @ (n, k), e) in
        SHAPES.into_iter().flat_map(|shape| dtypes::<D>().iter().map(move |e| (shape, *e)))
    {
        for mut rig in open(&buffers::<D>(shape, e)).into_iter().filter(multiplies) {
            let (x, w) = (uneven(3, MOST * k, k, e), normal(4, n * k, 0.05, e));
            rig.dev.write_f32(rig.buf("x"), 0, &x);
            rig.set_matrix("w", n, k, e, &w);
            rig.set("bias", &normal(5, n, 1.0, e));
            let of = parts(&rig, shape, e);
            rig.dev.round_fp8(rig.matrix("w", n, k, e), of.w);
            let (want, size) = products(&rounded_rows(&x, k), &rounded_weights(&w, n, k), shape, false);
            let bias = rig.get("bias");
            let mut seen: [Vec<u32>; 3] = Default::default();
            for m in ROWS.into_iter().rev() {
                let part = |name, width| rig.buf(name).slice(0, m * width);
                let (x, out, sums) = (part("x", k), part("out", n), part("sums", n));
                let name = |what: &str| format!("{what}: {m} rows of [{n}, {k}] {}", e.name());
                rig.dev.matmul_fp8(x, of, None, None, out);
                let plain = rig.get("out")[..m * n].to_vec();
                check_close(&plain, &want[..m * n], &size, tolerance(e), &name("plain"));
                rig.dev.matmul_fp8(x, of, Some(rig.buf("bias")), None, out);
                let biased = rig.get("out")[..m * n].to_vec();
                let with_bias: Vec<f64> =
                    want[..m * n].iter().zip(bias.iter().cycle()).map(|(x, b)| x + f64::from(*b)).collect();
                let of_both: Vec<f64> =
                    size.iter().zip(bias.iter().cycle()).map(|(x, b)| x + f64::from(b.abs())).collect();
                check_close(&biased, &with_bias, &of_both, tolerance(e), &name("bias"));
                rig.dev.write_f32(sums, 0, &vec![1.0; m * n]);
                rig.dev.matmul_fp8(x, of, None, Some(sums), sums);
                let added = rig.get("sums")[..m * n].to_vec();
                let one_more: Vec<f64> = want[..m * n].iter().map(|x| x + 1.0).collect();
                let of_all: Vec<f64> = size.iter().map(|x| x + 1.0).collect();
                check_close(&added, &one_more, &of_all, tolerance(F32), &name("sums"));
                for (seen, got) in seen.iter_mut().zip([plain, biased, added]) {
                    let got = bits(&got);
                    assert!(
                        seen.is_empty() || seen[..got.len()] == got,
                        "{}",
                        name("the same bits as of more rows")
                    );
                    *seen = got;
                }
            }
            rig.check_guards();
        }
    }
}

pub fn gradients_pass_through_the_rounding<D: Machine>(open: Open<D>) {
    for (shape @ (n, k), e) in
        SHAPES.into_iter().flat_map(|shape| dtypes::<D>().iter().map(move |e| (shape, *e)))
    {
        for mut rig in open(&buffers::<D>(shape, e)).into_iter().filter(multiplies) {
            let (dy, w) = (uneven(6, MOST * n, n, e), normal(7, n * k, 0.05, e));
            rig.dev.write_f32(rig.buf("x"), 0, &dy);
            rig.set_matrix("w", n, k, e, &w);
            let of = parts(&rig, shape, e);
            rig.dev.round_fp8(rig.matrix("w", n, k, e), of.w);
            let (want, size) = products(&rounded_rows(&dy, n), &rounded_weights(&w, n, k), shape, true);
            for m in [201, 130, 5] {
                rig.dev.matmul_fp8_dx(rig.buf("x").slice(0, m * n), of, rig.buf("out").slice(0, m * k));
                let name = format!("{m} rows of [{n}, {k}] {}", e.name());
                check_close(&rig.get("out")[..m * k], &want[..m * k], &size, tolerance(e), &name);
            }
            rig.check_guards();
        }
    }
}

pub fn a_block_that_is_not_finite_is_not_a_number<D: Machine>(open: Open<D>) {
    let shape @ (n, k) = (32, 256);
    for e in dtypes::<D>().iter().copied() {
        for rig in open(&buffers::<D>(shape, e)).into_iter().filter(multiplies) {
            let mut x = normal(8, 2 * k, 1.0, e);
            x[k + 130] = f32::INFINITY;
            rig.dev.write_f32(rig.buf("x"), 0, &x);
            rig.set_matrix("w", n, k, e, &vec![0.0; n * k]);
            let of = parts(&rig, shape, e);
            rig.dev.round_fp8(rig.matrix("w", n, k, e), of.w);
            rig.dev.matmul_fp8(rig.buf("x").slice(0, 2 * k), of, None, None, rig.buf("out").slice(0, 2 * n));
            let got = &rig.get("out")[..2 * n];
            assert!(got[..n].iter().all(|x| *x == 0.0), "zeros have a scale");
            assert!(got[n..].iter().all(|x| x.is_nan()), "the row with the infinite number");
        }
    }
}

/// Adapters add to the rounded product what they add to any: in f32, rounded once more.
pub fn adapters_are_added_to_rounded_products<D: Machine>(open: Open<D>) {
    const ROWS: usize = 70;
    for (shape @ (n, k), rank) in [((160, 336), 8), ((48, 144), 16)] {
        for e in dtypes::<D>().iter().copied() {
            let elements = |n: usize, k: usize| matrix_elements(D::KIND, n as u64, k as u64, e) as usize;
            let mut sizes = buffers::<D>(shape, e);
            let of_adapter = [
                ("a", e, elements(2 * rank, k)),
                ("b0", e, elements(32, rank)),
                ("b1", e, elements(16, rank)),
                ("u", e, ROWS * 2 * rank),
                ("du", e, ROWS * 2 * rank),
                ("plain", e, ROWS * n.max(k)),
            ];
            sizes.extend(of_adapter);
            for rig in open(&sizes).into_iter().filter(multiplies) {
                rig.dev.write_f32(rig.buf("x"), 0, &uneven(3, ROWS * n.max(k), k, e));
                rig.set_matrix("w", n, k, e, &normal(4, n * k, 0.05, e));
                rig.set_matrix("a", 2 * rank, k, e, &normal(5, 2 * rank * k, 0.05, e));
                rig.set_matrix("b0", 32, rank, e, &normal(6, 32 * rank, 0.1, e));
                rig.set_matrix("b1", 16, rank, e, &normal(7, 16 * rank, 0.1, e));
                rig.set("du", &normal(8, ROWS * 2 * rank, 0.1, e));
                let of = parts(&rig, shape, e);
                let w = rig.matrix("w", n, k, e);
                rig.dev.round_fp8(w, of.w);
                let block = |name, first, n| AdapterBlock { b: rig.matrix(name, n, rank, e), first };
                let blocks = [Some(block("b0", 0, 32)), Some(block("b1", 32, 16))];
                let blocks = std::array::from_fn(|i| blocks.get(i).copied().flatten());
                let adapter = Adapter { a: rig.matrix("a", 2 * rank, k, e), blocks, scale: 2.0 };
                let adapted = Adapted { w, codes: None, fp8: Some(of), bias: None, adapter };
                let part = |name, width| rig.buf(name).slice(0, ROWS * width);
                let (x, dy, u, du) = (part("x", k), part("x", n), rig.buf("u"), rig.buf("du"));
                rig.dev.matmul_fp8(x, of, None, None, part("plain", n));
                rig.dev.adapted(x, adapted, None, u, part("out", n));
                let (plain, got, u) = (rig.get("plain"), rig.get("out"), rig.get("u"));
                let [b0, b1] = [("b0", 32), ("b1", 16)].map(|(name, n)| rig.get_matrix(name, n, rank, e).0);
                for (i, (got, plain)) in got[..ROWS * n].iter().zip(&plain).enumerate() {
                    let (row, col) = (i / n, i % n);
                    let (b, col, at) = if col < 32 { (&b0, col, 0) } else { (&b1, col - 32, rank) };
                    let term = |j: usize| match b.get(col * rank + j) {
                        Some(b) => f64::from(u[row * 2 * rank + at + j]) * f64::from(*b),
                        None => 0.0,
                    };
                    let want = f64::from(*plain) + (0..rank).map(term).sum::<f64>();
                    let off = (f64::from(*got) - want).abs();
                    assert!(
                        off <= 1e-4 + want.abs() / if e == Bf16 { 250.0 } else { 1e5 },
                        "{i}: {got} {want}"
                    );
                }
                rig.dev.matmul_fp8_dx(dy, of, part("plain", k));
                rig.dev.adapted_dx(dy, adapted, du, part("out", k));
                let (plain, got, du) = (rig.get("plain"), rig.get("out"), rig.get("du"));
                let a = rig.get_matrix("a", 2 * rank, k, e).0;
                for (i, (got, plain)) in got[..ROWS * k].iter().zip(&plain).enumerate() {
                    let (row, col) = (i / k, i % k);
                    let term = |j: usize| f64::from(du[row * 2 * rank + j]) * f64::from(a[j * k + col]);
                    let want = f64::from(*plain) + (0..2 * rank).map(term).sum::<f64>();
                    let off = (f64::from(*got) - want).abs();
                    assert!(
                        off <= 1e-4 + want.abs() / if e == Bf16 { 250.0 } else { 1e5 },
                        "{i}: {got} {want}"
                    );
                }
            }
        }
    }
}
