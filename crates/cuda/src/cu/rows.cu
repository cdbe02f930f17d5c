// Operations on rows: embedding, norms, gates, casts, and the sums over rows of the backward pass.
//
// Legend: M rows, h width, e the storage dtype. The order of a sum along a row depends on h alone: which threads share
// a row is chosen by h. Sums over rows go through partial sums of fixed chunks of rows, whose number depends on M and h
// alone, and are added in the order of the chunks: no atomics.

// ---- rows in and out ----------------------------------------------------------------------------------------------

/// out[m] = table[ids[m]]; a block for each row. `wide`: rows are whole and aligned groups of four.
template <class T>
__device__ __forceinline__ void gather(const T* __restrict__ table, const u32* __restrict__ ids,
                                       float* __restrict__ out, u32 h, u32 limit, u32 code, u32 wide) {
    u32 row = blockIdx.x, id = ids[row];
    if (!index_ok(code, id, limit)) return;
    const T* from = table + (u64)id * h;
    float* to = out + (u64)row * h;
    if (wide) {
        for (u32 c = threadIdx.x * 4; c < h; c += blockDim.x * 4) {
            float x[4];
            load4(from + c, x);
            store4(to + c, x);
        }
    } else {
        for (u32 c = threadIdx.x; c < h; c += blockDim.x) to[c] = to_f32(from[c]);
    }
}

#define GATHER(T)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) gather_##T(const T* table, const u32* ids, float* out,         \
                                                                 u32 h, u32 limit, u32 code, u32 wide) {             \
        begin();                                                                                                     \
        gather<T>(table, ids, out, h, limit, code, wide);                                                            \
    }
GATHER(float)
GATHER(bf16)

/// dst = src in another dtype, eight elements a thread.
template <class T>
__device__ __forceinline__ void cast_elements(const float* __restrict__ src, T* __restrict__ dst, u64 n, u32 wide) {
    u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (wide && i + 8 <= n) {
        float x[8];
        load8(src + i, x);
        store8(dst + i, x);
    } else {
        for (u64 end = i + 8 < n ? i + 8 : n; i < end; i++) dst[i] = from_f32<T>(src[i]);
    }
}

#define CAST(T)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) cast_##T(const float* src, T* dst, u64 n, u32 wide) {          \
        begin();                                                                                                     \
        cast_elements<T>(src, dst, n, wide);                                                                         \
    }
CAST(float)
CAST(bf16)

/// x = by x.
extern "C" __global__ void __launch_bounds__(256) scale(float* x, float by, u64 n) {
    begin();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * by;
}

/// x = by x, of a number of the device.
#define SCALE_BY(T)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) scale_by_##T(float* x, const T* by, u64 n) {                   \
        begin();                                                                                                     \
        u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                                          \
        if (i < n) x[i] = x[i] * to_f32(*by);                                                                        \
    }
SCALE_BY(float)
SCALE_BY(bf16)

/// x[m] += bias, rows of n.
#define ADD_BIAS(T)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) add_bias_##T(float* x, const T* bias, u64 count, u32 n) {      \
        begin();                                                                                                     \
        u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                                          \
        if (i < count) x[i] = x[i] + to_f32(bias[i % n]);                                                            \
    }
ADD_BIAS(float)
ADD_BIAS(bf16)

// ---- SwiGLU and GeGLU -----------------------------------------------------------------------------------------------

/// out = activation(gate) up; a thread has eight elements (`wide`), or one.
template <class T>
__device__ __forceinline__ void glu(const T* __restrict__ gate_up, T* __restrict__ out, u32 f, u32 items,
                                    u32 wide, u32 gelu) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= items) return;
    u32 width = wide ? f / 8 : f, row = i / width, c = i - row * width;
    const T* gate = gate_up + (u64)row * 2 * f;
    T* to = out + (u64)row * f;
    if (!wide) {
        to[c] = from_f32<T>(bent<T>(to_f32(gate[c]), gelu) * to_f32(gate[f + c]));
        return;
    }
    float g[8], u[8];
    load8(gate + c * 8, g);
    load8(gate + f + c * 8, u);
