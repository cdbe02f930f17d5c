// Weights in file blocks, widened for products. A thread has eight neighbours of a row, so that lanes read neighbouring
// bytes and a block of 256 is a warp's. Values come from the operations of `plimsoll_base::blocks`, in order.

/// A number of 16 bits, which f32 holds exactly.
__device__ __forceinline__ float half_at(const u8* p) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(*(const u16*)p)); // blocks begin at even bytes
    return x;
}

/// `BYTES` of `VALUES` numbers; `read` gives the eight from number 8 t on.
struct Q8_0 {
    static const u32 BYTES = 34, VALUES = 32;
    static __device__ __forceinline__ void read(const u8* b, u32 t, float (&x)[8]) {
        float scale = half_at(b);
#pragma unroll
        for (u32 j = 0; j < 8; j++) x[j] = (float)(signed char)b[2 + t * 8 + j] * scale;
    }
};

/// Number 8 t + j of 32 nibbles: low ones first, then high ones.
__device__ __forceinline__ u32 nibble(const u8* qs, u32 t, u32 j) {
    return qs[t % 2 * 8 + j] >> (t / 2 * 4) & 15;
}

/// The fifth bit of number 8 t + j.
__device__ __forceinline__ u32 fifth(const u8* qh, u32 t, u32 j) { return (u32)(qh[t] >> j & 1) << 4; }

struct Q4_0 {
    static const u32 BYTES = 18, VALUES = 32;
    static __device__ __forceinline__ void read(const u8* b, u32 t, float (&x)[8]) {
        float scale = half_at(b);
#pragma unroll
        for (u32 j = 0; j < 8; j++) x[j] = ((float)nibble(b + 2, t, j) - 8.0f) * scale;
    }
};

struct Q4_1 {
    static const u32 BYTES = 20, VALUES = 32;
    static __device__ __forceinline__ void read(const u8* b, u32 t, float (&x)[8]) {
        float scale = half_at(b), minimum = half_at(b + 2);
#pragma unroll
        for (u32 j = 0; j < 8; j++) x[j] = (float)nibble(b + 4, t, j) * scale + minimum;
    }
};

struct Q5_0 {
    static const u32 BYTES = 22, VALUES = 32;
    static __device__ __forceinline__ void read(const u8* b, u32 t, float (&x)[8]) {
        float scale = half_at(b);
#pragma unroll
        for (u32 j = 0; j < 8; j++) x[j] = ((float)(nibble(b + 6, t, j) | fifth(b + 2, t, j)) - 16.0f) * scale;
    }
};

struct Q5_1 {
    static const u32 BYTES = 24, VALUES = 32;
    static __device__ __forceinline__ void read(const u8* b, u32 t, float (&x)[8]) {
        float scale = half_at(b), minimum = half_at(b + 2);
#pragma unroll
        for (u32 j = 0; j < 8; j++) x[j] = (float)(nibble(b + 8, t, j) | fifth(b + 4, t, j)) * scale + minimum;
    }
};

/// Scale and minimum of a group of 32 of Q4_K and Q5_K: twelve bytes hold sixteen numbers of 6 bits.
__device__ __forceinline__ void group_of(const u8* b, u32 group, float& scale, float& minimum) {
    const u8* s = b + 4;
    u32 of = s[group & 3], least = s[(group & 3) + 4];
    u32 six = of & 63, six_least = least & 63;
    if (group >= 4) {
        u32 low = s[group + 4];
        six = (low & 15) | of >> 6 << 4;
        six_least = low >> 4 | least >> 6 << 4;
    }
    scale = half_at(b) * (float)six;
    minimum = half_at(b + 2) * (float)six_least;
}

struct Q4_K {
    static const u32 BYTES = 144, VALUES = 256;
    static __device__ __forceinline__ void read(const u8* b, u32 t, float (&x)[8]) {
        u32 group = t / 4, shift = group % 2 * 4;
        const u8* qs = b + 16 + group / 2 * 32 + t % 4 * 8;
        float scale, minimum;
        group_of(b, group, scale, minimum);
#pragma unroll
        for (u32 j = 0; j < 8; j++) x[j] = scale * (float)(qs[j] >> shift & 15) - minimum;
    }
};

