//! Norms, SwiGLU, embedding rows, casts and sums over rows, against f64 and the CPU.

use crate::rig::{CpuBench, GpuBench, bits, check_norm, cpu_matrix_len, normal, round};
use plimsoll_base::DType;
use plimsoll_base::DType::{Bf16, F32, U32};
use plimsoll_cuda::CudaOptions;
use plimsoll_device::{Device, NormGrads};

const BOTH: [DType; 2] = [F32, Bf16];
/// Rows shared by a warp, by blocks of 256 and 512 threads, and rows that are no groups of four or too wide.
const WIDTHS: [usize; 9] = [4, 64, 576, 896, 1536, 3584, 8192, 33, 16_388];
const EPS: f32 = 1e-5;

/// A relative error (2-norms) that one rounding to the dtype explains, and some of f32.
fn tolerance(dtype: DType) -> f64 {
    if dtype == Bf16 { 3e-3 } else { 1e-6 }
}

fn f64s(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x.into()).collect()
}

fn reciprocal_rms(x: &[f32]) -> f64 {
    1.0 / (x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64 + f64::from(EPS)).sqrt()
}

#[test]
fn rms_norm_is_close_and_rows_are_their_own() {
    for e in BOTH {
        for h in WIDTHS {
            // Enough rows for four to share a block.
            let rows = if h <= 64 { 1030 } else { 37 };
            let sizes = [("x", F32, rows * h), ("w", e, h), ("out", e, rows * h), ("again", e, rows * h)];
            let Some(mut gpu) = GpuBench::new(&sizes) else { return };
            let (x, w) = (normal(1, rows * h, 1.0, F32), normal(2, h, 1.0, e));
            gpu.set("x", &x);
            gpu.set("w", &w);
            gpu.dev.rms_norm(gpu.buf("x"), gpu.buf("w"), EPS, gpu.buf("out"));
            let out = gpu.get("out");
            let mut want = vec![];
            for x in x.chunks(h) {
                let r = reciprocal_rms(x);
                want.extend(x.iter().zip(&w).map(|(&x, &w)| f64::from(x) * r * f64::from(w)));
            }
            check_norm(&format!("{e:?} rows of {h}"), &out, &want, tolerance(e));
            for (first, len) in [(0, 1), (1, 2), (3, rows - 3)] {
                let part = |name| gpu.buf(name).slice(first * h, len * h);
                gpu.dev.rms_norm(part("x"), gpu.buf("w"), EPS, part("again"));
            }
            assert_eq!(bits(&gpu.get("again")), bits(&out), "{e:?} rows of {h} in cuts");
            gpu.check_guards();
        }
    }
}

#[test]
fn perturbed_norms_have_other_bits_somewhere() {
    let (rows, h) = (64, 576);
    let Some(gpu) = GpuBench::new(&[("x", F32, rows * h), ("w", F32, h), ("out", F32, rows * h)]) else {
        return;
    };
    gpu.set("x", &normal(1, rows * h, 1.0, F32));
    gpu.set("w", &vec![1.0; h]);
    let run = |on| {
        gpu.dev.perturb_norms(on);
        gpu.dev.rms_norm(gpu.buf("x"), gpu.buf("w"), EPS, gpu.buf("out"));
        gpu.get("out")
    };
    let (plain, perturbed) = (run(false), run(true));
    assert_ne!(bits(&plain), bits(&perturbed));
    check_norm("perturbed", &perturbed, &f64s(&plain), 1e-6);
}

