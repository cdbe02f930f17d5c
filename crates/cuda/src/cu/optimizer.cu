// AdamW with f32, bf16 or 8-bit states, and the sum of squares for gradient clipping.
//
// The update does what the CPU's does, operation by operation, so that the two agree to the bit: one rounding for
// each fma, IEEE division and root, and stochastic rounding by a hash of (seed, step, index of the element).

/// The update's constants.
struct Update {
    float beta1, rest1;      // decay of the first moment, and 1 - it
    float beta2, rest2;      // of the second
    float eps, keep;         // keep: 1 - lr decay
    float rate, correction;  // lr / (1 - beta1^t), 1 / (1 - beta2^t)
    float grad_scale;
    u32 key0, key1;
};

__device__ __forceinline__ u32 fold(u32 x, u32 n) { return x ^ (x >> n); }

/// Three 16-bit numbers, in the low halves: a hash of the element's index and the step's keys.
__device__ __forceinline__ void random_bits(u32 key0, u32 key1, u64 element, u32 (&out)[3]) {
    u32 second = (u32)(element >> 32) * 0x9e3779b9u ^ key1;
    u32 x = fold((u32)element ^ key0, 16) * 0x7feb352du;
    x = fold((fold(x, 15) + second) * 0x846ca68bu, 16);
    u32 y = fold((x + second) * 0x7feb352du, 15) * 0x846ca68bu;
    out[0] = x;
    out[1] = x >> 16;
    out[2] = y >> 16;
}

/// Adds the low 16 bits of `random` below the bits that bf16 keeps, and truncates; a finite number stays finite.
__device__ __forceinline__ float round_stochastically(float x, u32 random) {
    const u32 exponent = 0x7f800000u;
    u32 bits = as_u32(x), up = bits + (random & 0xffffu);
    if ((bits & exponent) == exponent) return x;
    return as_f32(((up & exponent) == exponent ? bits : up) & 0xffff0000u);
}

/// Numbers of this size or less stay finite whatever is added below the bits that bf16 keeps.
#define ROUNDS_FREELY as_f32(0x7f7f0000u)

/// Rounds a number of that size or less; `free` becomes false for others, whose results must not be used. Comparisons
/// and selections would be a fifth of an update's instructions.
__device__ __forceinline__ float round_freely(float x, u32 random, bool& free) {
    free = free && fabsf(x) <= ROUNDS_FREELY;
    return as_f32((as_u32(x) + (random & 0xffffu)) & 0xffff0000u);
}

template <class T> struct IsBf16 { static const bool value = false; };
template <> struct IsBf16<bf16> { static const bool value = true; };

/// One element: `old` becomes the new weight; the moments are rounded as they are stored. QUICK: as `round_freely`.
template <class W, class M, bool QUICK>
__device__ __forceinline__ void update(const Update& how, u64 element, bool master, float grad, float& old, float& m,
                                       float& v, bool& free) {
    auto round = [&](float x, u32 random) {
        return QUICK ? round_freely(x, random, free) : round_stochastically(x, random);
    };
    grad = grad * how.grad_scale;
    m = fma(m, how.beta1, grad * how.rest1);
    v = fma(v, how.beta2, grad * grad * how.rest2);
    float root = sqrtf(v * how.correction) + how.eps;
    old = fma(old, how.keep, m * -how.rate / root);
    bool round_weight = IsBf16<W>::value && !master;
    if (!round_weight && !IsBf16<M>::value) return;
    u32 random[3];
    random_bits(how.key0, how.key1, element, random);
    if (round_weight) old = round(old, random[0]);
    if (IsBf16<M>::value) {
        m = round(m, random[1]);
        v = round(v, random[2]);
    }
}

/// Eight elements a thread. `wide`: all arrays are 16-byte aligned. `first`: index of element 0 among all parameters.
template <class W, class G, class M>
__device__ __forceinline__ void adamw(const Update& how, u64 first, u64 n, W* __restrict__ w, const G* __restrict__ g,
                                      M* __restrict__ m, M* __restrict__ v, float* __restrict__ master, u32 wide) {
    u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (wide && at + 8 <= n) {
        float old[8], grad[8], m8[8], v8[8];
        load8(g + at, grad);
        load8(m + at, m8);
        load8(v + at, v8);
        if (master) load8(master + at, old);
        else load8(w + at, old);
        bool free = true;
#pragma unroll
        for (int i = 0; i < 8; i++)
            update<W, M, true>(how, first + at + i, master != nullptr, grad[i], old[i], m8[i], v8[i], free);
        if (free) {
            if (master) store8(master + at, old);
            store8(w + at, old);
            store8(m + at, m8);
            store8(v + at, v8);
            return;
        }
    }
    for (u64 end = at + 8 < n ? at + 8 : n; at < end; at++) {
        float old = master ? master[at] : to_f32(w[at]), m1 = to_f32(m[at]), v1 = to_f32(v[at]);
        bool free = true;
        update<W, M, false>(how, first + at, master != nullptr, to_f32(g[at]), old, m1, v1, free);
        if (master) master[at] = old;
        w[at] = from_f32<W>(old);
        m[at] = from_f32<M>(m1);
        v[at] = from_f32<M>(v1);
    }
}

