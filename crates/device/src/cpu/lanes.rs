//! Sixteen f32 lanes on every instruction path, and the arithmetic that all operations share: widening and rounding
//! of storage, sums in a fixed tree, and an exponential of our own.
//!
//! A body is written once against [`Simd`] and compiled for each path by [`simd_fn!`]. Lane i of a vector holds
//! element 16 n + i, so the order of a sum depends on the length alone. Paths differ in one thing: where there is no
//! fused multiply-add, `fma` rounds twice.

use super::Real;
use half::bf16;
use std::arch::x86_64::*;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Arithmetic on sixteen f32.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// Accumulators that leave registers for operands.
    const ACCUMULATORS: usize;

    /// Sixteen times `x`.
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
    /// a + b.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// a - b.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// a b.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// a / b.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a b + c, rounded once where the path can.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// a if a > b, else b; so b where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// a if a < b, else b; so b where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Square root.
    fn sqrt(self, a: Self::F) -> Self::F;
    /// The first `n` lanes of `x`, the others of `other`; NaN and infinity in what is dropped do not matter.
    fn first(self, n: usize, x: Self::F, other: Self::F) -> Self::F;
    /// x 2^n for integral n in -300..=300, rounded once.
    fn scale(self, x: Self::F, n: Self::F) -> Self::F;
    /// Sum of the lanes: i with i + 8, i + 4, i + 2, i + 1.
    fn sum(self, x: Self::F) -> f32;
    /// The same tree with `max`.
    fn largest(self, x: Self::F) -> f32;

    /// e^x to 2 units in the last place; 0 below -104, infinity above 88.8, NaN of NaN.
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

    /// Widens 16 elements.
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        // SAFETY: an array of 16.
        unsafe { Self::load_at(s, x.as_ptr()) }
    }
    /// Rounds into 16 elements.
    #[inline(always)]
    fn store<S: Simd>(s: S, to: &mut [Self; LANES], x: S::F) {
        // SAFETY: an array of 16.
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
        // SAFETY: the caller's promise.
        unsafe { s.load(p) }
    }
    #[inline(always)]
    unsafe fn store_at<S: Simd>(s: S, p: *mut f32, x: S::F) {
        // SAFETY: the caller's promise.
        unsafe { s.store(p, x) }
    }
}

impl Lanes for bf16 {
    #[inline(always)]
    unsafe fn load_at<S: Simd>(s: S, p: *const bf16) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { s.load_bf16(p) }
    }
    #[inline(always)]
    unsafe fn store_at<S: Simd>(s: S, p: *mut bf16, x: S::F) {
        // SAFETY: the caller's promise.
        unsafe { s.store_bf16(p, x) }
    }
}

/// Defines `fn name(isa, args..)` from one body, compiled for each instruction path. The body's first argument is
/// the path's [`Simd`].
macro_rules! simd_fn {
    ($(#[$meta:meta])* $vis:vis fn $name:ident[$($g:ident: $bound:path),*]($s:ident: $S:ident $(, $a:ident: $t:ty)* $(,)?) $(-> $r:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name<$($g: $bound),*>(isa: $crate::cpu::Isa $(, $a: $t)*) $(-> $r)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body<$S: $crate::cpu::lanes::Simd, $($g: $bound),*>($s: $S $(, $a: $t)*) $(-> $r)? $body

            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx512<$($g: $bound),*>($($a: $t),*) $(-> $r)? {
                // SAFETY: this function runs only where its features are.
                body::<_, $($g),*>(unsafe { $crate::cpu::lanes::Avx512::new() } $(, $a)*)
            }
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            fn avx2<$($g: $bound),*>($($a: $t),*) $(-> $r)? {
                // SAFETY: this function runs only where its features are.
                body::<_, $($g),*>(unsafe { $crate::cpu::lanes::Avx2::new() } $(, $a)*)
            }
            match isa {
                // SAFETY: an `Isa` is the machine's, or a lower one.
                $crate::cpu::Isa::Avx512Bf16 => unsafe { avx512::<$($g),*>($($a),*) },
                // SAFETY: as above.
                $crate::cpu::Isa::Avx2 => unsafe { avx2::<$($g),*>($($a),*) },
                $crate::cpu::Isa::Scalar => body::<_, $($g),*>($crate::cpu::lanes::Scalar $(, $a)*),
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
    /// x = e^x, each element.
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

/// e^x on an array of lanes: for code that brings its own target features. `FMA`: whether it has fused multiply-add.
#[inline(always)]
pub(crate) fn exp_lanes<const FMA: bool>(x: [f32; LANES]) -> [f32; LANES] {
    if FMA {
        return FusedScalar.exp(x);
    }
    Scalar.exp(x)
}

/// Loops over arrays, which the compiler turns into whatever the target has.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

/// As `Scalar`, with fused multiply-add.
#[derive(Clone, Copy)]
struct FusedScalar;

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

macro_rules! impl_array_simd {
    ($S:ty, $fma:expr) => {
        impl Simd for $S {
            type F = [f32; LANES];
            const ACCUMULATORS: usize = 4;

            #[inline(always)]
            fn splat(self, x: f32) -> [f32; LANES] {
                [x; LANES]
            }
            #[inline(always)]
            unsafe fn load(self, p: *const f32) -> [f32; LANES] {
                // SAFETY: the caller's promise.
                unsafe { p.cast::<[f32; LANES]>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut f32, x: [f32; LANES]) {
                // SAFETY: the caller's promise.
                unsafe { p.cast::<[f32; LANES]>().write_unaligned(x) }
            }
            #[inline(always)]
            unsafe fn load_bf16(self, p: *const bf16) -> [f32; LANES] {
                // SAFETY: the caller's promise.
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
                // SAFETY: the caller's promise.
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
                let f: fn(f32, f32, f32) -> f32 = $fma;
                let mut out = [0.0; LANES];
                for i in 0..LANES {
                    out[i] = f(a[i], b[i], c[i]);
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
        }
    };
}
impl_array_simd!(Scalar, |a, b, c| a * b + c);
impl_array_simd!(FusedScalar, |a, b, c| a.mul_add(b, c));

/// AVX-512 F, BW, VL, DQ.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The machine has AVX-512 F, BW, VL, DQ.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Avx512 {
        Avx512(())
    }
}

// Every block below: the features are there by the promise of `new`, pointers by the caller's.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx512 {
    type F = __m512;
    const ACCUMULATORS: usize = 24;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: __m512) {
        unsafe { _mm512_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const bf16) -> __m512 {
        unsafe {
            let x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut bf16, x: __m512) {
        unsafe {
            let bits = _mm512_castps_si512(x);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            let out = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x0040_0000));
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(out)));
        }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    fn first(self, n: usize, x: __m512, other: __m512) -> __m512 {
        let mask = ((1u32 << n.min(LANES)) - 1) as u16;
        unsafe { _mm512_mask_blend_ps(mask, other, x) }
    }
    #[inline(always)]
    fn scale(self, x: __m512, n: __m512) -> __m512 {
        unsafe { _mm512_scalef_ps(x, n) }
    }
    #[inline(always)]
    fn sum(self, x: __m512) -> f32 {
        unsafe {
            let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            sum_256(x)
        }
    }
    #[inline(always)]
    fn largest(self, x: __m512) -> f32 {
        unsafe {
            let x = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            largest_256(x)
        }
    }
}

/// AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The machine has AVX2 and FMA.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Avx2 {
        Avx2(())
    }
}

