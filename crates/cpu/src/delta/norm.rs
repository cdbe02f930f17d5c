//! The gated norm after the rule, over each head of a row.

use super::super::elementwise::split;
use super::super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use super::super::norm::reciprocal_rms;
use super::super::{CpuDevice, Shared};
use super::shared::{add_sums, check_rows, rows_of, sigmoid, widened};
use plimsoll_device::{DELTA_HEAD_MAX, DeltaHeads, NormGated, NormGatedBackward};
use std::ops::Range;

/// Runs of rows with separate chains for the weight's gradient; these are added in order.
const PIECES: usize = 64;

/// A head's weights, and epsilon.
#[derive(Clone, Copy)]
struct Norm {
    heads: DeltaHeads,
    w: [f32; DELTA_HEAD_MAX],
    eps: f32,
}

impl Norm {
    /// Returns the gates (z) of a row's heads.
    fn gates<'x, T>(&self, x: &'x [T], m: usize) -> &'x [T] {
        &x[m * self.heads.input_width() + self.heads.conv_width()..][..self.heads.value_width()]
    }
}

pub(crate) fn forward(dev: &CpuDevice, args: NormGated<'_>) {
    let NormGated { heads, o, x, w, eps, y } = args;
    let width = heads.value_width();
    let rows = rows_of(&heads, o, width);
    check_rows(rows, [("x", x, heads.input_width()), ("y", y, width)]);
    assert_eq!(w.len(), heads.value_dim, "a weight for each element of a head");
    let norm = Norm { heads, w: widened(dev, w, 0), eps };
    by_dtype!(o, T => {
        let (o, x, y) = (dev.read::<T>(o), dev.read::<T>(x), dev.write::<T>(y));
        split(dev, rows, 2 * width, &|part| {
            for m in part {
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let y = unsafe { y.range(m * width, width) };
                forward_row::<T>(dev.isa(), &norm, &o[m * width..][..width], norm.gates(x, m), y);
            }
        });
    });
}

simd_fn! {
    fn forward_row[T: Lanes](s: S, norm: &Norm, o: &[T], z: &[T], y: &mut [T]) {
        let dv = norm.heads.value_dim;
        for ((o, z), y) in o.chunks_exact(dv).zip(z.chunks_exact(dv)).zip(y.chunks_exact_mut(dv)) {
            let r = s.splat(reciprocal_rms(s, o, norm.eps));
            let of = norm.w.as_chunks::<LANES>().0.iter().zip(vectors(s, o)).zip(vectors(s, z));
            for (((w, o), z), y) in of.zip(y.as_chunks_mut::<LANES>().0) {
                let normed = s.mul(f32::load(s, w), s.mul(o, r));
                T::store(s, y, s.mul(normed, s.mul(z, sigmoid(s, z))));
            }
        }
    }
}

#[inline(always)]
fn vectors<S: Simd, T: Lanes>(s: S, x: &[T]) -> impl Iterator<Item = S::F> {
    x.as_chunks::<LANES>().0.iter().map(move |x| T::load(s, x))
}

pub(crate) fn backward(dev: &CpuDevice, args: NormGatedBackward<'_>) {
    let NormGatedBackward { heads, o, x, w, eps, d, dx, dw, add } = args;
    let (width, dv) = (heads.value_width(), heads.value_dim);
    let rows = rows_of(&heads, o, width);
    check_rows(rows, [("x", x, heads.input_width()), ("d", d, width), ("dx", dx, heads.input_width())]);
    assert_eq!(w.len(), dv, "a weight for each element of a head");
    assert!(dw.is_none_or(|dw| dw.len() == dv), "a gradient for each weight");
    let norm = Norm { heads, w: widened(dev, w, 0), eps };
    let mut sums = [0.0; PIECES * DELTA_HEAD_MAX];
    let shared = Shared::of(&mut sums);
    by_dtype!(o, T => {
        let call = Call::<T> { norm, o: dev.read(o), x: dev.read(x), d: dev.write(d), dx: dev.write(dx) };
        let pieces = PIECES.min(rows);
        split(dev, pieces, rows * 4 * width / pieces.max(1), &|part| {
            for piece in part {
                // SAFETY: pieces are disjoint, and each is one task's.
                let sums = unsafe { shared.range(piece * DELTA_HEAD_MAX, dv) };
                backward_rows::<T>(dev.isa(), &call, rows * piece / pieces..rows * (piece + 1) / pieces, sums);
            }
        });
    });
    if let Some(dw) = dw {
        let (first, others) = sums.split_at_mut(DELTA_HEAD_MAX);
        for piece in others.chunks_exact(DELTA_HEAD_MAX) {
            first.iter_mut().zip(piece).for_each(|(sum, x)| *sum += x);
        }
        add_sums(dev, dw, 0, &first[..dv], add);
    }
}