#pragma unroll
    for (int j = 0; j < 8; j++) g[j] = bent<T>(g[j], gelu) * u[j];
    store8(to + c * 8, g);
}

/// `gate_up` and `out` may be the same memory, and so may `d_out` and `again`, which, if given, gets the product once
/// more: a thread reads its elements before it writes them.
template <class T>
__device__ __forceinline__ void glu_backward(const T* gate_up, const T* d_out, T* out, T* again, u32 f, u32 items,
                                             u32 wide, u32 gelu) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= items) return;
    u32 width = wide ? f / 8 : f, row = i / width, c = i - row * width;
    const T* x = gate_up + (u64)row * 2 * f;
    const T* dy = d_out + (u64)row * f;
    T* to = out + (u64)row * 2 * f;
    if (!wide) {
        float g = to_f32(x[c]), u = to_f32(x[f + c]), d = to_f32(dy[c]);
        if (again) again[(u64)row * f + c] = from_f32<T>(bent<T>(g, gelu) * u);
        slopes<T>(g, u, d, gelu);
        to[c] = from_f32<T>(g);
        to[f + c] = from_f32<T>(u);
        return;
    }
    float g[8], u[8], d[8];
    load8(x + c * 8, g);
    load8(x + f + c * 8, u);
    load8(dy + c * 8, d);
    if (again) {
        float y[8];
#pragma unroll
        for (int j = 0; j < 8; j++) y[j] = bent<T>(g[j], gelu) * u[j];
        store8(again + (u64)row * f + c * 8, y);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) slopes<T>(g[j], u[j], d[j], gelu);
    store8(to + c * 8, g);
    store8(to + f + c * 8, u);
}

#define GLU(T)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        glu_##T(const T* gate_up, T* out, u32 f, u32 items, u32 wide, u32 gelu) {                                    \
        begin();                                                                                                     \
        glu<T>(gate_up, out, f, items, wide, gelu);                                                                  \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(256) glu_backward_##T(const T* gate_up, const T* d_out, T* out,     \
                                                                       T* again, u32 f, u32 items, u32 wide, u32 gelu) { \
        begin();                                                                                                     \
        glu_backward<T>(gate_up, d_out, out, again, f, items, wide, gelu);                                           \
    }
GLU(float)
GLU(bf16)

// ---- activations --------------------------------------------------------------------------------------------------

#define ACTIVATE(T)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) activate_##T(const T* x, T* out, u64 n, u32 relu) {            \
        begin();                                                                                                     \
        u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                                          \
        if (i >= n) return;                                                                                          \
        float v = to_f32(x[i]);                                                                                      \
        out[i] = from_f32<T>(relu ? (v < 0.0f ? 0.0f : v) : tanh_exact(v));                                          \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(256) activate_backward_##T(const T* y, const T* dy, T* dx, u64 n,   \
                                                                            u32 relu) {                              \
        begin();                                                                                                     \
        u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;                                                          \
        if (i >= n) return;                                                                                          \
        float v = to_f32(y[i]), d = to_f32(dy[i]);                                                                   \
        dx[i] = from_f32<T>(relu ? (v > 0.0f ? d : 0.0f) : d * (1.0f - v * v));                                      \
    }
ACTIVATE(float)
ACTIVATE(bf16)

// ---- norms --------------------------------------------------------------------------------------------------------

/// Sum over the LANES threads that share a row: a warp, or a whole block. Every thread gets it.
template <int LANES> __device__ __forceinline__ float row_sum(float x) {
    x = warp_sum(x);
    if constexpr (LANES > WARP) {
        __shared__ float parts[LANES / WARP];
        __syncthreads();  // the last row's parts have been read
        if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = x;
        __syncthreads();
        x = parts[0];
#pragma unroll
        for (int i = 1; i < LANES / WARP; i++) x = x + parts[i];
    }
    return x;
}

