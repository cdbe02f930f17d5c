// Row operations of experts besides products: gates weighted by pair, or by a row's sigmoid for the shared expert, their
// gradients, and sums over a row's pairs.
//
// Legend: M rows, k experts a row, P = M k pairs in the order of `pairs`, f the width of a gate, h that of a row.

/// out[p] = weight activation(gate) up; a thread has eight elements (`wide`), or one. `weight_of`: the weight of p.
template <class T, class Weight>
__device__ __forceinline__ void glu_experts(const T* __restrict__ gate_up, Weight weight_of, T* __restrict__ out, u32 f, u32 items, u32 wide,
                                            u32 gelu) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= items) return;
    const u32 width = wide ? f / 8 : f, p = i / width, c = i - p * width;
    const float weight = weight_of(p);
    const T* gate = gate_up + (u64)p * 2 * f;
    T* to = out + (u64)p * f;
    if (!wide) {
        to[c] = from_f32<T>(weight * (bent<T>(to_f32(gate[c]), gelu) * to_f32(gate[f + c])));
        return;
    }
    float g[8], u[8];
    load8(gate + c * 8, g);
    load8(gate + f + c * 8, u);
#pragma unroll
    for (u32 j = 0; j < 8; j++) g[j] = weight * (bent<T>(g[j], gelu) * u[j]);
    store8(to + c * 8, g);
}

/// Overwrites gate and up with their gradient and the product's gradient with the product, and hands `write` the weight's
/// gradient: a sum over the lanes' elements, each lane's ascending. A warp has a pair.
template <class T, class Weight, class Write>
__device__ __forceinline__ void glu_experts_backward(T* gate_up, T* dout, Weight weight_of, Write write, u32 f, u32 count, u32 gelu) {
    const u32 p = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (p >= count) return;
    const float weight = weight_of(p);
    T *gate = gate_up + (u64)p * 2 * f, *dy = dout + (u64)p * f;
    float sum = 0.0f;
    if (f % 8 == 0) {
        for (u32 c = lane * 8; c < f; c += WARP * 8) {
            float g[8], u[8], d[8], y[8];
            load8(gate + c, g);
            load8(gate + f + c, u);
            load8(dy + c, d);
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                const float of_one = bent<T>(g[j], gelu) * u[j];
                sum = fma(d[j], of_one, sum);
                y[j] = weight * of_one;
                slopes<T>(g[j], u[j], weight * d[j], gelu);
            }
            store8(dy + c, y);
            store8(gate + c, g);
            store8(gate + f + c, u);
        }
    } else {
        for (u32 c = lane; c < f; c += WARP) {
            float g = to_f32(gate[c]), u = to_f32(gate[f + c]);
            const float d = to_f32(dy[c]), of_one = bent<T>(g, gelu) * u;
            sum = fma(d, of_one, sum);
            dy[c] = from_f32<T>(weight * of_one);
            slopes<T>(g, u, weight * d, gelu);
            gate[c] = from_f32<T>(g);
            gate[f + c] = from_f32<T>(u);
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) write(p, sum);
}

/// Where clamped gates and ups end, and the factor of their exponents.
#define GATE_LIMIT 7.0f
#define GATE_ALPHA 1.702f

/// A clamped gate, and a clamped up plus 1; NaN stays NaN.
__device__ __forceinline__ void clamp_pair(float& g, float& u) {
    g = g > GATE_LIMIT ? GATE_LIMIT : g;
    u = (u > GATE_LIMIT ? GATE_LIMIT : u < -GATE_LIMIT ? -GATE_LIMIT : u) + 1.0f;
}

/// Activation of a clamped gate: g / (1 + e^(-alpha g)).
template <class T> __device__ __forceinline__ float bent_clamped(float g);
template <> __device__ __forceinline__ float bent_clamped<float>(float g) { return g / (1.0f + exp_exact(-GATE_ALPHA * g)); }
template <> __device__ __forceinline__ float bent_clamped<bf16>(float g) {
    return __fdividef(g, 1.0f + exp2_fast(GATE_ALPHA * g * -1.44269504f));
}

