// AdamW with f32 or bf16 states, and the sum of squares for gradient clipping.
//
// The update does what the CPU's does, operation by operation, so that the two agree to the bit: one rounding where fma
// stands, IEEE division and root, and stochastic rounding by a hash of (seed, step, index of the element).

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

/// Up to it, and down to minus it, numbers stay finite whatever is added below the bits that bf16 keeps.
#define ROUNDS_FREELY as_f32(0x7f7f0000u)

/// The same of a number that is no larger; `free` becomes false of others, whose results are not to be used. Comparisons
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

/// Eight elements a thread. `wide`: all arrays are aligned to 16 bytes. `first`: index of element 0 among all parameters.
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

/// sums[block] = sum of squares of its elements, in f64, where the square of an f32 is exact. `block` is a multiple of
/// eight; whether loads are wide does not change who adds what.
template <class T>
__device__ __forceinline__ void sum_squares(const T* __restrict__ x, double* __restrict__ sums, u64 n, u64 block,
                                            u32 wide) {
    u64 first = blockIdx.x * block, end = first + block < n ? first + block : n;
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
    double sum = block_sum((total[0] + total[1]) + (total[2] + total[3]));
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

#define SUM_SQUARES(T)                                                                                               \
    extern "C" __global__ void __launch_bounds__(SQUARE_THREADS)                                                     \
        sum_squares_##T(const T* x, double* sums, u64 n, u64 block, u32 wide) {                                      \
        sum_squares<T>(x, sums, n, block, wide);                                                                     \
    }
SUM_SQUARES(float)
SUM_SQUARES(bf16)

/// sums[blocks] = sum of sums[..blocks], by one block of threads.
extern "C" __global__ void __launch_bounds__(SQUARE_THREADS) add_sums(double* sums, u32 blocks) {
    double total = 0.0;
    for (u32 i = threadIdx.x; i < blocks; i += SQUARE_THREADS) total = total + sums[i];
    total = block_sum(total);
    if (threadIdx.x == 0) sums[blocks] = total;
}
