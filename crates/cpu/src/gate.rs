//! Gated activations of the feed-forward layer, SwiGLU and GeGLU, and their gradients.

use super::CpuDevice;
use super::elementwise::split;
use super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use plimsoll_arch::{GATE_ALPHA, GATE_LIMIT, Gate};
use plimsoll_memory::Buf;

/// sqrt(2/pi), and the weight of the cube: Hendrycks and Gimpel's approximation of GELU.
const ROOT_2_PI: f32 = 0.797_884_6;
const CUBE: f32 = 0.044_715;
/// Beyond it on either side f32 shows no difference between the activation and a straight line.
const STRAIGHT: f32 = 20.0;

pub(super) fn glu(dev: &CpuDevice, how: Gate, gate_up: Buf<'_>, f: usize, out: Buf<'_>) {
    assert!(how != Gate::ClampedSilu, "gates and ups that alternate are of experts");
    let rows = out.len() / f;
    assert_eq!((out.len(), gate_up.len()), (rows * f, rows * 2 * f), "[{rows}, 2 x {f}] and [{rows}, {f}]");
    by_dtype!(out, T => {
        let (x, out) = (dev.read::<T>(gate_up), dev.write::<T>(out));
        split(dev, rows, 2 * f, &|part| {
            for m in part {
                let (gate, up) = x[m * 2 * f..][..2 * f].split_at(f);
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                glu_row::<T>(dev.isa(), how, gate, up, unsafe { out.range(m * f, f) });
            }
        });
    });
}

simd_fn! {
    fn glu_row[T: Lanes](s: S, how: Gate, gate: &[T], up: &[T], out: &mut [T]) {
        let ((gate, gate_rest), (up, up_rest)) = (gate.as_chunks::<LANES>(), up.as_chunks::<LANES>());
        let (out, out_rest) = out.as_chunks_mut::<LANES>();
        for ((g, u), out) in gate.iter().zip(up).zip(out) {
            T::store(s, out, gated(s, how, T::load(s, g), T::load(s, u)));
        }
        T::store_part(s, out_rest, gated(s, how, T::load_part(s, gate_rest), T::load_part(s, up_rest)));
    }
}

pub(super) fn glu_backward(
    dev: &CpuDevice,
    how: Gate,
    gate_up: Buf<'_>,
    f: usize,
    dout: Buf<'_>,
    d_gate_up: Buf<'_>,
    again: Option<Buf<'_>>,
) {
    assert!(how != Gate::ClampedSilu, "gates and ups that alternate are of experts");
    let rows = dout.len() / f;
    assert_eq!((dout.len(), gate_up.len()), (rows * f, rows * 2 * f), "[{rows}, 2 x {f}] and [{rows}, {f}]");
    assert_eq!(gate_up.len(), d_gate_up.len(), "gate and up, and their gradients");
    by_dtype!(dout, T => {
        // All through `write`, because they may be the same memory: no slices of it are formed.
        let (x, d, out) = (dev.write::<T>(gate_up), dev.write::<T>(dout), dev.write::<T>(d_gate_up));
        let again = again.map(|again| dev.write::<T>(again));
        split(dev, rows, 2 * f, &|part| {
            for m in part {
                // SAFETY: row m of [rows, 2f] and of [rows, f], which only this task touches.
                let (x, d, out) = unsafe {
                    (x.as_ptr().add(m * 2 * f), d.as_ptr().add(m * f), out.as_ptr().add(m * 2 * f))
                };
                // SAFETY: row m of `out`, [rows, f], which only this task touches.
                let again = again.map(|again| unsafe { again.as_ptr().add(m * f) });
                glu_backward_row::<T>(dev.isa(), how, f, x, d, out, again);
            }
        });
    });
}

/// Returns a gate and an up as `Gate::ClampedSilu` has them: clamped, and the up plus 1. NaN stays NaN.
#[inline(always)]
pub(crate) fn clamped<S: Simd>(s: S, g: S::F, u: S::F) -> (S::F, S::F) {
    let limit = s.splat(GATE_LIMIT);
    let u = s.max(s.splat(-GATE_LIMIT), s.min(limit, u));
    (s.min(limit, g), s.add(u, s.splat(1.0)))
}

