// Operations on rows of images: norms by mean and variance, GELU without a gate, and rows that are weighed or replaced.
//
// A block has a row of a norm; the order of its sums depends on the row's length alone. Sums over rows go through
// partial sums of fixed chunks of rows, as in rows.cu.

#define TOWER_THREADS 256
/// Columns of a block of the sums for weights, one a lane; its warps take every SUM_WARPS-th row of a chunk.
#define SUM_WARPS 8

/// Sum over a block; every thread gets it.
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float parts[TOWER_THREADS / WARP];
    x = warp_sum(x);
    __syncthreads();  // the last sum's parts have been read
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = x;
    __syncthreads();
    x = parts[0];
#pragma unroll
    for (int i = 1; i < TOWER_THREADS / WARP; i++) x = x + parts[i];
    return x;
}

/// A row's mean, and 1 / sqrt(variance + eps).
struct Moments {
    float mean, r;
    __device__ __forceinline__ Moments(const float* __restrict__ x, u32 h, float eps) {
        float sum = 0.0f, square = 0.0f;
        for (u32 c = threadIdx.x; c < h; c += TOWER_THREADS) sum = sum + x[c];
        mean = block_sum(sum) / (float)h;
        for (u32 c = threadIdx.x; c < h; c += TOWER_THREADS) square = fma(x[c] - mean, x[c] - mean, square);
        r = 1.0f / sqrtf(block_sum(square) / (float)h + eps);
    }
};

/// out = (x - mean) r w + b; a block a row.
template <class T>
__device__ __forceinline__ void layer_norm(const float* __restrict__ x, const T* __restrict__ w,
                                           const T* __restrict__ b, float eps, T* __restrict__ out, u32 h) {
    const u64 first = (u64)blockIdx.x * h;
    const Moments of(x + first, h, eps);
    for (u32 c = threadIdx.x; c < h; c += TOWER_THREADS)
        out[first + c] = from_f32<T>((x[first + c] - of.mean) * of.r * to_f32(w[c]) + to_f32(b[c]));
}

/// dx += r (g - mean(g) - xhat mean(g xhat)), g = w dy, xhat = (x - mean) r; a block a row. `rounded`, if given, gets
/// the new dx too, and `stats` [2, M] the rows' means and r.
template <class T, class G>
__device__ __forceinline__ void layer_norm_backward(const float* __restrict__ x, const T* __restrict__ w, float eps,
                                                    const G* __restrict__ dy, float* __restrict__ dx,
                                                    T* __restrict__ rounded, float* __restrict__ stats, u32 rows,
                                                    u32 h) {
    const u64 first = (u64)blockIdx.x * h;
    const Moments of(x + first, h, eps);
    float sum = 0.0f, dot = 0.0f;
    for (u32 c = threadIdx.x; c < h; c += TOWER_THREADS) {
        const float g = to_f32(w[c]) * to_f32(dy[first + c]);
        sum = sum + g;
        dot = fma(g, (x[first + c] - of.mean) * of.r, dot);
    }
    const float mean = block_sum(sum) / (float)h, slope = -block_sum(dot) / (float)h;
    for (u32 c = threadIdx.x; c < h; c += TOWER_THREADS) {
        const float g = to_f32(w[c]) * to_f32(dy[first + c]), xhat = (x[first + c] - of.mean) * of.r;
        const float to = fma(fma(xhat, slope, g - mean), of.r, dx[first + c]);
        dx[first + c] = to;
        if (rounded) rounded[first + c] = from_f32<T>(to);
    }
    if (threadIdx.x > 0) return;
    stats[blockIdx.x] = of.mean;
    stats[(u64)rows + blockIdx.x] = of.r;
}

/// partials[chunk][c] = sum over the chunk's rows of dy xhat. grid: (columns / WARP, chunks).
template <class G>
__device__ __forceinline__ void layer_norm_sums(const G* __restrict__ dy, const float* __restrict__ x,
                                                const float* __restrict__ stats, float* __restrict__ partials, u32 rows,
                                                u32 h, u32 chunk_rows) {
    __shared__ float shared[SUM_WARPS][WARP];
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, c = blockIdx.x * WARP + lane;
    const u32 first = blockIdx.y * chunk_rows, end = min(first + chunk_rows, rows);
    float sum = 0.0f;
    for (u32 row = first + warp; c < h && row < end; row += SUM_WARPS) {
        const u64 at = (u64)row * h + c;
        sum = fma(to_f32(dy[at]), (x[at] - stats[row]) * stats[(u64)rows + row], sum);
    }
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= h) return;
#pragma unroll
    for (int i = 1; i < SUM_WARPS; i++) sum = sum + shared[i][lane];
    partials[(u64)blockIdx.y * h + c] = sum;
}

