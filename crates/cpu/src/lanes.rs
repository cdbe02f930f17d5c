//! Sixteen f32 lanes on every instruction path, and the arithmetic that all operations share: widening and rounding of
//! storage, sums in a fixed tree, and our own exponential.
//!
//! A body is written once against [`Simd`] and compiled for each path by [`simd_fn!`]. Lane i of a vector holds
//! element 16 n + i, so the order of a sum depends on the length alone. Paths differ in one thing: where there is no
//! fused multiply-add, `fma` rounds twice.

use super::Real;
use half::bf16;

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Arithmetic on sixteen f32.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen u32.
    type U: Copy;
    /// Accumulators that fit in registers next to operands.
    const ACCUMULATORS: usize;

    /// Returns `x` in all lanes.
    fn splat(self, x: f32) -> Self::F;
    /// # Safety
    /// `p` points to 16 readable f32.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// # Safety
    /// `p` points to 16 writable f32.
    unsafe fn store(self, p: *mut f32, x: Self::F);
    /// # Safety
    /// `p` points to 16 readable bf16.
    unsafe fn load_bf16(self, p: *const bf16) -> Self::F;
    /// Rounds to nearest even, as `Real::from_f32`.
    /// # Safety
    /// `p` points to 16 writable bf16.
    unsafe fn store_bf16(self, p: *mut bf16, x: Self::F);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a b + c, rounded once where the path can.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// a if a > b, else b; so b where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// a if a < b, else b; so b where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn sqrt(self, a: Self::F) -> Self::F;
    /// Returns the first `n` lanes of `x`, the others of `other`; NaN and infinity in dropped lanes do not matter.
    fn first(self, n: usize, x: Self::F, other: Self::F) -> Self::F;
    /// Returns x 2^n for integral n in -300..=300, rounded once.
    fn scale(self, x: Self::F, n: Self::F) -> Self::F;
    /// Returns the sum of the lanes: i with i + 8, i + 4, i + 2, i + 1.
    fn sum(self, x: Self::F) -> f32;
    /// Returns the largest lane, by `max` in the tree of `sum`.
    fn largest(self, x: Self::F) -> f32;

    /// Lane i of vector j becomes lane j of vector i.
    #[inline(always)]
    fn transpose(self, x: [Self::F; LANES]) -> [Self::F; LANES] {
        let (mut rows, mut out) = ([[0.0f32; LANES]; LANES], x);
        for (row, x) in rows.iter_mut().zip(x) {
            f32::store(self, row, x);
        }
        for (i, out) in out.iter_mut().enumerate() {
            let mut column = [0.0; LANES];
            for j in 0..LANES {
                column[j] = rows[j][i];
            }
            *out = f32::load(self, &column);
        }
        out
    }

    fn bits(self, x: Self::F) -> Self::U;
    /// Returns `x` in all lanes.
    fn splat_u32(self, x: u32) -> Self::U;
    /// Returns first, first + 1, .., wrapping.
    fn count_u32(self, first: u32) -> Self::U;
    /// a + b, wrapping.
    fn add_u32(self, a: Self::U, b: Self::U) -> Self::U;
    fn xor_u32(self, a: Self::U, b: Self::U) -> Self::U;
    /// Returns the low 32 bits of a b.
    fn mul_u32(self, a: Self::U, b: Self::U) -> Self::U;
    fn shift_right_u32(self, a: Self::U, n: u32) -> Self::U;
    /// Adds the low 16 bits of `random` below the bits that bf16 keeps, and truncates. A finite number stays finite;
    /// infinities and NaN do not change.
    fn round_stochastically(self, x: Self::F, random: Self::U) -> Self::F;

    /// Returns e^x to 2 units in the last place; 0 below -104, infinity above 88.72, NaN of NaN.
    #[inline(always)]
    fn exp(self, x: Self::F) -> Self::F {
        // Cephes' expf: x = n ln 2 + r, |r| <= 0.3466; ln 2 in two parts, the first of 10 bits, so n * part is exact.
        let s = self;
        let x = s.min(s.splat(100.0), s.max(s.splat(-110.0), x));
        let magic = s.splat(12_582_912.0); // 1.5 * 2^23: adding it rounds to an integer
        let n = s.sub(s.fma(x, s.splat(std::f32::consts::LOG2_E), magic), magic);
        let r = s.fma(n, s.splat(-0.693_359_4), x);
        let r = s.fma(n, s.splat(2.121_944_4e-4), r);
        let mut p = s.splat(1.987_569_1e-4);
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = s.fma(p, r, s.splat(c));
        }
        let p = s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0));
        s.scale(p, n)
    }
}