#[test]
fn rms_norm_backward_is_close_and_repeats() {
    for (e, g) in [(F32, F32), (Bf16, F32), (Bf16, Bf16)] {
        for h in WIDTHS {
            // More rows than chunks, where that is little work.
            let rows = if h <= 64 { 2600 } else { 37 };
            let sizes = [
                ("x", F32, rows * h),
                ("w", e, h),
                ("dy", g, rows * h),
                ("dx", F32, rows * h),
                ("rounded", e, rows * h),
                ("dw", e, h),
                ("rstd", F32, rows),
            ];
            let Some(mut gpu) = GpuBench::new(&sizes) else { return };
            let (x, dy) = (normal(1, rows * h, 1.0, F32), normal(3, rows * h, 1.0, g));
            let (w, dx, dw) = (normal(2, h, 1.0, e), normal(4, rows * h, 1.0, F32), normal(5, h, 1.0, e));
            let run = |gpu: &mut GpuBench, add: bool, rounded: bool| {
                for (name, x) in [("x", &x), ("w", &w), ("dy", &dy), ("dx", &dx), ("dw", &dw)] {
                    gpu.set(name, x);
                }
                let b = |name: &str| gpu.buf(name);
                let rounded = rounded.then(|| b("rounded"));
                let to = NormGrads { dx: b("dx"), rounded, dw: b("dw"), add, rstd: b("rstd") };
                gpu.dev.rms_norm_backward(b("x"), b("w"), EPS, b("dy"), to);
                ["dx", "dw", "rstd"].map(|name| gpu.get(name))
            };
            let what = format!("{e:?} {g:?} rows of {h}");
            let (first, second, written) =
                (run(&mut gpu, true, false), run(&mut gpu, true, true), run(&mut gpu, false, true));
            assert_eq!(first.clone().map(|x| bits(&x)), second.map(|x| bits(&x)), "{what}: two runs");
            assert_eq!(bits(&first[0]), bits(&written[0]), "{what}: dx whether dw is added to");
            let want: Vec<f32> = first[0].iter().map(|&x| round(x, e)).collect();
            assert_eq!(bits(&gpu.get("rounded")), bits(&want), "{what}: dx rounded");
            let (mut want_dx, mut want_dw) = (f64s(&dx), vec![0.0; h]);
            for row in 0..rows {
                let at = row * h..(row + 1) * h;
                let (x, dy) = (&x[at.clone()], f64s(&dy[at]));
                let r = reciprocal_rms(x);
                let xhat: Vec<f64> = x.iter().map(|&x| f64::from(x) * r).collect();
                let mean = (0..h).map(|i| dy[i] * f64::from(w[i]) * xhat[i]).sum::<f64>() / h as f64;
                for i in 0..h {
                    want_dx[row * h + i] += r * (f64::from(w[i]) * dy[i] - xhat[i] * mean);
                    want_dw[i] += dy[i] * xhat[i];
                }
            }
            check_norm(&what, &first[0], &want_dx, 1e-6);
            check_norm(&what, &written[1], &want_dw, tolerance(e));
            let sums: Vec<f64> = want_dw.iter().zip(&dw).map(|(sum, &dw)| sum + f64::from(dw)).collect();
            check_norm(&what, &first[1], &sums, tolerance(e));
            gpu.check_guards();
        }
    }
}

#[test]
fn swiglu_and_its_gradient_are_close_also_in_place() {
    for e in BOTH {
        for f in [1000, 33] {
            let rows = 9;
            let sizes =
                [("x", e, rows * 2 * f), ("out", e, rows * f), ("d", e, rows * f), ("dx", e, rows * 2 * f)];
            let Some(mut gpu) = GpuBench::new(&sizes) else { return };
            let (x, d) = (normal(4, rows * 2 * f, 6.0, e), normal(5, rows * f, 1.0, e));
            gpu.set("x", &x);
            gpu.set("d", &d);
            gpu.dev.swiglu(gpu.buf("x"), f, gpu.buf("out"));
            gpu.dev.swiglu_backward(gpu.buf("x"), f, gpu.buf("d"), gpu.buf("dx"), None);
            let (mut out, mut dx) = (vec![], vec![0.0; rows * 2 * f]);
            for row in 0..rows {
                for i in 0..f {
                    let (g, u) = (f64::from(x[row * 2 * f + i]), f64::from(x[row * 2 * f + f + i]));
                    let (sig, d) = (1.0 / (1.0 + (-g).exp()), f64::from(d[row * f + i]));
                    out.push(g * sig * u);
                    dx[row * 2 * f + i] = d * u * sig * (1.0 + g * (1.0 - sig));
                    dx[row * 2 * f + f + i] = d * g * sig;
                }
            }
            check_norm("swiglu", &gpu.get("out"), &out, tolerance(e));
            let apart = gpu.get("dx");
            check_norm("swiglu_backward", &apart, &dx, tolerance(e));
            gpu.dev.swiglu_backward(gpu.buf("x"), f, gpu.buf("d"), gpu.buf("x"), Some(gpu.buf("d")));
            assert_eq!(bits(&gpu.get("x")), bits(&apart), "{e:?} {f}: in place");
            assert_eq!(bits(&gpu.get("d")), bits(&gpu.get("out")), "{e:?} {f}: the product again");
            gpu.check_guards();
        }
    }
}