#define LAYER_NORM(T)                                                                                                \
    extern "C" __global__ void __launch_bounds__(TOWER_THREADS)                                                      \
        layer_norm_##T(const float* x, const T* w, const T* b, float eps, T* out, u32 h) {                           \
        begin();                                                                                                     \
        layer_norm<T>(x, w, b, eps, out, h);                                                                         \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(TOWER_THREADS)                                                      \
        layer_norm_sums_##T(const T* dy, const float* x, const float* stats, float* partials, u32 rows, u32 h,       \
                            u32 chunk_rows) {                                                                        \
        begin();                                                                                                     \
        layer_norm_sums<T>(dy, x, stats, partials, rows, h, chunk_rows);                                             \
    }
LAYER_NORM(float)
LAYER_NORM(bf16)

/// Kernels by the dtypes of the weights and of the output's gradient.
#define LAYER_NORM_BACKWARD(T, G, TYPES)                                                                             \
    extern "C" __global__ void __launch_bounds__(TOWER_THREADS)                                                      \
        layer_norm_backward_##TYPES(const float* x, const T* w, float eps, const G* dy, float* dx, T* rounded,       \
                                    float* stats, u32 rows, u32 h) {                                                 \
        begin();                                                                                                     \
        layer_norm_backward<T, G>(x, w, eps, dy, dx, rounded, stats, rows, h);                                       \
    }
LAYER_NORM_BACKWARD(float, float, float)
LAYER_NORM_BACKWARD(bf16, bf16, bf16)
LAYER_NORM_BACKWARD(bf16, float, bf16_float)

// ---- GELU -----------------------------------------------------------------------------------------------------------

/// (1 + erf(x / sqrt 2)) / 2: the CPU's quotient of two polynomials, whose largest error is 4.2e-7.
__device__ __forceinline__ float share(float x) {
    x = x * 0.70710678f;
    x = x < -4.0f ? -4.0f : (x > 4.0f ? 4.0f : x);  // NaN stays NaN
    const float x2 = x * x;
    float p = -2.7261423e-10f, q = -1.4566072e-5f;
    p = fma(p, x2, 2.7706814e-8f);
    p = fma(p, x2, -2.101024e-6f);
    p = fma(p, x2, -5.6925064e-5f);
    p = fma(p, x2, -7.3499063e-4f);
    p = fma(p, x2, -2.9546e-3f);
    p = fma(p, x2, -1.6096033e-2f);
    q = fma(q, x2, -2.1337406e-4f);
    q = fma(q, x2, -1.682827e-3f);
    q = fma(q, x2, -7.3733292e-3f);
    q = fma(q, x2, -1.4264739e-2f);
    return (x * p / q + 1.0f) * 0.5f;
}

/// dy times the slope of GELU at x, by erf or by tanh.
template <class T> __device__ __forceinline__ float gelu_slope(float x, float dy, u32 by_erf) {
    if (by_erf) return dy * fma(x * 0.3989423f, exp_exact(x * x * -0.5f), share(x));
    float g = x, u = 1.0f;
    slopes<T>(g, u, dy, 1);
    return g;
}

/// `out` may be `x`, and `dx` may be `dy`.
#define GELU(T)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(TOWER_THREADS) gelu_##T(const T* x, T* out, u64 n, u32 by_erf) {    \
        begin();                                                                                                     \
        const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                                    \
        if (i >= n) return;                                                                                          \
        const float v = to_f32(x[i]);                                                                                \
        out[i] = from_f32<T>(by_erf ? v * share(v) : bent<T>(v, 1));                                                 \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(TOWER_THREADS)                                                      \
        gelu_backward_##T(const T* x, const T* dy, T* dx, u64 n, u32 by_erf) {                                       \
        begin();                                                                                                     \
        const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                                    \
        if (i < n) dx[i] = from_f32<T>(gelu_slope<T>(to_f32(x[i]), to_f32(dy[i]), by_erf));                          \
    }
GELU(float)
GELU(bf16)

// ---- rows -----------------------------------------------------------------------------------------------------------

/// out[m] = by[m] x[m], or out += when `add`; the product is rounded first.
extern "C" __global__ void __launch_bounds__(TOWER_THREADS)
    weigh_rows(const float* x, const float* by, float* out, u64 n, u32 h, u32 add) {
    begin();
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float y = x[i] * by[i / h];
    out[i] = add ? out[i] + y : y;
}

/// dst[rows[r]] = src[r]; a block for each row.
extern "C" __global__ void __launch_bounds__(TOWER_THREADS)
    replace_rows(const float* src, const u32* rows, float* dst, u32 h, u32 limit) {
    begin();
    const u32 row = rows[blockIdx.x];
    if (!index_ok(BAD_ROW, row, limit)) return;
    for (u32 c = threadIdx.x; c < h; c += blockDim.x) dst[(u64)row * h + c] = src[(u64)blockIdx.x * h + c];
}

extern "C" __global__ void __launch_bounds__(TOWER_THREADS) next_places(u32* places, u32 n) {
    begin();
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) places[i] = places[i] + 1;
}
