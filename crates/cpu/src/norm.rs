//! RMS norm and its gradients, and gradients that are sums over rows: of norm weights and biases.
//!
//! Sums along a row have a tree that depends on the row's length. Sums over rows are chains in ascending row order,
//! in f32, added to the gradient once; columns are split over threads, so bits do not depend on them.

use super::CpuDevice;
use super::elementwise::{self, split};
use super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use plimsoll_device::{Norm, NormGrads};
use plimsoll_memory::Buf;
use std::sync::atomic::Ordering;

pub(super) fn rms_norm(dev: &CpuDevice, x: Buf<'_>, norm: Norm<'_>, out: Buf<'_>) {
    let Norm { w, eps, offset } = norm;
    let h = w.len();
    assert_eq!(x.len(), out.len(), "x and out of a norm");
    assert_eq!(x.len() % h, 0, "rows of {h}");
    by_dtype!(w, W => by_dtype!(out, T => {
        let (x, w, out) = (dev.read::<f32>(x), dev.read::<W>(w), dev.write::<T>(out));
        split(dev, x.len() / h, h, &|part| {
            for m in part {
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let out = unsafe { out.range(m * h, h) };
                if dev.perturbed.load(Ordering::Relaxed) {
                    perturbed_row::<W, T>(&x[m * h..][..h], w, eps, offset, out)
                } else {
                    rms_norm_row::<W, T>(dev.isa(), &x[m * h..][..h], w, (eps, offset), out)
                }
            }
        });
    }));
}

/// Normalises a row with one chain of additions: a different order, and so now and then different bits.
fn perturbed_row<W: Lanes, T: Lanes>(x: &[f32], w: &[W], eps: f32, offset: f32, out: &mut [T]) {
    let r = 1.0 / (x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32 + eps).sqrt();
    for ((x, w), out) in x.iter().zip(w).zip(out) {
        *out = T::from_f32(x * r * (w.to_f32() + offset));
    }
}