struct Call<'a, T> {
    norm: Norm,
    o: &'a [T],
    x: &'a [T],
    d: Shared<'a, T>,
    dx: Shared<'a, T>,
}

simd_fn! {
    /// Computes rows of the gradient; `sums` gets the weight's over them.
    fn backward_rows[T: Lanes](s: S, call: &Call<'_, T>, rows: Range<usize>, sums: &mut [f32]) {
        let heads = call.norm.heads;
        let (width, dv) = (heads.value_width(), heads.value_dim);
        for m in rows {
            // SAFETY: row m is this task's.
            let (d, dz) = unsafe {
                let dz = m * heads.input_width() + heads.conv_width();
                (call.d.range(m * width, width), call.dx.range(dz, width))
            };
            let (o, z) = (&call.o[m * width..][..width], call.norm.gates(call.x, m));
            for head in (0..width).step_by(dv) {
                let of = head..head + dv;
                let (o, z) = (&o[of.clone()], &z[of.clone()]);
                backward_head(s, &call.norm, o, z, &mut d[of.clone()], &mut dz[of], sums);
            }
        }
    }
}

/// Computes one head of a row from o, z and the gradient of y: overwrites that with o's, and writes z's.
#[inline(always)]
fn backward_head<S: Simd, T: Lanes>(
    s: S,
    norm: &Norm,
    o: &[T],
    z: &[T],
    d: &mut [T],
    dz: &mut [T],
    sums: &mut [f32],
) {
    let r = reciprocal_rms(s, o, norm.eps);
    // The gradient of o r, and its dot product with o.
    let (mut inner, mut dot) = ([s.splat(0.0); DELTA_HEAD_MAX / LANES], s.splat(0.0));
    let of = norm.w.as_chunks::<LANES>().0.iter().zip(vectors(s, o)).zip(vectors(s, z)).zip(vectors(s, d));
    let to = dz.as_chunks_mut::<LANES>().0.iter_mut().zip(sums.as_chunks_mut::<LANES>().0).zip(&mut inner);
    for ((((w, o), z), d), ((dz, sum), inner)) in of.zip(to) {
        let (w, normed, sig) = (f32::load(s, w), s.mul(o, s.splat(r)), sigmoid(s, z));
        let silu = s.mul(z, sig);
        let slope = s.mul(sig, s.fma(z, s.sub(s.splat(1.0), sig), s.splat(1.0)));
        T::store(s, dz, s.mul(s.mul(d, s.mul(w, normed)), slope));
        let gated = s.mul(d, silu);
        let total = s.fma(gated, normed, f32::load(s, sum));
        f32::store(s, sum, total);
        *inner = s.mul(gated, w);
        dot = s.fma(*inner, normed, dot);
    }
    let mean = s.splat(-s.sum(dot) / o.len() as f32);
    for ((o, d), inner) in vectors(s, o).zip(d.as_chunks_mut::<LANES>().0).zip(inner) {
        let normed = s.mul(o, s.splat(r));
        T::store(s, d, s.mul(s.splat(r), s.fma(normed, mean, inner)));
    }
}