/// A thread's groups of four of a row; zeros beyond its end.
template <int LANES, int QUADS, class T>
__device__ __forceinline__ void load_row(const T* __restrict__ row, u32 lane, u32 h, float (&x)[QUADS][4]) {
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        u32 c = (lane + i * LANES) * 4;
        if (c < h) load4(row + c, x[i]);
        else x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0.0f;
    }
}

/// A thread's part of the sum of a b: four chains.
template <int QUADS>
__device__ __forceinline__ float part_dot(const float (&a)[QUADS][4], const float (&b)[QUADS][4]) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) sums[j] = fma(a[i][j], b[i][j], sums[j]);
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

__device__ __forceinline__ float reciprocal_rms(float sum, u32 h,
                                                float eps) { return 1.0f / sqrtf(sum / (float)h + eps); }

/// out = x r w, LANES threads a row with up to QUADS groups of four each; h is a multiple of four.
template <class T, int LANES, int QUADS>
__device__ __forceinline__ void rms_norm(const float* __restrict__ x, const T* __restrict__ w, float eps,
                                         float offset, T* __restrict__ out, u32 rows, u32 h) {
    u32 row = LANES == WARP ? blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP : blockIdx.x;
    u32 lane = LANES == WARP ? threadIdx.x % WARP : threadIdx.x;
    if (row >= rows) return;  // a whole warp, which shares nothing with others
    float v[QUADS][4], g[QUADS][4];
    load_row<LANES, QUADS>(x + (u64)row * h, lane, h, v);
    load_row<LANES, QUADS>(w, lane, h, g);
    float r = reciprocal_rms(row_sum<LANES>(part_dot(v, v)), h, eps);
    T* to = out + (u64)row * h;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        u32 c = (lane + i * LANES) * 4;
        if (c >= h) continue;
#pragma unroll
        for (int j = 0; j < 4; j++) v[i][j] = v[i][j] * r * (g[i][j] + offset);
        store4(to + c, v[i]);
    }
}

/// Threads of a row of any width.
#define ANY_LANES 256

template <class T>
__device__ __forceinline__ void rms_norm_any(const float* __restrict__ x, const T* __restrict__ w, float eps,
                                             float offset, T* __restrict__ out, u32 rows, u32 h) {
    if (blockIdx.x >= rows) return;
    const float* row = x + (u64)blockIdx.x * h;
    T* to = out + (u64)blockIdx.x * h;
    float sum = 0.0f;
    for (u32 c = threadIdx.x; c < h; c += ANY_LANES) sum = fma(row[c], row[c], sum);
    float r = reciprocal_rms(row_sum<ANY_LANES>(sum), h, eps);
    for (u32 c = threadIdx.x; c < h; c += ANY_LANES) to[c] = from_f32<T>(row[c] * r * (to_f32(w[c]) + offset));
}

/// out = resid + x r w, a block for each row; `out` may be `resid`.
template <class T>
__device__ __forceinline__ void rms_norm_add(const float* __restrict__ x, const T* __restrict__ w, float eps, float offset,
                                             const float* resid, float* out, u32 h) {
    const u64 first = (u64)blockIdx.x * h;
    float sum = 0.0f;
    for (u32 c = threadIdx.x; c < h; c += ANY_LANES) sum = fma(x[first + c], x[first + c], sum);
    float r = reciprocal_rms(row_sum<ANY_LANES>(sum), h, eps);
    for (u32 c = threadIdx.x; c < h; c += ANY_LANES)
        out[first + c] = resid[first + c] + x[first + c] * r * (to_f32(w[c]) + offset);
}