/// Returns the sum of a b: four vectors of accumulators, added as (0 + 1) + (2 + 3), then the tree of lanes.
#[inline(always)]
pub(super) fn dot<S: Simd, A: Lanes, B: Lanes>(s: S, a: &[A], b: &[B]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let ((a4, a_few), (b4, b_few)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    for (a, b) in a4.iter().zip(b4) {
        for i in 0..4 {
            sums[i] = s.fma(A::load(s, &a[i]), B::load(s, &b[i]), sums[i]);
        }
    }
    for (i, (a, b)) in a_few.iter().zip(b_few).enumerate() {
        sums[i] = s.fma(A::load(s, a), B::load(s, b), sums[i]);
    }
    if !a_rest.is_empty() {
        sums[3] = s.fma(A::load_part(s, a_rest), B::load_part(s, b_rest), sums[3]);
    }
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

/// Returns 1 / sqrt(mean(x^2) + eps).
#[inline(always)]
pub(super) fn reciprocal_rms<S: Simd, T: Lanes>(s: S, x: &[T], eps: f32) -> f32 {
    1.0 / (dot(s, x, x) / x.len() as f32 + eps).sqrt()
}

simd_fn! {
    fn rms_norm_row[W: Lanes, T: Lanes](s: S, x: &[f32], w: &[W], of: (f32, f32), out: &mut [T]) {
        let (eps, offset) = (of.0, s.splat(of.1));
        let r = s.splat(reciprocal_rms(s, x, eps));
        let ((x, x_rest), (w, w_rest)) = (x.as_chunks::<LANES>(), w.as_chunks::<LANES>());
        let (out, out_rest) = out.as_chunks_mut::<LANES>();
        for ((x, w), out) in x.iter().zip(w).zip(out) {
            T::store(s, out, s.mul(s.mul(f32::load(s, x), r), s.add(W::load(s, w), offset)));
        }
        if !x_rest.is_empty() {
            let w = s.add(W::load_part(s, w_rest), offset);
            T::store_part(s, out_rest, s.mul(s.mul(f32::load_part(s, x_rest), r), w));
        }
    }
}

/// Writes out = resid + norm(x).
pub(super) fn rms_norm_add(dev: &CpuDevice, x: Buf<'_>, norm: Norm<'_>, resid: Buf<'_>, out: Buf<'_>) {
    let Norm { w, eps, offset } = norm;
    let h = w.len();
    assert_eq!([x.len(), resid.len()], [out.len(); 2], "x, resid and out of a norm");
    assert_eq!(x.len() % h, 0, "rows of {h}");
    if out != resid {
        elementwise::cast(dev, resid, out);
    }
    by_dtype!(w, W => {
        let (x, w, out) = (dev.read::<f32>(x), dev.read::<W>(w), dev.write::<f32>(out));
        split(dev, x.len() / h, h, &|part| {
            for m in part {
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let out = unsafe { out.range(m * h, h) };
                add_norm_row::<W>(dev.isa(), &x[m * h..][..h], w, (eps, offset), out);
            }
        });
    });
}

simd_fn! {
    fn add_norm_row[W: Lanes](s: S, x: &[f32], w: &[W], of: (f32, f32), out: &mut [f32]) {
        let (eps, offset) = (of.0, s.splat(of.1));
        let r = s.splat(reciprocal_rms(s, x, eps));
        for at in (0..x.len()).step_by(LANES) {
            let end = (at + LANES).min(x.len());
            let w = s.add(load_any(s, &w[at..end]), offset);
            let sum = s.add(load_any(s, &out[at..end]), s.mul(s.mul(load_any(s, &x[at..end]), r), w));
            store_any(s, &mut out[at..end], sum);
        }
    }
}

/// Computes dx, added to and rounded, and the weight's gradient, if any.
pub(super) fn rms_norm_backward(dev: &CpuDevice, x: Buf<'_>, norm: Norm<'_>, dy: Buf<'_>, to: NormGrads<'_>) {
    let Norm { w, eps, offset } = norm;
    let NormGrads { dx, rounded, dw, add, rstd } = to;
    let h = w.len();
    let rows = x.len() / h;
    assert_eq!([x.len(), dy.len(), dx.len()], [rows * h; 3], "x, dy, dx of rows of {h}");
    assert_eq!((dw.map_or(h, Buf::len), rstd.len()), (h, rows), "dw and rstd of [{rows}, {h}]");
    let x = dev.read::<f32>(x);
    by_dtype!(w, W => by_dtype!(dy, G => {
        let dy = dev.read::<G>(dy);
        let (w, dx, rstd) = (dev.read::<W>(w), dev.write::<f32>(dx), dev.write::<f32>(rstd));
        split(dev, rows, 2 * h, &|part| {
            for m in part {
                let (x, dy) = (&x[m * h..][..h], &dy[m * h..][..h]);
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let (dx, rstd) = unsafe { (dx.range(m * h, h), rstd.range(m, 1)) };
                rstd[0] = norm_backward_row::<W, G>(dev.isa(), x, w, (eps, offset), dy, dx);
            }
        });
    }));
    if let Some(rounded) = rounded {
        elementwise::cast(dev, dx, rounded);
    }
    let Some(dw) = dw else { return };
    elementwise::begin_sum(dev, dw, add);
    let rstd = dev.read::<f32>(rstd);
    by_dtype!(dw, D => by_dtype!(dy, G => {
        let (dy, dw) = (dev.read::<G>(dy), dev.write::<D>(dw));
        split(dev, h.div_ceil(LANES), rows * LANES, &|part| {
            let (start, end) = (part.start * LANES, (part.end * LANES).min(h));
            // SAFETY: ranges of columns are disjoint, and each is one task's.
            let dw = unsafe { dw.range(start, end - start) };
            scaled_column_sums::<G, D>(dev.isa(), dy, Some((x, rstd)), h, start, dw);
        });
    }));
}

simd_fn! {
    /// Adds r (w dy - xhat mean(w dy xhat)) to dx, xhat = x r. Returns r.
    fn norm_backward_row[W: Lanes, G: Lanes](
        s: S, x: &[f32], w: &[W], of: (f32, f32), dy: &[G], dx: &mut [f32],
    ) -> f32 {
        let (eps, offset) = (of.0, s.splat(of.1));
        let h = x.len();
        let r = reciprocal_rms(s, x, eps);
        let mut sums = [s.splat(0.0); 4];
        for (i, at) in (0..h).step_by(LANES).enumerate() {
            let end = (at + LANES).min(h);
            let wdy = s.mul(s.add(load_any(s, &w[at..end]), offset), load_any(s, &dy[at..end]));
            sums[i % 4] = s.fma(wdy, load_any(s, &x[at..end]), sums[i % 4]);
        }
        let dot = s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
        let (scale, c) = (s.splat(r), s.splat(-dot * r * r / h as f32));
        for at in (0..h).step_by(LANES) {
            let end = (at + LANES).min(h);
            let wdy = s.mul(s.add(load_any(s, &w[at..end]), offset), load_any(s, &dy[at..end]));
            let inner = s.fma(load_any(s, &x[at..end]), c, wdy);
            let sum = s.fma(inner, scale, load_any(s, &dx[at..end]));
            store_any(s, &mut dx[at..end], sum);
        }
        r
    }
}

/// Loads up to 16 elements; the lanes beyond are 0.
#[inline(always)]
pub(super) fn load_any<S: Simd, T: Lanes>(s: S, x: &[T]) -> S::F {
    match x.first_chunk::<LANES>() {
        Some(x) => T::load(s, x),
        None => T::load_part(s, x),
    }
}

/// Stores up to 16 elements.
#[inline(always)]
pub(super) fn store_any<S: Simd, T: Lanes>(s: S, to: &mut [T], x: S::F) {
    match to.first_chunk_mut::<LANES>() {
        Some(to) => T::store(s, to, x),
        None => T::store_part(s, to, x),
    }
}

pub(super) fn bias_backward(dev: &CpuDevice, dy: Buf<'_>, grad: Buf<'_>, add: bool) {
    elementwise::begin_sum(dev, grad, add);
    let n = grad.len();
    assert_eq!(dy.len() % n, 0, "rows of {n}");
    by_dtype!(dy, T => by_dtype!(grad, D => {
        let (dy, grad) = (dev.read::<T>(dy), dev.write::<D>(grad));
        split(dev, n.div_ceil(LANES), dy.len() / n * LANES, &|part| {
            let (start, end) = (part.start * LANES, (part.end * LANES).min(n));
            // SAFETY: ranges of columns are disjoint, and each is one task's.
            let grad = unsafe { grad.range(start, end - start) };
            scaled_column_sums::<T, D>(dev.isa(), dy, None, n, start, grad);
        });
    }));
}

simd_fn! {
    /// Adds to grad[c] the sum over rows of dy[row][start + c], or of dy x rstd[row].
    fn scaled_column_sums[T: Lanes, D: Lanes](
        s: S, dy: &[T], x: Option<(&[f32], &[f32])>, width: usize, start: usize, grad: &mut [D],
    ) {
        // Four vectors at a time: 256 bytes of a row, so that each line of dy is used whole.
        for (i, grad) in grad.chunks_mut(4 * LANES).enumerate() {
            let first = start + i * 4 * LANES;
            let mut sums = [s.splat(0.0); 4];
            for row in 0..dy.len() / width {
                let at = row * width + first;
                for (j, sum) in sums.iter_mut().enumerate().take(grad.len().div_ceil(LANES)) {
                    let here = at + j * LANES..at + ((j + 1) * LANES).min(grad.len());
                    let d = load_any(s, &dy[here.clone()]);
                    *sum = match x {
                        Some((x, rstd)) => s.fma(d, s.mul(load_any(s, &x[here]), s.splat(rstd[row])), *sum),
                        None => s.add(*sum, d),
                    };
                }
            }
            for (grad, sum) in grad.chunks_mut(LANES).zip(sums) {
                let total = s.add(load_any(s, grad), sum);
                store_any(s, grad, total);
            }
        }
    }
}