struct Q5_K {
    static const u32 BYTES = 176, VALUES = 256;
    static __device__ __forceinline__ void read(const u8* b, u32 t, float (&x)[8]) {
        u32 group = t / 4, shift = group % 2 * 4;
        const u8 *qs = b + 48 + group / 2 * 32 + t % 4 * 8, *qh = b + 16 + t % 4 * 8;
        float scale, minimum;
        group_of(b, group, scale, minimum);
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            u32 q = (qs[j] >> shift & 15) | (qh[j] >> group & 1) << 4;
            x[j] = scale * (float)q - minimum;
        }
    }
};

struct Q6_K {
    static const u32 BYTES = 210, VALUES = 256;
    static __device__ __forceinline__ void read(const u8* b, u32 t, float (&x)[8]) {
        // Half n of the block has 64 low bytes and 32 high ones; its quarter p takes bits 2 p of the high bytes.
        u32 n = t / 16, p = t % 16 / 4, l = t % 4 * 8;
        const u8 *ql = b + n * 64 + p % 2 * 32 + l, *qh = b + 128 + n * 32 + l;
        float scale = half_at(b + 208) * (float)(signed char)b[192 + t / 2];
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            u32 q = (ql[j] >> (p / 2 * 4) & 15) | (qh[j] >> (p * 2) & 3) << 4;
            x[j] = scale * ((float)q - 32.0f);
        }
    }
};

/// 2^(byte - 127); NaN of 255.
__device__ __forceinline__ float power_at(const u8* p) {
    const u32 x = *p;
    return as_f32(x == 255 ? 0x7fc00000u : x == 0 ? 1u << 22 : x << 23);
}

/// The number of a code: a sign, two bits of exponent and one of mantissa.
__device__ __forceinline__ float e2m1(u32 code) {
    const u32 size = code & 7;
    // 1.5 2^n and 2^n from 1 on; below it 0 and 0.5.
    const u32 bits = size < 2 ? size * 0x3f000000u : (126 + size / 2) << 23 | (size & 1) << 22;
    return as_f32(bits | code >> 3 << 31);
}

struct MXFP4 {
    static const u32 BYTES = 17, VALUES = 32;
    static __device__ __forceinline__ void read(const u8* b, u32 t, float (&x)[8]) {
        const float scale = power_at(b);
#pragma unroll
        for (u32 j = 0; j < 8; j++) x[j] = e2m1(b[1 + t * 4 + j / 2] >> (j % 2 * 4) & 15) * scale;
    }
};

template <class B, class T>
__device__ __forceinline__ void widen(const u8* __restrict__ bytes, T* __restrict__ out, u64 count) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const u32 each = B::VALUES / 8;
    float x[8];
    B::read(bytes + i / each * B::BYTES, (u32)(i % each), x);
    store8(out + i * 8, x);
}

__device__ __forceinline__ float plain_f32(const u8* p) { return *(const float*)p; }
__device__ __forceinline__ float plain_bf16(const u8* p) { return as_f32((u32) * (const u16*)p << 16); }
__device__ __forceinline__ float plain_f16(const u8* p) { return half_at(p); }

#define WIDEN(name, B)                                                                                              \
    extern "C" __global__ void __launch_bounds__(256) widen_##name##_bf16(const u8* bytes, bf16* out, u64 count) {   \
        begin();                                                                                                     \
        widen<B>(bytes, out, count);                                                                                 \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(256) widen_##name##_float(const u8* bytes, float* out, u64 count) { \
        begin();                                                                                                     \
        widen<B>(bytes, out, count);                                                                                 \
    }

WIDEN(q8_0, Q8_0)
WIDEN(q4_0, Q4_0)
WIDEN(q4_1, Q4_1)
WIDEN(q5_0, Q5_0)
WIDEN(q5_1, Q5_1)
WIDEN(q4_k, Q4_K)
WIDEN(q5_k, Q5_K)
WIDEN(q6_k, Q6_K)
WIDEN(mxfp4, MXFP4)

// Tensors that a file has as plain numbers: a thread has one.
#define WIDEN_PLAIN(name, size)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256) widen_##name##_bf16(const u8* bytes, bf16* out, u64 count) {   \
        begin();                                                                                                     \
        u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                                          \
        if (i < count) out[i] = from_f32<bf16>(plain_##name(bytes + i * size));                                      \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(256) widen_##name##_float(const u8* bytes, float* out, u64 count) { \
        begin();                                                                                                     \
        u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                                          \
        if (i < count) out[i] = plain_##name(bytes + i * size);                                                      \
    }

WIDEN_PLAIN(f32, 4)
WIDEN_PLAIN(f16, 2)
WIDEN_PLAIN(bf16, 2)