/// dx += r (w dy - xhat mean(w dy xhat)), xhat = x r; partials[block], if given, = sums over this block's rows of dy
/// xhat. A block's rows are those of its index modulo the number of blocks. `rounded`, if given, gets the new dx too.
template <class T, class G, int LANES, int QUADS>
__device__ __forceinline__ void rms_norm_backward(const float* __restrict__ x, const T* __restrict__ w, float eps,
                                                  float offset, const G* __restrict__ dy, float* __restrict__ dx,
                                                  T* __restrict__ rounded, float* __restrict__ rstd,
                                                  float* __restrict__ partials, u32 rows, u32 h) {
    const u32 teams = LANES == WARP ? 4 : 1;  // warps of a block that have rows of their own
    u32 team = LANES == WARP ? threadIdx.x / WARP : 0, lane = LANES == WARP ? threadIdx.x % WARP : threadIdx.x;
    float dw[QUADS][4] = {};
    for (u32 row = blockIdx.x * teams + team; row < rows; row += gridDim.x * teams) {
        // Reads everything before it waits for the sums.
        float v[QUADS][4], d[QUADS][4], old[QUADS][4];
        load_row<LANES, QUADS>(x + (u64)row * h, lane, h, v);
        load_row<LANES, QUADS>(dy + (u64)row * h, lane, h, d);
        load_row<LANES, QUADS>(dx + (u64)row * h, lane, h, old);
        float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            u32 c = (lane + i * LANES) * 4;
            if (c >= h) continue;
            float g[4];
            load4(w + c, g);
#pragma unroll
            for (int j = 0; j < 4; j++) sums[j] = fma((g[j] + offset) * d[i][j], v[i][j], sums[j]);
        }
        float r = reciprocal_rms(row_sum<LANES>(part_dot(v, v)), h, eps);
        float dot = row_sum<LANES>((sums[0] + sums[1]) + (sums[2] + sums[3]));
        float slope = -dot * r * r / (float)h;
        if (lane == 0) rstd[row] = r;
        float* to = dx + (u64)row * h;
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            u32 c = (lane + i * LANES) * 4;
            if (c >= h) continue;
            float g[4];
            load4(w + c, g);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                old[i][j] = fma(fma(v[i][j], slope, (g[j] + offset) * d[i][j]), r, old[i][j]);
                dw[i][j] = fma(d[i][j], v[i][j] * r, dw[i][j]);
            }
            store4(to + c, old[i]);
            if (rounded) store4(rounded + (u64)row * h + c, old[i]);
        }
    }
    if (!partials) return;  // of a frozen weight
    float* part = partials + (u64)blockIdx.x * h;
    if constexpr (LANES > WARP) {
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            u32 c = (lane + i * LANES) * 4;
            if (c < h) store4(part + c, dw[i]);
        }
    } else {
        __shared__ __align__(16) float shared[4][4 * QUADS * WARP];
#pragma unroll
        for (int i = 0; i < QUADS; i++) store4(&shared[team][(lane + i * WARP) * 4], dw[i]);
        __syncthreads();
        for (u32 c = threadIdx.x; c < h; c += 4 * WARP) {
            part[c] = (shared[0][c] + shared[1][c]) + (shared[2][c] + shared[3][c]);
        }
    }
}

/// dx and rstd alone, for rows of any width; the weight's gradient goes through `column_sums`.
template <class T, class G>
__device__ __forceinline__ void rms_norm_backward_any(const float* __restrict__ x, const T* __restrict__ w, float eps,
                                                        float offset, const G* __restrict__ dy, float* __restrict__ dx,
                                                        T* __restrict__ rounded, float* __restrict__ rstd, u32 h) {
    u64 first = (u64)blockIdx.x * h;
    float square = 0.0f, dot = 0.0f;
    for (u32 c = threadIdx.x; c < h; c += ANY_LANES) {
        float v = x[first + c];
        square = fma(v, v, square);
        dot = fma((to_f32(w[c]) + offset) * to_f32(dy[first + c]), v, dot);
    }
    float r = reciprocal_rms(row_sum<ANY_LANES>(square), h, eps);
    float slope = -row_sum<ANY_LANES>(dot) * r * r / (float)h;
    if (threadIdx.x == 0) rstd[blockIdx.x] = r;
    for (u32 c = threadIdx.x; c < h; c += ANY_LANES) {
        float inner = fma(x[first + c], slope, (to_f32(w[c]) + offset) * to_f32(dy[first + c]));
        float sum = fma(inner, r, dx[first + c]);
        dx[first + c] = sum;
        if (rounded) rounded[first + c] = from_f32<T>(sum);
    }
}