#[test]
fn swiglu_of_extreme_gates_is_finite() {
    for e in BOTH {
        let gates = [-1e30, -200.0, -104.0, -88.0, 0.0, -0.0, 88.0, 200.0, 1e30].map(|g| round(g, e));
        let Some(gpu) = GpuBench::new(&[("x", e, 18), ("out", e, 9)]) else { return };
        gpu.dev.write_f32(gpu.buf("x"), 0, &gates);
        gpu.dev.write_f32(gpu.buf("x"), 9, &[1.0; 9]);
        gpu.dev.swiglu(gpu.buf("x"), 9, gpu.buf("out"));
        for (x, g) in gpu.get("out").into_iter().zip(gates) {
            let want = (f64::from(g) / (1.0 + (-f64::from(g)).exp())) as f32;
            assert!((x - want).abs() <= 4e-3 * want.abs() + 1e-36, "{e:?}: silu({g}) = {x}, not {want}");
        }
    }
}

#[test]
fn rows_of_tokens_are_looked_up_and_their_gradients_added_in_order() {
    // One token that stands everywhere, and tokens that stand once; widths with and without groups of four.
    let (vocab, rows) = (50, 700);
    let ids: Vec<u32> = (0..rows as u32).map(|i| if i % 3 == 0 { 7 } else { i * i % 49 }).collect();
    for e in BOTH {
        for h in [576, 33] {
            let sizes = |table: usize| {
                [
                    ("table", e, table),
                    ("grad", e, table),
                    ("ids", U32, rows),
                    ("out", F32, rows * h),
                    ("d", F32, rows * h),
                ]
            };
            let Some(mut gpu) = GpuBench::new(&sizes(vocab * h)) else { return };
            let cpu = CpuBench::new(&sizes(cpu_matrix_len(vocab, h, e)));
            let (table, grad) = (normal(1, vocab * h, 1.0, e), normal(2, vocab * h, 1.0, e));
            let d = normal(3, rows * h, 1.0, F32);
            for (name, x) in [("table", &table), ("grad", &grad), ("d", &d)] {
                gpu.set(name, x);
            }
            gpu.set_u32("ids", &ids);
            gpu.dev.embed(gpu.matrix("table", vocab, h), gpu.buf("ids"), gpu.buf("out"));
            let want: Vec<f32> = ids.iter().flat_map(|&id| &table[id as usize * h..][..h]).copied().collect();
            assert_eq!(gpu.get("out"), want, "{e:?} {h}");
            cpu.set_matrix("grad", vocab, h, e, &grad);
            cpu.set("d", &d);
            cpu.set_u32("ids", &ids);
            cpu.dev.embed_backward(cpu.buf("d"), cpu.buf("ids"), cpu.matrix("grad", vocab, h, e));
            gpu.dev.embed_backward(gpu.buf("d"), gpu.buf("ids"), gpu.matrix("grad", vocab, h));
            let mut twin = vec![0.0; vocab * h];
            cpu.dev.read_rows(cpu.matrix("grad", vocab, h, e), 0, &mut twin);
            assert_eq!(bits(&gpu.get("grad")), bits(&twin), "{e:?} {h}: the CPU's order");
            gpu.check_guards();
        }
    }
}

