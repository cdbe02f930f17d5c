//! GELU without a gate, by tanh and by erf, and its gradients by its inputs.

use super::CpuDevice;
use super::elementwise::split;
use super::gate::{gated, load_few, slopes, store_few};
use super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use plimsoll_arch::{Gate, Gelu};
use plimsoll_memory::Buf;

/// Ranges of tasks are multiples of this many elements.
const GRAIN: usize = 256;
/// 1 / sqrt(2) and 1 / sqrt(2 pi).
const ROOT_HALF: f32 = std::f32::consts::FRAC_1_SQRT_2;
const PEAK: f32 = 0.398_942_3;

pub(super) fn forward(dev: &CpuDevice, how: Gelu, x: Buf<'_>, out: Buf<'_>) {
    assert_eq!((x.len(), x.dtype()), (out.len(), out.dtype()), "an activation and what it is of");
    by_dtype!(x, T => {
        // Both through `write`, because they may be the same memory.
        let (from, to) = (dev.write::<T>(x), dev.write::<T>(out));
        split(dev, x.len().div_ceil(GRAIN), GRAIN, &|part| {
            let (start, end) = (part.start * GRAIN, (part.end * GRAIN).min(from.len()));
            // SAFETY: inside both buffers; this range is the task's own.
            let (from, to) = unsafe { (from.as_ptr().add(start), to.as_ptr().add(start)) };
            bend::<T>(dev.isa(), how, from, to, end - start);
        });
    });
}

pub(super) fn backward(dev: &CpuDevice, how: Gelu, x: Buf<'_>, dy: Buf<'_>, dx: Buf<'_>) {
    assert_eq!((x.len(), x.dtype()), (dy.len(), dy.dtype()), "an activation and its gradient");
    assert_eq!((x.len(), x.dtype()), (dx.len(), dx.dtype()), "an activation and the gradient of its input");
    by_dtype!(x, T => {
        let (x, dy, dx) = (dev.read::<T>(x), dev.write::<T>(dy), dev.write::<T>(dx));
        split(dev, x.len().div_ceil(GRAIN), GRAIN, &|part| {
            let (start, end) = (part.start * GRAIN, (part.end * GRAIN).min(x.len()));
            // SAFETY: inside the buffers; this range is the task's own.
            let (dy, dx) = unsafe { (dy.as_ptr().add(start), dx.as_ptr().add(start)) };
            slope::<T>(dev.isa(), how, &x[start..end], dy, dx);
        });
    });
}

simd_fn! {
    /// Applies the activation to `n` elements; `to` may be `from`.
    fn bend[T: Lanes](s: S, how: Gelu, from: *const T, to: *mut T, n: usize) {
        for at in (0..n).step_by(LANES) {
            let here = LANES.min(n - at);
            // SAFETY: at + here <= n; what is read has been read before it is written.
            unsafe {
                let x = load_few(s, from.add(at), here);
                let y = match how {
                    Gelu::Tanh => gated(s, Gate::GeluTanh, x, s.splat(1.0)),
                    Gelu::Erf => s.mul(x, share(s, x)),
                };
                store_few(s, to.add(at), here, y);
            }
        }
    }
}

simd_fn! {
    /// Writes dx = dy times the slope at input x; `dx` may be `dy`.
    fn slope[T: Lanes](s: S, how: Gelu, x: &[T], dy: *const T, dx: *mut T) {
        let n = x.len();
        for at in (0..n).step_by(LANES) {
            let here = LANES.min(n - at);
            // SAFETY: at + here <= n; what is read has been read before it is written.
            unsafe {
                let (x, d) = (load_few(s, x.as_ptr().add(at), here), load_few(s, dy.add(at), here));
                let d = match how {
                    Gelu::Tanh => slopes(s, Gate::GeluTanh, x, s.splat(1.0), d).0,
                    Gelu::Erf => {
                        let bell = s.exp(s.mul(s.mul(x, x), s.splat(-0.5)));
                        s.mul(d, s.fma(s.mul(x, s.splat(PEAK)), bell, share(s, x)))
                    }
                };
                store_few(s, dx.add(at), here, d);
            }
        }
    }
}

/// Returns (1 + erf(x / sqrt 2)) / 2.
#[inline(always)]
fn share<S: Simd>(s: S, x: S::F) -> S::F {
    s.mul(s.add(erf(s, s.mul(x, s.splat(ROOT_HALF))), s.splat(1.0)), s.splat(0.5))
}

/// Computes erf x as a quotient of two polynomials of x^2, as Eigen's `erf` of floats: its largest error is 4.2e-7, and
/// it is odd. No exponential, no branch.
#[inline(always)]
fn erf<S: Simd>(s: S, x: S::F) -> S::F {
    const LIMIT: f32 = 4.0; // From here on the quotient is 1 within an ulp.
    const P: [f32; 7] = [
        -2.726_142_3e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906_3e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    const Q: [f32; 5] = [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329_2e-3, -1.426_473_9e-2];
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