#define NORM_LANES(T, WAY, LANES, QUADS)                                                                             \
    extern "C" __global__ void __launch_bounds__(LANES == 32 ? 128 : LANES)                                          \
        rms_norm_##WAY##_##T(const float* x, const T* w, float eps, float offset, T* out, u32 rows, u32 h) {                       \
        begin();                                                                                                     \
        rms_norm<T, LANES, QUADS>(x, w, eps, offset, out, rows, h);                                                          \
    }
#define NORM_BACKWARD_LANES(NAME, T, G, LANES, QUADS)                                                                \
    extern "C" __global__ void __launch_bounds__(LANES == 32 ? 128 : LANES)                                          \
        rms_norm_backward_##NAME(const float* x, const T* w, float eps, float offset, const G* dy, float* dx, T* rounded,          \
                                 float* rstd, float* partials, u32 rows, u32 h) {                                    \
        begin();                                                                                                     \
        rms_norm_backward<T, G, LANES, QUADS>(x, w, eps, offset, dy, dx, rounded, rstd, partials, rows, h);                  \
    }
#define NORM(T)                                                                                                      \
    NORM_LANES(T, warp, 32, 8)                                                                                       \
    NORM_LANES(T, 256, 256, 4)                                                                                       \
    NORM_LANES(T, 512, 512, 8)                                                                                       \
    extern "C" __global__ void __launch_bounds__(ANY_LANES)                                                          \
        rms_norm_any_##T(const float* x, const T* w, float eps, float offset, T* out, u32 rows, u32 h) {                           \
        begin();                                                                                                     \
        rms_norm_any<T>(x, w, eps, offset, out, rows, h);                                                                    \
    }
/// Kernels by the dtypes of the weights and of the output's gradient.
#define NORM_BACKWARD(T, G, TYPES)                                                                                   \
    NORM_BACKWARD_LANES(warp_##TYPES, T, G, 32, 8)                                                                   \
    NORM_BACKWARD_LANES(short_##TYPES, T, G, 256, 2)                                                                 \
    NORM_BACKWARD_LANES(256_##TYPES, T, G, 256, 4)                                                                   \
    NORM_BACKWARD_LANES(512_##TYPES, T, G, 512, 8)                                                                   \
    extern "C" __global__ void __launch_bounds__(ANY_LANES) rms_norm_backward_any_##TYPES(                           \
        const float* x, const T* w, float eps, float offset, const G* dy, float* dx, T* rounded, float* rstd, u32 h) {             \
        begin();                                                                                                     \
        rms_norm_backward_any<T, G>(x, w, eps, offset, dy, dx, rounded, rstd, h);                                            \
    }
#define NORM_ADD(T)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ANY_LANES)                                                          \
        rms_norm_add_##T(const float* x, const T* w, float eps, float offset, const float* resid, float* out, u32 h) { \
        begin();                                                                                                     \
        rms_norm_add<T>(x, w, eps, offset, resid, out, h);                                                           \
    }
NORM_ADD(float)
NORM_ADD(bf16)
NORM(float)
NORM(bf16)
NORM_BACKWARD(float, float, float)
NORM_BACKWARD(bf16, bf16, bf16)
NORM_BACKWARD(bf16, float, bf16_float)

// ---- sums over rows -----------------------------------------------------------------------------------------------

/// Columns of a block of `column_sums`: a warp with four each.
#define SUM_COLUMNS 128
#define SUM_WARPS 8

/// partials[chunk][c] = sum over the chunk's rows of y[row][c], or of y x rstd[row] with `x`. Warps take every eighth
/// row of the chunk. grid: (columns / SUM_COLUMNS, chunks).
template <class T>
__device__ __forceinline__ void column_sums(const T* __restrict__ y, const float* __restrict__ x,
                                            const float* __restrict__ rstd, float* __restrict__ partials, u32 rows,
                                            u32 n, u32 chunk_rows, u32 wide) {
    __shared__ __align__(16) float shared[SUM_WARPS][SUM_COLUMNS];
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, c = blockIdx.x * SUM_COLUMNS + lane * 4;
    u32 first = blockIdx.y * chunk_rows, end = min(first + chunk_rows, rows);
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (u32 row = first + warp; row < end; row += SUM_WARPS) {
        u64 at = (u64)row * n + c;
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f}, v[4] = {1.0f, 1.0f, 1.0f, 1.0f};
        if (wide && c < n) {
            load4(y + at, d);
            if (x) load4(x + at, v);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (c + j >= n) continue;
                d[j] = to_f32(y[at + j]);
                if (x) v[j] = x[at + j];
            }
        }
        float r = x ? rstd[row] : 1.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) sum[j] = fma(d[j], v[j] * r, sum[j]);
    }
    store4(&shared[warp][lane * 4], sum);
    __syncthreads();
    c = blockIdx.x * SUM_COLUMNS + threadIdx.x;
    if (threadIdx.x >= SUM_COLUMNS || c >= n) return;
    float total = shared[0][threadIdx.x];