/// Storage that vectors are loaded from.
pub(crate) trait Lanes: Real {
    /// # Safety
    /// `p` points to 16 readable elements.
    unsafe fn load_at<S: Simd>(s: S, p: *const Self) -> S::F;
    /// # Safety
    /// `p` points to 16 writable elements.
    unsafe fn store_at<S: Simd>(s: S, p: *mut Self, x: S::F);

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        // SAFETY: an array of 16 elements, borrowed.
        unsafe { Self::load_at(s, x.as_ptr()) }
    }
    /// Rounds into 16 elements.
    #[inline(always)]
    fn store<S: Simd>(s: S, to: &mut [Self; LANES], x: S::F) {
        // SAFETY: an array of 16 elements, borrowed mutably.
        unsafe { Self::store_at(s, to.as_mut_ptr(), x) }
    }
    /// Widens up to 16 elements; the lanes beyond are 0.
    #[inline(always)]
    fn load_part<S: Simd>(s: S, x: &[Self]) -> S::F {
        let mut full = [Self::from_f32(0.0); LANES];
        full[..x.len()].copy_from_slice(x);
        Self::load(s, &full)
    }
    /// Rounds into up to 16 elements.
    #[inline(always)]
    fn store_part<S: Simd>(s: S, to: &mut [Self], x: S::F) {
        let mut full = [Self::from_f32(0.0); LANES];
        Self::store(s, &mut full, x);
        to.copy_from_slice(&full[..to.len()]);
    }
}

impl Lanes for f32 {
    #[inline(always)]
    unsafe fn load_at<S: Simd>(s: S, p: *const f32) -> S::F {
        // SAFETY: the caller promises 16 readable elements at `p`.
        unsafe { s.load(p) }
    }
    #[inline(always)]
    unsafe fn store_at<S: Simd>(s: S, p: *mut f32, x: S::F) {
        // SAFETY: the caller promises 16 writable elements at `p`.
        unsafe { s.store(p, x) }
    }
}

impl Lanes for bf16 {
    #[inline(always)]
    unsafe fn load_at<S: Simd>(s: S, p: *const bf16) -> S::F {
        // SAFETY: the caller promises 16 readable elements at `p`.
        unsafe { s.load_bf16(p) }
    }
    #[inline(always)]
    unsafe fn store_at<S: Simd>(s: S, p: *mut bf16, x: S::F) {
        // SAFETY: the caller promises 16 writable elements at `p`.
        unsafe { s.store_bf16(p, x) }
    }
}