#define ADAMW(W, G, M)                                                                                               \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        adamw_##W##_##G##_##M(W* w, const G* g, M* m, M* v, float* master, u64 n, u64 first, u32 wide, float beta1,  \
                              float rest1, float beta2, float rest2, float eps, float keep, float rate,              \
                              float correction, float grad_scale, u32 key0, u32 key1) {                              \
        begin();                                                                                                     \
        Update how = {beta1, rest1, beta2, rest2, eps, keep, rate, correction, grad_scale, key0, key1};              \
        adamw<W, G, M>(how, first, n, w, g, m, v, master, wide);                                                     \
    }
ADAMW(float, float, float)
ADAMW(float, float, bf16)
ADAMW(float, bf16, float)
ADAMW(float, bf16, bf16)
ADAMW(bf16, float, float)
ADAMW(bf16, float, bf16)
ADAMW(bf16, bf16, float)
ADAMW(bf16, bf16, bf16)

// ---- moments of 8 bits: codes.rs defines the codes ------------------------------------------------------

#define CODE_BLOCK 256

/// First moments: a sign, four bits of exponent, three of mantissa.
struct E4M3 {
    static const u32 sign = 0x80, exponent_max = 15;
};
/// Second moments: five bits of exponent, three of mantissa.
struct E5M3 {
    static const u32 sign = 0, exponent_max = 31;
};

template <class C> __device__ __forceinline__ float decode(u32 bits, float scale) {
    u32 exponent = bits >> 3 & C::exponent_max, normal = exponent > 0 ? 1 : 0;
    float size = (float)((bits & 7) | normal << 3) * as_f32((exponent - normal + 127) << 23) * scale;
    return as_f32(as_u32(size) | (bits & C::sign) << 24);
}

template <class C> __device__ __forceinline__ u32 encode(float x, float scale, u32 random) {
    const float largest = as_f32((C::exponent_max - 1 + 127) << 23) * 15.0f;
    float size = fminf(fabsf(x) * as_f32((254u << 23) - as_u32(scale)), largest);
    bool low = size < 8.0f;
    float shifted = size + (low ? 8.0f : 0.0f);
    u32 code = ((as_u32(shifted) + ((random & 0xffffu) << 4)) >> 20) - ((low ? 130u : 129u) << 3);
    if (C::sign == 0 && x > 0.0f && code == 0) code = 1;
    return code | (as_u32(x) >> 24 & C::sign);
}

/// The scale of a warp's block. `x`: the lane's eight numbers.
template <class C> __device__ __forceinline__ float block_scale(const float (&x)[8]) {
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = max(largest, as_u32(x[i]) & 0x7fffffffu);
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, step));
    const u32 steps = C::exponent_max + 2;
    u32 exponent = min((largest + 0xfffffu) >> 23, 254u);
    return as_f32((max(exponent, steps + 1) - steps) << 23);
}

/// A warp's block of codes; lanes after the end have `count` 0.
template <class C>
__device__ __forceinline__ void load_codes(const u8* codes, u32 count, float scale, float (&x)[8]) {
    u32 word[2] = {0, 0};
    if (count == 8) {
        uint2 both = *(const uint2*)codes;
        word[0] = both.x;
        word[1] = both.y;
    } else {
        for (u32 i = 0; i < count; i++) word[i / 4] |= (u32)codes[i] << 8 * (i % 4);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = decode<C>(word[i / 4] >> 8 * (i % 4) & 0xffu, scale);
}

__device__ __forceinline__ void store_codes(u8* codes, u32 count, const u32 (&code)[8]) {
    if (count == 8) {
        u32 word[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 8; i++) word[i / 4] |= code[i] << 8 * (i % 4);
        *(uint2*)codes = make_uint2(word[0], word[1]);
        return;
    }
    for (u32 i = 0; i < count; i++) codes[i] = (u8)code[i];
}

/// Eight elements a thread, a block of codes a warp. All arrays are aligned to 16 bytes.
template <class W, class G>
__device__ __forceinline__ void adamw8(const Update& how, u64 first, u64 n, W* __restrict__ w, const G* __restrict__ g,
                                       u8* __restrict__ m, u8* __restrict__ v, float* __restrict__ m_scales,
                                       float* __restrict__ v_scales) {
    u64 block = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    u32 lane = threadIdx.x % WARP;
    if (block * CODE_BLOCK >= n) return;
    u64 at = block * CODE_BLOCK + lane * 8;
    u32 count = at >= n ? 0 : n - at < 8 ? (u32)(n - at) : 8;
    float old[8] = {}, grad[8] = {}, m8[8], v8[8];
    load_codes<E4M3>(m + at, count, m_scales[block], m8);
    load_codes<E5M3>(v + at, count, v_scales[block], v8);
    if (count == 8) {
        load8(g + at, grad);
        load8(w + at, old);
    } else {
        for (u32 i = 0; i < count; i++) {
            grad[i] = to_f32(g[at + i]);
            old[i] = to_f32(w[at + i]);
        }
    }
    bool free = true;
#pragma unroll
    for (int i = 0; i < 8; i++)
        update<W, float, false>(how, first + at + i, false, grad[i], old[i], m8[i], v8[i], free);
    float m_scale = block_scale<E4M3>(m8), v_scale = block_scale<E5M3>(v8);
    u32 m_codes[8], v_codes[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 random[3];
        random_bits(how.key0, how.key1, first + at + i, random);
        m_codes[i] = encode<E4M3>(m8[i], m_scale, random[1]);
        v_codes[i] = encode<E5M3>(v8[i], v_scale, random[2]);
    }
    if (count == 8) store8(w + at, old);
    else for (u32 i = 0; i < count; i++) w[at + i] = from_f32<W>(old[i]);
    store_codes(m + at, count, m_codes);
    store_codes(v + at, count, v_codes);
    if (lane == 0) {
        m_scales[block] = m_scale;
        v_scales[block] = v_scale;
    }
}

#define ADAMW8(W, G)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        adamw8_##W##_##G(W* w, const G* g, u8* m, u8* v, float* m_scales, float* v_scales, u64 n, u64 first,         \
                         float beta1, float rest1, float beta2, float rest2, float eps, float keep, float rate,      \
                         float correction, float grad_scale, u32 key0, u32 key1) {                                   \
        begin();                                                                                                     \
        Update how = {beta1, rest1, beta2, rest2, eps, keep, rate, correction, grad_scale, key0, key1};              \
        adamw8<W, G>(how, first, n, w, g, m, v, m_scales, v_scales);                                                 \
    }