/// Returns activation(g) u.
#[inline(always)]
pub(crate) fn gated<S: Simd>(s: S, how: Gate, g: S::F, u: S::F) -> S::F {
    s.mul(s.div(g, s.add(s.splat(1.0), s.exp(s.sub(s.splat(0.0), exponent(s, how, g))))), u)
}

/// Returns z of activation g / (1 + e^-z): g of silu; 2 sqrt(2/pi) (g + 0.044715 g^3) of gelu by (1 + tanh x) / 2.
#[inline(always)]
fn exponent<S: Simd>(s: S, how: Gate, g: S::F) -> S::F {
    match how {
        Gate::Silu => g,
        Gate::ClampedSilu => s.mul(s.splat(GATE_ALPHA), g),
        Gate::GeluTanh => {
            s.mul(s.mul(s.splat(2.0 * ROOT_2_PI), g), s.fma(s.splat(CUBE), s.mul(g, g), s.splat(1.0)))
        }
    }
}

/// Returns gradients of gate and up: d activation = sig (1 + g z' (1 - sig)), sig = 1 / (1 + e^-z).
#[inline(always)]
pub(crate) fn slopes<S: Simd>(s: S, how: Gate, g: S::F, u: S::F, d: S::F) -> (S::F, S::F) {
    let one = s.splat(1.0);
    let sig = s.div(one, s.add(one, s.exp(s.sub(s.splat(0.0), exponent(s, how, g)))));
    let grown = match how {
        Gate::Silu => g,
        Gate::ClampedSilu => s.mul(s.splat(GATE_ALPHA), g),
        Gate::GeluTanh => {
            // Far out the activation is a straight line, and the cube of g may overflow f32.
            let near = s.min(s.max(g, s.splat(-STRAIGHT)), s.splat(STRAIGHT));
            let square = s.mul(near, near);
            s.mul(s.mul(s.splat(2.0 * ROOT_2_PI), near), s.fma(s.splat(3.0 * CUBE), square, one))
        }
    };
    let slope = s.mul(sig, s.fma(grown, s.sub(one, sig), one));
    (s.mul(s.mul(d, u), slope), s.mul(d, s.mul(g, sig)))
}

/// Loads the first `n` of up to 16 elements; the lanes beyond are 0.
///
/// # Safety
/// `n` elements can be read at `p`.
#[inline(always)]
pub(crate) unsafe fn load_few<S: Simd, T: Lanes>(s: S, p: *const T, n: usize) -> S::F {
    let mut part = [T::from_f32(0.0); LANES];
    // SAFETY: the caller promises n readable elements at `p`.
    unsafe {
        if n == LANES {
            return T::load_at(s, p);
        }
        part.as_mut_ptr().copy_from(p, n);
    }
    T::load(s, &part)
}

/// Stores the first `n` of up to 16 elements.
///
/// # Safety
/// `n` elements can be written at `p`.
#[inline(always)]
pub(crate) unsafe fn store_few<S: Simd, T: Lanes>(s: S, p: *mut T, n: usize, x: S::F) {
    let mut part = [T::from_f32(0.0); LANES];
    // SAFETY: the caller promises n writable elements at `p`.
    unsafe {
        if n == LANES {
            return T::store_at(s, p, x);
        }
        T::store(s, &mut part, x);
        p.copy_from(part.as_ptr(), n);
    }
}

simd_fn! {
    /// `x`, `out`: 2f elements each, the same or apart; `d`, `again`: f elements each, the same or apart.
    fn glu_backward_row[T: Lanes](
        s: S, how: Gate, f: usize, x: *const T, d: *const T, out: *mut T, again: Option<*mut T>,
    ) {
        for at in (0..f).step_by(LANES) {
            let n = LANES.min(f - at);
            // SAFETY: at + n <= f, in both halves of x and out; what is read has been read before it is written.
            unsafe {
                let (g, u) = (load_few(s, x.add(at), n), load_few(s, x.add(f + at), n));
                let (dg, du) = slopes(s, how, g, u, load_few(s, d.add(at), n));
                if let Some(again) = again {
                    store_few(s, again.add(at), n, gated(s, how, g, u));
                }
                store_few(s, out.add(at), n, dg);
                store_few(s, out.add(f + at), n, du);
            }
        }
    }
}
