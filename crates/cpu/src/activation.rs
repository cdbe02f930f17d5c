//! Activations of small networks: tanh and relu, element by element, and their gradients by their outputs.

use super::CpuDevice;
use super::elementwise::split;
use super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use plimsoll_device::Activation;
use plimsoll_memory::Buf;

/// Ranges of tasks are multiples of this many elements.
const GRAIN: usize = 256;

pub(super) fn activate(dev: &CpuDevice, how: Activation, x: Buf<'_>, out: Buf<'_>) {
    assert_eq!((x.len(), x.dtype()), (out.len(), out.dtype()), "an activation and what it is of");
    by_dtype!(x, T => {
        // Both through `write`, because they may be the same memory.
        let (from, to) = (dev.write::<T>(x), dev.write::<T>(out));
        split(dev, x.len().div_ceil(GRAIN), GRAIN, &|part| {
            let (start, end) = (part.start * GRAIN, (part.end * GRAIN).min(from.len()));
            // SAFETY: inside both buffers; this range is the task's own.
            unsafe { bend::<T>(dev.isa(), how, from.as_ptr().add(start), to.as_ptr().add(start), end - start) };
        });
    });
}

pub(super) fn activate_backward(dev: &CpuDevice, how: Activation, y: Buf<'_>, dy: Buf<'_>, dx: Buf<'_>) {
    assert_eq!((y.len(), y.dtype()), (dy.len(), dy.dtype()), "an activation and its gradient");
    assert_eq!(
        (y.len(), y.dtype()),
        (dx.len(), dx.dtype()),
        "an activation and the gradient of what it is of"
    );
    by_dtype!(y, T => {
        let (y, dy, dx) = (dev.read::<T>(y), dev.write::<T>(dy), dev.write::<T>(dx));
        split(dev, y.len().div_ceil(GRAIN), GRAIN, &|part| {
            let (start, end) = (part.start * GRAIN, (part.end * GRAIN).min(y.len()));
            // SAFETY: inside all three buffers; this range is the task's own.
            let (dy, dx) = unsafe { (dy.as_ptr().add(start), dx.as_ptr().add(start)) };
            slope::<T>(dev.isa(), how, &y[start..end], dy, dx);
        });
    });
}

simd_fn! {
    /// Applies the activation to `n` elements; `to` may be `from`.
    fn bend[T: Lanes](s: S, how: Activation, from: *const T, to: *mut T, n: usize) {
        for at in (0..n).step_by(LANES) {
            let here = LANES.min(n - at);
            let mut part = [T::from_f32(0.0); LANES];
            // SAFETY: at + here <= n; what is read has been read before it is written.
            unsafe {
                part.as_mut_ptr().copy_from(from.add(at), here);
                let x = T::load(s, &part);
                let y = match how {
                    Activation::Tanh => tanh(s, x),
                    // Zero comes first, so that NaN stays NaN.
                    Activation::Relu => s.max(s.splat(0.0), x),
                };
                T::store(s, &mut part, y);
                to.add(at).copy_from(part.as_ptr(), here);
            }
        }
    }
}

simd_fn! {
    /// Writes dx = dy times the slope at output y; `dx` may be `dy`.
    fn slope[T: Lanes](s: S, how: Activation, y: &[T], dy: *const T, dx: *mut T) {
        let n = y.len();
        for at in (0..n).step_by(LANES) {
            let here = LANES.min(n - at);
            let (mut part, mut d) = ([T::from_f32(0.0); LANES], [T::from_f32(0.0); LANES]);
            part[..here].copy_from_slice(&y[at..at + here]);
            // SAFETY: at + here <= n; what is read has been read before it is written.
            unsafe { d.as_mut_ptr().copy_from(dy.add(at), here) };
            match how {
                Activation::Tanh => {
                    let (y, dy) = (T::load(s, &part), T::load(s, &d));
                    T::store(s, &mut d, s.mul(dy, s.sub(s.splat(1.0), s.mul(y, y))));
                }
                Activation::Relu => {
                    for (d, y) in d.iter_mut().zip(&part) {
                        *d = if y.to_f32() > 0.0 { *d } else { T::from_f32(0.0) };
                    }
                }
            }
            // SAFETY: at + here <= n; what is read has been read before it is written.
            unsafe { dx.add(at).copy_from(d.as_ptr(), here) };
        }
    }
}

/// Computes tanh x as a quotient of two polynomials of x^2, as Eigen's `ptanh_float`: its largest error is 3e-7, and it
/// is odd and never beyond 1. No exponential, no branch.
#[inline(always)]
pub(super) fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    const LIMIT: f32 = 7.905_311; // From here on the quotient is 1 in f32.
    const P: [f32; 7] = [
        -2.760_768_4e-16,
        2.000_188e-13,
        -8.604_672e-11,
        5.122_297_3e-8,
        1.485_722_4e-5,
        6.372_619_3e-4,
        4.893_524_6e-3,
    ];
    const Q: [f32; 4] = [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3];
    let x = s.min(s.splat(LIMIT), s.max(s.splat(-LIMIT), x));
    let x2 = s.mul(x, x);
    let (mut p, mut q) = (s.splat(P[0]), s.splat(Q[0]));
    for c in &P[1..] {
        p = s.fma(p, x2, s.splat(*c));
    }
    for c in &Q[1..] {
        q = s.fma(q, x2, s.splat(*c));
    }
    s.div(s.mul(x, p), q)
}

/// Returns c tanh(x / c).
#[inline(always)]
pub(super) fn capped<S: Simd>(s: S, x: S::F, c: f32) -> S::F {
    s.mul(tanh(s, s.div(x, s.splat(c))), s.splat(c))
}

/// Returns the slope of `capped` at output y: 1 - (y / c)^2.
#[inline(always)]
pub(super) fn capped_slope<S: Simd>(s: S, y: S::F, c: f32) -> S::F {
    let t = s.div(y, s.splat(c));
    s.sub(s.splat(1.0), s.mul(t, t))
}