/// # Safety
/// The machine has AVX.
#[inline(always)]
#[allow(clippy::undocumented_unsafe_blocks)] // The caller's promise.
unsafe fn sum_256(x: __m256) -> f32 {
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
    }
}

/// # Safety
/// The machine has AVX.
#[inline(always)]
#[allow(clippy::undocumented_unsafe_blocks)] // The caller's promise.
unsafe fn largest_256(x: __m256) -> f32 {
    unsafe {
        let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps::<1>(x, x)))
    }
}

// Every block below: the features are there by the promise of `new`, pointers by the caller's.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    type F = [__m256; 2];
    const ACCUMULATORS: usize = 6;

    #[inline(always)]
    fn splat(self, x: f32) -> [__m256; 2] {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> [__m256; 2] {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: [__m256; 2]) {
        unsafe {
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const bf16) -> [__m256; 2] {
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8).cast()));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high))]
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut bf16, x: [__m256; 2]) {
        unsafe {
            let mut half = [_mm256_setzero_si256(); 2];
            for i in 0..2 {
                let bits = _mm256_castps_si256(x[i]);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
                let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x[i], x[i]));
                let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
                half[i] = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
            }
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(half[0], half[1]));
            _mm256_storeu_si256(p.cast(), packed);
        }
    }
    #[inline(always)]
    fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn sub(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn div(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn fma(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    fn max(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn min(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn sqrt(self, a: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_sqrt_ps(a[0]), _mm256_sqrt_ps(a[1])] }
    }
    #[inline(always)]
    fn first(self, n: usize, x: [__m256; 2], other: [__m256; 2]) -> [__m256; 2] {
        unsafe {
            let n = _mm256_set1_epi32(n.min(LANES) as i32);
            let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
            let keep = |lane| _mm256_castsi256_ps(_mm256_cmpgt_epi32(n, lane));
            [_mm256_blendv_ps(other[0], x[0], keep(low)), _mm256_blendv_ps(other[1], x[1], keep(high))]
        }
    }
    #[inline(always)]
    fn scale(self, x: [__m256; 2], n: [__m256; 2]) -> [__m256; 2] {
        unsafe {
            let mut out = x;
            for i in 0..2 {
                let n = _mm256_cvtps_epi32(n[i]);
                let first = _mm256_srai_epi32::<1>(n);
                let bias = _mm256_set1_epi32(127);
                for part in [first, _mm256_sub_epi32(n, first)] {
                    let factor = _mm256_slli_epi32::<23>(_mm256_add_epi32(part, bias));
                    out[i] = _mm256_mul_ps(out[i], _mm256_castsi256_ps(factor));
                }
            }
            out
        }
    }
    #[inline(always)]
    fn sum(self, x: [__m256; 2]) -> f32 {
        unsafe { sum_256(_mm256_add_ps(x[0], x[1])) }
    }
    #[inline(always)]
    fn largest(self, x: [__m256; 2]) -> f32 {
        unsafe { largest_256(_mm256_max_ps(x[0], x[1])) }
    }
}