/// The product of a gate and an up as they are stored, and their gradients in their places, of a product's d. What was
/// clamped has a gradient of 0.
template <class T> __device__ __forceinline__ float clamped_slopes(float& gate, float& up, float d) {
    float g = gate, u = up;
    clamp_pair(g, u);
    const float sig = sigmoid<T>(GATE_ALPHA * g), slope = sig * fma(GATE_ALPHA * g, 1.0f - sig, 1.0f);
    gate = gate <= GATE_LIMIT ? d * u * slope : 0.0f;
    up = fabsf(up) <= GATE_LIMIT ? d * (g * sig) : 0.0f;
    return bent_clamped<T>(g) * u;
}

/// out[p] = weight activation(gate) (up + 1) of clamped gates and ups that alternate; else as `glu_experts`.
template <class T>
__device__ __forceinline__ void glu_clamped(const T* __restrict__ gate_up, const u32* __restrict__ pairs, const float* __restrict__ weights,
                                            T* __restrict__ out, u32 f, u32 items, u32 wide) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= items) return;
    const u32 width = wide ? f / 8 : f, p = i / width, c = (i - p * width) * (wide ? 8 : 1);
    const float weight = weights[pairs[p]];
    const T* from = gate_up + (u64)p * 2 * f + 2 * c;
    T* to = out + (u64)p * f + c;
    if (!wide) {
        float g = to_f32(from[0]), u = to_f32(from[1]);
        clamp_pair(g, u);
        *to = from_f32<T>(weight * (bent_clamped<T>(g) * u));
        return;
    }
    float y[8];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float x[8];
        load8(from + half * 8, x);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            clamp_pair(x[2 * j], x[2 * j + 1]);
            y[half * 4 + j] = weight * (bent_clamped<T>(x[2 * j]) * x[2 * j + 1]);
        }
    }
    store8(to, y);
}

/// The gradients of `glu_clamped`, as `glu_experts_backward`. A warp has a pair.
template <class T>
__device__ __forceinline__ void glu_clamped_backward(T* gate_up, T* dout, const u32* __restrict__ pairs, const float* __restrict__ weights,
                                                     float* d_weights, u32 f, u32 count) {
    const u32 p = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (p >= count) return;
    const float weight = weights[pairs[p]];
    T *own = gate_up + (u64)p * 2 * f, *dy = dout + (u64)p * f;
    float sum = 0.0f;
    if (f % 4 == 0) {
        for (u32 c = lane * 4; c < f; c += WARP * 4) {
            float x[8], d[4];
            load8(own + 2 * c, x);
            load4(dy + c, d);
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const float of_one = clamped_slopes<T>(x[2 * j], x[2 * j + 1], weight * d[j]);
                sum = fma(d[j], of_one, sum);
                d[j] = weight * of_one;
            }
            store4(dy + c, d);
            store8(own + 2 * c, x);
        }
    } else {
        for (u32 c = lane; c < f; c += WARP) {
            float g = to_f32(own[2 * c]), u = to_f32(own[2 * c + 1]);
            const float d = to_f32(dy[c]), of_one = clamped_slopes<T>(g, u, weight * d);
            sum = fma(d, of_one, sum);
            dy[c] = from_f32<T>(weight * of_one);
            own[2 * c] = from_f32<T>(g);
            own[2 * c + 1] = from_f32<T>(u);
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) d_weights[p] = sum;
}

/// Pairs whose parts of a row are read before they are added.
#define AHEAD 8