/// Defines `fn name(isa, args..)` from one body, whose first argument is the path's [`Simd`], compiled for each path.
macro_rules! simd_fn {
    ($(#[$meta:meta])* $vis:vis fn $name:ident[$($g:ident: $bound:path),*]($s:ident: $S:ident $(, $a:ident: $t:ty)* $(,)?) $(-> $r:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name<$($g: $bound),*>(isa: $crate::Isa $(, $a: $t)*) $(-> $r)? {
            #[inline(always)]
            fn body<$S: $crate::lanes::Simd, $($g: $bound),*>($s: $S $(, $a: $t)*) $(-> $r)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
            fn avx512<$($g: $bound),*>($($a: $t),*) $(-> $r)? {
                // SAFETY: this function runs only where its features are.
                body::<_, $($g),*>(unsafe { $crate::lanes::Avx512::new() } $(, $a)*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2<$($g: $bound),*>($($a: $t),*) $(-> $r)? {
                // SAFETY: this function runs only where its features are.
                body::<_, $($g),*>(unsafe { $crate::lanes::Avx2::new() } $(, $a)*)
            }
            match isa {
                // SAFETY: `CpuDevice::new` refuses a path that the machine does not have.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Amx | $crate::Isa::Avx512Bf16 => unsafe { avx512::<$($g),*>($($a),*) },
                // SAFETY: `CpuDevice::new` refuses a path that the machine does not have.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx2 => unsafe { avx2::<$($g),*>($($a),*) },
                _ => body::<_, $($g),*>($crate::lanes::Scalar $(, $a)*),
            }
        }
    };
}
pub(crate) use simd_fn;

/// Runs an expression with `T` as the storage type of a buffer of real numbers.
macro_rules! by_dtype {
    ($buf:expr, $T:ident => $e:expr) => {
        match $buf.dtype() {
            plimsoll_base::DType::F32 => {
                type $T = f32;
                $e
            }
            plimsoll_base::DType::Bf16 => {
                type $T = half::bf16;
                $e
            }
            other => panic!("a buffer of {} where real numbers belong", other.name()),
        }
    };
}
pub(crate) use by_dtype;

simd_fn! {
    /// Writes x = e^x, each element.
    pub(crate) fn exp_in_place[](s: S, x: &mut [f32]) {
        let (full, rest) = x.as_chunks_mut::<LANES>();
        for part in full {
            let v = s.exp(f32::load(s, part));
            f32::store(s, part, v);
        }
        let v = s.exp(f32::load_part(s, rest));
        f32::store_part(s, rest, v);
    }
}

/// Lanes as arrays, whose loops the compiler vectorises for the target.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

#[inline(always)]
fn map(a: [f32; LANES], f: impl Fn(f32) -> f32) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for i in 0..LANES {
        out[i] = f(a[i]);
    }
    out
}

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

#[inline(always)]
fn zip_u32(a: [u32; LANES], b: [u32; LANES], f: impl Fn(u32, u32) -> u32) -> [u32; LANES] {
    let mut out = [0; LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

#[inline(always)]
fn tree(mut a: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            a[i] = f(a[i], a[i + width]);
        }
    }
    a[0]
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

impl Simd for Scalar {
    type F = [f32; LANES];
    type U = [u32; LANES];
    const ACCUMULATORS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; LANES] {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> [f32; LANES] {
        // SAFETY: the caller promises 16 readable elements at `p`.
        unsafe { p.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: [f32; LANES]) {
        // SAFETY: the caller promises 16 writable elements at `p`.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const bf16) -> [f32; LANES] {
        // SAFETY: the caller promises 16 readable elements at `p`.
        let x = unsafe { p.cast::<[bf16; LANES]>().read_unaligned() };
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            out[i] = x[i].to_f32();
        }
        out
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut bf16, x: [f32; LANES]) {
        let mut out = [bf16::ZERO; LANES];
        for i in 0..LANES {
            out[i] = <bf16 as Real>::from_f32(x[i]);
        }
        // SAFETY: the caller promises 16 writable elements at `p`.
        unsafe { p.cast::<[bf16; LANES]>().write_unaligned(out) }
    }
    #[inline(always)]
    fn add(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: [f32; LANES], b: [f32; LANES], c: [f32; LANES]) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            out[i] = a[i] * b[i] + c[i];
        }
        out
    }
    #[inline(always)]
    fn max(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn sqrt(self, a: [f32; LANES]) -> [f32; LANES] {
        map(a, |a| a.sqrt())
    }
    #[inline(always)]
    fn first(self, n: usize, x: [f32; LANES], other: [f32; LANES]) -> [f32; LANES] {
        let mut out = other;
        for i in 0..LANES {
            out[i] = if i < n { x[i] } else { other[i] };
        }
        out
    }
    #[inline(always)]
    fn scale(self, x: [f32; LANES], n: [f32; LANES]) -> [f32; LANES] {
        // Two factors: 2^n itself may lie outside the normal range. The first product is exact.
        zip(x, n, |x, n| {
            let n = n as i32;
            x * power_of_two(n >> 1) * power_of_two(n - (n >> 1))
        })
    }
    #[inline(always)]
    fn sum(self, x: [f32; LANES]) -> f32 {
        tree(x, |a, b| a + b)
    }
    #[inline(always)]
    fn largest(self, x: [f32; LANES]) -> f32 {
        tree(x, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn bits(self, x: [f32; LANES]) -> [u32; LANES] {
        let mut out = [0; LANES];
        for i in 0..LANES {
            out[i] = x[i].to_bits();
        }
        out
    }
    #[inline(always)]
    fn splat_u32(self, x: u32) -> [u32; LANES] {
        [x; LANES]
    }
    #[inline(always)]
    fn count_u32(self, first: u32) -> [u32; LANES] {
        std::array::from_fn(|i| first.wrapping_add(i as u32))
    }
    #[inline(always)]
    fn add_u32(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        zip_u32(a, b, |a, b| a.wrapping_add(b))
    }
    #[inline(always)]
    fn xor_u32(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        zip_u32(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    fn mul_u32(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        zip_u32(a, b, |a, b| a.wrapping_mul(b))
    }
    #[inline(always)]
    fn shift_right_u32(self, a: [u32; LANES], n: u32) -> [u32; LANES] {
        zip_u32(a, a, |a, _| a >> n)
    }
    #[inline(always)]
    fn round_stochastically(self, x: [f32; LANES], random: [u32; LANES]) -> [f32; LANES] {
        let mut out = x;
        for i in 0..LANES {
            let bits = x[i].to_bits();
            let up = bits.wrapping_add(random[i] & 0xffff);
            // The largest numbers are truncated where they would overflow.
            let fits = up & 0x7f80_0000 != 0x7f80_0000;
            let rounded = f32::from_bits(if fits { up } else { bits } & 0xffff_0000);
            out[i] = if x[i].is_finite() { rounded } else { x[i] };
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    fn exp_of(isa: Isa, x: &[f32]) -> Vec<f32> {
        let mut out = x.to_vec();
        exp_in_place(isa, &mut out);
        out
    }

    #[test]
    fn exp_is_right_to_two_units_on_every_path() {
        let x: Vec<f32> = (-1_040_000..887_000).step_by(37).map(|i| i as f32 * 1e-4).collect();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for (x, y) in x.iter().zip(exp_of(isa, &x)) {
                let exact = f64::from(*x).exp();
                // Below 2^-126 a unit is 2^-149.
                let unit = (exact * 2f64.powi(-23)).max(2f64.powi(-149));
                assert!(
                    (f64::from(y) - exact).abs() < 2.0 * unit,
                    "{isa:?}: exp({x}) = {y:e}, not {exact:e}"
                );
            }
        }
    }

    #[test]
    fn exp_of_the_ends_is_exact() {
        let inf = f32::INFINITY;
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let y = exp_of(isa, &[-inf, f32::MIN, -120.0, 0.0, -0.0, 89.0, f32::MAX, inf, f32::NAN]);
            assert_eq!(y[..8], [0.0, 0.0, 0.0, 1.0, 1.0, inf, inf, inf], "{isa:?}");
            assert!(y[8].is_nan(), "{isa:?}");
        }
    }

    simd_fn! {
        fn transposed[](s: S, x: &[[f32; LANES]; LANES]) -> [[f32; LANES]; LANES] {
            let mut out = *x;
            for (out, x) in out.iter_mut().zip(s.transpose(x.map(|row| f32::load(s, &row)))) {
                f32::store(s, out, x);
            }
            out
        }
    }

    #[test]
    fn transposing_swaps_lanes_and_vectors() {
        let x: [[f32; LANES]; LANES] = std::array::from_fn(|i| std::array::from_fn(|j| (i * 16 + j) as f32));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let y = transposed(isa, &x);
            assert!((0..256).all(|i| y[i % 16][i / 16] == x[i / 16][i % 16]), "{isa:?}");
        }
    }
}
