//! Norms, SwiGLU, embedding rows, casts and sums over rows.

use crate::both::{Rig, close, get, numbers, paths, stored};
use plimsoll_base::DType;
use plimsoll_device::{Device, Matrix, MatrixLayout, Norm, NormGrads};

/// Half a unit in the last place of numbers up to `size`, on top of f32's own errors.
fn rounding(dtype: DType, size: f64) -> f64 {
    if dtype == DType::Bf16 { size / 256.0 } else { 0.0 }
}

#[test]
fn rms_norm_backward_is_the_slope_of_the_norm() {
    for isa in paths() {
        let (rows, h) = (37, 72);
        let (x, w, dy) = (numbers(1, rows * h), numbers(2, h), numbers(3, rows * h));
        let mut results = vec![];
        for threads in [1, 2] {
            let sizes =
                [("x", rows * h), ("w", h), ("dy", rows * h), ("dx", rows * h), ("dw", h), ("rstd", rows)];
            let rig = Rig::new(isa, threads, &sizes.map(|(name, n)| (name, DType::F32, n)));
            let (dev, r) = rig.bufs();
            for (name, x) in [("x", &x), ("w", &w), ("dy", &dy)] {
                dev.write_f32(r.buf(name), 0, x);
            }
            dev.write_f32(r.buf("dx"), 0, &vec![0.5; rows * h]);
            dev.write_f32(r.buf("dw"), 0, &vec![0.25; h]);
            let (dx, dw) = (r.buf("dx"), r.buf("dw"));
            let to = NormGrads { dx, rounded: None, dw: Some(dw), add: true, rstd: r.buf("rstd") };
            dev.rms_norm_backward(r.buf("x"), Norm::new(r.buf("w"), 1e-5), r.buf("dy"), to);
            results.push((get(dev, dx), get(dev, dw)));
        }
        assert_eq!(results[0], results[1], "{isa:?}: threads");
        let loss = |x: &[f64], w: &[f64], row: usize| -> f64 {
            let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / h as f64 + 1e-5).sqrt();
            (0..h).map(|i| x[i] * scale * w[i] * f64::from(dy[row * h + i])).sum()
        };
        let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| x.into()).collect() };
        let (mut dx, mut dw) = (vec![0.5; rows * h], vec![0.25; h]);
        for row in 0..rows {
            for i in 0..h {
                for (sign, step) in [(1.0, 1e-4), (-1.0, -1e-4)] {
                    let (mut a, mut b) = (wide(&x[row * h..][..h]), wide(&w));
                    a[i] += step;
                    dx[row * h + i] += sign * loss(&a, &b, row) / 2e-4;
                    a[i] -= step;
                    b[i] += step;
                    dw[i] += sign * loss(&a, &b, row) / 2e-4;
                }
            }
        }
        // Central differences in f64 are good to step^2 = 1e-8; f32 to some 1e-6 in sums of 72 or 37 terms.
        close("dx", &results[0].0, &dx, 5e-6);
        close("dw", &results[0].1, &dw, 5e-6);
    }
}

#[test]
fn matrices_keep_their_rows_and_zero_padding() {
    for isa in paths() {
        for (e, layout) in [
            (DType::F32, MatrixLayout::Single),
            (DType::Bf16, MatrixLayout::Pairs),
            (DType::F32, MatrixLayout::Pairs),
        ] {
            for (n, k) in [(16usize, 8), (50, 33), (5, 576)] {
                let elements =
                    n.div_ceil(16) * 16 * if layout == MatrixLayout::Pairs { k + k % 2 } else { k };
                let x = stored(e, &numbers(6, n * k));
                let ids: Vec<u32> = (0..n as u32 * 3).map(|i| (i * 5 + 2) % n as u32).collect();
                let rows = ids.len();
                let rig = Rig::new(
                    isa,
                    2,
                    &[
                        ("m", e, elements),
                        ("ids", DType::U32, rows),
                        ("out", DType::F32, rows * k),
                        ("grad", e, elements),
                    ],
                );
                let (dev, r) = rig.bufs();
                dev.write_f32(r.buf("m"), 0, &vec![9.0; elements]);
                dev.write_u32(r.buf("ids"), 0, &ids);
                let m = Matrix::new(r.buf("m"), n, k, layout);
                dev.write_rows(m, 0, &x[..3 * k]);
                dev.write_rows(m, 3, &x[3 * k..]);
                let mut back = vec![0.0; n * k];
                dev.read_rows(m, 0, &mut back);
                assert_eq!(back, x);
                let mut bytes = vec![0; (n - 1) * k * e.bytes() as usize];
                dev.read_stored(m, 1, &mut bytes);
                assert_eq!(of_stored(e, &bytes), x[k..]);
                let raw = get(dev, r.buf("m"));
                assert_eq!(raw.iter().filter(|&&x| x == 9.0).count(), 0, "padding is written");
                assert_eq!(raw[layout.index(k, n - 1, k - 1)], x[n * k - 1], "the documented order");
                dev.embed(m, r.buf("ids"), r.buf("out"));
                let out = get(dev, r.buf("out"));
                let mut sums = vec![0.0f64; n * k];
                for (row, &id) in ids.iter().enumerate() {
                    assert_eq!(out[row * k..][..k], x[id as usize * k..][..k], "row {row}");
                    for c in 0..k {
                        sums[id as usize * k + c] += f64::from(out[row * k + c]);
                    }
                }
                let grad = Matrix::new(r.buf("grad"), n, k, layout);
                dev.zero(r.buf("grad"));
                dev.embed_backward(r.buf("out"), r.buf("ids"), grad);
                let mut ours = vec![0.0; n * k];
                dev.read_rows(grad, 0, &mut ours);
                // Sums of up to 30 terms that reach 15: half a unit of 1e-6 each; bf16 is rounded once.
                close("embed_backward", &ours, &sums, 1e-5 + rounding(e, 8.0));
            }
        }
    }
}

