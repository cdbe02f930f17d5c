// The start of every kernel file: types, conversions, warp and block reductions, and instructions that C++ has no words
// for. No header is included: NVRTC brings none.
//
// Kernels are compiled without contraction of multiplications and additions (--fmad=false): where one rounding is
// needed, fma() says so, so that two instances of a template give the same bits.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

/// Keys in a block of the cache.
#define KV_BLOCK 16
/// Keys in a chunk of attention.
#define ATTENTION_CHUNK 512
/// Fields of a segment record: first row, rows, first position, offset into the tables, parent's first row.
#define SEGMENT_FIELDS 5
#define NO_PARENT 0xffffffffu
/// Words of a draw's key: the sample's id (low, high), the position, and the seed (low, high).
#define KEY_WORDS 5
#define WARP 32
#define ALL_LANES 0xffffffffu

struct bf16 {
    u16 bits;
};

#ifndef PLIMSOLL_HOST

__device__ __forceinline__ u32 tiles_of(u32 n, u32 width) { return (n + width - 1) / width; }

__device__ __forceinline__ u32 as_u32(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float as_f32(u32 x) { return __uint_as_float(x); }

/// Lets blocks of the next kernel start when all of this one's have started.
__device__ __forceinline__ void call_others() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Waits until the kernels before this one have ended.
__device__ __forceinline__ void wait_for_others() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Both: launches overlap, and nothing else does. Every kernel begins with it, but may first read what nothing writes.
__device__ __forceinline__ void begin() {
    call_others();
    wait_for_others();
}

/// The thread's warp, as a value that the compiler knows to be the same in all lanes: what follows from it is computed
/// once a warp, and products find their operands without waiting. All lanes call it.
__device__ __forceinline__ u32 own_warp() { return __shfl_sync(ALL_LANES, threadIdx.x / WARP, 0); }

/// Two f32 to two bf16 in one word, the first in the low half; nearest even.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/// One rounding.
__device__ __forceinline__ float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }

/// 2^x by the instruction; its bits are the same on every device of one architecture.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// d += a b: 16 x 8 from 16 x 16 (row) and 16 x 8 (col), bf16 in, f32 out.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ u32 shared_address(const void* p) {
    return (u32)__cvta_generic_to_shared(p);
}

/// Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)) : "memory");
}

/// Loads as `ldmatrix_x4`, and transposes each matrix.
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)) : "memory");
}