#pragma unroll
    for (int i = 1; i < SUM_WARPS; i++) total = total + shared[i][threadIdx.x];
    partials[(u64)blockIdx.y * n + c] = total;
}

#define COLUMN_SUMS(T)                                                                                               \
    extern "C" __global__ void __launch_bounds__(SUM_WARPS* WARP)                                                    \
        column_sums_##T(const T* y, const float* x, const float* rstd, float* partials, u32 rows, u32 n,             \
                        u32 chunk_rows, u32 wide) {                                                                  \
        begin();                                                                                                     \
        column_sums<T>(y, x, rstd, partials, rows, n, chunk_rows, wide);                                             \
    }
COLUMN_SUMS(float)
COLUMN_SUMS(bf16)

/// Warps of a block of `add_partials`; each adds every PARTIAL_WARPS-th chunk of the same 32 columns.
#define PARTIAL_WARPS 32

/// out[c] = sum over chunks of partials[chunk][c], or out[c] += when `add`; `stride` elements from chunk to chunk.
template <class T>
__device__ __forceinline__ void add_partials(const float* __restrict__ partials, T* out, u32 chunks, u32 stride,
                                             u32 n, u32 add) {
    __shared__ float shared[PARTIAL_WARPS][WARP];
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, c = blockIdx.x * WARP + lane;
    float sum = 0.0f;
    if (c < n) {
#pragma unroll 8
        for (u32 i = warp; i < chunks; i += PARTIAL_WARPS) sum = sum + partials[(u64)i * stride + c];
    }
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= n) return;
#pragma unroll
    for (int i = 1; i < PARTIAL_WARPS; i++) sum = sum + shared[i][lane];
    // A partial gradient is rounded to the gradient's dtype before it is added, as cuBLASLt rounds a product.
    out[c] = from_f32<T>((add ? to_f32(out[c]) : 0.0f) + to_f32(from_f32<T>(sum)));
}

#define ADD_PARTIALS(T)                                                                                              \
    extern "C" __global__ void __launch_bounds__(PARTIAL_WARPS* WARP)                                                \
        add_partials_##T(const float* partials, T* out, u32 chunks, u32 stride, u32 n, u32 add) {                    \
        begin();                                                                                                     \
        add_partials<T>(partials, out, chunks, stride, n, add);                                                      \
    }
ADD_PARTIALS(float)
ADD_PARTIALS(bf16)

// ---- rows added to rows -------------------------------------------------------------------------------------------

