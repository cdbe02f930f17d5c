//! The lanes of x86-64: AVX-512, and AVX2 with fused multiply-add. A value of either type proves that the machine has
//! the instructions: `new` is unsafe.

use super::{LANES, Simd};
use half::bf16;
use std::arch::x86_64::*;

/// Methods of a type that proves that instructions exist: on `values`, and on `pointers` that the caller vouches for.
macro_rules! intrinsics {
    (values $(fn $name:ident($self:ident $(, $arg:ident: $ty:ty)*) -> $out:ty $body:block)*) => {$(
        #[inline(always)]
        fn $name($self $(, $arg: $ty)*) -> $out {
            // SAFETY: `self` exists, so its maker promised in `new` that the machine has the instructions.
            unsafe { $body }
        }
    )*};
    (pointers $(fn $name:ident($self:ident $(, $arg:ident: $ty:ty)*) $(-> $out:ty)? $body:block)*) => {$(
        /// # Safety
        /// The pointer is valid for 16 elements, as in `Simd`.
        #[inline(always)]
        unsafe fn $name($self $(, $arg: $ty)*) $(-> $out)? {
            // SAFETY: `self` proves that the instructions exist; the caller promises that `p` is valid for 16 elements.
            unsafe { $body }
        }
    )*};
}

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

impl Simd for Avx512 {
    type F = __m512;
    type U = __m512i;
    const ACCUMULATORS: usize = 24;

    intrinsics! { pointers
        fn load(self, p: *const f32) -> __m512 { _mm512_loadu_ps(p) }
        fn store(self, p: *mut f32, x: __m512) { _mm512_storeu_ps(p, x) }
        fn load_bf16(self, p: *const bf16) -> __m512 {
            let x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x))
        }
        fn store_bf16(self, p: *mut bf16, x: __m512) {
            let bits = _mm512_castps_si512(x);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            let out = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x0040_0000));
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(out)));
        }
    }
    intrinsics! { values
        fn splat(self, x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn add(self, a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(self, a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(self, a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(self, a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn max(self, a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn min(self, a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        fn sqrt(self, a: __m512) -> __m512 { _mm512_sqrt_ps(a) }
        fn first(self, n: usize, x: __m512, other: __m512) -> __m512 {
            let mask = ((1u32 << n.min(LANES)) - 1) as u16;
            _mm512_mask_blend_ps(mask, other, x)
        }
        fn scale(self, x: __m512, n: __m512) -> __m512 { _mm512_scalef_ps(x, n) }
        fn transpose(self, x: [__m512; LANES]) -> [__m512; LANES] {
            // Pairs, then fours inside the 128-bit quarters, then the quarters in two steps.
            let (mut a, mut b) = (x, x);
            for i in 0..8 {
                a[2 * i] = _mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]);
                a[2 * i + 1] = _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]);
            }
            for i in 0..4 {
                let [p, q, r, s] =
                    [a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3]].map(|v| _mm512_castps_pd(v));
                b[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(p, r));
                b[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(p, r));
                b[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(q, s));
                b[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(q, s));
            }
            for i in 0..4 {
                a[i] = _mm512_shuffle_f32x4::<0x88>(b[i], b[4 + i]);
                a[4 + i] = _mm512_shuffle_f32x4::<0xdd>(b[i], b[4 + i]);
                a[8 + i] = _mm512_shuffle_f32x4::<0x88>(b[8 + i], b[12 + i]);
                a[12 + i] = _mm512_shuffle_f32x4::<0xdd>(b[8 + i], b[12 + i]);
            }
            for i in 0..8 {
                b[i] = _mm512_shuffle_f32x4::<0x88>(a[i], a[8 + i]);
                b[8 + i] = _mm512_shuffle_f32x4::<0xdd>(a[i], a[8 + i]);
            }
            b
        }
        fn sum(self, x: __m512) -> f32 {
            let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            sum_256(x)
        }
        fn largest(self, x: __m512) -> f32 {
            let x = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            largest_256(x)
        }
        fn bits(self, x: __m512) -> __m512i { _mm512_castps_si512(x) }
        fn splat_u32(self, x: u32) -> __m512i { _mm512_set1_epi32(x as i32) }
        fn count_u32(self, first: u32) -> __m512i {
            let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            _mm512_add_epi32(_mm512_set1_epi32(first as i32), lanes)
        }
        fn add_u32(self, a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        fn xor_u32(self, a: __m512i, b: __m512i) -> __m512i { _mm512_xor_si512(a, b) }
        fn mul_u32(self, a: __m512i, b: __m512i) -> __m512i { _mm512_mullo_epi32(a, b) }
        fn shift_right_u32(self, a: __m512i, n: u32) -> __m512i {
            _mm512_srl_epi32(a, _mm_cvtsi32_si128(n as i32))
        }
        fn round_stochastically(self, x: __m512, random: __m512i) -> __m512 {
            let bits = _mm512_castps_si512(x);
            let up = _mm512_add_epi32(bits, _mm512_and_si512(random, _mm512_set1_epi32(0xffff)));
            let exponent = _mm512_set1_epi32(0x7f80_0000);
            let fits = _mm512_cmpneq_epi32_mask(_mm512_and_si512(up, exponent), exponent);
            let finite = _mm512_cmpneq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
            let chosen = _mm512_mask_mov_epi32(bits, fits, up);
            let kept = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            _mm512_castsi512_ps(_mm512_mask_and_epi32(bits, finite, chosen, kept))
        }
    }
}

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
unsafe fn sum_256(x: __m256) -> f32 {
    // SAFETY: the caller promises that the machine has AVX.
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
    }
}

/// # Safety
/// The machine has AVX.
#[inline(always)]
unsafe fn largest_256(x: __m256) -> f32 {
    // SAFETY: the caller promises that the machine has AVX.
    unsafe {
        let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps::<1>(x, x)))
    }
}

