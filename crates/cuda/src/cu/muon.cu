// Muon's operations besides its products: momentum, parts of matrices taken or turned, and the step. Each does what the
// CPU's does, operation by operation.

#define MUON(T)                                                                                                      \
    /* m = m + rest (g - m); g = that, or with nesterov m + rest (g - m) of it. */                                   \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        momentum_##T(T* g, float* m, u64 n, float rest, float grad_scale, u32 nesterov) {                            \
        begin();                                                                                                     \
        u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                                          \
        if (i >= n) return;                                                                                          \
        float grad = to_f32(g[i]) * grad_scale, old = m[i];                                                          \
        float now = fma(grad - old, rest, old);                                                                      \
        m[i] = now;                                                                                                  \
        g[i] = from_f32<T>(nesterov ? fma(grad - now, rest, now) : now);                                             \
    }                                                                                                                \
    /* w = w keep - rate d, in f32. */                                                                               \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        descend_##T(const float* d, T* w, float* master, u64 n, float keep, float rate) {                            \
        begin();                                                                                                     \
        u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                                          \
        if (i >= n) return;                                                                                          \
        float old = master ? master[i] : to_f32(w[i]);                                                               \
        float now = fma(d[i], -rate, old * keep);                                                                    \
        if (master) master[i] = now;                                                                                 \
        w[i] = from_f32<T>(now);                                                                                     \
    }                                                                                                                \
    /* dst[to + i][j] = src[from + i][j], or src[from + j][i] if turned; n elements, rows of k in dst. */            \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        arrange_##T(const T* src, float* dst, u32 src_k, u32 k, u32 from, u32 to, u64 n, u32 turned) {               \
        begin();                                                                                                     \
        u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                                         \
        if (at >= n) return;                                                                                         \
        u64 i = at / k, j = at % k;                                                                                  \
        dst[(to + i) * k + j] = to_f32(turned ? src[(from + j) * src_k + i] : src[(from + i) * src_k + j]);          \
    }
MUON(float)
MUON(bf16)