ADAMW8(float, float)
ADAMW8(float, bf16)
ADAMW8(bf16, float)
ADAMW8(bf16, bf16)

// ---- sum of squares -----------------------------------------------------------------------------------------------

#define SQUARE_THREADS 256

/// Sum over a block of threads: a fixed tree; thread 0 gets it.
__device__ __forceinline__ double block_sum(double x) {
    __shared__ double parts[SQUARE_THREADS / WARP];
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) x = x + __shfl_xor_sync(ALL_LANES, x, step);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = x;
    __syncthreads();
    double sum = parts[0];
#pragma unroll
    for (int i = 1; i < SQUARE_THREADS / WARP; i++) sum = sum + parts[i];
    return sum;
}

/// Sums squares of elements first..end by a block of threads, in f64, where the square of an f32 is exact. `first` is a
/// multiple of eight; whether loads are wide does not change who adds what.
template <class T>
__device__ __forceinline__ double squares(const T* __restrict__ x, u64 first, u64 end, u32 wide) {
    double total[4] = {0.0, 0.0, 0.0, 0.0};
#pragma unroll 2
    for (u64 at = first + threadIdx.x * 8; at < end; at += SQUARE_THREADS * 8) {
        float v[8] = {};
        if (wide && at + 8 <= end) {
            load8(x + at, v);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (at + i < end) v[i] = to_f32(x[at + i]);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            double y = v[i];
            total[i % 4] = total[i % 4] + y * y;
        }
    }
    return block_sum((total[0] + total[1]) + (total[2] + total[3]));
}

/// sums[block] = sum of squares of its elements. `block` is a multiple of eight.
template <class T>
__device__ __forceinline__ void sum_squares(const T* __restrict__ x, double* __restrict__ sums, u64 n, u64 block,
                                            u32 wide) {
    u64 first = blockIdx.x * block, end = first + block < n ? first + block : n;
    double sum = squares<T>(x, first, end, wide);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/// sums[run] = sum of squares of its elements. `runs`: first element and elements of each, first elements multiples of
/// eight if `wide`. A block a run.
template <class T>
__device__ __forceinline__ void squares_of(const T* __restrict__ x, const u64* __restrict__ runs,
                                           double* __restrict__ sums, u32 wide) {
    const u64 start = runs[2 * blockIdx.x], elements = runs[2 * blockIdx.x + 1];
    double sum = squares<T>(x + start, 0, elements, wide);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

#define SUM_SQUARES(T)                                                                                               \
    extern "C" __global__ void __launch_bounds__(SQUARE_THREADS)                                                     \
        sum_squares_##T(const T* x, double* sums, u64 n, u64 block, u32 wide) {                                      \
        begin();                                                                                                     \
        sum_squares<T>(x, sums, n, block, wide);                                                                     \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(SQUARE_THREADS)                                                     \
        squares_of_##T(const T* x, const u64* runs, double* sums, u32 wide) {                                        \
        begin();                                                                                                     \
        squares_of<T>(x, runs, sums, wide);                                                                          \
    }
SUM_SQUARES(float)
SUM_SQUARES(bf16)

/// sums[blocks] = sum of sums[..blocks], by one block of threads.
extern "C" __global__ void __launch_bounds__(SQUARE_THREADS) add_sums(double* sums, u32 blocks) {
    begin();
    double total = 0.0;
    for (u32 i = threadIdx.x; i < blocks; i += SQUARE_THREADS) total = total + sums[i];
    total = block_sum(total);
    if (threadIdx.x == 0) sums[blocks] = total;
}