/// out[m] = resid[m] + the sum of y over the row's pairs, in order. A thread has four columns (`wide`), or one; blocks
/// of a row are along the grid's y.
template <class T>
__device__ __forceinline__ void combine(const float* __restrict__ y, const u32* __restrict__ places, const float* resid, T* out, u32 h,
                                        u32 chosen, u32 limit, u32 wide) {
    const u32 row = blockIdx.x, col = (blockIdx.y * blockDim.x + threadIdx.x) * (wide ? 4 : 1);
    if (col >= h) return;
    const u64 at = (u64)row * h + col;
    const u32* own = places + (u64)row * chosen;
    const auto load = [&](const float* from, float (&x)[4]) {
        if (wide) {
            load4(from, x);
        } else {
            x[0] = *from;
        }
    };
    // Minus zero and a number are that number.
    float sum[4] = {-0.0f, -0.0f, -0.0f, -0.0f}, first[4] = {};
    if (resid) load(resid + at, first);
    for (u32 from = 0; from < chosen; from += AHEAD) {
        float part[AHEAD][4] = {};
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            if (from + j < chosen && index_ok(BAD_ROW, own[from + j], limit)) load(y + (u64)own[from + j] * h + col, part[j]);
        }
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            if (from + j >= chosen) break;
#pragma unroll
            for (u32 c = 0; c < 4; c++) sum[c] = sum[c] + part[j][c];
        }
    }
    if (resid) {
#pragma unroll
        for (u32 c = 0; c < 4; c++) sum[c] = first[c] + sum[c];
    }
    if (wide) {
        store4(out + at, sum);
    } else {
        out[at] = from_f32<T>(sum[0]);
    }
}

#define ROWS_OF(T)                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    glu_experts_##T(const T* gate_up, const u32* pairs, const float* weights, T* out, u32 f, u32 items, u32 wide, u32 gelu) {      \
        begin();                                                                                                                   \
        const auto weight = [=](u32 p) { return weights[pairs[p]]; };                                                              \
        glu_experts(gate_up, weight, out, f, items, wide, gelu);                                                                   \
    }                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    glu_shared_##T(const T* gate_up, const float* logits, T* out, u32 f, u32 items, u32 wide, u32 gelu) {                          \
        begin();                                                                                                                   \
        const auto weight = [=](u32 m) { return sigmoid<T>(logits[m]); };                                                          \
        glu_experts(gate_up, weight, out, f, items, wide, gelu);                                                                   \
    }                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    glu_shared_backward_##T(T* gate_up, T* dout, const float* logits, T* d_logits, u32 f, u32 count, u32 gelu) {                   \
        begin();                                                                                                                   \
        const auto weight = [=](u32 m) { return sigmoid<T>(logits[m]); };                                                          \
        const auto write = [=](u32 m, float d) {                                                                                   \
            d_logits[m] = from_f32<T>(sigmoid<T>(logits[m]) * sigmoid<T>(-logits[m]) * d);                                         \
        };                                                                                                                         \
        glu_experts_backward(gate_up, dout, weight, write, f, count, gelu);                                                        \
    }                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    glu_experts_backward_##T(T* gate_up, T* dout, const u32* pairs, const float* weights, float* d_weights, u32 f, u32 count,      \
                             u32 gelu) {                                                                                           \
        begin();                                                                                                                   \
        const auto weight = [=](u32 p) { return weights[pairs[p]]; };                                                              \
        const auto write = [=](u32 p, float d) { d_weights[p] = d; };                                                              \
        glu_experts_backward(gate_up, dout, weight, write, f, count, gelu);                                                        \
    }                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    glu_clamped_##T(const T* gate_up, const u32* pairs, const float* weights, T* out, u32 f, u32 items, u32 wide) {                \
        begin();                                                                                                                   \
        glu_clamped(gate_up, pairs, weights, out, f, items, wide);                                                                 \
    }                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    glu_clamped_backward_##T(T* gate_up, T* dout, const u32* pairs, const float* weights, float* d_weights, u32 f, u32 count) {    \
        begin();                                                                                                                   \
        glu_clamped_backward(gate_up, dout, pairs, weights, d_weights, f, count);                                                  \
    }                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                                              \
    combine_##T(const float* y, const u32* places, const float* resid, T* out, u32 h, u32 chosen, u32 limit, u32 wide) {           \
        begin();                                                                                                                   \
        combine(y, places, resid, out, h, chosen, limit, wide);                                                                    \
    }
ROWS_OF(float)
ROWS_OF(bf16)
