//! Norms of rows by mean and variance, and their gradients. The tree of a sum depends only on the row's length.

use super::CpuDevice;
use super::elementwise::{begin_sum, cast, split};
use super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use super::norm::{bias_backward, load_any, store_any};
use plimsoll_device::{LayerNorm, LayerNormGrads};
use plimsoll_memory::Buf;

pub(super) fn forward(dev: &CpuDevice, x: Buf<'_>, norm: LayerNorm<'_>, out: Buf<'_>) {
    let LayerNorm { w, b, eps } = norm;
    let h = w.len();
    assert_eq!((b.len(), b.dtype()), (h, w.dtype()), "weight and bias of a norm");
    assert_eq!(x.len(), out.len(), "x and out of a norm");
    assert_eq!(x.len() % h, 0, "rows of {h}");
    by_dtype!(w, W => by_dtype!(out, T => {
        let (x, w, b, out) = (dev.read::<f32>(x), dev.read::<W>(w), dev.read::<W>(b), dev.write::<T>(out));
        split(dev, x.len() / h, h, &|part| {
            for m in part {
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let out = unsafe { out.range(m * h, h) };
                row::<W, T>(dev.isa(), &x[m * h..][..h], (w, b), eps, out);
            }
        });
    }));
}

/// Returns the sum of four vectors of accumulators.
#[inline(always)]
fn total<S: Simd>(s: S, sums: [S::F; 4]) -> f32 {
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

/// Returns the mean of a row and 1 / sqrt(variance + eps).
#[inline(always)]
fn stats<S: Simd>(s: S, x: &[f32], eps: f32) -> (f32, f32) {
    let h = x.len();
    let mut sums = [s.splat(0.0); 4];
    for (i, at) in (0..h).step_by(LANES).enumerate() {
        sums[i % 4] = s.add(load_any(s, &x[at..(at + LANES).min(h)]), sums[i % 4]);
    }
    let mean = total(s, sums) / h as f32;
    let mut sums = [s.splat(0.0); 4];
    for (i, at) in (0..h).step_by(LANES).enumerate() {
        let d = centered(s, &x[at..(at + LANES).min(h)], mean);
        sums[i % 4] = s.fma(d, d, sums[i % 4]);
    }
    (mean, 1.0 / (total(s, sums) / h as f32 + eps).sqrt())
}

/// Returns up to 16 elements minus the mean; the lanes beyond are 0.
#[inline(always)]
fn centered<S: Simd>(s: S, x: &[f32], mean: f32) -> S::F {
    s.first(x.len(), s.sub(load_any(s, x), s.splat(mean)), s.splat(0.0))
}

simd_fn! {
    fn row[W: Lanes, T: Lanes](s: S, x: &[f32], of: (&[W], &[W]), eps: f32, out: &mut [T]) {
        let ((w, b), (mean, r)) = (of, stats(s, x, eps));
        for at in (0..x.len()).step_by(LANES) {
            let here = at..(at + LANES).min(x.len());
            let x = s.mul(centered(s, &x[here.clone()], mean), s.splat(r));
            let y = s.add(s.mul(x, load_any(s, &w[here.clone()])), load_any(s, &b[here.clone()]));
            store_any(s, &mut out[here], y);
        }
    }
}

pub(super) fn backward(
    dev: &CpuDevice,
    x: Buf<'_>,
    norm: LayerNorm<'_>,
    dy: Buf<'_>,
    to: LayerNormGrads<'_>,
) {
    let LayerNorm { w, b: _, eps } = norm;
    let LayerNormGrads { dx, rounded, dw_db, add, stats } = to;
    let h = w.len();
    let rows = x.len() / h;
    assert_eq!([x.len(), dy.len(), dx.len()], [rows * h; 3], "x, dy, dx of rows of {h}");
    assert_eq!(stats.len(), 2 * rows, "means and deviations of {rows} rows");
    let x = dev.read::<f32>(x);
    by_dtype!(w, W => by_dtype!(dy, G => {
        let (w, dy, dx, stats) = (dev.read::<W>(w), dev.read::<G>(dy), dev.write::<f32>(dx), dev.write::<f32>(stats));
        split(dev, rows, 2 * h, &|part| {
            for m in part {
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let (dx, mean, r) = unsafe { (dx.range(m * h, h), stats.range(m, 1), stats.range(rows + m, 1)) };
                let (x, dy) = (&x[m * h..][..h], &dy[m * h..][..h]);
                (mean[0], r[0]) = backward_row::<W, G>(dev.isa(), x, w, eps, dy, dx);
            }
        });
    }));
    if let Some(rounded) = rounded {
        cast(dev, dx, rounded);
    }
    let Some((dw, db)) = dw_db else { return };
    assert_eq!((dw.len(), db.len()), (h, h), "gradients of weight and bias");
    bias_backward(dev, dy, db, add);
    begin_sum(dev, dw, add);
    let (means, rs) = dev.read::<f32>(stats).split_at(rows);
    by_dtype!(dw, D => by_dtype!(dy, G => {
        let (dy, dw) = (dev.read::<G>(dy), dev.write::<D>(dw));
        split(dev, h.div_ceil(LANES), rows * LANES, &|part| {
            let (start, end) = (part.start * LANES, (part.end * LANES).min(h));
            // SAFETY: ranges of columns are disjoint, and each is one task's.
            let dw = unsafe { dw.range(start, end - start) };
            weight_sums::<G, D>(dev.isa(), dy, x, (means, rs), (h, start), dw);
        });
    }));
}

simd_fn! {
    /// Adds r (g - mean(g) - xhat mean(g xhat)) to dx, g = w dy, xhat = (x - mean) r. Returns the row's mean and r.
    fn backward_row[W: Lanes, G: Lanes](
        s: S, x: &[f32], w: &[W], eps: f32, dy: &[G], dx: &mut [f32],
    ) -> (f32, f32) {
        let (h, (mean, r)) = (x.len(), stats(s, x, eps));
        let (mut sums, mut dots) = ([s.splat(0.0); 4], [s.splat(0.0); 4]);
        for (i, at) in (0..h).step_by(LANES).enumerate() {
            let here = at..(at + LANES).min(h);
            let g = s.mul(load_any(s, &w[here.clone()]), load_any(s, &dy[here.clone()]));
            let xhat = s.mul(centered(s, &x[here], mean), s.splat(r));
            (sums[i % 4], dots[i % 4]) = (s.add(sums[i % 4], g), s.fma(g, xhat, dots[i % 4]));
        }
        let (a, c) = (s.splat(total(s, sums) / h as f32), s.splat(-total(s, dots) / h as f32));
        for at in (0..h).step_by(LANES) {
            let here = at..(at + LANES).min(h);
            let g = s.mul(load_any(s, &w[here.clone()]), load_any(s, &dy[here.clone()]));
            let xhat = s.mul(centered(s, &x[here.clone()], mean), s.splat(r));
            let inner = s.fma(xhat, c, s.sub(g, a));
            let sum = s.fma(inner, s.splat(r), load_any(s, &dx[here.clone()]));
            store_any(s, &mut dx[here], sum);
        }
        (mean, r)
    }
}

simd_fn! {
    /// Adds to dw[c] the sum over rows, ascending, of dy xhat in column start + c.
    fn weight_sums[G: Lanes, D: Lanes](
        s: S, dy: &[G], x: &[f32], stats: (&[f32], &[f32]), at: (usize, usize), dw: &mut [D],
    ) {
        let (h, start) = at;
        for (i, dw) in dw.chunks_mut(LANES).enumerate() {
            let mut sum = s.splat(0.0);
            for (m, (&mean, &r)) in stats.0.iter().zip(stats.1).enumerate() {
                let first = m * h + start + i * LANES;
                let here = first..first + dw.len();
                let xhat = s.mul(centered(s, &x[here.clone()], mean), s.splat(r));
                sum = s.fma(load_any(s, &dy[here]), xhat, sum);
            }
            let sum = s.add(load_any(s, dw), sum);
            store_any(s, dw, sum);
        }
    }
}