#[test]
fn rows_are_gathered_and_added_back() {
    for h in [576, 33] {
        let (rows, picked) = (40, 130);
        let sizes =
            [("x", F32, rows * h), ("rows", U32, picked), ("out", F32, picked * h), ("src", F32, picked * h)];
        let Some(mut gpu) = GpuBench::new(&sizes) else { return };
        let cpu = CpuBench::new(&sizes);
        let (x, src) = (normal(1, rows * h, 1.0, F32), normal(2, picked * h, 1.0, F32));
        let which: Vec<u32> = (0..picked as u32).map(|i| i * 7 % rows as u32).collect();
        for (name, x) in [("x", &x), ("src", &src)] {
            gpu.set(name, x);
            cpu.set(name, x);
        }
        gpu.set_u32("rows", &which);
        cpu.set_u32("rows", &which);
        gpu.dev.gather_rows(gpu.buf("x"), gpu.buf("rows"), gpu.buf("out"));
        cpu.dev.gather_rows(cpu.buf("x"), cpu.buf("rows"), cpu.buf("out"));
        assert_eq!(gpu.get("out"), cpu.get("out"));
        gpu.dev.scatter_add_rows(gpu.buf("src"), gpu.buf("rows"), gpu.buf("x"));
        cpu.dev.scatter_add_rows(cpu.buf("src"), cpu.buf("rows"), cpu.buf("x"));
        assert_eq!(bits(&gpu.get("x")), bits(&cpu.get("x")), "rows of {h}");
        gpu.check_guards();
    }
}

#[test]
fn a_bias_gets_the_sum_of_its_column() {
    for e in BOTH {
        for (rows, n) in [(1, 960), (700, 960), (40_000, 8), (37, 33)] {
            let Some(mut gpu) = GpuBench::new(&[("dy", e, rows * n), ("grad", e, n)]) else { return };
            let (dy, grad) = (normal(1, rows * n, 1.0, e), normal(2, n, 1.0, e));
            let mut results = vec![];
            for _ in 0..2 {
                gpu.set("dy", &dy);
                gpu.set("grad", &grad);
                gpu.dev.bias_backward(gpu.buf("dy"), gpu.buf("grad"), true);
                results.push(gpu.get("grad"));
            }
            assert_eq!(bits(&results[0]), bits(&results[1]));
            gpu.dev.bias_backward(gpu.buf("dy"), gpu.buf("grad"), false);
            let written = gpu.get("grad");
            gpu.set("grad", &vec![0.0; n]);
            gpu.dev.bias_backward(gpu.buf("dy"), gpu.buf("grad"), true);
            assert!(gpu.get("grad") == written, "{e:?} [{rows}, {n}]: written or added to zeros");
            let mut want = f64s(&grad);
            for (i, &d) in dy.iter().enumerate() {
                want[i % n] += f64::from(d);
            }
            check_norm(&format!("{e:?} [{rows}, {n}]"), &results[0], &want, tolerance(e).max(3e-6));
            gpu.check_guards();
        }
    }
}

#[test]
fn casts_round_to_nearest_even_also_where_nothing_is_aligned() {
    for e in BOTH {
        let n = 5003;
        let Some(mut gpu) = GpuBench::new(&[("x", F32, n), ("out", e, n)]) else { return };
        let mut x = normal(1, n, 1e3, F32);
        x[..6].copy_from_slice(&[0.0, -0.0, 1e-40, f32::INFINITY, 3.4e38, 1.0 + 1.0 / 256.0]);
        gpu.set("x", &x);
        let want: Vec<f32> = x.iter().map(|&x| round(x, e)).collect();
        for first in [0, 3] {
            gpu.dev.cast(gpu.buf("x").slice(first, n - first), gpu.buf("out").slice(first, n - first));
            assert_eq!(bits(&gpu.get("out")[first..]), bits(&want[first..]), "{e:?} from {first}");
        }
        gpu.check_guards();
    }
}

#[test]
fn a_token_beyond_the_vocabulary_is_named_by_a_checked_build() {
    let sizes = [("table", Bf16, 50 * 64), ("ids", U32, 3), ("out", F32, 3 * 64)];
    let Some(gpu) = GpuBench::with(&sizes, CudaOptions { checked: true, profile: false }) else { return };
    gpu.set_u32("ids", &[1, 50, 2]);
    gpu.dev.embed(gpu.matrix("table", 50, 64), gpu.buf("ids"), gpu.buf("out"));
    let error = gpu.dev.check().unwrap_err();
    assert_eq!(error.slug, "cuda-bad-index");
    assert!(error.message.contains("rows/gather_bf16") && error.message.contains("token id 50"), "{error}");
}
