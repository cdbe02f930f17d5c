// The gated norm after the delta rule, y = w o / sqrt(mean(o^2) + eps) silu(z) over each head of a row; its gradient.
//
// A warp has a head of a row, four elements a lane.

#define NORM_WARPS 8
/// Heads of a row that a warp of the gradient reads before it computes.
#define NORM_AHEAD 2

struct NormShape {
    u32 items, heads, dim, row_width, z_first, wide;

    /// Offset of the gate of item i, a head of a row.
    __device__ __forceinline__ u64 gate(u32 i) const { return (u64)(i / heads) * row_width + z_first + i % heads * dim; }
};

__device__ __forceinline__ float norm_of(const float (&o)[4], u32 dim, float eps) {
    const float sum = warp_sum(fma(o[3], o[3], fma(o[2], o[2], fma(o[1], o[1], o[0] * o[0]))));
    return 1.0f / sqrtf(sum / (float)dim + eps);
}

template <class T>
__device__ __forceinline__ void norm_gated(const NormShape& is, const T* __restrict__ o, const T* __restrict__ x, const T* __restrict__ w,
                                           float eps, T* __restrict__ y) {
    const u32 i = blockIdx.x * NORM_WARPS + threadIdx.x / WARP, c = threadIdx.x % WARP * 4;
    if (i >= is.items) return;
    float of[4] = {}, z[4] = {}, weight[4] = {};
    if (c < is.dim) {
        load4(o + (u64)i * is.dim + c, of);
        take4(x + is.gate(i) + c, is.wide, z);
        load4(w + c, weight);
    }
    const float by = norm_of(of, is.dim, eps);
#pragma unroll
    for (u32 e = 0; e < 4; e++) of[e] = weight[e] * (of[e] * by) * bent<T>(z[e], 0);
    if (c < is.dim) store4(y + (u64)i * is.dim + c, of);
}

/// Gradients by o (over that of y) and z, and sums over each block's items of those by w. Blocks take items in order.
template <class T>
__device__ __forceinline__ void norm_gated_backward(const NormShape& is, const T* __restrict__ o, const T* __restrict__ x,
                                                    const T* __restrict__ w, float eps, T* d, T* __restrict__ dx, float* __restrict__ partials) {
    __shared__ __align__(16) float shared[NORM_WARPS][WARP * 4];
    const u32 c = threadIdx.x % WARP * 4, step = gridDim.x * NORM_WARPS;
    float weight[4] = {}, sums[4] = {};
    if (c < is.dim) load4(w + c, weight);
    for (u32 from = blockIdx.x * NORM_WARPS + threadIdx.x / WARP; from < is.items; from += step * NORM_AHEAD) {
        float of[NORM_AHEAD][4] = {}, z[NORM_AHEAD][4] = {}, dy[NORM_AHEAD][4] = {};
        const auto load = [&](u32 n, u32 wide) {
            const u32 i = from + n * step;
            if (i >= is.items || c >= is.dim) return;
            load4(o + (u64)i * is.dim + c, of[n]);
            take4(x + is.gate(i) + c, wide, z[n]);
            load4(d + (u64)i * is.dim + c, dy[n]);
        };
        // One branch for all loads, so that all are under way before the first is waited for.
        if (is.wide) {
#pragma unroll
            for (u32 n = 0; n < NORM_AHEAD; n++) load(n, 1);
        } else {
#pragma unroll
            for (u32 n = 0; n < NORM_AHEAD; n++) load(n, 0);
        }
#pragma unroll
        for (u32 n = 0; n < NORM_AHEAD; n++) {
            const u32 i = from + n * step;
            if (i >= is.items) continue;
            const float by = norm_of(of[n], is.dim, eps);
            float dz[4], dn[4], dot = 0.0f;
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                const float normed = of[n][e] * by, gate = bent<T>(z[n][e], 0), sig = sigmoid<T>(z[n][e]);
                dz[e] = dy[n][e] * weight[e] * normed * (sig * fma(z[n][e], 1.0f - sig, 1.0f));
                sums[e] = fma(dy[n][e] * gate, normed, sums[e]);
                dn[e] = dy[n][e] * weight[e] * gate;
                of[n][e] = normed;
                dot = fma(dn[e], normed, dot);
            }
            dot = warp_sum(dot) / (float)is.dim;
#pragma unroll
            for (u32 e = 0; e < 4; e++) dn[e] = by * fma(-of[n][e], dot, dn[e]);
            if (c >= is.dim) continue;
            store4(d + (u64)i * is.dim + c, dn);
            put4(dx + is.gate(i) + c, is.wide, dz);
        }
    }
    if (!partials) return;
    store4(&shared[threadIdx.x / WARP][c], sums);
    __syncthreads();
    if (threadIdx.x >= is.dim) return;
    float sum = shared[0][threadIdx.x];
#pragma unroll
    for (u32 i = 1; i < NORM_WARPS; i++) sum = sum + shared[i][threadIdx.x];
    partials[(u64)blockIdx.x * is.dim + threadIdx.x] = sum;
}

#define NORM_GATED(T)                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                                                     \
        norm_gated_##T(const T* o, const T* x, const T* w, float eps, T* y, u32 items, u32 heads, u32 dim, u32 row_width, u32 z_first,    \
                       u32 wide) {                                                                                                        \
        begin();                                                                                                                          \
        norm_gated<T>({items, heads, dim, row_width, z_first, wide}, o, x, w, eps, y);                                                    \
    }                                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                                                     \
        norm_gated_backward_##T(const T* o, const T* x, const T* w, float eps, T* d, T* dx, float* partials, u32 items, u32 heads,        \
                                u32 dim, u32 row_width, u32 z_first, u32 wide) {                                                          \
        begin();                                                                                                                          \
        norm_gated_backward<T>({items, heads, dim, row_width, z_first, wide}, o, x, w, eps, d, dx, partials);                             \
    }
NORM_GATED(float)
NORM_GATED(bf16)