/// Sorts the rows of a sum by target, stably, by counting: order[p] is the row at place p, runs[p] the number of rows
/// of its target at the first of them, else 0. A warp a row; comparing all pairs takes microseconds for thousands.
extern "C" __global__ void __launch_bounds__(256) order_rows(const u32* __restrict__ targets, u32* __restrict__ order,
                                                             u32* __restrict__ runs, u32 rows) {
    begin();
    u32 row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    u32 mine = targets[row], below = 0, before = 0, after = 0;
#pragma unroll 8
    for (u32 i = lane; i < rows; i += WARP) {
        u32 other = targets[i];
        below += other < mine;
        before += other == mine && i < row;
        after += other == mine && i > row;
    }
    below = __reduce_add_sync(ALL_LANES, below);
    before = __reduce_add_sync(ALL_LANES, before);
    after = __reduce_add_sync(ALL_LANES, after);
    if (lane > 0) return;
    order[below + before] = row;
    runs[below + before] = before == 0 ? after + 1 : 0;
}

/// Columns of a block of `add_rows`: a warp with four each.
#define ADD_COLUMNS 128
/// Rows whose loads are under way at once.
#define ADD_UNROLL 8

__device__ __forceinline__ void add_columns(const float* row, u32 c, u32 h, u32 wide, float (&x)[4]) {
    if (wide) return load4(row + c, x);
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = c + j < h ? row[c + j] : 0.0f;
}

/// dst[target] += src[row] for the rows of a target, ascending: one by one if `direct`, else their f32 sum at once.
/// grid: (rows, columns / ADD_COLUMNS), a warp a block.
template <class T>
__device__ __forceinline__ void add_rows(const float* __restrict__ src, const u32* __restrict__ targets,
                                         const u32* __restrict__ order, const u32* __restrict__ runs, T* dst, u32 h,
                                         u32 limit, u32 code, u32 wide, u32 direct) {
    u32 run = runs[blockIdx.x], c = blockIdx.y * ADD_COLUMNS + threadIdx.x * 4;
    if (run == 0 || c >= h) return;
    const u32* rows = order + blockIdx.x;
    u32 target = targets[rows[0]];
    if (!index_ok(code, target, limit)) return;
    T* to = dst + (u64)target * h;
    float sum[4], old[4];
    if (wide) load4(to + c, old);
    else {
#pragma unroll
        for (int j = 0; j < 4; j++) old[j] = c + j < h ? to_f32(to[c + j]) : 0.0f;
    }
    add_columns(src + (u64)rows[0] * h, c, h, wide, sum);
#pragma unroll
    for (int j = 0; j < 4; j++) sum[j] = direct ? old[j] + sum[j] : sum[j];
    u32 i = 1;
    for (; i + ADD_UNROLL <= run; i += ADD_UNROLL) {
        float x[ADD_UNROLL][4];
#pragma unroll
        for (int k = 0; k < ADD_UNROLL; k++) add_columns(src + (u64)rows[i + k] * h, c, h, wide, x[k]);
#pragma unroll
        for (int k = 0; k < ADD_UNROLL; k++) {
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j] = sum[j] + x[k][j];
        }
    }
    for (; i < run; i++) {
        float x[4];
        add_columns(src + (u64)rows[i] * h, c, h, wide, x);
#pragma unroll
        for (int j = 0; j < 4; j++) sum[j] = sum[j] + x[j];
    }
#pragma unroll
    for (int j = 0; j < 4; j++) sum[j] = direct ? sum[j] : old[j] + sum[j];
    if (wide) return store4(to + c, sum);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (c + j < h) to[c + j] = from_f32<T>(sum[j]);
    }
}

#define ADD_ROWS(T)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(WARP)                                                               \
        add_rows_##T(const float* src, const u32* targets, const u32* order, const u32* runs, T* dst, u32 h,         \
                     u32 limit, u32 code, u32 wide, u32 direct) {                                                    \
        begin();                                                                                                     \
        add_rows<T>(src, targets, order, runs, dst, h, limit, code, wide, direct);                                   \
    }
ADD_ROWS(float)
ADD_ROWS(bf16)