/// Returns numbers of their bytes: a bf16 number is the upper half of an f32.
fn of_stored(e: DType, bytes: &[u8]) -> Vec<f32> {
    let size = e.bytes() as usize;
    let of = |bytes: &[u8]| {
        let mut whole = [0; 4];
        whole[4 - size..].copy_from_slice(bytes);
        f32::from_le_bytes(whole)
    };
    bytes.chunks_exact(size).map(of).collect()
}

#[test]
fn rows_are_gathered_scattered_and_summed_in_order() {
    for isa in paths() {
        let (rows, h) = (300, 84);
        let (x, ids) = (numbers(7, 50 * h), (0..rows as u32).map(|i| i * 7 % 50).collect::<Vec<_>>());
        let mut results = vec![];
        for threads in [1, 2] {
            let rig = Rig::new(
                isa,
                threads,
                &[
                    ("x", DType::F32, 50 * h),
                    ("rows", DType::U32, rows),
                    ("out", DType::F32, rows * h),
                    ("dy", DType::Bf16, rows * h),
                    ("bias", DType::Bf16, h),
                    ("bias32", DType::F32, h),
                ],
            );
            let (dev, r) = rig.bufs();
            dev.write_f32(r.buf("x"), 0, &x);
            dev.write_u32(r.buf("rows"), 0, &ids);
            dev.gather_rows(r.buf("x"), r.buf("rows"), r.buf("out"));
            let gathered = get(dev, r.buf("out"));
            for (i, &id) in ids.iter().enumerate() {
                assert_eq!(gathered[i * h..][..h], x[id as usize * h..][..h]);
            }
            dev.scatter_add_rows(r.buf("out"), r.buf("rows"), r.buf("x"));
            dev.cast(r.buf("out"), r.buf("dy"));
            let dy = get(dev, r.buf("dy"));
            assert_eq!(dy, stored(DType::Bf16, &gathered), "cast rounds to nearest even");
            dev.write_f32(r.buf("bias"), 0, &vec![1.0; h]);
            dev.zero(r.buf("bias32"));
            dev.bias_backward(r.buf("dy"), r.buf("bias"), true);
            dev.bias_backward(r.buf("dy"), r.buf("bias32"), true);
            let (bias, bias32) = (get(dev, r.buf("bias")), get(dev, r.buf("bias32")));
            let sums: Vec<f64> = (0..h).map(|c| (0..rows).map(|m| f64::from(dy[m * h + c])).sum()).collect();
            close("bias_backward f32", &bias32, &sums, 2e-5);
            let one_rounding: Vec<f32> =
                stored(DType::Bf16, &bias32.iter().map(|x| 1.0 + x).collect::<Vec<_>>());
            assert_eq!(bias, one_rounding, "{isa:?}: one rounding of the whole sum");
            dev.add_bias(r.buf("out"), r.buf("bias"));
            let expect: Vec<f32> = gathered.iter().zip(bias.iter().cycle()).map(|(x, b)| x + b).collect();
            assert_eq!(get(dev, r.buf("out")), expect, "{isa:?}: one addition to each element");
            results.push((get(dev, r.buf("x")), bias));
        }
        assert_eq!(results[0], results[1], "{isa:?}: threads");
        for (ours, &x) in results[0].0.iter().zip(&x) {
            assert!((ours - 7.0 * x).abs() < 1e-5, "each row was added to itself six times");
        }
    }
}