/// # Safety
/// The machine has AVX.
#[inline(always)]
unsafe fn transpose_256(x: [__m256; 8]) -> [__m256; 8] {
    let (mut pairs, mut fours, mut out) = (x, x, x);
    // SAFETY: the caller promises that the machine has AVX.
    unsafe {
        for i in 0..4 {
            pairs[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]);
            pairs[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
        }
        for i in 0..2 {
            let [p, q, r, s] = [pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]];
            fours[4 * i] = _mm256_shuffle_ps::<0x44>(p, r);
            fours[4 * i + 1] = _mm256_shuffle_ps::<0xee>(p, r);
            fours[4 * i + 2] = _mm256_shuffle_ps::<0x44>(q, s);
            fours[4 * i + 3] = _mm256_shuffle_ps::<0xee>(q, s);
        }
        for i in 0..4 {
            out[i] = _mm256_permute2f128_ps::<0x20>(fours[i], fours[4 + i]);
            out[4 + i] = _mm256_permute2f128_ps::<0x31>(fours[i], fours[4 + i]);
        }
    }
    out
}

impl Simd for Avx2 {
    type F = [__m256; 2];
    type U = [__m256i; 2];
    const ACCUMULATORS: usize = 6;

    intrinsics! { pointers
        fn load(self, p: *const f32) -> [__m256; 2] { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
        fn store(self, p: *mut f32, x: [__m256; 2]) {
            _mm256_storeu_ps(p, x[0]);
            _mm256_storeu_ps(p.add(8), x[1]);
        }
        fn load_bf16(self, p: *const bf16) -> [__m256; 2] {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
        fn store_bf16(self, p: *mut bf16, x: [__m256; 2]) {
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
    intrinsics! { values
        fn splat(self, x: f32) -> [__m256; 2] { [_mm256_set1_ps(x); 2] }
        fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])]
        }
        fn sub(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])]
        }
        fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
        }
        fn div(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])]
        }
        fn fma(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
        }
        fn max(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])]
        }
        fn min(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])]
        }
        fn sqrt(self, a: [__m256; 2]) -> [__m256; 2] { [_mm256_sqrt_ps(a[0]), _mm256_sqrt_ps(a[1])] }
        fn first(self, n: usize, x: [__m256; 2], other: [__m256; 2]) -> [__m256; 2] {
            let n = _mm256_set1_epi32(n.min(LANES) as i32);
            let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
            let keep = |lane| _mm256_castsi256_ps(_mm256_cmpgt_epi32(n, lane));
            [_mm256_blendv_ps(other[0], x[0], keep(low)), _mm256_blendv_ps(other[1], x[1], keep(high))]
        }
        fn scale(self, x: [__m256; 2], n: [__m256; 2]) -> [__m256; 2] {
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
        fn transpose(self, x: [[__m256; 2]; LANES]) -> [[__m256; 2]; LANES] {
            // Four squares of eight by eight, which change places themselves.
            let mut out = x;
            for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let square = std::array::from_fn(|row| x[8 * i + row][j]);
                for (row, turned) in transpose_256(square).into_iter().enumerate() {
                    out[8 * j + row][i] = turned;
                }
            }
            out
        }
        fn sum(self, x: [__m256; 2]) -> f32 { sum_256(_mm256_add_ps(x[0], x[1])) }
        fn largest(self, x: [__m256; 2]) -> f32 { largest_256(_mm256_max_ps(x[0], x[1])) }
        fn bits(self, x: [__m256; 2]) -> [__m256i; 2] {
            [_mm256_castps_si256(x[0]), _mm256_castps_si256(x[1])]
        }
        fn splat_u32(self, x: u32) -> [__m256i; 2] { [_mm256_set1_epi32(x as i32); 2] }
        fn count_u32(self, first: u32) -> [__m256i; 2] {
            let low =
                _mm256_add_epi32(_mm256_set1_epi32(first as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            [low, _mm256_add_epi32(low, _mm256_set1_epi32(8))]
        }
        fn add_u32(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
            [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])]
        }
        fn xor_u32(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
            [_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1])]
        }
        fn mul_u32(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
            [_mm256_mullo_epi32(a[0], b[0]), _mm256_mullo_epi32(a[1], b[1])]
        }
        fn shift_right_u32(self, a: [__m256i; 2], n: u32) -> [__m256i; 2] {
            let n = _mm_cvtsi32_si128(n as i32);
            [_mm256_srl_epi32(a[0], n), _mm256_srl_epi32(a[1], n)]
        }
        fn round_stochastically(self, x: [__m256; 2], random: [__m256i; 2]) -> [__m256; 2] {
            let mut out = x;
            let exponent = _mm256_set1_epi32(0x7f80_0000);
            let kept = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            for i in 0..2 {
                let bits = _mm256_castps_si256(x[i]);
                let up = _mm256_add_epi32(bits, _mm256_and_si256(random[i], _mm256_set1_epi32(0xffff)));
                let overflows = _mm256_cmpeq_epi32(_mm256_and_si256(up, exponent), exponent);
                let infinite = _mm256_cmpeq_epi32(_mm256_and_si256(bits, exponent), exponent);
                let rounded = _mm256_and_si256(_mm256_blendv_epi8(up, bits, overflows), kept);
                out[i] = _mm256_castsi256_ps(_mm256_blendv_epi8(rounded, bits, infinite));
            }
            out
        }
    }
}