/// 16 bytes from global to shared memory, asynchronously; zeros where `valid` is false.
__device__ __forceinline__ void copy_async_16(void* dst_shared, const void* src_global, bool valid) {
    u32 bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(shared_address(dst_shared)), "l"(src_global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most N of the committed groups are under way.
template <int N>
__device__ __forceinline__ void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

/// The first bad index of a checked build: code, value, limit, block.
extern "C" __device__ u32 plimsoll_fault[4];
__device__ u32 plimsoll_fault[4];

#ifdef PLIMSOLL_CHECKED
/// True if `value` < `limit`; else the first such case is kept for the host, which names it.
__device__ __noinline__ bool index_ok(u32 code, u32 value, u32 limit) {
    if (value < limit) return true;
    if (atomicCAS(&plimsoll_fault[0], 0u, code) == 0u) {
        plimsoll_fault[1] = value;
        plimsoll_fault[2] = limit;
        plimsoll_fault[3] = blockIdx.x;
    }
    return false;
}
#else
#define index_ok(code, value, limit) true
#endif

#endif // PLIMSOLL_HOST

// Codes of `index_ok`; the host's words for them are in `launch.rs`.
#define BAD_TOKEN 1      // a token id beyond the vocabulary
#define BAD_KV_SLOT 2    // a slot beyond the cache
#define BAD_KV_BLOCK 3   // a block table entry beyond the cache
#define BAD_POSITION 4   // a position beyond the rotary table
#define BAD_ROW 5        // a row index beyond the batch
#define BAD_SEGMENT 6    // a segment's rows or table beyond their arrays
#define NOT_FINITE 7     // a value that is not a number, or infinite

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(bf16 x) { return as_f32((u32)x.bits << 16); }
__device__ __forceinline__ float low_f32(u32 two) { return as_f32(two << 16); }
__device__ __forceinline__ float high_f32(u32 two) { return as_f32(two & 0xffff0000u); }

template <class T> struct Convert;
template <> struct Convert<float> {
    static __device__ __forceinline__ float from(float x) { return x; }
};
template <> struct Convert<bf16> {
    static __device__ __forceinline__ bf16 from(float x) {
        bf16 y;
        y.bits = (u16)pack_bf16(x, 0.0f);
        return y;
    }
};
/// Rounds to the nearest, ties to even.
template <class T> __device__ __forceinline__ T from_f32(float x) { return Convert<T>::from(x); }

/// e^x to 2 units in the last place; 0 below -104, infinity above 88.72, NaN of NaN. The polynomial of the CPU's lanes.
__device__ __forceinline__ float exp_f32(float x) {
    x = x > 100.0f ? 100.0f : x;
    x = x < -110.0f ? -110.0f : x;
    // Adding 1.5 * 2^23 rounds to an integer n, which is then in the low bits; x = n ln 2 + r, |r| <= 0.3466.
    const float magic = 12582912.0f;
    float shifted = fma(x, 1.44269504f, magic);
    float n = shifted - magic;
    // ln 2 in two parts, the first of 10 bits, so that n times it is exact.
    float r = fma(n, -0.693359375f, x);
    r = fma(n, 2.12194440e-4f, r);
    float p = 1.9875691e-4f;
    p = fma(p, r, 1.3982e-3f);
    p = fma(p, r, 8.333452e-3f);
    p = fma(p, r, 4.1665796e-2f);
    p = fma(p, r, 1.6666665e-1f);
    p = fma(p, r, 0.5f);
    p = fma(p, r * r, r) + 1.0f;
    // Two factors: 2^n itself may lie outside the normal range. The first product is exact.
    int exponent = (int)(as_u32(shifted) - as_u32(magic));
    int half = exponent >> 1;
    return p * as_f32((u32)(half + 127) << 23) * as_f32((u32)(exponent - half + 127) << 23);
}

/// Sum over a warp: a tree that does not depend on the data; every lane gets it.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x = x + __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

/// Streams of random numbers, as `plimsoll_base::rng::Stream`.
#define STREAM_SAMPLER 2

/// Philox4x32-10: four numbers of a key and a counter, as `plimsoll_base::rng::philox`.
__device__ __forceinline__ uint4 philox(u64 seed, u32 stream, u64 a, u64 b) {
    u64 key = seed ^ ((u64)stream * 0x9E3779B97F4A7C15ull);
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
    u32 x0 = (u32)a, x1 = (u32)(a >> 32), x2 = (u32)b, x3 = (u32)(b >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u64 p0 = (u64)x0 * 0xD2511F53u, p1 = (u64)x2 * 0xCD9E8D57u;
        x0 = (u32)(p1 >> 32) ^ x1 ^ k0;
        x1 = (u32)p1;
        x2 = (u32)(p0 >> 32) ^ x3 ^ k1;
        x3 = (u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(x0, x1, x2, x3);
}

/// A uniform number in (0, 1), as `plimsoll_base::rng::unit_f32`.
__device__ __forceinline__ float unit_f32(u32 bits) { return ((float)(bits >> 9) + 0.5f) * (1.0f / 8388608.0f); }

/// A uniform number in (0, 1) of 52 bits.
__device__ __forceinline__ double unit_f64(u32 low, u32 high) {
    u64 bits = ((u64)high << 32 | low) >> 12;
    return ((double)bits + 0.5) * (1.0 / 4503599627370496.0);
}

/// Sums over the lanes up to and including each.
__device__ __forceinline__ double warp_scan(double x) {
    u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 step = 1; step < WARP; step <<= 1) {
        double below = __shfl_up_sync(ALL_LANES, x, step);
        if (lane >= step) x = below + x;
    }
    return x;
}

/// Four neighbouring elements as f32, aligned to their size.
__device__ __forceinline__ void load4(const float* p, float (&x)[4]) {
    float4 v = *(const float4*)p;
    x[0] = v.x; x[1] = v.y; x[2] = v.z; x[3] = v.w;
}
__device__ __forceinline__ void load4(const bf16* p, float (&x)[4]) {
    uint2 v = *(const uint2*)p;
    x[0] = low_f32(v.x); x[1] = high_f32(v.x); x[2] = low_f32(v.y); x[3] = high_f32(v.y);
}
__device__ __forceinline__ void store4(float* p, const float (&x)[4]) {
    *(float4*)p = make_float4(x[0], x[1], x[2], x[3]);
}
__device__ __forceinline__ void store4(bf16* p, const float (&x)[4]) {
    *(uint2*)p = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
}

/// Eight neighbouring elements, aligned to 16 bytes, as f32.
__device__ __forceinline__ void load8(const float* p, float (&x)[8]) {
    float4 a = ((const float4*)p)[0], b = ((const float4*)p)[1];
    x[0] = a.x; x[1] = a.y; x[2] = a.z; x[3] = a.w;
    x[4] = b.x; x[5] = b.y; x[6] = b.z; x[7] = b.w;
}
__device__ __forceinline__ void load8(const bf16* p, float (&x)[8]) {
    uint4 v = *(const uint4*)p;
    x[0] = low_f32(v.x); x[1] = high_f32(v.x); x[2] = low_f32(v.y); x[3] = high_f32(v.y);
    x[4] = low_f32(v.z); x[5] = high_f32(v.z); x[6] = low_f32(v.w); x[7] = high_f32(v.w);
}
__device__ __forceinline__ void store8(float* p, const float (&x)[8]) {
    ((float4*)p)[0] = make_float4(x[0], x[1], x[2], x[3]);
    ((float4*)p)[1] = make_float4(x[4], x[5], x[6], x[7]);
}
__device__ __forceinline__ void store8(bf16* p, const float (&x)[8]) {
    *(uint4*)p = make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}

/// tanh x by the CPU's quotient of two polynomials.
__device__ __forceinline__ float tanh_exact(float x) {
    const float limit = 7.905311f;
    x = x < -limit ? -limit : (x > limit ? limit : x);  // NaN stays NaN
    float x2 = x * x, p = -2.7607684e-16f, q = 1.1982584e-6f;
    p = fma(p, x2, 2.000188e-13f);
    p = fma(p, x2, -8.604672e-11f);
    p = fma(p, x2, 5.1222973e-8f);
    p = fma(p, x2, 1.4857224e-5f);
    p = fma(p, x2, 6.3726193e-4f);
    p = fma(p, x2, 4.8935246e-3f);
    q = fma(q, x2, 1.1853471e-4f);
    q = fma(q, x2, 2.2684346e-3f);
    q = fma(q, x2, 4.893525e-3f);
    return x * p / q;
}

/// c tanh(x / c), and its slope at the result y.
__device__ __forceinline__ float capped(float x, float c) { return tanh_exact(x / c) * c; }
__device__ __forceinline__ float capped_slope(float y, float c) { return 1.0f - y / c * (y / c); }
