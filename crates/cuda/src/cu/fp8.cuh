// Numbers of eight bits (OCP E4M3: four of exponent, three of mantissa, no infinity) in blocks that share a power of two.

/// Neighbours along a row that share a scale; of weights, 128 rows of them do.
#define FP8_BLOCK 128

/// The scale of a block, as `plimsoll_base::fp8::scale_of`: the least power of two under which the largest of it is at
/// most 448. `largest`: the bits of an absolute value.
__device__ __forceinline__ u32 fp8_scale(u32 largest) {
    const u32 exponent = largest >> 23, above = (largest & 0x7fffff) > 0x600000;
    if (largest == 0 || exponent == 255) return 127u << 23;
    return (exponent + above > 9 ? exponent + above - 8 : 1) << 23;
}
/// 1 / scale.
__device__ __forceinline__ float fp8_inverse(u32 scale) { return as_f32((254u << 23) - scale); }

/// Two numbers to two codes, the first in the low half: the nearest, ties to even. Those of blocks with a number that is
/// not finite are all NaN.
__device__ __forceinline__ u32 fp8_pair(float low, float high, float inverse, bool is_finite) {
    u16 two = 0x7f7f;
#if __CUDA_ARCH__ >= 890
    if (is_finite) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high * inverse), "f"(low * inverse));
#endif
    return two;
}
